"""Notes what a run is doing into the lock of its state, for ``ferryman status``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from ferryman.observe import Silent
from ferryman.state.activity import Activity, Trouble
from ferryman.state.state import State

_EVERY_S: Final = 1.0
"""Seconds between two notes of how far a phase is."""


class ActivityRecorder(Silent):
    """Observer that keeps the ``Activity`` of a run up to date.

    Args:
        troubles: returns the nodes that are not called for now.
        clock: seconds since 1970.
    """

    def __init__(
        self, state: State, troubles: Callable[[], Sequence[Trouble]], clock: Callable[[], float] = time.time
    ) -> None:
        self._state = state
        self._troubles = troubles
        self._clock = clock
        self._activity = Activity()
        self._next_note = 0.0

    def phase(self, wave: int, name: str) -> None:
        self._note(wave=wave, phase=name, since=self._clock(), done=0, expected=0, until=0.0)

    def expects(self, documents: int) -> None:
        self._note(expected=documents)

    def live(self, documents: int) -> None:
        if self._clock() >= self._next_note:
            self._next_note = self._clock() + _EVERY_S
            self._note(done=documents)

    def settled(self, delivered: int, pending: int, failed: int) -> None:
        so_far = self._activity
        self._note(delivered=so_far.delivered + delivered, pending=pending, failed=so_far.failed + failed)

    def waits(self, seconds: float | None = None) -> None:
        now = self._clock()
        self._note(phase="", since=now, done=0, expected=0, until=0.0 if seconds is None else now + seconds)

    def _note(self, **changes: Any) -> None:
        self._activity = msgspec.structs.replace(self._activity, **changes, troubles=tuple(self._troubles()))
        self._state.note_activity(self._activity)
