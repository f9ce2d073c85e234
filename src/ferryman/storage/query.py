"""Questions to state tables, answered by DuckDB: no Spark, bounded memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import duckdb

from ferryman import settings


@contextlib.contextmanager
def connect(spill: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory that spills into ``spill`` (or not at all) beyond ``settings.QUERY_MEMORY``."""
    config: dict[str, str | bool | int | float | list[str]] = {"memory_limit": settings.QUERY_MEMORY}
    if spill is not None:
        config["temp_directory"] = str(spill / "spill")
    db = duckdb.connect(":memory:", config=config)
    try:
        db.execute("SET TimeZone = 'UTC'")
        yield db
    finally:
        db.close()
