"""A task's ledger events on their way into files: what steps made of documents, and what ended before the outbox."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from ferryman import crash
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.outbox_buffer import picked
from ferryman.records.delivery_hash import DeliveryHash
from ferryman.records.events import ORDINAL_STEPS, table_of
from ferryman.records.schemas import LEDGER
from ferryman.records.statuses import Status
from ferryman.storage.files import StatePath, remove
from ferryman.storage.parquet import Part, PartWriter

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
"""What an event says of its document and delivery; all else is the same for all events of a task."""


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
        """What comes now goes into a file of its own."""
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
