"""How often other people's servers are asked, and with which pauses."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from ferryman.errors import TransientError
from ferryman.service.errors import Stopping

PAUSE_FIRST_S: Final = 0.5
PAUSE_FACTOR: Final = 4.0
"""Between tries: 0.5, 2, 8 s, each a bit more or less."""

T = TypeVar("T")


def trying(ask: Callable[[], T], tries: int, pause_s: float, stop: threading.Event) -> T:
    """What ``ask`` returns; after a ``TransientError`` it is asked again.

    Raises:
        TransientError: tried as often as it may be.
        Stopping: ``stop`` was set.
    """
    for tried in range(1, tries + 1):
        if stop.is_set():
            raise Stopping
        try:
            return ask()
        except TransientError as e:
            if tried == tries:
                raise TransientError(f"{e.why} (tried {tried} times)") from None
        if stop.wait(random.uniform(0.7, 1.3) * pause_s * PAUSE_FACTOR ** (tried - 1)):
            raise Stopping
    raise AssertionError("unreachable")
