"""``ferryman verify`` of tables in SQLite and PostgreSQL, beside a bare scan: the same columns of ledger and table are
fetched, without and with a hash over each row. What counts is the CPU time of this process, which reads both sides;
that with a server's is told beside it.

States and tables are made without a run, see ``synthetic``. The largest table is verified in a process of its own,
since a peak of memory never goes down.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import psycopg
import sqlalchemy as sa
from tests.servers.postgres import PostgresServer

from bench import data, synthetic
from bench.harness import ROOT, Measurement, Row, Sizes, alternate, empty_folder, print_progress, time_row, timed
from bench.processes import Watch
from ferryman import Plan
from ferryman.destinations import Delivery, DestinationContext, Guarantee, Sql
from ferryman.destinations.base import content_hash
from ferryman.sources import Memory
from ferryman.state.state import state_root
from ferryman.verification import verify

TARGET: Final = 2.0
LIMIT_MB: Final = 512

_LEDGER: Final = (
    "document, source, destination, route, delivery_hash, wave, ordinal, operation, message, version, status"
)
_COLUMNS: Final = (
    "id, parent_id, origin_id, source, version, sequence, delivery_hash, route{0}, text, fields{0}, content_hash"
)
_TEXT_CHARACTERS: Final = 440
_PAGE: Final = 8192
_ROWS_OF_FIVE: Final = 5
"""Rows of the tables that are read in turns are a fifth of ``--documents``; the largest table has twice as many."""


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    count = sizes.documents // _ROWS_OF_FIVE
    place = empty_folder(folder / "verify")
    yield from _rows("SQLite", make(place / "sqlite", f"sqlite:///{place}/sqlite.db", count), count, sizes.rounds)
    with PostgresServer() as server:
        yield from _rows("PostgreSQL", make(place / "postgres", server.url, count), count, sizes.rounds)
    count = 2 * sizes.documents
    make(place / "large", f"sqlite:///{place}/large.db", count)
    ours, bare = (_alone(place, count, what) for what in ("verify", "bare"))
    yield Row(
        f"verify of {count} rows in SQLite, once; a bare scan",
        f"{ours['wall_s']:.1f} s ({ours['cpu_s']:.1f} s of CPU)",
        f"{bare['wall_s']:.1f} s ({bare['cpu_s']:.1f} s of CPU)",
        f"CPU {ours['cpu_s'] / bare['cpu_s']:.2f}×",
        f"≤ {LIMIT_MB} MB",
        ours["mb"] <= LIMIT_MB,
        f"driver {ours['mb']} MB; driver {bare['mb']} MB",
    )


def _rows(name: str, made: Made, count: int, rounds: int) -> Iterator[Row]:
    works = (made.verify, lambda: made.scan(None), lambda: made.scan(content_hash))
    ours, *others = alternate(rounds, *map(_own, works))
    for what, other in zip(("a bare scan of both sides", "the same with a hash over each row"), others, strict=True):
        own, with_server = (
            statistics.median(cpu_of(a) / cpu_of(b) for a, b in zip(ours.runs, other.runs, strict=True))
            for cpu_of in (lambda run: run.phases["own"], lambda run: run.cpu_s)
        )
        row = time_row(f"verify, {name}; {what}", count, ours, other, TARGET)
        yield row._replace(ratio=f"CPU {own:.2f}× (with a server's {with_server:.2f}×)", met=own <= TARGET)


def _own(work: Callable[[], None]) -> Callable[[], Measurement]:
    """Return the work as one that measures the CPU time of this process, too: the phase ``own``."""

    def measure() -> Measurement:
        began = time.process_time()
        return timed(work)._replace(phases={"own": time.process_time() - began})

    return measure


class Made:
    """A state and the table that its deliveries went to."""

    def __init__(self, place: Path, url: str, count: int) -> None:
        self.plan = Plan("sizes", version=1)
        self.plan.source("docs", Memory([])).destination("out", Sql(url))
        self.plan.freeze()
        self._place, self._url, self._count = place, url, count

    @property
    def root(self) -> Path:
        return Path(state_root(self.plan, self._place))

    def verify(self) -> None:
        [target] = verify(self.plan, state=self._place).targets
        assert target.is_clean, target
        assert target.counts is not None
        assert target.counts.expected == self._count

    def scan(self, digest: Callable[..., Any] | None) -> None:
        """Fetch what a verification fetches, and hash each row on either side."""
        query = f"SELECT {_LEDGER} FROM read_parquet('{self.root}/ledger/**/*.parquet')"
        db = duckdb.connect()
        db.execute("SET threads = 2")
        if digest is not None:
            assert db.execute(f"SELECT sum(hash({_LEDGER})), count(*) FROM ({query})").fetchall()[0][1] >= self._count
        else:
            assert sum(batch.num_rows for batch in db.sql(query).to_arrow_reader(100_000)) >= self._count
        found = 0
        for rows in self._pages():
            found += len(rows)
            if digest is not None:
                for row in rows:
                    digest(*row)
        assert found == self._count

    def _pages(self) -> Iterator[list[tuple[Any, ...]]]:
        if self._url.startswith("sqlite"):
            with sqlite3.connect(str(sa.make_url(self._url).database)) as db:
                cursor = db.execute(f"SELECT {_COLUMNS.format('')} FROM documents")
                while rows := cursor.fetchmany(_PAGE):
                    yield rows
            return
        with psycopg.connect(self._url) as connection, connection.cursor("bench") as server_side:
            server_side.execute(f"SELECT {_COLUMNS.format('::text')} FROM documents")  # type: ignore[arg-type]
            while found := server_side.fetchmany(_PAGE):
                yield found


def make(place: Path, url: str, count: int) -> Made:
    """Make a state in which documents were delivered once, and the table."""
    made = Made(place, url, count)
    synthetic.state(made.root, made.plan, count)
    sql = Sql(url)
    sql.check()
    sql.open(DestinationContext("sizes", 1, "out", 1, Guarantee.EXACTLY_ONCE))
    deliveries = _deliveries(count)
    while chunk := list(itertools.islice(deliveries, Sql.preferred_batch)):
        assert all(outcome.kind == "ok" for outcome in sql.write(chunk))
    sql.close()
    return made


def _deliveries(count: int) -> Iterator[Delivery]:
    random = np.random.default_rng(7)
    text = data.words(random).encode()
    for first, end in synthetic.blocks(count):
        starts = random.integers(0, len(text) - _TEXT_CHARACTERS, size=end - first).tolist()
        for n, start in zip(range(first, end), starts, strict=True):
            id = synthetic.id_of(n)
            yield Delivery(
                id,
                hash=synthetic.hash_of(n, 1),
                sequence=n + 1,
                fields=b'{"title":"Title %d"}' % n,
                raw=text[start : start + _TEXT_CHARACTERS],
                version=synthetic.version_of(n, 1),
                source="docs",
                origin_id=id,
            )


def _alone(place: Path, count: int, what: str) -> dict[str, Any]:
    print_progress(f"  {count} rows: {what} …")
    command = [sys.executable, "-m", "bench.verify", str(place), str(count), what]
    answer = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def main(place: Path, count: int, what: str) -> None:
    made = Made(place / "large", f"sqlite:///{place}/large.db", count)
    with Watch() as watch:
        took = timed(made.verify if what == "verify" else lambda: made.scan(None))
    print(json.dumps({**took._asdict(), "mb": watch.peaks["driver"]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
