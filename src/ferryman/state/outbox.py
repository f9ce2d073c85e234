"""Outbox files: written and read a row group at a time, for their content may be larger than memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from ferryman.records.keys import lane_number
from ferryman.records.rows import OUTBOX_FILE, OUTBOX_KEPT
from ferryman.storage.delta import DataFile
from ferryman.storage.files import StatePath
from ferryman.storage.parquet import Part, PartWriter, RowGroups

_STATISTICS: Final = ("due", "origin", "key_hash")
"""Columns of which a file's statistics say the least and the greatest value."""


class OutboxWriter:
    """An outbox file in the making.

    Its statistics say what a wave must know without opening it: when its rows are due, of which origins they are, and
    of which keys, if they are exports.

    Args:
        epoch: of the driver, see ``storage.parquet.PartWriter``.

    Attributes:
        rows: written so far.
        size: their bytes, not compressed.
    """

    def __init__(self, folder: StatePath, *, epoch: int) -> None:
        self._folder = folder
        self._epoch = epoch
        self._file: PartWriter | None = None
        self._waiting_for_review = self._without_key = 0
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}
        self.rows = 0
        self.size = 0

    def write(self, table: pa.Table) -> None:
        """Append rows in ``OUTBOX_FILE``'s columns."""
        if not table.num_rows:
            return
        if self._file is None:
            self._file = PartWriter(self._folder, OUTBOX_FILE, epoch=self._epoch)
        self._file.write(table)
        self.rows += table.num_rows
        self.size += table.nbytes
        self._waiting_for_review += table["due"].null_count
        self._without_key += table["key_hash"].null_count
        for name in _STATISTICS:
            least, greatest = pc.min_max(table[name]).as_py().values()
            if least is not None:
                self._least[name] = min(least, self._least.get(name, least))
                self._greatest[name] = max(greatest, self._greatest.get(name, greatest))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abandon()

    def abandon(self) -> None:
        """Forget the file."""
        if self._file is not None:
            self._file.abandon()

    def finish(self) -> Part | None:
        """The file, fsynced; None if no row was written."""
        if self._file is None:
            return None
        stats = {
            "nullCount": {"due": self._waiting_for_review, "key_hash": self._without_key},
            "minValues": self._least,
            "maxValues": self._greatest,
        }
        return self._file.finish(stats)


def row_groups(path: Path, empty: Collection[int] = ()) -> Iterator[pa.Table]:
    """Rows of an outbox file, a table a row group, verified.

    Args:
        empty: groups of which the content is not read: they come with nulls in its place.

    Raises:
        StateDamaged: the file is missing, or not what was written.
    """
    with RowGroups(str(path), OUTBOX_FILE.names, verified=True) as groups:
        for number in range(groups.count):
            yield groups.group(number) if number not in empty else _without_content(path, number)


def _without_content(path: Path, group: int) -> pa.Table:
    with RowGroups(str(path), OUTBOX_KEPT, verified=True) as groups:
        rows = groups.group(group)
    columns = {field.name: pa.nulls(rows.num_rows, field.type) for field in OUTBOX_FILE}
    return pa.table(columns | {name: rows[name] for name in rows.column_names})


def split_family(before: DataFile, after: DataFile) -> bool:
    """May ``after`` go on with a family of which ``before`` has the first rows? ``before`` is the file before it.

    A family that is too large for one file goes on in files of its own, so all of their rows have one origin.
    """
    if before.partition["wave"] != after.partition["wave"]:
        return False
    (least, greatest), (first, last) = _origins(before), _origins(after)
    return first == last and least <= first <= greatest


def _origins(file: DataFile) -> tuple[str, str]:
    return str(file.stats["minValues"]["origin"]), str(file.stats["maxValues"]["origin"])


def due_stats(dues: Sequence[int | None]) -> dict[str, Any]:
    """Delta statistics of an outbox file's ``due``: what a wave must know without opening it."""
    owed = [d for d in dues if d is not None]
    stats: dict[str, Any] = {"nullCount": {"due": len(dues) - len(owed)}}
    if owed:
        stats |= {"minValues": {"due": min(owed)}, "maxValues": {"due": max(owed)}}
    return stats


def first_sequence(file: DataFile) -> int:
    """An outbox file's key."""
    return int(file.partition["first_sequence"])


def pending_rows(file: DataFile) -> int:
    """Rows of an outbox file that are still to be sent (the others are held for review)."""
    return file.rows - int(file.stats.get("nullCount", {}).get("due", 0))


def has_exports(file: DataFile) -> bool:
    """Has an outbox file rows of what a keyed node exports?"""
    return "key_hash" in file.stats.get("minValues", {})


def has_other_rows(file: DataFile) -> bool:
    """Has it other rows?"""
    return not has_exports(file) or bool(file.stats["nullCount"].get("key_hash", 0))


def lane_numbers(file: DataFile) -> range:
    """Of a file with exports: the lanes in which their keys may be."""
    least, greatest = (lane_number(int(file.stats[kind]["key_hash"])) for kind in ("minValues", "maxValues"))
    return range(least, greatest + 1)
