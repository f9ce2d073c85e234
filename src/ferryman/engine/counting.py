"""Counting after waves, for those who ask later."""

from __future__ import annotations

import time
from collections.abc import Callable

from ferryman import limits
from ferryman.account.questions import keep_counted
from ferryman.state.state import State


class Counting:
    """Keeps what ``status`` says of a large state, after waves: in a run that goes on, a small part of the time."""

    def __init__(self, state: State, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock = clock
        self._wave = state.wave
        """After which was counted; at first, before which we began."""
        self._not_before = clock()

    def keep(self) -> None:
        """Between waves."""
        began = self._clock()
        if began < self._not_before:
            return
        keep_counted(self._state, anew=self._state.wave != self._wave)
        self._wave, ended = self._state.wave, self._clock()
        self._not_before = ended + limits.COUNTING_SHARE * (ended - began)
