"""A program to kill: a plan reads a stream in three rounds, and at the end it says what arrived, and how often.

Started again after a kill, it goes on with the round in which it was. ``python -m tests.support.stream_story FOLDER``
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path

from ferryman.destinations import Sql
from ferryman.plan import Plan
from ferryman.sources import Stream
from tests.support.fake_stream import FakeSpark, append
from tests.support.plan_world import run_plan

ROUNDS = 3
ROWS = 7


def build(folder: Path) -> Plan:
    plan = Plan("story", version=1)
    stream = Stream(lambda spark: spark.read_stream(folder / "rows.jsonl"), kept_batches=1)
    node = plan.source("stream", stream).tee("log", Sql(f"sqlite:///{folder}/log.db", mode="append"))
    node.destination("out", Sql(f"sqlite:///{folder}/out.db", columns={"n": "n"}))
    return plan


def main(place: str) -> None:
    folder = Path(place)
    done = folder / "rounds"
    done.touch()
    for number in range(ROUNDS):
        if done.stat().st_size <= number:
            if not (folder / f"put-{number}").exists():
                lines = (folder / "rows.jsonl").read_text().splitlines() if (folder / "rows.jsonl").exists() else []
                append(folder / "rows.jsonl", ({"id": "x", "n": n} for n in range(len(lines), ROWS * (number + 1))))
                (folder / f"put-{number}").touch()
            run_plan(build(folder), folder / "state", runner=FakeSpark(), wave_bytes=2048)
            with done.open("a") as file:
                file.write("x")
    summary = run_plan(build(folder), folder / "state", runner=FakeSpark())
    with closing(sqlite3.connect(folder / "out.db")) as db:
        found = [n for (n,) in db.execute("SELECT n FROM documents ORDER BY CAST(id AS INTEGER)").fetchall()]
    with closing(sqlite3.connect(folder / "log.db")) as db:
        [(logged, distinct)] = db.execute("SELECT count(*), count(DISTINCT delivery_hash) FROM documents").fetchall()
    parts = len(list((folder / "state" / "story-v1" / "streams" / "stream" / "batches").glob("*.parquet")))
    threads = [each.name for each in threading.enumerate() if each.name == "fake-query"]
    wanted = list(map(str, range(ROUNDS * ROWS)))
    sys.stdout.write(
        json.dumps([summary.exit, list(map(str, found)) == wanted, logged == distinct, parts <= 4, threads])
    )
    sys.stdout.flush()
    os._exit(0 if not threads else 1)


if __name__ == "__main__":
    main(sys.argv[1])
