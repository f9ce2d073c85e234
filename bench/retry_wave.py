"""A retry of the one document in a hundred of which a step failed, beside the run in which it failed."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

from bench import data
from bench.harness import Row, Sizes, Took, anew, spark, timed
from ferryman import Plan, TransientError, run
from ferryman.destinations import Null
from ferryman.engine.runner.spark import SparkRunner
from ferryman.sources import DataFrame

SHARE = 100
TARGET = 0.05
NOT_SOON_S = 10**9
"""The wait is drawn by lot below it: nothing comes due but by the retry."""


def plan(rows: Path, flag: Path) -> Plan:
    def step(document: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if document.id.endswith("00") and flag.exists():  # type: ignore[attr-defined]
            raise TransientError("not yet")
        return document

    made = Plan("retry-wave")
    source = made.source("rows", DataFrame(lambda spark: spark.read.parquet(str(rows))))
    source.step("step", step).destination("nowhere", Null(), backoff=NOT_SOON_S)
    return made


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    rows = data.table(folder / f"rows-{sizes.documents}", sizes.documents)
    flag = folder / "failing"
    first, again, idle, job = [], [], [], []
    for _ in range(sizes.rounds + 1):  # the first one warms up
        state = anew(folder / "retry")
        flag.touch()
        made = plan(rows, flag)
        first.append(timed(lambda made=made, state=state: run(made, state=state, spark=spark(), wait=0)))
        flag.unlink()
        idle.append(timed(lambda made=made, state=state: run(made, state=state, spark=spark(), wait=0)))
        again.append(timed(lambda made=made, state=state: _retried(made, state)))
        job.append(timed(lambda: SparkRunner(spark()).run(_nothing, [0, 1])))
    took, whole, scan, warm = (_median(each) for each in (again, first, idle, job))
    wave = took - scan
    limit = TARGET * whole + warm
    what = (
        f"retry wave of {sizes.documents // SHARE} in {sizes.documents}; the run in which they failed, and a warm job"
    )
    shown = f"{wave / whole:.3f}× + {warm:.2f} s"
    yield Row(what, f"{wave:.2f} s", f"{whole:.2f} s, {warm:.2f} s", shown, f"≤ {TARGET}× + a job", wave <= limit)


def _retried(made: Plan, state: Path) -> None:
    """A run that scans, finds all as it was, and has the retry as a wave of its own."""
    from ferryman.operations import retry

    retry(made, state=state)
    summary = run(made, state=state, spark=spark(), wait=0)
    assert summary.delivered, summary


def _nothing(number: int) -> int:
    return number


def _median(runs: list[Took]) -> float:
    warm = sorted(run.wall_s for run in runs[1:])
    return warm[len(warm) // 2]
