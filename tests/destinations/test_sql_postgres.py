"""What is special about ``Sql`` on PostgreSQL: types, NULs, arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from ferryman.destinations import Delivery, DestinationContext, Guarantee, Outcome, Sql
from ferryman.destinations.base import content_hash
from ferryman.destinations.sql.layout import Layout, Mode
from ferryman.destinations.sql.postgresql import printed_json
from ferryman.destinations.sql.search import search
from ferryman.errors import Misconfigured, PlanError
from ferryman.testing.destinations import delete, delivery
from tests.destinations.postgres import Database, database, postgres
from tests.destinations.sql_table import opened

__all__ = ["database", "postgres"]


OK, STALE = Outcome.ok(), Outcome.stale()

CONTEXT = DestinationContext("test", 1, "out", 1, Guarantee.EXACTLY_ONCE)


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


# --- the hash of a row, which the server compares ---------------------------------------------------------------------

FIELDS: list[dict[str, Any]] = [
    {},
    {"title": "Henry", "a": 1, "z": "", "": None, "ä": "longer than b", "bb": True, "汉": [1, {"zz": 1, "b": []}]},
    {"numbers": [0.0, -0.0, 1.0, 1e16, 1.5e22, 1e-7, 5e-324, -1.7976931348623157e308, 0.1 + 0.2, 2**63, -(2**63)]},
    {"title": 'quoted " and \\ and \\u0000', "c": "\b\f\n\r\t\x01\x1f\x7f\u2028/", "nested": {"deep": [[{"x": {}}]]}},
    {"nul\0name": "nul\0value", "list": ["\0"]},
    {"title": None, "text": "1,2:", "tags": ["a", "b"]},
]


@pytest.mark.parametrize("columns", [{}, {"title": "title"}], ids=["standard", "columns"])
@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_the_server_finds_rows_as_they_were_written(database: Database, mode: Mode, columns: dict[str, str]) -> None:
    """Whatever JSON and text they hold, by the hash that is stored with each; no row is fetched for that."""
    sql = opened(Sql(database.url, mode=mode, columns=columns))
    texts = (None, b"", b"nul\0", "汉,字".encode(), b"12,", b"x")
    chunk = [
        Delivery(
            f"ä{n},%s", hash=f"{n:032}", sequence=n, fields=fields, raw=raw, version="1", source="s", origin_id="o",
            parent_id=("p" if raw else None), route=("left", 'r"t,1') if n % 2 else (),
        )
        for n, (fields, raw) in enumerate(zip(FIELDS, texts, strict=True))
    ]  # fmt: skip
    assert sql.write(chunk) == [OK] * len(chunk)
    if mode == "append":
        assert sql.write([delete("gone", 99)]) == [OK]
    sql.close()
    with mock.patch.object(Layout, "stored", side_effect=AssertionError):
        found = {each.id: each for each in sql.inventory(CONTEXT)}
    assert all(each.intact is True for each in found.values())
    assert len(found) == len(chunk) + (mode == "append")
    assert [found[each.id].route for each in chunk] == [each.route for each in chunk]
    assert {each.id for each in sql.inventory(CONTEXT, set(found)) if each.intact} == set(found)


def test_the_server_prints_json_as_it_is_hashed(database: Database) -> None:
    """Numbers have no exponent and no negative zero, shorter keys come first."""
    for text in ('{"b":[1e400,-0,0e7,1.50e1,-0.00],"aa":{"c":1,"bb":2},"a":"\\u00e9\\/"}', "[]", '"x"', "null", "-0.0"):
        assert printed_json(text.encode()).decode() == database.query("SELECT %s::jsonb::text", text)[0][0]


EDITS = {
    "parent_id": "''",
    "origin_id": "origin_id || ' '",
    "source": "'others'",
    "version": "'2'",
    "sequence": "sequence + 1",
    "route": "'[\"up\"]'",
    "text": "text || ' '",
    "fields": "fields || '{\"n\": 1.00}'",
    "title": "'other'",
    "content_hash": "content_hash || '0'",
}
"""Column -> what somebody writes over it."""


@pytest.mark.rule("verify.types")
def test_an_edit_of_any_column_is_found_in_its_row(database: Database) -> None:
    """Also a text that moves from a column into the next one; the row beside it is as it was."""
    sql = opened(Sql(database.url, columns={"title": "title"}))
    ids = [*EDITS, "moved", "untouched"]
    fields = {"title": "Henry", "n": 1.0}
    assert sql.write([delivery(id, n, "a whale", fields) for n, id in enumerate(ids, 1)]) == [OK] * len(ids)
    sql.close()
    for column, value in EDITS.items():
        database.query(f"UPDATE documents SET {column} = {value} WHERE id = %s", column)
    database.query("UPDATE documents SET source = source || left(version, 1), version = substr(version, 2)"
                   "WHERE id = 'moved'")  # fmt: skip
    assert {each.id for each in sql.inventory(CONTEXT) if each.intact is not True} == {*EDITS, "moved"}
    database.query("UPDATE documents SET content_hash = NULL")
    assert {each.intact for each in sql.inventory(CONTEXT)} == {None}


def test_rows_with_the_hash_of_an_older_version_are_intact(database: Database) -> None:
    """Tables that it filled are not reported as changed; an edit is."""
    sql = opened(Sql(database.url))
    assert sql.write([delivery(id, n, "text", {"b": 1.0, "aa": 2}) for n, id in enumerate("abc", 1)]) == [OK] * 3
    sql.close()
    names = "id, parent_id, origin_id, source, version, sequence, delivery_hash"
    for row in database.query(f"SELECT {names} FROM documents"):
        old = content_hash(*row, "[]", "upsert", "text", b'{"aa":2,"b":1}')
        database.query("UPDATE documents SET content_hash = %s WHERE id = %s", old, row[0])
    assert [each.intact for each in sql.inventory(CONTEXT)] == [True] * 3
    database.query("UPDATE documents SET text = 'other' WHERE id = 'b'")
    assert {each.id for each in sql.inventory(CONTEXT) if not each.intact} == {"b"}
