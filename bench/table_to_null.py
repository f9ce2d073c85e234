"""The whole path, from a Parquet table through one step into nowhere, beside plain ``mapInArrow``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench import data, plain
from bench.harness import Row, Sizes, anew, as_fast, in_turn, spark
from ferryman import Plan, run
from ferryman.destinations import Null
from ferryman.sources import DataFrame

TARGET = 0.2


def plan(rows: Path) -> Plan:
    made = Plan("table-to-null")
    source = made.source("rows", DataFrame(lambda spark: spark.read.parquet(str(rows))))
    source.step("characters", plain.step).destination("nowhere", Null())
    return made


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    rows = data.table(folder / f"rows-{sizes.documents}", sizes.documents)

    def ours() -> None:
        summary = run(plan(rows), state=anew(folder / "null"), spark=spark())
        assert summary.delivered == sizes.documents, summary

    def beside() -> None:
        assert plain.for_each_row(rows, plain.step) == sizes.documents

    took, bare = in_turn(sizes.rounds, ours, beside)
    what = "table → one step → Null; plain mapInArrow with the step"
    yield as_fast(what, sizes.documents, took, bare, TARGET)
