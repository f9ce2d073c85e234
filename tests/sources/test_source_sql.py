"""The ``Sql`` source, over SQLite, PostgreSQL, MariaDB and MySQL."""

from __future__ import annotations

import os
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.destinations.mysql import MySqlDatabase, mysql_database
from tests.destinations.postgres import Database, database, postgres
from tests.servers.postgres import PASSWORD

from ferryman.document import Document
from ferryman.errors import BadDocument, TransientError, UsageError
from ferryman.sources import Listed, Source, Sql
from ferryman.sources.sql import FETCH_ROWS, Range
from ferryman.testing.sources import SourceSuite

__all__ = ["database", "mysql_database", "postgres"]

ROWS = "CREATE TABLE articles (id integer PRIMARY KEY, title text, body text, at text)"
QUERY = "SELECT id, title, body, at FROM articles ORDER BY id"


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def fill(n: int = 5) -> list[str]:
    return [f"INSERT INTO articles VALUES ({i}, 'Title {i}', 'body {i}', 'v1')" for i in range(1, n + 1)]


class TestOnSQLite(SourceSuite):
    more: dict[str, Any] = {"content": "body"}  # noqa: RUF012 - a constant

    def url(self, folder: Path) -> str:
        return f"sqlite:///{folder / 'shop.db'}"

    def run(self, folder: Path, *statements: str) -> None:
        execute(folder / "shop.db", *statements)

    def source(self, folder: Path) -> Sql:
        self.folder = folder
        self.run(folder, ROWS, *fill())
        return Sql(self.url(folder), QUERY, id="id", **self.more)

    def absent(self, folder: Path) -> Sql:
        return Sql(self.url(folder), QUERY, id="id")

    def change(self, source: Source, id: str) -> None:
        self.run(self.folder, f"UPDATE articles SET title = 'changed', at = 'v2' WHERE id = {id}")

    def remove(self, source: Source, id: str) -> None:
        self.run(self.folder, f"DELETE FROM articles WHERE id = {id}")


class TestChangedOnSQLite(TestOnSQLite):
    more = {"changed": "at"}  # noqa: RUF012


class TestSplitOnSQLite(TestOnSQLite):
    more = {"split": "id", "pieces": 3}  # noqa: RUF012


class TestOnMySql(TestOnSQLite):
    @pytest.fixture(autouse=True)
    def _database(self, mysql_database: MySqlDatabase) -> None:
        self.database = mysql_database

    def url(self, folder: Path) -> str:
        return self.database.url

    def run(self, folder: Path, *statements: str) -> None:
        for statement in statements:
            self.database.query(statement)


@pytest.mark.slow
class TestChangedOnMySql(TestOnMySql):
    more = {"changed": "at"}  # noqa: RUF012


@pytest.mark.slow
class TestSplitOnMySql(TestOnMySql):
    more = {"split": "id", "pieces": 3}  # noqa: RUF012


class TestOnPostgres(TestOnSQLite):
    @pytest.fixture(autouse=True)
    def _database(self, database: Database) -> None:
        self.database = database

    def url(self, folder: Path) -> str:
        return self.database.url

    def run(self, folder: Path, *statements: str) -> None:
        for statement in statements:
            self.database.query(statement)


class TestChangedOnPostgres(TestOnPostgres):
    more = {"changed": "at", "content": "body"}  # noqa: RUF012


class TestSplitOnPostgres(TestOnPostgres):
    more = {"split": "id", "pieces": 3}  # noqa: RUF012


# --- what it brings ---------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def scan(source: Sql) -> list[Any]:
    return [entry for piece in source.partitions() for entry in source.listing(piece)]


def only(source: Sql) -> Document:
    [document] = scan(source)
    assert isinstance(document, Document), document
    return document


def test_values_become_json(database: Database) -> None:
    """Of every common type: text that does not depend on the session, decimals exact, bytes as base64."""
    source = Sql(
        database.url,
        """
        SELECT 'a' AS id, NULL AS nothing, true AS yes, 1::bigint << 62 AS big, 1.5::float8 AS number,
            'NaN'::float8 AS nan, 12345678901234567890.1234500::numeric AS money, date '2024-02-29' AS day,
            timestamp '2024-05-01 10:00' AS local, timestamptz '2024-05-01 10:00:00.25+02' AS instant,
            time '23:59' AS late, interval '1 day 2 hours' AS span, '\\x00ff'::bytea AS bytes,
            '{"a": [1, null]}'::jsonb AS doc, array[1, 2] AS numbers, array[date '2024-01-01'] AS days,
            '6a2f41a3-c54c-fce8-32d2-0324e1c32e22'::uuid AS key, inet '10.0.0.1' AS address, '12:30' AS colon,
            '50% off' AS percent, 5 % 3 AS modulo
        """,
        id="id",
    )
    assert only(source).fields == {
        "id": "a",
        "nothing": None,
        "yes": True,
        "big": 1 << 62,
        "number": 1.5,
        "nan": None,
        "money": "12345678901234567890.1234500",
        "day": "2024-02-29",
        "local": "2024-05-01T10:00:00",
        "instant": "2024-05-01T08:00:00.250000Z",
        "late": "23:59:00",
        "span": "P1DT7200S",
        "bytes": "AP8=",
        "doc": {"a": [1, None]},
        "numbers": [1, 2],
        "days": ["2024-01-01"],
        "key": "6a2f41a3-c54c-fce8-32d2-0324e1c32e22",
        "address": "10.0.0.1",
        "colon": "12:30",
        "percent": "50% off",
        "modulo": 2,
    }


def test_values_of_mysql_become_json(mysql_database: MySqlDatabase) -> None:
    """Exact to the last digit; a TIMESTAMP in UTC, whatever the server's time zone is; a percent sign and a colon in
    the query are themselves."""
    mysql_database.query(
        "CREATE TABLE things (id VARCHAR(50) PRIMARY KEY, price DECIMAL(30,10), big BIGINT UNSIGNED, ratio DOUBLE, "
        "moment TIMESTAMP NULL, local DATETIME(3), day DATE, flag BOOLEAN, data VARBINARY(9), doc JSON, word TEXT)"
    )
    mysql_database.query(
        "INSERT INTO things VALUES ('a#1', 12345678901234567890.0123456789, 18446744073709551615, 0.1, "
        "FROM_UNIXTIME(1714557600), '2024-05-01 10:00:00.125', '2024-05-01', TRUE, x'00ff', '[1]', '100% a:b')"
    )
    query = "SELECT *, '%s :x' AS `per%cent` FROM things WHERE word LIKE '%a:b'"
    source = Sql(mysql_database.url, query, id="id", changed="moment")
    source.check()
    [listed] = source.listing(Range())
    assert isinstance(listed, Listed)
    document = source.read(listed)
    assert (document.id, document.fields) == (
        "a#1",
        {
            "id": "a#1",
            "price": "12345678901234567890.0123456789",
            "big": 2**64 - 1,
            "ratio": 0.1,
            "moment": "2024-05-01T10:00:00",
            "local": "2024-05-01T10:00:00.125000",
            "day": "2024-05-01",
            "flag": 1,
            "data": "AP8=",
            "doc": "[1]",
            "word": "100% a:b",
            "per%cent": "%s :x",
        },
    )


def test_errors_of_mysql(mysql_database: MySqlDatabase) -> None:
    """What its user has to correct; a server that is away is waited for."""
    with pytest.raises(UsageError, match=r"doesn't exist.*: correct the URL, the query or the rights"):
        Sql(mysql_database.url, "SELECT id FROM nowhere", id="id").check()
    with pytest.raises(UsageError, match="Access denied"):
        Sql(mysql_database.url.replace("not-so-secret", "wrong"), "SELECT 1 AS id", id="id").check()
    mysql_database.server.kill()
    try:
        with pytest.raises(TransientError, match="it is tried again"):
            Sql(mysql_database.url, "SELECT 1 AS id", id="id").check()
    finally:
        mysql_database.server.start()


def test_an_instant_is_the_same_in_every_time_zone(database: Database) -> None:
    """The session's time zone does not change a document's version."""
    query = "SELECT 1 AS id, timestamptz '2024-05-01 10:00Z' AS at"
    here = only(Sql(database.url, query, id="id"))
    there = only(Sql(f"{database.url}%20-ctimezone%3DAsia/Tokyo", query, id="id"))
    assert here == there
    assert here["at"] == "2024-05-01T10:00:00Z"


@pytest.mark.parametrize(
    ("value", "raw"),
    [("'Brontë'", "Brontë".encode()), ("x'00ff'", b"\0\xff"), ("NULL", None), ("''", b"")],
)
def test_content_becomes_the_raw_bytes(path: Path, value: str, raw: bytes | None) -> None:
    """Text as UTF-8, binary as it is, NULL as no content; it is no field."""
    execute(path, "CREATE TABLE t (id, body)", f"INSERT INTO t VALUES (1, {value})")
    document = only(Sql(url(path), "SELECT * FROM t;", id="id", content="body"))
    assert (document.id, document.raw, document.fields) == ("1", raw, {"id": 1})


def test_ids_are_text_or_numbers(database: Database) -> None:
    """A number's text is taken, a UUID's too; what else there is, is refused by name."""
    for value, text in (("7", "7"), ("1.50::numeric", "1.50"), ("'a b'", "a b"), (f"'{uuid.UUID(int=5)}'::uuid", None)):
        assert only(Sql(database.url, f"SELECT {value} AS id", id="id")).id == (text or str(uuid.UUID(int=5)))
    with pytest.raises(UsageError, match=r"id='id' holds a bytes; an id is text or a number"):
        scan(Sql(database.url, "SELECT '\\x00'::bytea AS id", id="id"))


def test_rows_without_an_id_make_the_listing_incomplete(path: Path) -> None:
    """The others are listed; then it says how many there are, and shows the first."""
    execute(path, "CREATE TABLE t (id, name)", "INSERT INTO t VALUES ('a', 1), (NULL, 'nobody'), ('', 2), ('b', 3)")
    listing = Sql(url(path), "SELECT * FROM t", id="id").listing(Range())
    assert [next(listing).id, next(listing).id] == ["a", "b"]
    with pytest.raises(BadDocument, match=r"2 of 4 rows have no 'id'.*id=None, name='nobody'.*IS NOT NULL"):
        next(listing)


def test_a_value_that_json_has_not_harms_its_row(database: Database) -> None:
    """It is refused by id and column; the others are documents."""
    source = Sql(
        database.url,
        "SELECT i AS id, CASE i WHEN 2 THEN int4range(1, 5) END AS r FROM generate_series(1, 3) i",
        id="id",
    )
    entries = scan(source)
    assert [type(entry) for entry in entries] == [Document, Listed, Document]
    assert entries[1].refused == "2: column 'r' holds a Range: JSON cannot hold it. Cast it in the query."


def test_text_that_is_not_utf8_harms_its_row(path: Path) -> None:
    """SQLite keeps any bytes as text: in a field they are refused with the row, as content they are bytes."""
    execute(path, "CREATE TABLE t (id, body)", "INSERT INTO t VALUES (1, CAST(x'63ff' AS TEXT)), (2, 'fine')")
    one, two = scan(Sql(url(path), "SELECT * FROM t", id="id", content="body"))
    assert (one.raw, two.raw) == (b"c\xff", b"fine")
    one, two = scan(Sql(url(path), "SELECT * FROM t", id="id"))
    with pytest.raises(UnicodeEncodeError):
        one["body"].encode()
    assert two["body"] == "fine"


# --- large tables -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 2, 7, 100])
def test_ranges_leave_nothing_out(path: Path, pieces: int) -> None:
    """Every row once, NULLs in the split column too, and rows beyond what the ends were when it was cut."""
    execute(
        path, "CREATE TABLE t (id, n)", "INSERT INTO t VALUES ('null', NULL), ('-5', -5), ('0', 0), ('1', 1), ('9', 9)"
    )
    source = Sql(url(path), "SELECT * FROM t", id="id", split="n", pieces=pieces)
    ranges = source.partitions()
    assert len(ranges) <= pieces
    execute(path, "INSERT INTO t VALUES ('-99', -99), ('99', 99)")
    ids = [entry.id for piece in ranges for entry in source.listing(piece)]
    assert sorted(ids) == sorted(["null", "-5", "0", "1", "9", "-99", "99"])


def test_infinite_numbers_leave_no_range_out(path: Path) -> None:
    """Half way between them is NaN, with which SQLite compares nothing."""
    execute(path, "CREATE TABLE t (id INTEGER, n REAL)", "INSERT INTO t VALUES (1, -9e999), (2, 5), (3, 9e999)")
    source = Sql(url(path), "SELECT * FROM t", id="id", split="n", pieces=4)
    assert sorted(entry.id for piece in source.partitions() for entry in source.listing(piece)) == ["1", "2", "3"]
    execute(path, "DELETE FROM t", "INSERT INTO t VALUES (1, 5), (2, 'many')")
    with pytest.raises(UsageError, match=r"split='n' holds a str"):
        source.partitions()


def test_dates_and_decimals_can_be_split_text_cannot(database: Database) -> None:
    """The error says what to give instead."""
    rows = "FROM generate_series(0, 99) i"
    for column in ("date '2024-01-01' + i", "timestamptz '2024-01-01Z' + i * interval '1 hour'", "i::numeric / 7"):
        source = Sql(database.url, f"SELECT i AS id, {column} AS at {rows}", id="id", split="at", pieces=4)
        ranges = source.partitions()
        counts = [len(list(source.listing(piece))) for piece in ranges]
        assert sum(counts) == 100
        assert min(counts) >= 20
    with pytest.raises(UsageError, match=r"split='name' holds a str.*numbers or dates"):
        Sql(database.url, f"SELECT i AS id, 'n' || i AS name {rows}", id="id", split="name").partitions()


def test_a_large_result_is_streamed(database: Database) -> None:
    """After the first row the server has made few of the others: a worker never holds them all."""
    database.query("CREATE SEQUENCE made")
    source = Sql(
        database.url, "SELECT nextval('made') AS id, repeat('x', 1000) AS t FROM generate_series(1, 100000)", id="id"
    )
    listing = source.listing(Range())
    assert next(listing).id == "1"
    [(made,)] = database.query("SELECT last_value FROM made")
    assert made <= 2 * FETCH_ROWS
    listing.close()


# --- only what has changed --------------------------------------------------------------------------------------------


def test_changed_asks_for_ids_and_that_column_only(path: Path) -> None:
    """The listing has fingerprints; content is read by id, a number staying a number."""
    execute(path, ROWS, *fill(3))
    source = Sql(url(path), QUERY, id="id", content="body", changed="at")
    assert source.detect == "fingerprint"
    entries = scan(source)
    assert [(e.id, e.fingerprint) for e in entries] == [("1", "v1"), ("2", "v1"), ("3", "v1")]
    assert source.read(entries[1]).raw == b"body 2"
    execute(path, "UPDATE articles SET body = 'new' WHERE id = 2")
    assert source.read(entries[1]).raw == b"new"


def test_a_time_just_now_is_not_trusted(database: Database) -> None:
    """What changed within the tick of a clock may change again: it is read in the next scan too. So is NULL."""
    ages = {"now()": "", "NULL::timestamptz": "", "now() - interval '1 hour'": "Z", "now() AT TIME ZONE 'UTC'": ""}
    for value, end in ages.items():
        [entry] = scan(Sql(database.url, f"SELECT 1 AS id, {value} AS at", id="id", changed="at"))
        assert bool(entry.fingerprint) == bool(end), value
        assert entry.fingerprint.endswith(end)


def test_a_time_just_now_is_not_trusted_whatever_its_form(path: Path) -> None:
    """SQLite has no type for times: two changes in a second, a minute or a day leave the same text or number."""
    now = "datetime('now')"
    forms = {
        now: "datetime('now', '-2 days')",
        "strftime('%Y-%m-%dT%H:%M:%SZ', 'now')": "strftime('%Y-%m-%dT%H:%M:%SZ', 'now', '-1 hour')",
        "datetime('now', '+90 minutes')": "datetime('now', '+97 minutes')",
        "strftime('%Y-%m-%d %H:%M', 'now')": "strftime('%Y-%m-%d %H:%M', 'now', '-7 minutes')",
        "date('now')": "date('now', '-3 days')",
        "strftime('%s', 'now')": "'0' || strftime('%s', 'now', '-1 hour')",
        "unixepoch()": "unixepoch() - 60",
        "unixepoch() * 1000 + 7": "unixepoch() * 1000000 - 60000000",
        "unixepoch('subsec') * 1.0": "1.5",
        "NULL": "'version 7'",
    }
    execute(path, ROWS)
    for recent, old in forms.items():
        [entry] = scan(Sql(url(path), f"SELECT 1 AS id, {recent} AS at", id="id", changed="at"))
        assert entry.fingerprint == "", recent
        [entry] = scan(Sql(url(path), f"SELECT 1 AS id, {old} AS at", id="id", changed="at"))
        assert entry.fingerprint, old


def test_a_reader_mends_its_connection(database: Database) -> None:
    """A connection that is lost between two reads is the source's trouble for now; the next read has a new one."""
    database.query(
        ROWS,
    )
    database.query(fill(1)[0])
    source = Sql(database.url, QUERY, id="id", changed="at")
    [entry] = scan(source)
    assert source.read(entry).id == "1"
    others = "pid <> pg_backend_pid() AND backend_type = 'client backend'"
    database.query(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
    with pytest.raises(TransientError, match="terminating connection"):
        source.read(entry)
    assert source.read(entry).id == "1"


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "more", "says"),
    [
        ("SELEC 1", {}, "syntax error"),
        ("SELECT * FROM nowhere", {}, "nowhere"),
        ("SELECT 1 AS a, 2 AS b", {}, r"id='id': the query has no such column. It has: a, b"),
        ("SELECT 1 AS id", {"content": "body"}, r"content='body': the query has no such column"),
        ("SELECT 1 AS id", {"changed": "at"}, r"changed='at'"),
        ("SELECT 1 AS id", {"split": "n"}, r"split='n'"),
        ("DELETE FROM articles", {}, "syntax error"),
    ],
)
@pytest.mark.parametrize("where", ["sqlite", "postgres"])
def test_check_says_what_is_wrong_with_the_query(
    query: str, more: dict[str, str], says: str, where: str, path: Path, database: Database
) -> None:
    """Before anything is listed; nothing is changed."""
    execute(path, ROWS)
    database.query(ROWS)
    with pytest.raises(UsageError, match=says) as caught:
        Sql(url(path) if where == "sqlite" else database.url, query, id="id", **more).check()
    assert PASSWORD not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_columns_of_one_name_are_refused(path: Path) -> None:
    """A field could only have one of them. (SQLite renames them within a subquery, PostgreSQL does not.)"""
    execute(path, ROWS)
    Sql(url(path), "SELECT id, title FROM articles", id="id").check()


def test_a_server_that_is_down_is_waited_for(database: Database) -> None:
    """It is no fault of the plan: transient; a wrong password or a missing database is for a person."""
    port = database.server.another_port()
    with pytest.raises(TransientError, match="refused") as down:
        Sql(database.url_at(port), "SELECT 1 AS id", id="id").check()
    assert down.value.universal
    for bad in (database.url.replace(PASSWORD, "wrong-password"), database.server.url_of("nowhere")):
        with pytest.raises(UsageError, match=r"password|does not exist") as caught:
            Sql(bad, "SELECT 1 AS id", id="id").check()
        assert "wrong-password" not in str(caught.value)
        assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Sql("no url", "SELECT 1", id="id"), "SQLAlchemy"),
        (lambda: Sql("sqlite://", "SELECT 1", id="id"), "in memory"),
        (lambda: Sql("sqlite:///x.db", "SELECT 1", id="id", pieces=0), "pieces=0"),
        (lambda: Sql("mysql+nosuch://me:hidden@host/db", "SELECT 1", id="id").check(), "not installed"),
    ],
)
def test_wrong_arguments_are_refused(make: Any, says: str) -> None:
    """The error says which, and shows no password."""
    with pytest.raises(UsageError, match=says) as caught:
        make()
    assert "hidden" not in str(caught.value)


def test_a_password_is_not_shown() -> None:
    """Neither by the source nor by its pickled copy."""
    source = Sql("postgresql://me:hidden@host/db", "SELECT 1 AS id", id="id")
    assert "hidden" not in repr(source)
    assert "me" in repr(source)


def test_a_locked_database_is_tried_again(path: Path) -> None:
    """Another program's lock on an SQLite file is transient."""
    execute(path, ROWS)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TransientError, match="locked"):
            Sql(f"{url(path)}?timeout=0.05", QUERY, id="id").check()


def test_a_missing_file_is_not_made(path: Path) -> None:
    """SQLite would make an empty one."""
    with pytest.raises(UsageError, match="no such file"):
        Sql(url(path), QUERY, id="id").check()
    assert os.listdir(path.parent) == []


def test_it_reads_only(path: Path) -> None:
    """A query that writes is refused by SQLite itself."""
    execute(path, ROWS)
    connection = Sql(url(path), QUERY, id="id")._open()
    with pytest.raises(Exception, match="readonly"):
        connection.exec_driver_sql("DELETE FROM articles")
    connection.close()
