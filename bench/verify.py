"""``ferryman verify`` of a table in SQLite, beside reading the same columns on both sides."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import duckdb

from bench import data, table_to_sqlite
from bench.harness import Row, Sizes, alternate, empty_folder, spark, time_row
from ferryman import run
from ferryman.verification import verify

TARGET = 2.0
_LEDGER = "document, source, destination, route, delivery_hash, wave, ordinal, operation, message, version, status"
_PAGE = 8192


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    rows = data.table(folder / f"rows-{sizes.documents}", sizes.documents)
    state = empty_folder(folder / "verify")
    plan = table_to_sqlite.plan(rows, state / "ours.db")
    run(plan, state=state, spark=spark())

    def ours() -> None:
        [target] = verify(plan, state=state).targets
        assert target.is_clean, target
        assert target.counts is not None
        assert target.counts.expected == sizes.documents

    def bare() -> None:
        [ledger] = state.glob("*/ledger")
        query = f"SELECT {_LEDGER} FROM read_parquet('{ledger}/**/*.parquet')"
        read = duckdb.connect().execute(query).to_arrow_reader(100_000)
        assert read is not None
        assert sum(batch.num_rows for batch in read) >= sizes.documents
        with sqlite3.connect(state / "ours.db") as db:
            cursor = db.execute("SELECT * FROM documents")
            found = 0
            while page := cursor.fetchmany(_PAGE):
                found += len(page)
        assert found == sizes.documents

    took, scan = alternate(sizes.rounds, ours, bare)
    yield time_row("verify, SQLite; a bare scan of both sides", sizes.documents, took, scan, TARGET)
