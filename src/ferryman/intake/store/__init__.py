"""Stores for a queue's nodes: ``open_store`` opens the one at a URL; ``base`` is the port."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ferryman.intake.errors import QueueRefused
from ferryman.intake.store.base import Store

SESSION_TIMEOUT_S: Final = 10.0
"""Seconds after which a consumer that is dead, stopped or disconnected has lost its locks. ZooKeeper's servers may
allow less."""


def open_store(
    url: str, *, session_timeout_s: float = SESSION_TIMEOUT_S, clock: Callable[[], float] = time.time
) -> Store:
    """Open the store at a URL: ``sqlite:///file``, ``zookeeper://host:port,host:port/chroot``, ``memory:``,
    ``memory:name``.

    Raises:
        QueueRefused: there is no such store, or it cannot be used.
        QueueLost: the server does not answer.
    """
    if url.startswith("memory:"):
        from ferryman.intake.store.memory import MemoryStore

        return MemoryStore(url.removeprefix("memory:"), clock=clock)
    if url.startswith("sqlite:///") and url != "sqlite:///":
        from ferryman.intake.store.sqlite import SqliteStore

        return SqliteStore(Path(url.removeprefix("sqlite:///")), session_timeout_s=session_timeout_s, clock=clock)
    if url.startswith("zookeeper://"):
        from ferryman.intake.store.zookeeper import ZooKeeperStore

        return ZooKeeperStore(url, session_timeout_s=session_timeout_s)
    display_url = url.partition("@")[2] or url
    raise QueueRefused(
        f"{display_url}: this is not a queue URL. Give sqlite:///file, zookeeper://host:port/chroot or memory:."
    )
