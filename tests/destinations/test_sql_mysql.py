"""What is special about ``Sql`` on MariaDB and MySQL: keys, types, writers that meet, limits, errors."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from unittest import mock

import pymysql
import pytest

from ferryman.destinations import Delivery, Outcome, Sql
from ferryman.destinations.sql import mysql
from ferryman.destinations.sql.layout import Layout
from ferryman.destinations.sql.search import search
from ferryman.errors import DeliveryError, Misconfigured, PermanentError, PlanError, TransientError, Unavailable
from ferryman.net import databases, faults
from ferryman.testing.destinations import delete, delivery
from tests.destinations.mysql import MySqlDatabase, mysql_database
from tests.destinations.sql_table import CONTEXT, at_once, check_many_writers, check_table, opened

__all__ = ["mysql_database"]

OK, STALE = Outcome.ok(), Outcome.stale()


def kinds(outcomes: list[Outcome]) -> list[str]:
    return [outcome.kind for outcome in outcomes]


# --- rows -------------------------------------------------------------------------------------------------------------


def test_a_row_has_all_that_a_delivery_has(mysql_database: MySqlDatabase) -> None:
    """Every part of a delivery has its column, and reads back as it was written."""
    one = Delivery(
        "a.txt#2",
        hash="f" * 32,
        sequence=2**52,
        fields={"title": "Henry", "tags": [1, None], "path": "C:\\new\ttab", "price": 1.1, "fair": True},
        raw="Brontë\\N\n\t\r\\. 👩‍👧 \0 '\"".encode(),
        version="e" * 32,
        source="files",
        parent_id="a.txt#1",
        origin_id="a.txt",
        route=("left", "up"),
    )
    columns = {name: name for name in ("tags", "price", "fair")}
    sql = opened(Sql(mysql_database.url, columns=columns))
    assert sql.write([one, delivery("none", 1, None), delivery("empty", 2, "")]) == [OK] * 3
    sql.close()
    names = "id, parent_id, origin_id, source, version, sequence, delivery_hash, route, text, fields, tags, price, fair"
    fields = '{"fair":true,"path":"C:\\\\new\\ttab","price":1.1,"tags":[1,null],"title":"Henry"}'
    assert mysql_database.query(f"SELECT {names} FROM documents WHERE id LIKE 'a%%'") == [
        (
            *("a.txt#2", "a.txt#1", "a.txt", "files", "e" * 32, 2**52, "f" * 32, '["left","up"]'),
            *(one.text(), fields, "[1,null]", "1.1", "1"),
        )
    ]
    assert mysql_database.query("SELECT id, text FROM documents WHERE sequence < 9 ORDER BY sequence") == [
        ("none", None),
        ("empty", ""),
    ]
    assert mysql_database.query("SELECT JSON_EXTRACT(fields, '$.tags[0]') FROM documents WHERE parent_id <> ''")
    found = Sql(mysql_database.url, columns=columns).lookup("a.txt#2")
    assert found is not None
    assert (found.fields, found.text) == (one.fields, one.text())
    assert all(each.intact for each in sql.inventory(CONTEXT))


IDS = [
    "a",
    "A",
    "á",
    "a ",
    "a\0",
    " a",
    "ａ",
    "ß",
    "ss",
    "l" * 45,
    "l" * 3072,
    "汉" * 1024,
    "'; DROP TABLE documents; --",
    "%s",
]


@pytest.mark.rule("mysql.ids")
@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_ids_that_collations_fold_are_different_documents(mysql_database: MySqlDatabase, mode: Any) -> None:
    """Case, accents, width, blanks and NULs at the end; as long as an index takes. One byte more is refused alone."""
    sql = opened(Sql(mysql_database.url, mode=mode))
    chunk = [delivery(id, n) for n, id in enumerate(IDS, 1)]
    longer = [] if mode == "append" else [delivery("l" * 3073, 100)]
    outcomes = sql.write([*chunk, *longer])
    assert kinds(outcomes) == ["ok"] * len(chunk) + ["permanent"] * len(longer)
    assert kinds(sql.write([delete("a", 200)])) == ["ok"]
    sql.close()
    expected = set(IDS) - ({"a"} if mode == "upsert" else set())
    assert {each.id for each in sql.inventory(CONTEXT, set(IDS))} == expected
    assert sql.lookup("A") is not None
    assert sql.lookup("a") is None  # deleted, or its last delivery is a delete


def test_a_column_takes_what_its_type_reads(mysql_database: MySqlDatabase) -> None:
    """A value that its type refuses harms its own document; others are stored as the type has them, and count as
    unchanged."""
    sql = Sql(mysql_database.url, columns={n: n for n in ("year", "when", "price", "ratio", "doc", "flag")})
    sql.check()
    mysql_database.query(
        "ALTER TABLE documents MODIFY year INT, MODIFY `when` DATETIME, MODIFY price DECIMAL(8,2), MODIFY ratio FLOAT, "
        "MODIFY doc JSON, MODIFY flag TINYINT(1)"
    )
    fields = {"year": 1599, "when": "2024-05-01 10:00:00", "price": 2.5, "ratio": 1.23456789, "flag": True}
    chunk = [delivery("good", 1, fields={**fields, "doc": {"a": [1]}}), delivery("none", 2)]
    chunk += [delivery("bad", 3, fields={"year": "about 1600"}), delivery("huge", 4, fields={"year": 2**40})]
    chunk += [delivery("date", 5, fields={"when": "2024-13-45"}), delivery("json", 6, fields={"doc": "{"})]
    opened(sql)
    outcomes = sql.write(chunk)
    sql.close()
    assert kinds(outcomes) == ["ok", "ok", *["permanent"] * 4]
    assert outcomes[2].why.startswith("the database refuses it: Incorrect integer value")
    assert not any(outcome.universal for outcome in outcomes)
    assert [each.intact for each in sql.inventory(CONTEXT)] == [True, True]
    mysql_database.query("UPDATE documents SET year = 1600 WHERE id = 'good'")
    assert {each.id: each.intact for each in sql.inventory(CONTEXT)} == {"good": False, "none": True}


# --- what is there already --------------------------------------------------------------------------------------------


@pytest.mark.rule("mysql.ids")
@pytest.mark.parametrize(
    "type_",
    ["VARCHAR(255) COLLATE utf8mb4_general_ci", "VARCHAR(255) COLLATE utf8mb4_bin", "CHAR(200) CHARACTER SET latin1",
     "BINARY(200)"],
)  # fmt: skip
@pytest.mark.parametrize("table", ["documents", "documents_tombstones"])
def test_a_key_that_folds_is_refused(mysql_database: MySqlDatabase, type_: str, table: str) -> None:
    """Case or padding: ``utf8mb4_bin`` too ignores blanks at the end. The message has the statement that helps."""
    sql = opened(Sql(mysql_database.url))
    sql.write([delivery("a", 1)])
    sql.close()
    mysql_database.query(f"ALTER TABLE {table} MODIFY id {type_} NOT NULL")
    with pytest.raises(Misconfigured, match=r"blanks at the end.*ALTER TABLE `\w+` MODIFY id VARBINARY") as caught:
        Sql(mysql_database.url).check()
    assert caught.value.universal
    statement = str(caught.value).partition("ALTER TABLE")[2].partition(", or give")[0]
    mysql_database.query(f"ALTER TABLE {statement}")
    Sql(mysql_database.url).check()


def test_a_key_that_keeps_all_apart_is_taken(mysql_database: MySqlDatabase) -> None:
    sql = opened(Sql(mysql_database.url))
    kind = "utf8mb4_nopad_bin" if mysql_database.server.name == "mariadb" else "utf8mb4_0900_bin"
    try:
        mysql_database.query(f"ALTER TABLE documents MODIFY id VARCHAR(255) COLLATE {kind} NOT NULL")
    except pymysql.err.OperationalError:  # MySQL 8.0.17 has it
        pytest.skip(f"this server has no {kind}")
    Sql(mysql_database.url).check()
    assert sql.write([delivery("a", 1), delivery("a ", 2), delivery("A", 3)]) == [OK] * 3
    sql.close()


@pytest.mark.rule("mysql.ids")
def test_a_table_without_transactions_is_refused(mysql_database: MySqlDatabase) -> None:
    Sql(mysql_database.url).check()
    mysql_database.query("ALTER TABLE documents MODIFY id VARBINARY(200) NOT NULL, ENGINE=MyISAM")
    with pytest.raises(Misconfigured, match="MyISAM, which has no transactions"):
        Sql(mysql_database.url).check()


def test_a_foreign_table_is_refused(mysql_database: MySqlDatabase) -> None:
    mysql_database.query("CREATE TABLE documents (id VARBINARY(300) PRIMARY KEY, title TEXT) ENGINE=InnoDB")
    with pytest.raises(Misconfigured, match="has no column parent_id"):
        Sql(mysql_database.url).check()


def test_a_table_that_is_made_again_is_another_one(mysql_database: MySqlDatabase) -> None:
    """Also if the driver was killed while it made it: the old identity goes before the new table comes."""
    sql = opened(Sql(mysql_database.url))
    sql.write([delivery("a", 7)])
    sql.close()
    first = sql.identity()
    assert first
    assert (sql.highest_sequence(), sql.highest_of(CONTEXT)) == (7, 7)
    mysql_database.query("DROP TABLE documents")
    assert sql.identity() == ""
    with (
        mock.patch("uuid.uuid4", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        sql.check()
    sql.check()
    assert sql.identity() not in ("", first)
    assert sql.highest_of(CONTEXT) is None


# --- writers that meet ------------------------------------------------------------------------------------------------


@pytest.mark.rule("mysql.newest")
def test_the_sequence_is_assigned_last(mysql_database: MySqlDatabase) -> None:
    """The upsert compares each column with the sequence that is there, not with the one that it sets: an older row
    changes nothing, a newer one everything."""
    Sql(mysql_database.url, columns={"title": "title"}).check()
    layout = Layout("documents", "upsert", {"title": "title"}, mysql.MySQL.column_types)
    statements = mysql.MySqlStatements(layout)
    for sequence, expected in ((5, 5), (3, 5), (5, 5), (9, 9)):
        values = dict.fromkeys(layout.names, f"of {sequence}") | {"sequence": sequence, "id": "a"}
        row = mysql.row_text([values[name] for name in layout.names], layout.names)
        mysql_database.query((statements.insert + row + statements.replace).replace("%", "%%"))
        [(title, text, digest, there)] = mysql_database.query(
            "SELECT title, text, delivery_hash, sequence FROM documents"
        )
        assert (title, text, digest, there) == (*(f"of {expected}",) * 3, expected)
    assert mysql.newer(["sequence", "title"]).endswith(",sequence=GREATEST(sequence,VALUES(sequence))")


@pytest.mark.rule("destination.stale", "mysql.newest")
def test_of_many_writers_the_newest_sequence_wins(mysql_database: MySqlDatabase) -> None:
    """Three processes write versions of the same ids at once: of each id the newest is in force, deletes included, and
    no id is both there and deleted."""
    check_many_writers(mysql_database, tries_again=True)


def test_who_is_overtaken_begins_again(mysql_database: MySqlDatabase) -> None:
    """A newer version that comes in between looking and writing is not overwritten: the late one is stale."""
    sql, other = opened(Sql(mysql_database.url)), opened(Sql(mysql_database.url))
    rows, rounds = Layout.rows, []

    def meanwhile(layout: Layout, chunk: list[Delivery]) -> Iterator[tuple[Any, ...]]:
        rounds.append(len(chunk))
        if len(rounds) == 1:
            assert other.write([delivery("a", 9)]) == [OK]
        return rows(layout, chunk)

    with mock.patch.object(Layout, "rows", meanwhile):
        assert sql.write([delivery("a", 5), delivery("b", 6)]) == [STALE, OK]
    assert rounds[0] == 2
    sql.close()
    other.close()
    assert dict(mysql_database.query("SELECT id, sequence FROM documents")) == {"a": 9, "b": 6}


def test_a_delete_waits_for_those_who_upsert(mysql_database: MySqlDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is in the middle of upserting, a delete of the same new id is not done: nothing comes back after it."""
    Sql(mysql_database.url).check()
    monkeypatch.setattr(mysql, "LOCK_TIMEOUT_S", 1)
    deleting, other = opened(Sql(mysql_database.url)), opened(Sql(mysql_database.url))
    with closing(mysql.connect(databases.parse_url(mysql_database.url))) as upserting:
        upserting.cursor().execute("SELECT id FROM ferryman_tables WHERE name = 'documents' LOCK IN SHARE MODE")
        with pytest.raises(TransientError, match="lock") as caught:
            deleting.write([delete("a", 2)])
        assert caught.value.universal
        assert other.write([delivery("b", 1)]) == [OK]
    assert deleting.write([delete("a", 2)]) == [OK]
    for sql in (deleting, other):
        sql.close()


@pytest.mark.rule("mysql.newest")
def test_deadlocks_are_begun_again(mysql_database: MySqlDatabase) -> None:
    """A transaction that the server gives up for another's sake is repeated, a few times; then it is tried later."""
    sql = opened(Sql(mysql_database.url))
    deadlock = pymysql.err.OperationalError(1213, "Deadlock found when trying to get lock")
    commit, times = pymysql.Connection.commit, []

    def unlucky(connection: Any) -> None:
        times.append(1)
        if len(times) < mysql.TRIES:
            raise deadlock
        commit(connection)

    with mock.patch.object(pymysql.Connection, "commit", unlucky):
        assert sql.write([delivery("a", 1)]) == [OK]
    with (
        mock.patch.object(pymysql.Connection, "commit", side_effect=deadlock),
        pytest.raises(Unavailable, match="other writers"),
    ):
        sql.write([delivery("b", 2)])
    sql.close()
    assert mysql_database.query("SELECT id FROM documents") == [("a",)]


def test_a_unique_column_of_somebody_elses(mysql_database: MySqlDatabase) -> None:
    """A second document with the same value is refused; it never takes the first one's row."""
    sql = opened(Sql(mysql_database.url, columns={"isbn": "isbn"}))
    mysql_database.query("ALTER TABLE documents MODIFY isbn VARCHAR(20), ADD UNIQUE (isbn)")
    assert sql.write([delivery("a", 1, fields={"isbn": "1"}), delivery("b", 2, fields={"isbn": "2"})]) == [OK, OK]
    outcomes = sql.write([delivery("c", 3, fields={"isbn": "1"}), delivery("b", 4, fields={"isbn": "1"})])
    assert kinds(outcomes) == ["permanent", "permanent"]
    assert "Duplicate entry" in outcomes[0].why
    sql.close()
    assert mysql_database.query("SELECT id, isbn FROM documents ORDER BY id") == [("a", "1"), ("b", "2")]


def test_several_drivers_may_make_the_tables_at_once(mysql_database: MySqlDatabase) -> None:
    """``check`` of three processes at the same moment makes one table with one identity."""
    at_once(3, check_table, mysql_database.url, {"columns": {"title": "title"}})
    assert len(mysql_database.query("SELECT id FROM ferryman_tables")) == 1


# --- limits and errors ------------------------------------------------------------------------------------------------


@pytest.mark.rule("mysql.packet")
def test_what_is_larger_than_a_packet_harms_only_its_document(mysql_database: MySqlDatabase) -> None:
    """A document beyond ``max_allowed_packet`` is refused with that name; many that are large together are sent in
    several statements of one transaction."""
    sql = opened(Sql(mysql_database.url))
    chunk = [delivery(f"doc-{n}", n, "x" * 3_000_000) for n in range(1, 9)]
    chunk.insert(3, delivery("large", 100, "x" * 17_000_000))
    outcomes = sql.write(chunk)
    sql.close()
    assert kinds(outcomes) == ["ok"] * 3 + ["permanent"] + ["ok"] * 5
    assert "max_allowed_packet=16777216" in outcomes[3].why
    assert not outcomes[3].universal
    assert all(each.intact for each in sql.inventory(CONTEXT))


def test_a_server_whose_commits_do_not_wait_for_the_disk(
    mysql_database: MySqlDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    mysql_database.query("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    try:
        with caplog.at_level(logging.WARNING):
            Sql(mysql_database.url).check()
    finally:
        mysql_database.query("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    assert "innodb_flush_log_at_trx_commit=2" in caplog.text


@pytest.mark.parametrize("number", sorted(faults.MYSQL))
def test_errors_say_what_to_do(number: int) -> None:
    """Where, what, and what happens next; picklable."""
    kind, remedy = faults.MYSQL[number]
    said = mysql.MySQL().explain(pymysql.err.OperationalError(number, "it\nfailed"), "here")
    assert isinstance(said, kind)
    assert str(said) == f"here: it failed: {remedy}."
    assert str(pickle.loads(pickle.dumps(said))) == str(said)


def test_what_the_server_refuses(mysql_database: MySqlDatabase) -> None:
    """A database that is not there, a table that was dropped in use, a column that was, a user without rights."""

    def error(sql: Sql) -> DeliveryError:
        with pytest.raises(DeliveryError) as caught:
            sql.write([delivery("a", 1)])
        return caught.value

    with pytest.raises(Misconfigured, match="create the database"):
        Sql(mysql_database.server.url_of("nowhere")).check()
    sql = opened(Sql(mysql_database.url))
    mysql_database.query("ALTER TABLE documents DROP COLUMN source")
    assert isinstance(error(sql), Misconfigured)
    mysql_database.query("DROP TABLE documents")
    assert isinstance(error(sql), Unavailable)
    sql.check()
    assert sql.write([delivery("a", 1)]) == [OK]
    sql.close()
    mysql_database.query(f"CREATE USER reader_{mysql_database.name}@'%%' IDENTIFIED BY 'secret'")
    mysql_database.query(f"GRANT SELECT ON {mysql_database.name}.* TO reader_{mysql_database.name}@'%%'")
    url = f"mysql://reader_{mysql_database.name}:secret@127.0.0.1:{mysql_database.server.port}/{mysql_database.name}"
    reader = Sql(url)
    reader.open(CONTEXT)
    refused = error(reader)
    assert isinstance(refused, Misconfigured)
    assert "grant this user the right" in str(refused)
    reader.close()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"url": "mysql://host"}, "names no database"),
        ({"url": "mysql+mysqldb://host/db"}, "write mysql:// or mariadb://"),
        ({"table": "a.b.c"}, "database.table"),
        ({"table": "t" * 60}, "too long"),
        ({"columns": {"c" * 65: "c"}}, "has 65 characters"),
        ({"columns": {"c ": "c"}}, "blank at its end"),
        ({"full_text": ["text"]}, "full_text: MySQL's index leaves out"),
        ({"vectors": {"v": 3}}, "vectors: not on MySQL"),
    ],
)
def test_arguments_that_cannot_be_meant(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        Sql(**{"url": "mysql://me@host/db", **arguments})


def test_the_two_schemes_are_one_target() -> None:
    """Without user and password."""
    assert Sql("mariadb://me:secret@host:3306/db").target() == Sql("mysql://host:3306/db").target()
    assert Sql("mysql://me:secret@host/db").target() == "mysql://host/db#documents"
    with pytest.raises(Exception, match="searching works in SQLite and PostgreSQL"):
        search("mysql://host/db", "words")


def test_a_password_without_the_package_that_encrypts_it() -> None:
    """PyMySQL says it with a plain RuntimeError."""
    said = mysql.MySQL().explain(RuntimeError("'cryptography' package is required for sha256_password"), "here")
    assert isinstance(said, Misconfigured)
    assert mysql.MySQL().explain(RuntimeError("another"), "here") is None
    assert isinstance(mysql.MySQL().explain(UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no"), "here"), PermanentError)
