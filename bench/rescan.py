"""A scan that finds nothing new, beside reading and hashing the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench import data, plain, table_to_null
from bench.harness import Row, Sizes, alternate, empty_folder, limit_row, phases, spark, time_row
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
    state = empty_folder(folder / "rescan")
    run(table_to_null.plan(rows), state=state, spark=spark())

    def ours() -> None:
        with phases() as watch:
            summary = run(table_to_null.plan(rows), state=state, spark=spark(), observer=watch)
        assert summary.delivered == 0, summary

    def beside() -> None:
        assert plain.for_each_row(rows, plain.version) == sizes.documents

    took, bare = alternate(sizes.rounds, ours, beside)
    return time_row(
        "rescan, all unchanged; plain mapInArrow that hashes", sizes.documents, took, bare, TARGET, "rescan"
    )


def _files(sizes: Sizes, folder: Path) -> Row:
    files = data.small_files(folder / f"files-{sizes.files}", sizes.files)
    state = empty_folder(folder / "idle")

    def idle() -> None:
        plan = Plan("idle")
        source = plan.source("files", Files(str(files), detect="fingerprint"))
        source.destination("nowhere", Null())
        run(plan, state=state, spark=spark())

    idle()
    [took] = alternate(sizes.rounds, idle)
    return limit_row(f"idle wave over {sizes.files} small files, warm session", took, IDLE_S)
