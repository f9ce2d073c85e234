"""Questions to state tables, answered by DuckDB: no Spark, bounded memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from ferryman import settings
from ferryman.errors import StateDamaged
from ferryman.storage import parquet


@contextlib.contextmanager
def connect(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory that spills into ``folder`` beyond ``settings.QUERY_MEMORY``."""
    db = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": settings.QUERY_MEMORY,
            "threads": settings.QUERY_THREADS,
            "temp_directory": str(folder / "spill"),
        },
    )
    try:
        db.execute("SET TimeZone = 'UTC'")
        yield db
    finally:
        db.close()
        pa.default_memory_pool().release_unused()  # what Arrow datasets read for it


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
    for path in paths:
        if (what := parquet.verify(path)) is not None:
            raise StateDamaged(str(path), what)
    columns = ", ".join(f'"{column}"' for column in schema.names)
    db.execute(f"CREATE TEMP VIEW {name} AS SELECT {columns} FROM read_parquet({quoted_list(map(str, paths))})")


def quoted_list(texts: Iterable[str]) -> str:
    """Texts as a list in SQL."""
    return f"[{', '.join(map(quoted, texts))}]"


def quoted(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"
