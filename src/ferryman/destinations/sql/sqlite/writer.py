"""Writing to SQLite: chunks as transactions that take the write lock."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from ferryman.destinations.base import Delivery, Outcome
from ferryman.destinations.sequences import LastDelivery, compare
from ferryman.destinations.sql import dialect
from ferryman.destinations.sql.layout import Layout
from ferryman.destinations.sql.sqlite import database
from ferryman.destinations.sql.sqlite.full_text import FullText, slices
from ferryman.destinations.sql.sqlite.statements import Statements


class _NotNew(Exception):
    """Some of the chunk's ids are known already: the quick way does not do."""


class SqliteWriter(dialect.Writer):
    """Writes chunks into a table that ``prepare`` has found fit.

    Every transaction takes the write lock before it reads: hashes and sequences that it has seen still hold when it
    commits, whoever else writes.
    """

    def __init__(self, url: sa.URL, layout: Layout) -> None:
        self._layout = layout
        self._statements = Statements(layout, numbered=False)
        self._full_text: FullText | None = None
        self._schema: int | None = None
        self._connection = database.engine(url).connect()

    def close(self) -> None:
        self._connection.close()

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        if self._layout.appends:
            with self._transaction() as connection:
                self._insert(connection, chunk)  # a hash that is there is passed over: nothing else can be known
            return [Outcome.ok()] * len(chunk)
        if len({d.id for d in chunk}) == len(chunk) and all(d.operation == "upsert" for d in chunk):
            try:
                with self._transaction() as connection:
                    self._insert_new(connection, chunk)
                return [Outcome.ok()] * len(chunk)
            except _NotNew:
                pass
        with self._transaction() as connection:
            return self._merge(connection, chunk)

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with self._connection.begin():
            schema = database.schema(self._connection)
            if schema != self._schema:  # the first one, or somebody has given the table an index meanwhile
                self._full_text = FullText.of(self._connection, self._layout.table)
                self._statements = Statements(self._layout, numbered=self._full_text is not None)
                self._schema = schema
            yield self._connection

    def _insert_new(self, connection: sa.Connection, chunk: list[Delivery]) -> None:
        """The quick way for what was never here, which is most: no look-up, the insert itself finds what is there.

        Raises:
            _NotNew: an id is there, or was deleted; the transaction must be rolled back.
        """
        if self._buried(connection, [d.id for d in chunk], at_most=1) or self._insert(connection, chunk) < len(chunk):
            raise _NotNew

    def _insert(self, connection: sa.Connection, chunk: list[Delivery]) -> int:
        """Insert what is not there, and index it. How many were inserted."""
        statements, full_text = self._statements, self._full_text
        if full_text is None:
            return _execute(connection, statements.insert, statements.rows(chunk))
        rowid = full_text.last_rowid(connection)
        inserted = _execute(connection, statements.insert, statements.rows(chunk, full_text.next_row(connection)))
        full_text.add_newer(connection, rowid)
        return inserted

    def _merge(self, connection: sa.Connection, chunk: list[Delivery]) -> list[Outcome]:
        """Compare with what is there, and make of each id what its last delivery says."""
        layout, statements, full_text = self._layout, self._statements, self._full_text
        ids = {d.id for d in chunk}
        rows = self._known(connection, layout.documents, ids)
        buried = self._buried(connection, ids)
        outcomes, winners = compare(chunk, buried | rows)
        upserts = [d for d in winners.values() if d.operation == "upsert"]
        deletes = [d for d in winners.values() if d.operation == "delete"]
        if full_text is not None:
            full_text.remove(connection, winners.keys() & rows.keys())
        if upserts:
            first = 0 if full_text is None else full_text.next_row(connection)
            _execute(connection, statements.upsert, statements.rows(upserts, first))
        _execute(connection, statements.bury, ((d.id, d.sequence, d.hash) for d in deletes))
        self._delete(connection, layout.documents, [d.id for d in deletes if d.id in rows])
        self._delete(connection, layout.tombstones, [d.id for d in upserts if d.id in buried])
        if full_text is not None:
            full_text.add(connection, [d.id for d in upserts])
        return outcomes

    def _buried(
        self, connection: sa.Connection, ids: Collection[str], at_most: int | None = None
    ) -> dict[str, LastDelivery]:
        """Those of the ids that were deleted. There are often no tombstones at all: one glance."""
        tombstones = self._layout.tombstones
        if connection.execute(sa.select(tombstones.c.id).limit(1)).first() is None:
            return {}
        return self._known(connection, tombstones, ids, at_most)

    def _known(
        self, connection: sa.Connection, table: sa.Table, ids: Collection[str], at_most: int | None = None
    ) -> dict[str, LastDelivery]:
        found: dict[str, LastDelivery] = {}
        for some in slices(ids):
            query = sa.select(table.c.id, table.c.sequence, table.c.delivery_hash).where(table.c.id.in_(some))
            for id, sequence, digest in connection.execute(query.limit(at_most)):
                found[id] = LastDelivery(sequence, digest)
        return found

    def _delete(self, connection: sa.Connection, table: sa.Table, ids: Collection[str]) -> None:
        for some in slices(ids):
            connection.execute(sa.delete(table).where(table.c.id.in_(some)))


def _execute(connection: sa.Connection, statement: str, rows: Iterator[tuple[Any, ...]]) -> int:
    """A statement for each row, through the driver's own cursor: SQLAlchemy would want all rows in a list. Rows hit."""
    cursor = connection.connection.cursor()
    cursor.executemany(statement, rows)  # type: ignore[arg-type]  # any iterable does for sqlite3
    return int(cursor.rowcount)
