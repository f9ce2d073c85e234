"""A program to kill: a plan follows a feed of changes through three rounds, in which documents wait, fail, are deleted
and are retried; at the end it says what arrived.

Started again after a kill, it goes on with the round in which it was. ``python -m tests.support.feed_story FOLDER``
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from ferryman import Document
from ferryman.destinations import Sql
from ferryman.errors import PermanentError, TransientError
from ferryman.operations import retry
from ferryman.plan import Plan
from ferryman.sources import Cursor
from tests.support.plan_world import run_plan

ROUNDS: list[list[tuple[str, int | None]]] = [
    [*((f"d{n}", 1) for n in range(8)), ("waits", 1), ("fails", 1)],
    [("d1", 2), ("d2", None), ("new", 1), ("waits", 2)],
    [("d1", 3), ("d1", 4), ("d3", None), ("d3", 5)],
]
"""Changes of each round: id and content; None: deleted."""

WANTED = {"d0": 1, "d1": 4, "d3": 5, "d4": 1, "d5": 1, "d6": 1, "d7": 1, "new": 1, "waits": 2, "fails": 1}


def build(folder: Path, changes: list[tuple[str, int | None]]) -> Plan:
    def read(cursor: int | None) -> Iterator[tuple[Any, int]]:
        for number, (id, n) in enumerate(changes, 1):
            if number > (cursor or 0):
                yield ({"id": id, "n": n} if n is not None else Document.deleted(id)), number

    def work(doc: Document) -> Document:
        if not (folder / "mended").exists():
            if doc.id == "waits":
                raise TransientError("not yet")
            if doc.id == "fails":
                raise PermanentError("never")
        return doc

    plan = Plan("story", version=1)
    node = plan.source("docs", Cursor(read, ordered=True)).step("work", work)
    node.tee("log", Sql(f"sqlite:///{folder}/log.db", mode="append")).destination(
        "out", Sql(f"sqlite:///{folder}/out.db", columns={"n": "n"}), backoff=0
    )
    return plan


def main(place: str) -> None:
    folder = Path(place)
    done = folder / "rounds"
    done.touch()
    changes = []
    for number, more in enumerate(ROUNDS):
        changes += more
        if done.stat().st_size <= number:
            run_plan(build(folder, changes), folder / "state", wait=0, wave_bytes=40)
            with done.open("a") as file:
                file.write("x")
    (folder / "mended").touch()
    plan = build(folder, changes)
    retry(plan, state=folder / "state")
    run_plan(plan, folder / "state")
    summary = run_plan(plan, folder / "state")
    with closing(sqlite3.connect(folder / "out.db")) as db:
        found = dict(db.execute("SELECT id, n FROM documents").fetchall())
    with closing(sqlite3.connect(folder / "log.db")) as db:
        query = "SELECT count(*), count(DISTINCT delivery_hash) FROM documents"
        [(logged, distinct)] = db.execute(query).fetchall()
    kept = [path.name for path in (folder / "state" / "story-v1" / "sources" / "docs").glob("*.parquet")]
    sys.stdout.write(json.dumps([summary.exit, found == WANTED, logged == distinct, kept]))


if __name__ == "__main__":
    main(sys.argv[1])
