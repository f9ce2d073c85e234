"""``Sql`` on PostgreSQL: its errors."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from unittest import mock

import psycopg
import pytest
import sqlalchemy as sa

from ferryman.destinations import Outcome, Sql
from ferryman.destinations.sql import postgresql
from ferryman.errors import DeliveryError, PermanentError, TransientError
from ferryman.net import faults
from ferryman.testing.destinations import delivery
from tests.destinations.postgres import Database, database, postgres
from tests.destinations.sql_table import CONTEXT, opened
from tests.servers.postgres import PASSWORD

__all__ = ["database", "postgres"]


OK, STALE = Outcome.ok(), Outcome.stale()


def fault(call: Callable[[], object]) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        call()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert PASSWORD not in f"{caught.value} {caught.value!r}"
    return caught.value


@pytest.mark.parametrize("state", sorted(faults.POSTGRESQL))
def test_errors_say_what_to_do(database: Database, state: str) -> None:
    """Every SQLSTATE that we know, raised by the server itself: where, what, and what happens next."""
    kind, remedy = faults.POSTGRESQL[state]
    with psycopg.connect(database.url) as connection, pytest.raises(psycopg.Error) as caught:
        connection.execute(f"DO $$ BEGIN RAISE EXCEPTION 'it failed' USING ERRCODE = '{state:0<5}'; END $$")
    said = postgresql.PostgreSQL().explain(caught.value, "here")
    assert type(said) is kind
    assert str(said) == f"here: it failed: {remedy}."


def test_other_errors_are_left_alone() -> None:
    """What is not the database's is not explained away."""
    assert postgresql.PostgreSQL().explain(KeyError("x"), "here") is None


def test_a_server_that_is_down_and_one_that_refuses(database: Database) -> None:
    """Nobody there: transient. Wrong password, no such database or user: permanent. All universal, without secrets."""
    down = fault(Sql(database.url_at(database.server.another_port())).check)
    assert isinstance(down, TransientError)
    assert "refused" in str(down)
    for url in (
        database.url.replace(PASSWORD, f"{PASSWORD}-not"),
        database.server.url_of("nowhere"),
        database.server.url_of("postgres", user="nobody"),
        database.url.replace(f":{PASSWORD}", ""),
    ):
        for call in (Sql(url).check, lambda url=url: Sql(url).open(CONTEXT)):  # type: ignore[misc]
            refused = fault(call)
            assert isinstance(refused, PermanentError), url
            assert "then run again" in str(refused)
            assert refused.universal
    assert down.universal


def test_a_user_without_rights_is_told(database: Database) -> None:
    """Permanent and universal: a person must grant them."""
    Sql(database.url).check()
    database.query(f"DROP ROLE IF EXISTS {database.name}")
    database.query(f"CREATE ROLE {database.name} LOGIN PASSWORD 'their-own'")
    database.query(f"GRANT USAGE ON SCHEMA {database.name} TO {database.name}")
    url = database.url.replace(f"postgres:{PASSWORD}", f"{database.name}:their-own")
    sql = Sql(url)
    sql.open(CONTEXT)
    refused = fault(lambda: sql.write([delivery("a", 1)]))
    sql.close()
    assert isinstance(refused, PermanentError)
    assert refused.universal
    assert "permission denied" in str(refused)
    assert "grant this user the right" in str(refused)


def test_a_table_that_vanishes_is_made_again(database: Database) -> None:
    """A table dropped in use is the database's trouble; the next wave's check makes it again."""
    sql = opened(Sql(database.url))
    database.query("DROP TABLE documents")
    gone = fault(lambda: sql.write([delivery("a", 1)]))
    assert isinstance(gone, TransientError)
    assert gone.universal
    sql.check()
    assert sql.write([delivery("a", 1)]) == [OK]
    sql.close()


def test_foreign_tables_are_refused(database: Database) -> None:
    """Without our columns, or of the other mode: named, with what to do; not touched."""
    database.query("CREATE TABLE documents (id text PRIMARY KEY, text text)")
    error = fault(Sql(database.url).check)
    assert "has no column parent_id" in str(error)
    assert "ADD COLUMN sequence BIGINT" in str(error)
    Sql(database.url, table="other").check()
    assert isinstance(fault(Sql(database.url, table="other", mode="append").check), PermanentError)


def test_a_lost_connection_is_made_anew(database: Database) -> None:
    """The write in which it is lost is the server's trouble; the next one goes on with a new one."""
    sql = opened(Sql(database.url))
    [(ended,)] = database.query(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    assert ended > 0
    lost = fault(lambda: sql.write([delivery("a", 1)]))
    assert isinstance(lost, TransientError)
    assert lost.universal
    assert sql.write([delivery("a", 1)]) == [OK]
    sql.close()
    sql.close()


def test_a_session_that_cannot_be_set_up_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pooler that refuses a setting is asked again and again, and each session takes one of its places."""
    session = mock.Mock()
    session.execute.side_effect = psycopg.errors.FeatureNotSupported("unsupported startup parameter")
    monkeypatch.setattr(psycopg, "connect", lambda **_: session)
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        postgresql.connect(sa.make_url("postgresql+psycopg://me@127.0.0.1:1/db"))
    session.close.assert_called_once_with()
