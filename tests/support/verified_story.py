"""A program to kill: runs a plan, loses and changes rows once, verifies and repairs, runs again, and says what is left.

Started again after a kill, it goes through the same steps. ``python -m tests.support.verified_story FOLDER [beside]``:
beside a run, which holds the state, so that the repair is queued.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing, nullcontext
from pathlib import Path

from ferryman import Document
from ferryman.destinations import Sql
from ferryman.plan import Plan
from ferryman.sources import Memory
from ferryman.state.state import State
from ferryman.verification import verify
from tests.support.plan_world import run_plan


def pages(doc: Document) -> list[Document]:
    return [doc, doc.child("a", raw=doc.raw), doc.child("b", raw=doc.raw)]


def build(folder: Path, documents: list[dict[str, object]]) -> Plan:
    plan = Plan("story", version=1)
    source = plan.source("docs", Memory(documents, max_deleted=1.0)).step("pages", pages)
    source.tee("log", Sql(f"sqlite:///{folder}/log.db", mode="append")).destination(
        "out", Sql(f"sqlite:///{folder}/out.db")
    )
    return plan


def damage(folder: Path) -> None:
    """Lose, change and bring back rows, once."""
    with closing(sqlite3.connect(folder / "out.db")) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS damaged (at)")
        if db.execute("SELECT 1 FROM damaged").fetchone():
            return
        db.execute("DELETE FROM documents WHERE id IN ('d3', 'd4#a', 'd5', 'd5#a', 'd5#b')")
        db.execute("UPDATE documents SET text = 'changed' WHERE id IN ('d6', 'd7#b')")
        db.execute(
            "INSERT INTO documents SELECT * FROM kept WHERE id NOT IN (SELECT id FROM documents) AND id LIKE 'gone%'"
        )
        db.execute("INSERT INTO damaged VALUES (1)")


def main(place: str, beside: str = "") -> None:
    folder = Path(place)
    documents: list[dict[str, object]] = [{"id": f"d{n}", "raw": b"text %d" % n} for n in range(12)]
    if not (folder / "first").exists():
        first = [*documents, {"id": "gone", "raw": b"gone"}]
        run_plan(build(folder, first), folder / "state")
        with closing(sqlite3.connect(folder / "out.db")) as db, db:
            db.execute("CREATE TABLE IF NOT EXISTS kept AS SELECT * FROM documents")
        (folder / "first").touch()
    plan = build(folder, documents)
    run_plan(plan, folder / "state", checked=False)
    damage(folder)
    held = State.take(folder / "state" / plan.key, plan) if beside else nullcontext()
    with held:
        verify(plan, state=folder / "state", repair=True, delete_extra=True)
    run_plan(plan, folder / "state")
    with closing(sqlite3.connect(folder / "log.db")) as db:
        [(logged,)] = db.execute("SELECT count(*) FROM documents").fetchall()
    sys.stdout.write(f"{verify(plan, state=folder / 'state').exit} {logged}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
