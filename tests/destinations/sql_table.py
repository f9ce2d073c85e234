"""What a reader with nothing but sqlite3 finds in a table of ``Sql``."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import DestinationContext, Guarantee, Sql

CONTEXT = DestinationContext("tests", 1, "node", 1, Guarantee.EXACTLY_ONCE)


def opened(sql: Sql) -> Sql:
    """Checked and opened."""
    sql.check()
    sql.open(CONTEXT)
    return sql


def query(path: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Rows, read by a connection of its own."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement, values).fetchall()


def verify_index(path: Path, table: str = "documents") -> None:
    """The index holds exactly the table's rows, with the text that is there now."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"INSERT INTO {table}_fts({table}_fts, rank) VALUES('integrity-check', 1)")
        rows = sorted(connection.execute(f"SELECT fts_row FROM {table}").fetchall())
        assert rows == sorted(connection.execute(f"SELECT id FROM {table}_fts_docsize").fetchall())


def matching(path: Path, words: str, table: str = "documents") -> list[str]:
    """Ids of the rows that the index finds."""
    statement = f"SELECT d.id FROM {table}_fts f JOIN {table} d ON d.fts_row = f.rowid WHERE {table}_fts MATCH ?"
    return sorted(id for (id,) in query(path, statement, words))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.db"


def url(path: Path) -> str:
    return f"sqlite:///{path}"
