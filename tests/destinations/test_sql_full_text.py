"""The full-text index of ``Sql`` is right at every moment, whatever happens to the table."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ferryman.destinations import Outcome, Sql
from ferryman.errors import PermanentError
from ferryman.testing.destinations import delete, delivery
from tests.destinations.sql_table import matching, opened, query, verify_index

OK = Outcome.ok()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.db"


def indexed(path: Path, full_text: tuple[str, ...] | None = ("text",), **more: dict[str, str]) -> Sql:
    return Sql(f"sqlite:///{path}", full_text=full_text, **more)  # type: ignore[arg-type]


def test_it_follows_inserts_updates_and_deletes(path: Path) -> None:
    """Old words of a document are not found any more, new ones are, deleted documents never."""
    sql = opened(indexed(path, ("title", "text"), columns={"title": "title"}))
    sql.write([delivery("a", 1, "alpha beta", {"title": "first"}), delivery("b", 2, "alpha gamma")])
    assert matching(path, "alpha") == ["a", "b"]
    assert matching(path, "title: first") == ["a"]
    sql.write([delivery("a", 3, "delta", {"title": "second"}), delete("b", 4)])
    assert matching(path, "alpha OR gamma OR first") == []
    assert matching(path, "delta second") == ["a"]
    sql.write([delivery("b", 5, "alpha again"), delivery("c", 6, None)])
    assert matching(path, "alpha") == ["b"]
    sql.close()
    verify_index(path)


def test_words_are_found_without_case_and_accents(path: Path) -> None:
    """The tokenizer folds letters of any script."""
    sql = opened(indexed(path))
    sql.write([delivery("a", 1, "BRONTË Straße ПРИВЕТ Tiếng Việt")])
    sql.close()
    for word in ("bronte", "straße", "привет", "tieng", "viet"):
        assert matching(path, word) == ["a"]


def test_a_bad_document_leaves_the_index_right(path: Path) -> None:
    """A chunk that is taken back because of one value leaves nothing of its words."""
    sql = opened(indexed(path, columns={"n": "n"}))
    chunk = [delivery(f"doc-{i}", i, f"word{i}", {"n": 2**70 if i == 4 else i}) for i in range(1, 9)]
    assert [o.kind for o in sql.write(chunk)] == ["ok"] * 3 + ["permanent"] + ["ok"] * 4
    sql.close()
    assert matching(path, "word*") == [f"doc-{i}" for i in range(1, 9) if i != 4]
    verify_index(path)


def test_an_index_that_is_asked_for_later_has_all_rows(path: Path) -> None:
    """A table that was written without an index gets one over everything that is in it."""
    plain = opened(indexed(path, None))
    plain.write([delivery(f"doc-{i}", i, f"word{i}") for i in range(1, 30)])
    plain.write([delete("doc-3", 40)])
    plain.close()
    sql = opened(indexed(path))
    assert matching(path, "word5") == ["doc-5"]
    verify_index(path)
    sql.write([delivery("doc-5", 50, "changed"), delivery("new", 51, "word5")])
    sql.close()
    assert matching(path, "word5") == ["new"]
    verify_index(path)


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_who_does_not_ask_for_it_keeps_it_right_too(path: Path, mode: str) -> None:
    """Another Sql on the same table without ``full_text=`` keeps the index, also if it was open when it was made."""
    without = opened(Sql(f"sqlite:///{path}", mode=mode))  # type: ignore[arg-type]
    without.write([delivery("a", 1, "alpha")])
    Sql(f"sqlite:///{path}", mode=mode, full_text=["text"]).check()  # type: ignore[arg-type]
    without.write([delivery("a", 2, "beta"), delivery("b", 3, "alpha")])
    without.write([delete("b", 4)])
    without.close()
    assert matching(path, "alpha") == ([] if mode == "upsert" else ["a", "b"])
    assert matching(path, "beta") == ["a"]
    verify_index(path)


def test_an_index_of_other_columns_is_refused(path: Path) -> None:
    """The error names both; after DROP TABLE the index is made anew, over all rows."""
    sql = opened(indexed(path, ("text",), columns={"title": "title"}))
    sql.write([delivery("a", 1, "alpha", {"title": "first"})])
    sql.close()
    other = indexed(path, ("title", "text"), columns={"title": "title"})
    with pytest.raises(PermanentError, match=r"has the columns text, the plan says title, text.*DROP TABLE") as caught:
        other.check()
    assert caught.value.universal
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE documents_fts")
    other.check()
    assert matching(path, "title: first") == ["a"]
    verify_index(path)


def test_vacuum_and_a_dump_keep_it_right(path: Path, tmp_path: Path) -> None:
    """Rows are found by a number of their own, not by SQLite's rowid, which these may change."""
    sql = opened(indexed(path))
    sql.write([delivery(f"doc-{i:03d}", i, f"word{i}") for i in range(1, 100)])
    sql.write([delete(f"doc-{i:03d}", 100 + i) for i in range(1, 60)])
    sql.close()
    copy = tmp_path / "copy.db"
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(copy)) as restored:
        connection.execute("VACUUM")
        # The dump of a virtual table writes into the schema, which executescript() may not: its tables are enough.
        restored.executescript("\n".join(s for s in connection.iterdump() if "documents_fts" not in s))
    for database in (path, copy):
        sql = opened(indexed(database))
        sql.write([delivery("doc-070", 500, "changed"), delivery("doc-010", 501, "back")])
        sql.close()
        assert matching(database, "word80") == ["doc-080"]
        assert matching(database, "word70 OR word10") == []
        verify_index(database)


def test_rows_of_somebody_else_are_taken_over(path: Path) -> None:
    """A row that was inserted by hand is not in the index; once Ferryman writes its id, it is."""
    sql = opened(indexed(path))
    sql.write([delivery("a", 1, "alpha")])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "INSERT INTO documents(id, origin_id, source, version, sequence, delivery_hash, route, text)"
            " VALUES('mine', 'mine', '', '', 2, '', '[]', 'by hand')"
        )
    assert sql.write([delivery("mine", 3, "by plan"), delivery("a", 4, "beta")]) == [OK, OK]
    sql.close()
    assert matching(path, "hand") == []
    assert matching(path, "plan") == ["mine"]
    verify_index(path)


def test_many_small_chunks_are_merged(path: Path) -> None:
    """Each chunk is a segment of the index; there are never more than a search can look through."""
    sql = opened(indexed(path))
    for i in range(1, 301):
        sql.write([delivery(f"doc-{i}", i, f"common word{i}")])
    sql.close()
    segments = query(path, "SELECT count(DISTINCT segid) FROM documents_fts_idx")[0][0]
    assert segments < 130
    assert len(matching(path, "common")) == 300
    verify_index(path)
