"""The how-to guides about databases are true: their commands and queries are run with real servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from ferryman.destinations.sql import sqlite_vectors
from tests.destinations.mysql import MySqlDatabase, mysql_database
from tests.destinations.postgres import Database, database, postgres
from tests.servers.debian import library_path
from tests.servers.redis import PASSWORD, RedisServer
from tests.support.page import HOW_TO, QuickShell
from tests.support.plan_world import place

__all__ = ["database", "mysql_database", "place", "postgres"]


@pytest.fixture
def shell(place: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[QuickShell]:
    monkeypatch.setenv("DATABASE_URL", database.url)
    with QuickShell(place) as made:
        yield made


def test_index_into_postgresql(shell: QuickShell, database: Database) -> None:
    """The page's commands, then its queries."""
    page = HOW_TO / "index-into-postgresql.md"
    shell.follow(page)
    queries = re.findall(r"^```sql\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(queries) == 2
    for query in queries:
        database.query(query)


def test_vectors_in_postgresql(shell: QuickShell, database: Database) -> None:
    """The page's commands, then its query."""
    page = HOW_TO / "vectors-in-postgresql.md"
    shell.follow(page)
    [query] = re.findall(r"^```sql\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(f"SET search_path = {database.name}, public")  # type: ignore[arg-type]  # as users have it
        assert len(connection.execute(query).fetchall()) == 3  # type: ignore[arg-type]


def test_vectors_in_sqlite(place: Path) -> None:
    """The page's commands, then its query."""
    page = HOW_TO / "vectors-in-sqlite.md"
    with QuickShell(place) as shell:
        shell.follow(page)
    [query] = re.findall(r"^```sql\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    with closing(sqlite_vectors.connect(str(place / "notes.db"))) as connection:
        [(vector,)] = connection.execute("SELECT vector FROM documents_vectors LIMIT 1")
        assert len(connection.execute(query, (vector,)).fetchall()) == 3


def test_follow_a_table(shell: QuickShell, database: Database) -> None:
    """The page's commands; at their end nothing is left on the server."""
    shell.follow(HOW_TO / "follow-a-table.md")
    assert database.query("SELECT slot_name FROM pg_replication_slots") == []
    assert database.query("SELECT pubname FROM pg_publication") == []


def test_follow_a_delta_table(place: Path) -> None:
    """The page's commands."""
    with QuickShell(place) as shell:
        shell.follow(HOW_TO / "follow-a-delta-table.md")


def test_index_a_database(shell: QuickShell) -> None:
    """The page's commands."""
    shell.follow(HOW_TO / "index-a-database.md")


def test_index_into_mysql(place: Path, mysql_database: MySqlDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's commands, then its queries; the password in an option file, as the page has it."""
    (place / "my.cnf").write_text("[client]\npassword=not-so-secret\n")
    url = mysql_database.url.replace(":not-so-secret", "") + f"?read_default_file={place / 'my.cnf'}"
    monkeypatch.setenv("DATABASE_URL", url)
    page = HOW_TO / "index-into-mysql.md"
    with QuickShell(place) as shell:
        shell.follow(page)
    queries = re.findall(r"^```sql\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(queries) == 2
    assert mysql_database.query(queries[0]) == [("Henry V", "7", "34")]
    mysql_database.query(queries[1])


def test_index_into_redis(place: Path, server: Callable[[str], RedisServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's commands, with Redis' own client."""
    real = server("redis")
    monkeypatch.setenv("REDIS_URL", real.url)
    with QuickShell(place) as shell:
        client = place / "bin" / "redis-cli"
        client.write_text(
            f'#!/bin/sh\nLD_LIBRARY_PATH="{library_path(real.home)}" exec "{real.home}/usr/bin/redis-cli" '
            f'-p {real.port} -a "{PASSWORD}" --no-auth-warning "$@"\n'
        )
        client.chmod(0o755)
        shell.follow(HOW_TO / "index-into-redis.md")
