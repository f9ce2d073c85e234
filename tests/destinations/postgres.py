"""Schemas in the tests' own PostgreSQL, and what a reader with nothing but psycopg finds in them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql

from tests.servers.postgres import PostgresServer

_numbers = itertools.count(1)


class Database:
    """One test's own: a schema, which is made a hundred times as fast as a database.

    Args:
        within: the database that it is in.
    """

    def __init__(self, server: PostgresServer, within: str = "postgres") -> None:
        self.server = server
        self.name = f"test{next(_numbers)}"
        self._within = within
        self._in_server("CREATE SCHEMA {}")

    @property
    def url(self) -> str:
        return self.url_at(self.server.port)

    def url_at(self, port: int) -> str:
        """The same through another port."""
        return f"{self.server.url_of(self._within, port=port)}?options=-csearch_path%3D{self.name}"

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows, read (or changed) by a connection of its own."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def hashes(self, table: str = "documents") -> list[str]:
        """The delivery hash of each row."""
        query = sql.SQL("SELECT delivery_hash FROM {}").format(sql.Identifier(table))
        return [digest for (digest,) in self.query(query)]  # type: ignore[arg-type]

    def drop(self) -> None:
        self._in_server("DROP SCHEMA {} CASCADE")

    @contextmanager
    def of_language(self, language: str) -> Iterator[Database]:
        """Make a database of its own, whose texts are sorted as a language does it, by ICU; drop it at the end."""
        name = f"{self.name}_{language}"
        options = f"TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE '{language}'"
        self.query(f"CREATE DATABASE {name} {options}")
        try:
            yield Database(self.server, name)
        finally:
            self.query(f"DROP DATABASE {name} WITH (FORCE)")

    def _in_server(self, statement: LiteralString) -> None:
        with psycopg.connect(self.server.url_of(self._within), autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(sql.Identifier(self.name)))


@pytest.fixture(scope="module")
def postgres(server: Callable[[str], Any]) -> PostgresServer:
    return server("postgres")


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    made = Database(postgres)
    yield made
    made.drop()
