"""The command line, killed with SIGKILL at a random time and started again: every document exactly once in SQLite."""

from __future__ import annotations

import collections
import random
import sqlite3
import time
from pathlib import Path

import pytest

from tests.crash.kills import Killed

pytestmark = [pytest.mark.spark, pytest.mark.slow]  # test_servers does so each time, with PostgreSQL

DOCUMENTS = 3000
ROUNDS = 30

SQL = "from ferryman.destinations import Sql\nout = Sql('sqlite:///{}/out.db', mode='append')"


def killed(root: Path) -> Killed:
    return Killed(root, SQL.format(root), DOCUMENTS)


@pytest.fixture(scope="module")
def duration(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Seconds that an undisturbed run takes here."""
    run = killed(tmp_path_factory.mktemp("undisturbed"))
    began = time.monotonic()
    assert run.to_the_end() == 0, run.log.read_text()
    return time.monotonic() - began


@pytest.mark.parametrize("number", range(ROUNDS))
def test_killed_at_a_random_time(number: int, duration: float, tmp_path: Path) -> None:
    """Killed up to three times at random, then left alone: each document is there once, and the account adds up."""
    chance = random.Random(number)
    run = killed(tmp_path)
    for _ in range(chance.randint(1, 3)):
        run.kill_after(chance.uniform(0.2, 1.0) * duration, chance)
    assert run.to_the_end() == 0, run.log.read_text()
    with sqlite3.connect(tmp_path / "out.db") as db:
        rows = collections.Counter(row[0] for row in db.execute("SELECT id FROM documents"))
    assert rows == {f"{i:05}.txt": 1 for i in range(DOCUMENTS)}
    run.check()
