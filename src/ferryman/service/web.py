"""What everybody keeps to who asks other people's servers: how often, with which pauses, and as whom."""

from __future__ import annotations

import random
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import unquote_to_bytes, urlsplit

from ferryman.errors import TransientError
from ferryman.service.errors import Stopping

if TYPE_CHECKING:
    from urllib3 import PoolManager

PAUSE_FIRST_S: Final = 0.5
PAUSE_FACTOR: Final = 4.0
"""Between tries: 0.5, 2, 8 s, each a bit more or less."""

TRY_AGAIN: Final = frozenset({408, 425, 429})
"""Client errors that pass: Request Timeout, Too Early, Too Many Requests. So do all server errors."""

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


def asked(url: str) -> tuple[str, dict[str, str]]:
    """The URL that is asked for, and headers: the user and password of a URL are sent as Basic authentication."""
    parts = urlsplit(url)
    headers = {"user-agent": "ferryman"}
    if parts.username:
        login = f"{parts.username}:{parts.password or ''}"
        headers["authorization"] = "Basic " + b64encode(unquote_to_bytes(login)).decode()
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl(), headers


def pool(connections: int) -> PoolManager:
    """Connections that are kept, so many a server."""
    from urllib3 import PoolManager

    return PoolManager(num_pools=32, maxsize=connections, ssl_context=ssl.create_default_context())
