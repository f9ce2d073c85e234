"""``Sql`` on PostgreSQL: its full-text index."""

from __future__ import annotations

import json

import psycopg
import pytest

from ferryman.destinations import Sql
from ferryman.destinations.sql.search import search
from ferryman.errors import PermanentError, UsageError
from ferryman.testing.destinations import delivery
from tests.destinations.postgres import Database, database, postgres
from tests.destinations.sql_table import opened
from tests.servers.postgres import PASSWORD

__all__ = ["database", "postgres"]


@pytest.fixture
def index(database: Database) -> str:
    sql = opened(Sql(database.url, columns={"title": "title"}, full_text=["title", "text"]))
    sql.write(
        [
            delivery("hamlet", 1, "To be, or not to be: that is the question", {"title": "Hamlet, Prince of Denmark"}),
            delivery("lear", 2, "Blow, winds, and crack your cheeks! rage! blow!", {"title": "King Lear"}),
            delivery(
                "errors", 3, 'The King, the king\'s to blame. C++ and C# and a "quoted" word', {"title": "Errors"}
            ),
            delivery("jane", 4, "by Charlotte Brontë, see /books/jane_eyre.txt or http://example.org/jane?page=2"),
            delivery("много", 5, "ПРИВЕТ Straße Tiếng Việt"),
        ]
    )
    sql.close()
    return database.url


def ids(index: str, text: str) -> list[str]:
    return sorted(hit.id for hit in search(index, text))


def test_a_hit_has_id_title_snippet_and_rank(index: str) -> None:
    """The snippet shows where the word stands; ranks rise from the best hit on."""
    hit = search(index, "question", mark=("[", "]"))[0]
    assert (hit.id, hit.title) == ("hamlet", "Hamlet, Prince of Denmark")
    assert "that is the [question]" in hit.snippet
    hits = search(index, "king")
    assert sorted(hit.id for hit in hits) == ["errors", "lear"]
    assert hits[0].rank <= hits[1].rank
    assert search(index, "bronte")[0].title is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("LEAR rage", ["lear"]),
        ("lear question", []),
        ("bronte", ["jane"]),
        ("Brontë", ["jane"]),
        ('"not to be"', ["hamlet"]),
        ('"be not"', []),
        ("quest*", ["hamlet"]),
        ('"that is the ques"*', ["hamlet"]),
        ('"that is', ["hamlet"]),
        ("king OR question", ["errors", "hamlet", "lear"]),
        ("c++", ["errors"]),
        ("eyre", ["jane"]),
        ("jane_eyre.txt", ["jane"]),
        ("example page", ["jane"]),
        ("привет", ["много"]),
        ("tieng viet", ["много"]),
        ("bront*", ["jane"]),
    ],
)
def test_words_are_found(index: str, text: str, found: list[str]) -> None:
    """All words, in any column and order, without case and accents; quotes and stars as on SQLite."""
    assert ids(index, text) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        '"',
        '""',
        "*",
        "***",
        "c++ (",
        "a:b",
        "NEAR(",
        "AND",
        "title:",
        "-x",
        "^",
        "'",
        "\0",
        "it's",
        ")(",
        "%s",
        "\\",
        "a\\*",
        "'a'*",
        "a & b | !c",
        ":*",
        "folded_0",
        "a\0b",
        "''*",
    ],
)
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
