"""Full-text search in what ``Sql`` wrote."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ferryman.destinations import Sql
from ferryman.destinations.sql.search import search
from ferryman.errors import UsageError
from ferryman.testing.destinations import delivery
from tests.destinations.plays import FOUND, INDEXED, ODD, check_a_hit, ids, write_plays
from tests.destinations.sql_table import opened
from tests.support.full_disk import Disk, disk

__all__ = ["disk"]


@pytest.fixture
def index(tmp_path: Path) -> str:
    path = tmp_path / "index.db"
    write_plays(f"sqlite:///{path}")
    return str(path)


def test_a_hit_has_id_title_snippet_and_rank(index: str) -> None:
    check_a_hit(index)


@pytest.mark.parametrize(("text", "found"), FOUND)
def test_words_are_found(index: str, text: str, found: list[str]) -> None:
    assert ids(index, text) == found


@pytest.mark.parametrize("text", ODD)
def test_no_text_is_an_error(index: str, text: str) -> None:
    """Whatever is typed is words to look for, never a syntax error."""
    search(index, text)


def test_sharp_s_and_ligatures_are_found_in_either_spelling(index: str) -> None:
    """Also several of them in a word, in a phrase and before a star."""
    sql = opened(Sql(f"sqlite:///{index}", **INDEXED))
    sql.write([delivery("ß", 9, "Große Straßen, Reisepässe"), delivery("ss", 10, "Grosse Strassen; an encyclopædia")])
    sql.close()
    for text in ("grosse", "große", "GROSSE strassen", '"große straßen"', "stras*", "straß*", "strass*"):
        assert set(ids(index, text)) - {"много"} == {"ss", "ß"}, text
    assert ids(index, "reisepasse") == ["ß"]
    assert ids(index, "encyclopaedia") == ["ss"]


def test_limit_and_table(index: str, tmp_path: Path) -> None:
    """At most ``limit`` hits, of the table that is asked for."""
    sql = opened(Sql(f"sqlite:///{tmp_path}/index.db", table="other", full_text=["text"]))
    sql.write([delivery(f"doc-{i}", i, "king") for i in range(5)])
    sql.close()
    assert len(search(index, "king", table="other", limit=3)) == 3
    assert search(index, "king", table="other", limit=0) == []
    assert search(index, "king", table="other")[0].title is None


def test_a_url_does_as_well(index: str) -> None:
    """The URL that the plan gives to Sql finds the same."""
    assert ids(f"sqlite:///{index}", "lear") == ["lear"]


def test_what_cannot_be_searched_is_named(index: str, tmp_path: Path) -> None:
    """No file, no table, no index, no SQLite: each says what to do, and nothing is made."""
    with pytest.raises(UsageError, match="no such file"):
        search(str(tmp_path / "none.db"), "x")
    with pytest.raises(UsageError, match="table comedies has no full-text index"):
        search(index, "x", table="comedies")
    with pytest.raises(UsageError, match="SQLite and PostgreSQL databases") as caught:
        search("mysql://me:secret@host/db", "x")
    assert "secret" not in str(caught.value)
    (tmp_path / "text.db").write_text("no database " * 100)
    with pytest.raises(UsageError, match="not a database"):
        search(str(tmp_path / "text.db"), "x")
    Sql(f"sqlite:///{tmp_path}/plain.db").check()
    with pytest.raises(UsageError, match=r"full_text=\['text'\]"):
        search(f"{tmp_path}/plain.db", "x")
    assert sorted(os.listdir(tmp_path)) == ["index.db", "plain.db", "text.db"]


def test_searching_while_somebody_writes(index: str) -> None:
    """A writer in the middle of a transaction is not waited for."""
    with closing(sqlite3.connect(index, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM documents")
        assert ids(index, "lear") == ["lear"]


def test_searching_on_a_read_only_disk(index: str, disk: Disk) -> None:
    """SQLite needs files beside the database, which cannot be made there; changes that are in one of them are not lost
    from sight in silence."""
    copies = disk.folder / "a #copy of 100%"
    copies.mkdir()
    shutil.copy(index, copies)
    with closing(sqlite3.connect(index)) as writer:
        writer.execute("UPDATE documents SET title = 'Lear' WHERE id = 'lear'")
        writer.commit()
        for suffix in ("", "-wal"):
            shutil.copy(f"{index}{suffix}", disk.folder)
    disk.refuse_changes()
    assert ids(str(copies / "index.db"), "king") == ids(index, "king")
    assert ids(f"sqlite:///{copies / 'index.db'}", "question") == ["hamlet"]
    with pytest.raises(UsageError, match=r"index\.db-wal, which cannot be read on a read-only disk"):
        ids(str(disk.folder / "index.db"), "king")
    assert sorted(each.name for each in copies.iterdir()) == ["index.db"]
