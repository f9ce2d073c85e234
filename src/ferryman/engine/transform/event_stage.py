"""A task's ledger events on their way into files: what steps made of documents, and what ended before the outbox."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from ferryman import crash
from ferryman.records.events import ORDINAL_STEPS, table_of
from ferryman.records.schemas import LEDGER
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
        self._writer: PartWriter | None = None
        self.files: list[Part] = []

    def add(self, *columns: Any) -> None:
        """An event: values of ``_COLUMNS``."""
        self._rows.append(columns)
        if len(self._rows) >= _ROWS:
            self.gather()

    def mark(self) -> int:
        """What comes now goes into a file of its own."""
        self.gather()
        self.close()
        return len(self.files)

    def take_back(self, mark: int) -> None:
        """Remove what came since."""
        if self._writer is not None:
            self._writer.abandon()
        self._writer, self._rows = None, []
        for part in self.files[mark:]:
            remove(self._folder / part.path)
        del self.files[mark:]

    def gather(self) -> None:
        """Write the events that wait."""
        if not self._rows:
            return
        columns = dict(zip(_COLUMNS, map(list, zip(*self._rows, strict=True)), strict=True))
        if self._writer is None:
            self._writer = PartWriter(self._folder, LEDGER, epoch=self._epoch)
        self._writer.write(
            table_of(LEDGER, len(self._rows), **columns, **self._shared, created=dt.datetime.now(dt.UTC))
        )
        self._rows = []

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self.files.append(self._writer.finish())
            self._writer = None
            crash.point("transform.ledger")
