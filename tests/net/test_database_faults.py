"""One table of faults for each kind of database, and what steps, sources and destinations make of each row."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from ferryman.destinations.sql import postgresql, sqlite
from ferryman.errors import DeliveryError, Misconfigured, PermanentError, TransientError, Unavailable, UsageError
from ferryman.net import faults
from ferryman.net.faults import Fault, database_fault, is_connection_error
from ferryman.sources.sql import Sql


def of_postgresql(state: str) -> psycopg.Error:
    """The error with which psycopg reports this SQLSTATE; one for a whole class is one of its states."""
    full = f"{state:0<5}"
    try:
        return psycopg.errors.lookup(full)("it failed")
    except KeyError:
        kind = type("Unlisted", (psycopg.DatabaseError,), {"sqlstate": full, "__module__": "psycopg.errors"})
        error: psycopg.Error = kind("it failed")
        return error


def of_sqlite(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("it failed")
    error.sqlite_errorcode = code
    return error


def of_driver(package: str, *args: Any, kind: str = "OperationalError", **attributes: Any) -> Exception:
    """An error of a driver that is not installed here."""
    error: Exception = type(kind, (Exception,), {"__module__": package, **attributes})(*args)
    return error


POSTGRESQL = [pytest.param(of_postgresql(state), row, id=state) for state, row in faults.POSTGRESQL.items()]
SQLITE = [pytest.param(of_sqlite(code), row, id=str(code)) for code, row in faults.SQLITE.items()]
MYSQL = [
    pytest.param(error, row, id=f"{package} {number}")
    for number, row in faults.MYSQL.items()
    for package, error in (
        ("pymysql", of_driver("pymysql.err", number, "it failed")),
        ("mysql", of_driver("mysql.connector.errors", number, "it failed", errno=number, sqlstate="HY000")),
    )
]
ODBC = [
    pytest.param(of_driver("pyodbc", f"{state:0<5}", "it failed"), row, id=f"pyodbc {state}")
    for state, row in faults.ODBC.items()
]


@pytest.mark.rule("outage.connection")
@pytest.mark.parametrize(("error", "row"), [*POSTGRESQL, *SQLITE, *MYSQL, *ODBC])
def test_each_row_means_the_same_to_steps_and_sources(error: Exception, row: Fault) -> None:
    """A step's document waits without spending attempts if the whole database is away; a source waits for whatever
    passes by itself, and names everything else. SQLAlchemy's error means what the driver's does."""
    wrapped = sa.exc.DBAPIError.instance("SELECT 1", {}, error, Exception)
    assert database_fault(error) == database_fault(wrapped) == row
    assert is_connection_error(error) == is_connection_error(wrapped) == issubclass(row.kind, Unavailable)
    with (
        pytest.raises((Unavailable, UsageError)) as caught,
        Sql("sqlite:///x", "SELECT 1", id="a")._translated_errors(),
    ):
        raise wrapped
    assert isinstance(caught.value, Unavailable) == issubclass(row.kind, TransientError)


@pytest.mark.parametrize(("error", "row"), POSTGRESQL)
def test_each_row_means_the_same_to_the_destination_in_postgresql(error: Exception, row: Fault) -> None:
    said = postgresql.PostgreSQL().explain(error, "here")
    assert type(said) is row.kind
    assert str(said) == f"here: it failed: {row.remedy}."


@pytest.mark.parametrize(("error", "row"), SQLITE)
def test_each_row_means_the_same_to_the_destination_in_sqlite(error: Exception, row: Fault) -> None:
    said = sqlite.SQLite().explain(error, "here")
    assert type(said) is row.kind
    assert str(said) == f"here: it failed: {row.remedy}."


DECIDED: list[tuple[Exception, type[DeliveryError] | None]] = [
    # The states in which the tables of steps, sources and destinations once differed.
    (of_postgresql("25001"), Misconfigured),
    (of_postgresql("25006"), Unavailable),
    (of_postgresql("25P02"), Unavailable),
    (of_postgresql("25P03"), Unavailable),
    (of_postgresql("40001"), Unavailable),
    (of_postgresql("40P01"), Unavailable),
    (of_postgresql("53100"), Unavailable),
    (of_postgresql("53300"), Unavailable),
    (of_postgresql("55000"), Misconfigured),
    (of_postgresql("55006"), Unavailable),
    (of_postgresql("55P03"), Unavailable),
    (of_postgresql("57014"), TransientError),
    (of_postgresql("57P01"), Unavailable),
    (of_postgresql("57P04"), Misconfigured),
    (of_postgresql("58030"), Unavailable),
    (of_postgresql("XX000"), TransientError),
    (of_postgresql("XX001"), Misconfigured),
    (of_sqlite(sqlite3.SQLITE_FULL), Unavailable),
    (of_sqlite(sqlite3.SQLITE_IOERR_WRITE), Unavailable),
    (of_sqlite(sqlite3.SQLITE_IOERR_NOMEM), TransientError),
    (of_sqlite(sqlite3.SQLITE_BUSY_SNAPSHOT), Unavailable),
    (of_sqlite(sqlite3.SQLITE_ERROR), None),
    (of_driver("pymysql.err", 1045, "Access denied for user"), Misconfigured),
    (of_driver("pymysql.err", 1049, "Unknown database"), Misconfigured),
    (of_driver("pymysql.err", 1054, "Unknown column"), Misconfigured),
    (of_driver("pyodbc", "42S02", "Invalid object name", kind="ProgrammingError"), None),
    (of_driver("oracledb.exceptions", "DPY-6005: cannot connect to database"), Unavailable),
    (
        of_driver("asyncpg.exceptions", "terminating connection", kind="AdminShutdownError", sqlstate="57P01"),
        Unavailable,
    ),
    (psycopg.OperationalError("connection failed: Connection refused"), Unavailable),
    (psycopg.OperationalError('connection to server at "password.example.org" failed: timeout expired'), Unavailable),
    (psycopg.OperationalError('FATAL:  password authentication failed for user "me"'), Misconfigured),
    (psycopg.OperationalError("connection failed: fe_sendauth: no password supplied"), Misconfigured),
    (psycopg.OperationalError('FATAL:  no pg_hba.conf entry for host "10.0.0.1"'), Misconfigured),
    (psycopg.OperationalError('FATAL:  database "nowhere" does not exist'), Misconfigured),
    (psycopg.OperationalError('FATAL:  role "nobody" does not exist'), Misconfigured),
    (psycopg.OperationalError('FATAL:  database "db" is not currently accepting connections'), Unavailable),
    (psycopg.OperationalError("SSL error: certificate verify failed"), Misconfigured),
    (psycopg.OperationalError("server does not support SSL, but SSL was required"), Misconfigured),
    (psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"), None),
    (KeyError("title"), None),
]


@pytest.mark.parametrize(("error", "kind"), DECIDED, ids=lambda each: str(each)[:50])
def test_what_was_decided(error: Exception, kind: type[DeliveryError] | None) -> None:
    """An error passes if the database is away, busy or restarted; what it refuses, it refuses again."""
    fault = database_fault(error)
    assert (fault and fault.kind) is kind
    assert is_connection_error(error) == (kind is Unavailable)


def test_a_refused_user_is_not_waited_for_by_a_source(tmp_path: Path) -> None:
    """A server that demands TLS, or whose certificate is not trusted, does not change its mind."""
    for text in ("server does not support SSL, but SSL was required", "certificate verify failed"):
        error = sa.exc.OperationalError("SELECT 1", {}, psycopg.OperationalError(text))
        with (
            pytest.raises(UsageError, match="correct the URL"),
            Sql("sqlite:///x", "SELECT 1", id="a")._translated_errors(),
        ):
            raise error


@pytest.mark.parametrize("row", [*faults.POSTGRESQL.values(), *faults.SQLITE.values()])
def test_remedies_say_what_happens_next(row: Fault) -> None:
    """An error that passes is tried again; one of the whole database, that does not, is for an operator to fix."""
    assert issubclass(row.kind, TransientError | PermanentError)
    assert ("it is tried again" in row.remedy) == issubclass(row.kind, TransientError)
