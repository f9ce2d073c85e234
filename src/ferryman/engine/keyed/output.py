"""What a task writes of the keys that it updates: their states, their exports, and what became of their documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from ferryman import limits
from ferryman.engine.keyed.exported import Export
from ferryman.records.events import sent_events, table_of
from ferryman.records.key_results import UpdateResult
from ferryman.records.keyed import CONTRIBUTIONS, EXPORTS_FILE, KEY_STATE, file_stats, lane_of
from ferryman.records.row_results import UNTOUCHED, RowResult
from ferryman.records.schemas import LEDGER
from ferryman.records.statuses import Status
from ferryman.storage.files import StatePath, fsync_folder, remove
from ferryman.storage.parquet import Part, PartWriter

_ROWS: Final = 16_384
"""Rows that are held as Python objects."""

_DONE: Final = (Status.INDEXED, Status.DROPPED)


def dealt(rows: Sequence[Sequence[Any]], column: int) -> list[Sequence[Any]]:
    """The first row of each value of the column, then the second of each, and so on: a destination takes one export of
    a key at a time, and neighbours that are of other keys go together."""
    turns: Counter[Any] = Counter()
    numbers = []
    for row in rows:
        turns[row[column]] += 1
        numbers.append(turns[row[column]])
    return [rows[at] for at in sorted(range(len(rows)), key=numbers.__getitem__)]


class _Table:
    """A data file in the making, row by row.

    Args:
        dealt_by: number of a column by which rows are ``dealt``; None: they stand as they come.
    """

    def __init__(self, folder: StatePath, schema: pa.Schema, epoch: int, dealt_by: int | None = None) -> None:
        self._open: Callable[[], PartWriter] = lambda: PartWriter(folder, schema, epoch=epoch)
        self._schema = schema
        self._dealt_by = dealt_by
        self._file: PartWriter | None = None
        self._rows: list[Sequence[Any]] = []
        self._size = 0

    def add(self, row: Sequence[Any], size: int = 0) -> None:
        """Values in the order of the columns; ``size``: bytes of its content."""
        self._rows.append(row)
        self._size += size
        if len(self._rows) >= _ROWS or self._size >= limits.GROUP_BYTES:
            self._flush()

    def write(self, table: pa.Table) -> None:
        """Rows that are a table already."""
        if table.num_rows:
            if self._file is None:
                self._file = self._open()
            self._file.write(table)

    def finish(self, stats: dict[str, Any] | None = None) -> Part | None:
        """The file, fsynced; None: it has no row."""
        self._flush()
        return None if self._file is None else self._file.finish(stats)

    def abandon(self) -> None:
        """Forget the file."""
        if self._file is not None:
            self._file.abandon()

    def _flush(self) -> None:
        if self._rows:
            if self._dealt_by is not None:
                self._rows = dealt(self._rows, self._dealt_by)
            columns = [*map(list, zip(*self._rows, strict=True))]
            self.write(table_of(self._schema, len(self._rows), **dict(zip(self._schema.names, columns, strict=True))))
        self._rows, self._size = [], 0


class Output:
    """The files of one task.

    Args:
        first_bucket: of its range.
        followed: does something follow the node?
    """

    def __init__(self, root: StatePath, node: str, wave: int, epoch: int, first_bucket: int, *, followed: bool) -> None:
        self._node = node
        self._wave = wave
        self._lane = lane_of(first_bucket)
        self._followed = followed
        self._state = _Table(root / "state" / node, KEY_STATE, epoch)
        self._exports = _Table(root / "exports" / node, EXPORTS_FILE, epoch, EXPORTS_FILE.get_field_index("key"))
        self._ledger = _Table(root / "ledger", LEDGER, epoch)
        self._contributions = _Table(root / "contributions" / node, CONTRIBUTIONS, epoch)
        self._folders = {name: root / name / node for name in ("state", "exports", "contributions")}
        self._folders["ledger"] = root / "ledger"
        self.withdrawn = 0
        """Documents of which a former key was told that they are gone."""
        self._buckets: list[int] = []
        self._leaving: Counter[int] = Counter()
        self._counts: Counter[str] = Counter()

    def state(self, key: str, value: str | None, sequence: int, bucket: int) -> None:
        """The new state of a key, JSON; None: it has none any more."""
        self._state.add((key, value, sequence, self._wave, bucket), len(value or "") + len(key))
        self._buckets = [min([bucket, *self._buckets]), max([bucket, *self._buckets])]

    def contribution(self, key: str, whose: tuple[str, str, str, int], fields: bytes | None, bucket: int) -> None:
        """What a key has now of a document (source, id, route, revision), as JSON; None: nothing."""
        size = len(key) + sum(map(len, whose[:3])) + len(fields or b"")
        self._contributions.add((key, *whose, fields, self._wave, bucket), size)

    def exports(self, exports: Sequence[Export]) -> None:
        """In their order; nobody carries on those of a node that nothing follows."""
        for each in exports if self._followed else ():
            size = len(each.key) + len(each.document) + len(each.fields or b"") + len(each.raw or b"")
            self._exports.add(each, size)  # keys may be large, too

    def events(self, rows: pa.Table, results: Sequence[RowResult | None]) -> None:
        """What became of documents: of each of the rows of a run, None if it went into the state."""
        noted = [result for result in results if result is not None]
        events = sent_events(rows.rename_columns({"sequence": "row"}), noted, self._node, self._wave)
        self._ledger.write(events)
        columns = (rows[name].to_pylist() for name in ("file", "operation"))
        for file, operation, result in zip(*columns, results, strict=True):
            status = Status.INDEXED if result is None else result.status
            if status != UNTOUCHED:
                self._leaving[file] += status in _DONE
            self._counts["deleted"] += result is None and operation == "delete"
            self._counts["sent"] += status != UNTOUCHED
            self._counts["failed"] += status in (Status.DEAD, Status.ERROR_DOC)

    def finish(self, number: int) -> UpdateResult:
        """Write what is left; the files and their names are durable when this returns."""
        first, last = self._buckets or (0, 0)
        state = self._state.finish(file_stats((first, last), (self._wave, self._wave)))
        ledger, exports, contributions = (t.finish() for t in (self._ledger, self._exports, self._contributions))
        parts = {"ledger": ledger, "state": state, "exports": exports, "contributions": contributions}
        for name in (name for name, part in parts.items() if part is not None):
            fsync_folder(self._folders[name])
        count = self._counts
        return UpdateResult(
            self._node,
            number,
            self._lane,
            ledger,
            state,
            exports,
            contributions,
            dict(self._leaving),
            count["sent"],
            count["deleted"],
            count["failed"],
            self.withdrawn,
        )

    def remove(self, result: UpdateResult) -> None:
        """Remove the files: another task has done the same before."""
        for name, folder in self._folders.items():
            if (part := getattr(result, name)) is not None:
                remove(folder / part.path)

    def abandon(self) -> None:
        """Forget the files, after an error."""
        for each in (self._state, self._exports, self._ledger, self._contributions):
            each.abandon()
