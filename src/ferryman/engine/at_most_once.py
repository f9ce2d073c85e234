"""Ranges of log entries in waves of at-most-once plans: which ranges to run again, and the outcomes of a wave's
ranges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from ferryman.engine.commit import commit_staged
from ferryman.engine.once_task import kept_result
from ferryman.engine.results import NOTHING_STAGED, Blocked, KilledTask, Staged
from ferryman.engine.settle import RunTasks, settle
from ferryman.engine.tasks import (
    KILLED_MESSAGE,
    NOT_BEGUN_MESSAGE,
    RERUN_MESSAGE,
    EntryRange,
    LogSplit,
    RangeStatus,
    new_range,
    pending_ranges,
    range_events,
)
from ferryman.plan import Plan, SourceNode
from ferryman.records.rows import Status
from ferryman.sources.log import Log, Piece
from ferryman.state.logs import RANGES, LogPositions
from ferryman.state.state import ONCE, OPEN, State, remove_scratch
from ferryman.storage import files
from ferryman.storage.files import StatePath
from ferryman.storage.parquet import write_part

_Place = tuple[str, str]
"""Source and partition."""


class OnceResults(NamedTuple):
    """Results of an at-most-once wave, to be committed."""

    kept: list[Staged]
    discarded: list[Staged]
    """Staged results that do not count."""
    transactions: dict[str, int]
    reached: dict[str, dict[str, int]]
    blocked: dict[_Place, Blocked]


class OnceRanges:
    """Ranges of log entries of an at-most-once plan during a run.

    Args:
        logs: the plan's logs by name.
    """

    def __init__(self, state: State, logs: Mapping[str, Log]) -> None:
        self._state = state
        self._logs = logs
        self._pending: list[EntryRange] = []
        self._known = False

    def refresh(self) -> None:
        """Read the pending ranges again, since an operator may have resolved some."""
        self._known = False

    def due_splits(self, is_ready: Callable[[str, str], bool]) -> list[LogSplit]:
        """Return the ranges that can be run now, one task each.

        Args:
            is_ready: returns whether a source's partition may be read.
        """
        if not self._known:
            self._pending, self._known = pending_ranges(self._state), True
        ready = [found for found in self._pending if is_ready(found.source, found.piece.partition)]
        return [
            LogSplit(found.source, self._piece_in_log(found), found.revision, number=number, rerun=found)
            for number, found in enumerate(ready)
        ]

    def ranges_of(self, splits: Sequence[LogSplit]) -> list[EntryRange]:
        """Return the range of each task."""
        return [s.rerun or self._range(s, s.piece) for s in splits]

    def results_of(self, once_wave: OnceWave, splits: Sequence[LogSplit], staged: Sequence[Staged]) -> OnceResults:
        """Return the results of a wave's ranges, to be committed."""
        results = OnceResults([], [], {}, {}, {})
        statuses: list[RangeStatus] = []
        read: Counter[str] = Counter()
        for split, entry_range, done in zip(splits, once_wave.ranges, staged, strict=True):
            counts, new_statuses = self._outcome_of(split, entry_range, done)
            statuses += new_statuses
            (results.kept if counts else results.discarded).append(done)
            read[split.source] += done.entries if counts else 0
            results.reached.setdefault(split.source, {})[split.piece.partition] = split.piece.end
            if done.blocked is not None:
                results.blocked.setdefault((split.source, split.piece.partition), done.blocked)
        if statuses:
            events = range_events(statuses, once_wave.wave)
            part = write_part(self._state.ledger.folder, events, epoch=self._state.epoch)
            results.kept.append(NOTHING_STAGED._replace(ledger=[part]))
        results.transactions.update(self._transactions(once_wave.wave, statuses, read))
        self._known &= not statuses
        return results

    def _outcome_of(self, split: LogSplit, entry_range: EntryRange, done: Staged) -> tuple[bool, list[RangeStatus]]:
        """Return whether a task's staged result counts, and the new statuses of its range."""
        if done.killed is not None:
            return self._outcome_of_killed(split, entry_range, done.killed)
        statuses = [RangeStatus(entry_range, Status.DROPPED, RERUN_MESSAGE)] if entry_range.in_ledger else []
        if (blocked := done.blocked) is None:
            return True, statuses
        waits = f"its steps have not begun: {blocked.why}"
        if not done.entries:
            return True, [] if entry_range.in_ledger else [RangeStatus(entry_range, Status.ERROR, waits)]
        if (piece := self._cut(split, blocked.place, split.piece.end)) is None:
            return False, [RangeStatus(entry_range, Status.INDEXING, f"its steps may have run: {blocked.why}")]
        return True, [*statuses, RangeStatus(self._range(split, piece), Status.ERROR, waits)]

    def _outcome_of_killed(
        self, split: LogSplit, entry_range: EntryRange, killed: KilledTask
    ) -> tuple[bool, list[RangeStatus]]:
        """Return whether what a killed task had finished counts, and the new statuses of its range: one part is in
        doubt, another was not begun."""
        doubtful = waiting = None
        if killed.doubt is not None and killed.rest is not None:
            doubtful = self._cut(split, killed.doubt, killed.rest)
            waiting = self._cut(split, killed.rest, split.piece.end)
        if doubtful is None or waiting is None:
            return False, [RangeStatus(entry_range, Status.INDEXING, KILLED_MESSAGE)]
        parts = [(doubtful, Status.INDEXING, KILLED_MESSAGE), (waiting, Status.ERROR, NOT_BEGUN_MESSAGE)]
        statuses = []
        for piece, status, message in parts:
            if piece == split.piece:  # nothing else has become of it
                return True, [RangeStatus(entry_range, status, message)]
            if piece.start < piece.end:
                statuses.append(RangeStatus(self._range(split, piece), status, message))
        if entry_range.in_ledger:
            statuses.append(RangeStatus(entry_range, Status.DROPPED, RERUN_MESSAGE))
        return True, statuses

    def _cut(self, split: LogSplit, start: int, end: int) -> Piece | None:
        """Return a part of a split's entries; None: which ones they are is unknown."""
        log = self._logs.get(split.source)
        return None if log is None else log.cut(split.piece, start, end)

    def _range(self, split: LogSplit, piece: Piece) -> EntryRange:
        return new_range(self._state.plan, split.source, self._logs[split.source], piece, split.revision)

    def _transactions(self, number: int, statuses: Sequence[RangeStatus], read: Counter[str]) -> dict[str, int]:
        """Return transactions with the number of processed entries of each source; a waiting range counts as one
        entry."""
        read.update(each.range.source for each in statuses if not each.range.in_ledger)
        kept = {name: LogPositions(self._state, name) for name in read}
        counted = {each.entries_read_id: each.entries_read + read[name] for name, each in kept.items()}
        return {**counted, **({RANGES: number} if statuses else {})}

    def _piece_in_log(self, entry_range: EntryRange) -> Piece:
        """Return the part of a range that the log still has: it may have been trimmed, or replaced by another log."""
        piece, log = entry_range.piece, self._logs[entry_range.source]
        same = log.pinned(piece, log.identities()) == piece
        start = {piece.partition: piece.start, **{name: first for name, first, _ in piece.inputs}}
        end = {piece.partition: piece.end, **{name: last for name, _, last in piece.inputs}}
        kept = next(iter(log.pieces(start, end, piece.end - piece.start)), None) if same else None
        if kept is None:
            nothing = tuple((name, last, last) for name, _, last in piece.inputs)
            return piece._replace(start=piece.end, inputs=nothing)
        return piece._replace(start=kept.start, inputs=kept.inputs)


def recover_once_wave(
    state: State,
    run: RunTasks,
    rebuild: Callable[[OnceWave, LogSplit, Iterator[Any]], Staged],
    plan: Plan | None = None,
) -> list[str]:
    """Commit and settle an at-most-once wave that was begun but not committed, if there is one; return a message about
    it.

    Results that its tasks have stored are committed, and what killed tasks had finished. What had not begun runs later.

    Args:
        rebuild: stages what a killed task had finished, given its notes.
        plan: see ``settle``.
    """
    if (once_wave := open_once_wave(state)) is None:
        return []
    splits = [
        LogSplit(found.source, found.piece, found.revision, number=number, rerun=found if found.in_ledger else None)
        for number, found in enumerate(once_wave.ranges)
    ]
    staged = [
        kept_result(once_wave.folder, split.number, partial(rebuild, once_wave, split)) or _not_begun(split.piece)
        for split in splits
    ]
    logs = {n.name: n.source for n in (plan or state.plan).nodes if isinstance(n, SourceNode)}
    results = OnceRanges(state, {name: log for name, log in logs.items() if isinstance(log, Log)}).results_of(
        once_wave, splits, staged
    )
    commit_staged(state, once_wave.wave, results.kept, results.transactions)
    settle(state, once_wave.wave, run, plan)
    doubtful = sum(_doubtful_rows(split, done.killed) for split, done in zip(splits, staged, strict=True))
    return [f"committed wave {once_wave.wave} as far as its steps had come ({doubtful} entries are in doubt)"]


def _doubtful_rows(split: LogSplit, killed: KilledTask | None) -> int:
    if killed is None:
        return 0
    return split.rows if killed.doubt is None or killed.rest is None else killed.rest - killed.doubt


def _not_begun(piece: Piece) -> Staged:
    return NOTHING_STAGED._replace(blocked=Blocked(piece.start, "", "its run was killed", stop=False))


# Beginning of an at-most-once wave: a commit that lists the entries it processes, before a step sees any of them.
#
# This commit already moves the plan's position past these entries. The wave's own commit records the outcome of each.
# If the driver is killed before that, the next driver makes the commit, using the results that the tasks have stored.

ONCE_WAVE: Final = "ferryman.intake"
"""Application id (on the outbox): the last at-most-once wave that was begun."""


class OnceWave(NamedTuple):
    """An at-most-once wave that was begun.

    Attributes:
        ranges: range of entries of each task.
        folder: folder for ``once_task.run_once``.
    """

    wave: int
    ranges: list[EntryRange]
    folder: StatePath


def begin_once_wave(state: State, number: int, ranges: Sequence[EntryRange], positions: Mapping[str, int]) -> OnceWave:
    """Commit the list of entries that wave ``number`` processes, before a step sees any of them.

    Args:
        positions: transactions that move the plan's positions past these entries.
    """
    once_wave = OnceWave(number, list(ranges), _folder(state, state.epoch, number))
    files.make_folder(once_wave.folder)
    files.publish(once_wave.folder / OPEN, b"")
    info = {"wave": number, "begun_by": state.epoch, "ranges": msgspec.to_builtins(once_wave.ranges)}
    state.outbox.commit("intake", transactions={ONCE_WAVE: number, **positions}, info=info)
    return once_wave


def end_once_wave(state: State) -> None:
    """Remove the files of a committed wave's tasks, so that no task can begin any more."""
    if not state.outbox.transaction(ONCE_WAVE):
        return
    remove_scratch(state.staging, ONCE)


def open_once_wave(state: State) -> OnceWave | None:
    """Return the wave that was begun but not committed; None: there is none."""
    number = state.outbox.transaction(ONCE_WAVE)
    if number <= state.wave:
        return None
    info = state.outbox.log.find("intake", number)
    ranges = msgspec.convert(info["ranges"], list[EntryRange])
    return OnceWave(number, ranges, _folder(state, info["begun_by"], number))


def _folder(state: State, epoch: int, number: int) -> StatePath:
    return state.root / "staging" / str(epoch) / ONCE / str(number)
