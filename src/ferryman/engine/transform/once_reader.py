"""Reader of an at-most-once task: notes how far it is, so that a kill leaves one entry in doubt.

What the walk of an entry came to is written down before a step sees the next entry (``engine.once_task``). If the task
is killed, another process reads these notes and stages what they say, as the task itself would have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from ferryman import crash
from ferryman.engine.live import ProgressWriter
from ferryman.engine.once_task import TaskNotes
from ferryman.engine.results import NOTHING_STAGED, KilledTask, Staged
from ferryman.engine.tasks import LogSplit
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.health import NodeHealth
from ferryman.engine.transform.isolation import RecordedOutcome, Recorder, SinkCall, replay
from ferryman.engine.transform.log_entries import LogEntries
from ferryman.engine.transform.reader import DocumentReader, RowAction, stage_row
from ferryman.engine.transform.staging import Stager
from ferryman.engine.transform.walk import run_walk

# Notes of a task, in this order.


class BlockBegun(NamedTuple):
    """A block of entries, without their content. All before it are done."""

    table: pa.Table


class CallsBegin(NamedTuple):
    """A step may see the entries before row ``end`` of the block from now on."""

    end: int


class SinkCalls(NamedTuple):
    """Calls of the next entry's walk to its sink; those of a large family are several notes."""

    calls: list[SinkCall]


class RowDone(NamedTuple):
    """Outcome of an entry.

    Attributes:
        fields: its content, if it failed, since an error queue wants that.
    """

    i: int
    action: RowAction
    version: Any
    fingerprint: str
    fields: bytes | None
    outcome: RecordedOutcome | None


class AllDone(NamedTuple):
    """No entry is left."""


class OnceReader:
    """Reads, walks and stages the entries of an at-most-once task, one after the other.

    Args:
        checkpoint: number of entries that a step may see between two durable notes.
    """

    def __init__(self, notes: TaskNotes, checkpoint: int, stager: Stager, live: ProgressWriter) -> None:
        self._notes = notes
        self._checkpoint = checkpoint
        self._stager = stager
        self._live = live
        self.recorder = Recorder()
        """Sink of the walks."""
        self._block: Block
        self._i = 0
        self._may_see = 0

    def process_block(self, reader: DocumentReader, block: Block, must_stop: Callable[[Block, int], bool]) -> list[int]:
        """Read, walk and stage the entries of the block; return their rows.

        Args:
            must_stop: returns whether a node that the entry of a row may reach is in trouble.
        """
        self._block, self._may_see = block, 0
        self._notes.add(BlockBegun(_without_content(block.table)))
        self._stager.begin_block(block)
        processed = []
        for i, (fields, raw) in enumerate(zip(*reader.contents(block), strict=True)):
            if must_stop(block, i):
                break
            self._i = i
            done = self._walk(reader, block, i, fields, raw)
            self._live.add(1)
            _stage(self._stager, done, self.recorder)
            processed.append(i)
        self._stager.end_block()
        return processed

    def _walk(self, reader: DocumentReader, block: Block, i: int, fields: bytes | None, raw: bytes | None) -> RowDone:
        """Walk an entry, and note its outcome."""
        walk = reader.walk
        self.recorder.begin()
        action, walking = reader.read_row(block, i, fields, raw)
        if action is RowAction.POSTPONE:  # it was not read, and errors are final
            action, walking = reader.walk_unread(block, i, reader.fault)
        outcome = None
        if walking is not None:
            run_walk(walk, walking, self._note_call)
            outcome = RecordedOutcome(walk.new_failures, walk.ended_failures, walk.reached, walk.unneeded)
        walk.row += 1
        for calls in self.recorder.parts():
            self._notes.add(SinkCalls(calls))
        failed = outcome is not None and bool(outcome.new_failures)
        content = block.entry_fields(i) if failed else None
        done = RowDone(i, action, block.versions[i], block.fingerprints[i], content, outcome)
        self._notes.add(done)
        return done

    def _note_call(self) -> None:
        """Note durably which entries a step may see, before it sees one."""
        if self._i >= self._may_see:
            self._may_see = min(self._i + self._checkpoint, len(self._block))
            self._notes.add(CallsBegin(self._may_see))
            self._notes.sync()
            crash.point("once.noted")

    def finish(self, entries: LogEntries) -> None:
        """Make all notes durable, after the last entry."""
        if entries.blocked is None:
            self._notes.add(AllDone())
        self._notes.sync()
        crash.point("once.walked")


def _without_content(table: pa.Table) -> pa.Table:
    for name in ("fields", "raw"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), pa.nulls(table.num_rows, table.schema.field(at).type))
    return table.combine_chunks()


def _stage(stager: Stager, done: RowDone, recorder: Recorder) -> None:
    stage_deliveries = None if done.outcome is None else partial(replay, recorder.all_calls(), stager)
    stage_row(stager, done.i, done.action, None, done.outcome, stage_deliveries)


class _Reached:
    """How far the notes say that a task has come."""

    def __init__(self, split: LogSplit) -> None:
        self._piece = split.piece
        self._places = [split.piece.start]
        """The first place of the block, and the one after each of its entries."""
        self._done = self._may_see = 0
        self._all_done = False

    def follow(self, note: object) -> None:
        """Take the next note into account."""
        if isinstance(note, BlockBegun):
            places = note.table["place"].to_pylist()
            self._places = [self._places[-1], *(place + 1 for place in places)]
            self._done = self._may_see = 0
        elif isinstance(note, CallsBegin):
            self._may_see = note.end
        elif isinstance(note, RowDone):
            self._done = note.i + 1
        elif isinstance(note, AllDone):
            self._all_done = True

    @property
    def killed(self) -> KilledTask:
        """Where doubt begins, and where it ends."""
        if self._all_done:
            return KilledTask(self._piece.end, self._piece.end)
        return KilledTask(self._places[self._done], self._places[max(self._done, self._may_see)])


def stage_notes(
    notes: Iterator[Any],
    stager: Stager,
    split: LogSplit,
    entries: LogEntries,
    health: Mapping[str, NodeHealth],
) -> Staged:
    """Stage what a killed task had finished, as its notes say.

    Args:
        entries: the task's entries, of which none was read.
    """
    reached, recorder, block = _Reached(split), Recorder(), None
    for note in notes:
        reached.follow(note)
        if isinstance(note, BlockBegun):
            if block is not None:
                stager.end_block()
            block = entries.block_of(note.table)
            stager.begin_block(block)
        elif isinstance(note, SinkCalls):
            recorder.extend(note.calls)
        elif isinstance(note, RowDone):
            assert block is not None
            block.versions[note.i], block.fingerprints[note.i] = note.version, note.fingerprint
            if note.fields is not None:
                block.set_read(note.i, note.fields, None)
            _stage(stager, note, recorder)
            recorder.begin()
            entries.read += 1
    if block is not None:
        stager.end_block()
    stager.decide(health, None)
    return stager.finish([])._replace(killed=reached.killed)


def doubt_notes(split: LogSplit, notes: Iterator[Any]) -> Staged:
    """Return that all entries that a killed task had begun are in doubt, where nothing can be staged: the version of
    the plan that ran them is gone."""
    reached = _Reached(split)
    for note in notes:
        reached.follow(note)
    return NOTHING_STAGED._replace(killed=KilledTask(split.piece.start, reached.killed.rest))
