"""The PostgreSQL dialect of ``Sql``."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from ferryman import databases
from ferryman.destinations.sql.dialect import Dialect, other_columns
from ferryman.destinations.sql.layout import Layout
from ferryman.destinations.sql.postgresql import faults, full_text
from ferryman.destinations.sql.postgresql.connection import engine
from ferryman.destinations.sql.postgresql.writer import LOCKS, PostgresWriter
from ferryman.destinations.sql.searching import Hit, Term
from ferryman.errors import DeliveryError, Misconfigured

NAME_BYTES = 63
"""Longer names are cut by PostgreSQL, so that two could become one."""


class PostgreSQL(Dialect):
    """A server; any number of writers; a generated column and a GIN index for full text."""

    single_writer = False
    column_type = sa.Text()
    key_type = sa.Text(collation="C")
    json_type = JSONB()
    reserved = (full_text.COLUMN,)

    def mistakes(self, url: sa.URL, table: str, columns: tuple[str, ...]) -> Iterator[str]:
        if url.drivername != databases.POSTGRESQL_DRIVER:
            yield f"{url.drivername} is not supported: write postgresql://, which uses psycopg 3"
        if len(table.encode(errors="replace")) + len("_tombstones") > NAME_BYTES:
            yield f"the table's name is too long: PostgreSQL takes {NAME_BYTES} bytes, with _tombstones at its end"

    def place(self, url: sa.URL) -> str:
        hosts = url.query.get("host", "")
        host = url.host or (hosts if isinstance(hosts, str) else ",".join(hosts))
        return sa.URL.create("postgresql", host=host or None, port=url.port, database=url.database).render_as_string()

    def prepare(self, url: sa.URL, layout: Layout, columns: tuple[str, ...], where: str) -> None:
        with engine(url).connect() as connection, connection.begin():
            encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
            if encoding != "UTF8":
                raise Misconfigured(
                    f"{where}: the database's encoding is {encoding}, which lacks some characters. Create one with "
                    "ENCODING 'UTF8', then run again."
                )
            # The first of several drivers makes everything, the others wait and find it.
            lock = sa.text("SELECT pg_advisory_xact_lock(:locks, hashtext(:table))")
            connection.execute(lock, {"locks": LOCKS, "table": layout.table})
            layout.create(connection, where)
            if columns:
                self._index(connection, layout.table, columns, where)

    def _index(self, connection: sa.Connection, table: str, columns: tuple[str, ...], where: str) -> None:
        indexed = full_text.columns_of(connection, table)
        if indexed is None:
            full_text.create(connection, table, columns)
        elif indexed != columns:
            raise other_columns(where, indexed, columns, f"ALTER TABLE {table} DROP COLUMN {full_text.COLUMN}")

    def writer(self, url: sa.URL, layout: Layout) -> PostgresWriter:
        return PostgresWriter(url, layout)

    def explain(self, error: BaseException, where: str) -> DeliveryError | None:
        return faults.explain(error, where)

    def open_reader(self, url: sa.URL) -> sa.Engine:
        return engine(url, read_only=True)

    def is_indexed(self, connection: sa.Connection, table: str) -> bool:
        return full_text.columns_of(connection, table) is not None

    def find(
        self, connection: sa.Connection, table: str, terms: list[Term], limit: int, mark: tuple[str, str]
    ) -> list[Hit]:
        return full_text.find(connection, table, terms, limit, mark)
