"""The whole path, from a Parquet table into SQLite with full text, beside the loop that one would write instead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from bench import data, sqlite_loop
from bench.harness import Row, Sizes, anew, as_fast, in_turn, phases, spark
from ferryman import Document, Plan, run
from ferryman.destinations import Sql
from ferryman.sources import DataFrame

TARGET = 0.9
MOST = 1_000_000
"""More take longer, each as long as each other."""
_DIGEST = "0" * 32
"""For version and delivery hash, which the loop need not make."""


def text_of(document: Document) -> Document:
    """The step: the body becomes the text."""
    document.raw = document.fields.pop("body").encode()
    return document


def plan(rows: Path, out: Path) -> Plan:
    made = Plan("table-to-sqlite")
    source = made.source("rows", DataFrame(lambda spark: spark.read.parquet(str(rows))))
    source.step("text", text_of).destination("index", Sql(f"sqlite:///{out}", full_text=["text"]))
    return made


def same_rows(rows: Path) -> Iterator[sqlite_loop.Row]:
    """What the loop inserts: the columns of our table."""
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
        place = anew(folder / "sqlite")
        with phases() as watch:
            summary = run(plan(rows, place / "ours.db"), state=place, spark=spark(), observer=watch)
        assert summary.delivered == count, summary

    def beside() -> None:
        sqlite_loop.plain_loop(anew(folder / "loop") / "loop.db", same_rows(rows))

    took, loop = in_turn(sizes.rounds, ours, beside)
    what = f"table of {count} → one step → SQLite with full text; a plain loop of inserts, one commit"
    yield as_fast(what, count, took, loop, TARGET, "into SQLite, full text")
