"""Full-text search in an index that the ``Sql`` destination wrote."""

from __future__ import annotations

import os

from ferryman.destinations.base import Hit, parse_query
from ferryman.destinations.sql.dialect import SEARCHED, dialect_of
from ferryman.errors import DeliveryError, UsageError
from ferryman.net import databases
from ferryman.net.databases import sqlalchemy as sa

__all__ = ["Hit", "search"]


def search(
    index: str, text: str, table: str = "documents", limit: int = 10, *, mark: tuple[str, str] = ("", "")
) -> list[Hit]:
    """The best hits first.

    A document is found if it has all the words of ``text``, or all of those before or after an ``OR``; ``"in quotes"``
    they must follow each other, and ``kill*`` means all words that begin so. Case, accents, and "ß" or "ss" do not
    matter; everything else is taken literally.

    Args:
        index: path or URL of the database, as the plan gives it to ``Sql``.
        mark: what is put before and after each found word in a snippet.

    Raises:
        UsageError: there is no such file, no such table, it has no full-text index, or the server does not answer.
    """
    url = _url(index)
    dialect = dialect_of(url.get_backend_name())
    place = index if "://" not in index else url.render_as_string()
    query = parse_query(text)
    try:
        with dialect.translated_errors(place), dialect.open_reader(url).connect() as connection:
            if not dialect.is_indexed(connection, table):
                raise UsageError(
                    f"{place}: table {table} has no full-text index. Give the right --table, or have the plan make "
                    f"one: Sql(…, table={table!r}, full_text=['text'])."
                )
            return dialect.find(connection, table, query, limit, mark) if query and limit > 0 else []
    except DeliveryError as e:  # no database, no right to read it: for the caller to fix
        raise UsageError(databases.redact_text(str(e), url)) from e


def place_of(index: str) -> str:
    """Return the place of a database as ``Sql.target`` has it, without user and password.

    Raises:
        UsageError: it is not a database that ``Sql`` writes to.
    """
    url = _url(index)
    return dialect_of(url.get_backend_name()).place(url)


def _url(index: str) -> sa.URL:
    if "://" not in index:
        return sa.URL.create("sqlite", database=os.path.abspath(os.path.expanduser(index)))
    try:
        url = databases.parse_url(index)
    except UsageError as e:
        raise UsageError(f"{_scheme(index)}://…: {e}.") from None
    if url.get_backend_name() not in SEARCHED:
        raise UsageError(f"{url.render_as_string()}: searching works in SQLite and PostgreSQL databases.")
    if url.get_backend_name() == "sqlite" and databases.is_in_memory(url):
        raise UsageError(f"{index}: a database in memory is private to one process. Give a file: sqlite:///index.db.")
    return url


def _scheme(index: str) -> str:
    """Return the part of an unreadable URL that may be shown: the rest may contain a password."""
    return index.partition("://")[0]
