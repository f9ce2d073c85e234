"""The whole path, from a Parquet table into SQLite with full text, beside the loop that one would write instead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from bench import data, sqlite_loop
from bench.harness import Row, Sizes, anew, as_fast, in_turn, spark
from ferryman import Document, Plan, run
from ferryman.destinations import Sql
from ferryman.sources import DataFrame

TARGET = 0.9
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
    rows = data.table(folder / f"rows-{sizes.documents}", sizes.documents)

    def ours() -> None:
        place = anew(folder / "sqlite")
        summary = run(plan(rows, place / "ours.db"), state=place, spark=spark())
        assert summary.delivered == sizes.documents, summary

    def beside() -> None:
        sqlite_loop.plain_loop(anew(folder / "loop") / "loop.db", same_rows(rows))

    took, loop = in_turn(sizes.rounds, ours, beside)
    what = "table → one step → SQLite with full text; a plain loop of inserts, one commit"
    yield as_fast(what, sizes.documents, took, loop, TARGET)
