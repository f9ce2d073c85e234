"""A state in an object store on a standalone cluster whose workers share no folder with the driver but the corpus."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.queues import Queue
from tests.servers.faulty_s3 import BUCKET, FaultyS3, settings
from tests.servers.spark_cluster import SparkMaster, SparkWorker, executor_options
from tests.support.in_store import set_variables, store

__all__ = ["store"]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PLAN = """
from ferryman import Plan
from ferryman.destinations import Sql
from ferryman.sources import Files

plan = Plan("notes", version=1)
plan.source("files", Files("notes")).destination("out", Sql("sqlite:///{}/out.db"))
"""

NOTES = 20


@pytest.fixture(scope="module")
def master() -> Iterator[SparkMaster]:
    with SparkMaster() as started:
        yield started


def ferryman(verb: str, place: Path, store: str, *options: str) -> tuple[int, str]:
    """Exit code, and what it said."""
    command = [
        sys.executable,
        "-m",
        "ferryman.cli",
        verb,
        str(place / "plan.py"),
        "--state",
        f"s3://{BUCKET}/{place.name}",
    ]
    environment = {**os.environ, **settings(store), "FERRYMAN_CACHE": str(place / "cache")}
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stdout + done.stderr


def write(place: Path, text: str, numbers: range) -> None:
    (place / "notes").mkdir(exist_ok=True)
    (place / "cache").mkdir(exist_ok=True)
    (place / "plan.py").write_text(PLAN.format(place))
    for n in numbers:
        (place / "notes" / f"{n}.txt").write_text(f"{text} {n}")


def on(master: SparkMaster, told: dict[str, str]) -> list[str]:
    conf = {"spark.executor.memory": "512m", "spark.cores.max": "2"}
    conf["spark.executor.extraJavaOptions"] = executor_options()
    conf |= {f"spark.executorEnv.{name}": value for name, value in told.items()}
    return ["--master", master.url, *(each for name, value in conf.items() for each in ("--conf", f"{name}={value}"))]


def test_workers_with_caches_of_their_own(master: SparkMaster, store: str, tmp_path: Path) -> None:
    """Documents come, change and go; the account adds up."""
    cache = tmp_path / "cache"
    write(tmp_path, "first", range(NOTES))
    options = on(master, settings(store))
    hidden = [f"mount -t tmpfs none {cache}"]
    with SparkWorker(master, hidden), SparkWorker(master, hidden):
        code, said = ferryman("run", tmp_path, store, *options, "--cache", str(cache))
        assert (code, f"{NOTES} delivered" in said) == (0, True), said
        write(tmp_path, "second", range(5))
        (tmp_path / "notes" / "9.txt").unlink()
        code, said = ferryman("run", tmp_path, store, *options, "--cache", str(cache))
        assert (code, "5 delivered, 1 deleted" in said) == (0, True), said
    with sqlite3.connect(tmp_path / "out.db") as db:
        texts = {id: text.strip() for id, text in db.execute("SELECT id, text FROM documents")}
    wanted = {f"{n}.txt": f"{'second' if n < 5 else 'first'} {n}" for n in range(NOTES) if n != 9}
    assert texts == wanted
    code, said = ferryman("fsck", tmp_path, store)
    assert (code, "all well" in said) == (0, True), said


def test_a_worker_without_credentials(master: SparkMaster, store: str, tmp_path: Path) -> None:
    """It is named before anything is read."""
    write(tmp_path, "first", range(NOTES))
    with SparkWorker(master):
        code, said = ferryman("run", tmp_path, store, *on(master, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}))
    assert code == 2, said
    assert "(the state)" in said
    assert "Traceback" not in said


QUEUES = """
from ferryman import Plan
from ferryman.destinations import Queue as Out
from ferryman.sources import Queue


def double(doc):
    doc["n"] *= 2
    return doc


plan = Plan("orders", version=1)
plan.source("in", Queue("in", "{0}")).step("double", double).destination("out", Out("out", "{0}"))
"""


def test_queues_in_a_store_that_loses_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message is worked on once, wherever the state is."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "plan.py").write_text(QUEUES.format(f"s3://{BUCKET}/queues"))
    with FaultyS3() as faulty:
        set_variables(monkeypatch, faulty.settings)
        faulty.fail(lost=0.03, refused=0.02, seed=1)
        for first in (0, 50):
            lines = "".join(f'{{"n": {n}}}\n' for n in range(first, first + 50))
            append = ["queue", "append", "in", "--queues", f"s3://{BUCKET}/queues"]
            subprocess.run([sys.executable, "-m", "ferryman.cli", *append], input=lines, text=True, check=True)
            code, said = ferryman("run", tmp_path, faulty.url, "--master", "local[2,4]")
            assert (code, "50 delivered" in said) == (0, True), said
        out = Queue("out", f"s3://{BUCKET}/queues")
        assert [message.body["n"] for message in out.read(limit=1000)] == [2 * n for n in range(100)]
