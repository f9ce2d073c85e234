"""Cases on one Spark session, in a process of its own: ``python -m tests.matrix.spark_run JOB``.

A session takes a core for ten seconds, so several cases share it. Each runs twice with a change in between; the second
run is broken off where a kill would end it. The state's files go through obstore, as users' do.
"""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from pathlib import Path

import msgspec

from ferryman.engine.runner.sessions import start
from ferryman.engine.runner.spark import SparkRunner
from ferryman.storage import delta, objects
from tests.matrix import child
from tests.matrix.cases import Case
from tests.servers.faulty_s3 import settings
from tests.servers.spark_cluster import executor_options
from tests.support.plan_world import Interrupted, Until

PHASES = ("scan", "transform", "commit", "deliver", "settle")
"""Of the wave in which the second run is broken off."""

REPOSITORY = str(Path(__file__).parents[2])


class Job(msgspec.Struct):
    """Cases to run.

    Attributes:
        root: a folder; each case has one below it.
        store: URL of a server of object stores.
    """

    cases: list[Case]
    root: str
    store: str
    master: str


def main(job: Job) -> None:
    """Run all; what fails is raised."""
    told = {**settings(job.store), objects.CACHE_VARIABLE: f"{job.root}/cache", "PYTHONPATH": REPOSITORY}
    os.environ.update(told)  # workers on this machine have what the JVM is started with
    conf = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2", "spark.locality.wait": "0"}
    if not job.master.startswith("local"):
        conf |= {"spark.executor.memory": "512m", "spark.cores.max": "2"}
        conf["spark.executor.extraJavaOptions"] = executor_options()
        conf |= {f"spark.executorEnv.{name}": value for name, value in told.items()}
    session = start(job.master, conf, "matrix")
    try:
        for case in job.cases:
            sys.stdout.write(f"{case.id}\n")
            sys.stdout.flush()
            go(case, job, SparkRunner(session))
    finally:
        session.stop()


def go(case: Case, job: Job, runner: SparkRunner) -> None:
    """One case, from its first run to its check."""
    turn = zlib.crc32(case.id.encode())
    root = Path(job.root) / f"{turn:08x}"
    root.mkdir()
    for stage, ends in ((0, False), (1, True), (1, False)):
        delta.forget_logs()  # as in another process
        world = child.world_of(child.Job(case, str(root), stage, job.store))
        world.feed(stage)
        if (upstream := world.upstream(stage)) is not None:
            assert child.run(upstream, world, runner).exit == 0
        plan = world.plan(stage)
        with contextlib.suppress(Interrupted):
            observer = Until(child.waves(world) + 1, PHASES[turn % len(PHASES)]) if ends else None
            summary = child.run(plan, world, runner, observer)
    child.check(world, plan, summary, kills=1)
    assert child.run(world.plan(1), world, runner).waves == 0, "there was nothing to do, and it did something"


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Job))
