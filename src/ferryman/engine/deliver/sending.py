"""Deliver, in the workers: the rows of one outbox file are sent to their destination, chunk by chunk.

Steps for each chunk, and what a kill at that step means:

1. (at-most-once) claim it durably         killed after this: outcome *unknown*, never sent again
2. check that the pass is still open       if it is closed: nothing is sent
3. call ``write``                          killed during the call: unknown; other guarantees send again
4. record the outcomes durably             (not under exactly-once, where repeating is harmless)
5. at the end of a file, and about every second, even during a ``write``: write the rows' ledger events to a data file,
   and record a result that names it

A chunk that fails as if the whole destination did ends the lane. If the destination's ``check`` succeeds nevertheless,
the driver doubts it (``deliver.doubts``), and the next pass sends such a chunk in halves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import crash, limits
from ferryman.destinations.base import Delivery, DestinationContext, Outcome
from ferryman.engine.deliver.doubts import LaneDoubt
from ferryman.engine.deliver.turn import (
    DeliveryPass,
    Hung,
    Killed,
    LaneStop,
    Turn,
    alone_outcome,
    is_doubtful,
    is_universal,
    row_result,
    universal_outcome,
    waiting_result,
)
from ferryman.engine.results import Attempts
from ferryman.engine.runner.base import PickledPlan
from ferryman.engine.send_order import FamilyOrder, KeyOrder, OutboxFile, UndeliveredUpsert, mask_of_deletes
from ferryman.errors import PermanentError, TransientError, describe, plain_text, safe_repr
from ferryman.memory import describe_memory_error, is_failed_allocation, lacks_memory
from ferryman.net.faults import is_connection_error
from ferryman.observe import Chunk
from ferryman.plan import DestinationNode, Plan, Policy, errors_node, logs_of_versions
from ferryman.records.rows import (
    OUTBOX_CONTENT,
    OUTBOX_FILE,
    OUTBOX_SMALL,
    UNTOUCHED,
    Result,
    RowResult,
    RowSpan,
    Status,
    latest_us,
    not_read_messages,
    sent_events,
)
from ferryman.state.journal import Journal
from ferryman.state.state import SenderIdentity, sender_of
from ferryman.storage.files import fsync_folder, local_copy, path_of
from ferryman.storage.parquet import RowGroups, column_values, number_array, numbers_of, read_part, write_part
from ferryman.storage.processes import Process

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
"""Columns from which a delivery is built, in the order of its fields."""


class FileDelivery:
    """Delivers one outbox file: its eligible rows, which every attempt of a pass splits into the same chunks.

    Args:
        alone: deliver the rows that are sent last, each alone; False: all others.

    Attributes:
        row_positions: positions in the file of the eligible rows. Other methods count rows by their index in this
            array.
        table: columns of the eligible rows that are kept in memory, without content.
        row_numbers: values of their column ``row``.
        content: content of the current chunk; its first row has the index ``content_start``.
        not_read: index of a row of the current chunk -> message, for documents of which something was not read.
        unreadable: index of a row -> the error, for rows whose content does not fit into memory (isolation mode only).
        last_published: monotonic time when ledger events were written last.
        waiting_deletes: index of a delete that waits -> the upsert of its family that it waits for.
        pending: chunks that were sent but are not in a ledger file yet: (start, end, results of the rows with an
            outcome other than ok).
    """

    def __init__(self, turn: Turn, file: OutboxFile, *, alone: bool = False) -> None:
        self.turn = turn
        self.file = file
        self.alone = alone
        self.policy: Policy = turn.node.policy
        self.most_rows, self.most_bytes = self._largest_chunk()
        path = local_copy(turn.root / "outbox" / file.path)
        table = read_part(path, OUTBOX_SMALL)
        self.row_positions, self.table = self._select_eligible(table)
        self.row_numbers = numbers_of(self.table["row"])
        self.contents = RowGroups(str(path), OUTBOX_CONTENT, verified=True)
        self.content = pa.table({})
        self.content_start = 0
        self.not_read: dict[int, str] = {}
        self.unreadable: dict[int, str] = {}
        self.last_published = time.monotonic()
        self.pending: list[tuple[int, int, list[RowResult]]] = []
        self._halving_stop: LaneStop | None = None
        """Reason why the halves of the current chunk were not all sent."""
        self.waiting_deletes: dict[int, UndeliveredUpsert] = {}

    def deliver(self) -> None:
        done = self._find_done_ranges()
        try:
            for start, end in self._chunks():
                rows = self._range(start, end)
                if any(d.first <= rows.first and rows.end <= d.end for d in done):
                    continue
                if self.turn.at_most_once:
                    self._send_once(rows, start, end)
                else:
                    self._send(rows, start, end)
                self.turn.progress.add(end - start)
        finally:
            self.contents.close()
            self._write_part()

    def _largest_chunk(self) -> tuple[int, int]:
        """Return the largest chunk, in rows and in bytes."""
        doubt, policy = self.turn.doubt, self.policy
        if self.alone or (doubt.doubted and self.turn.at_most_once):
            return 1, policy.batch_bytes
        return (
            policy.batch if doubt.most_rows is None else min(policy.batch, doubt.most_rows),
            policy.batch_bytes if doubt.most_bytes is None else min(policy.batch_bytes, doubt.most_bytes),
        )

    def _select_eligible(self, table: pa.Table) -> tuple[np.ndarray[Any, Any], pa.Table]:
        """Select rows that are due and not held back by an earlier row of their document or key. Returns their
        positions in the file, and the table of these rows."""
        now_us = self.turn.now_us
        latest = latest_us(now_us, self.policy.longest_backoff_s)
        due, rows = numbers_of(table["due"]), numbers_of(table["row"])
        mask = (due >= 0) & ((due <= now_us) | (due > latest))
        if (order := self.file.order) is not None:
            first, held = (np.isin(rows, some) for some in order)
            mask = (mask | first) & ~held
        last = np.array([n - self.file.key for n in self.turn.doubt.last], dtype=np.int64)
        sent_last = np.isin(rows, last) & mask
        self.rows_sent_last: np.ndarray[Any, Any] = np.sort(rows[sent_last])
        due_now = sent_last if self.alone else mask & ~sent_last
        self.keys = KeyOrder(self.turn.held_keys, table, due_now, self.turn.versions)
        held_rows = table if self.policy.stale == "hold" else table.slice(0, 0)
        self.families = FamilyOrder(self.turn.undelivered, held_rows, mask, self.keys.eligible, self.file.elsewhere)
        places = np.flatnonzero(self.keys.eligible)
        return places, table if len(places) == table.num_rows else table.take(number_array(places)).combine_chunks()

    def _find_done_ranges(self) -> set[RowSpan]:
        """Return the ranges that an earlier attempt of this task has finished."""
        journal, number = self.turn.journal, self.turn.number
        done = journal.answered(number, self.file.key)
        if done:
            for result in [*journal.results(number), *journal.notes(number, done.__contains__)]:
                if result.key == self.file.key:
                    noted = [*self._read_row_results(result)]
                    self.keys.note_earlier_results(self.row_numbers, noted)
                    self._note_undelivered(noted)
        return done

    def _read_row_results(self, result: Result) -> Iterator[RowResult]:
        """Yield the results of single rows that an earlier attempt recorded."""
        if result.ledger_part is None:
            yield from result.rows
            return
        path = local_copy(self.turn.root / "ledger" / result.ledger_part.path)
        events = read_part(path, ["delivery_hash", "status", "due"])
        known = {digest: each for digest, *each in zip(*(column.to_pylist() for column in events.columns), strict=True)}
        for row, digest in zip(self.row_numbers.tolist(), self.table["delivery_hash"].to_pylist(), strict=True):
            if digest in known:
                status, due = known[digest]
                yield RowResult(row, status, "", 0, due)

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Yield chunks as (start, end), of at most ``most_rows`` and ``most_bytes``, and load the content of each.

        Each row group is decoded once: rows that are left over go into the next chunk.
        """
        groups = self._read_groups()
        held, sizes = pa.table({}), np.array([], dtype=np.int64)
        start = 0
        while start < len(self.row_positions):
            while len(sizes) < self.most_rows and sizes.sum() <= self.most_bytes:
                if (group := next(groups, None)) is None:
                    break
                held = pa.concat_tables([held, group[0]]) if len(sizes) else group[0]
                sizes = np.concatenate([sizes, group[1]])
            ends = np.cumsum(sizes[: self.most_rows])
            rows = max(1, int(np.searchsorted(ends, self.most_bytes, side="right")))
            rows = self._end_before_row_sent_last(start, start + rows) - start
            if not self.turn.node.destination.holds_keys:
                rows = self.keys.chunk_end(start, start + rows) - start
            rows = self.families.chunk_end(start, start + rows) - start
            self.content, held, sizes = held.slice(0, rows), held.slice(rows), sizes[rows:]
            self.content_start, self.not_read = start, {}
            yield start, start + rows
            start += rows

    def _end_before_row_sent_last(self, start: int, end: int) -> int:
        """Return where a chunk must end, so that no row that is sent last lies in its range."""
        if self.alone or not len(self.rows_sent_last):
            return end
        at = int(np.searchsorted(self.rows_sent_last, self.row_numbers[start]))
        if at == len(self.rows_sent_last):
            return end
        return min(end, int(np.searchsorted(self.row_numbers, self.rows_sent_last[at])))

    def _read_groups(self) -> Iterator[tuple[pa.Table, np.ndarray[Any, Any]]]:
        """Yield the content of the rows, one table per row group, with the bytes of each row.

        In isolation mode, a row that does not fit into memory although it is alone in its group is yielded without
        content, with a size large enough that it becomes a chunk of its own.
        """
        start = 0
        while start < len(self.row_positions):
            end = int(
                np.searchsorted(self.row_positions, self.contents.next_group_start(int(self.row_positions[start])))
            )
            try:
                group = self._read_group(start, end)
            except Exception as e:
                if not self._is_too_large_for_memory(e, start, end):
                    raise
                yield _NO_CONTENT, np.array([self.most_bytes + 1])
            else:
                yield group, _sizes(group)
                del group  # before the next one is read
            start = end

    def _read_group(self, start: int, end: int) -> pa.Table:
        """Return the content of these rows, which are in one row group."""
        [group] = self.contents.rows_at(self.row_positions[start:end])
        return group

    def _is_too_large_for_memory(self, error: Exception, start: int, end: int) -> bool:
        """Return whether this single row does not fit into memory, and record the error if so; always False outside
        isolation mode."""
        if not self.turn.isolated or not lacks_memory(error) or end - start > 1:
            return False
        self.unreadable[start] = describe_memory_error(error)
        return True

    def _range(self, start: int, end: int) -> RowSpan:
        return RowSpan(self.file.key, int(self.row_numbers[start]), int(self.row_numbers[end - 1]) + 1)

    # -- at-most-once ------------------------------------------------------------------------------

    def _send_once(self, rows: RowSpan, start: int, end: int) -> None:
        turn = self.turn
        if not turn.may_send():
            raise LaneStop  # do not claim rows that would not be sent
        waiting = self._waiting_rows(start, end)
        if len(waiting) == end - start:
            self._note_waiting(rows, start, end)
            return
        if not turn.journal.claim(turn.number, rows, self._eligible_rows(rows, start, end, waiting)):  # 1
            turn.claimed_elsewhere.append(rows)
            self.keys.hold(start, end)
            for at in range(start, end):  # nothing is known of them yet
                self._note_undelivered_upsert(at, None, tried=False)
            return
        crash.point("deliver.claimed")
        if not turn.journal.open_for(turn.number):  # 2
            raise LaneStop
        chunk = self._read_deliveries(_leave_out(range(start, end), waiting))
        stop: LaneStop | None = None
        try:
            outcomes = self._unreadable_outcome(start) or self._write(chunk)  # 3
        except Hung as e:
            raise LaneStop(f"write: {e}", hung=True) from e
        except Exception as e:
            sequences = self._sequences(range(start, end))
            stop = (
                LaneStop(describe(e), isinstance(e, PermanentError), sequences=sequences) if is_universal(e) else None
            )
            outcomes = [Outcome("unknown", describe(e))] * len(chunk)
        crash.point("deliver.sent")
        turn.note_answers(outcomes)
        indexes = _leave_out(range(start, end), waiting)
        outcomes = self._blame(indexes, outcomes)
        self._note(rows, start, end, self._merge_outcomes(waiting, outcomes, start, end))  # 4
        stop = stop or self._universal_stop(indexes, outcomes) or turn.check_same_error(outcomes)
        if stop is not None:
            raise stop

    # -- exactly-once, at-least-once ---------------------------------------------------------------

    def _send(self, rows: RowSpan, start: int, end: int) -> None:
        if not self.turn.may_send():  # 2
            raise LaneStop
        waiting = self._waiting_rows(start, end)
        if len(waiting) == end - start:
            self._note_waiting(rows, start, end)
            return
        indexes = _leave_out(range(start, end), waiting)
        hung: LaneStop | None = None
        self._halving_stop = None
        try:
            outcomes = self._write_or_split(indexes)  # 3
            self.turn.note_answers(outcomes)
            if self.turn.doubt.doubted and not self.alone:
                outcomes = self._halve(indexes, outcomes)
        except Hung as e:
            hung = LaneStop(f"write: {e}", hung=True, sequences=self._sequences(indexes))
            outcomes = self._blame_hung(indexes, e)
            if outcomes is None:
                raise hung from e
        outcomes = self._blame(indexes, outcomes)
        crash.point("deliver.sent")
        self._record(rows, start, end, self._merge_outcomes(waiting, outcomes, start, end))
        stop = (
            hung
            or self._halving_stop
            or self._universal_stop(indexes, outcomes)
            or self.turn.check_same_error(outcomes)
        )
        if stop is not None:
            raise stop
        self._write_part_in_time()

    def _write_or_split(self, indexes: Sequence[int], deaths: int = 0) -> list[Outcome] | None:
        """Send rows and return their outcomes; None if all are ok.

        A chunk that fails as a whole is split in halves until the row at fault is alone. Deliveries are built again for
        each call, since a failed ``write`` may have modified them.

        Args:
            deaths: number of processes that this single row has killed so far; limited by the policy's attempts.
        """
        chunk = self._read_deliveries(indexes)
        if (refused := self._unreadable_outcome(indexes[0])) is not None:
            return refused
        try:
            return self._write(chunk)
        except Hung:
            raise
        except Exception as e:
            why = describe_memory_error(e, self._content_bytes(indexes)) if is_failed_allocation(e) else describe(e)
            permanent = isinstance(e, PermanentError)
            if is_universal(e):
                return [universal_outcome(e, why)] * len(chunk)
            if isinstance(e, Killed) and len(chunk) == 1:
                if deaths + 1 < self.policy.attempts:
                    return self._write_or_split(indexes, deaths + 1)
                return [
                    Outcome(
                        "killed",
                        e.death.describe(self.policy.attempts, "its sender's process", self._content_bytes(indexes)),
                    )
                ]
            if len(chunk) == 1:
                passes = isinstance(e, TransientError) or is_connection_error(e)
                return [Outcome("permanent" if permanent else "transient" if passes else "unforeseen", why)]
        outcomes: list[Outcome] = []
        middle = len(chunk) // 2
        for half in (indexes[:middle], indexes[middle:]):
            outcomes += self._write_or_split(half) or [Outcome.ok()] * len(half)
            if outcomes[-1].universal:
                return outcomes + [outcomes[-1]] * (len(chunk) - len(outcomes))
        return outcomes

    # -- rows that fail as if the whole destination did ----------------------------------------------

    def _halve(self, indexes: Sequence[int], outcomes: list[Outcome] | None) -> list[Outcome] | None:
        """Send in halves what failed as if the whole destination did; return the outcomes, of which only those of rows
        that failed so alone are still universal.

        If all rows of the chunk that failed first are accepted in smaller ones, it was too large. If the destination
        hangs or cannot be opened, what it has accepted by then counts, and ``_halving_stop`` ends the lane.
        """
        failed = [] if outcomes is None else [at for at, o in zip(indexes, outcomes, strict=True) if is_doubtful(o)]
        if not failed or outcomes is None or len(indexes) == 1:
            return outcomes
        by_index = dict(zip(indexes, outcomes, strict=True))
        middle = max(1, len(failed) // 2)
        accepted_bytes = 0
        for half in filter(None, (failed[:middle], failed[middle:])):
            if self._halving_stop is not None or not (self.turn.may_doubt() and self.turn.may_send()):
                break
            try:
                self.turn.reopen()
                answers = self._write_or_split(half)
            except Hung as e:
                self._halving_stop = LaneStop(f"write: {e}", hung=True, sequences=self._sequences(half))
                break
            except LaneStop as stop:
                self._halving_stop = stop
                break
            self.turn.note_answers(answers)
            if len(half) == 1:
                self.turn.sent_alone.update(self._sequences(half))
            if answers is None:
                accepted_bytes = max(accepted_bytes, self._content_bytes(half))
            else:
                answers = self._halve(half, answers)
            by_index.update(zip(half, answers or repeat(Outcome.ok()), strict=False))
        all_accepted = len(failed) == len(indexes) and not any(o.universal for o in by_index.values())
        if accepted_bytes and all_accepted and self.turn.doubt.stopped.issuperset(self._sequences(indexes)):
            self.turn.takes_bytes = min(self.turn.takes_bytes or accepted_bytes, accepted_bytes)
        return [by_index[at] for at in indexes]

    def _blame(self, indexes: Sequence[int], outcomes: list[Outcome] | None) -> list[Outcome] | None:
        """Return the outcomes after deciding about rows that failed alone as if the whole destination did.

        The first time they stay pending, and the driver has them sent last, alone, in another pass. There the row is to
        blame if others were accepted in this pass, or in the one in which it failed first.
        """
        turn = self.turn
        if outcomes is None:
            return None
        sequences = self._sequences(indexes)
        if not self.alone:
            if turn.doubt.doubted:
                turn.sent_alone.update(sequences if len(sequences) == 1 else ())
                failed = zip(sequences, outcomes, strict=True)
                turn.alone.update((n, o) for n, o in failed if is_doubtful(o) and n in turn.sent_alone)
            return outcomes
        return [
            alone_outcome(o) if is_doubtful(o) and (turn.accepted or n in turn.doubt.proven) else o
            for n, o in zip(sequences, outcomes, strict=True)
        ]

    def _blame_hung(self, indexes: Sequence[int], error: Hung) -> list[Outcome] | None:
        """Return the outcome of a row that was sent alone and hung, if the row is to blame; None: it is not known."""
        proven = self.turn.doubt.proven.issuperset(self._sequences(indexes))
        return [Outcome("unforeseen", str(error), True)] if self.alone and (self.turn.accepted or proven) else None

    def _universal_stop(self, indexes: Sequence[int], outcomes: list[Outcome] | None) -> LaneStop | None:
        """Return what stops the lane because the whole destination fails; None: continue."""
        sequences = self._sequences(indexes)
        for sequence, outcome in zip(sequences, outcomes or (), strict=False):
            stop = LaneStop(plain_text(outcome.why), outcome.kind == "permanent", sequences=sequences)
            if outcome.universal and not is_doubtful(outcome):
                stop.sequences = ()
                return stop
            if outcome.universal and not self.turn.may_doubt():
                return stop
            if outcome.universal and sequence not in self.turn.alone:
                # In a doubted lane the time is up before this row was sent alone.
                return LaneStop() if self.turn.doubt.doubted and not self.alone else stop
        return LaneStop() if self.turn.takes_bytes else None

    def _sequences(self, indexes: Sequence[int]) -> list[int]:
        """Return the sequences of rows."""
        return [int(self.row_numbers[at]) + self.file.key for at in indexes]

    # -- both --------------------------------------------------------------------------------------

    def _waiting_rows(self, start: int, end: int) -> list[int]:
        """Return which rows of a chunk wait now, as indexes within the chunk: exports for an earlier one of their key,
        deletes for an upsert of their family."""
        deletes = self.families.waiting(start, end)
        self.waiting_deletes.update({start + at: upsert for at, upsert in deletes.items() if upsert.tried})
        return sorted({*self.keys.waiting(start, end), *deletes})

    def _note_waiting(self, rows: RowSpan, start: int, end: int) -> None:
        """Record why deletes wait, in a chunk of which all rows wait."""
        if not self.waiting_deletes.keys().isdisjoint(range(start, end)):
            self._record(rows, start, end, [Outcome.held()] * (end - start))

    def _record(self, rows: RowSpan, start: int, end: int, outcomes: list[Outcome] | None) -> None:
        """Record the outcomes of a chunk; durably, where it must not be sent again."""
        if self.turn.exactly_once:
            self.pending.append((start, end, self._row_results(start, end, outcomes)))
        else:
            self._note(rows, start, end, outcomes)  # 4

    def _merge_outcomes(
        self, waiting: list[int], outcomes: list[Outcome] | None, start: int, end: int
    ) -> list[Outcome] | None:
        """Return the outcomes of all rows of a chunk, including those left out, which are *held*. Exports that were not
        delivered hold back later exports of their key."""
        if waiting:
            sent, left_out = iter(outcomes or repeat(Outcome.ok())), set(waiting)
            outcomes = [Outcome.held() if at in left_out else next(sent) for at in range(end - start)]
        self.keys.note_outcomes(start, outcomes)
        return outcomes

    def _write(self, chunk: list[Delivery]) -> list[Outcome] | None:
        """Call the destination's ``write``; returns the outcomes, None if all are ok. Missing outcomes are unknown."""
        answered = self.turn.write(chunk, self._write_part_in_time) or []
        if len(answered) == len(chunk) and answered.count(Outcome.ok()) == len(chunk):
            return None
        answered = [
            o
            if isinstance(o, Outcome) and isinstance(o.kind, str)
            else Outcome("unknown", f"write answered {safe_repr(o)}")
            for o in answered[: len(chunk)]
        ]
        return answered + [Outcome("unknown", "write gave no outcome")] * (len(chunk) - len(answered))

    def _unreadable_outcome(self, start: int) -> list[Outcome] | None:
        """Return the outcome for a row whose content could not be read; None: its content was read."""
        return [Outcome("killed", self.unreadable[start])] if start in self.unreadable else None

    def _read_deliveries(self, indexes: Sequence[int]) -> list[Delivery]:
        """Build the deliveries for these rows of the current chunk."""
        start, end = indexes[0], indexes[-1] + 1
        try:
            deliveries = self._make_deliveries(start, end)
        except Exception as e:
            if not self._is_too_large_for_memory(e, start, end):
                raise
            self.content, self.content_start = _NO_CONTENT, start
            deliveries = self._make_deliveries(start, end)
        return deliveries if len(deliveries) == len(indexes) else [deliveries[at - start] for at in indexes]

    def _content_bytes(self, indexes: Sequence[int]) -> int:
        """Return the bytes of the content of these rows."""
        start, end = indexes[0], indexes[-1] + 1
        return int(_sizes(self.content.slice(start - self.content_start, end - start)).sum())

    def _make_deliveries(self, start: int, end: int) -> list[Delivery]:
        part = self.table.slice(start, end - start)
        content = self.content.slice(start - self.content_start, end - start)
        columns = {name: column_values((content if name in OUTBOX_CONTENT else part)[name]) for name in _SENT}
        columns["row"] = (self.row_numbers[start:end] + self.file.key).tolist()
        columns["attempt"] = [attempt + 1 for attempt in columns["attempt"]]
        columns["route"] = [tuple(route.split("/")) if route else () for route in columns["route"]]
        self.not_read |= {start + at: message for at, message in not_read_messages(content["fields"]).items()}
        return list(map(Delivery, *columns.values()))

    def _note(self, rows: RowSpan, start: int, end: int, outcomes: list[Outcome] | None) -> None:
        """Record the results of a chunk before the next one is sent, so that a kill leaves at most one chunk per lane
        without a result."""
        results = self._row_results(start, end, outcomes)
        self.turn.journal.publish(self.turn.number, self._result(rows, start, end, results, None))
        crash.point("deliver.noted")
        self.pending.append((start, end, results))

    def _row_results(self, start: int, end: int, outcomes: list[Outcome] | None) -> list[RowResult]:
        """Return the results of rows with an outcome other than ok, and of those of which something was not read."""
        if outcomes is None:
            if not self.not_read:
                return []
            outcomes = [Outcome.ok()] * (end - start)
        part = self.table.slice(start, end - start)
        tries = zip(*(part[name].to_pylist() for name in Attempts._fields), strict=True)
        results = [
            row_result(row, Attempts(*before), outcome, self.policy, self.turn.now_us, self.not_read.get(at, ""))
            if (upsert := self.waiting_deletes.get(at)) is None
            else waiting_result(row, Attempts(*before), upsert)
            for at, row, before, outcome in zip(
                range(start, end), self.row_numbers[start:end].tolist(), tries, outcomes, strict=True
            )
            if outcome.kind != "ok" or at in self.not_read
        ]
        self._note_undelivered(results)
        return results

    def _note_undelivered(self, results: Sequence[RowResult]) -> None:
        """Record the upserts among these results that were not delivered: deletes of their families wait."""
        for result in results:
            if result.status in (Status.INDEXED, Status.DROPPED):
                continue
            at = int(np.searchsorted(self.row_numbers, result.row))
            if at < len(self.row_numbers) and self.row_numbers[at] == result.row:
                self._note_undelivered_upsert(at, result.due, tried=result.status != UNTOUCHED)

    def _note_undelivered_upsert(self, at: int, due: int | None, *, tried: bool) -> None:
        """Record a row as undelivered if it is an upsert: deletes of its family wait."""
        names = ("operation", "source", "origin", "revision", "document")
        operation, *family, document = (self.table[name][at].as_py() for name in names)
        if operation == "upsert":
            self.turn.undelivered.add(tuple(family), UndeliveredUpsert(document, due, tried))

    def _result(
        self, rows: RowSpan, start: int, end: int, results: list[RowResult], part: tuple[str, int, int] | None
    ) -> Result:
        meant, deleted = self._eligible_rows(rows, start, end), self._count_deletes(start, end, results)
        return Result.of(rows, end - start, results, part, deleted=deleted, meant=meant)

    def _count_deletes(self, start: int, end: int, results: list[RowResult]) -> int:
        """Return the number of deletes that took effect."""
        is_delete = mask_of_deletes(self.table.slice(start, end - start))
        if is_delete is None:
            return 0
        stay = {n.row for n in results if n.status != Status.INDEXED}
        rows = self.row_numbers[start:end][is_delete]
        return sum(row not in stay for row in rows.tolist())

    def _eligible_rows(self, rows: RowSpan, start: int, end: int, left_out: Sequence[int] = ()) -> list[int] | None:
        """Return the numbers of the eligible rows of a range, except those left out; None if these are all rows of the
        range.

        Args:
            left_out: indexes within the chunk.
        """
        if rows.end - rows.first == end - start and not left_out:
            return None
        return _leave_out(self.row_numbers[start:end].tolist(), left_out)

    def _write_part_in_time(self) -> None:
        """Write ledger events (step 5) if the last ones are a second old; in isolation mode always, since the next
        chunk may kill the process."""
        if self.pending and (self.turn.isolated or time.monotonic() - self.last_published >= limits.RESULT_EVERY_S):
            self._write_part()

    def _write_part(self) -> None:
        """Write ledger events (step 5) of all chunks since the last time, one file for each run of adjacent chunks."""
        runs: list[list[tuple[int, int, list[RowResult]]]] = []
        for chunk in self.pending:
            if runs and runs[-1][-1][1] == chunk[0] and not self._is_row_sent_last_between(chunk[0]):
                runs[-1].append(chunk)
            else:
                runs.append([chunk])
        self.pending = []
        for run in runs:
            start, end = run[0][0], run[-1][1]
            rows = self._range(start, end)
            results = [n for _, _, of_chunk in run for n in of_chunk]
            events = sent_events(self.table.slice(start, end - start), results, self.turn.node.name, self.turn.number)
            part = None
            if events.num_rows:
                written = write_part(self.turn.root / "ledger", events, epoch=self.turn.epoch)
                fsync_folder(self.turn.root / "ledger")
                part = (written.path, written.size, written.rows)
            crash.point("deliver.part")
            self._publish(rows, start, end, results, part)
        self.last_published = time.monotonic()

    def _is_row_sent_last_between(self, start: int) -> bool:
        """Return whether a row that another ``FileDelivery`` of this pass sends may lie before this row: then no range
        spans the two."""
        return bool(len(self.rows_sent_last)) and bool(self.row_numbers[start - 1] + 1 != self.row_numbers[start])

    def _publish(
        self, rows: RowSpan, start: int, end: int, results: list[RowResult], part: tuple[str, int, int] | None
    ) -> None:
        if part is None:
            return  # no row was attempted
        result = self._result(rows, start, end, results, part)
        self.turn.journal.publish(self.turn.number, result)
        crash.point("deliver.result")


def _leave_out(items: Sequence[_T], indexes: Collection[int]) -> list[_T]:
    left_out = set(indexes)
    return [each for at, each in enumerate(items) if at not in left_out]


_NO_CONTENT: Final = pa.table({name: pa.nulls(1, OUTBOX_FILE.field(name).type) for name in OUTBOX_CONTENT})
"""Empty content of one row."""


def _sizes(content: pa.Table) -> np.ndarray[Any, Any]:
    """Return the bytes of each row."""
    columns = [np.maximum(numbers_of(pc.binary_length(content[name])), 0) for name in OUTBOX_CONTENT]
    return np.asarray(sum(columns), dtype=np.int64)


# Deliver, in the workers: the task that delivers a lane.


class Lane(NamedTuple):
    """Files of one destination for one delivery task, oldest first."""

    destination: str
    files: list[OutboxFile]
    isolated: bool = False
    """Whether the destination is called in a child process, because a worker died over it, or because it hung."""
    settled: int = 0
    """Deliveries with lower sequences are settled: they are never sent again."""
    doubt: LaneDoubt = LaneDoubt()
    number: int = 0
    """Number among the lanes of this destination in this pass, from 0."""
    lanes: int = 1
    """Most lanes that a pass has for this destination."""


class LaneReport(NamedTuple):
    """A lane's report on the health of its destination."""

    destination: str
    trouble: str = ""
    """Reason why the lane stopped (the destination is unavailable or misconfigured); "": it did not stop."""
    permanent: bool = False
    """Whether the destination stays stopped until an operator has fixed it."""
    hung: bool = False
    """Whether a call of the destination was abandoned."""
    others: bool = False
    """Whether other lanes of this destination may still be inside a call."""
    stopped_at: tuple[int, ...] = ()
    """Sequences of the rows whose ``write`` failed as if the whole destination did, or hung."""
    alone: tuple[int, ...] = ()
    """Sequences of rows that failed so alone, while others were accepted."""
    takes_bytes: int = 0
    """Largest chunk, in bytes, that was accepted in place of a larger one that was not; 0: there was none."""
    accepted: bool = False
    """Whether the destination has answered for single rows."""
    chunks: tuple[Chunk, ...] = ()
    """The first calls of ``write``, if calls are recorded."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Task: deliver one lane in this pass.

    An abandoned call must not take effect later, after newer deliveries were sent. So its process ends as soon as all
    results are recorded. Spark then repeats the task or reports a dead worker; in either case the journal says that the
    call was given up.
    """

    pickled_plan: PickledPlan
    root: str
    number: int
    now_us: int
    driver: Process
    """Driver. That process is never ended, even if a lane runs in it."""
    epoch: int
    """Epoch of the driver."""
    pace_s: float = limits.PACE_S
    progress_folder: str = ""
    """Folder for live progress; see ``engine.live``."""
    notes_chunks: bool = False
    """Whether lanes report their chunks."""

    def __call__(self, lane: Lane) -> LaneReport:
        plan = self.pickled_plan.fresh_plan() if lane.isolated else self.pickled_plan.plan()
        node = next(n for n in plan.nodes if n.name == lane.destination)
        assert isinstance(node, DestinationNode)
        journal = Journal(path_of(self.root) / "journal")
        if (why := journal.given_up(self.number, node.name)) is not None:
            return LaneReport(node.name, why, hung=True)
        turn = Turn(
            path_of(self.root),
            node,
            DeliveryPass(self.number, self.epoch, self.now_us, self.pace_s, self.progress_folder, self.notes_chunks),
            isolated=lane.isolated,
            ended_holds=errors_node(plan.nodes) is None,
            doubt=lane.doubt,
            versions=() if node.destination.compares_sequences else logs_of_versions(plan.nodes),
        )
        stopped = LaneStop()
        try:
            context = context_of(plan, node, self.number, sender_of(path_of(self.root)), lane.settled)
            is_open = PassIsOpen(self.root, self.number)
            turn.open(context._replace(lane=lane.number, lanes=lane.lanes, is_open=is_open))
            _deliver_files(turn, lane.files)
            turn.close()
        except LaneStop as stop:
            stopped = _close_after(turn, stop)
        turn.end()
        if turn.has_abandoned_call and Process.current() != self.driver:
            journal.give_up(self.number, node.name, stopped.why)
            crash.point("deliver.hung")
            os._exit(1)
        unexplained = set(turn.unexplained())
        return LaneReport(
            node.name,
            stopped.why,
            stopped.permanent,
            stopped.hung,
            stopped_at=tuple(stopped.sequences),
            alone=tuple(n for n in turn.alone if n not in unexplained),
            takes_bytes=turn.takes_bytes,
            accepted=turn.accepted,
            chunks=tuple(turn.chunks),
        )


def _deliver_files(turn: Turn, files: Sequence[OutboxFile]) -> None:
    """Deliver files: first the rows that nothing is known against, then those that failed alone."""
    with_last = []
    for file in files:
        delivery = FileDelivery(turn, file)
        delivery.deliver()
        if len(delivery.rows_sent_last):
            with_last.append(file)
    for file in with_last:
        FileDelivery(turn, file, alone=True).deliver()
    if unexplained := turn.unexplained():
        outcome = turn.alone[unexplained[0]]
        raise LaneStop(plain_text(outcome.why), outcome.kind == "permanent", sequences=unexplained)


def _close_after(turn: Turn, stop: LaneStop) -> LaneStop:
    """Close the destination of a lane that has stopped, unless a call of it hangs; return why the lane has stopped."""
    if stop.hung:
        return stop
    try:
        turn.close_broken()
    except LaneStop as hung:
        return hung
    return stop


@dataclass(frozen=True, slots=True)
class PassIsOpen:
    """Asks the journal whether a pass is still open; see ``DestinationContext.is_open``."""

    root: str
    number: int

    def __call__(self) -> bool:
        return Journal(path_of(self.root) / "journal").open_for(self.number)


def context_of(
    plan: Plan, node: DestinationNode, number: int, sender: SenderIdentity, settled: int = 0
) -> DestinationContext:
    """Return the context that a destination gets about the state that delivers to it.

    Args:
        number: number of the pass.
        settled: deliveries with lower sequences are never sent again.
    """
    guarantee = node.policy.guarantee
    return DestinationContext(
        plan.name,
        plan.version,
        node.name,
        number,
        guarantee,
        sender.state,
        settled,
        sender.version,
        send_timeout=node.policy.send_timeout,
    )
