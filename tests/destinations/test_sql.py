"""The ``Sql`` destination: its table and its arguments."""

from __future__ import annotations

import json
import os
import pickle
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from ferryman.destinations import Delivery, Outcome, Sql
from ferryman.errors import PermanentError, PlanError, TransientError
from ferryman.net import databases
from ferryman.testing.destinations import delete, delivery
from tests.destinations.sql_table import CONTEXT, opened, path, query, url

__all__ = ["path"]


OK, STALE = Outcome.ok(), Outcome.stale()


# --- the table ------------------------------------------------------------------------------------------------------


def test_a_row_has_all_that_a_delivery_has(path: Path) -> None:
    """Every part of a delivery has its column; the route is a JSON list, the fields are JSON, raw is text."""
    sql = opened(Sql(url(path)))
    one = Delivery(
        "a.txt#2",
        hash="f" * 32,
        sequence=2**52,
        fields={"title": "Henry", "tags": [1, None]},
        raw="Brontë".encode(),
        version="e" * 32,
        source="files",
        parent_id="a.txt#1",
        origin_id="a.txt",
        route=("left", "up"),
    )
    assert sql.write([one]) == [OK]
    sql.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        row = dict(connection.execute("SELECT * FROM documents").fetchone())
    assert json.loads(row.pop("fields")) == {"title": "Henry", "tags": [1, None]}
    assert json.loads(row.pop("route")) == ["left", "up"]
    assert len(row.pop("content_hash")) == 32
    assert row == {
        "id": "a.txt#2",
        "parent_id": "a.txt#1",
        "origin_id": "a.txt",
        "source": "files",
        "version": "e" * 32,
        "sequence": 2**52,
        "delivery_hash": "f" * 32,
        "text": "Brontë",
    }
    assert [name for name, key in query(path, "SELECT name, pk FROM pragma_table_info('documents')") if key] == ["id"]


def test_text_is_null_without_raw_and_replaced_where_it_is_no_text(path: Path) -> None:
    """No raw is NULL, empty raw is empty text, and bytes that are not UTF-8 become the replacement character."""
    sql = opened(Sql(url(path)))
    chunk = [delivery("none", 1, None), delivery("empty", 2, ""), delivery("bytes", 3)]
    chunk[2].raw = b"a\x80b"
    sql.write(chunk)
    sql.close()
    assert query(path, "SELECT id, text FROM documents ORDER BY sequence") == [
        ("none", None),
        ("empty", ""),
        ("bytes", "a\ufffdb"),
    ]


def test_fields_go_into_columns_of_their_own(path: Path) -> None:
    """A number stays a number, text that looks like a number stays text, a list becomes JSON, a missing one NULL."""
    sql = opened(Sql(url(path), columns={"value": "v", 'Weird "name"': "w"}))
    values = [1, 1.5, "007", True, None, [1, "é"], {"b": 1, "a": 2}]
    chunk = [delivery(f"doc-{i}", i, fields={"v": value, "w": "w"}) for i, value in enumerate(values)]
    sql.write([*chunk, delivery("none", 99)])
    sql.close()
    rows = query(path, 'SELECT value, typeof(value), "Weird ""name""" FROM documents ORDER BY sequence')
    assert rows == [
        (1, "integer", "w"),
        (1.5, "real", "w"),
        ("007", "text", "w"),
        (1, "integer", "w"),
        (None, "null", "w"),
        ('[1,"é"]', "text", "w"),
        ('{"a":2,"b":1}', "text", "w"),
        (None, "null", None),
    ]


def test_a_table_keeps_what_others_put_into_it(path: Path) -> None:
    """Columns that Ferryman does not know keep their values when a row is replaced."""
    sql = opened(Sql(url(path)))
    sql.write([delivery("a", 1, "old")])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("ALTER TABLE documents ADD COLUMN mine DEFAULT 'unset'")
        connection.execute("UPDATE documents SET mine = 'kept'")
    assert sql.write([delivery("a", 2, "new")]) == [OK]
    sql.close()
    assert query(path, "SELECT text, mine FROM documents") == [("new", "kept")]


def test_several_tables_share_a_file(path: Path) -> None:
    """Two destinations in one database do not meet."""
    for table in ("comedies", "other"):
        sql = opened(Sql(url(path), table=table))
        sql.write([delivery("a", 1, table)])
        sql.close()
    assert query(path, "SELECT text FROM comedies UNION ALL SELECT text FROM other") == [("comedies",), ("other",)]


# --- upsert and append ----------------------------------------------------------------------------------------------


def test_a_tombstone_goes_when_the_document_returns(path: Path) -> None:
    """A delete leaves its sequence and hash; a newer upsert takes its place."""
    sql = opened(Sql(url(path)))
    gone = delete("a", 2)
    assert sql.write([delivery("a", 1), gone]) == [OK, OK]
    assert query(path, "SELECT * FROM documents_tombstones") == [("a", 2, gone.hash)]
    assert sql.write([delivery("a", 1)]) == [STALE]
    assert sql.write([delivery("b", 3), delivery("c", 4)]) == [OK, OK]
    assert sql.write([delivery("a", 5)]) == [OK]
    assert sql.write([gone]) == [STALE]
    assert query(path, "SELECT count(*) FROM documents_tombstones") == [(0,)]
    sql.close()


def test_a_hash_that_is_there_is_ok_with_another_sequence_too(path: Path) -> None:
    """Owed rows that move to a new state keep their hashes and get new sequences: still a no-op."""
    sql = opened(Sql(url(path)))
    one = delivery("a", 5)
    again = Delivery("a", hash=one.hash, sequence=3, raw=b"some text")
    assert sql.write([one]) == [OK]
    assert sql.write([again]) == [OK]
    assert query(path, "SELECT sequence FROM documents") == [(5,)]
    sql.close()


def test_append_mode_keeps_every_delivery(path: Path) -> None:
    """A row a delivery, deletes too, whose text and fields are NULL; a repeated hash adds nothing."""
    sql = opened(Sql(url(path), mode="append", columns={"title": "title"}))
    history = [delivery("a", 1, "one", {"title": "One"}), delivery("a", 2, "two"), delete("a", 3)]
    assert sql.write(history) == [OK] * 3
    assert sql.write([*history, delivery("a", 0, "late")]) == [OK] * 4
    sql.close()
    statement = "SELECT sequence, operation, text, title, fields FROM documents ORDER BY sequence"
    assert query(path, statement) == [
        (0, "upsert", "late", None, "{}"),
        (1, "upsert", "one", "One", '{"title":"One"}'),
        (2, "upsert", "two", None, "{}"),
        (3, "delete", None, None, None),
    ]


# --- arguments ------------------------------------------------------------------------------------------------------


def test_a_relative_path_is_meant_from_where_the_plan_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Driver and workers mean the same file, whatever their working folders are."""
    (tmp_path / "driver").mkdir()
    monkeypatch.chdir(tmp_path / "driver")
    sql = Sql("sqlite:///out.db")
    sql.check()
    monkeypatch.chdir(tmp_path)
    worker: Sql = pickle.loads(pickle.dumps(sql))
    worker.open(CONTEXT)
    worker.write([delivery("a", 1)])
    worker.close()
    assert sql.target() == f"sqlite:///{tmp_path / 'driver' / 'out.db'}#documents"
    assert query(tmp_path / "driver" / "out.db", "SELECT id FROM documents") == [("a",)]
    assert os.listdir(tmp_path) == ["driver"]


def test_target_shows_no_password(path: Path) -> None:
    """What is in the URL beside the place (a password, options) is not part of the target."""
    shown = Sql(f"sqlite://user:secret@/{path}?timeout=3", table="t").target()
    assert "secret" not in shown
    assert "timeout" not in shown
    assert shown.endswith("#t")


@pytest.mark.parametrize(
    "path",
    ["index.db", "/tmp/i.db", "../a_b-c.db", "a b.db", "a%20b.db", "ä.db", "a.db?timeout=3", "file:a.db?uri=true", ""],
)
@pytest.mark.parametrize("folder", ["plain", "with ä and %"])
def test_a_url_is_read_as_sqlalchemy_reads_it(
    path: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is read without it, since loading it takes longer than a run that sends nothing."""
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / folder)
    for scheme in ("sqlite", "sqlite+pysqlite"):
        parsed = databases.parse_url(f"{scheme}:///{path}")
        absolute = databases.absolute_url(f"{scheme}:///{path}")
        assert absolute == databases.with_password(parsed)
        assert databases.backend_of(absolute) == parsed.get_backend_name()
        assert databases.file_of(absolute) in (None, parsed.database)


@pytest.mark.parametrize("options", ["", "?timeout=3"])
def test_what_a_file_has_is_told_without_and_with_sqlalchemy(path: Path, options: str) -> None:
    """Nothing, before the table is there, and after it was dropped."""
    sql = Sql(url(path) + options)
    assert (sql.identity(), sql.highest_of(CONTEXT), [*sql.inventory(CONTEXT)]) == ("", None, [])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE other (n)")
    assert (sql.identity(), sql.highest_of(CONTEXT), [*sql.inventory(CONTEXT)]) == ("", None, [])
    opened(sql).write([delivery("a", 7)])
    sql.close()
    assert sql.identity()
    assert (sql.highest_of(CONTEXT), [each.id for each in sql.inventory(CONTEXT)]) == (7, ["a"])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE documents")
    assert (sql.identity(), [*sql.inventory(CONTEXT)]) == ("", [])
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(PermanentError, match="not a database"):
        sql.identity()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Sql("sqlite://"), "in memory"),
        (lambda: Sql("sqlite:///:memory:"), "in memory"),
        (lambda: Sql("mssql+pyodbc://me:secret@host/db"), "mssql is not supported"),
        (lambda: Sql("out.db"), "sqlite:///index.db"),
        (lambda: Sql("sqlite:///x.db", mode="replace"), "'upsert' or 'append'"),  # type: ignore[arg-type]
        (lambda: Sql("sqlite:///x.db", table=""), "needs a name"),
        (lambda: Sql("sqlite:///x.db", table="archive.books"), "SQLite has no schemas"),
        (lambda: Sql("sqlite:///x.db", columns={"Sequence": "s"}), "'Sequence' is the name of one of"),
        (lambda: Sql("sqlite:///x.db", columns={"a": "s", "A": "s"}), "differ only in case"),
        (lambda: Sql("sqlite:///x.db", full_text=["title"]), "no column 'title'"),
        (lambda: Sql("sqlite:///x.db", full_text=["text", "text"]), "named twice"),
        (lambda: Sql("sqlite:///x.db", columns={"rank": "rank"}, full_text=["rank"]), "'rank'"),
    ],
)
def test_wrong_arguments_are_refused_when_the_plan_is_built(make: Callable[[], Sql], says: str) -> None:
    """The error says which argument, and what to write instead, and no password."""
    with pytest.raises(PlanError, match=says) as caught:
        make()
    assert "secret" not in str(caught.value)


# --- tables that are not as they should be --------------------------------------------------------------------------


def test_a_foreign_table_is_refused(path: Path) -> None:
    """A table without our columns is named with each missing column and what to do; it is not touched."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE documents (id TEXT PRIMARY KEY, text TEXT, Source TEXT)")
    with pytest.raises(PermanentError, match=r"has no column parent_id, origin_id, version, .*ADD COLUMN") as caught:
        Sql(url(path)).check()
    assert caught.value.universal
    assert len(query(path, "SELECT * FROM pragma_table_info('documents')")) == 3


def test_a_column_that_is_asked_for_later_is_named(path: Path) -> None:
    """A table that was made without ``columns=`` does not get them by itself."""
    Sql(url(path)).check()
    with pytest.raises(PermanentError, match="ALTER TABLE documents ADD COLUMN title"):
        Sql(url(path), columns={"title": "title"}).check()


@pytest.mark.parametrize("modes", [("upsert", "append"), ("append", "upsert")])
def test_a_table_of_the_other_mode_is_refused(path: Path, modes: tuple[str, str]) -> None:
    """One mode's table is no table for the other."""
    first, second = modes
    Sql(url(path), mode=first).check()  # type: ignore[arg-type]
    with pytest.raises(PermanentError, match=r"unique key|operation") as caught:
        Sql(url(path), mode=second).check()  # type: ignore[arg-type]
    assert caught.value.universal


def test_a_table_of_ones_own_with_our_columns_is_fine(path: Path) -> None:
    """A table that was made by hand, with a unique id and what else it needs, is written to."""
    columns = "parent_id, origin_id, source, version, sequence, delivery_hash, route, text, fields, more DEFAULT 7"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE mine (id TEXT, {columns})")
        connection.execute("CREATE UNIQUE INDEX by_id ON mine(id)")
    sql = opened(Sql(url(path), table="mine"))
    assert sql.write([delivery("a", 1)]) == [OK]
    assert sql.write([delivery("a", 2)]) == [OK]
    sql.close()
    assert query(path, "SELECT id, sequence, more FROM mine") == [("a", 2, 7)]


def test_a_constraint_of_ones_own_harms_only_the_document_that_breaks_it(path: Path) -> None:
    """What a CHECK of the table refuses is permanent; the rest of the chunk is written."""
    sql = opened(Sql(url(path), columns={"n": "n"}))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE UNIQUE INDEX one_n ON documents(n)")
    chunk = [delivery(f"doc-{i}", i, fields={"n": min(i, 7)}) for i in range(1, 9)]
    outcomes = sql.write(chunk)
    sql.close()
    assert [o.kind for o in outcomes] == ["ok"] * 7 + ["permanent"]
    assert "UNIQUE constraint failed: documents.n" in outcomes[-1].why
    assert len(query(path, "SELECT id FROM documents")) == 7


def test_a_table_that_vanishes_is_made_again(path: Path) -> None:
    """A table dropped in use is the database's trouble; the next wave's check makes it again."""
    sql = opened(Sql(url(path)))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE documents")
    with pytest.raises(TransientError, match="no such table") as caught:
        sql.write([delivery("a", 1)])
    assert caught.value.universal
    sql.check()
    assert sql.write([delivery("a", 1)]) == [OK]
    sql.close()


def test_a_table_with_types_that_sqlalchemy_does_not_know_is_taken_without_a_word(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Its warnings are not the user's: there is nothing to be done about them."""
    with closing(sqlite3.connect(tmp_path / "index.db")) as db:
        Sql(f"sqlite:///{tmp_path}/index.db").check()
        db.execute("ALTER TABLE documents ADD COLUMN number INTEGER(11)")
        db.commit()
    Sql(f"sqlite:///{tmp_path}/index.db").check()
    assert [str(each.message) for each in recwarn] == []


def test_warnings_of_sqlalchemy_do_not_reach_the_user(tmp_path: Path) -> None:
    """Of a type that it does not understand in a table that was there before: nobody can do anything about it."""
    place = f"sqlite:///{tmp_path}/rows.db"
    Sql(place, table="rows").check()
    with closing(sqlite3.connect(tmp_path / "rows.db")) as database:
        database.execute("ALTER TABLE rows ADD COLUMN odd DATE(1, 2)")
    with pytest.warns(sa.exc.SAWarning, match="reflected arguments"):
        sa.inspect(sa.create_engine(place)).get_columns("rows")
    with warnings.catch_warnings(action="error"):
        Sql(place, table="rows").check()
