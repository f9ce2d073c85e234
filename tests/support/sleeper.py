"""Time that goes by only while a run sleeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ferryman.engine.settings import Clock


class Sleeper:
    """Time that goes by only while a run sleeps.

    Args:
        then: called after each sleep with the seconds slept in all.
    """

    def __init__(self, then: Callable[[float], object] = lambda total: None) -> None:
        self.slept: list[float] = []
        self.then = then

    def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.then(sum(self.slept))

    def options(self) -> dict[str, Any]:
        """For ``PlanWorld.run``."""
        return {"clock": self.clock()}

    def clock(self) -> Clock:
        """Return a clock that only moves while this sleeps."""
        return Clock(lambda: sum(self.slept), self)
