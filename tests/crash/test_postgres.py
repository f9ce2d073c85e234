"""Killed at every crash point, and at random times, with a real PostgreSQL: each delivery is there once."""

from __future__ import annotations

import collections
import json
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from tests.crash import postgres_log, scenario
from tests.crash.test_matrix import CASES, kill_and_check
from tests.crash.test_random_kills import DOCUMENTS, command, corpus
from tests.destinations.postgres import Database, database, postgres
from tests.support.zygote import Zygote

__all__ = ["corpus", "database", "postgres"]

ROUNDS = 20
RUN_S = 20.0
"""About what an undisturbed run takes on a busy machine: kills come at any time of it."""

PLAN = """
from ferryman import Plan
from ferryman.destinations import Sql
from ferryman.sources import Files


def words(doc):
    doc["words"] = len(doc.text().split())
    return doc


plan = Plan("kills", version=1)
plan.source("files", Files({corpus!r})).step("words", words).destination(
    "index", Sql({url!r}, full_text=["text"]), guarantee="exactly-once", batch=20
)
"""


def _cases() -> list[object]:
    """Where something is sent in every test run, everywhere in the slow ones."""
    return [
        pytest.param(
            p, s, id=f"{p}-{s}", marks=[] if p.startswith("deliver.") and s == "second" else [pytest.mark.slow]
        )
        for p, guarantee, s in CASES
        if guarantee == "exactly-once"
    ]


@pytest.mark.rule("guarantee.kill", "guarantee.hash")
@pytest.mark.parametrize(("point", "shape"), _cases())
def test_killed_there_and_started_again(
    zygote: Zygote, folder: Path, database: Database, point: str, shape: str
) -> None:
    """A kill -9 at this point loses nothing and doubles nothing in the table."""
    root = folder / f"postgres-{point}-{shape}"
    root.mkdir()
    (root / postgres_log.URL).write_text(database.url)
    scenario.write_corpus(root, scenario.first_corpus())
    job = {"root": str(root), "guarantee": "exactly-once", "shape": shape}
    if shape == "second":
        code, said = zygote.run(verb="run", root=str(root), guarantee="exactly-once")
        assert code == 0, said
        scenario.write_corpus(root, scenario.second_corpus())
    kill_and_check(zygote, job, point)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("number", range(ROUNDS))
def test_killed_at_a_random_time(number: int, corpus: Path, database: Database, tmp_path: Path) -> None:
    """Killed up to three times at random on real Spark, then left alone: each document is there once, and indexed."""
    chance = random.Random(number)
    plan = tmp_path / "plan.py"
    plan.write_text(PLAN.format(corpus=str(corpus), url=database.url))
    run = command(tmp_path, "run", str(plan), "--master", "local[2]", "--conf", "spark.driver.memory=512m")
    with (tmp_path / "run.log").open("wb") as log:
        for _ in range(chance.randint(1, 3)):
            process = subprocess.Popen(run, stdout=log, stderr=log, start_new_session=True)
            try:
                process.wait(chance.uniform(0.2, 1.0) * RUN_S)
            except subprocess.TimeoutExpired:
                process.kill() if chance.random() < 0.5 else os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        last = subprocess.run(run, stdout=log, stderr=log, check=False)
    assert last.returncode == 0, (tmp_path / "run.log").read_text()
    rows = collections.Counter(id for (id,) in database.query("SELECT id FROM documents"))
    assert rows == {f"{i:05}.txt": 1 for i in range(DOCUMENTS)}
    found = database.query("SELECT count(*) FROM documents WHERE fts @@ to_tsquery('simple', 'number')")
    assert found == [(DOCUMENTS,)]
    said = subprocess.run(command(tmp_path, "status", str(plan), "--json"), capture_output=True, check=True)
    status = json.loads(said.stdout)
    assert status["balanced"]
    assert status["destinations"]["index"]["indexed"] == DOCUMENTS
