"""Queries of state tables, answered by DuckDB without Spark in bounded memory, and rows distributed over files by
hash."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ferryman import limits
from ferryman.storage import parquet
from ferryman.storage.files import damage_of, local_path

if TYPE_CHECKING:
    import pyarrow.dataset as ds  # loads pandas

_BATCH: Final = 65_536
"""Rows that a stream has in memory at a time."""


@contextlib.contextmanager
def connect(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open an in-memory database that spills into ``folder`` beyond ``limits.QUERY_MEMORY``."""
    try:
        database = idle_databases.pop()  # not checked before: another thread may be faster
    except IndexError:
        database = duckdb.connect(":memory:")
    spill = folder / "spill"
    threads = min(limits.QUERY_THREADS, len(os.sched_getaffinity(0)))
    try:
        db = database.cursor()
        try:
            db.execute(
                f"SET memory_limit = '{limits.QUERY_MEMORY}'; SET threads = {threads}; "
                f"SET temp_directory = {quote(str(spill))}; SET TimeZone = 'UTC'"
            )
            yield db
        finally:
            db.close()
    except BaseException:
        database.close()
        raise
    else:
        if idle_databases or spill.exists():  # it cannot spill into another folder any more
            database.close()
        else:
            idle_databases.append(database)
    finally:
        pa.default_memory_pool().release_unused()  # whatever Arrow datasets are reading for it


idle_databases: Final[list[duckdb.DuckDBPyConnection]] = []
"""Database kept for the next query, since opening one takes 30 ms, longer than most queries. It has no tables:
everything that a query creates belongs to its own cursor."""


def _close_idle_databases() -> None:
    """Close idle databases before a fork: a child would inherit them without their threads, and hang when it ends."""
    while idle_databases:
        idle_databases.pop().close()


os.register_at_fork(before=_close_idle_databases)


def register(db: duckdb.DuckDBPyConnection, name: str, paths: Sequence[Path], schema: pa.Schema) -> None:
    """Register data files as a view of this name, after verifying their checksums; for files of which nearly everything
    is read.

    DuckDB then reads the files itself, without checksums, which is faster than through an Arrow dataset and takes a
    third of the memory. Use ``parquet.scan`` for files of which only a little is read.

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


def select_rows(
    paths: Sequence[Path], schema: pa.Schema, columns: Collection[str], condition: pc.Expression, keys: Collection[str]
) -> Iterator[pa.RecordBatch]:
    """Yield these columns of the rows of data files that pass a condition, of two row groups in memory at a time; page
    checksums are verified.

    Row groups that cannot have such rows by their statistics are not read. Of the others the condition's columns are
    read first, and more only if a row passes.

    Args:
        keys: columns of the condition.

    Raises:
        StateDamaged: names the file.
    """
    if not paths:
        return
    is_narrow = set(columns) <= set(keys)
    wanted = pa.schema([schema.field(name) for name in columns])

    def select(group: ds.ParquetFileFragment) -> list[pa.RecordBatch]:
        try:
            if not is_narrow and not group.count_rows(filter=condition):
                return []
            rows: pa.Table = group.to_table(schema=schema, columns=list(columns), filter=condition).cast(wanted)
            return list(rows.to_batches())
        except (OSError, pa.ArrowException) as e:
            raise parquet.damage_error(Path(group.path), e) from e

    def groups() -> Iterator[ds.ParquetFileFragment]:
        for fragment in parquet.scan(paths, schema).get_fragments():
            try:
                yield from fragment.split_by_row_group(condition, schema)
            except (OSError, pa.ArrowException) as e:
                raise parquet.damage_error(Path(fragment.path), e) from e

    with ThreadPoolExecutor(_SELECTED_AT_ONCE, thread_name_prefix="ferryman-query") as pool:
        waiting: deque[Future[list[pa.RecordBatch]]] = deque()
        for group in groups():
            waiting.append(pool.submit(select, group))
            if len(waiting) == _SELECTED_AT_ONCE:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


_SELECTED_AT_ONCE: Final = 2
"""Row groups that a selection reads at once: decoding one keeps a single core busy."""


def gather(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield small batches together: each insertion takes DuckDB some milliseconds, however few rows it has."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= _INSERTED_BYTES:
            yield pa.Table.from_batches(waiting).combine_chunks()
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting).combine_chunks()


def spool(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Path | pa.Table:
    """Store batches for queries: few in memory, more in a file. A table of DuckDB with as many rows would take several
    times the room as soon as DuckDB spills it, and twice the time before.

    Raises:
        OSError: the disk is full.
    """
    tables = gather(batches)
    first = next(tables, schema.empty_table())
    if first.nbytes < _INSERTED_BYTES:
        return first
    with pq.ParquetWriter(
        path, schema, compression="none", use_dictionary=False, write_statistics=False, store_schema=False
    ) as writer:
        for table in chain([first], tables):
            writer.write_table(table)
    return path


def register_spooled(db: duckdb.DuckDBPyConnection, name: str, rows: Path | pa.Table) -> None:
    """Make rows that ``spool`` has stored a view of this name."""
    if isinstance(rows, Path):
        db.execute(f"CREATE TEMP VIEW {name} AS SELECT * FROM read_parquet({quote(str(rows))})")
    else:
        db.register(name, rows)


def verify(paths: Iterable[Path]) -> None:
    """Verify the checksums of data files.

    Raises:
        StateDamaged: names the file.
    """
    for path in paths:
        if (what := parquet.find_damage(path)) is not None:
            raise damage_of(path, what)


def stream(
    db: duckdb.DuckDBPyConnection, query: str, schema: pa.Schema, most_rows: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield a query's rows in these columns in bounded batches; until the last one, the connection can run no other
    query.

    A text in a column that the schema declares as unsigned is hashed, see ``hash_texts``.

    Args:
        most_rows: upper bound of the number of rows, if the caller knows one.
    """
    if most_rows is not None and most_rows <= _FEW_ROWS:
        found = db.execute(query)
        is_text = [each[1] == "VARCHAR" for each in found.description or []]
        if rows := found.fetchall():
            columns = [
                _to_array(values, field.type, text)
                for values, field, text in zip(zip(*rows, strict=True), schema, is_text, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
        return
    for batch in _read_ahead(db.sql(query).to_arrow_reader(_BATCH)):
        if batch.num_rows:
            columns = [_convert(batch.column(i), field.type) for i, field in enumerate(schema)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _read_ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches. If there are many, a thread fetches the next one while the caller processes the current
    one."""
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


_FEW_ROWS: Final = 512
"""Rows that are fetched as values of Python: a stream of Arrow takes DuckDB two milliseconds longer to begin."""

_READ_AHEAD_ROWS: Final = 8_192
"""Rows of the first batch from which on enough rows may follow to be worth a thread."""


def read_rows(
    db: duckdb.DuckDBPyConnection,
    paths: Sequence[Path | str],
    columns: str,
    schema: pa.Schema,
    where: str = "true",
    *,
    most_rows: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield rows of data files in the order of the files, in bounded batches. Small files are read together: a query of
    one file takes milliseconds, however few rows it has.

    Args:
        columns, where: SQL; ``file`` is the index of the row's path, ``file_row_number`` its place in that file.
        schema: of the columns.
        most_rows: upper bound of the number of rows, see ``stream``.
    """
    first = 0
    for group in _group_small_files(list(map(local_path, paths))):
        files = quote_list(group)
        file = f"list_position({files}, filename) - 1 + {first}" if len(group) > 1 else str(first)
        rows = f"SELECT *, {file} AS file FROM read_parquet({files}, file_row_number = true, filename = true)"
        yield from stream(db, f"SELECT {columns} FROM ({rows}) WHERE {where}", schema, most_rows)
        first += len(group)


_SMALL_BYTES: Final = 256 * 1024
"""Total size of a view's files up to which they are read into memory, since each query that opens files takes a
millisecond longer."""

_INSERTED_BYTES: Final = 8 << 20
"""Size of batches that are inserted, or written to a file, together."""

_GROUP_BYTES: Final = 1 << 20
"""Size of files that one query reads; a larger file is read by itself."""


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
        return _hash_array(column)
    return column.cast(kind)


def _to_array(values: Sequence[Any], kind: pa.DataType, is_text: bool) -> pa.Array:
    if kind == pa.uint64() and is_text:
        return _hash_array(pa.array(values, pa.string()))
    return pa.array(values, kind)


def _hash_array(texts: pa.Array) -> pa.Array:
    """Return ``hash_texts`` as a column. ``pa.array`` loads a part of NumPy that nothing else in a small run needs."""
    return pa.Array.from_buffers(pa.uint64(), len(texts), [None, pa.py_buffer(hash_texts(texts))])


def quote_list(texts: Iterable[str]) -> str:
    """Return texts as a list in SQL."""
    return f"[{', '.join(map(quote, texts))}]"


def quote(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


# --- rows distributed over files by hash, so that each file can be processed by itself in bounded memory ---

_MAX_PARTITIONS: Final = 256
"""Maximum number of files that one ``PartitionFiles`` has open; processes may have 1024."""

_BITS: Final = 24
"""Bits of a hash that ``HashFilter`` distinguishes: 16 MB, and with a million hashes one in sixteen others is a false
positive."""


def partitions_for(rows: int, size: int, most_rows: int, most_bytes: int) -> int:
    """Return the number of partitions, a power of two, for so many rows of so many bytes."""
    wanted = max(-(-rows // most_rows), -(-size // most_bytes), 1)
    return int(min(_MAX_PARTITIONS, 1 << (wanted - 1).bit_length()))


def hash_texts(texts: pa.Array) -> np.ndarray[Any, Any]:
    """Return 64-bit hashes of texts, valid in this process only.

    They are computed by Python: DuckDB's hash has a thousand collisions among 400 000 file names. Each text gets a
    secret prefix, so nobody can choose names that collide.
    """
    prefixed = pc.binary_join_element_wise(_SECRET, texts.cast(pa.string()), "")
    return np.fromiter(map(hash, prefixed.to_pylist()), np.int64, len(texts)).view(np.uint64)


_SECRET: Final = os.urandom(16).hex()


def partition_of(hashes: np.ndarray[Any, Any], parts: int) -> np.ndarray[Any, Any]:
    """Return the partition of each hash, by its highest bits."""
    if parts == 1:
        return np.zeros(len(hashes), np.int64)
    return (hashes >> np.uint64(64 - (parts.bit_length() - 1))).astype(np.int64)


def look_up(hashes: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Return the position of each wanted hash among ascending hashes, and whether it is present. Looking up ascending
    hashes takes a sixth of the time."""
    at = np.minimum(np.searchsorted(hashes, wanted), max(0, len(hashes) - 1))
    return at, hashes[at] == wanted if len(hashes) else np.zeros(len(wanted), bool)


class HashFilter:
    """Set of hashes that may report false positives."""

    def __init__(self) -> None:
        self._bits = np.zeros(1 << _BITS, bool)

    def add(self, hashes: np.ndarray[Any, Any]) -> None:
        """Add these hashes."""
        self._bits[self._positions(hashes)] = True

    def contains(self, hashes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return, for each of these hashes, whether it may be in the set."""
        found: np.ndarray[Any, Any] = self._bits[self._positions(hashes)]
        return found

    @staticmethod
    def _positions(hashes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return hashes & np.uint64((1 << _BITS) - 1)


class PartitionFiles:
    """Rows distributed over ``parts`` files: first all rows are added, then they are read.

    Args:
        name: prefix of its files in ``folder``, unique there.
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
        """Append rows, each to its partition."""
        if not rows.num_rows:
            return
        self.rows += rows.num_rows
        if self._parts == 1:
            self._writer(0).write_batch(rows)
            return
        parts = parts.astype(np.uint16)  # numpy sorts these ten times as fast as integers of 64 bits
        rows = rows.take(parquet.number_array(np.argsort(parts, kind="stable")))
        start = 0
        for part, number in enumerate(np.bincount(parts).tolist()):
            if number:
                self._writer(part).write_batch(rows.slice(start, number))
            start += number

    def close(self) -> None:
        """Finish writing."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def read(self, part: int = 0) -> pa.Table:
        """Return all rows of a partition, in the order in which they were added."""
        return pa.Table.from_batches(self.batches(part), schema=self._schema)

    def batches(self, part: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition as they were written: few in memory at a time."""
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
    """Return the rows whose hash has this value of a bit, counted from the lowest."""
    bits = (rows["h"].to_numpy() >> np.uint64(depth)) & np.uint64(1)
    return rows.filter(pa.array(bits == half)).combine_chunks()
