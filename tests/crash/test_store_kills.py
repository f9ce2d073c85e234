"""A state in an S3-compatible server, its drivers killed at random times: nothing is lost, nothing is doubled."""

from __future__ import annotations

import collections
import random
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from tests.crash import scenario
from tests.crash.kills import Killed
from tests.servers.faulty_s3 import BUCKET, settings
from tests.support.in_store import store
from tests.support.zygote import Zygote

__all__ = ["store"]

HISTORIES = 20
KILLS = 10
"""Of each history."""

SPARK_ROUNDS = 7
DOCUMENTS = 3000


@pytest.mark.rule("store.kill")
@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[] if n == 0 else [pytest.mark.slow]) for n in range(HISTORIES)]
)
def test_killed_at_random_times(zygote: Zygote, folder: Path, store: str, number: int) -> None:
    """Two corpora one after the other; the second run finds what is new, changed and gone."""
    chance, kills = random.Random(number), 2 if number == 0 else KILLS
    root = folder / f"random-{number}"
    root.mkdir()
    job = {"root": str(root), "guarantee": "exactly-once", "store": store, "real": True}
    began = time.monotonic()
    killed = 0
    for shape, corpus in (("first", scenario.first_corpus()), ("second", scenario.second_corpus())):
        scenario.write_corpus(root, corpus)
        longest = 2.0
        for _ in range(kills // 2):
            code, said = zygote.run(verb="run", shape=shape, dies_in=chance.uniform(0.02, longest), **job)
            assert code in (0, -signal.SIGALRM), said
            killed += code != 0
        if shape == "second":
            code, said = zygote.run(verb="retry", shape=shape, **job)
            assert code == 0, said
        code, said = zygote.run(verb="run and check", shape=shape, **job)
        assert code == 0, said
    code, said = zygote.run(verb="run and check", shape="second", **job)
    assert code == 0, said
    assert "recovered" not in said, "a clean end leaves nothing to recover"
    print(f"history {number}: {killed} kills in {time.monotonic() - began:.0f} s")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("number", range(SPARK_ROUNDS))
def test_killed_at_random_times_on_spark(number: int, store: str, tmp_path: Path) -> None:
    """The command line, killed three times: each document is in SQLite once, and the account adds up."""
    chance = random.Random(number)
    destination = f"from ferryman.destinations import Sql\nout = Sql('sqlite:///{tmp_path}/out.db', mode='append')"
    run = Killed(tmp_path, destination, DOCUMENTS, f"s3://{BUCKET}/spark-{number}", settings(store))
    for _ in range(3):
        run.kill_after(chance.uniform(3, 30), chance)
    assert run.to_the_end() == 0, run.log.read_text()
    with sqlite3.connect(tmp_path / "out.db") as db:
        rows = collections.Counter(row[0] for row in db.execute("SELECT id FROM documents"))
    assert rows == {f"{i:05}.txt": 1 for i in range(DOCUMENTS)}
    run.check()
