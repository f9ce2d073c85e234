"""One run of the crash scenario on real Spark, as a process of its own: ``python -m tests.crash.spark_run JOB``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec

from ferryman import limits
from ferryman.destinations.base import Delivery, Outcome
from ferryman.engine import driver, run
from ferryman.engine.migration import migrate
from ferryman.engine.runner.sessions import start
from ferryman.engine.runner.spark import SparkRunner
from ferryman.engine.settings import RunSettings
from ferryman.plan import Plan
from ferryman.sources import Files
from ferryman.state.state import State, state_root
from tests.crash import child, scenario
from tests.crash.shapes import SHAPES

CONF = {"spark.driver.memory": "512m"}


class Slow(scenario.Log):
    """Takes its time before each chunk: there is always one in flight."""

    def __init__(self, root: Path, seconds: float) -> None:
        super().__init__(root)
        self._seconds = seconds

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        time.sleep(self._seconds)  # stands for a slow server, not for a condition
        return super().write(chunk)


def slow_plan(root: Path, guarantee: str) -> Plan:
    plan = Plan("crash", version=1)
    files = plan.source("files", Files(str(root / "corpus")))
    files.step("words", scenario.words).destination(
        "log", Slow(root, 0.25), guarantee=guarantee, batch=scenario.BATCH, backoff=0
    )
    return plan


def main(job: child.Job) -> None:
    limits.COMPACT_FILES = 2  # type: ignore[misc]
    limits.CHECKPOINT_COMMITS = 4  # type: ignore[misc]
    root = Path(job.root)
    wave_bytes = 1 << 30 if job.shape == "slow" else 30
    if job.shape in SHAPES:
        shape = SHAPES[job.shape]
        plan, wave_bytes = shape.plan(root, job.stage % shape.stages, job.guarantee), 8 * shape.wave_bytes
    else:
        plan = slow_plan(root, job.guarantee) if job.shape == "slow" else scenario.make_plan(root, job.guarantee)
    for spec, seen in job.arm:
        child.crash.arm(spec, seen)
        os.environ[child.crash.ENVIRONMENT] = f"{spec}@{seen}"  # workers are started with it
    (root / "driver.pid").write_text(str(os.getpid()))
    plan.freeze()
    where = state_root(plan, root / "state")
    if job.shape in SHAPES and (older := SHAPES[job.shape].from_version) is not None:
        migrate(where, plan, older)
    with State.take(where, plan) as state, driver.check_plan_changes(state, accept_changes=False):
        spark = start("local[2,4]", CONF, "crash")
        summary = run.Run(state, SparkRunner(spark), child.Spoken(), RunSettings(wait=5, wave_bytes=wave_bytes)).run()
        print(summary, flush=True)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=child.Job))
