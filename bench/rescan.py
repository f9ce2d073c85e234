"""A scan that finds nothing new, beside reading and hashing the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench import data, plain, table_to_null
from bench.harness import Row, Sizes, anew, as_long, in_turn, phases, spark, within
from ferryman import Plan, run
from ferryman.destinations import Null
from ferryman.sources import Files

TARGET = 1.3
IDLE_S = 2.0


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    yield _rows(sizes, folder)
    yield _files(sizes, folder)


def _rows(sizes: Sizes, folder: Path) -> Row:
    rows = data.table(folder / f"rows-{sizes.documents}", sizes.documents)
    state = anew(folder / "rescan")
    run(table_to_null.plan(rows), state=state, spark=spark())

    def ours() -> None:
        with phases() as watch:
            summary = run(table_to_null.plan(rows), state=state, spark=spark(), observer=watch)
        assert summary.delivered == 0, summary

    def beside() -> None:
        assert plain.for_each_row(rows, plain.version) == sizes.documents

    took, bare = in_turn(sizes.rounds, ours, beside)
    return as_long("rescan, all unchanged; plain mapInArrow that hashes", sizes.documents, took, bare, TARGET, "rescan")


def _files(sizes: Sizes, folder: Path) -> Row:
    files = data.small_files(folder / f"files-{sizes.files}", sizes.files)
    state = anew(folder / "idle")

    def idle() -> None:
        plan = Plan("idle")
        source = plan.source("files", Files(str(files), detect="fingerprint"))
        source.destination("nowhere", Null())
        run(plan, state=state, spark=spark())

    idle()
    [took] = in_turn(sizes.rounds, idle)
    return within(f"idle wave over {sizes.files} small files, warm session", took, IDLE_S)
