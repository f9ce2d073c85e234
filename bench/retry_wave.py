"""Retry of one document in a hundred that failed in a step, compared with the run in which it failed."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

from bench import data
from bench.harness import Measurement, Row, Sizes, empty_folder, spark, timed
from ferryman import Plan, TransientError, run
from ferryman.destinations import Null
from ferryman.engine.runner.spark import SparkRunner
from ferryman.sources import DataFrame

SHARE = 100
TARGET = 0.05
NOT_SOON_S = 10**9
"""Bound of the random backoff, so long that only the retry makes anything due."""


def plan(rows: Path, flag: Path) -> Plan:
    def step(document: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if document.id.endswith("00") and flag.exists():  # type: ignore[attr-defined]
            raise TransientError("not yet")
        return document

    plan = Plan("retry-wave")
    source = plan.source("rows", DataFrame(lambda spark: spark.read.parquet(str(rows))))
    source.step("step", step).destination("nowhere", Null(), backoff=NOT_SOON_S)
    return plan


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    rows = data.table(folder / f"rows-{sizes.documents}", sizes.documents)
    flag = folder / "failing"
    first, again, idle, job = [], [], [], []
    for _ in range(sizes.rounds + 1):  # the first one warms up
        state = empty_folder(folder / "retry")
        flag.touch()
        retry_plan = plan(rows, flag)
        first.append(
            timed(lambda retry_plan=retry_plan, state=state: run(retry_plan, state=state, spark=spark(), wait=0))
        )
        flag.unlink()
        idle.append(
            timed(lambda retry_plan=retry_plan, state=state: run(retry_plan, state=state, spark=spark(), wait=0))
        )
        again.append(timed(lambda retry_plan=retry_plan, state=state: _retry(retry_plan, state)))
        job.append(timed(lambda: SparkRunner(spark()).submit(_nothing, [0, 1]).result()))
    retry_s, whole_s, scan_s, job_s = (_median(each) for each in (again, first, idle, job))
    wave_s = retry_s - scan_s
    limit_s = TARGET * whole_s + job_s
    what = (
        f"retry wave of {sizes.documents // SHARE} in {sizes.documents}; the run in which they failed, and a warm job"
    )
    ratio = f"{wave_s / whole_s:.3f}× + {job_s:.2f} s"
    yield Row(
        what, f"{wave_s:.2f} s", f"{whole_s:.2f} s, {job_s:.2f} s", ratio, f"≤ {TARGET}× + a job", wave_s <= limit_s
    )


def _retry(retry_plan: Plan, state: Path) -> None:
    """Retry, and run: it scans, finds nothing changed, and processes the retry in a wave."""
    from ferryman.operations import retry

    retry(retry_plan, state=state)
    summary = run(retry_plan, state=state, spark=spark(), wait=0)
    assert summary.delivered, summary


def _nothing(number: int) -> int:
    return number


def _median(runs: list[Measurement]) -> float:
    warm = sorted(run.wall_s for run in runs[1:])
    return warm[len(warm) // 2]
