"""Damaged items that were named once, and are passed over until somebody may have repaired them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

AGAIN_S: Final = 60.0
"""After this time it is tried again: an operator may have repaired it. What is still wrong is not said again."""


class PassedOver:
    """What this process leaves alone. Safe to use from many threads.

    Args:
        warn: is told of each item once, and again if something else is wrong with it.
        clock: in seconds.
    """

    def __init__(self, warn: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._warn, self._clock = warn, clock
        self._changing = threading.Lock()
        self._until: dict[str, float] = {}
        self._said: dict[str, str] = {}

    def add(self, id: str, why: str) -> None:
        """Leave it alone for a while."""
        with self._changing:
            self._until[id] = self._clock() + AGAIN_S
            is_new = self._said.get(id) != why
            self._said[id] = why
        if is_new:
            self._warn(why)

    def __contains__(self, id: str) -> bool:
        return self._until.get(id, 0.0) > self._clock()
