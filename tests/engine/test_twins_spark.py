"""Twins of tasks that really run: on a standalone cluster of two hosts that speculates."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ferryman.queues import Queue
from tests.servers.spark_cluster import SparkMaster, SparkWorker, executor_options

pytestmark = pytest.mark.spark

PROGRAM = """
import socket, sys, time
from pathlib import Path

from pyspark import TaskContext

from ferryman import Plan
from ferryman.destinations import Queue as Out
from ferryman.engine import logs
from ferryman.engine.runner.sessions import start
from ferryman.engine.runner.spark import SparkRunner
from ferryman.engine.transform.task import Transform
from ferryman.sources import Queue
from tests.support.plan_world import run_plan

folder = Path(sys.argv[1])
logs._MIN_TASK_ENTRIES = 3

def see(doc):
    with (folder / "seen").open("a") as file:
        file.write(f"{doc['n']}\\n")
    if doc["n"] == 1:
        while len(list(folder.glob("attempt-0-*"))) < 2:
            time.sleep(0.05)
        time.sleep(5)  # work: longer than Spark takes to kill a task whose twin has answered
    return doc

class Noting(SparkRunner):
    def submit(self, task, items, **options):
        def noted(item):
            (folder / f"attempt-{item.number}-{TaskContext.get().taskAttemptId()}").touch()
            return task(item)
        return super().submit(noted if isinstance(task, Transform) else task, items, **options)

plan = Plan("once", version=1, strategy="at-most-once")
plan.source("in", Queue("in", folder)).step("see", see).destination("out", Out("out", folder))
session = start(sys.argv[2], dict(each.split("=", 1) for each in sys.argv[3:]), "twins")
summary = run_plan(plan, folder / "state", runner=Noting(session))
session.stop()
print(summary)
sys.exit(summary.exit)
"""

CONF = (
    "spark.driver.host=127.0.0.1",
    "spark.executor.memory=512m",
    "spark.cores.max=2",
    "spark.locality.wait=0",
    "spark.speculation=true",
    "spark.speculation.interval=100ms",
    "spark.speculation.quantile=0.1",
    "spark.speculation.multiplier=1.1",
    "spark.speculation.minTaskRuntime=100ms",
)


@pytest.mark.slow  # test_twins plays the twins each time
@pytest.mark.rule("once.twin")
def test_a_healthy_cluster_that_speculates_leaves_nothing_in_doubt(tmp_path: Path) -> None:
    """The twin of the slow task runs, and waits for it; each message is seen once, and each is delivered."""
    numbers = range(1, 13)
    Queue("in", tmp_path).append([{"n": n} for n in numbers])
    with SparkMaster() as master, SparkWorker(master, host="127.0.0.2"), SparkWorker(master, host="127.0.0.3"):
        options = f"spark.executor.extraJavaOptions={executor_options()}"
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), master.url, *CONF, options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=570)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("attempt-0-*"))) >= 2, "no twin ran"
    assert Counter((tmp_path / "seen").read_text().split()) == Counter(map(str, numbers))
    assert sorted(m.body["n"] for m in Queue("out", tmp_path).read(limit=100)) == list(numbers)
