"""Runs in forked children of the zygote: a plan from a stream of real Spark to PostgreSQL, to be killed.

``python -m tests.crash.streams_spark FILE`` keeps the JVM of such a process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyspark.sql  # noqa: F401 - else each driver loads it
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from ferryman import crash, limits
from ferryman.engine.run import Run
from ferryman.engine.runner.base import Runner
from ferryman.engine.runner.class_sharing import java_options
from ferryman.engine.runner.sessions import start
from ferryman.engine.runner.spark import SparkRunner
from ferryman.engine.settings import RunSettings
from ferryman.state.state import State, state_root
from tests.crash import streams
from tests.support import invariants
from tests.support.plan_world import Watch

MASTER, SETTINGS = "local[2,4]", {"spark.driver.memory": "512m"}


class Job(msgspec.Struct):
    """A driver.

    Attributes:
        jvm: environment by which it finds the JVM.
        pid: file that gets its process id.
        jobs: pipe with the runs that it does, each a line: a ``streams.Job`` and the file that is created when it is
            done.
    """

    jvm: dict[str, str]
    pid: str
    jobs: str


def keep_jvm(file: Path) -> None:
    """Start a JVM of Spark, write into a file how drivers find it, and keep it until this process ends."""
    options = {**SETTINGS, "spark.driver.extraJavaOptions": java_options("", queries=True)}
    gateway = launch_gateway(SparkConf(loadDefaults=False).setAll([*options.items()]))  # which holds the JVM
    parameters = gateway.gateway_parameters
    found = {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}
    temporary = file.with_suffix(".new")
    temporary.write_bytes(msgspec.json.encode(found))
    temporary.rename(file)
    sys.stdin.read()


def work(job: Job) -> None:
    """Do runs as they come, with one session.

    Workers are killed by the same crash point: where it is one of theirs, Spark starts new ones with that environment.
    """
    os.environ.update(job.jvm)
    Path(job.pid).write_text(str(os.getpid()))
    limits.TASK_DOCUMENTS = 4  # type: ignore[misc]
    spark = start(MASTER, SETTINGS, "streamed")
    environment: dict[str, str] = spark.sparkContext.environment
    with open(job.jobs) as lines:
        for line in lines:
            told, done = msgspec.json.decode(line, type=tuple[streams.Job, str])
            crash.disarm()
            environment.pop(crash.ENVIRONMENT, None)
            if told.arm is not None:
                crash.arm(*told.arm)
                if crash.POINTS.get(told.arm[0].partition(":")[0]) == crash.EXECUTOR:
                    environment[crash.ENVIRONMENT] = "@".join(told.arm)
            run(told, SparkRunner(spark))
            Path(done).touch()


def run(job: streams.Job, runner: Runner) -> None:
    def read(spark: Any) -> Any:
        one = spark.readStream.schema("id string, n int").option("maxFilesPerTrigger", 1)  # in it the rows are in order
        return one.json(f"{job.root}/in")

    plan = streams.build(job, read)
    plan.freeze()
    root = state_root(plan, Path(job.root) / "state")
    with State.take(root, plan) as state:
        summary = Run(state, runner, Watch(10**6), RunSettings(wave_bytes=2048)).run()
    invariants.check(root, plan, summary)
    assert summary.exit == 0, summary


if __name__ == "__main__":
    keep_jvm(Path(sys.argv[1]))
