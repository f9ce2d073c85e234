"""``Sql`` on PostgreSQL, append mode, beside plain COPY of the same rows into the same table."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from pathlib import Path

import psycopg
from tests.servers.postgres import PostgresServer

from bench.harness import Row, Sizes, alternate, speed_row
from bench.sqlite_loop import COLUMNS, deliveries, make_rows
from ferryman.destinations import DestinationContext, Guarantee, Sql

TARGET = 0.8
_OPERATION = ("upsert",)


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Measure both sides, each from an empty table; rows and deliveries are made before the clock starts."""
    count = sizes.documents // 5
    rows = [(*row, *_OPERATION) for row in make_rows(count)]
    chunks = list(deliveries((row[:-1] for row in rows), Sql.preferred_batch or 500))
    gc.freeze()  # keep the garbage collector from traversing them
    with PostgresServer() as server:
        sql = Sql(server.url, mode="append")
        sql.check()

        def ours() -> None:
            _empty(server.url)
            sql.open(DestinationContext("bench", 1, "documents", 1, Guarantee.EXACTLY_ONCE))
            for chunk in chunks:
                assert all(outcome.kind == "ok" for outcome in sql.write(chunk))
            sql.close()

        def beside() -> None:
            _empty(server.url)
            _copy(server.url, rows)

        took, plain = alternate(sizes.rounds, ours, beside)
    gc.unfreeze()
    what = (
        f"Sql on PostgreSQL, mode append; plain COPY (psycopg's write_row), a commit every {Sql.preferred_batch} rows"
    )
    yield speed_row(what, count, took, plain, TARGET)


def _copy(url: str, rows: list[tuple[object, ...]]) -> None:
    """Copy the rows with plain COPY, with a commit as often as ``Sql``."""
    statement = f"COPY documents ({', '.join(COLUMNS)}, operation) FROM STDIN"
    remaining = iter(rows)
    with psycopg.connect(url) as connection:
        while some := list(itertools.islice(remaining, Sql.preferred_batch)):
            with connection.cursor() as cursor, cursor.copy(statement) as copy:  # type: ignore[arg-type]
                for row in some:
                    copy.write_row(row)
            connection.commit()


def _empty(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("TRUNCATE documents")
