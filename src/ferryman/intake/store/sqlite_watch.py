"""Watches of a store in SQLite: one thread a handle asks whether other processes have changed the file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakSet, ref

from ferryman.errors import FerrymanError

POLL_S: Final = 0.1
"""How often it asks while there are watches: this costs microseconds."""

State = tuple[int, int] | None
"""Of a node: its children now, and how many it had in all; None if it is not there."""


class Watches:
    """All watches of a handle.

    Args:
        asked: another value after other processes have changed the file. It may raise: then all watches look.
    """

    def __init__(self, asked: Callable[[], int]) -> None:
        self._asked = asked
        self._lock = threading.Lock()
        self._all: WeakSet[SqliteWatch] = WeakSet()
        self._thread: threading.Thread | None = None

    def add(self, watch: SqliteWatch) -> None:
        before = self._asked()  # without the lock: who commits has the file's, and wants this one
        with self._lock:
            self._all.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=_poll, args=(ref(self), before), name="queue watch", daemon=True)
                self._thread.start()

    def remove(self, watch: SqliteWatch) -> None:
        with self._lock:
            self._all.discard(watch)

    def tell(self, paths: Iterable[str]) -> None:
        """This handle changes the children of these nodes, or makes or removes them."""
        if self._all:
            named = set(paths)
            self._set(lambda watch: watch.path in named)

    def _set(self, chosen: Callable[[SqliteWatch], bool]) -> None:
        with self._lock:
            watches = [watch for watch in self._all if chosen(watch)]
        for watch in watches:
            watch.event.set()

    def look(self, seen: int) -> int | None:
        """Ask once. Returns the value now; None when nobody watches any more: the thread ends."""
        with self._lock:
            if not self._all:
                self._thread = None
                return None
        try:
            now = self._asked()
        except FerrymanError:  # whoever waits meets it too
            now = -1
        if now != seen:
            self._set(lambda watch: True)
        return now


def _poll(watches: ref[Watches], seen: int) -> None:
    """The thread, which does not keep a handle that nobody else keeps."""
    while True:
        time.sleep(POLL_S)
        there = watches()
        now = there.look(seen) if there is not None else None
        if now is None:
            return
        seen = now


class SqliteWatch:
    """Waits for a change of a node's children. ``state``: reads the node."""

    def __init__(self, watches: Watches, path: str, state: Callable[[], State]) -> None:
        self._watches, self.path, self._state = watches, path, state
        self.event = threading.Event()
        """Something may have changed, or it is closed."""
        self._closed = False
        watches.add(self)
        self._before = state()

    def wait(self, timeout_s: float) -> bool:
        give_up = time.monotonic() + timeout_s
        while self.event.wait(max(0.0, give_up - time.monotonic())):
            self.event.clear()
            if self._closed:
                return False
            if self._state() != self._before:
                self.event.set()  # and stays so
                return True
        return False

    def close(self) -> None:
        self._closed = True
        self._watches.remove(self)
        self.event.set()
