"""A task's outbox rows on their way into files: a buffer for each destination, route, branches and operation; a file
for each destination.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from ferryman import crash, limits
from ferryman.document import Document, Operation
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.outbox_buffer import OutboxBuffer
from ferryman.records.delivery_hash import DeliveryHash, hasher
from ferryman.records.family import Owed, Published
from ferryman.state.outbox import OutboxWriter
from ferryman.storage.files import StatePath, remove
from ferryman.storage.parquet import Part

End = tuple[str, str]
"""(destination, whole route)."""

Content = tuple[OutboxBuffer, bytes, bytes | None]
"""Where a row goes, its fields and its raw bytes."""

_ROW_BYTES: Final = 256
"""What an outbox row takes beside its content: its id, its hash, its numbers."""


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


class OutboxMark(NamedTuple):
    """What was staged when it was set; see ``OutboxStage.mark``."""

    files: int
    family_at: set[str]


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
        """Of these, those of which a file closed in the middle of the family."""
        self._marked = False
        """Something of the family could have been taken back."""
        self.files: list[tuple[str, Part]] = []
        self.size = 0

    def upsert(
        self, block: Block, i: int, doc: Document, end: End, branches: str, fields: bytes, before: Owed | None
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
        """What comes now goes into files of its own."""
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
        """So many bytes: what waits in memory is written before it is more than a row group takes."""
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
