"""Data files of tables: Parquet with page checksums. A file's name holds the epoch of the driver it was written for,
and the CRC-32 of the file and of its footer.

Page checksums cover the pages alone. A flipped byte in the footer may rename a column, whose values are then read as
nulls; so every reader first compares a file's footer with its name.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ferryman import limits
from ferryman.errors import StateDamaged
from ferryman.limits import MIB
from ferryman.memory import lacks_memory
from ferryman.storage.disk import TEMPORARY
from ferryman.storage.files import StatePath, damage_of, local_copies, local_folder, local_path, move_to_state

if TYPE_CHECKING:
    import pyarrow.dataset as ds


_NAME = re.compile(r"[0-9]+-[0-9a-f]{32}-([0-9a-f]{8})-([0-9a-f]{8})\.parquet\Z")
_EPOCH = re.compile(rf"(?:{re.escape(TEMPORARY)})?([0-9]+)-[0-9a-f]{{32}}")
_TAIL: Final = 8
"""Bytes at the end of a file: the footer's length, and the magic number."""
_GROUP_ROWS: Final = 65_536
"""Rows of a row group: what a query reads at once."""
_STATUS: Final = pa.field("status", pa.string())
_NO_STATISTICS: Final = ("version", "delivery_hash", "fields", "raw", "given", "failed")
"""Columns whose least and greatest value are of no use: hashes, content, and what is kept of families."""


class Part(NamedTuple):
    """Data file that is written and fsynced, but not in any table yet."""

    path: str
    """File name in its table's folder."""
    size: int
    """Bytes."""
    rows: int
    stats: dict[str, Any] | None = None
    """Delta statistics beside the number of rows (``minValues`` …)."""


class PartWriter:
    """Writes a data file row group by row group, under a temporary name until ``finish``.

    Each row group is written to disk at once. In memory, a file would be copied each time its buffer grows, and fresh
    memory pages cost more than the pages of a file.

    Args:
        folder: the table's folder.
        epoch: epoch of the driver for which the file is written. It becomes part of the name, so that an older driver
            leaves the file alone.
    """

    def __init__(self, folder: StatePath, schema: pa.Schema, *, epoch: int) -> None:
        self._folder = folder
        self._name = f"{epoch}-{uuid.uuid4().hex}"
        self._temporary = local_folder(folder) / f"{TEMPORARY}{self._name}"
        self._writer = pq.ParquetWriter(
            str(self._temporary),
            schema,
            compression="lz4",
            write_page_checksum=True,
            write_statistics=[f.name for f in schema if f.name not in _NO_STATISTICS],
            use_dictionary=[f.name for f in schema if pa.types.is_dictionary(f.type)] or False,
            store_schema=False,
        )
        self._rare: list[pa.Table] = []
        """Events of rare statuses, not written yet."""
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        """Append rows as a row group, or several if they are many or large.

        Of events those of each frequent status are apart. All others wait until they fill a row group, or for the end
        of the file: so what has failed among a million deliveries is in few row groups, which a query finds by their
        statistics. Events of a delivery are ordered by wave and ordinal, not by their places in a file.
        """
        for group in _split_by_size(table):
            self._write_groups(_groups_of_statuses(group, self._rare) if _STATUS in list(table.schema) else [group])
        if sum(each.nbytes for each in self._rare) > limits.GROUP_BYTES:
            self._write_rare()
        self.rows += table.num_rows

    def _write_groups(self, groups: Iterable[pa.Table]) -> None:
        for group in groups:
            self._writer.write_table(group, row_group_size=_GROUP_ROWS)

    def _write_rare(self) -> None:
        """Write the events of rare statuses, of which some may have become frequent since."""
        if self._rare:
            held, self._rare = pa.concat_tables(self._rare), []
            self._write_groups(_groups_of_statuses(held, self._rare))
            self._write_groups(chain.from_iterable(map(_split_by_size, self._rare)))
            self._rare = []

    def abandon(self) -> None:
        """Delete the unfinished file, after an error."""
        with contextlib.suppress(pa.ArrowException, OSError):
            self._writer.close()
        self._temporary.unlink(missing_ok=True)

    def finish(self, stats: dict[str, Any] | None = None) -> Part:
        """Fsync the file and give it its name. Whoever publishes the name fsyncs the folder."""
        self._write_rare()
        self._writer.close()
        with self._temporary.open("rb", buffering=0) as file:
            os.fsync(file.fileno())
            crc, size = _crc(file)
            footer_crc = zlib.crc32(_footer(file))
        name = f"{self._name}-{crc:08x}-{footer_crc:08x}.parquet"
        move_to_state(self._temporary, self._folder / name)
        return Part(name, size, self.rows, stats)


def _groups_of_statuses(events: pa.Table, rare: list[pa.Table]) -> Iterator[pa.Table]:
    """Yield the events of each frequent status, or all if there is no other; add the others to ``rare``."""
    statuses, counts = pc.value_counts(events[_STATUS.name]).flatten()
    if len(statuses) == 1:
        yield events
        return
    for status, number in zip(statuses.to_pylist(), counts.to_pylist(), strict=True):
        if number >= limits.APART_EVENTS:
            is_apart = pc.is_in(events[_STATUS.name], value_set=pa.array([status], _STATUS.type))
            yield events.filter(is_apart)
            events = events.filter(pc.invert(is_apart))
    if events.num_rows:
        rare.append(events)


def _split_by_size(table: pa.Table) -> Iterator[pa.Table]:
    """Yield slices of the table of at most ``GROUP_BYTES``, or a single row: a reader holds a whole row group in
    memory."""
    if table.num_rows <= 1 or table.nbytes <= limits.GROUP_BYTES:
        yield table
        return
    half = table.num_rows // 2
    yield from _split_by_size(table.slice(0, half))
    yield from _split_by_size(table.slice(half))


def epoch_of(name: str) -> int:
    """Return the epoch in the name of a data file, finished or not; 0 if the name has none."""
    found = _EPOCH.match(name)
    return int(found[1]) if found else 0


def write_part(folder: StatePath, table: pa.Table, *, epoch: int, stats: dict[str, Any] | None = None) -> Part:
    """Write a whole table to one file, see ``PartWriter``."""
    writer = PartWriter(folder, table.schema, epoch=epoch)
    writer.write(table)
    return writer.finish(stats)


def read_part(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Return a data file's rows, page checksums verified.

    Raises:
        StateDamaged: the file is missing, or not what was written.
    """
    check_footer(path)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, memory_map=False) as file:
            return file.read(columns=columns, use_threads=False)
    except (OSError, pa.ArrowException) as e:
        raise damage_error(path, e) from e


def data_files(paths: Iterable[StatePath]) -> list[Path]:
    """Return data files as files of this machine: themselves, or copies of objects.

    Raises:
        StateDamaged: an object is missing; names it.
    """
    try:
        return local_copies(paths)
    except FileNotFoundError as e:
        raise StateDamaged(str(e.filename), "the file is missing") from e


def scan(paths: Iterable[Path], schema: pa.Schema) -> ds.Dataset:
    """Return data files as one dataset for queries; page checksums are verified while they are read.

    Raises:
        StateDamaged: a file is missing, or its footer is not what was written.
    """
    from pyarrow import dataset  # loaded where it is needed: it loads pandas, for a third of a second

    found = [str(p) for p in paths]
    for path in found:
        check_footer(Path(path))
    verifying = dataset.ParquetFragmentScanOptions(page_checksum_verification=True, pre_buffer=False)
    return dataset.dataset(
        found, schema=schema, format=dataset.ParquetFileFormat(default_fragment_scan_options=verifying)
    )


@lru_cache(maxsize=65_536)
def content_size(path: Path) -> int:
    """Return the bytes of a data file's rows, encoded but not compressed. Cached, because a file never changes.

    Raises:
        StateDamaged: the file is missing, or its footer is not what was written.
    """
    check_footer(path)
    try:
        metadata = pq.read_metadata(path)
    except (OSError, pa.ArrowException) as e:
        raise damage_error(path, e) from e
    return sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))


def find_damage(path: Path) -> str | None:
    """Read the whole file and return a description of its damage, or None."""
    try:
        with path.open("rb", buffering=0) as file:
            crc, _ = _crc(file)
    except OSError as e:
        return f"cannot be read ({e.strerror})"
    name = _NAME.match(path.name)
    if name is None:
        return "its name is not one that Ferryman gives"
    if crc != int(name[1], 16):
        return "its checksum does not match its content"
    return None


def check_footer(path: Path) -> None:
    """Check that the footer is the one that was written, with two small reads.

    Raises:
        StateDamaged: the file is missing, or its footer differs.
    """
    try:
        with path.open("rb", buffering=0) as file:
            footer = _footer(file)
    except OSError as e:
        raise damage_error(path, e) from e
    name = _NAME.match(path.name)
    if name is None or zlib.crc32(footer) != int(name[2], 16):
        raise damage_of(path, "the checksum of its footer does not match its content")


def _footer(file: FileIO) -> bytes:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    length = int.from_bytes(file.read(4), "little") + _TAIL
    file.seek(max(0, size - length))
    return file.read(min(length, size))


def _crc(file: FileIO) -> tuple[int, int]:
    """Return CRC-32 and size of a whole file."""
    buffer = memoryview(bytearray(min(MIB, os.fstat(file.fileno()).st_size + 1)))  # pages of memory that are new cost
    crc = size = 0
    while got := file.readinto(buffer):
        crc = zlib.crc32(buffer[:got], crc)
        size += got
    return crc, size


def damage_error(path: Path | str, error: Exception) -> StateDamaged:
    """Return the error for a data file, or an object given by its URL, that cannot be read.

    Raises:
        MemoryError: the error itself, if it is due to a lack of memory, since the file is not damaged then.
    """
    if lacks_memory(error):
        raise error
    if isinstance(error, FileNotFoundError):
        return damage_of(path, "the file is missing")
    return damage_of(path, f"cannot be read as Parquet ({str(error).splitlines()[0]})")


def uncompressed_bytes(path: str, columns: tuple[str, ...] | None = None) -> int:
    """Return the uncompressed size of these columns of a file, by default of all columns."""
    metadata = pq.read_metadata(local_path(path))
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    if columns is None:
        return sum(group.total_byte_size for group in groups)
    found = [group.column(n) for group in groups for n in range(group.num_columns)]
    return sum(c.total_uncompressed_size for c in found if c.path_in_schema in columns)


# --- files read by row number, one group of rows in memory at a time: Parquet's row groups, Arrow's record batches ---


def column_values(column: pa.ChunkedArray) -> list[Any]:
    """Return the column as Python values; skips conversion if all are null."""
    found: list[Any] = [None] * len(column) if column.null_count == len(column) else column.to_pylist()
    return found


def number_array(numbers: np.ndarray[Any, Any]) -> pa.Array:
    """Return an array of int64, in which what is negative is missing. ``pa.array`` loads pandas."""
    there = np.packbits(numbers >= 0, bitorder="little")
    buffers = [pa.py_buffer(there), pa.py_buffer(np.ascontiguousarray(numbers, np.int64))]
    return pa.Array.from_buffers(pa.int64(), len(numbers), buffers)


def numbers_of(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """Return a column of whole numbers as int64, with -1 for what is missing. ``to_numpy`` loads pandas."""
    found: np.ndarray[Any, Any] = np.from_dlpack(pc.fill_null(column.cast(pa.int64()), _MISSING).combine_chunks())
    return found


_MISSING: Final = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(np.array([-1], np.int64))])[0]


class GroupedRows(ABC):
    """Some columns of a file, read group by group. Each group is read only once if rows are read in order.

    Args:
        rows: number of rows of each group.
    """

    def __init__(self, path: str, rows: list[int]) -> None:
        self.path = path
        self._starts = np.concatenate(([0], np.cumsum(rows, dtype=np.int64)))
        self._group = -1
        self._table: pa.Table | None = None

    def rows_between(self, first: int, end: int) -> Iterator[pa.Table]:
        """Yield rows ``first`` ≤ n < ``end``, one table per group."""
        while first < end:
            group = self._group_of(first)
            start, stop = int(self._starts[group]), min(end, int(self._starts[group + 1]))
            yield self._load(group).slice(first - start, stop - first)
            first = stop

    def group(self, number: int) -> pa.Table:
        """Return the rows of this group."""
        return self._load(number)

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self._starts) - 1

    def all_rows(self) -> Iterator[pa.Table]:
        """Yield all rows, one table per group."""
        return self.rows_between(0, int(self._starts[-1]))

    def rows_at(self, rows: np.ndarray[Any, Any]) -> Iterator[pa.Table]:
        """Yield the rows of these ascending numbers, one table per group."""
        if rows[-1] - rows[0] + 1 == len(rows):
            yield from self.rows_between(int(rows[0]), int(rows[-1]) + 1)
            return
        at = 0
        while at < len(rows):
            group = self._group_of(rows[at])
            stop = int(np.searchsorted(rows, self._starts[group + 1]))
            yield self._load(group).take(number_array(rows[at:stop] - self._starts[group]))
            at = stop

    def next_group_start(self, row: int) -> int:
        """Return the first row of the group after this row's group."""
        return int(self._starts[self._group_of(row) + 1])

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _read(self, group: int) -> pa.Table: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _group_of(self, row: int) -> int:
        return int(np.searchsorted(self._starts, row, side="right")) - 1

    def _load(self, group: int) -> pa.Table:
        if self._table is None or group != self._group:
            self._table = None  # before the next one is read
            self._table = self._read(group)
            self._group = group
        return self._table


class RowGroups(GroupedRows):
    """Row groups of a Parquet file.

    Args:
        verified: set for a data file of the state, of which every page is compared with its checksum.

    Raises:
        StateDamaged: a data file is missing, or not what was written; later, any read may raise it too.
    """

    def __init__(self, path: str, columns: list[str], *, verified: bool = False) -> None:
        self._columns = columns
        path = local_path(path)
        if verified:
            check_footer(Path(path))
        self._file = pq.ParquetFile(path, page_checksum_verification=verified, memory_map=False)
        metadata = self._file.metadata
        super().__init__(path, [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)])

    def close(self) -> None:
        self._file.close()

    def size(self, group: int) -> int:
        """Return the number of rows of this group."""
        return int(self._starts[group + 1] - self._starts[group])

    def single_values(self, group: int) -> tuple[Any, ...] | None:
        """Return the value of each column if all rows of the group have the same; None: statistics do not say so."""
        found = self._file.metadata.row_group(group)
        values = []
        for name in self._columns:
            statistics = found.column(self._file.schema_arrow.get_field_index(name)).statistics
            if (
                statistics is None
                or not statistics.has_min_max
                or statistics.null_count
                or (statistics.min != statistics.max)
            ):
                return None
            values.append(statistics.min)
        return tuple(values)

    def _read(self, group: int) -> pa.Table:
        try:
            return self._file.read_row_group(group, columns=self._columns, use_threads=False)
        except (OSError, pa.ArrowException) as e:
            raise damage_error(Path(self.path), e) from e


def count_by(paths: Iterable[Path], columns: list[str]) -> Counter[tuple[Any, ...]]:
    """Count the rows of data files by their values in these columns. Row groups that have a single value in each, as
    their statistics say, are not read.

    Raises:
        StateDamaged: names the file.
    """
    counts: Counter[tuple[Any, ...]] = Counter()
    for path in paths:
        with RowGroups(str(path), columns, verified=True) as groups:
            for number in range(groups.count):
                if (values := groups.single_values(number)) is not None:
                    counts[values] += groups.size(number)
                    continue
                found = groups.group(number).group_by(columns).aggregate([([], "count_all")])
                for *row, rows in zip(*(found[name].to_pylist() for name in (*columns, "count_all")), strict=True):
                    counts[tuple(row)] += rows
    return counts


def combine_small_tables(tables: Iterable[pa.Table], most_rows: int = _GROUP_ROWS) -> Iterator[pa.Table]:
    """Yield larger tables made of small ones, each as large as a row group may be: a merged file has few of them."""
    held: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        if held and (rows + table.num_rows > most_rows or size + table.nbytes > limits.GROUP_BYTES):
            yield pa.concat_tables(held)
            held, rows, size = [], 0, 0
        held.append(table)
        rows += table.num_rows
        size += table.nbytes
    if held:
        yield pa.concat_tables(held)


class BatchGroups(GroupedRows):
    """Record batches of an Arrow IPC file, which needs no decoding. Its first column is small: the number of rows is
    read from it."""

    def __init__(self, path: str, columns: list[str]) -> None:
        self._file = pa.OSFile(local_path(path))
        schema = pa.ipc.open_file(self._file).schema
        first = self._reader([0])
        super().__init__(path, [first.get_batch(n).num_rows for n in range(first.num_record_batches)])
        self._batches = self._reader([schema.get_field_index(name) for name in columns])

    def close(self) -> None:
        self._file.close()

    def _reader(self, fields: list[int]) -> pa.RecordBatchFileReader:
        return pa.ipc.open_file(self._file, options=pa.ipc.IpcReadOptions(included_fields=fields))

    def _read(self, group: int) -> pa.Table:
        return pa.Table.from_batches([self._batches.get_batch(group)])
