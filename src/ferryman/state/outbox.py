"""Outbox files, written and read one row group at a time, since their content may be larger than memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from ferryman.records.keys import lane_number
from ferryman.records.rows import OUTBOX_FILE, OUTBOX_SMALL
from ferryman.storage.delta import DataFile
from ferryman.storage.files import StatePath
from ferryman.storage.parquet import Part, PartWriter, RowGroups

_STATISTICS: Final = ("due", "origin", "key_hash")
"""Columns whose minimum and maximum are in a file's statistics."""


class OutboxWriter:
    """Writes an outbox file.

    The file's statistics have what a wave needs to know without opening the file: when its rows are due, their origins,
    and the keys of exports.

    Args:
        epoch: the driver's, see ``storage.parquet.PartWriter``.

    Attributes:
        rows: number of rows written so far.
        size: uncompressed bytes of these rows.
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
        """Delete the unfinished file."""
        if self._file is not None:
            self._file.abandon()

    def finish(self) -> Part | None:
        """Return the fsynced file; None if no row was written."""
        if self._file is None:
            return None
        stats = {
            "nullCount": {"due": self._waiting_for_review, "key_hash": self._without_key},
            "minValues": self._least,
            "maxValues": self._greatest,
        }
        return self._file.finish(stats)


def row_groups(path: Path, empty: Collection[int] = ()) -> Iterator[pa.Table]:
    """Yield the rows of an outbox file, one verified table per row group.

    Args:
        empty: numbers of row groups whose content is not read, but replaced by nulls.

    Raises:
        StateDamaged: the file is missing, or not what was written.
    """
    with RowGroups(str(path), OUTBOX_FILE.names, verified=True) as groups:
        for number in range(groups.count):
            yield groups.group(number) if number not in empty else _without_content(path, number)


def _without_content(path: Path, group: int) -> pa.Table:
    with RowGroups(str(path), OUTBOX_SMALL, verified=True) as groups:
        rows = groups.group(group)
    columns = {field.name: pa.nulls(rows.num_rows, field.type) for field in OUTBOX_FILE}
    return pa.table(columns | {name: rows[name] for name in rows.column_names})


def split_family(before: DataFile, after: DataFile) -> bool:
    """Return whether ``after`` may continue a family that begins in ``before``, the preceding file.

    A family too large for one file continues in files of its own, so all of their rows have one origin.
    """
    if before.partition["wave"] != after.partition["wave"]:
        return False
    (least, greatest), (first, last) = _origins(before), _origins(after)
    return first == last and least <= first <= greatest


def _origins(file: DataFile) -> tuple[str, str]:
    return str(file.stats["minValues"]["origin"]), str(file.stats["maxValues"]["origin"])


def due_stats(dues: Sequence[int | None]) -> dict[str, Any]:
    """Return Delta statistics of an outbox file's ``due`` column, so that a wave need not open the file."""
    pending = [d for d in dues if d is not None]
    stats: dict[str, Any] = {"nullCount": {"due": len(dues) - len(pending)}}
    if pending:
        stats |= {"minValues": {"due": min(pending)}, "maxValues": {"due": max(pending)}}
    return stats


def first_sequence(file: DataFile) -> int:
    """Return an outbox file's first sequence, which identifies it."""
    return int(file.partition["first_sequence"])


def pending_rows(file: DataFile) -> int:
    """Return the number of rows of an outbox file that are still to be sent; the others are held for review."""
    return file.rows - int(file.stats.get("nullCount", {}).get("due", 0))


def has_exports(file: DataFile) -> bool:
    """Return whether an outbox file has rows of exports of a keyed node."""
    return "key_hash" in file.stats.get("minValues", {})


def has_other_rows(file: DataFile) -> bool:
    """Return whether an outbox file has rows that are not exports."""
    return not has_exports(file) or bool(file.stats["nullCount"].get("key_hash", 0))


def lane_numbers(file: DataFile) -> range:
    """Return the lanes in which the keys of a file with exports may be."""
    least, greatest = (lane_number(int(file.stats[kind]["key_hash"])) for kind in ("minValues", "maxValues"))
    return range(least, greatest + 1)
