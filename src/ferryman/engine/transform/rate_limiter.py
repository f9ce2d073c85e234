"""Not more calls a second than a rate."""

from __future__ import annotations

import time
from typing import Final

from ferryman import durations

_CATCH_UP_S: Final = 0.1
"""What was missed by being busy elsewhere is caught up with, for so long at most."""


class RateLimiter:
    """Of one task's calls of a step.

    Its first call waits, too: a task cannot know when the one before it made its last call. So the rate is kept however
    many tasks there are.

    Args:
        rate: as ``durations.per_second`` reads it; None: none.
        share: of the rate, for this task.
    """

    def __init__(self, rate: str | float | None, share: float = 1.0) -> None:
        self._interval_s = 0.0 if rate is None else 1 / (durations.per_second(rate) * share)
        self._next = time.monotonic() + self._interval_s

    def wait_s(self) -> float:
        """Until the next call may begin."""
        return max(0.0, self._next - time.monotonic()) if self._interval_s else 0.0

    def wait(self) -> None:
        """Until it may, and it begins."""
        if self._interval_s:
            while (left := self.wait_s()) > 0:
                time.sleep(left)
            self.begun()

    def begun(self) -> None:
        """A call begins now."""
        if self._interval_s:
            self._next = max(self._next, time.monotonic() - _CATCH_UP_S) + self._interval_s
