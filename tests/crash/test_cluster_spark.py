"""Ten runs on a standalone cluster of two workers, of which one dies in each run."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash import spark
from tests.servers.spark_cluster import SparkMaster, SparkWorker, executor_options

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PLAN = """
import time
from ferryman import Guarantee, Plan
from ferryman.destinations import JsonLines, Sql
from ferryman.routers import Duplicate
from ferryman.sources import Files

def words(doc):
    time.sleep(0.01)    # stands for work: somebody is killed in the middle of it
    doc["words"] = len(doc.text().split())
    return doc

plan = Plan("cluster", version=1)
both = plan.source("files", Files("corpus", prefix="f/")).step("words", words).route("both", Duplicate())
both.destination("once", Sql("sqlite:///once.db", mode="append"), batch=10)
both.destination("now", Sql("sqlite:///now.db"), guarantee=Guarantee.AT_LEAST_ONCE, batch=10)
"""

RUNS = 10
FIRST, ADDED, CHANGED, REMOVED = 200, 60, 30, 20
MOMENTS = ("the steps", "sending to once", "sending to now")


class Corpus:
    """Files that change between the runs, and what must be at the destinations then."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self._root, self._chance = root / "corpus", chance
        self._root.mkdir()
        self.files: dict[str, str] = {}
        self.sent = 0
        """Deliveries to a destination so far: documents that are new or changed, and removed ones."""

    def change(self, added: int, changed: int, removed: int) -> None:
        known = self._chance.sample(sorted(self.files), min(len(self.files), changed + removed))
        for name in [*(f"{len(self.files) + n:03}-{self._chance.getrandbits(100)}.txt" for n in range(added)), *known]:
            self.files[name] = " ".join(["word"] * self._chance.randint(1, 500)) + str(self._chance.random())
            (self._root / name).write_text(self.files[name])
        for name in known[:removed]:
            del self.files[name]
            (self._root / name).unlink()
        self.sent += added + len(known)

    def check(self, root: Path) -> None:
        """Each change was delivered exactly once to one destination; at the other there is what there is now."""
        expected = {f"f/{name}": text for name, text in self.files.items()}
        assert dict(rows(root / "now.db", "SELECT id, text FROM documents")) == expected
        events = rows(root / "once.db", "SELECT id, operation, text, delivery_hash FROM documents ORDER BY sequence")
        assert len({event[3] for event in events}) == len(events) == self.sent
        newest = {event[0]: event[2] for event in events}
        assert {key: text for key, text in newest.items() if text is not None} == expected


def rows(file: Path, query: str) -> list[tuple[str, ...]]:
    if not file.exists():
        return []
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=60)) as database:
        try:
            return database.execute(query).fetchall()
        except sqlite3.OperationalError:
            return []  # no table yet


@contextlib.contextmanager
def running(root: Path, master: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "ferryman.cli", "run", str(root / "plan.py"), "--master", master]
    conf = ["spark.executor.memory=512m", "spark.cores.max=2", "spark.locality.wait=0"]
    conf.append(f"spark.executor.extraJavaOptions={executor_options()}")
    with (root / "run.log").open("wb") as log:
        run = subprocess.Popen([*command, *(f"--conf={each}" for each in conf)], stdout=log, stderr=log)
        try:
            yield run
        finally:
            spark.end([*spark.family(run.pid), run.pid], 9)
            run.wait()


def has_come(root: Path, moment: str, before: int) -> bool:
    """Is the run there? ``before``: rows that the destination had."""
    if moment == "the steps":
        return any((root / ".ferryman").glob("**/staging/**/*.parquet"))
    return len(rows(root / f"{moment.split()[-1]}.db", "SELECT sequence FROM documents")) != before


def killed(worker: SparkWorker) -> SparkWorker:
    """The machine dies: the worker, its executors and their Pythons. Another one joins, in its place."""
    assert worker.running
    below = spark.family(worker.pid)
    worker.kill()
    spark.end(below, 9)
    worker.close()
    return SparkWorker(worker.master).start()


def run_and_kill(root: Path, chance: random.Random, workers: list[SparkWorker]) -> None:
    """One run, in which one of the workers dies at some moment."""
    moment = chance.choice(MOMENTS)
    before = len(rows(root / f"{moment.split()[-1]}.db", "SELECT sequence FROM documents"))
    with running(root, workers[0].master.url) as run:
        spark.until(lambda: run.poll() is not None or has_come(root, moment, before), moment)
        dies = chance.randrange(len(workers))
        workers[dies] = killed(workers[dies])
        assert run.wait(600) == 0, (root / "run.log").read_text()


def test_a_worker_dies_in_each_of_ten_runs(tmp_path: Path) -> None:
    """What is delivered is what a run without deaths delivers, in every run."""
    chance = random.Random(7)
    (tmp_path / "plan.py").write_text(PLAN)
    corpus = Corpus(tmp_path, chance)
    with SparkMaster() as master, contextlib.ExitStack() as stack:
        workers = [SparkWorker(master).start() for _ in range(2)]
        stack.callback(lambda: [worker.close() for worker in workers])
        for number in range(RUNS):
            corpus.change(*((ADDED, CHANGED, REMOVED) if number else (FIRST, 0, 0)))
            run_and_kill(tmp_path, chance, workers)
            corpus.check(tmp_path)
