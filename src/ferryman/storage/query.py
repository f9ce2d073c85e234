"""Questions to state tables, answered by DuckDB: no Spark, bounded memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from ferryman import limits
from ferryman.errors import StateDamaged
from ferryman.storage import parquet
from ferryman.storage.files import here
from ferryman.storage.spread import hashed

_BATCH: Final = 65_536
"""Rows that a stream has in memory at a time."""


@contextlib.contextmanager
def connect(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory that spills into ``folder`` beyond ``limits.QUERY_MEMORY``."""
    try:
        database = _kept.pop()  # no look before: another thread may be quicker
    except IndexError:
        database = duckdb.connect(":memory:")
    spill = folder / "spill"
    try:
        db = database.cursor()
        try:
            db.execute(
                f"SET memory_limit = '{limits.QUERY_MEMORY}'; SET threads = {limits.QUERY_THREADS}; "
                f"SET temp_directory = {quoted(str(spill))}; SET TimeZone = 'UTC'"
            )
            yield db
        finally:
            db.close()
    except BaseException:
        database.close()
        raise
    else:
        if _kept or spill.exists():  # it cannot spill into another folder any more
            database.close()
        else:
            _kept.append(database)
    finally:
        pa.default_memory_pool().release_unused()  # what Arrow datasets read for it


_kept: Final[list[duckdb.DuckDBPyConnection]] = []
"""A database for the next question: to make one takes 30 ms, more than most questions. It has no tables: what a
question makes belongs to its own cursor."""


def _close_kept() -> None:
    """A child would inherit it without its threads, and wait for them when it ends."""
    while _kept:
        _kept.pop().close()


os.register_at_fork(before=_close_kept)


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
    db.execute(f"CREATE TEMP VIEW {name} AS SELECT {columns} FROM read_parquet({quoted_list(map(str, paths))})")


def verify(paths: Iterable[Path]) -> None:
    """Compare data files with their checksums.

    Raises:
        StateDamaged: names the file.
    """
    for path in paths:
        if (what := parquet.verify(path)) is not None:
            raise StateDamaged(str(path), what)


def stream(db: duckdb.DuckDBPyConnection, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A query's rows in these columns, few at a time; until the last one the connection answers nothing else.

    A text that comes where the schema has an unsigned number is hashed, see ``spread.hashed``.
    """
    for batch in _read_ahead(db.sql(query).to_arrow_reader(_BATCH)):
        if batch.num_rows:
            columns = [_as(batch.column(i), field.type) for i, field in enumerate(schema)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _read_ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same. Of several the next one is made in a thread while the caller is busy with the one before."""
    batch = next(batches, None)
    if batch is None or batch.num_rows < _LEAST_AHEAD:
        if batch is not None:
            yield batch
        yield from batches
        return
    with ThreadPoolExecutor(1, thread_name_prefix="ferryman-query") as pool:
        while batch is not None:
            following = pool.submit(next, batches, None)
            yield batch
            batch = following.result()


_LEAST_AHEAD: Final = 8_192
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
    for group in _together(list(map(here, paths))):
        files = quoted_list(group)
        file = f"list_position({files}, filename) - 1 + {first}" if len(group) > 1 else str(first)
        rows = f"SELECT *, {file} AS file FROM read_parquet({files}, file_row_number = true, filename = true)"
        yield from stream(db, f"SELECT {columns} FROM ({rows}) WHERE {where}", schema)
        first += len(group)


_SMALL_BYTES: Final = 256 * 1024
"""Files of a view that are read into memory: each query that opens them takes a millisecond longer."""

_TOGETHER_BYTES: Final = 1 << 20
"""Files that one query reads; a larger one is read by itself."""


def _together(paths: Sequence[str]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for path in paths:
        size += (own := os.path.getsize(path))
        if group and size > _TOGETHER_BYTES:
            yield group
            group, size = [], own
        group.append(path)
    if group:
        yield group


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind == pa.uint64() and column.type != kind:
        return pa.array(hashed(column))
    return column.cast(kind)


def quoted_list(texts: Iterable[str]) -> str:
    """Texts as a list in SQL."""
    return f"[{', '.join(map(quoted, texts))}]"


def quoted(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"
