"""Writing to PostgreSQL: chunks as transactions, COPY for the rows, any number of writers.

Two writers that meet (a late worker and its successor, or two lanes) must leave what one after the other would:

1. Each transaction of an upsert table takes an advisory lock: shared if it only upserts, alone if it deletes. So no
   tombstone comes up while somebody upserts, and an id that is neither in the table nor among the tombstones can be
   put in.
2. New rows are copied straight in. If the server says that a key is there, the transaction is taken back, and the rows
   are merged: the known ones are read and locked, ``compare`` says what is newer, and that goes in through a temporary
   table with ON CONFLICT, which compares the sequences once more: somebody may have put the id in since. Whoever was
   overtaken so begins again.
3. Rows are locked in the order of their ids, by all alike: there is no ring of writers that wait for each other. Where
   one comes about all the same (a foreign program), the server ends one of them, which begins again.
4. A connection that is lost, be it in the middle of the commit, is reported as it is: the server is down. The next
   ``write`` makes it again, and when the chunk comes again, the hashes tell what is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import sqlalchemy as sa
from psycopg.errors import UniqueViolation

from ferryman.destinations.base import Delivery, Outcome
from ferryman.destinations.sequences import LastDelivery, compare
from ferryman.destinations.sql import dialect
from ferryman.destinations.sql.layout import Layout
from ferryman.destinations.sql.postgresql import faults, nul
from ferryman.destinations.sql.postgresql.connection import connect
from ferryman.errors import Unavailable

TRIES: Final = 5
"""Transactions for a chunk that meets others: each time one of those has got through."""

LOCKS: Final = 0x0FE227A1
"""First half of the key of our advisory locks; the second is the table's number."""


class _Overtaken(Exception):
    """Another writer has put in, meanwhile, an id that was not there."""


class PostgresWriter(dialect.Writer):
    """Writes chunks into a table that ``prepare`` has found fit."""

    def __init__(self, url: sa.URL, layout: Layout) -> None:
        self._url = url
        self._layout = layout
        self._sql = _Statements(layout)
        self._new_expected = True
        """Most chunks are all new or all known, as the one before."""
        self._replaces_nul = False
        """Only while a chunk is repeated that has one: to look for it in every row takes longer than to send it."""
        self._connection = connect(url)

    def close(self) -> None:
        self._connection.close()

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        if self._connection.closed:
            self._connection = connect(self._url)
        self._replaces_nul = False
        for _ in range(TRIES):
            try:
                return self._write(chunk)
            except _Overtaken:
                continue
            except psycopg.Error as e:
                if nul.is_meant(e) and not self._replaces_nul:
                    self._replaces_nul = True
                elif not faults.is_passing(e):
                    raise
        raise Unavailable(f"other writers changed the same ids, {TRIES} times in a row; it is tried again.")

    def _write(self, chunk: list[Delivery]) -> list[Outcome]:
        appends = self._layout.appends
        if self._new_expected and self._can_be_new(chunk):
            try:
                with self._transaction() as cursor:
                    if appends or not self._buried(cursor, chunk):
                        self._copy(cursor, self._sql.copy, sorted(chunk, key=self._key))
                        return [Outcome.ok()] * len(chunk)
            except UniqueViolation:  # of our key; or of somebody's own, who is heard again below
                pass
            self._new_expected = False
        with self._transaction(alone=any(d.operation == "delete" for d in chunk)) as cursor:
            return self._append(cursor, chunk) if appends else self._merge(cursor, chunk)

    def _key(self, delivery: Delivery) -> str:
        return delivery.hash if self._layout.appends else delivery.id

    def _can_be_new(self, chunk: list[Delivery]) -> bool:
        if len(set(map(self._key, chunk))) < len(chunk):
            return False
        return self._layout.appends or all(d.operation == "upsert" for d in chunk)

    @contextmanager
    def _transaction(self, alone: bool = False) -> Iterator[psycopg.Cursor[Any]]:
        with self._connection.transaction(), self._connection.cursor() as cursor:
            if not self._layout.appends:
                cursor.execute(self._sql.lock_alone if alone else self._sql.lock_shared)
            yield cursor

    def _append(self, cursor: psycopg.Cursor[Any], chunk: list[Delivery]) -> list[Outcome]:
        """A hash that is there is passed over: nothing else can be known."""
        inserted = self._put(cursor, self._sql.insert, list({d.hash: d for d in chunk}.values()))
        self._new_expected = inserted == len(chunk)
        return [Outcome.ok()] * len(chunk)

    def _merge(self, cursor: psycopg.Cursor[Any], chunk: list[Delivery]) -> list[Outcome]:
        """Compare with what is there, and make of each id what its last delivery says."""
        ids = sorted({d.id for d in chunk})
        known = self._known(cursor, self._sql.known, ids)
        buried = self._buried(cursor, chunk)
        outcomes, winners = compare(chunk, buried | known)
        upserts = [d for d in winners.values() if d.operation == "upsert"]
        deletes = [d for d in winners.values() if d.operation == "delete"]
        if upserts and self._put(cursor, self._sql.upsert, upserts) < len(upserts):
            raise _Overtaken
        if deletes:
            values = [d.id for d in deletes], [d.sequence for d in deletes], [d.hash for d in deletes]
            cursor.execute(self._sql.bury, values)
            cursor.execute(self._sql.delete, [values[0]])
        if raised := [d.id for d in upserts if d.id in buried]:
            cursor.execute(self._sql.unbury, [raised])
        self._new_expected = not known
        return outcomes

    def _buried(self, cursor: psycopg.Cursor[Any], chunk: list[Delivery]) -> dict[str, LastDelivery]:
        """Those of the ids that were deleted. There are often no tombstones at all: one glance."""
        if cursor.execute(self._sql.any_buried).fetchone() is None:
            return {}
        return self._known(cursor, self._sql.buried, [d.id for d in chunk])

    def _known(self, cursor: psycopg.Cursor[Any], query: bytes, ids: Collection[str]) -> dict[str, LastDelivery]:
        return {id: LastDelivery(sequence, digest) for id, sequence, digest in cursor.execute(query, [list(ids)])}

    def _put(self, cursor: psycopg.Cursor[Any], statement: bytes, chunk: list[Delivery]) -> int:
        """Through a temporary table. How many rows were inserted or replaced."""
        cursor.execute(self._sql.make_stage)
        self._copy(cursor, self._sql.copy_to_stage, chunk)
        put = cursor.execute(statement).rowcount
        cursor.execute(self._sql.drop_stage)
        return put

    def _copy(self, cursor: psycopg.Cursor[Any], statement: bytes, chunk: list[Delivery]) -> None:
        rows = self._layout.rows(chunk)
        if self._replaces_nul:
            rows = (nul.replaced(row, self._layout.names) for row in rows)
        with cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)


class _Statements:
    """SQL for one table. Names go in once, here."""

    def __init__(self, layout: Layout) -> None:
        columns = [name for name in layout.names if name != layout.key]
        names = {
            "documents": _quoted(layout.table),
            "tombstones": _quoted(layout.tombstones.name),
            "stage": _quoted("ferryman_stage"),
            "columns": ", ".join(map(_quoted, layout.names)),
            "key": _quoted(layout.key),
            "changes": ", ".join(f"{_quoted(name)} = excluded.{_quoted(name)}" for name in columns),
            "number": f"{_literal(_quoted(layout.table))}::regclass::oid::int",
            "locks": str(LOCKS),
        }

        def made(template: str) -> bytes:
            if "%s" in template:  # then a percent sign in a name is psycopg's too
                return template.format_map({key: name.replace("%", "%%") for key, name in names.items()}).encode()
            return template.format_map(names).encode()

        self.lock_shared = made("SELECT pg_advisory_xact_lock_shared({locks}, {number})")
        self.lock_alone = made("SELECT pg_advisory_xact_lock({locks}, {number})")
        self.copy = made("COPY {documents} ({columns}) FROM STDIN")
        self.make_stage = made(
            "CREATE TEMPORARY TABLE {stage} ON COMMIT DROP AS SELECT {columns} FROM {documents} WITH NO DATA"
        )
        self.copy_to_stage = made("COPY {stage} ({columns}) FROM STDIN")
        self.drop_stage = made("DROP TABLE {stage}")
        put = 'INSERT INTO {documents} AS there ({columns}) SELECT {columns} FROM {stage} ORDER BY {key} COLLATE "C" '
        self.insert = made(put + "ON CONFLICT ({key}) DO NOTHING")
        self.upsert = made(
            put + "ON CONFLICT ({key}) DO UPDATE SET {changes} WHERE there.sequence <= excluded.sequence"
        )
        self.known = made(
            'SELECT id, sequence, delivery_hash FROM {documents} WHERE id = ANY(%s) ORDER BY id COLLATE "C" FOR UPDATE'
        )
        self.any_buried = made("SELECT 1 FROM {tombstones} LIMIT 1")
        self.buried = made("SELECT id, sequence, delivery_hash FROM {tombstones} WHERE id = ANY(%s)")
        self.bury = made(
            "INSERT INTO {tombstones} (id, sequence, delivery_hash) SELECT * FROM unnest(%s::text[], %s::bigint[], "
            "%s::text[]) ON CONFLICT (id) DO UPDATE SET sequence = excluded.sequence, "
            "delivery_hash = excluded.delivery_hash"
        )
        self.delete = made("DELETE FROM {documents} WHERE id = ANY(%s)")
        self.unbury = made("DELETE FROM {tombstones} WHERE id = ANY(%s)")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
