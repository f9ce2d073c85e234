"""Databases in the tests' own MariaDB and MySQL, and what a reader with nothing but PyMySQL finds in them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pymysql
import pytest

from ferryman.destinations.sql.mysql import quoted
from tests.servers.mysql import PASSWORD, USER, MariaDbServer

_numbers = itertools.count(1)


class MySqlDatabase:
    """One test's own."""

    def __init__(self, server: MariaDbServer) -> None:
        self.server = server
        self.name = f"test{next(_numbers)}"
        self._execute(None, f"CREATE DATABASE {self.name}")

    @property
    def url(self) -> str:
        return self.url_at(self.server.port)

    def url_at(self, port: int) -> str:
        """The same through another port."""
        return self.server.url_of(self.name, port=port)

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows, read (or changed) by a connection of its own."""
        return self._execute(self.name, statement, *values)

    def hashes(self, table: str = "documents") -> list[str]:
        """The delivery hash of each row."""
        return [str(_text(digest)) for (digest,) in self.query(f"SELECT delivery_hash FROM {quoted(table)}")]

    def drop(self) -> None:
        self._execute(None, f"DROP DATABASE {self.name}")

    def _execute(self, database: str | None, statement: str, *values: object) -> list[tuple[Any, ...]]:
        connection = pymysql.connect(
            host="127.0.0.1", port=self.server.port, user=USER, password=PASSWORD, database=database, autocommit=True
        )
        with closing(connection), connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return [tuple(map(_text, row)) for row in cursor.fetchall()]


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


@pytest.fixture(params=["mariadb", pytest.param("mysql", marks=pytest.mark.slow)])
def mysql_database(server: Callable[[str], Any], request: pytest.FixtureRequest) -> Iterator[MySqlDatabase]:
    """In each of the two servers."""
    made = MySqlDatabase(server(request.param))
    yield made
    made.drop()
