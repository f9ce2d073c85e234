"""How far a phase is, how fast, and how long the rest takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_SOON_S: Final = 5.0
"""Before a run has worked so long, nobody knows how fast it is."""


class Pace:
    """Counts documents of the phase, and of all waves that a listing was split into.

    What is left is estimated from the whole way that documents took so far: all phases of the waves before.

    Attributes:
        done: documents of the phase that are through.
        expected: documents that the phase has; 0: nobody knows.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.done = self.expected = 0
        self._name = ""
        self._began = clock()
        self._planned = 0
        self._before = 0
        """Documents that the waves before have read."""
        self._first: float | None = None
        """When the first of them was begun."""

    def planned(self, documents: int) -> None:
        """A listing was split into waves that read so many documents."""
        self._planned, self._before, self._first = documents, 0, None

    def phase(self, name: str) -> None:
        """Another phase begins."""
        if self._name == "transform":
            self._before += self.expected
        self._name, self._began = name, self._clock()
        self.done = self.expected = 0
        if name == "transform" and self._first is None:
            self._first = self._began

    def expects(self, documents: int) -> None:
        """So many are before this phase."""
        self.expected = documents

    def live(self, done: int) -> None:
        """So many of them are through."""
        self.done = done

    def left_s(self) -> float | None:
        """Seconds that the rest takes, as far as that can be known."""
        now = self._clock()
        read = self._before + (self.done if self._name == "transform" else 0)
        if self._first is not None and now - self._first >= _SOON_S and 0 < read < self._planned:
            return (now - self._first) / read * (self._planned - read)
        if now - self._began >= _SOON_S and 0 < self.done < self.expected:
            return (now - self._began) / self.done * (self.expected - self.done)
        return None

    def told(self, counted: Callable[[int], str]) -> str:
        """``1 200 of 5 312, 40/s, about 2 min left``."""
        took_s = self._clock() - self._began
        if not self.done:
            return f"for {duration(took_s)} now"
        of = f" of {counted(self.expected)}" if self.expected >= self.done else ""
        rate = f", {counted(round(self.done / took_s))}/s" if took_s > 0 else ""
        left_s = self.left_s()
        return f"{counted(self.done)}{of}{rate}" + (f", about {duration(left_s)} left" if left_s is not None else "")


def duration(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min``, ``2 h 5 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
