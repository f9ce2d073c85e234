"""Runs in forked children of the zygote: a plan from a stream to PostgreSQL, to be killed at a point or at any time.

``python -m tests.crash.streams`` does jobs on real Spark, each a line, in one session until it is killed; with the name
of a file it keeps the JVM of such processes.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from ferryman import crash, limits
from ferryman.destinations import Sql
from ferryman.document import Document
from ferryman.engine.run import Run
from ferryman.engine.runner.base import Runner
from ferryman.engine.settings import RunSettings
from ferryman.engine.watch import EventWatch
from ferryman.errors import TransientError
from ferryman.plan import Plan
from ferryman.sources import Stream
from ferryman.state.state import State, state_root
from tests.support import invariants
from tests.support.fake_stream import FakeSpark
from tests.support.plan_world import Watch

MASTER, SETTINGS = "local[2,4]", {"spark.driver.memory": "512m"}


class Job(msgspec.Struct):
    """A run, and how it ends before its end.

    Attributes:
        root: folder with ``rows.jsonl``, which the stream reads; on real Spark it reads the files of ``in``.
        arm: crash point, and the file that is created at the kill.
        kill_s: seconds after which the process is killed.
        alone: tasks are run in the driver's process, so that a kill ends both.
        watch: the run goes on until it is killed.
    """

    url: str
    root: str
    per_batch: int = 3
    arm: tuple[str, str] | None = None
    kill_s: float | None = None
    alone: bool = True
    watch: bool = False


def build(job: Job, read: Callable[[Any], Any] | None = None) -> Plan:
    plan = Plan("streamed", version=1)
    rows = Path(job.root) / "rows.jsonl"
    read = read or (lambda spark: spark.read_stream(rows))
    node = plan.source("stream", Stream(read, id="id", kept_batches=2)).step(
        "split", split, attempts=1000, patience="1h"
    )
    node.tee("log", Sql(job.url, table="log", mode="append"), batch=5, backoff=0).destination(
        "out", Sql(job.url, table="out", columns={"n": "n"}), batch=5, backoff=0
    )
    return plan


def split(doc: Document) -> list[Document] | Document | None:
    """Drop some rows, give others a child, and fail now and then."""
    if random.random() < 0.02:
        raise TransientError("by chance")
    n = doc["n"]
    if n % 7 == 0:
        return None
    return [doc, doc.child("half", n=n)] if n % 5 == 0 else doc


def expected(path: Path) -> tuple[dict[str, int], set[tuple[str, int]]]:
    """Return what the rows of a stream come to: number by id of what the newest version of each document is and makes,
    and all that any version is and makes."""
    newest: dict[str, int] = {}
    made = set()
    for row in map(msgspec.json.decode, path.read_text().splitlines()):
        id, n = row["id"], row["n"]
        newest = {each: number for each, number in newest.items() if each not in (id, f"{id}#half")}
        ids = [] if n % 7 == 0 else [id, f"{id}#half"] if n % 5 == 0 else [id]
        newest |= dict.fromkeys(ids, n)
        made |= {(each, n) for each in ids}
    return newest, made


def work(job: Job) -> None:
    """Do it; a failed check raises."""
    limits.TASK_DOCUMENTS = 4  # type: ignore[misc]
    limits.WATCH_TICK_S = 0.01  # type: ignore[misc]
    if job.arm is not None:
        crash.arm(*job.arm)
    if job.kill_s is not None:
        threading.Thread(target=_kill_after, args=(job.kill_s,), daemon=True).start()
    plan = build(job)
    plan.freeze()
    root = state_root(plan, Path(job.root) / "state")
    runner = FakeSpark(job.per_batch, fork=not job.alone)
    with State.take(root, plan) as state:
        if job.watch:
            run = Run(state, runner, Watch(10**9), RunSettings(wait=0, wave_bytes=2048))
            with EventWatch({"": plan}, 3600, lambda *_: None) as watch:
                run.run(3600, watch)
        summary = Run(state, runner, Watch(10**6), RunSettings(wave_bytes=2048)).run()
    invariants.check(root, plan, summary)
    print(f"delivered {summary.delivered}")
    assert summary.exit == 0, summary


def _kill_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def keep_jvm(file: Path) -> None:
    """Start a JVM of Spark, write into a file how drivers find it, and keep it until this process ends."""
    from ferryman.engine.runner.sessions import start

    session = start(MASTER, SETTINGS, "streamed")
    gateway = session.sparkContext._gateway.gateway_parameters
    found = {"PYSPARK_GATEWAY_PORT": str(gateway.port), "PYSPARK_GATEWAY_SECRET": gateway.auth_token}
    session.stop()
    temporary = file.with_suffix(".new")
    temporary.write_bytes(msgspec.json.encode(found))
    temporary.rename(file)
    sys.stdin.read()


def serve_on_spark(jobs: Iterable[str]) -> None:
    """Do jobs as they come, with one session; create the file that a job names when it is done.

    Workers are killed by the same crash point: where it is one of theirs, Spark starts new ones with that environment.
    """
    from ferryman.engine.runner.sessions import start
    from ferryman.engine.runner.spark import SparkRunner

    limits.TASK_DOCUMENTS = 4  # type: ignore[misc]
    end_session_before()
    spark = start(MASTER, SETTINGS, "streamed")
    environment: dict[str, str] = spark.sparkContext.environment
    for line in jobs:
        job, done = msgspec.json.decode(line, type=tuple[Job, str])
        crash.disarm()
        environment.pop(crash.ENVIRONMENT, None)
        if job.arm is not None:
            crash.arm(*job.arm)
            if crash.POINTS.get(job.arm[0].partition(":")[0]) == crash.EXECUTOR:
                environment[crash.ENVIRONMENT] = "@".join(job.arm)
        _run_on_spark(job, SparkRunner(spark))
        Path(done).touch()


def end_session_before() -> None:
    """End the queries and the session of a driver that was killed: its JVM, which would have ended with it, is used
    again."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    found = SparkSession._get_j_spark_session_class(jvm).getDefaultSession()
    if found.isDefined() and not found.get().sparkContext().isStopped():
        for query in found.get().streams().active():
            query.stop()
        found.get().stop()


def _run_on_spark(job: Job, runner: Runner) -> None:
    def read(spark: Any) -> Any:
        one = spark.readStream.schema("id string, n int").option("maxFilesPerTrigger", 1)  # in it the rows are in order
        return one.json(f"{job.root}/in")

    plan = build(job, read)
    plan.freeze()
    root = state_root(plan, Path(job.root) / "state")
    with State.take(root, plan) as state:
        summary = Run(state, runner, Watch(10**6), RunSettings(wave_bytes=2048)).run()
    invariants.check(root, plan, summary)
    assert summary.exit == 0, summary


if __name__ == "__main__":
    if sys.argv[1:]:
        keep_jvm(Path(sys.argv[1]))
    else:
        serve_on_spark(sys.stdin)
