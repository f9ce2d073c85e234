"""Questions to state tables, answered by DuckDB: no Spark, bounded memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import duckdb

from ferryman import settings


@contextlib.contextmanager
def connect(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory that spills into ``folder`` beyond ``settings.QUERY_MEMORY``."""
    db = duckdb.connect(
        ":memory:", config={"memory_limit": settings.QUERY_MEMORY, "temp_directory": str(folder / "spill")}
    )
    try:
        db.execute("SET TimeZone = 'UTC'")
        yield db
    finally:
        db.close()
