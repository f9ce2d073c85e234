"""Ranges of log entries taken by at-most-once plans: which are run again, and how the ranges of a wave ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ferryman.engine.batches import AGAIN, KILLED, EntryRange, Fact, LogSplit, pending_ranges, range_events, range_of
from ferryman.engine.commit import commit_staged
from ferryman.engine.results import NOTHING, Blocked, Staged, result_of
from ferryman.engine.settle import RunTasks, settle
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


class EndedIntake(NamedTuple):
    """Ranges and results that a wave commits."""

    kept: list[Staged]
    left: list[Staged]
    """Staged results that do not count."""
    transactions: dict[str, int]
    reached: dict[str, dict[str, int]]
    blocked: dict[_Place, Blocked]


class Intakes:
    """Ranges taken in one run.

    Args:
        logs: the plan's, by their names.
    """

    def __init__(self, state: State, logs: Mapping[str, Log]) -> None:
        self._state = state
        self._logs = logs
        self._pending: list[EntryRange] = []
        self._known = False

    def look(self) -> None:
        """An operator may have said something of ranges."""
        self._known = False

    def due(self, is_ready: Callable[[str, str], bool]) -> list[LogSplit]:
        """Return the ranges that can be run now, a task each.

        Args:
            is_ready: may this source and partition be read?
        """
        if not self._known:
            self._pending, self._known = pending_ranges(self._state), True
        ready = [found for found in self._pending if is_ready(found.source, found.piece.partition)]
        return [
            LogSplit(found.source, self._still_kept(found), found.revision, number=number, rerun=found)
            for number, found in enumerate(ready)
        ]

    def taken(self, splits: Sequence[LogSplit]) -> list[EntryRange]:
        """Return the ranges of these tasks."""
        return [s.rerun or self._range(s, s.piece) for s in splits]

    def ended(self, intake: Intake, splits: Sequence[LogSplit], staged: Sequence[Staged]) -> EndedIntake:
        """Return how the ranges of a wave ended."""
        ended = EndedIntake([], [], {}, {}, {})
        facts: list[Fact] = []
        read: Counter[str] = Counter()
        for split, taken, done in zip(splits, intake.ranges, staged, strict=True):
            counts, said = self._fate(split, taken, done)
            facts += said
            (ended.kept if counts else ended.left).append(done)
            read[split.source] += done.entries if counts else 0
            ended.reached.setdefault(split.source, {})[split.piece.partition] = split.piece.end
            if done.blocked is not None:
                ended.blocked.setdefault((split.source, split.piece.partition), done.blocked)
        if facts:
            events = range_events(facts, intake.wave)
            part = write_part(self._state.ledger.folder, events, epoch=self._state.epoch)
            ended.kept.append(NOTHING._replace(ledger=[part]))
        ended.transactions.update(self._transactions(intake.wave, facts, read))
        self._known &= not facts
        return ended

    def _fate(self, split: LogSplit, taken: EntryRange, done: Staged) -> tuple[bool, list[Fact]]:
        """Does what was staged count, and what is there to say of the range?"""
        if done.in_doubt:
            return False, [Fact(taken, Status.INDEXING, KILLED)]
        ended = [Fact(taken, Status.DROPPED, AGAIN)] if taken.told else []
        if (blocked := done.blocked) is None:
            return True, ended
        waits = f"its steps have not begun: {blocked.why}"
        if not done.entries:
            return True, [] if taken.told else [Fact(taken, Status.ERROR, waits)]
        log = self._logs.get(split.source)
        if log is None or log.shares_places:  # which entries lie behind is not known
            return False, [Fact(taken, Status.INDEXING, f"its steps may have run: {blocked.why}")]
        rest = self._range(split, split.piece._replace(start=blocked.place))
        return True, [*ended, Fact(rest, Status.ERROR, waits)]

    def _range(self, split: LogSplit, piece: Piece) -> EntryRange:
        return range_of(self._state.plan, split.source, self._logs[split.source], piece, split.revision)

    def _transactions(self, number: int, facts: Sequence[Fact], read: Counter[str]) -> dict[str, int]:
        """How many entries of each source are accounted for, a range that waits as one of them."""
        read.update(fact.range.source for fact in facts if not fact.range.told)
        kept = {name: LogPositions(self._state, name) for name in read}
        counted = {each.entries_read_id: each.entries_read + read[name] for name, each in kept.items()}
        return {**counted, **({RANGES: number} if facts else {})}

    def _still_kept(self, found: EntryRange) -> Piece:
        """Return the entries that the log still has of a range: it may have been trimmed, or be another log by now."""
        piece, log = found.piece, self._logs[found.source]
        same = log.pinned(piece, log.identities()) == piece
        start = {piece.partition: piece.start, **{name: first for name, first, _ in piece.inputs}}
        end = {piece.partition: piece.end, **{name: last for name, _, last in piece.inputs}}
        kept = next(iter(log.pieces(start, end, piece.end - piece.start)), None) if same else None
        if kept is None:
            nothing = tuple((name, last, last) for name, _, last in piece.inputs)
            return piece._replace(start=piece.end, inputs=nothing)
        return piece._replace(start=kept.start, inputs=kept.inputs)


def recover_intake(state: State, run: RunTasks, plan: Plan | None = None) -> list[str]:
    """Commit and settle the wave of which there is only the intake, if there is one: what its tasks have left counts,
    and those that had not begun are run later. Says in a line what that was.

    Args:
        plan: see ``settle``.
    """
    if (intake := open_intake(state)) is None:
        return []
    splits = [
        LogSplit(found.source, found.piece, found.revision, number=number, rerun=found if found.told else None)
        for number, found in enumerate(intake.ranges)
    ]
    staged = [result_of(intake.folder, split.number) or _not_begun(split.piece) for split in splits]
    logs = {n.name: n.source for n in (plan or state.plan).nodes if isinstance(n, SourceNode)}
    ended = Intakes(state, {name: log for name, log in logs.items() if isinstance(log, Log)}).ended(
        intake, splits, staged
    )
    commit_staged(state, intake.wave, ended.kept, ended.transactions)
    settle(state, intake.wave, run, plan)
    doubtful = sum(split.rows for split, done in zip(splits, staged, strict=True) if done.in_doubt)
    return [f"committed wave {intake.wave} as far as its steps had come ({doubtful} entries are in doubt)"]


def _not_begun(piece: Piece) -> Staged:
    return NOTHING._replace(blocked=Blocked(piece.start, "", "its run was killed", stop=False))


# The intake of an at-most-once wave: a commit that says which entries it takes, before a step sees any of them.
#
# The plan then stands behind them, whatever happens. The wave's own commit says what has become of each of them; if
# the driver is killed before it, the next one makes that commit, of what the tasks have left.

TAKEN: Final = "ferryman.intake"
"""Application id: the last wave that had an intake (on the outbox)."""


class Intake(NamedTuple):
    """Ranges taken by one wave.

    Attributes:
        ranges: what each of its tasks takes.
        folder: where its tasks begin; see ``run_once``.
    """

    wave: int
    ranges: list[EntryRange]
    folder: StatePath


def commit_intake(state: State, number: int, ranges: Sequence[EntryRange], positions: Mapping[str, int]) -> Intake:
    """Commit what wave ``number`` takes.

    Args:
        positions: transactions that say where the plan stands behind it.
    """
    intake = Intake(number, list(ranges), _folder(state, state.epoch, number))
    files.make_folder(intake.folder)
    files.publish(intake.folder / OPEN, b"")
    info = {"wave": number, "begun_by": state.epoch, "ranges": msgspec.to_builtins(intake.ranges)}
    state.outbox.commit("intake", transactions={TAKEN: number, **positions}, info=info)
    return intake


def end_intake(state: State) -> None:
    """Remove the files of a committed wave's tasks: they are not needed, and no task can begin any more."""
    if not state.outbox.transaction(TAKEN):
        return
    remove_scratch(state.staging, ONCE)


def open_intake(state: State) -> Intake | None:
    """The intake whose wave was not committed; None: there is none."""
    number = state.outbox.transaction(TAKEN)
    if number <= state.wave:
        return None
    info = state.outbox.log.find("intake", number)
    ranges = msgspec.convert(info["ranges"], list[EntryRange])
    return Intake(number, ranges, _folder(state, info["begun_by"], number))


def _folder(state: State, epoch: int, number: int) -> StatePath:
    return state.root / "staging" / str(epoch) / ONCE / str(number)
