"""Whole commands that have little or nothing to do, beside plain Spark's own start, first job and stop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from bench import data
from bench.command import command, ferryman
from bench.harness import Measurement, Row, Sizes, alternate, empty_folder, time_row

TARGET: Final = 0.5

PLAIN: Final = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()
assert len(spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long").collect()) == 2
spark.stop()
"""

PLAN: Final = """
from ferryman import Plan
from ferryman.destinations import Null
from ferryman.sources import Files

plan = Plan("start")
plan.source("files", Files({folder!r})).step("same", lambda doc: doc).destination("nowhere", Null())
"""


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    many = data.small_files(folder / f"files-{sizes.files}", sizes.files)
    three = empty_folder(folder / "three")
    for n in range(3):
        (three / f"{n}.txt").write_text(f"document {n}")

    took, *ours = alternate(
        sizes.rounds,
        partial(command, [sys.executable, "-c", PLAIN]),
        _run(three, folder / "new", again=False),
        _run(three, folder / "few"),
        _run(many, folder / "many"),
    )
    kinds = {
        "3 files, all new": 3,
        "3 files, nothing has changed": 3,
        f"{sizes.files} files, nothing has changed": sizes.files,
    }
    for (what, count), own in zip(kinds.items(), ours, strict=True):
        title = f"`ferryman run`: {what}; plain Spark starts, runs a job, stops"
        yield time_row(title, count, own, took, TARGET, f"command: {what}")


def _run(corpus: Path, place: Path, *, again: bool = True) -> Callable[[], Measurement]:
    """Return a function that runs the command; ``again``: on the state of the run before."""
    empty_folder(place)
    (place / "plan.py").write_text(PLAN.format(folder=str(corpus)))

    def run() -> Measurement:
        state = place / "state"
        if not again:
            empty_folder(state)
        return ferryman("run", str(place / "plan.py"), "--state", str(state))

    return run
