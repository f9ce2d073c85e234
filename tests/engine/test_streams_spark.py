"""A stream of Spark's own: batches that come again after a kill, an older checkpoint, and a query that goes on."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.spark]

PLAN = """
from ferryman import Plan
from ferryman.destinations import Sql
from ferryman.sources import Stream

def read(spark):
    return spark.readStream.schema("n int").option("maxFilesPerTrigger", 1).json("in")

plan = Plan("streamed", version=1)
node = plan.source("stream", Stream(read)).tee("log", Sql("sqlite:///log.db", mode="append"))
node.destination("out", Sql("sqlite:///out.db", columns={"n": "n"}))
"""


def ferryman(folder: Path, *args: str, crash: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, **({"FERRYMAN_CRASH": crash} if crash else {})}
    command = [sys.executable, "-m", "ferryman.cli", "run", "plan.py", *args]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def put(folder: Path, *numbers: int) -> None:
    """One file a number, by a name that appears whole."""
    (folder / "in").mkdir(exist_ok=True)
    for n in numbers:
        (folder / f"{n}.new").write_text(f'{{"n": {n}}}\n')
        (folder / f"{n}.new").rename(folder / "in" / f"{n}.json")


def numbers(folder: Path, database: str = "out.db") -> list[int]:
    try:
        with closing(sqlite3.connect(f"file:{folder / database}?mode=ro", uri=True)) as db:
            column = "n" if database == "out.db" else "json_extract(fields, '$.n')"
            return sorted(n for (n,) in db.execute(f"SELECT {column} FROM documents").fetchall())
    except sqlite3.OperationalError:
        return []  # not made yet


def test_kills_an_older_checkpoint_and_a_query_that_goes_on(tmp_path: Path) -> None:
    (tmp_path / "plan.py").write_text(PLAN)
    put(tmp_path, 0, 1, 2)
    for point in "stream.record:1", "wave.logged:1", "stream.noted:1", "stream.rows:1":
        run = ferryman(tmp_path, crash=point)
        said, _ = run.communicate()
        assert run.returncode == -signal.SIGKILL, f"{point}: {said}"
    run = ferryman(tmp_path)
    said, _ = run.communicate()
    assert run.returncode == 0, said
    assert numbers(tmp_path) == numbers(tmp_path, "log.db") == [0, 1, 2]

    checkpoint = next(tmp_path.glob(".ferryman/*/streams/stream/checkpoint"))
    shutil.copytree(checkpoint, tmp_path / "older")
    put(tmp_path, 3)
    watching = ferryman(tmp_path, "--watch")
    wait_until(lambda: 3 in numbers(tmp_path))
    put(tmp_path, 4)
    wait_until(lambda: 4 in numbers(tmp_path))
    watching.terminate()
    said, _ = watching.communicate()
    assert watching.returncode == 130, said
    assert numbers(tmp_path, "log.db") == [0, 1, 2, 3, 4]

    shutil.rmtree(checkpoint)
    (tmp_path / "older").rename(checkpoint)
    (tmp_path / "in" / "3.json").unlink()
    put(tmp_path, 5)
    run = ferryman(tmp_path)
    said, _ = run.communicate()
    assert run.returncode == 4, said
    assert "has other offsets than the batch of this number" in said
    assert numbers(tmp_path, "log.db") == [0, 1, 2, 3, 4]
