"""``ferryman intake serve`` on Spark, killed at random: each job goes through every state once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from ferryman.intake import JobQueue
from tests.intake.history import ONCE, history_in, keep_history
from tests.intake.service.place import rows_in, until

KILLS, JOBS_A_KILL = 20, 10

PLAN = """
from ferryman import Plan
from ferryman.destinations import Sql
from ferryman.sources import Jobs

plan = Plan("killed", version=1)
out = Sql("sqlite:///{folder}/index.db", table="documents", mode="append")
plan.source("jobs", Jobs()).step("words", lambda doc: doc).destination("index", out)
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(3600)
def test_killed_at_random(tmp_path: Path) -> None:
    """Alone, or with all processes of its group."""
    dice = random.Random(20)
    url = f"sqlite:///{tmp_path}/queue.db"
    (tmp_path / "plan.py").write_text(PLAN.format(folder=tmp_path))
    (tmp_path / "file.txt").write_text("words")
    jobs = KILLS * JOBS_A_KILL
    with JobQueue.open(url) as queue:
        keep_history(tmp_path / "queue.db")
        for n in range(jobs):
            queue.create_batch({"payload_url": (tmp_path / "file.txt").as_uri(), "local_id": f"object {n}"})
        for kill in range(KILLS):
            share = jobs * (kill + dice.random()) / (KILLS + 1)
            process = started(tmp_path, url)
            until(lambda share=share, process=process: has_come(tmp_path, share, process))  # type: ignore[misc]
            process.kill() if dice.random() < 0.5 else os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            end_group(process.pid)
        last = started(tmp_path, url, "--once")
        assert last.wait() == 0, (tmp_path / "serve.log").read_text()
        end_group(last.pid)
        histories = history_in(tmp_path / "queue.db")
        assert {job: way for job, way in histories.items() if way != ONCE} == {}
        assert len(histories) == jobs
        assert queue.audit() == []
    assert rows_in(tmp_path / "index.db") == sorted((f"object {n}/file.txt", "words") for n in range(jobs))


def started(folder: Path, url: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ferryman.cli", "intake", "serve", str(folder / "plan.py"), "--queue", url]
    command += ["--state", str(folder / "state"), "--allow-files", str(folder), "--master", "local[2]"]
    command += ["--conf", "spark.driver.memory=512m", *options]
    with (folder / "serve.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def end_group(group: int) -> None:
    """Spark's own processes outlive a kill for a moment."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def has_come(folder: Path, jobs: float, process: subprocess.Popen[bytes]) -> bool:
    """Have jobs moved as often as so many jobs do? The process goes on until it is killed."""
    assert process.poll() is None, (folder / "serve.log").read_text()
    return moved(folder) >= jobs * len(ONCE)


def moved(folder: Path) -> int:
    """How often a job has come into a state."""
    with contextlib.closing(sqlite3.connect(folder / "queue.db", timeout=60)) as connection:
        return int(connection.execute("SELECT count(*) FROM moved").fetchone()[0])
