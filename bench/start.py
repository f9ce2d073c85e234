"""Whole commands that have little or nothing to do, beside plain Spark's own start, first job and stop."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from bench import data
from bench.harness import ROOT, Row, Sizes, anew, in_turn

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
    few = anew(folder / "three")
    for n in range(3):
        (few / f"{n}.txt").write_text(f"document {n}")

    new, unchanged, all_unchanged = (
        _command(few, folder / "new", again=False),
        _command(few, folder / "few"),
        _command(many, folder / "many"),
    )
    took, *ours = in_turn(sizes.rounds, partial(_run, "-c", PLAIN), new, unchanged, all_unchanged)
    kinds = ("3 files, all new", "3 files, nothing has changed", f"{sizes.files} files, nothing has changed")
    for what, mine in zip(kinds, ours, strict=True):
        ratio = mine.wall_s / took.wall_s
        yield Row(
            f"`ferryman run`: {what}; plain Spark starts, runs a job, stops",
            f"{mine.wall_s:.1f} s",
            f"{took.wall_s:.1f} s",
            f"{ratio:.2f}×",
            f"≤ {TARGET}×",
            ratio <= TARGET,
        )


def _command(corpus: Path, place: Path, *, again: bool = True) -> Callable[[], None]:
    """Runs the command; ``again``: over the state that the run before has left."""
    anew(place)
    (place / "plan.py").write_text(PLAN.format(folder=str(corpus)))

    def run() -> None:
        state = place / "state"
        if not again:
            anew(state)
        _run("-m", "ferryman.cli", "run", str(place / "plan.py"), "--state", str(state))

    return run


def _run(*arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    subprocess.run(
        [sys.executable, *arguments], check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
