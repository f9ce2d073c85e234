"""The full-text index of one SQLite table: FTS5 over the table's own text, without a second copy of it.

The index ``<table>_fts`` is an external-content table: it keeps tokens and reads the text from ``<table>`` where it is
asked for. Entries are found by ``fts_row``, a number of each row that neither VACUUM nor a dump changes (SQLite's own
rowid may change). Whoever writes the table must take an entry out *before* its row changes, with the same values:
``remove``, change the rows, ``add``. Somebody else's changes are not seen; ``INSERT INTO documents_fts(documents_fts)
VALUES('rebuild')`` repairs the index after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import sqlalchemy as sa

from ferryman.limits import MIB

ROW: Final = "fts_row"
"""Column with the number of a row in the index; made when the table gets an index."""

SUFFIX: Final = "_fts"

TOKENIZER: Final = "unicode61 remove_diacritics 2"
"""Words of any script, without case or accents ("Bronte" finds "Brontë"; 2: also where two accents are stacked)."""

HASH_BYTES: Final = 8 * MIB
"""FTS5 collects a transaction's words in memory up to this size: one segment for a whole chunk of 5 MiB of text."""

SEGMENTS: Final = 64
"""Segments of one size (the most that FTS5 allows) before it merges them, a little with each chunk; FTS5's own 4 makes
it rewrite the index five times in a million documents, this once. Each segment costs a search about 0.05 ms."""

PAGE_OVERHEAD_BYTES: Final = 46
"""What SQLite needs of a page beside a leaf of the index: FTS5's own default is 4050 of 4096."""

IDS_PER_STATEMENT: Final = 10_000
"""Bound values a statement: SQLite allows 32766 by default."""


class FullText:
    """The index of a table; only inside a transaction that writes."""

    def __init__(self, table: str, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        names = ", ".join(map(quoted, self.columns))
        self._table, self._index = quoted(table), quoted(table + SUFFIX)
        self._row_index = quoted(f"{table}{SUFFIX}_row")
        source = f"SELECT {quoted(ROW)}, {names} FROM {self._table}"
        self._insert_new = f"INSERT INTO {self._index}(rowid, {names}) {source} WHERE rowid > ?"
        self._insert = sa.text(f"INSERT INTO {self._index}(rowid, {names}) {source} WHERE id IN :ids").bindparams(
            sa.bindparam("ids", expanding=True)
        )
        self._delete = sa.text(
            f"INSERT INTO {self._index}({self._index}, rowid, {names}) SELECT 'delete', {quoted(ROW)}, {names} "
            f"FROM {self._table} WHERE id IN :ids AND {quoted(ROW)} IS NOT NULL"
        ).bindparams(sa.bindparam("ids", expanding=True))

    @classmethod
    def of(cls, connection: sa.Connection, table: str) -> FullText | None:
        """The index that this table has, if it has one."""
        columns = connection.exec_driver_sql(f"PRAGMA table_info({quoted(table + SUFFIX)})").fetchall()
        return cls(table, [column[1] for column in columns]) if columns else None

    def create(self, connection: sa.Connection) -> None:
        """Make the index, with all rows that the table has already."""
        known = {column[1] for column in connection.exec_driver_sql(f"PRAGMA table_info({self._table})")}
        if ROW not in known:
            connection.exec_driver_sql(f"ALTER TABLE {self._table} ADD COLUMN {quoted(ROW)} INTEGER")
        connection.exec_driver_sql(
            f"UPDATE {self._table} SET {quoted(ROW)} = rowid + (SELECT coalesce(max({quoted(ROW)}), 0) "
            f"FROM {self._table}) WHERE {quoted(ROW)} IS NULL"
        )
        connection.exec_driver_sql(
            f"CREATE UNIQUE INDEX IF NOT EXISTS {self._row_index} ON {self._table}({quoted(ROW)})"
        )
        names = ", ".join(map(quoted, self.columns))
        connection.exec_driver_sql(
            f"CREATE VIRTUAL TABLE {self._index} USING fts5({names}, content={self._table}, "
            f'content_rowid={quoted(ROW)}, tokenize="{TOKENIZER}")'
        )
        page_bytes = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
        for option, value in (
            ("automerge", SEGMENTS),
            ("crisismerge", 2 * SEGMENTS),
            ("hashsize", HASH_BYTES),
            ("pgsz", page_bytes - PAGE_OVERHEAD_BYTES),
        ):
            connection.exec_driver_sql(f"INSERT INTO {self._index}({self._index}, rank) VALUES(?, ?)", (option, value))
        self._command(connection, "rebuild")

    def last_rowid(self, connection: sa.Connection) -> int:
        """The table's highest rowid: what is inserted now gets a higher one."""
        return int(connection.exec_driver_sql(f"SELECT coalesce(max(rowid), 0) FROM {self._table}").scalar_one())

    def next_row(self, connection: sa.Connection) -> int:
        """The first number that no row has."""
        query = f"SELECT coalesce(max({quoted(ROW)}), 0) + 1 FROM {self._table}"
        return int(connection.exec_driver_sql(query).scalar_one())

    def add_newer(self, connection: sa.Connection, rowid: int) -> None:
        """Index the rows that were inserted after this rowid was the table's highest."""
        connection.exec_driver_sql(self._insert_new, (rowid,))

    def add(self, connection: sa.Connection, ids: Iterable[str]) -> None:
        """Index the rows of these ids, as they are now."""
        for some in slices(ids):
            connection.execute(self._insert, {"ids": some})

    def remove(self, connection: sa.Connection, ids: Iterable[str]) -> None:
        """Take the rows of these ids out of the index; before they are changed."""
        for some in slices(ids):
            connection.execute(self._delete, {"ids": some})

    def verify(self, connection: sa.Connection) -> None:
        """Compare the whole index with the table: FTS5 raises (a damaged database) where they differ."""
        self._command(connection, "integrity-check", 1)

    def _command(self, connection: sa.Connection, command: str, rank: int = 0) -> None:
        connection.exec_driver_sql(f"INSERT INTO {self._index}({self._index}, rank) VALUES(?, ?)", (command, rank))


def quoted(name: str) -> str:
    """A name as SQL writes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def slices(ids: Iterable[str]) -> Iterator[list[str]]:
    """Ids in lists that fit into one statement."""
    left = iter(ids)
    while some := list(islice(left, IDS_PER_STATEMENT)):
        yield some
