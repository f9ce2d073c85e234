"""Plans that follow tables of PostgreSQL, killed at every step and at random: SQLite has what the tables have, once."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.destinations.postgres import Database, database, postgres
from tests.support import changes_story
from tests.support.plan_world import place
from tests.support.program import run_program

__all__ = ["database", "place", "postgres"]

pytestmark = pytest.mark.server

POINTS = {"changes.published": 7, "changes.slot": 1, "changes.advanced": 7, "changes.copied": 4, "changes.released": 7}
"""Points of ``PostgresChanges`` -> how often the story comes to them at least."""

OFTEN = {("changes.copied", 2)}
"""Kills of the short tests."""

OTHERS = ("scan.listed", "memory.written", "commit.ready", "wave.logged", "settle.closed")

KILLS = 50


@pytest.fixture
def followed(database: Database) -> Iterator[Database]:
    yield database
    drop_slots(database)


def drop_slots(database: Database) -> None:
    """Drop what the test has left, also what a killed process still holds."""
    query = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active"
    while database.query(query):
        pass
    database.query("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    for (name,) in database.query("SELECT pubname FROM pg_publication"):
        database.query(f'DROP PUBLICATION "{name}"')


def run_story(verb: str, place: Path, database: Database, **killed: Any) -> subprocess.CompletedProcess[str]:
    return run_program("tests.support.changes_story", verb, place, database.url, **killed)


@pytest.mark.parametrize(
    "point",
    [
        *(
            pytest.param(f"{name}:{n}", marks=() if (name, n) in OFTEN else pytest.mark.slow)
            for name, last in POINTS.items()
            for n in range(1, last + 1)
        ),
        *(pytest.param(f"{name}:{n}", marks=pytest.mark.slow) for name in OTHERS for n in range(1, 7)),
    ],
)
@pytest.mark.rule("tables.copy")
def test_killed_at_a_step(place: Path, followed: Database, point: str) -> None:
    killed = run_story("story", place, followed, point=point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run_story("story", place, followed)
    assert done.stdout == "[0, true, 0, 1, 0]", done.stderr


@pytest.mark.slow
@pytest.mark.rule("tables.left")
def test_killed_while_what_is_left_is_removed(place: Path, followed: Database) -> None:
    changes_story.apply_round(followed.url, 0)
    changes_story.run(place, followed.url)
    killed = run_story("remove", place, followed, point="changes.dropped")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    [(publication,)] = followed.query("SELECT pubname FROM pg_publication")
    done = run_story("remove", place, followed)
    assert publication in done.stdout, done.stderr
    assert followed.query("SELECT pubname FROM pg_publication") == []


def change_tables(database: Database, chance: random.Random) -> None:
    """Change the tables in a few transactions."""
    with psycopg.connect(database.url) as connection:
        for _ in range(chance.randint(1, 6)):
            for _ in range(chance.randint(1, 5)):
                table, id, other = chance.choice(changes_story.TABLES), chance.randint(1, 60), chance.randint(1, 60)
                statement = chance.choices(
                    [
                        f"INSERT INTO {table} VALUES ({id}, 'n{other}') ON CONFLICT (id) DO UPDATE SET name = 'm'",
                        f"UPDATE {table} SET name = name || '.' WHERE id BETWEEN {id} AND {id + 5}",
                        f"DELETE FROM {table} WHERE id = {id}",
                        f"UPDATE {table} SET id = {id + 1000 * other} WHERE id = {id}",
                        f"TRUNCATE {table}",
                    ],
                    [8, 4, 3, 2, 0.3],
                )[0]
                connection.execute(statement)  # type: ignore[arg-type]
            if chance.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()


@pytest.mark.parametrize("kills", [3, pytest.param(KILLS, marks=pytest.mark.slow)])
@pytest.mark.rule("tables.random")
def test_killed_at_random(place: Path, followed: Database, kills: int) -> None:
    """After each round, killed or not, SQLite has what the tables have."""
    chance = random.Random(kills)
    changes_story.apply_round(followed.url, 0)
    began = time.monotonic()
    changes_story.run(place, followed.url)
    assert changes_story.indexed(place) == changes_story.rows(followed.url)
    usual_s = time.monotonic() - began
    done = 0
    while done < kills:
        change_tables(followed, chance)
        with ThreadPoolExecutor(1) as pool:
            began = time.monotonic()
            child = pool.submit(run_story, "run", place, followed, kill_s=chance.uniform(0, usual_s))
            change_tables(followed, chance)  # while it runs
            ended = child.result()
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        done += ended.returncode != 0
        if ended.returncode == 0:
            usual_s = time.monotonic() - began
        changes_story.run(place, followed.url)
        assert changes_story.indexed(place) == changes_story.rows(followed.url), f"after {done} kills"
        assert changes_story.doubles(place) == 0
    [slots] = followed.query("SELECT count(*), count(*) FILTER (WHERE temporary) FROM pg_replication_slots")
    assert slots == (1, 0)
