"""Record of the last runs on a state: when they ended, how, and what they did.

The driver writes it at the end of each run; an endless run now and then. Nothing but questions of users relies on it.
Times are seconds since 1970.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from ferryman import crash, limits
from ferryman.errors import StateDamaged
from ferryman.state.state import RUNS, State
from ferryman.storage import files
from ferryman.storage.files import StatePath

_SUCCESSFUL: Final = (0, 3)
"""Exit codes of runs that have read all their sources and left nothing pending: what failed or was rejected is counted
elsewhere, and no run changes it."""


class PastRun(msgspec.Struct, frozen=True):
    """A run that has ended, or an endless one as of its last record.

    Attributes:
        exit: its exit code, see ``Summary``; of an endless run 4 if something is pending, else 0.
        waves, delivered, deleted, dropped: what the run did.
        failed, rejected, pending, in_doubt: what the state had then; of an endless run only ``pending`` is known.
        endless: whether it was to be repeated.
    """

    started: float
    ended: float
    exit: int
    waves: int = 0
    delivered: int = 0
    deleted: int = 0
    dropped: int = 0
    failed: int = 0
    rejected: int = 0
    pending: int = 0
    in_doubt: int = 0
    endless: bool = False

    @property
    def done(self) -> int:
        """Return the number of deliveries and deletes that arrived."""
        return self.delivered + self.deleted

    @property
    def duration_s(self) -> float:
        """Return the seconds from its start to its end."""
        return max(0.0, self.ended - self.started)


class PastRuns(msgspec.Struct, frozen=True):
    """Runs of a state.

    Attributes:
        last: the last ones, oldest first; at most ``limits.RUNS_KEPT``.
        success: the last one that left nothing pending; None: there was none.
    """

    last: list[PastRun] = []
    success: PastRun | None = None


def load_runs(root: StatePath) -> PastRuns:
    """Return the record of a state's runs; an empty one if there is none, or none that can be read."""
    try:
        return msgspec.convert(files.unseal(root / RUNS), PastRuns) if files.exists(root / RUNS) else PastRuns()
    except (StateDamaged, msgspec.ValidationError, FileNotFoundError):
        return PastRuns()  # `fsck` names a damaged file


class RunRecorder:
    """Records a run in its state.

    Args:
        state: held by this driver.
        clock: seconds since 1970.
    """

    def __init__(self, state: State, clock: Callable[[], float] = time.time) -> None:
        self._state = state
        self._clock = clock
        self._started = clock()
        self._recorded_at = -float("inf")

    def record(self, counts: Mapping[str, Any]) -> None:
        """Record that the run has ended.

        Args:
            counts: the attributes of ``PastRun`` from ``exit`` to ``in_doubt``.
        """
        save_run(self._state.root, PastRun(self._started, self._clock(), **counts))

    def record_turn(self, counts: Callable[[], Mapping[str, Any]]) -> None:
        """Record how far an endless run is, at most once in ``limits.RUN_RECORD_S`` seconds."""
        now = self._clock()
        if self._recorded_at <= now < self._recorded_at + limits.RUN_RECORD_S:  # before that, if the clock was put back
            return
        self._recorded_at = now
        save_run(self._state.root, PastRun(self._started, now, **counts(), endless=True))


def save_run(root: StatePath, run: PastRun) -> None:
    """Record a run, in place of an earlier record of it."""
    before = load_runs(root)
    others = [each for each in before.last if each.started != run.started]
    success = run if run.exit in _SUCCESSFUL else before.success
    runs = PastRuns([*others, run][-limits.RUNS_KEPT :], success)
    files.replace(root / RUNS, files.seal(msgspec.to_builtins(runs)))
    crash.point("runs.kept")
