"""Watches of a store on ZooKeeper: all that look at a node share one at the servers, which stays until it has told.

Setting one reads the names of all children: of thousands of batches, at each look, that would be most of what an idle
queue costs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

Arm = Callable[[str, Callable[[object], None]], None]
"""Sets a watch at the servers: of a path, and what is called when it tells."""


class ZooKeeperWatches:
    """Of one handle."""

    def __init__(self, arm: Arm) -> None:
        self._arm = arm
        self._lock = threading.Lock()
        self._armed: dict[str, _Armed] = {}

    def watch(self, path: str) -> ZooKeeperWatch:
        """Look at a node from now on. What has just changed may be told once more."""
        watch = ZooKeeperWatch(self._forget)
        with self._lock:
            armed = self._armed.get(path)
            if armed is not None:
                armed.watches.add(watch)
                watch.armed = armed
                return watch
        armed = _Armed({watch})
        watch.armed = armed
        self._arm(path, lambda _: self._tell(path, armed))  # also when the connection is lost: then nobody knows
        with self._lock:
            if not armed.told:
                self._armed[path] = armed
        return watch

    def _tell(self, path: str, armed: _Armed) -> None:
        with self._lock:
            armed.told = True
            if self._armed.get(path) is armed:
                del self._armed[path]
            watches = list(armed.watches)
        for watch in watches:
            watch.tell()

    def _forget(self, watch: ZooKeeperWatch) -> None:
        with self._lock:
            if watch.armed is not None:
                watch.armed.watches.discard(watch)


class _Armed:
    """A watch at the servers, and all that share it."""

    def __init__(self, watches: set[ZooKeeperWatch]) -> None:
        self.watches = watches
        self.told = False


class ZooKeeperWatch:
    """Of one who waits."""

    def __init__(self, forget: Callable[[ZooKeeperWatch], None]) -> None:
        self._forget = forget
        self._told, self._closed = threading.Event(), False
        self.armed: _Armed | None = None

    def tell(self) -> None:
        self._told.set()

    def wait(self, timeout_s: float) -> bool:
        return self._told.wait(timeout_s) and not self._closed

    def close(self) -> None:
        self._closed = True
        self._forget(self)
        self._told.set()
