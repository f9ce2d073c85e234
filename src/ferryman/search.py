"""Full-text search in an index that the ``Sql`` destination wrote."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

import sqlalchemy as sa

from ferryman.destinations import sqlite
from ferryman.destinations.sqlite_fts import ROW, SUFFIX, FullText, quoted
from ferryman.errors import DeliveryError, UsageError

SNIPPET_WORDS = 16
"""Words of a snippet: about a line."""

_TERM = re.compile(r'"([^"]*)"?(\*?)|([^\s"]+)')


class Hit(NamedTuple):
    """A document that was found."""

    id: str
    title: str | None
    """The column ``title``, if there is one."""
    snippet: str
    """Where the words stand."""
    rank: float
    """BM25 as SQLite gives it: the lower, the better."""


def search(
    index: str, text: str, table: str = "documents", limit: int = 10, *, mark: tuple[str, str] = ("", "")
) -> list[Hit]:
    """The best hits first.

    A document is found if it has all the words of ``text``; ``"in quotes"`` they must follow each other, and ``kill*``
    means all words that begin so. Case and accents do not matter; everything else is taken literally.

    Args:
        index: path or URL of the database, as the plan gives it to ``Sql``.
        mark: what is put before and after each found word in a snippet.

    Raises:
        UsageError: there is no such file, no such table, or it has no full-text index.
    """
    engine = _engine(index)
    query = _query(text)
    try:
        with sqlite.explained(index), engine.connect() as connection:
            return _hits(connection, index, table, query, limit, mark)
    except DeliveryError as e:  # no database, no right to read it: here it is the person's to mend
        raise UsageError(str(e)) from e


def _hits(
    connection: sa.Connection, index: str, table: str, query: str, limit: int, mark: tuple[str, str]
) -> list[Hit]:
    if FullText.of(connection, table) is None:
        raise UsageError(
            f"{index}: table {table} has no full-text index. Give the right --table, or have the plan make one: "
            f"Sql(…, table={table!r}, full_text=['text'])."
        )
    if not query or limit < 1:
        return []
    columns = {column[1] for column in connection.exec_driver_sql(f"PRAGMA table_info({quoted(table)})")}
    rows = connection.exec_driver_sql(_statement(table, "title" in columns), (*mark, query, limit))
    return [Hit(id, None if title is None else str(title), snippet or "", rank) for id, title, snippet, rank in rows]


def _engine(index: str) -> sa.Engine:
    try:
        url = sa.make_url(index) if "://" in index else sa.URL.create("sqlite", database=index)
    except sa.exc.ArgumentError:
        raise UsageError(f"{index}: no URL that SQLAlchemy knows. Give a file, or sqlite:///index.db.") from None
    if url.get_backend_name() != "sqlite":
        raise UsageError(f"{url.render_as_string()}: searching works in SQLite databases only.")
    url = sqlite.resolved(url)
    path = str(url.database)
    if not path.startswith("file:") and not os.path.isfile(path):
        raise UsageError(f"{path}: there is no such file. Give the database that the plan's Sql destination writes.")
    return sqlite.reader(url)


def _statement(table: str, has_title: bool) -> str:
    title = "d.title" if has_title else "NULL"
    index, documents, row = quoted(table + SUFFIX), quoted(table), quoted(ROW)
    return (
        f"SELECT d.id, {title}, snippet({index}, -1, ?, ?, '…', {SNIPPET_WORDS}), {index}.rank FROM {index} "
        f"JOIN {documents} AS d ON d.{row} = {index}.rowid WHERE {index} MATCH ? ORDER BY {index}.rank LIMIT ?"
    )


def _query(text: str) -> str:
    """A text as FTS5 reads it: strings side by side, so that no character has a meaning but ``"`` and a last ``*``."""
    terms = []
    for phrase, star, word in _TERM.findall(text):
        if word:
            phrase, star = word.rstrip("*"), "*" if word.endswith("*") else ""
        if any(character.isalnum() for character in phrase):
            terms.append(f'"{phrase}"{star}')
    return " ".join(terms)
