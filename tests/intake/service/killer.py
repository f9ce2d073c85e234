"""Work that ends its process over a file that says so: here as in ``ferryman.intake.service.isolation``.

``KILLS`` in a file's URL: SIGKILL while it is fetched. ``KILLS-ONCE``: only the first time, over all processes.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ferryman.intake.service import fetch, isolation

KILLS, ONCE = "KILLS", "KILLS-ONCE"


def install() -> None:
    """From now on such a file ends this process."""
    for name in ("fetch_unsynced", "fetch_content"):
        setattr(fetch.Fetcher, name, _ending(getattr(fetch.Fetcher, name)))


def _ending(get: Any) -> Any:
    def ending(self: Any, url: str, *args: Any, **named: Any) -> Any:
        if KILLS in url and (ONCE not in url or _is_first(url)):
            os.kill(os.getpid(), signal.SIGKILL)
        return get(self, url, *args, **named)

    return ending


def _is_first(url: str) -> bool:
    try:
        Path(urlsplit(url).path + ".seen").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def run_task(task: isolation.Task) -> Any:
    """``isolation.run_task``, where such a file ends the child."""
    install()
    return task.run()
