"""The calls of an ``update``, key by key: with the documents of a key in their order, as many as one call may get.

A call that raises is made again with half of its documents, until the bad one stands alone. Only that one fails; those
behind it wait for it, for the state that they are to change is not there yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ferryman.document import Document, decode_fields
from ferryman.engine.deliver.outcomes import Tries
from ferryman.engine.keyed.callers import UpdateCaller
from ferryman.engine.keyed.output import Output
from ferryman.engine.keyed.runs import KeyTask
from ferryman.engine.keyed.tries import result_of
from ferryman.engine.transform.node_errors import OF_NODE, ErrorKind, NodeError, Traces, classify_error
from ferryman.errors import Dropped, WorkerDied, plain_text, unless_interrupt
from ferryman.plan import KeyedNode
from ferryman.records.key_values import KeyRow
from ferryman.records.row_results import UNTOUCHED, RowResult
from ferryman.records.statuses import Status

_UNEXPLAINED: Final = (ErrorKind.UNFORESEEN, ErrorKind.CONNECTION)
"""Errors that may be the node's own."""


class NodeTrouble(Exception):
    """``update`` itself is in trouble: what it was not called for waits."""

    def __init__(self, why: str, *, permanent: bool, blameless: bool) -> None:
        super().__init__(why)
        self.permanent = permanent
        self.blameless = blameless
        """The failures of this task are not the documents' own either."""


class Row(NamedTuple):
    """A document of a key."""

    at: int
    """Its row in the table at hand."""
    document: str
    operation: str
    fields: bytes | None
    raw: bytes | None
    sequence: int
    fault: str | None
    holds: bool
    source: str
    route: str
    revision: int
    task: str
    kept: bool
    previous: bytes | None
    due: int | None
    tries: Tries

    @property
    def size(self) -> int:
        return len(self.fields or b"") + len(self.raw or b"") + len(self.previous or b"")

    @property
    def stays(self) -> bool:
        """Does its key have something of it afterwards?"""
        return self.task == KeyTask.COUNT and self.operation == "upsert"

    def as_document(self) -> Document:
        """What ``update`` gets."""
        doc = Document.of(self.document, decode_fields(self.fields or b"{}") if self.stays else {})
        doc.raw, doc.operation = (self.raw, "upsert") if self.stays else (None, "delete")
        doc.previous = None if self.previous is None else decode_fields(self.previous)
        return doc


class KeyCalls:
    """Calls ``update`` for one key after the other.

    Attributes:
        results: of the rows of the table at hand: None, or what was noted; see ``Output.events``.
    """

    def __init__(self, node: KeyedNode, output: Output, caller: UpdateCaller, now_us: int) -> None:
        self._node = node
        self._caller = caller
        self._output = output
        self._now_us = now_us
        self._traces = Traces()
        self._failures = self._successes = 0
        self._key: str | None = None
        self.results: list[RowResult | None] = []

    def begin(self, sequences: Sequence[int]) -> None:
        """The next table has these rows: until something becomes of one, it waits."""
        self.results = [RowResult(sequence, UNTOUCHED, "", 0, None) for sequence in sequences]

    def is_open(self, key: str) -> bool:
        """Were these the last documents of this key that came?"""
        return self._key == key

    def open(self, key: str, bucket: int, known: KeyRow | None) -> None:
        """From now on documents of this key come."""
        self.close()
        self._key, self._bucket = key, bucket
        self._before = self._value = None if known is None else known.value
        self._sequence = 0 if known is None else known.sequence
        self._held = False

    def close(self) -> None:
        """There are no more documents of the key: its state is what the last call returned."""
        if self._key is not None and self._value != self._before:
            self._output.state(self._key, self._value, self._sequence, self._bucket)
        self._key = None

    def take(self, rows: Sequence[Row], due_us: int) -> None:
        """Some documents of the key, in their order.

        Args:
            due_us: what is due later waits, unless others wait for it.
        """
        self._held = self._held or not any(row.due is not None and row.due <= due_us for row in rows)
        batch: list[Row] = []
        size = 0
        for row in rows:
            if batch and (size + row.size > self._node.buffer_bytes or row.fault or row.due is None):
                self._call(batch)
                batch, size = [], 0
            self._held = self._held or row.due is None
            if self._held:
                return
            if row.task == KeyTask.NOTHING:
                self.results[row.at] = None
                continue
            if row.fault:
                self._fail(row, NodeError(ErrorKind.UNFORESEEN, self._node.name, row.fault))
                continue
            batch.append(row)
            size += row.size
        if batch:
            self._call(batch)

    def _call(self, rows: Sequence[Row]) -> None:
        if self._held:
            return
        assert self._key is not None
        try:
            value, exports = self._caller.call(self._key, self._value, [row.as_document() for row in rows])
        except Dropped as e:
            self._drop(rows, plain_text(e) or f"dropped by {self._node.name}")
        except WorkerDied:  # there is no child to call it: no document is to blame
            raise
        except BaseException as e:
            self._failed(rows, unless_interrupt(e))
        else:
            self._value, self._sequence = value, max(self._sequence, rows[-1].sequence)
            self._successes += 1
            self._output.exports(exports)
            for row in rows:
                self._note(row)

    def _note(self, row: Row) -> None:
        """The key has what it was given of this document."""
        assert self._key is not None
        if row.task == KeyTask.WITHDRAW:
            self._output.withdrawn += 1  # and it is still to come to its new key
        else:
            self.results[row.at] = None
        if row.kept:
            whose = (row.source, row.document, row.route, row.revision)
            self._output.contribution(self._key, whose, (row.fields or b"{}") if row.stays else None, self._bucket)

    def _drop(self, rows: Sequence[Row], why: str) -> None:
        self._successes += 1
        for row in rows:
            self.results[row.at] = RowResult(row.sequence, Status.DROPPED, why, row.tries.attempt + 1, None)

    def _failed(self, rows: Sequence[Row], error: Any) -> None:
        fault = classify_error(error, self._node.name, f"update of {self._node.name}", traces=self._traces)
        if fault.kind in OF_NODE:
            raise NodeTrouble(fault.text, permanent=fault.kind is ErrorKind.MISCONFIGURED, blameless=False)
        if len(rows) > 1:
            half = len(rows) // 2
            self._call(rows[:half])
            self._call(rows[half:])
        else:
            self._fail(rows[0], fault)

    def _fail(self, row: Row, fault: NodeError) -> None:
        """This document fails; those behind it wait, unless it has failed for good where nothing holds the others."""
        self._failures += fault.kind in _UNEXPLAINED
        if self._is_broken(fault):
            why = f"{fault.text}. So did the first {self._failures} calls, and none succeeded"
            raise NodeTrouble(why, permanent=fault.kind is ErrorKind.UNFORESEEN, blameless=True)
        self.results[row.at] = result = result_of(row.sequence, row.tries, fault, self._node.policy, self._now_us)
        self._held = row.holds or result.status == Status.ERROR

    def _is_broken(self, fault: NodeError) -> bool:
        """Has ``update`` done nothing but fail, and for no reason that it gave?"""
        brake = self._node.brake
        return brake is not None and fault.kind in _UNEXPLAINED and not self._successes and self._failures >= brake
