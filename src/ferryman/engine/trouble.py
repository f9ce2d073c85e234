"""Nodes that are left alone for now because the whole of each is in trouble, and when each is asked again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ferryman import limits


class Trouble(NamedTuple):
    """Why a node is left alone."""

    why: str
    permanent: bool
    """It does not pass by itself: somebody has to repair something."""
    since: float
    """Monotonic time of its first failure, in seconds."""
    until: float
    """Monotonic time from which the node may be asked again, in seconds."""
    times: int
    """How often it has failed in a row."""


class Troubles:
    """The nodes of one kind (``destination``, ``step`` …) that are in trouble.

    A node is left alone for 1 s after its first failure, then 4, 16 … up to an hour. Permanent trouble ends a node's
    turn in this run; in an endless run, which nobody starts again, it is asked again like any other, and when trouble
    begins and ends is reported.

    Args:
        kind: the word before a node's name in reports; "": the names have it.
        tell: takes a report, a line of text.
        clock: monotonic time in seconds.
    """

    def __init__(self, kind: str, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.endless = False
        self._kind = kind
        self._tell = tell
        self._clock = clock
        self._found: dict[str, Trouble] = {}

    def begin(self, name: str, why: str, *, permanent: bool, at_least_s: float = 0.0) -> None:
        """A node failed as a whole; call it each time. It is left alone for so many seconds at least."""
        now = self._clock()
        before = self._found.get(name)
        times = 1 + (before.times if before else 0)
        until = now + max(backoff_s(times), at_least_s)
        self._found[name] = Trouble(why, permanent, before.since if before else now, until, times)
        if self.endless and (before is None or (permanent and not before.permanent)):
            remedy = "repair it" if permanent else "no action is needed"
            self._tell(
                f"{self._shown(name)}: {why}. What waits for it stays pending, and it is checked again automatically, "
                f"at least once an hour: {remedy}."
            )

    def end(self, name: str) -> None:
        """A node has worked."""
        before = self._found.pop(name, None)
        if before is not None and self.endless:
            self._tell(f"{self._shown(name)}: works again, after {self._clock() - before.since:.0f} s.")

    def wait_s(self, name: str) -> float | None:
        """Seconds until a node may be asked, 0 for one that is well; None: not in this run any more."""
        trouble = self._found.get(name)
        if trouble is None:
            return 0.0
        if trouble.permanent and not self.endless:
            return None
        return max(0.0, trouble.until - self._clock())

    def blocked(self, name: str) -> bool:
        """Is the node to be left alone now?"""
        return self.wait_s(name) != 0

    def _shown(self, name: str) -> str:
        return f"{self._kind} {name}" if self._kind else name

    def items(self) -> Iterator[tuple[str, Trouble]]:
        """Names and troubles, in the order in which they began."""
        return iter(self._found.items())


def backoff_s(times: int) -> float:
    """Seconds for which a node is left alone after it has failed so often in a row."""
    # 2 ** 6 failures are far beyond the cap already, and a power of a large number overflows.
    return min(limits.BACKOFF_MAX_S, limits.BACKOFF_FIRST_S * limits.BACKOFF_FACTOR ** (min(times, 64) - 1))
