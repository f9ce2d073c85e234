"""Staged rows of a task, in columns and then in files: outbox rows, rows of ``documents``, events of the ledger."""

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
from ferryman.engine.results import OutboxSavepoint
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

# Outbox rows.


class OutboxBuffer:
    """Gathers outbox rows of one block that share destination, route, branches and operation.

    Args:
        end: (destination, whole route).
    """

    def __init__(self, end: tuple[str, str], branches: str, operation: Operation, delivery_hash: DeliveryHash) -> None:
        self.end = end
        self.branches = branches
        self.operation = operation
        self.given = Published("", end[1], end[0])
        """Delivery that is published for an origin's row."""
        self._delivery_hash = delivery_hash
        self.clear()

    def clear(self) -> None:
        """Forget the rows."""
        self.rows: list[int] = []
        """Their origins' rows in the block."""
        self.places: list[int] = []
        """Their places among all rows of their destination, if it gets them in order."""
        self._children: list[str | None] | None = None
        """Their ids, None of an origin's row; None: all are origins."""
        self._fields: list[bytes] = []
        self._raws: list[bytes | None] = []
        self._earlier: dict[int, MissingDelivery] = {}
        """Row -> its earlier attempts, where there were any."""

    def add(self, i: int, id: str, *, child: bool, earlier: MissingDelivery | None = None) -> None:
        """Add a row whose origin is row ``i`` of the block."""
        if earlier is not None and earlier.attempt:
            self._earlier[len(self.rows)] = earlier
        if child and self._children is None:
            self._children = [None] * len(self.rows)
        if self._children is not None:
            self._children.append(id if child else None)
        self.rows.append(i)

    def fill(self, fields: bytes, raw: bytes | None) -> None:
        """Set the content of the row that was added last."""
        self._fields.append(fields)
        self._raws.append(raw)

    def add_origin(self, i: int, fields: bytes, raw: bytes | None) -> None:
        """Add row ``i`` of the block itself, with its content, for the first time."""
        if self._children is not None:
            self._children.append(None)
        self.rows.append(i)
        self._fields.append(fields)
        self._raws.append(raw)

    def table(self, block: Block, source: str, first_row: int) -> pa.Table:
        """Return the rows in the columns of OUTBOX_FILE, numbered from ``first_row``."""
        n = len(self.rows)
        origins, children = values_of_rows(block.ids, self.rows), self._children
        ids = origins if children is None else [c or o for c, o in zip(children, origins, strict=True)]
        documents = pa.array(ids, pa.string())
        versions = values_of_rows(block.versions, self.rows)
        revisions = block.revisions(self.rows)
        earlier = [self._earlier.get(at) for at in range(n)] if self._earlier else None
        content: dict[str, Any] = {"fields": self._fields, "raw": self._raws} if self._fields else {}
        if block.provenances is not None:
            content["provenance"] = values_of_rows(block.provenances, self.rows)
        if block.key_hashes:
            content["key_hash"] = values_of_rows(block.key_hashes, self.rows)
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
            attempt=[each.attempt if each else 0 for each in earlier] if earlier else 0,
            due=0,
            since=[each and each.since for each in earlier] if earlier else None,
            transient=[each and each.transient for each in earlier] if earlier else None,
            **content,
        )


def values_of_rows(column: list[Any], rows: list[int]) -> list[Any]:
    """Return a column's values for these rows: some of the rows, or a family's origin several times."""
    whole = len(rows) == len(column) and rows == list(range(len(rows)))
    return column if whole else [column[i] for i in rows]


End = tuple[str, str]
"""(destination, whole route)."""

Content = tuple[OutboxBuffer, bytes, bytes | None]
"""(buffer of the row, its fields, its raw bytes)."""

_ROW_BYTES: Final = 256
"""Bytes of an outbox row beside its content: id, hash, numbers."""


class DeliveryHashes:
    """Makes the delivery hashes of a task.

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
        deletes_in_order: whether deletes are in that order too; else they come after upserts.

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
        self._places_given = 0
        self._buffers: dict[tuple[End, str, Operation], OutboxBuffer] = {}
        self._pending_bytes = 0
        """Bytes of the rows that are not written yet."""
        self._writers: dict[str, OutboxWriter] = {}
        self._family_destinations: set[str] = set()
        """Destinations that have rows of the current family."""
        self._split: set[str] = set()
        """Destinations whose file was closed in the middle of the family."""
        self._has_savepoint = False
        """There was a savepoint within the family."""
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
        earlier: MissingDelivery | None,
    ) -> Published:
        """Add an upsert for a document of the family of row ``i``; return what an origin's row publishes."""
        buffer = self.buffer(end, branches, "upsert")
        self._make_room(block, len(fields) if doc.raw is None else len(fields) + len(doc.raw))
        buffer.add(i, doc.id, child=doc.id != block.ids[i], earlier=earlier)
        buffer.fill(fields, doc.raw)
        if end[0] in self._in_order:
            self._assign_place(buffer)
        self._family_destinations.add(end[0])
        return buffer.given

    def add_origin(self, block: Block, i: int, deliveries: Collection[Content]) -> None:
        """Add all upserts of row ``i``, which has no children, for the first time; none of them is large."""
        size = 0
        for _, fields, raw in deliveries:
            size += _ROW_BYTES + len(fields) + (0 if raw is None else len(raw))
        self._reserve(block, size)
        for buffer, fields, raw in deliveries:
            buffer.add_origin(i, fields, raw)
            if buffer.end[0] in self._in_order:
                self._assign_place(buffer)

    def buffer(self, end: End, branches: str, operation: Operation) -> OutboxBuffer:
        """Return the buffer in which rows of this kind are gathered, for the whole task."""
        key = (end, branches, operation)
        if (found := self._buffers.get(key)) is None:
            found = self._buffers[key] = OutboxBuffer(end, branches, operation, self._hashes.of(end, operation))
        return found

    def delete(self, block: Block, i: int, id: str, end: End) -> None:
        """Add a delete of a document of the family of row ``i``."""
        self._make_room(block, 0)
        buffer = self.buffer(end, "", "delete")
        buffer.add(i, id, child=id != block.ids[i])
        if self._deletes_in_order and end[0] in self._in_order:
            self._assign_place(buffer)

    def _assign_place(self, buffer: OutboxBuffer) -> None:
        buffer.places.append(self._places_given)
        self._places_given += 1

    def savepoint(self, block: Block) -> OutboxSavepoint:
        """Begin new files, so that what was staged before can be kept alone."""
        self.gather(block)
        for name in list(self._writers):
            self._close(name)
        self._has_savepoint = True
        return OutboxSavepoint(len(self.files), self._family_destinations.copy())

    def roll_back(self, savepoint: OutboxSavepoint) -> None:
        """Remove all that was staged since the savepoint."""
        for buffer in self._buffers.values():
            buffer.clear()
        for writer in self._writers.values():
            writer.abandon()
        self._writers, self._pending_bytes = {}, 0
        for _, part in self.files[savepoint.files :]:
            remove(self._folder / part.path)
        del self.files[savepoint.files :]
        self._family_destinations = savepoint.family_destinations

    def end_family(self, block: Block) -> None:
        """End the family. If it is split over files, its last files have rows of this family alone: so it is known
        which files belong together, and one lane sends them in order, see ``state.outbox.split_family``.
        """
        if self._has_savepoint:
            self._split |= self._family_destinations
            self._has_savepoint = False
        if self._split:
            self.gather(block)
            for name in self._split & self._writers.keys():
                self._close(name)
            self._split.clear()
        self._family_destinations.clear()

    def gather(self, block: Block) -> None:
        """Write the gathered rows: upserts of all destinations first, then deletes, so that what a family lost is sent
        after what it has.
        """
        full = [b for b in sorted(self._buffers.values(), key=lambda b: b.operation == "delete") if b.rows]
        for name in dict.fromkeys(b.end[0] for b in full if b.places):
            self._write_in_order(block, name, [b for b in full if b.places and b.end[0] == name])
        for buffer in full:
            if not buffer.places:
                self._write(buffer.end[0], partial(buffer.table, block, self._source))
            buffer.clear()
        self._pending_bytes = 0

    def flush(self) -> None:
        """Close the files."""
        for name in list(self._writers):
            self._close(name)
        self.size = 0

    def _make_room(self, block: Block, content: int) -> None:
        """Make room for one more row."""
        self._reserve(block, content + _ROW_BYTES)

    def _reserve(self, block: Block, size: int) -> None:
        """Make room for ``size`` bytes: write what is in memory before it exceeds a row group."""
        if self._pending_bytes and self._pending_bytes + size > limits.GROUP_BYTES:
            self.gather(block)
        self.size += size
        self._pending_bytes += size

    def _write_in_order(self, block: Block, name: str, buffers: list[OutboxBuffer]) -> None:
        """Write rows of several routes and branches in the order in which they were made."""
        order = np.argsort(np.concatenate([b.places for b in buffers]))

        def rows(first: int) -> pa.Table:
            every = pa.concat_tables([b.table(block, self._source, 0) for b in buffers]).take(pa.array(order))
            at = every.schema.get_field_index("row")
            return every.set_column(at, "row", pa.array(np.arange(first, first + len(order)), pa.int64()))

        self._write(name, rows)

    def _write(self, name: str, rows: Callable[[int], pa.Table]) -> None:
        """Append rows, numbered from the file's next row, to their destination's file; if that is full, close it."""
        if (writer := self._writers.get(name)) is None:
            writer = self._writers[name] = OutboxWriter(self._folder, epoch=self._epoch)
        writer.write(rows(writer.rows))
        if writer.size >= limits.PART_BYTES:
            self._close(name)
            if name in self._family_destinations:
                self._split.add(name)

    def _close(self, name: str) -> None:
        part = self._writers.pop(name).finish()
        assert part is not None, "a writer has rows"
        self.files.append((name, part))
        crash.point("transform.outbox")


# Rows of ``documents``: what is remembered of each document that was processed.


class DocumentStage:
    """Stages the ``documents`` rows of a task.

    Attributes:
        files: one for each ``flush`` with rows.
        new: rows of documents that had no row before, at least.
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
        """Add row ``i`` of the block, seen for the first time and without failures: most rows are, so they are
        gathered as columns."""
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
        """Add a row with these columns."""
        self._rows.append(row)

    def drop_last_if_same(self, id: str, known: KnownDocument) -> None:
        """Remove the row that was added last if it equals the known row, but for its due time."""
        last, earlier = self._rows[-1], unchanged_row(id, known)
        if all(last[name] == earlier[name] for name in last if name != "due"):
            self._rows.pop()

    def gather(self, block: Block) -> None:
        """Convert the rows added for the block's documents to Arrow columns."""
        if self._new:
            rows = self._new
            self.new += len(rows)
            self._add_table(
                len(rows),
                document=values_of_rows(block.ids, rows),
                version=values_of_rows(block.versions, rows),
                revision=1,
                fingerprint=values_of_rows(block.fingerprints, rows),
                operation="upsert",
                given=self._new_published,
                owed=0,
                forced=False,
            )
        if self._rows:
            self._add_table(len(self._rows), **{name: [row[name] for row in self._rows] for name in self._rows[0]})
        self._new, self._new_published, self._rows = [], [], []

    def _add_table(self, n: int, **columns: Any) -> None:
        self._tables.append(table_of(DOCUMENTS, n, **self._shared, **columns))

    def flush(self) -> None:
        """Write the file."""
        if self._tables:
            documents = pa.concat_tables(self._tables)
            stats = due_stats(documents["due"].to_pylist())
            self.files.append(write_part(self._folder, documents, epoch=self._epoch, stats=stats))
            crash.point("transform.documents")
        self._tables = []


def unchanged_row(id: str, known: KnownDocument) -> dict[str, Any]:
    """Return a row of ``documents`` with the known values."""
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


# Events of the ledger: what steps made of documents, and deliveries that ended before the outbox.

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
class SkippedDelivery:
    """A delivery that documents do not get, since a router sends them to other branches.

    Attributes:
        branches: chosen so far.
        message: the branches that were chosen.
    """

    destination: str
    route: str
    branches: str
    message: str
    delivery_hash: DeliveryHash


_SKIPPED_COLUMNS: Final = ("destination", "route", "branches", "message")
"""Columns that are the same for all documents that a delivery skips."""


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
        self._skipped: list[tuple[int, SkippedDelivery]] = []
        """(row of the block, delivery): most events are these, so they are gathered as columns."""
        self._writer: PartWriter | None = None
        self.files: list[Part] = []

    def add(self, *columns: Any) -> None:
        """Add an event: values of ``_COLUMNS``."""
        self._rows.append(columns)
        if len(self._rows) >= _ROWS:
            self.gather()

    def add_skipped(self, block: Block, i: int, ends: Sequence[SkippedDelivery]) -> None:
        """Add events for deliveries that the document of row ``i`` does not get; they are gathered before the next
        block."""
        self._block = block
        self._skipped += [(i, end) for end in ends]

    def savepoint(self) -> int:
        """Begin a new file of events, so that the events before can be kept alone."""
        self.gather()
        self.close()
        return len(self.files)

    def roll_back(self, savepoint: int) -> None:
        """Remove all that was staged since the savepoint."""
        if self._writer is not None:
            self._writer.abandon()
        self._writer, self._rows, self._skipped = None, [], []
        for part in self.files[savepoint:]:
            remove(self._folder / part.path)
        del self.files[savepoint:]

    def gather(self) -> None:
        """Write the gathered events: a document has either skipped deliveries or other events."""
        tables = []
        if self._skipped:
            tables.append(self._skipped_table())
        if self._rows:
            columns = dict(zip(_COLUMNS, map(list, zip(*self._rows, strict=True)), strict=True))
            tables.append(self._table(len(self._rows), **columns))
        self._rows, self._skipped = [], []
        if not tables:
            return
        if self._writer is None:
            self._writer = PartWriter(self._folder, LEDGER, epoch=self._epoch)
        self._writer.write(pa.concat_tables(tables))

    def _skipped_table(self) -> pa.Table:
        block, rows = self._block, [i for i, _ in self._skipped]
        numbers = {end: at for at, end in enumerate(dict.fromkeys(end for _, end in self._skipped))}
        which = pa.array([numbers[end] for _, end in self._skipped], pa.int32())
        shared = {name: pa.array([getattr(end, name) for end in numbers]).take(which) for name in _SKIPPED_COLUMNS}
        ids, versions, revisions = (
            values_of_rows(block.ids, rows),
            values_of_rows(block.versions, rows),
            block.revisions(rows),
        )
        documents = pa.array(ids, pa.string())
        named = zip(self._skipped, ids, versions, revisions, strict=True)
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
