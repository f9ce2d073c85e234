"""The command line, killed with SIGKILL at a random time and started again: every document exactly once in SQLite."""

from __future__ import annotations

import collections
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

DOCUMENTS = 3000
ROUNDS_SHORT, ROUNDS_LONG = 3, 30

PLAN = """
from ferryman import Plan
from ferryman.destinations import Sql
from ferryman.sources import Files


def words(doc):
    doc["words"] = len(doc.text().split())
    return doc


plan = Plan("kills", version=1)
plan.source("files", Files({corpus!r})).step("words", words).destination(
    "log", Sql("sqlite:///{database}", mode="append"), guarantee="exactly-once", batch=20
)
"""


def command(root: Path, *arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("ferryman")), *arguments, "--state", str(root / "state")]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for i in range(DOCUMENTS):
        (folder / f"{i:05}.txt").write_text(f"document number {i}")
    return folder


@pytest.fixture(scope="module")
def duration(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Seconds that an undisturbed run takes here."""
    root = tmp_path_factory.mktemp("undisturbed")
    began = time.monotonic()
    assert subprocess.run(run_command(root, corpus), check=False).returncode == 0
    return time.monotonic() - began


def run_command(root: Path, corpus: Path) -> list[str]:
    plan = root / "plan.py"
    plan.write_text(PLAN.format(corpus=str(corpus), database=root / "out.db"))
    return command(root, "run", str(plan), "--master", "local[2]", "--conf", "spark.driver.memory=512m")


def _rounds() -> list[object]:
    return [pytest.param(i, marks=[] if i < ROUNDS_SHORT else [pytest.mark.slow]) for i in range(ROUNDS_LONG)]


@pytest.mark.parametrize("number", _rounds())
def test_killed_at_a_random_time(number: int, corpus: Path, duration: float, tmp_path: Path) -> None:
    """Killed up to three times at random, then left alone: each document is there once, and the account adds up."""
    chance = random.Random(number)
    run = run_command(tmp_path, corpus)
    with (tmp_path / "run.log").open("wb") as log:
        for _ in range(chance.randint(1, 3)):
            process = subprocess.Popen(run, stdout=log, stderr=log, start_new_session=True)
            try:
                process.wait(chance.uniform(0.2, 1.0) * duration)
            except subprocess.TimeoutExpired:
                process.kill() if chance.random() < 0.5 else os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        last = subprocess.run(run, stdout=log, stderr=log, check=False)
    assert last.returncode == 0, (tmp_path / "run.log").read_text()
    with sqlite3.connect(tmp_path / "out.db") as db:
        rows = collections.Counter(row[0] for row in db.execute("SELECT id FROM documents"))
    assert rows == {f"{i:05}.txt": 1 for i in range(DOCUMENTS)}
    said = subprocess.run(
        command(tmp_path, "status", str(tmp_path / "plan.py"), "--json"), capture_output=True, check=True
    )
    status = json.loads(said.stdout)
    assert status["balanced"]
    assert status["destinations"]["log"]["indexed"] == DOCUMENTS
