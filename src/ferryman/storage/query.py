"""Questions to state tables, answered by DuckDB: no Spark, bounded memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from ferryman import limits
from ferryman.errors import StateDamaged
from ferryman.storage import parquet
from ferryman.storage.files import local_path

_BATCH: Final = 65_536
"""Rows that a stream has in memory at a time."""


@contextlib.contextmanager
def connect(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory that spills into ``folder`` beyond ``limits.QUERY_MEMORY``."""
    try:
        database = _idle_databases.pop()  # no look before: another thread may be quicker
    except IndexError:
        database = duckdb.connect(":memory:")
    spill = folder / "spill"
    try:
        db = database.cursor()
        try:
            db.execute(
                f"SET memory_limit = '{limits.QUERY_MEMORY}'; SET threads = {limits.QUERY_THREADS}; "
                f"SET temp_directory = {quote(str(spill))}; SET TimeZone = 'UTC'"
            )
            yield db
        finally:
            db.close()
    except BaseException:
        database.close()
        raise
    else:
        if _idle_databases or spill.exists():  # it cannot spill into another folder any more
            database.close()
        else:
            _idle_databases.append(database)
    finally:
        pa.default_memory_pool().release_unused()  # what Arrow datasets read for it


_idle_databases: Final[list[duckdb.DuckDBPyConnection]] = []
"""A database for the next question: to make one takes 30 ms, more than most questions. It has no tables: what a
question makes belongs to its own cursor."""


def _close_idle_databases() -> None:
    """A child would inherit it without its threads, and wait for them when it ends."""
    while _idle_databases:
        _idle_databases.pop().close()


os.register_at_fork(before=_close_idle_databases)


def register(db: duckdb.DuckDBPyConnection, name: str, paths: Sequence[Path], schema: pa.Schema) -> None:
    """Data files of which nearly all is read, as a view of this name; each is first compared with its checksum.

    DuckDB reads them itself: it compares no checksums, but takes less time than through an Arrow dataset, and a third
    of the memory. For files of which little is read there is ``parquet.scan``.

    Raises:
        StateDamaged: names the file.
    """
    if not paths:
        db.register(name, schema.empty_table())
        return
    verify(paths)
    if sum(os.path.getsize(path) for path in paths) <= _SMALL_BYTES:
        db.register(name, pa.concat_tables([parquet.read_part(path, schema.names) for path in paths]))
        return
    columns = ", ".join(f'"{column}"' for column in schema.names)
    db.execute(f"CREATE TEMP VIEW {name} AS SELECT {columns} FROM read_parquet({quote_list(map(str, paths))})")


def verify(paths: Iterable[Path]) -> None:
    """Compare data files with their checksums.

    Raises:
        StateDamaged: names the file.
    """
    for path in paths:
        if (what := parquet.find_damage(path)) is not None:
            raise StateDamaged(str(path), what)


def stream(db: duckdb.DuckDBPyConnection, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A query's rows in these columns, few at a time; until the last one the connection answers nothing else.

    A text that comes where the schema has an unsigned number is hashed, see ``spread.hashed``.
    """
    for batch in _read_ahead(db.sql(query).to_arrow_reader(_BATCH)):
        if batch.num_rows:
            columns = [_convert(batch.column(i), field.type) for i, field in enumerate(schema)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _read_ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same. Of several the next one is made in a thread while the caller is busy with the one before."""
    batch = next(batches, None)
    if batch is None or batch.num_rows < _READ_AHEAD_ROWS:
        if batch is not None:
            yield batch
        yield from batches
        return
    with ThreadPoolExecutor(1, thread_name_prefix="ferryman-query") as pool:
        while batch is not None:
            following = pool.submit(next, batches, None)
            yield batch
            batch = following.result()


_READ_AHEAD_ROWS: Final = 8_192
"""Rows of a first batch from which there may be so many more that a thread is worth its start."""


def read_rows(
    db: duckdb.DuckDBPyConnection, paths: Sequence[Path | str], columns: str, schema: pa.Schema, where: str = "true"
) -> Iterator[pa.RecordBatch]:
    """Rows of data files in the order of the files, few at a time. Small files are read together: a query of one file
    takes milliseconds, however few rows there are.

    Args:
        columns, where: SQL; ``file`` is the number of the row's path, ``file_row_number`` its place in that file.
        schema: of the columns.
    """
    first = 0
    for group in _group_small_files(list(map(local_path, paths))):
        files = quote_list(group)
        file = f"list_position({files}, filename) - 1 + {first}" if len(group) > 1 else str(first)
        rows = f"SELECT *, {file} AS file FROM read_parquet({files}, file_row_number = true, filename = true)"
        yield from stream(db, f"SELECT {columns} FROM ({rows}) WHERE {where}", schema)
        first += len(group)


_SMALL_BYTES: Final = 256 * 1024
"""Files of a view that are read into memory: each query that opens them takes a millisecond longer."""

_GROUP_BYTES: Final = 1 << 20
"""Files that one query reads; a larger one is read by itself."""


def _group_small_files(paths: Sequence[str]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for path in paths:
        size += (own := os.path.getsize(path))
        if group and size > _GROUP_BYTES:
            yield group
            group, size = [], own
        group.append(path)
    if group:
        yield group


def _convert(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind == pa.uint64() and column.type != kind:
        return pa.array(hash_texts(column))
    return column.cast(kind)


def quote_list(texts: Iterable[str]) -> str:
    """Texts as a list in SQL."""
    return f"[{', '.join(map(quote, texts))}]"


def quote(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"


# Rows dealt out to files by number, so that each file can be looked at by itself in a bounded memory.

_MAX_PARTITIONS: Final = 256
"""Files that one spread has open at most: processes may have 1024."""

_BITS: Final = 24
"""Of a hash that ``Marks`` tells apart: 16 MB, and of a million hashes one in sixteen others is mistaken."""


def partitions_for(rows: int, size: int, most_rows: int, most_bytes: int) -> int:
    """Into how many parts so many rows of so many bytes are dealt by their hashes: a power of two."""
    wanted = max(-(-rows // most_rows), -(-size // most_bytes), 1)
    return int(min(_MAX_PARTITIONS, 1 << (wanted - 1).bit_length()))


def hash_texts(texts: pa.Array) -> np.ndarray[Any, Any]:
    """Texts as hashes of 64 bits that are the same in this process only.

    Python's own: the query engine's has a thousand pairs of the same hash among 400 000 names of files, and nobody can
    choose names so that this one has.
    """
    return np.fromiter(map(hash, texts.to_pylist()), np.int64, len(texts)).view(np.uint64)


def partition_of(hashes: np.ndarray[Any, Any], parts: int) -> np.ndarray[Any, Any]:
    """The part of each hash, by its highest bits."""
    if parts == 1:
        return np.zeros(len(hashes), np.int64)
    return (hashes >> np.uint64(64 - (parts.bit_length() - 1))).astype(np.int64)


def look_up(hashes: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Where each wanted one is among hashes that ascend, and whether it is there at all. To look up what ascends, too,
    takes a sixth of the time."""
    at = np.minimum(np.searchsorted(hashes, wanted), max(0, len(hashes) - 1))
    return at, hashes[at] == wanted if len(hashes) else np.zeros(len(wanted), bool)


class HashFilter:
    """Which hashes have been marked; of some others, too, it says that they are."""

    def __init__(self) -> None:
        self._bits = np.zeros(1 << _BITS, bool)

    def add(self, hashes: np.ndarray[Any, Any]) -> None:
        """Mark these."""
        self._bits[self._positions(hashes)] = True

    def contains(self, hashes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Of each of these, is it marked?"""
        found: np.ndarray[Any, Any] = self._bits[self._positions(hashes)]
        return found

    @staticmethod
    def _positions(hashes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return hashes & np.uint64((1 << _BITS) - 1)


class PartitionFiles:
    """Rows in ``parts`` files; first all are added, then they are read.

    Args:
        name: of its files in ``folder``; no other spread there has it.
    """

    def __init__(self, folder: Path, name: str, schema: pa.Schema, parts: int = 1) -> None:
        self._folder = folder
        self._name = name
        self._schema = schema
        self._parts = parts
        self._writers: dict[int, pa.RecordBatchFileWriter] = {}
        self._written: set[int] = set()
        self.rows = 0

    def add(self, rows: pa.RecordBatch, parts: np.ndarray[Any, Any]) -> None:
        """Append rows, each to its part."""
        if not rows.num_rows:
            return
        self.rows += rows.num_rows
        if self._parts == 1:
            self._writer(0).write_batch(rows)
            return
        order = np.argsort(parts, kind="stable")
        rows, parts = rows.take(pa.array(order)), parts[order]
        found = np.unique(parts)
        ends = np.searchsorted(parts, found, side="right")
        start = 0
        for part, end in zip(found.tolist(), ends.tolist(), strict=True):
            self._writer(part).write_batch(rows.slice(start, end - start))
            start = end

    def close(self) -> None:
        """All are added."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def read(self, part: int = 0) -> pa.Table:
        """All rows of a part, in the order in which they were added."""
        return pa.Table.from_batches(self.batches(part), schema=self._schema)

    def batches(self, part: int = 0) -> Iterator[pa.RecordBatch]:
        """The same, as they were written: few in memory at a time."""
        if part in self._written:
            with pa.OSFile(str(self._path(part))) as file, pa.ipc.open_file(file) as reader:
                for i in range(reader.num_record_batches):
                    yield reader.get_batch(i)

    def _writer(self, part: int) -> Any:
        if part not in self._writers:
            self._written.add(part)
            self._writers[part] = pa.ipc.new_file(str(self._path(part)), self._schema)
        return self._writers[part]

    def _path(self, part: int) -> Path:
        return self._folder / f"{self._name}-{part:04d}.arrow"


def select_half(rows: pa.Table, depth: int, half: int) -> pa.Table:
    """Rows whose hash has this bit, counted from its lowest."""
    bits = (rows["h"].to_numpy() >> np.uint64(depth)) & np.uint64(1)
    return rows.filter(pa.array(bits == half)).combine_chunks()
