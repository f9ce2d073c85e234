"""From a Parquet table into SQLite with full text, beside a plain loop of inserts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from bench import data, sqlite_loop
from bench.harness import Row, Sizes, alternate, empty_folder, phases, spark, speed_row
from ferryman import Document, Plan, run
from ferryman.destinations import Sql
from ferryman.sources import DataFrame

TARGET = 0.9
MOST = 1_000_000
"""Greatest number of documents; the time for each does not change beyond it."""
_DIGEST = "0" * 32
"""Version and delivery hash of the loop's rows, which it need not compute."""


def text_of(document: Document) -> Document:
    """Move the body to the text; the step."""
    document.raw = document.fields.pop("body").encode()
    return document


def plan(rows: Path, out: Path) -> Plan:
    plan = Plan("table-to-sqlite")
    source = plan.source("rows", DataFrame(lambda spark: spark.read.parquet(str(rows))))
    source.step("text", text_of).destination("index", Sql(f"sqlite:///{out}", full_text=["text"]))
    return plan


def same_rows(rows: Path) -> Iterator[sqlite_loop.Row]:
    """Yield the loop's rows, with the columns of the Sql destination's table."""
    number = 0
    for part in sorted(rows.glob("*.parquet")):
        for batch in pq.ParquetFile(part).iter_batches():
            for row in batch.to_pylist():
                number += 1
                text = row.pop("body")
                yield row["id"], None, row["id"], "rows", _DIGEST, number, _DIGEST, "[]", text, json.dumps(row)


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    count = min(sizes.documents, MOST)
    rows = data.table(folder / f"rows-{count}", count)

    def ours() -> None:
        place = empty_folder(folder / "sqlite")
        with phases() as watch:
            summary = run(plan(rows, place / "ours.db"), state=place, spark=spark(), observer=watch)
        assert summary.delivered == count, summary

    def beside() -> None:
        sqlite_loop.plain_loop(empty_folder(folder / "loop") / "loop.db", same_rows(rows))

    took, loop = alternate(sizes.rounds, ours, beside)
    what = f"table of {count} → one step → SQLite with full text; a plain loop of inserts, one commit"
    yield speed_row(what, count, took, loop, TARGET, "into SQLite, full text")
