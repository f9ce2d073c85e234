"""The SQLite dialect of ``Sql``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.types import UserDefinedType

from ferryman import databases
from ferryman.destinations.sql.dialect import Dialect, other_columns
from ferryman.destinations.sql.layout import Layout
from ferryman.destinations.sql.searching import SNIPPET_WORDS, Hit, Term
from ferryman.destinations.sql.sqlite import database, faults
from ferryman.destinations.sql.sqlite.full_text import ROW, SUFFIX, FullText, quoted
from ferryman.destinations.sql.sqlite.writer import SqliteWriter
from ferryman.errors import DeliveryError, UsageError

_FTS_WORDS: Final = ("rank", "rowid")
"""What FTS5 calls columns of its own."""


class _Untyped(UserDefinedType[Any]):
    """A column of no type, as SQLite allows: it keeps numbers as numbers and text as text, whatever comes."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return ""


class SQLite(Dialect):
    """A file; one writer at a time; FTS5 for full text."""

    single_writer = True
    column_type = _Untyped()
    key_type = sa.Text()
    json_type = sa.JSON()
    reserved = (ROW,)

    def mistakes(self, url: sa.URL, table: str, full_text: tuple[str, ...]) -> Iterator[str]:
        if databases.is_in_memory(url):
            yield f"{url}: a database in memory is private to one process. Give a file: sqlite:///index.db"
        if table.lower().startswith("sqlite_"):
            yield "SQLite keeps names with sqlite_ for itself: give the table another one"
        for name in full_text:
            if name.lower() in _FTS_WORDS:
                yield f"full_text: FTS5 has a meaning of its own for {name!r}; copy the field into another column"

    def place(self, url: sa.URL) -> str:
        return url.set(drivername="sqlite", password=None, query={}).render_as_string()

    def prepare(self, url: sa.URL, layout: Layout, full_text: tuple[str, ...], where: str) -> None:
        engine = database.engine(url)
        database.prepare(engine)
        with engine.connect() as connection, connection.begin():
            layout.create(connection, where)
            if not full_text:
                return
            index = FullText.of(connection, layout.table)
            if index is None:
                FullText(layout.table, full_text).create(connection)
            elif index.columns != full_text:
                raise other_columns(where, index.columns, full_text, f"DROP TABLE {layout.table}{SUFFIX}")

    def writer(self, url: sa.URL, layout: Layout) -> SqliteWriter:
        return SqliteWriter(url, layout)

    def explain(self, error: BaseException, where: str) -> DeliveryError | None:
        return faults.explain(error, where)

    def open_reader(self, url: sa.URL) -> sa.Engine:
        path = str(url.database)
        if not path.startswith("file:") and not os.path.isfile(path):
            raise UsageError(
                f"{path}: there is no such file. Give the database that the plan's Sql destination writes."
            )
        return database.reader(url)

    def is_indexed(self, connection: sa.Connection, table: str) -> bool:
        return FullText.of(connection, table) is not None

    def find(
        self, connection: sa.Connection, table: str, terms: list[Term], limit: int, mark: tuple[str, str]
    ) -> list[Hit]:
        known = {column[1] for column in connection.exec_driver_sql(f"PRAGMA table_info({quoted(table)})")}
        title = "d.title" if "title" in known else "NULL"
        index, documents, row = quoted(table + SUFFIX), quoted(table), quoted(ROW)
        statement = (
            f"SELECT d.id, {title}, snippet({index}, -1, ?, ?, '…', {SNIPPET_WORDS}), {index}.rank FROM {index} "
            f"JOIN {documents} AS d ON d.{row} = {index}.rowid WHERE {index} MATCH ? ORDER BY {index}.rank LIMIT ?"
        )
        rows = connection.exec_driver_sql(statement, (*mark, _query(terms), limit))
        return [
            Hit(id, None if title is None else str(title), snippet or "", rank) for id, title, snippet, rank in rows
        ]


def _query(terms: list[Term]) -> str:
    """Terms as FTS5 reads them: strings side by side, so that no character has a meaning but ``"`` and a last ``*``."""
    return " ".join(f'"{phrase}"{"*" if is_prefix else ""}' for phrase, is_prefix in terms)
