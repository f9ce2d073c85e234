"""Plans that follow tables of PostgreSQL, killed at every step and at random: SQLite has what the tables have, once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.destinations.postgres import Database, database, postgres
from tests.support import changes_story
from tests.support.plan_world import place

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


def command(verb: str, place: Path, database: Database) -> list[str]:
    return [sys.executable, "-m", "tests.support.changes_story", verb, str(place), database.url]


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
    killed = subprocess.run(
        command("story", place, followed),
        env={**os.environ, "FERRYMAN_CRASH": point},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = subprocess.run(command("story", place, followed), capture_output=True, text=True, check=False)
    assert done.stdout == "[0, true, 0, 1, 0]", done.stderr


@pytest.mark.slow
@pytest.mark.rule("tables.left")
def test_killed_while_what_is_left_is_removed(place: Path, followed: Database) -> None:
    changes_story.apply_round(followed.url, 0)
    changes_story.run(place, followed.url)
    env = {**os.environ, "FERRYMAN_CRASH": "changes.dropped"}
    killed = subprocess.run(command("remove", place, followed), env=env, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    [(publication,)] = followed.query("SELECT pubname FROM pg_publication")
    done = subprocess.run(command("remove", place, followed), capture_output=True, text=True, check=False)
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
    usual_s = 2 + time.monotonic() - began  # with the start of a process
    done = 0
    while done < kills:
        change_tables(followed, chance)
        child = subprocess.Popen(command("run", place, followed), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            change_tables(followed, chance)  # while it runs
            child.wait(chance.uniform(0.2, 1.0) * usual_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            done += 1
        changes_story.run(place, followed.url)
        assert changes_story.indexed(place) == changes_story.rows(followed.url), f"after {done} kills"
        assert changes_story.doubles(place) == 0
    [slots] = followed.query("SELECT count(*), count(*) FILTER (WHERE temporary) FROM pg_replication_slots")
    assert slots == (1, 0)
