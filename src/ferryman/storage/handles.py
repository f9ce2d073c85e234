"""Open Delta tables, kept and brought to the newest version: opening one takes ten times as long."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable

from ferryman.storage.files import stamp
from ferryman.storage.log import TableLog

KEPT: Final = 6
"""Handles of a thread: the tables of two states."""


class DataFile(NamedTuple):
    """A live file of a table."""

    path: str
    """Its name in the table's folder."""
    size: int
    rows: int
    partition: dict[str, str]
    stats: dict[str, Any]


class OpenTable:
    """A table as of one version; what has been asked of it once is known until it is moved on."""

    def __init__(self, folder: Path, version: int | None = None) -> None:
        self.folder = folder
        # before it is opened: what is trimmed or removed meanwhile shows afterwards
        self._first, self._checkpoints = TableLog(folder).base()
        self.table = DeltaTable(str(folder), version=version)
        self._files: dict[str, DataFile] | None = None
        self._transactions: dict[str, int] = {}
        self._note()

    def move_on(self) -> None:
        """To the newest version. Versions have no gaps: without the next one there is nothing to read."""
        if TableLog(self.folder).path(self.version + 1).exists():
            self.table.update_incremental()
            self._note()

    @property
    def holds(self) -> bool:
        """Is the log still the one that was read? Not if another state was put into its place, nor if it was trimmed,
        or a checkpoint removed that a kill had left: delta-rs reads the older part only when it is asked for what
        stands there."""
        log = TableLog(self.folder)
        found = stamp(log.path(self.version))
        first, checkpoints = log.base()
        return found is not None and found == self._stamp and self._first == first and self._checkpoints <= checkpoints

    def transaction(self, application: str) -> int:
        """The number of its last transaction, 0 if there was none."""
        if application not in self._transactions:
            self._transactions[application] = self.table.transaction_version(application) or 0
        return self._transactions[application]

    def files(self) -> dict[str, DataFile]:
        """Path -> live file."""
        if self._files is None:
            self._files = {file.path: file for file in map(_data_file, _add_actions(self.table))}
        return dict(self._files)

    def _note(self) -> None:
        log, self.version = TableLog(self.folder), self.table.version()
        self._checkpoints |= log.base()[1]
        self._stamp = stamp(log.path(self.version))
        self._files = None
        self._transactions = {}


def newest(folder: Path, handle: OpenTable | None = None) -> OpenTable:
    """The table in its newest version.

    Args:
        handle: one that was opened before; it is used if it can be.

    Raises:
        DeltaError, FileNotFoundError: the log cannot be read.
    """
    if handle is None or not handle.holds:
        return OpenTable(folder)
    handle.move_on()
    return handle


class _OfThread(threading.local):
    """Of this thread: a handle that is moved on by one thread would be read at two versions by another."""

    def __init__(self) -> None:
        self.handles: OrderedDict[Path, OpenTable] = OrderedDict()


_of_thread = _OfThread()


def newest_to_read(folder: Path) -> OpenTable:
    """The same, for those who read only: whoever commits must have a handle that nobody else moves on."""
    kept = _of_thread.handles
    kept[folder] = newest(folder, kept.pop(folder, None))
    while len(kept) > KEPT:
        kept.popitem(last=False)
    return kept[folder]


def _add_actions(table: DeltaTable) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return found


def _data_file(row: dict[str, Any]) -> DataFile:
    partition = {k.removeprefix("partition."): str(v) for k, v in row.items() if k.startswith("partition.")}
    stats: dict[str, Any] = {}
    for kind, key in (("min.", "minValues"), ("max.", "maxValues"), ("null_count.", "nullCount")):
        values = {k.removeprefix(kind): v for k, v in row.items() if k.startswith(kind) and v is not None}
        if values:
            stats[key] = values
    return DataFile(row["path"], row["size_bytes"], row["num_records"] or 0, partition, stats)
