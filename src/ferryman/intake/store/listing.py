"""A folder's children as a server gave them, for a second."""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections.abc import Callable, Sequence
from typing import Final

LISTING_S: Final = 1.0
"""A listing is kept so long for acquiring: of 100 000 jobs it costs 0.2 s, each acquisition then one change."""

HELD_S: Final = 3.0
"""A job that somebody held is left alone for so long, as long as there are others: of thousands that are worked at,
asking for each lock once a second would take longer than a second."""

ASKED_FIRST: Final = 8
"""Names that are asked for together at first, then twice as many each time: others are most often a little ahead."""

ASKED_MAX: Final = 256
"""Names that are asked for together at most."""


class FolderListing:
    """The children of a folder, each given once, for a second. Those that were held lately are left out of the next."""

    def __init__(self) -> None:
        self._using = threading.Lock()
        self._names: list[str] = []
        self._next = 0
        self._read_at = float("-inf")
        self._held: dict[str, float] = {}

    def is_old(self) -> bool:
        return time.monotonic() - self._read_at > LISTING_S

    def renew(self, names: list[str], *, all_of_them: bool = False) -> None:
        """Start again. ``all_of_them``: also those that were held lately; they are asked for."""
        with self._using:
            now = time.monotonic()
            self._held = {name: at for name, at in self._held.items() if now - at < HELD_S and not all_of_them}
            self._names = [name for name in names if name not in self._held]
            self._next, self._read_at = 0, now

    def take(self) -> str | None:
        """The next name; None if all were given. Whoever takes it holds it, or has found that another does."""
        with self._using:
            if self._next == len(self._names):
                return None
            self._next += 1
            name = self._names[self._next - 1]
            self._held[name] = time.monotonic()
            return name

    def step_over(self, are_held: Callable[[Sequence[str]], list[bool]]) -> None:
        """Go on to the next name that nobody holds."""
        with self._using:
            size = ASKED_FIRST
            while some := self._names[self._next : self._next + size]:
                size = min(2 * size, ASKED_MAX)
                held = are_held(some)
                free = held.index(False) if False in held else len(some)
                self._held.update(dict.fromkeys(some[:free], time.monotonic()))
                self._next += free
                if free < len(some):
                    return

    def add(self, name: str) -> None:
        """This handle has made it just now."""
        with self._using:
            self._held.pop(name, None)
            insort(self._names, name, lo=self._next)
