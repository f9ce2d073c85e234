"""Documents with a full-text index, and what questions find in them: the same on every database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ferryman.destinations import Delivery, Sql
from ferryman.destinations.base import Hit
from ferryman.destinations.sql.search import search
from ferryman.testing.destinations import delivery
from tests.destinations.sql_table import opened

INDEXED: dict[str, Any] = {"columns": {"title": "title"}, "full_text": ["title", "text"]}


def plays() -> list[Delivery]:
    return [
        delivery("hamlet", 1, "To be, or not to be: that is the question", {"title": "Hamlet, Prince of Denmark"}),
        delivery("lear", 2, "Blow, winds, and crack your cheeks! rage! blow!", {"title": "King Lear"}),
        delivery("errors", 3, 'The King, the king\'s to blame. C++ and C# and a "quoted" word', {"title": "Errors"}),
        delivery("jane", 4, "by Charlotte Brontë, see /books/jane_eyre.txt or http://example.org/jane?page=2"),
        delivery("много", 5, "ПРИВЕТ Straße Tiếng Việt"),
    ]


def write_plays(url: str) -> None:
    sql = opened(Sql(url, **INDEXED))
    sql.write(plays())
    sql.close()


def ids(index: str, text: str) -> list[str]:
    return sorted(hit.id for hit in search(index, text))


FOUND = [
    # All words, in any column and order, without case and accents.
    ("LEAR rage", ["lear"]),
    ("lear question", []),
    ("bronte", ["jane"]),
    ("Brontë", ["jane"]),
    ("c++", ["errors"]),
    ("eyre", ["jane"]),
    ("jane_eyre.txt", ["jane"]),
    ("example page", ["jane"]),
    ("привет", ["много"]),
    ("tieng viet", ["много"]),
    # Quoted words follow each other; a star stands for any end; an open quote reaches to the end.
    ('"not to be"', ["hamlet"]),
    ('"be not"', []),
    ("quest*", ["hamlet"]),
    ('"that is the ques"*', ["hamlet"]),
    ('"that is', ["hamlet"]),
    ("bront*", ["jane"]),
    # NOT, AND and column names have no meaning of their own, nor has "or"; ``OR`` is between alternatives.
    ("or not", ["hamlet"]),
    ("king OR question", ["errors", "hamlet", "lear"]),
    ("rage OR question OR nothing", ["hamlet", "lear"]),
    ("king lear OR king nothing", ["lear"]),
    ("OR lear OR", ["lear"]),
    ("hamlet AND question", []),
]

ODD = [
    *("", " ", '"', '""', "*", "***", "c++ (", "a:b", "NEAR(", "AND", "title:", "-x", "^", "'", "\0", "it's", ")("),
    *("%s", "\\", "a\\*", "'a'*", "a & b | !c", ":*", "folded_0", "a\0b", "''*"),
]
"""Texts that mean something, or are wrong, in some language of queries."""


def check_a_hit(index: str) -> None:
    """The snippet shows where the word stands; ranks rise from the best hit on."""
    hit = search(index, "question", mark=("[", "]"))[0]
    assert (hit.id, hit.title) == ("hamlet", "Hamlet, Prince of Denmark")
    assert hit.snippet.endswith("that is the [question]")
    hits = search(index, "king")
    assert sorted(hit.id for hit in hits) == ["errors", "lear"]
    assert hits[0].rank <= hits[1].rank
    assert search(index, "bronte")[0].title is None


def check_an_engine(search: Callable[..., list[Hit]], url: str) -> None:
    """What is found of two documents, ``henry`` and ``berlin``, in a search engine."""
    found = {
        "muse": ["henry"],
        '"muse of fire"': ["henry"],
        '"fire of muse"': [],
        "fir*": ["henry"],
        "king henry": ["henry"],
        "strasse": ["berlin"],
        "straße OR muse": ["berlin", "henry"],
        'c++ ( "': [],
        "name:x AND NOT": [],
    }
    for text, expected in found.items():
        assert sorted(hit.id for hit in search(url, text)) == expected, text
    [hit] = search(url, "muse", mark=("[", "]"))
    assert (hit.title, hit.snippet) == ("King Henry V", "O for a [Muse] of fire")
