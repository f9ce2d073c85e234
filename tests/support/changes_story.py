"""A program to kill: a plan follows two tables of PostgreSQL into SQLite.

``story`` goes through four rounds of changes, a round of which is applied once, however often the program is started
again; at the end it says what arrived. ``run`` only runs the plan, for a test that changes the tables itself, and
``remove`` removes what it left on the server.

``python -m tests.support.changes_story story|run|remove FOLDER URL``
"""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from ferryman.destinations import Sql
from ferryman.operations import remove_retained
from ferryman.plan import Plan
from ferryman.sources import PostgresChanges, postgres_changes
from tests.support.plan_world import run_plan

TABLES = ("items", "more")

ROUNDS = [
    """
    CREATE TABLE items (id int PRIMARY KEY, name text);
    CREATE TABLE more (id int PRIMARY KEY, name text);
    INSERT INTO items SELECT i, 'item ' || i FROM generate_series(1, 8) i;
    INSERT INTO more SELECT i, 'more ' || i FROM generate_series(1, 8) i
    """,
    """
    UPDATE items SET name = 'changed' WHERE id < 3;
    DELETE FROM items WHERE id = 3;
    UPDATE items SET id = 40 WHERE id = 4;
    INSERT INTO more VALUES (9, 'nine');
    DELETE FROM more WHERE id = 1;
    INSERT INTO more VALUES (1, 'again')
    """,
    """
    UPDATE more SET name = 'gone soon';
    TRUNCATE more;
    INSERT INTO more VALUES (2, 'two'), (20, 'twenty');
    UPDATE items SET name = 'third' WHERE id = 5
    """,
    """
    DELETE FROM items WHERE id = 6;
    UPDATE more SET name = 'last' WHERE id = 20
    """,
]


def build(folder: Path, url: str, number: int = 0) -> Plan:
    """Make the plan; the number has ``items`` copied again when it changes."""
    plan = Plan("story", version=1)
    tables = plan.source("docs", PostgresChanges(url, TABLES, copy={"items": number}, max_deleted=1.0))
    tables.tee("log", Sql(f"sqlite:///{folder}/log.db", mode="append")).destination(
        "out", Sql(f"sqlite:///{folder}/out.db", columns={"name": "name"}), backoff=0
    )
    return plan


def run(folder: Path, url: str, number: int = 0) -> Any:
    return run_plan(build(folder, url, number), folder / "state", wait=0, wave_bytes=200)


def indexed(folder: Path) -> dict[str, str]:
    """Ids and names as SQLite has them."""
    with closing(sqlite3.connect(folder / "out.db")) as db:
        return dict(db.execute("SELECT id, name FROM documents").fetchall())


def doubles(folder: Path) -> int:
    """Count the deliveries that arrived more than once."""
    with closing(sqlite3.connect(folder / "log.db")) as db:
        query = "SELECT count(*) - count(DISTINCT delivery_hash) FROM documents"
        return int(db.execute(query).fetchone()[0])


def rows(url: str) -> dict[str, str]:
    """Ids and names as the server has them."""
    with psycopg.connect(url) as connection:
        return {
            f"{table}/{id}": name
            for table in TABLES
            for id, name in connection.execute(f"SELECT id, name FROM {table}").fetchall()  # type: ignore[arg-type]
        }


def apply_round(url: str, number: int) -> None:
    """Change the tables, unless that was done before."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS done (number int)")
        [(done,)] = connection.execute("SELECT count(*) FROM done").fetchall()
        if done == number:
            for statement in ROUNDS[number].split(";"):
                connection.execute(statement)  # type: ignore[arg-type]
            connection.execute("INSERT INTO done VALUES (%s)", [number])


def story(folder: Path, url: str) -> None:
    postgres_changes.COPY_BYTES = 1
    postgres_changes.SEGMENT_BYTES = 1
    done = folder / "rounds"
    done.touch()
    for number in range(len(ROUNDS)):
        if done.stat().st_size <= number:
            apply_round(url, number)
            summary = run(folder, url, number // 3)
            with done.open("a") as file:
                file.write("x")
    summary = run(folder, url, 1)
    with psycopg.connect(url) as connection:
        query = "SELECT count(*), count(*) FILTER (WHERE temporary) FROM pg_replication_slots"
        [slots] = connection.execute(query).fetchall()
    sys.stdout.write(json.dumps([summary.exit, indexed(folder) == rows(url), doubles(folder), *slots]))


def remove(folder: Path, url: str) -> None:
    for kept in remove_retained(build(folder, url), state=folder / "state"):
        sys.stdout.write(kept.place)


def main(verb: str, folder: str, url: str) -> None:
    {"story": story, "run": run, "remove": remove}[verb](Path(folder), url)


if __name__ == "__main__":
    main(*sys.argv[1:])
