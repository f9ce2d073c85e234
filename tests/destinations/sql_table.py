"""What a reader with nothing but sqlite3 finds in a table of ``Sql``."""

from __future__ import annotations

import multiprocessing
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ferryman.destinations import Destination, DestinationContext, Guarantee, Sql
from ferryman.errors import Unavailable
from ferryman.testing.destinations import delete, delivery
from ferryman.testing.servers import ServerSuite

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


# Writers and drivers that meet, on a server.

_SPAWN = multiprocessing.get_context("spawn")
_VERSIONS, _IDS, _WRITERS = 60, 20, 3


def at_once(processes: int, function: Callable[..., None], *arguments: Any) -> None:
    """Call a function in several processes: with a barrier, at which they begin, the process's number, and these."""
    start = _SPAWN.Barrier(processes)
    calls = [_SPAWN.Process(target=function, args=(start, n, *arguments), daemon=True) for n in range(processes)]
    for call in calls:
        call.start()
    for call in calls:
        call.join(300)
    assert [call.exitcode for call in calls] == [0] * processes


def write_versions(start: Any, own: int, url: str, options: dict[str, Any], tries_again: bool) -> None:
    """Every id in many versions, in an order of ids of its own; each of the writers has its own sequences."""
    sql = Sql(url, **options)
    sql.open(CONTEXT)
    start.wait(300)
    for version in range(own, _VERSIONS, _WRITERS):
        ids = range(_IDS) if version % 2 else reversed(range(_IDS))
        chunk = [
            delete(f"doc-{i}", 100 * version + i) if (version + i) % 7 == 0 else delivery(f"doc-{i}", 100 * version + i)
            for i in ids
        ]
        if version % 3 == 0:
            chunk = [d for d in chunk if d.operation == "upsert"]
        while True:
            try:
                assert {o.kind for o in sql.write(chunk)} <= {"ok", "stale"}
                break
            except Unavailable:
                if not tries_again:
                    raise
    sql.close()


def check_many_writers(database: Any, *, tries_again: bool = False, **options: Any) -> None:
    """Have three processes write versions of the same ids at once, and compare what is there.

    Args:
        tries_again: a writer may be asked to, as the engine does.
    """
    Sql(database.url, **options).check()
    at_once(_WRITERS, write_versions, database.url, options, tries_again)
    last = {
        f"doc-{i}": max((100 * v + i, (v + i) % 7 == 0) for v in range(_VERSIONS) if (v + i) % 7 != 0 or v % 3 != 0)
        for i in range(_IDS)
    }
    alive = {id: sequence for id, (sequence, deleted) in last.items() if not deleted}
    assert dict(database.query("SELECT id, sequence FROM documents")) == alive
    dead = {id: sequence for id, (sequence, deleted) in last.items() if deleted}
    assert dict(database.query("SELECT id, sequence FROM documents_tombstones")) == dead


def check_table(start: Any, own: int, url: str, options: dict[str, Any]) -> None:
    """``check``, as drivers call it at the same moment."""
    sql = Sql(url, **options)
    start.wait(300)
    sql.check()


class SqlServerSuite(ServerSuite):
    """Promises of ``Sql`` on a server; ``database`` is the test's own, ``options`` are those of ``Sql``."""

    trigger = b"COMMIT"
    table = "documents"
    options: ClassVar[Mapping[str, Any]] = {}
    database: Any

    def sql(self, url: str) -> Sql:
        return Sql(url, table=self.table, columns={"title": "title"}, **self.options)

    def server(self) -> tuple[str, int]:
        return "127.0.0.1", self.database.server.port

    def destination_at(self, folder: Path, host: str, port: int) -> Destination:
        return self.sql(self.database.url_at(port))

    def stop(self) -> None:
        self.database.server.stop()

    def start(self) -> None:
        self.database.server.start()

    def wrong_credentials(self, folder: Path) -> Destination:
        return self.sql(self.database.url.replace(self.secret, f"{self.secret}-and-wrong"))

    def hashes(self, folder: Path) -> list[str]:
        return list(self.database.hashes(self.table))
