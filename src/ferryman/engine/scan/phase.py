"""The first phase of a run's waves: sources are listed, and compared with what is known, once for as many waves as the
changes are cut into."""

from __future__ import annotations

from collections.abc import Callable

from ferryman import crash, limits
from ferryman.engine import step_retries
from ferryman.engine.live import Follower
from ferryman.engine.logs import Logs
from ferryman.engine.nodes import Nodes
from ferryman.engine.outcomes import describe_listing
from ferryman.engine.pending import PendingWork
from ferryman.engine.runner.base import PickledPlan, Runner
from ferryman.engine.scan.detect import ChangeSet, detect_changes
from ferryman.engine.scan.guard import Allowed
from ferryman.engine.scan.listing import list_sources
from ferryman.engine.transform.look import look_early
from ferryman.engine.unlisted import Unlisted
from ferryman.observe.progress import Observer
from ferryman.records.due import now_us
from ferryman.state.state import State
from ferryman.storage import files

_SCRATCH = "scan"
"""The folder of a listing."""


class ScanPhase:
    """Of all scans of a run.

    Args:
        patient: runs tasks that nobody may lose: a worker's death is not theirs.
        tell: told what is worth saying once.

    Attributes:
        held: deletes wait for an operator, as of the last scan.
    """

    def __init__(
        self,
        state: State,
        shipped: PickledPlan,
        runner: Runner,
        patient: Runner,
        nodes: Nodes,
        logs: Logs,
        pending: PendingWork,
        unlisted: Unlisted,
        live: Follower,
        observer: Observer,
        tell: Callable[[str], None],
        *,
        allow_deletes: Allowed,
        wave_bytes: int,
    ) -> None:
        self._state = state
        self._shipped = shipped
        self._runner = runner
        self._patient = patient
        self._nodes = nodes
        self._logs = logs
        self._pending = pending
        self._unlisted = unlisted
        self._live = live
        self._observer = observer
        self._tell = tell
        self._allow_deletes = allow_deletes
        self._wave_bytes = wave_bytes
        self.held = False

    def run(self, *, only_owed: bool) -> ChangeSet:
        """A new listing, compared with what is known. Its scratch files stay until ``end``.

        Args:
            only_owed: of what failed at steps and is due.
        """
        state = self._state
        self._observer.phase(state.wave + 1, "scan")
        state.remove_retired()  # no task reads it any more
        folder = state.scratch(_SCRATCH)
        waiting = self._nodes.waiting(self._pending.at_steps())
        owed, only, entries = None, None, self._logs.waiting()
        if only_owed:
            owed = step_retries.pending_at_steps(state, now_us(), waiting)
            only = step_retries.named(state, owed) if len(owed) <= limits.NAMED_DOCUMENTS else None
        else:
            self._pending.unseen = set()
        with self._live.following() as live:
            listings = list_sources(state.plan, self._shipped, folder, self._patient, only, live, entries)
        self._pending.unseen |= self._nodes.hear_listings(listings)
        crash.point("scan.listed")
        changes = detect_changes(
            listings,
            state,
            folder,
            now_us=now_us(),
            only_owed=only_owed,
            waiting=waiting,
            allow_deletes=self._allow_deletes,
            slots=self._runner.slots,
            wave_bytes=self._wave_bytes,
        )
        crash.point("scan.judged")
        changes = look_early(changes, self._shipped, self._runner, self._live)
        if rows := sum(batch.rows for batch in changes.slices):
            self._observer.outcome(describe_listing(listings, changes.slices))
            self._observer.planned(rows)
        self.held = bool(changes.too_many) or (self.held and only_owed)
        for note in (*changes.notes, *changes.too_many):
            self._tell(note)  # a scan for what is pending meets the same again
        if owed is not None and not changes.slices:
            self._unlisted.add(owed)
            for note in self._unlisted.describe(only or {}) if changes.complete else ():
                self._tell(note)
        return changes

    def end(self) -> None:
        """All that it has found went through a wave, or is listed again."""
        files.remove_folder(self._state.staging / _SCRATCH)
