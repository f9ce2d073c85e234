"""Deliver, in the workers: the rows of one outbox file go to their destination, chunk by chunk.

What is done with a chunk, and what a kill between two of the numbers leaves behind:

1. (at-most-once) claim it, durably       killed after this: never sent again, *unknown*
2. look whether the pass is still open     closed: send nothing
3. ``write``                               killed in here: unknown; sent again under the other guarantees
4. note what came of it, durably           (not under exactly-once, where a repetition is none)
5. at the end of a file, or when a second has passed, also while a ``write`` runs: the rows' ledger events as a data
   file, and a result that names it
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import crash, limits
from ferryman.destinations.base import Delivery, DestinationContext, Outcome
from ferryman.engine.deliver.turn import Hung, Killed, LaneStop, Turn, row_result, universal
from ferryman.engine.order import KeyOrder, OutboxFile
from ferryman.engine.results import Tries
from ferryman.engine.runner.base import PickledPlan
from ferryman.errors import PermanentError, TransientError, describe, plain_text, safe_repr
from ferryman.memory import describe_memory_error, is_failed_allocation, lacks_memory
from ferryman.net.faults import is_connection_error
from ferryman.plan import DestinationNode, Plan, Policy, errors_node
from ferryman.records.rows import (
    OUTBOX_CONTENT,
    OUTBOX_FILE,
    OUTBOX_SMALL,
    Result,
    RowResult,
    Rows,
    Status,
    latest_us,
    sent_events,
)
from ferryman.state.journal import Journal
from ferryman.state.state import SenderIdentity, sender_of
from ferryman.storage.files import fsync_folder, local_copy, path_of
from ferryman.storage.parquet import RowGroups, column_values, read_part, write_part

_T = TypeVar("_T")

_SENT: Final = (
    "document",
    "delivery_hash",
    "row",
    "operation",
    "fields",
    "raw",
    "version",
    "source",
    "parent",
    "origin",
    "route",
    "attempt",
    "provenance",
    "key_hash",
)
"""Columns that a delivery is made of, in the order of its own fields."""


class FileDelivery:
    """One outbox file: its eligible rows, cut into chunks the same way by every attempt of a pass."""

    def __init__(self, turn: Turn, file: OutboxFile) -> None:
        self.turn = turn
        self.file = file
        self.policy: Policy = turn.node.policy
        path = local_copy(turn.root / "outbox" / file.path)
        table = read_part(path, OUTBOX_SMALL)
        self.places, self.table = self._eligible(table)
        self.rows: np.ndarray[Any, Any] = self.table["row"].to_numpy()
        self.contents = RowGroups(str(path), OUTBOX_CONTENT, verified=True)
        self.content = pa.table({})
        self.content_at = 0
        """Content of the rows that ``_chunks`` came to last, and the place of the first."""
        self.unread: dict[int, str] = {}
        """In isolation mode: place of a row whose content is more than there is memory for -> why."""
        self.noted = time.monotonic()
        self.pending: list[tuple[int, int, list[RowResult]]] = []
        """Chunks sent and not yet in a ledger file: (start, end, what was not simply delivered)."""

    def deliver(self) -> None:
        done = self._done()
        try:
            for start, end in self._chunks():
                rows = self._range(start, end)
                if any(d.first <= rows.first and rows.end <= d.end for d in done):
                    continue
                if self.turn.once:
                    self._send_once(rows, start, end)
                else:
                    self._send(rows, start, end)
                self.turn.live.add(end - start)
        finally:
            self.contents.close()
            self._write_part()

    def _eligible(self, table: pa.Table) -> tuple[np.ndarray[Any, Any], pa.Table]:
        """Rows that are due and not held behind an older one of their document or key, and where in the file they
        are."""
        now_us = self.turn.now_us
        latest = latest_us(now_us, self.policy.longest_backoff_s)
        due = pc.or_(pc.less_equal(table["due"], now_us), pc.greater(table["due"], latest))
        mask = pc.fill_null(due, False)
        if (order := self.file.order) is not None:
            first, held = (pc.is_in(table["row"], value_set=pa.array(rows, table["row"].type)) for rows in order)
            mask = pc.and_not(pc.or_(mask, first), held)
        self.keys = KeyOrder(self.turn.held, table, np.asarray(mask))
        places = np.flatnonzero(self.keys.eligible)
        return places, table if len(places) == table.num_rows else table.take(pa.array(places)).combine_chunks()

    def _done(self) -> set[Rows]:
        """Rows that an earlier attempt of this task has seen through."""
        journal, number = self.turn.journal, self.turn.number
        done = journal.answered(number, self.file.key)
        if done and self.keys.has_exports:
            for result in [*journal.results(number), *journal.notes(number, done.__contains__)]:
                if result.key == self.file.key:
                    self.keys.learn(self.rows, self._said(result))
        return done

    def _said(self, result: Result) -> Iterator[RowResult]:
        """Yield the journal's results for single rows of exports."""
        if result.ledger_part is None:
            yield from result.rows
            return
        events = read_part(local_copy(self.turn.root / "ledger" / result.ledger_part.path), ["delivery_hash", "status"])
        told = dict(zip(*(column.to_pylist() for column in events.columns), strict=True))
        for row, digest in zip(self.rows.tolist(), self.table["delivery_hash"].to_pylist(), strict=True):
            if digest in told:
                yield RowResult(row, told[digest], "", 0, None)

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Cut at ``batch`` rows or ``batch_bytes``, whichever is first; the content comes in on the way.

        Each row group is decoded once: what of it is left over goes into the next chunk.
        """
        groups = self._groups()
        held, sizes = pa.table({}), np.array([], dtype=np.int64)
        start = 0
        while start < len(self.places):
            while len(sizes) < self.policy.batch and sizes.sum() <= self.policy.batch_bytes:
                if (found := next(groups, None)) is None:
                    break
                held = pa.concat_tables([held, found[0]]) if len(sizes) else found[0]
                sizes = np.concatenate([sizes, found[1]])
            ends = np.cumsum(sizes[: self.policy.batch])
            rows = max(1, int(np.searchsorted(ends, self.policy.batch_bytes, side="right")))
            if not self.turn.node.destination.holds_keys:
                rows = self.keys.end_of(start, start + rows) - start
            self.content, held, sizes = held.slice(0, rows), held.slice(rows), sizes[rows:]
            self.content_at = start
            yield start, start + rows
            start += rows

    def _groups(self) -> Iterator[tuple[pa.Table, np.ndarray[Any, Any]]]:
        """The content of the rows, a table a row group, and how large each is. In isolation mode a row that has a group
        for itself, and for which there is no memory, comes without content, and so large that it is sent alone."""
        start = 0
        while start < len(self.places):
            end = int(np.searchsorted(self.places, self.contents.next_group_start(int(self.places[start]))))
            try:
                group = self._group(start, end)
            except Exception as e:
                if not self._is_given_up(e, start, end):
                    raise
                yield _NO_CONTENT, np.array([self.policy.batch_bytes + 1])
            else:
                yield group, _sizes(group)
                del group  # before the next one is read
            start = end

    def _group(self, start: int, end: int) -> pa.Table:
        """The content of these rows, which are of one group."""
        [group] = self.contents.rows_at(self.places[start:end])
        return group

    def _is_given_up(self, error: Exception, start: int, end: int) -> bool:
        """Return whether memory is known to be too small for this one row."""
        if not self.turn.isolated or not lacks_memory(error) or end - start > 1:
            return False
        self.unread[start] = describe_memory_error(error)
        return True

    def _range(self, start: int, end: int) -> Rows:
        return Rows(self.file.key, int(self.rows[start]), int(self.rows[end - 1]) + 1)

    # -- at-most-once ------------------------------------------------------------------------------

    def _send_once(self, rows: Rows, start: int, end: int) -> None:
        turn = self.turn
        if not turn.may_send():
            raise LaneStop  # claim nothing that would not be sent
        waiting = self.keys.waiting(start, end)
        if len(waiting) == end - start:
            return
        if not turn.journal.claim(turn.number, rows, self._meant(rows, start, end, waiting)):  # 1
            turn.met.append(rows)
            self.keys.hold(start, end)
            return
        crash.point("deliver.claimed")
        if not turn.journal.open_for(turn.number):  # 2
            raise LaneStop
        chunk = self._deliveries(_without(range(start, end), waiting))
        stop: LaneStop | None = None
        try:
            outcomes = self._refused(start) or self._write(chunk)  # 3
        except Hung as e:
            raise LaneStop(f"write: {e}", hung=True) from e
        except Exception as e:
            stop = LaneStop(describe(e), isinstance(e, PermanentError)) if universal(e) else None
            outcomes = [Outcome("unknown", describe(e))] * len(chunk)
        crash.point("deliver.sent")
        self._note(rows, start, end, self._with(waiting, outcomes, start, end))  # 4
        stop = stop or _universal(outcomes) or turn.all_alike(outcomes)
        if stop is not None:
            raise stop

    # -- exactly-once, at-least-once ---------------------------------------------------------------

    def _send(self, rows: Rows, start: int, end: int) -> None:
        if not self.turn.may_send():  # 2
            raise LaneStop
        waiting = self.keys.waiting(start, end)
        if len(waiting) == end - start:
            return
        try:
            outcomes = self._write_or_split(_without(range(start, end), waiting))  # 3
        except Hung as e:
            raise LaneStop(f"write: {e}", hung=True) from e
        crash.point("deliver.sent")
        every = self._with(waiting, outcomes, start, end)
        if self.turn.exactly:
            self.pending.append((start, end, self._noted(start, end, every)))
        else:
            self._note(rows, start, end, every)  # 4
        if (stop := _universal(outcomes) or self.turn.all_alike(outcomes)) is not None:
            raise stop
        self._write_part_in_time()

    def _write_or_split(self, places: Sequence[int], deaths: int = 0) -> list[Outcome] | None:
        """Outcomes; a chunk that fails as a whole is halved until the bad row stands alone, which may end ``deaths``
        processes before it is given up. For each call the deliveries are made anew: ``write`` may have changed those
        that it was given before it failed."""
        chunk = self._deliveries(places)
        if (refused := self._refused(places[0])) is not None:
            return refused
        try:
            return self._write(chunk)
        except Hung:
            raise
        except Exception as e:
            why = describe_memory_error(e, self._size_of(places)) if is_failed_allocation(e) else describe(e)
            permanent = isinstance(e, PermanentError)
            if universal(e):
                return [Outcome("permanent" if permanent else "transient", why, True)] * len(chunk)
            if isinstance(e, Killed) and len(chunk) == 1:
                if deaths + 1 < self.policy.attempts:
                    return self._write_or_split(places, deaths + 1)
                return [
                    Outcome("killed", e.death.said(self.policy.attempts, "its sender's process", self._size_of(places)))
                ]
            if len(chunk) == 1:
                passes = isinstance(e, TransientError) or is_connection_error(e)
                return [Outcome("permanent" if permanent else "transient" if passes else "unforeseen", why)]
        outcomes: list[Outcome] = []
        middle = len(chunk) // 2
        for half in (places[:middle], places[middle:]):
            outcomes += self._write_or_split(half) or [Outcome.ok()] * len(half)
            if outcomes[-1].universal:
                return outcomes + [outcomes[-1]] * (len(chunk) - len(outcomes))
        return outcomes

    # -- both --------------------------------------------------------------------------------------

    def _with(self, waiting: list[int], outcomes: list[Outcome] | None, start: int, end: int) -> list[Outcome] | None:
        """The outcomes of all rows of a chunk, also of those that were left out; what did not arrive holds its key."""
        if waiting:
            said, left_out = iter(outcomes or repeat(Outcome.ok())), set(waiting)
            outcomes = [Outcome.held() if at in left_out else next(said) for at in range(end - start)]
        self.keys.note(start, outcomes)
        return outcomes

    def _write(self, chunk: list[Delivery]) -> list[Outcome] | None:
        """Call the destination. None: all ok. What it left out is unknown."""
        outcomes = self.turn.call(self.turn.node.destination.write, [*chunk], meanwhile=self._write_part_in_time)
        answered = list(outcomes) if outcomes is not None else []
        if len(answered) == len(chunk) and answered.count(Outcome.ok()) == len(chunk):
            return None
        answered = [
            o
            if isinstance(o, Outcome) and isinstance(o.kind, str)
            else Outcome("unknown", f"write answered {safe_repr(o)}")
            for o in answered[: len(chunk)]
        ]
        return answered + [Outcome("unknown", "write gave no outcome")] * (len(chunk) - len(answered))

    def _refused(self, start: int) -> list[Outcome] | None:
        """Return the outcome of a row that cannot be read; None: it can be."""
        return [Outcome("killed", self.unread[start])] if start in self.unread else None

    def _deliveries(self, places: Sequence[int]) -> list[Delivery]:
        """Return the deliveries at these places of the current chunk of ``_chunks``, in the form that the destination
        gets."""
        start, end = places[0], places[-1] + 1
        try:
            made = self._made(start, end)
        except Exception as e:
            if not self._is_given_up(e, start, end):
                raise
            self.content, self.content_at = _NO_CONTENT, start
            made = self._made(start, end)
        return made if len(made) == len(places) else [made[at - start] for at in places]

    def _size_of(self, places: Sequence[int]) -> int:
        """Bytes of the content of these rows."""
        start, end = places[0], places[-1] + 1
        return int(_sizes(self.content.slice(start - self.content_at, end - start)).sum())

    def _made(self, start: int, end: int) -> list[Delivery]:
        part = self.table.slice(start, end - start)
        content = self.content.slice(start - self.content_at, end - start)
        columns = {name: column_values((content if name in OUTBOX_CONTENT else part)[name]) for name in _SENT}
        columns["row"] = (self.rows[start:end] + self.file.key).tolist()
        columns["attempt"] = [attempt + 1 for attempt in columns["attempt"]]
        columns["route"] = [tuple(route.split("/")) if route else () for route in columns["route"]]
        return list(map(Delivery, *columns.values()))

    def _note(self, rows: Rows, start: int, end: int, outcomes: list[Outcome] | None) -> None:
        """Record the results of a chunk before the next is sent: a kill leaves one chunk a lane without a result."""
        noted = self._noted(start, end, outcomes)
        self.turn.journal.publish(self.turn.number, self._result(rows, start, end, noted, None))
        crash.point("deliver.noted")
        self.pending.append((start, end, noted))

    def _noted(self, start: int, end: int, outcomes: list[Outcome] | None) -> list[RowResult]:
        """Return the results to record of rows that were not simply delivered."""
        if outcomes is None:
            return []
        part = self.table.slice(start, end - start)
        tries = zip(*(part[name].to_pylist() for name in Tries._fields), strict=True)
        return [
            row_result(row, Tries(*before), outcome, self.policy, self.turn.now_us)
            for row, before, outcome in zip(self.rows[start:end].tolist(), tries, outcomes, strict=True)
            if outcome.kind != "ok"
        ]

    def _result(
        self, rows: Rows, start: int, end: int, noted: list[RowResult], part: tuple[str, int, int] | None
    ) -> Result:
        meant, deleted = self._meant(rows, start, end), self._deletes(start, end, noted)
        return Result.of(rows, end - start, noted, part, deleted=deleted, meant=meant)

    def _deletes(self, start: int, end: int, noted: list[RowResult]) -> int:
        """How many deletes took effect."""
        deletes = pc.equal(self.table["operation"].slice(start, end - start), "delete")
        if not pc.any(deletes).as_py():
            return 0
        stay = {n.row for n in noted if n.status != Status.INDEXED}
        rows = self.rows[start:end][np.asarray(deletes)]
        return sum(row not in stay for row in rows.tolist())

    def _meant(self, rows: Rows, start: int, end: int, left_out: Sequence[int] = ()) -> list[int] | None:
        """The rows of a range that are eligible, but for some, counted from its start; None if all are."""
        if rows.end - rows.first == end - start and not left_out:
            return None
        return _without(self.rows[start:end].tolist(), left_out)

    def _write_part_in_time(self) -> None:
        """5. in isolation mode after each chunk, for the next may end this process."""
        if self.pending and (self.turn.isolated or time.monotonic() - self.noted >= limits.RESULT_EVERY_S):
            self._write_part()

    def _write_part(self) -> None:
        """5. ledger events of all chunks since the last time, a file a run of neighbouring chunks."""
        runs: list[list[tuple[int, int, list[RowResult]]]] = []
        for chunk in self.pending:
            if runs and runs[-1][-1][1] == chunk[0]:
                runs[-1].append(chunk)
            else:
                runs.append([chunk])
        self.pending = []
        for run in runs:
            start, end = run[0][0], run[-1][1]
            rows = self._range(start, end)
            noted = [n for _, _, of_chunk in run for n in of_chunk]
            events = sent_events(self.table.slice(start, end - start), noted, self.turn.node.name, self.turn.number)
            part = None
            if events.num_rows:
                written = write_part(self.turn.root / "ledger", events, epoch=self.turn.epoch)
                fsync_folder(self.turn.root / "ledger")
                part = (written.path, written.size, written.rows)
            crash.point("deliver.part")
            self._publish(rows, start, end, noted, part)
        self.noted = time.monotonic()

    def _publish(
        self, rows: Rows, start: int, end: int, noted: list[RowResult], part: tuple[str, int, int] | None
    ) -> None:
        if part is None:
            return  # nothing was attempted
        result = self._result(rows, start, end, noted, part)
        self.turn.journal.publish(self.turn.number, result)
        crash.point("deliver.result")


def _without(items: Sequence[_T], places: Sequence[int]) -> list[_T]:
    left_out = set(places)
    return [each for at, each in enumerate(items) if at not in left_out]


_NO_CONTENT: Final = pa.table({name: pa.nulls(1, OUTBOX_FILE.field(name).type) for name in OUTBOX_CONTENT})
"""Empty content of one row."""


def _sizes(content: pa.Table) -> np.ndarray[Any, Any]:
    """Bytes of each row."""
    columns = [pc.fill_null(pc.binary_length(content[name]), 0).to_numpy() for name in OUTBOX_CONTENT]
    return np.asarray(sum(columns), dtype=np.int64)


def _universal(outcomes: list[Outcome] | None) -> LaneStop | None:
    for outcome in outcomes or ():
        if outcome.universal:
            return LaneStop(plain_text(outcome.why), outcome.kind == "permanent")
    return None


# Deliver, in the workers: lanes, each with its turn at a destination. ``sending`` has what is done with the rows.


class Lane(NamedTuple):
    """Files of one destination for one delivery task, oldest first."""

    destination: str
    files: list[OutboxFile]
    isolated: bool = False
    """A worker died over this destination, or it hung: it is called in a child process."""
    settled: int = 0
    """Deliveries of lower sequences do not come again."""


class LaneReport(NamedTuple):
    """Observations of a lane that concern its whole destination."""

    destination: str
    trouble: str = ""
    """Why it stopped: the destination is down, or wrong."""
    permanent: bool = False
    """An operator must fix it."""
    hung: bool = False
    """A call of it was given up."""
    others: bool = False
    """Other lanes of it may still be in a call."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Task: deliver a lane in this pass.

    A call that was given up must not act later, when something newer may have been sent: after all is noted, its
    process ends. Spark tries the task again, or says that a worker died; both find the note of it.
    """

    shipped: PickledPlan
    root: str
    number: int
    now_us: int
    driver: tuple[str, int]
    """Host and process of the driver: that process is never ended, whatever runs in it."""
    epoch: int
    """Epoch of the driver."""
    pace_s: float = limits.PACE_S
    live: str = ""
    """Folder for what is reported meanwhile; see ``engine.live``."""

    def __call__(self, lane: Lane) -> LaneReport:
        plan = self.shipped.unused() if lane.isolated else self.shipped.plan()
        node = next(n for n in plan.nodes if n.name == lane.destination)
        assert isinstance(node, DestinationNode)
        journal = Journal(path_of(self.root) / "journal")
        if (why := journal.given_up(self.number, node.name)) is not None:
            return LaneReport(node.name, why, hung=True)
        turn = Turn(
            path_of(self.root),
            node,
            self.number,
            epoch=self.epoch,
            now_us=self.now_us,
            pace_s=self.pace_s,
            isolated=lane.isolated,
            live=self.live,
            ended_holds=errors_node(plan.nodes) is None,
        )
        context = context_of(plan, node, self.number, sender_of(path_of(self.root)), lane.settled)
        stopped = LaneStop()
        try:
            _speak(turn, node.destination.open, context)
            for file in lane.files:
                FileDelivery(turn, file).deliver()
            _speak(turn, node.destination.close)
        except LaneStop as stop:
            stopped = stop
        turn.end()
        if turn.left_behind and (socket.gethostname(), os.getpid()) != self.driver:
            journal.give_up(self.number, node.name, stopped.why)
            crash.point("deliver.hung")
            os._exit(1)
        return LaneReport(node.name, stopped.why, stopped.permanent, stopped.hung)


def context_of(
    plan: Plan, node: DestinationNode, number: int, sender: SenderIdentity, settled: int = 0
) -> DestinationContext:
    """Return the context that a destination gets about this sender.

    Args:
        number: of the pass.
    """
    guarantee = node.policy.guarantee
    return DestinationContext(
        plan.name, plan.version, node.name, number, guarantee, sender.state, settled, sender.version
    )


def _speak(turn: Turn, function: Any, *args: Any) -> None:
    """``open`` and ``close`` speak for the whole destination."""
    try:
        turn.call(function, *args)
    except Hung as e:
        raise LaneStop(f"{function.__name__}: {e}", hung=True) from e
    except Exception as e:
        why = f"{function.__name__}: {describe_memory_error(e)}" if is_failed_allocation(e) else describe(e)
        raise LaneStop(why, isinstance(e, PermanentError)) from e
