"""Staged rows of a task, first in columns and then in files: outbox rows, rows of ``documents``, ledger events."""

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
from ferryman.engine.tasks import KnownDocument
from ferryman.engine.transform.block import Block
from ferryman.records.families import (
    FailedMember,
    MissingDelivery,
    Published,
    count_open_deliveries,
    encode_failures,
    parent_of,
)
from ferryman.records.rows import (
    DOCUMENTS,
    LEDGER,
    ORDINAL_STEPS,
    OUTBOX_FILE,
    DeliveryHash,
    Status,
    array_of,
    hasher,
    table_of,
)
from ferryman.state.outbox import OutboxWriter, due_stats
from ferryman.storage.files import StatePath, remove
from ferryman.storage.parquet import Part, PartWriter, number_array, numbers_of, write_part

# Outbox rows.


class OutboxBuffer:
    """Collects outbox rows of one block that share destination, route, branches and operation.

    Args:
        end: (destination, whole route).
    """

    def __init__(self, end: tuple[str, str], branches: str, operation: Operation, delivery_hash: DeliveryHash) -> None:
        self.end = end
        self.branches = branches
        self.operation = operation
        self.given = Published("", end[1], end[0])
        """Record of the delivery as it is published for an origin."""
        self._delivery_hash = delivery_hash
        self.clear()

    def clear(self) -> None:
        """Remove all rows."""
        self.rows: list[int] = []
        """Row in the block of each row's origin."""
        self.places: list[int] = []
        """Position of each row among all rows of its destination, if that receives them in order."""
        self._children: list[str | None] | None = None
        """Id of each row's child, None for an origin; None: all rows are of origins."""
        self._fields: list[bytes] = []
        self._raws: list[bytes | None] = []
        self._earlier: dict[int, MissingDelivery] = {}
        """Row -> its earlier attempts, if there were any."""

    def add(self, i: int, id: str, *, child: bool, earlier: MissingDelivery | None = None) -> None:
        """Add a row for row ``i`` of the block or a child of it; ``fill`` adds its content."""
        if earlier is not None and earlier.attempt:
            self._earlier[len(self.rows)] = earlier
        if child and self._children is None:
            self._children = [None] * len(self.rows)
        if self._children is not None:
            self._children.append(id if child else None)
        self.rows.append(i)

    def fill(self, fields: bytes, raw: bytes | None) -> None:
        """Set the content of the last added row."""
        self._fields.append(fields)
        self._raws.append(raw)

    def add_origin(self, i: int, fields: bytes, raw: bytes | None) -> None:
        """Add row ``i`` of the block itself with its content; for deliveries without earlier attempts."""
        if self._children is not None:
            self._children.append(None)
        self.rows.append(i)
        self._fields.append(fields)
        self._raws.append(raw)

    def add_origins(self, fields: list[bytes], raws: list[bytes | None]) -> None:
        """Add all rows of the block, as ``add_origin`` does; there are no others yet."""
        assert not self.rows
        self.rows, self._fields, self._raws = list(range(len(fields))), [*fields], [*raws]

    def table(self, block: Block, source: str, first_row: int) -> pa.Table:
        """Return the rows in the columns of ``OUTBOX_FILE``, numbered from ``first_row``."""
        n = len(self.rows)
        origins, children = values_of_rows(block.ids, self.rows), self._children
        ids = origins if children is None else [c or o for c, o in zip(children, origins, strict=True)]
        documents = array_of(ids, pa.string())
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
            row=range(first_row, first_row + n),
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
    """Return a column's values at these rows, in which a row may occur several times (for a family's members)."""
    whole = len(rows) == len(column) and rows == list(range(len(rows)))
    return column if whole else [column[i] for i in rows]


End = tuple[str, str]
"""(destination, whole route)."""

Content = tuple[OutboxBuffer, bytes, bytes | None]
"""(buffer of the row, its fields, its raw bytes)."""

_ROW_BYTES: Final = 256
"""Bytes of an outbox row besides its content: id, hash, numbers."""


class DeliveryHashes:
    """Computes the delivery hashes of a task.

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
        in_order: destinations that must receive a wave's rows in the order of its documents.
        deletes_in_order: whether that order includes deletes; otherwise they follow all upserts.

    Attributes:
        files: (destination, file) in the order of their rows.
        size: approximate bytes of the rows since the last ``flush``.
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
        """Bytes of the rows that are still in memory."""
        self._writers: dict[str, OutboxWriter] = {}
        self._family_destinations: set[str] = set()
        """Destinations that have rows of the current family."""
        self._split: set[str] = set()
        """Destinations whose file was closed in the middle of the family."""
        self._has_savepoint = False
        """Whether there was a savepoint within the family."""
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
        """Add an upsert for a member of row ``i``'s family; return the delivery as it is published for an origin."""
        buffer = self.buffer(end, branches, "upsert")
        self._make_room(block, len(fields) if doc.raw is None else len(fields) + len(doc.raw))
        buffer.add(i, doc.id, child=doc.id != block.ids[i], earlier=earlier)
        buffer.fill(fields, doc.raw)
        if end[0] in self._in_order:
            self._assign_place(buffer)
        self._family_destinations.add(end[0])
        return buffer.given

    def add_origin(self, block: Block, i: int, deliveries: Collection[Content]) -> None:
        """Add all upserts of row ``i``, which has no children, no earlier attempts and no large content."""
        size = 0
        for _, fields, raw in deliveries:
            size += _ROW_BYTES + len(fields) + (0 if raw is None else len(raw))
        self._reserve(block, size)
        for buffer, fields, raw in deliveries:
            buffer.add_origin(i, fields, raw)
            if buffer.end[0] in self._in_order:
                self._assign_place(buffer)

    def add_origins(
        self, block: Block, buffers: Sequence[OutboxBuffer], fields: list[bytes], raws: list[bytes | None]
    ) -> None:
        """Add all rows of the block to each of these buffers, as ``add_origin`` does."""
        size = (_ROW_BYTES * len(fields) + sum(map(len, fields)) + sum(len(raw) for raw in raws if raw)) * len(buffers)
        is_ordered = any(buffer.end[0] in self._in_order for buffer in buffers)
        if self._pending_bytes or size > limits.GROUP_BYTES or is_ordered:
            for i, content in enumerate(zip(fields, raws, strict=True)):
                self.add_origin(block, i, [(buffer, *content) for buffer in buffers])
            return
        self._reserve(block, size)
        for buffer in buffers:
            buffer.add_origins(fields, raws)

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
        """Begin new files, so that everything staged before can be kept on its own."""
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
        """End the family. If it spans several files, its last file of each destination contains only this family, so
        that files that belong together can be recognized and sent in order by one lane; see
        ``state.outbox.split_family``."""
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
        """Write the collected rows: first the upserts of all destinations, then the deletes, so that a family's deletes
        are sent last."""
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
        """Make room in memory for one more row with this content."""
        self._reserve(block, content + _ROW_BYTES)

    def _reserve(self, block: Block, size: int) -> None:
        """Make room for ``size`` bytes: write the rows in memory before they exceed a row group."""
        if self._pending_bytes and self._pending_bytes + size > limits.GROUP_BYTES:
            self.gather(block)
        self.size += size
        self._pending_bytes += size

    def _write_in_order(self, block: Block, name: str, buffers: list[OutboxBuffer]) -> None:
        """Write rows of several routes and branches in the order in which they were added."""
        if len(buffers) == 1:
            self._write(name, partial(buffers[0].table, block, self._source))
            return
        order = np.argsort(np.concatenate([b.places for b in buffers]))

        def rows(first: int) -> pa.Table:
            every = pa.concat_tables([b.table(block, self._source, 0) for b in buffers]).take(number_array(order))
            at = every.schema.get_field_index("row")
            return every.set_column(at, "row", number_array(np.arange(first, first + len(order))))

        self._write(name, rows)

    def _write(self, name: str, rows: Callable[[int], pa.Table]) -> None:
        """Append rows to the current file of their destination, numbered from its next row; close the file if it is
        full."""
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


# Rows of ``documents``: what is stored about each document that was processed.


class DocumentStage:
    """Stages the ``documents`` rows of a task.

    Args:
        many_versions: several rows may be added for a document, of which the one of its last revision is written, at
            the end.

    Attributes:
        files: one file for each ``flush`` that had rows.
        new: lower bound of the number of rows of documents that had none before.
        size: approximate bytes of the rows that wait for the end.
    """

    def __init__(self, root: StatePath, source: str, wave: int, epoch: int, *, many_versions: bool = False) -> None:
        self._folder = root / "documents"
        self._epoch = epoch
        self._shared = {"source": source, "wave": wave}
        self._plain: list[int] = []
        self._plain_published: list[str] = []
        self._rows: list[dict[str, Any]] = []
        self._tables: list[pa.Table] = []
        self._many_versions = many_versions
        self.files: list[Part] = []
        self.new = self.size = 0

    def add_plain(self, i: int, published: str) -> None:
        """Add row ``i`` of the block, a document without failures and requests. Most rows are like this, so they are
        collected as columns."""
        self._plain.append(i)
        self._plain_published.append(published)

    def add_all_plain(self, rows: int, published: str) -> None:
        """Add all rows of the block as ``add_plain`` does."""
        self._plain += range(rows)
        self._plain_published += [published] * rows

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
        """Add a row with the outcome of row ``i`` of the block; the arguments are values of the columns with these
        names."""
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
        """Add a row with these values."""
        self._rows.append(row)

    def drop_last_if_same(self, id: str, known: KnownDocument) -> None:
        """Remove the last added row if it differs from the known row at most in its due time."""
        last, earlier = self._rows[-1], unchanged_row(id, known)
        if all(last[name] == earlier[name] for name in last if name != "due"):
            self._rows.pop()

    def gather(self, block: Block) -> None:
        """Convert the rows added for the block's documents to Arrow columns."""
        if rows := self._plain:
            self.new += block.count_new(rows)
            self._add_table(
                len(rows),
                document=values_of_rows(block.ids, rows),
                version=values_of_rows(block.versions, rows),
                revision=block.revisions(rows),
                fingerprint=values_of_rows(block.fingerprints, rows),
                operation="upsert",
                given=self._plain_published,
                owed=0,
                forced=False,
            )
        if self._rows:
            self._add_table(len(self._rows), **{name: [row[name] for row in self._rows] for name in self._rows[0]})
        self._plain, self._plain_published, self._rows = [], [], []

    def _add_table(self, n: int, **columns: Any) -> None:
        self._tables.append(table := table_of(DOCUMENTS, n, **self._shared, **columns))
        if self._many_versions:
            self.size += table.nbytes

    def flush(self, *, last: bool = False) -> None:
        """Write the file.

        Args:
            last: no row will be added any more.
        """
        if self._many_versions and not last:
            return
        if self._tables:
            documents = pa.concat_tables(self._tables)
            if self._many_versions:
                documents = _last_versions(documents)
            stats = due_stats(documents["due"].to_pylist())
            self.files.append(write_part(self._folder, documents, epoch=self._epoch, stats=stats))
            crash.point("transform.documents")
        self._tables = []


def _last_versions(rows: pa.Table) -> pa.Table:
    """Return of each document the row of its highest revision."""
    ids, order = rows["document"].to_pylist(), np.argsort(numbers_of(rows["revision"]), kind="stable")
    last = {ids[at]: at for at in order.tolist()}
    return rows if len(last) == len(ids) else rows.take(number_array(np.sort(np.fromiter(last.values(), np.int64))))


def unchanged_row(id: str, known: KnownDocument) -> dict[str, Any]:
    """Return a row of ``documents`` with the known values unchanged."""
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


# Ledger events: what steps made of documents, and deliveries that ended before they reached the outbox.

_ROWS: Final = 65_536
"""Events that are held in memory as Python objects."""

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
"""Columns of an event that describe its document and delivery; all others are the same for all events of a task."""


@dataclass(frozen=True, slots=True, eq=False)
class SkippedDelivery:
    """A delivery that documents do not get, because a router sends them to other branches.

    Attributes:
        branches: choices of the routers before this one.
        message: message that names the chosen branches.
    """

    destination: str
    route: str
    branches: str
    message: str
    delivery_hash: DeliveryHash


_SKIPPED_COLUMNS: Final = ("destination", "route", "branches", "message")
"""Columns that are the same for all documents that skip a delivery."""


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
        """(row of the block, delivery). Most events are like this, so they are collected as columns."""
        self._writer: PartWriter | None = None
        self.files: list[Part] = []

    def add(self, *columns: Any) -> None:
        """Add an event with values of ``_COLUMNS``."""
        self._rows.append(columns)
        if len(self._rows) >= _ROWS:
            self.gather()

    def add_skipped(self, block: Block, i: int, ends: Sequence[SkippedDelivery]) -> None:
        """Add events for the deliveries that row ``i`` does not get; ``gather`` writes them at the end of the block."""
        self._block = block
        self._skipped += [(i, end) for end in ends]

    def savepoint(self) -> int:
        """Begin a new file of events, so that earlier events can be kept on their own."""
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
        """Write the collected events. A document has either skipped deliveries or other events, not both."""
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
