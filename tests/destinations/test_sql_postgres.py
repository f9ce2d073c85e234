"""What is special about ``Sql`` on PostgreSQL: types, NULs, arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from ferryman.destinations import Delivery, Outcome, Sql
from ferryman.destinations.sql.layout import Mode
from ferryman.destinations.sql.search import search
from ferryman.errors import Misconfigured, PlanError
from ferryman.testing.destinations import delete, delivery
from tests.destinations.postgres import Database, database, postgres
from tests.destinations.sql_table import opened

__all__ = ["database", "postgres"]


OK, STALE = Outcome.ok(), Outcome.stale()


# --- the table --------------------------------------------------------------------------------------------------------


def test_a_row_has_all_that_a_delivery_has(database: Database) -> None:
    """Every part of a delivery has its column; route and fields are jsonb."""
    one = Delivery(
        "a.txt#2",
        hash="f" * 32,
        sequence=2**52,
        fields={"title": "Henry", "tags": [1, None], "path": "C:\\new\ttab"},
        raw="Brontë\\N\n\t\r\\.".encode(),
        version="e" * 32,
        source="files",
        parent_id="a.txt#1",
        origin_id="a.txt",
        route=("left", "up"),
    )
    sql = opened(Sql(database.url, columns={"tags": "tags"}))
    assert sql.write([one, delivery("none", 1, None), delivery("empty", 2, "")]) == [OK] * 3
    sql.close()
    names = "id, parent_id, origin_id, source, version, sequence, delivery_hash, route, text, fields, tags"
    assert database.query(f"SELECT {names} FROM documents WHERE id LIKE 'a%'") == [
        (
            *("a.txt#2", "a.txt#1", "a.txt", "files", "e" * 32, 2**52, "f" * 32, ["left", "up"]),
            *("Brontë\\N\n\t\r\\.", {"title": "Henry", "tags": [1, None], "path": "C:\\new\ttab"}, "[1,null]"),
        )
    ]
    assert database.query("SELECT id, text FROM documents WHERE sequence < 9 ORDER BY sequence") == [
        ("none", None),
        ("empty", ""),
    ]


def test_a_column_takes_what_its_type_reads(database: Database) -> None:
    """Columns are text, until somebody gives them a type; a value that it does not take harms its own document."""
    sql = Sql(database.url, columns={"year": "year", "when": "when", "flag": "flag", "doc": "doc"})
    sql.check()
    database.query(
        "ALTER TABLE documents ALTER year TYPE integer USING year::integer, "
        "ALTER flag TYPE boolean USING flag::boolean, "
        'ALTER "when" TYPE timestamptz USING "when"::timestamptz, ALTER doc TYPE jsonb USING doc::jsonb'
    )
    fields = {"year": 1599, "when": "2024-05-01T10:00:00Z", "flag": True, "doc": {"a": [1]}}
    chunk = [delivery("good", 1, fields=fields), delivery("bad", 2, fields={"year": "about 1600"})]
    chunk += [delivery("huge", 3, fields={"year": 2**40}), delivery("none", 4)]
    opened(sql)
    outcomes = sql.write(chunk)
    sql.close()
    assert [o.kind for o in outcomes] == ["ok", "permanent", "permanent", "ok"]
    assert outcomes[1].why.startswith('the database refuses it: invalid input syntax for type integer: "about 1600"')
    assert not outcomes[1].universal
    [row] = database.query("SELECT year, \"when\" AT TIME ZONE 'UTC', flag, doc FROM documents WHERE id = 'good'")
    assert (row[0], row[1].isoformat(), row[2], row[3]) == (1599, "2024-05-01T10:00:00", True, {"a": [1]})


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_nul_becomes_the_replacement_character(database: Database, mode: Any) -> None:
    """In text, fields and columns, as for bytes that are no text; backslashes that only look like one stay."""
    sql = opened(Sql(database.url, mode=mode, columns={"title": "title", "tags": "tags"}))
    fields = {"title": "a\0b", "tags": ["\0"], "deep": {"k\0": "\\u0000", "l": ["\0\\"]}}
    literal = delivery("literal", 2, r"a \u0000 in text", {"title": r"\u0000"})
    assert sql.write([delivery("a", 1, "x\0y", fields), literal]) == [OK, OK]
    sql.close()
    rows = {id: rest for id, *rest in database.query("SELECT id, text, fields, title FROM documents")}
    replaced = {"title": "a\ufffdb", "tags": ["\ufffd"], "deep": {"k\ufffd": "\\u0000", "l": ["\ufffd\\"]}}
    assert rows["a"] == ["x\ufffdy", replaced, "a\ufffdb"]
    assert rows["literal"] == [r"a \u0000 in text", {"title": r"\u0000"}, r"\u0000"]


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_an_id_with_a_nul_is_refused(database: Database, mode: Any) -> None:
    """Replaced, it could be another document's; a delete of it is refused too. The others are written."""
    sql = opened(Sql(database.url, mode=mode))
    chunk = [delivery("a\0b", 1), delivery("a\ufffdb", 2), delete("c\0", 3), delivery("d", 4)]
    outcomes = sql.write(chunk)
    sql.close()
    assert [o.kind for o in outcomes] == ["permanent", "ok", "permanent", "ok"]
    assert all("NUL" in o.why and not o.universal for o in outcomes if o.kind == "permanent")


def test_what_is_too_large_harms_only_its_document(database: Database) -> None:
    """An id beyond what an index holds, and more words than a tsvector: permanent, with PostgreSQL's words."""
    sql = opened(Sql(database.url, full_text=["text"]))
    words = " ".join(f"{i:x}" for i in range(400_000))
    noise = "".join(f"{hash(i) * 2654435761 % 2**64:x}" for i in range(1000))
    chunk = [delivery("good", 1), delivery("words", 2, words), delivery(noise, 3), delivery("fine", 4)]
    outcomes = sql.write(chunk)
    sql.close()
    assert [o.kind for o in outcomes] == ["ok", "permanent", "permanent", "ok"]
    assert "too long for tsvector" in outcomes[1].why
    assert "index row" in outcomes[2].why
    assert all("split it" in o.why for o in outcomes[1:3])


def test_control_characters_are_characters(database: Database) -> None:
    """Only NUL is none."""
    texts = [f"a{mark}b{mark}" for mark in "\x1d\x1e\x1f\x01\x7f"] + ["\x1d"]
    sql = opened(Sql(database.url, columns={"title": "title"}))
    assert sql.write([delivery(f"doc-{i}", i, t, {"title": t}) for i, t in enumerate(texts)]) == [OK] * len(texts)
    sql.close()
    rows = database.query("SELECT text, title, fields->>'title', parent_id FROM documents ORDER BY sequence")
    assert rows == [(t, t, t, None) for t in texts]


# --- arguments --------------------------------------------------------------------------------------------------------


def test_the_target_is_the_place_alone() -> None:
    """No user, no password, no options; many may write at once."""
    sql = Sql("postgresql+psycopg://me:hidden@db.example.org:5433/shop?sslmode=require&sslpassword=hidden", table="t")
    assert sql.target() == "postgresql://db.example.org:5433/shop#t"
    assert Sql("postgresql://me@/shop?host=/run/postgresql").target() == "postgresql:///run/postgresql/shop#documents"
    assert not sql.single_writer
    assert "hidden" not in repr(sql)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Sql("postgresql+asyncpg://me:hidden@host/db"), r"write postgresql://"),
        (lambda: Sql("postgresql://me:hidden@host/db", table="t" * 60), "too long"),
        (lambda: Sql("postgresql://me:hidden@host/db", columns={"fts": "f"}), "'fts' is the name of one of"),
        (lambda: Sql("postgres://me:hidden@host/db"), "not supported"),
    ],
)
def test_wrong_arguments_are_refused_when_the_plan_is_built(make: Callable[[], Sql], says: str) -> None:
    """The error says which argument, and what to write instead, and no password."""
    with pytest.raises(PlanError, match=says) as caught:
        make()
    assert "hidden" not in str(caught.value)


def test_a_missing_driver_is_named() -> None:
    """With what to install."""
    with mock.patch("ferryman.net.databases.find_spec", return_value=None), pytest.raises(PlanError) as caught:
        Sql("postgresql://host/db")
    assert "pip install 'ferryman[postgres]'" in str(caught.value)


@pytest.fixture
def archive(database: Database) -> Iterator[str]:
    """A schema that is not on the search path."""
    name = f'Archive of "{database.name}"'
    quoted = name.replace('"', '""')
    database.query(f'CREATE SCHEMA "{quoted}"')
    yield name
    database.query(f'DROP SCHEMA "{quoted}" CASCADE')


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_a_table_of_a_schema(database: Database, archive: str, mode: Mode) -> None:
    """Table, tombstones and index are in that schema; a table of this name elsewhere is another one."""
    Sql(database.url, table="books", mode=mode).check()
    for n in (0, 10):  # it is made, then found
        sql = opened(Sql(database.url, table=f"{archive}.books", mode=mode, full_text=["text"]))
        assert sql.write([delivery("a", n + 1, "a muse of fire"), delivery("b", n + 2)]) == [OK, OK]
        assert sql.write([delete("b", n + 3), delivery("a", n + 4, "more fire")]) == [OK, OK]
        sql.close()
    assert sql.highest_sequence() == 14
    assert [hit.id for hit in search(database.url, "more fire", table=f"{archive}.books")][:1] == ["a"]
    assert database.hashes("books") == []
    tables = database.query("SELECT table_name FROM information_schema.tables WHERE table_schema = %s", archive)
    assert {name for (name,) in tables} == {
        "books",
        "ferryman_tables",
        "ferryman_writers",
        *({"books_tombstones"} if mode == "upsert" else ()),
    }


def test_a_schema_that_is_not_there(database: Database) -> None:
    """An operator makes it: Ferryman does not know who should own it."""
    with pytest.raises(Misconfigured, match="create the schema"):
        Sql(database.url, table="nowhere.books").check()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"table": "a.b.c"}, "as table or as schema.table"),
        ({"table": ".books"}, "as table or as schema.table"),
        ({"table": "archive." + "b" * 53}, "the table's name is too long"),
        ({"table": "a" * 64 + ".books"}, "the table's name is too long"),
        ({"columns": {"c" * 63 + "1": "a", "c" * 63 + "2": "b"}}, "has 64 bytes: PostgreSQL would cut it after 63"),
        ({"columns": {"ä" * 32: "a"}}, "has 64 bytes: PostgreSQL would cut it after 63"),
    ],
)
def test_names_that_postgresql_does_not_take(arguments: dict[str, Any], says: str) -> None:
    """Found when the plan is made: the server would cut them in the middle of a run, and two could become one."""
    with pytest.raises(PlanError, match=says):
        Sql("postgresql://host/db", **arguments)
    Sql("postgresql://host/db", table="archive." + "b" * 52, columns={"c" * 63: "a"})
