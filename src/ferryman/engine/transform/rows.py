"""A task's outbox rows on their way into files: a buffer for each destination, route, branches and operation; a file
for each destination.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ferryman import crash, limits
from ferryman.document import Document, Operation
from ferryman.engine.results import OutboxMark
from ferryman.engine.transform.block import Block, KnownDocument
from ferryman.records.families import (
    FailedMember,
    MissingDelivery,
    Published,
    count_open_deliveries,
    encode_failures,
    parent_of,
)
from ferryman.records.rows import DOCUMENTS, LEDGER, ORDINAL_STEPS, OUTBOX_FILE, DeliveryHash, Status, hasher, table_of
from ferryman.state.outbox import OutboxWriter, due_stats
from ferryman.storage.files import StatePath, remove
from ferryman.storage.parquet import Part, PartWriter, write_part

# Rows on their way to the outbox: those that share destination, route, branches and operation, as columns.


class OutboxBuffer:
    """Gathers rows of one block.

    Args:
        end: (destination, whole route).
    """

    def __init__(self, end: tuple[str, str], branches: str, operation: Operation, delivery_hash: DeliveryHash) -> None:
        self.end = end
        self.branches = branches
        self.operation = operation
        self.given = Published("", end[1], end[0])
        """Deliveries published for an origin's row."""
        self._delivery_hash = delivery_hash
        self.clear()

    def clear(self) -> None:
        """Forget the rows."""
        self.rows: list[int] = []
        """Their origins' rows in the block."""
        self.places: list[int] = []
        """Where they stand among all rows of their destination, if that is to get them in this order."""
        self._children: list[str | None] | None = None
        """Their ids, None of an origin's row; None: all are origins."""
        self._fields: list[bytes] = []
        self._raws: list[bytes | None] = []
        self._before: dict[int, MissingDelivery] = {}
        """Place -> what it has had, where there were attempts."""

    def add(self, i: int, id: str, *, child: bool, before: MissingDelivery | None = None) -> None:
        """A row whose origin is row ``i`` of the block."""
        if before is not None and before.attempt:
            self._before[len(self.rows)] = before
        if child and self._children is None:
            self._children = [None] * len(self.rows)
        if self._children is not None:
            self._children.append(id if child else None)
        self.rows.append(i)

    def fill(self, fields: bytes, raw: bytes | None) -> None:
        """The content of the row that was added last."""
        self._fields.append(fields)
        self._raws.append(raw)

    def add_origin(self, i: int, fields: bytes, raw: bytes | None) -> None:
        """Row ``i`` of the block itself, with its content, for the first time."""
        if self._children is not None:
            self._children.append(None)
        self.rows.append(i)
        self._fields.append(fields)
        self._raws.append(raw)

    def table(self, block: Block, source: str, first_row: int) -> pa.Table:
        """The rows in OUTBOX_FILE's columns, numbered from ``first_row``."""
        n = len(self.rows)
        origins, children = picked(block.ids, self.rows), self._children
        ids = origins if children is None else [c or o for c, o in zip(children, origins, strict=True)]
        documents = pa.array(ids, pa.string())
        versions = picked(block.versions, self.rows)
        revisions = block.revisions(self.rows)
        had = [self._before.get(at) for at in range(n)] if self._before else None
        content: dict[str, Any] = {"fields": self._fields, "raw": self._raws} if self._fields else {}
        if block.provenances is not None:
            content["provenance"] = picked(block.provenances, self.rows)
        if block.key_hashes:
            content["key_hash"] = picked(block.key_hashes, self.rows)
        return table_of(
            OUTBOX_FILE,
            n,
            row=pa.array(range(first_row, first_row + n), pa.int64()),
            source=source,
            document=documents,
            parent=None if children is None else [c and parent_of(c) for c in children],
            origin=documents if children is None else origins,
            version=versions,
            revision=revisions,
            operation=self.operation,
            route=self.end[1],
            branches=self.branches,
            delivery_hash=list(map(self._delivery_hash, ids, versions, revisions)),
            attempt=[each.attempt if each else 0 for each in had] if had else 0,
            due=0,
            since=[each and each.since for each in had] if had else None,
            transient=[each and each.transient for each in had] if had else None,
            **content,
        )


def picked(column: list[Any], rows: list[int]) -> list[Any]:
    """Values of these rows: some of them, and of a family's origin the same one several times."""
    whole = len(rows) == len(column) and rows == list(range(len(rows)))
    return column if whole else [column[i] for i in rows]


End = tuple[str, str]
"""(destination, whole route)."""

Content = tuple[OutboxBuffer, bytes, bytes | None]
"""Where a row goes, its fields and its raw bytes."""

_ROW_BYTES: Final = 256
"""Bytes of an outbox row beside its content: id, hash, numbers."""


class DeliveryHashes:
    """Makes delivery hashes, here and nowhere else.

    Args:
        plan: name, version, source.
    """

    def __init__(self, plan: tuple[str, int, str]) -> None:
        self._plan = plan
        self._hashers: dict[tuple[str, str, Operation], DeliveryHash] = {}

    def of(self, end: End, operation: Operation) -> DeliveryHash:
        found = self._hashers.get((*end, operation))
        if found is None:
            found = self._hashers[(*end, operation)] = hasher(*self._plan, *end, operation)
        return found


class OutboxStage:
    """Stages the outbox rows of a task.

    Args:
        in_order: destinations that get the rows of a wave in the order of its documents.
        deletes_in_order: deletes too; else they come after upserts.

    Attributes:
        files: (destination, file) in the order of their rows.
        size: bytes of the rows since the last ``flush``, about.
    """

    def __init__(
        self,
        root: StatePath,
        source: str,
        epoch: int,
        hashes: DeliveryHashes,
        in_order: Collection[str] = (),
        *,
        deletes_in_order: bool = False,
    ) -> None:
        self._folder = root / "outbox"
        self._source = source
        self._epoch = epoch
        self._hashes = hashes
        self._in_order = in_order
        self._deletes_in_order = deletes_in_order
        self._placed = 0
        self._buffers: dict[tuple[End, str, Operation], OutboxBuffer] = {}
        self._waiting = 0
        """Bytes of the rows that are not written yet."""
        self._writers: dict[str, OutboxWriter] = {}
        self._family_at: set[str] = set()
        """Destinations that have rows of the family at hand."""
        self._split: set[str] = set()
        """Destinations of which a file was closed in the middle of the family."""
        self._marked = False
        """Something of the family could have been taken back."""
        self.files: list[tuple[str, Part]] = []
        self.size = 0

    def upsert(
        self,
        block: Block,
        i: int,
        doc: Document,
        end: End,
        branches: str,
        fields: bytes,
        before: MissingDelivery | None,
    ) -> Published:
        """A document of the family of row ``i``; what an origin's row publishes."""
        buffer = self.buffer(end, branches, "upsert")
        self._make_room(block, len(fields) if doc.raw is None else len(fields) + len(doc.raw))
        buffer.add(i, doc.id, child=doc.id != block.ids[i], before=before)
        buffer.fill(fields, doc.raw)
        if end[0] in self._in_order:
            self._place(buffer)
        self._family_at.add(end[0])
        return buffer.given

    def add_origin(self, block: Block, i: int, deliveries: Collection[Content]) -> None:
        """All upserts of row ``i``, which goes out alone, for the first time; none of them is large."""
        size = 0
        for _, fields, raw in deliveries:
            size += _ROW_BYTES + len(fields) + (0 if raw is None else len(raw))
        self._reserve(block, size)
        for buffer, fields, raw in deliveries:
            buffer.add_origin(i, fields, raw)
            if buffer.end[0] in self._in_order:
                self._place(buffer)

    def buffer(self, end: End, branches: str, operation: Operation) -> OutboxBuffer:
        """Where rows of this kind are gathered, for the whole task."""
        key = (end, branches, operation)
        if (found := self._buffers.get(key)) is None:
            found = self._buffers[key] = OutboxBuffer(end, branches, operation, self._hashes.of(end, operation))
        return found

    def delete(self, block: Block, i: int, id: str, end: End) -> None:
        """A delete of a document of the family of row ``i``."""
        self._make_room(block, 0)
        buffer = self.buffer(end, "", "delete")
        buffer.add(i, id, child=id != block.ids[i])
        if self._deletes_in_order and end[0] in self._in_order:
            self._place(buffer)

    def _place(self, buffer: OutboxBuffer) -> None:
        buffer.places.append(self._placed)
        self._placed += 1

    def mark(self, block: Block) -> OutboxMark:
        """Begin new files, so that what was staged before this mark can be kept alone."""
        self.gather(block)
        for name in list(self._writers):
            self._close(name)
        self._marked = True
        return OutboxMark(len(self.files), self._family_at.copy())

    def take_back(self, mark: OutboxMark) -> None:
        """Remove what came since."""
        for buffer in self._buffers.values():
            buffer.clear()
        for writer in self._writers.values():
            writer.abandon()
        self._writers, self._waiting = {}, 0
        for _, part in self.files[mark.files :]:
            remove(self._folder / part.path)
        del self.files[mark.files :]
        self._family_at = mark.family_at

    def end_family(self, block: Block) -> None:
        """The family is through. What its last files have is of this family alone: so it is known which belong
        together, and one lane sends them in their order, see ``state.outbox.split_family``."""
        if self._marked:
            self._split |= self._family_at
            self._marked = False
        if self._split:
            self.gather(block)
            for name in self._split & self._writers.keys():
                self._close(name)
            self._split.clear()
        self._family_at.clear()

    def gather(self, block: Block) -> None:
        """Write the rows that wait: upserts of all destinations first, then deletes, so that what a family lost goes
        after what it has."""
        full = [b for b in sorted(self._buffers.values(), key=lambda b: b.operation == "delete") if b.rows]
        for name in dict.fromkeys(b.end[0] for b in full if b.places):
            self._write_in_order(block, name, [b for b in full if b.places and b.end[0] == name])
        for buffer in full:
            if not buffer.places:
                self._write(buffer.end[0], partial(buffer.table, block, self._source))
            buffer.clear()
        self._waiting = 0

    def flush(self) -> None:
        """Close the files."""
        for name in list(self._writers):
            self._close(name)
        self.size = 0

    def _make_room(self, block: Block, content: int) -> None:
        """For one more row."""
        self._reserve(block, content + _ROW_BYTES)

    def _reserve(self, block: Block, size: int) -> None:
        """Make room for ``size`` bytes: write what is in memory before it exceeds a row group."""
        if self._waiting and self._waiting + size > limits.GROUP_BYTES:
            self.gather(block)
        self.size += size
        self._waiting += size

    def _write_in_order(self, block: Block, name: str, buffers: list[OutboxBuffer]) -> None:
        """Rows of several routes and branches, in the order in which they were made."""
        order = np.argsort(np.concatenate([b.places for b in buffers]))

        def rows(first: int) -> pa.Table:
            every = pa.concat_tables([b.table(block, self._source, 0) for b in buffers]).take(pa.array(order))
            at = every.schema.get_field_index("row")
            return every.set_column(at, "row", pa.array(np.arange(first, first + len(order)), pa.int64()))

        self._write(name, rows)

    def _write(self, name: str, rows: Callable[[int], pa.Table]) -> None:
        """Append rows, numbered from where they begin, to their destination's file. If it is full, the next ones go
        into another."""
        if (writer := self._writers.get(name)) is None:
            writer = self._writers[name] = OutboxWriter(self._folder, epoch=self._epoch)
        writer.write(rows(writer.rows))
        if writer.size >= limits.PART_BYTES:
            self._close(name)
            if name in self._family_at:
                self._split.add(name)

    def _close(self, name: str) -> None:
        part = self._writers.pop(name).finish()
        assert part is not None, "a writer has rows"
        self.files.append((name, part))
        crash.point("transform.outbox")


# A task's ``documents`` rows on their way into a file: what is remembered of each document that was processed.


class DocumentStage:
    """Stages the ``documents`` rows of a task.

    Attributes:
        files: one for each ``flush`` with rows.
        new: rows of documents of which there was none before, at least.
    """

    def __init__(self, root: StatePath, source: str, wave: int, epoch: int) -> None:
        self._folder = root / "documents"
        self._epoch = epoch
        self._shared = {"source": source, "wave": wave}
        self._new: list[int] = []
        self._new_published: list[str] = []
        self._rows: list[dict[str, Any]] = []
        self._tables: list[pa.Table] = []
        self.files: list[Part] = []
        self.new = 0

    def add_new(self, i: int, published: str) -> None:
        """Row ``i`` of the block is seen for the first time, and nothing failed: most rows are, so they are gathered as
        columns."""
        self._new.append(i)
        self._new_published.append(published)

    def remember(
        self,
        block: Block,
        i: int,
        operation: Operation,
        *,
        given: str,
        due: int | None,
        failures: list[FailedMember],
        held: str | None,
        again: int | None,
    ) -> None:
        """Record the outcome of row ``i`` of the block: values of the columns of these names."""
        self.add(
            {
                "document": block.name(i),
                "version": block.versions[i],
                "revision": block.revision(i),
                "fingerprint": block.fingerprints[i],
                "operation": operation,
                "given": given,
                "due": due,
                "owed": 0 if due is None else count_open_deliveries(failures),
                "failed": encode_failures(failures),
                "held": held,
                "forced": False,
                "again": again,
            }
        )

    def add(self, row: dict[str, Any]) -> None:
        """A row with these columns."""
        self._rows.append(row)

    def drop_last_if_same(self, id: str, known: KnownDocument) -> None:
        """Take back the row that was added last if it says, but for its due time, what is known."""
        last, before = self._rows[-1], same_again(id, known)
        if all(last[name] == before[name] for name in last if name != "due"):
            self._rows.pop()

    def gather(self, block: Block) -> None:
        """Convert the rows added for the block's documents to Arrow columns."""
        if self._new:
            rows = self._new
            self.new += len(rows)
            self._gather(
                len(rows),
                document=picked(block.ids, rows),
                version=picked(block.versions, rows),
                revision=1,
                fingerprint=picked(block.fingerprints, rows),
                operation="upsert",
                given=self._new_published,
                owed=0,
                forced=False,
            )
        if self._rows:
            self._gather(len(self._rows), **{name: [row[name] for row in self._rows] for name in self._rows[0]})
        self._new, self._new_published, self._rows = [], [], []

    def _gather(self, n: int, **columns: Any) -> None:
        self._tables.append(table_of(DOCUMENTS, n, **self._shared, **columns))

    def flush(self) -> None:
        """Write the file."""
        if self._tables:
            documents = pa.concat_tables(self._tables)
            stats = due_stats(documents["due"].to_pylist())
            self.files.append(write_part(self._folder, documents, epoch=self._epoch, stats=stats))
            crash.point("transform.documents")
        self._tables = []


def same_again(id: str, known: KnownDocument) -> dict[str, Any]:
    """A row of ``documents`` that says the same again."""
    return {
        "document": id,
        "version": known.version,
        "revision": known.revision,
        "fingerprint": known.fingerprint,
        "operation": known.operation,
        "given": known.given,
        "due": known.due,
        "owed": 0 if known.due is None else count_open_deliveries(known.failures),
        "failed": known.failed,
        "held": known.held,
        "forced": False,
        "again": known.again,
    }


# A task's ledger events on their way into files: what steps made of documents, and what ended before the outbox.

_ROWS: Final = 65_536
"""Events that are held as Python objects."""

_COLUMNS: Final = (
    "document",
    "parent",
    "origin",
    "version",
    "revision",
    "operation",
    "route",
    "branches",
    "destination",
    "delivery_hash",
    "status",
    "message",
    "attempt",
    "due",
)
"""Columns of an event about its document and delivery; all others are the same for all events of a task."""


@dataclass(frozen=True, slots=True, eq=False)
class Untaken:
    """A delivery that documents do not come to, for a router sends them another way.

    Attributes:
        branches: chosen so far.
        message: which way.
    """

    destination: str
    route: str
    branches: str
    message: str
    delivery_hash: DeliveryHash


_OF_UNTAKEN: Final = ("destination", "route", "branches", "message")
"""Columns that are the same for all documents that do not come to it."""


class EventStage:
    """Stages the events of a task.

    Attributes:
        files: in the order of their rows.
    """

    def __init__(self, root: StatePath, source: str, wave: int, epoch: int) -> None:
        self._folder = root / "ledger"
        self._epoch = epoch
        self._shared = {"source": source, "wave": wave, "ordinal": ORDINAL_STEPS}
        self._rows: list[tuple[Any, ...]] = []
        self._block: Block
        self._untaken: list[tuple[int, Untaken]] = []
        """(row of the block, what it does not come to): most events are these, so they are gathered as columns."""
        self._writer: PartWriter | None = None
        self.files: list[Part] = []

    def add(self, *columns: Any) -> None:
        """An event: values of ``_COLUMNS``."""
        self._rows.append(columns)
        if len(self._rows) >= _ROWS:
            self.gather()

    def add_untaken(self, block: Block, i: int, ends: Sequence[Untaken]) -> None:
        """The document of row ``i`` does not come to these; before the next block they are gathered."""
        self._block = block
        self._untaken += [(i, end) for end in ends]

    def mark(self) -> int:
        """Begin a new file of events, so that the events before this mark can be kept alone."""
        self.gather()
        self.close()
        return len(self.files)

    def take_back(self, mark: int) -> None:
        """Remove what came since."""
        if self._writer is not None:
            self._writer.abandon()
        self._writer, self._rows, self._untaken = None, [], []
        for part in self.files[mark:]:
            remove(self._folder / part.path)
        del self.files[mark:]

    def gather(self) -> None:
        """Write the events that wait: a document has some of either kind only."""
        tables = []
        if self._untaken:
            tables.append(self._columns_of_untaken())
        if self._rows:
            columns = dict(zip(_COLUMNS, map(list, zip(*self._rows, strict=True)), strict=True))
            tables.append(self._table(len(self._rows), **columns))
        self._rows, self._untaken = [], []
        if not tables:
            return
        if self._writer is None:
            self._writer = PartWriter(self._folder, LEDGER, epoch=self._epoch)
        self._writer.write(pa.concat_tables(tables))

    def _columns_of_untaken(self) -> pa.Table:
        block, rows = self._block, [i for i, _ in self._untaken]
        numbers = {end: at for at, end in enumerate(dict.fromkeys(end for _, end in self._untaken))}
        which = pa.array([numbers[end] for _, end in self._untaken], pa.int32())
        shared = {name: pa.array([getattr(end, name) for end in numbers]).take(which) for name in _OF_UNTAKEN}
        ids, versions, revisions = picked(block.ids, rows), picked(block.versions, rows), block.revisions(rows)
        documents = pa.array(ids, pa.string())
        named = zip(self._untaken, ids, versions, revisions, strict=True)
        return self._table(
            len(rows),
            document=documents,
            origin=documents,
            version=versions,
            revision=revisions,
            operation="upsert",
            delivery_hash=[end.delivery_hash(id, version, revision) for (_, end), id, version, revision in named],
            status=Status.DROPPED.value,
            attempt=1,
            **shared,
        )

    def _table(self, n: int, **columns: Any) -> pa.Table:
        return table_of(LEDGER, n, **columns, **self._shared, created=dt.datetime.now(dt.UTC))

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self.files.append(self._writer.finish())
            self._writer = None
            crash.point("transform.ledger")
