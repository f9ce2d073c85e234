"""Load a Parquet table with dlt into PostgreSQL, SQLite or DuckDB, for ``bench.trips``.

    python dlt_load.py merge|replace ROWS postgres|sqlite|duckdb URL FOLDER

``merge`` is dlt's incremental loading: rows whose cursor, the column ``updated``, is not below the highest seen, merged
by their key. ``replace`` loads all rows each time. Rows are given as Arrow tables, which dlt passes through, and
PostgreSQL gets them as CSV, which its guide names as the fastest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"  # read at import

import dlt
import pyarrow as pa
import pyarrow.parquet as pq

HOW, ROWS, WHERE, URL, FOLDER = sys.argv[1:]
FORMATS = {"postgres": "csv", "duckdb": "parquet"}


def tables() -> Iterator[pa.Table]:
    """Yield the parts of the table."""
    for part in sorted(Path(ROWS).glob("*.parquet")):
        yield pq.read_table(part)


def changed(updated: Any = dlt.sources.incremental("updated")) -> Iterator[pa.Table]:
    yield from tables()


def main() -> None:
    destinations = {
        "postgres": lambda: dlt.destinations.postgres(URL),
        "sqlite": lambda: dlt.destinations.sqlalchemy(f"sqlite:///{URL}"),
        "duckdb": lambda: dlt.destinations.duckdb(URL),
    }
    pipeline = dlt.pipeline(
        "trip",
        pipelines_dir=FOLDER,
        destination=destinations[WHERE](),
        dataset_name="main" if WHERE == "sqlite" else "trip",
    )
    rows = changed if HOW == "merge" else tables
    resource = dlt.resource(rows, name="documents", primary_key="id", write_disposition=HOW)
    pipeline.run(resource(), loader_file_format=FORMATS.get(WHERE))


if __name__ == "__main__":
    main()
