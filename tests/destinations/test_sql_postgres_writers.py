"""``Sql`` on PostgreSQL: writers that meet."""

from __future__ import annotations

from typing import Any
from unittest import mock

import psycopg
import pytest
from psycopg.errors import DeadlockDetected

from ferryman.destinations import Delivery, Outcome, Sql
from ferryman.destinations.sql import postgresql
from ferryman.errors import TransientError
from ferryman.testing.destinations import delete, delivery
from tests.destinations.postgres import Database, database, postgres
from tests.destinations.sql_table import at_once, check_many_writers, check_table, opened

__all__ = ["database", "postgres"]


OK, STALE = Outcome.ok(), Outcome.stale()


@pytest.mark.rule("destination.stale")
def test_of_many_writers_the_newest_sequence_wins(database: Database) -> None:
    """Three processes write versions of the same ids at once: of each id the newest is in force, deletes included, and
    no id is both there and deleted."""
    check_many_writers(database, full_text=["text"])


def test_who_is_overtaken_begins_again(database: Database) -> None:
    """A newer version that comes in between looking and writing is not overwritten: the late one is stale."""
    sql, other = opened(Sql(database.url)), opened(Sql(database.url))
    sql.write([delivery("known", 1)])
    inner = sql._writer
    assert isinstance(inner, postgresql.PostgresWriter)
    inner._expects_new = False
    put, rounds = inner._put_through_stage, []

    def meanwhile(*args: Any) -> int:
        rounds.append(1)
        if len(rounds) == 1:
            assert other.write([delivery("a", 9)]) == [OK]
        return put(*args)

    with mock.patch.object(inner, "_put_through_stage", meanwhile):
        assert sql.write([delivery("a", 5), delivery("b", 6)]) == [STALE, OK]
    assert len(rounds) == 2
    sql.close()
    other.close()
    assert dict(database.query("SELECT id, sequence FROM documents")) == {"known": 1, "a": 9, "b": 6}


def test_a_delete_waits_for_those_who_upsert(database: Database) -> None:
    """While one is in the middle of upserting, a delete of the same new id is not done: nothing comes back after it."""
    Sql(database.url).check()
    with psycopg.connect(database.url) as upserting:
        upserting.execute(
            "SELECT pg_advisory_xact_lock_shared(%s, 'documents'::regclass::oid::int)", [postgresql.LOCKS]
        )
        deleting = opened(Sql(database.url))
        inner = deleting._writer
        assert isinstance(inner, postgresql.PostgresWriter)
        inner._connection.execute("SET lock_timeout = '50ms'")
        with pytest.raises(TransientError, match="lock") as caught:
            deleting.write([delete("a", 2)])
        assert caught.value.universal
        others = opened(Sql(database.url))
        assert others.write([delivery("b", 1)]) == [OK]
        others.close()
    assert deleting.write([delete("a", 2)]) == [OK]
    deleting.close()


def test_deadlocks_are_begun_again(database: Database) -> None:
    """A transaction that the server gives up for another's sake is repeated, a few times; then it is tried later."""
    sql = opened(Sql(database.url))
    inner = sql._writer
    assert isinstance(inner, postgresql.PostgresWriter)
    real, times = inner._write, []

    def unlucky(chunk: list[Delivery]) -> list[Outcome]:
        times.append(1)
        if len(times) < postgresql.TRIES:
            raise DeadlockDetected("deadlock detected")
        return real(chunk)

    with mock.patch.object(inner, "_write", unlucky):
        assert sql.write([delivery("a", 1)]) == [OK]
    with mock.patch.object(inner, "_write", side_effect=DeadlockDetected("deadlock detected")) as always:
        with pytest.raises(TransientError, match="other writers") as caught:
            sql.write([delivery("b", 2)])
        assert caught.value.universal
        assert always.call_count == postgresql.TRIES
    sql.close()


def test_several_drivers_may_make_the_tables_at_once(database: Database) -> None:
    """``check`` of four processes at the same moment makes one table with one index."""
    at_once(4, check_table, database.url, {"columns": {"title": "title"}, "full_text": ["text", "title"]})


def test_a_commit_waits_for_the_disk(database: Database) -> None:
    """Also where the server's default is not to: what was confirmed survives a power cut."""
    assert database.query("SHOW synchronous_commit") == [("off",)]
    sql = opened(Sql(database.url))
    inner = sql._writer
    assert isinstance(inner, postgresql.PostgresWriter)
    assert inner._connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    sql.close()
