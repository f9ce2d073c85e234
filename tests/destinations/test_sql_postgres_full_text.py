"""``Sql`` on PostgreSQL: its full-text index."""

from __future__ import annotations

import json

import psycopg
import pytest

from ferryman.destinations import Sql
from ferryman.destinations.sql.search import search
from ferryman.errors import PermanentError, UsageError
from ferryman.testing.destinations import delivery
from tests.destinations.plays import FOUND, ODD, check_a_hit, ids, write_plays
from tests.destinations.postgres import Database, database, postgres
from tests.destinations.sql_table import opened
from tests.servers.postgres import PASSWORD

__all__ = ["database", "postgres"]


@pytest.fixture
def index(database: Database) -> str:
    write_plays(database.url)
    return database.url


def test_a_hit_has_id_title_snippet_and_rank(index: str) -> None:
    check_a_hit(index)


@pytest.mark.parametrize(("text", "found"), FOUND)
def test_words_are_found(index: str, text: str, found: list[str]) -> None:
    assert ids(index, text) == found


@pytest.mark.parametrize("text", ODD)
def test_no_text_is_an_error(index: str, text: str) -> None:
    """Whatever is typed is words to look for, never a syntax error."""
    search(index, text)


def test_the_index_follows_whoever_writes(database: Database) -> None:
    """An index that is asked for later has all rows; a row that is changed by hand too; other columns are refused."""
    sql = opened(Sql(database.url, columns={"title": "title"}))
    sql.write([delivery(f"doc-{i}", i, f"word{i}") for i in range(1, 9)])
    sql.close()
    with pytest.raises(UsageError, match="no full-text index"):
        search(database.url, "word3")
    Sql(database.url, columns={"title": "title"}, full_text=["text"]).check()
    assert ids(database.url, "word3") == ["doc-3"]
    database.query("UPDATE documents SET text = 'by hand' WHERE id = 'doc-3'")
    assert ids(database.url, "hand") == ["doc-3"]
    other = Sql(database.url, columns={"title": "title"}, full_text=["title", "text"])
    with pytest.raises(PermanentError, match=r"has the columns text, the plan says title, text.*DROP COLUMN fts"):
        other.check()
    database.query("ALTER TABLE documents DROP COLUMN fts")
    other.check()
    assert ids(database.url, "word5") == ["doc-5"]
    with psycopg.connect(database.url) as connection:
        connection.execute("SET enable_seqscan = off")
        plan = connection.execute("EXPLAIN SELECT 1 FROM documents WHERE fts @@ 'word5'::tsquery").fetchall()
    assert "documents_fts" in json.dumps(plan)


def test_what_cannot_be_searched_is_named(database: Database) -> None:
    """No server, a wrong password: for a person, without secrets."""
    for url in (database.url_at(database.server.another_port()), database.url.replace(PASSWORD, "secret-and-wrong")):
        with pytest.raises(UsageError) as caught:
            search(url, "x")
        assert PASSWORD not in str(caught.value)
        assert "secret-and-wrong" not in str(caught.value)
