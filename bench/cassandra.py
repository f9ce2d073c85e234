"""The ledger into Cassandra: a mirror that catches up, beside a loop over the driver that inserts the same rows one by
one, with as many requests under way as the driver's own helper has by default.

It starts a server of the tests, with the compilers that a server has, not those of a test.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cassandra.cluster import Cluster
from cassandra.concurrent import execute_concurrent_with_args
from tests.servers.cassandra import CassandraServer

from bench.harness import Row, Sizes, alternate, empty_folder, limit_row, speed_row
from ferryman import Document, Plan
from ferryman.account.queries import open_view
from ferryman.destinations import Cassandra, Null
from ferryman.mirror.mirror import Mirror
from ferryman.mirror.tables import STATUS, hash_rows, keyspace_of, microseconds, status_rows
from ferryman.sources import Memory
from ferryman.state.state import MIRRORED, state_root
from ferryman.testing.inprocess import InProcess

MOST = 30_000
"""Documents; each is an event of the ledger, and a hash."""

TARGET = 1.0
LEAST_EVENTS_S = 5000


class QuickServer(CassandraServer):
    """A server that is optimized as in production."""

    name = "cassandra-bench"

    def layout(self) -> None:
        super().layout()
        settings = self.folder / "cassandra.yaml"
        periodic = "commitlog_sync: periodic\ncommitlog_sync_period: 10000ms"  # Cassandra's default
        settings.write_text(settings.read_text().replace("commitlog_sync: batch", periodic))

    def command(self) -> list[str]:
        return [word for word in super().command() if not word.startswith("-XX:TieredStopAtLevel")]


def make_state(folder: Path, count: int) -> tuple[Plan, Path]:
    """Make a state with an event for each document."""
    from ferryman.engine.run import Run
    from ferryman.observe import Silent
    from ferryman.state.state import State

    plan = Plan("mirrored")
    documents = [Document(f"file:///data/corpus/{n:08}.txt", title=f"document {n}") for n in range(count)]
    plan.source("files", Memory(documents)).destination("index", Null())
    plan.freeze()
    root = state_root(plan, folder)
    Run(State.take(root, plan), InProcess(), Silent()).run(None)
    return plan, root


def loop(url: str, plan: Plan, root: Path, keyspace: str) -> None:
    """Insert the same rows with the driver, each a request."""
    host, _, port = url.partition(":")
    cluster = Cluster([host], port=int(port))
    session = cluster.connect()
    session.default_timeout = None
    status = session.prepare(
        f"INSERT INTO {keyspace}.{STATUS.name} (docId, docHash, parentId, origParentId, outputStepName, status, "
        "message, antiCollision, created, createdNanos) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    hashed = session.prepare(
        f"INSERT INTO {keyspace_of('files', plan.name, plan.version)}.jj_scanner_doc_hash (docId, created, "
        "createdNanos, antiCollision, hashAlg, docHash) VALUES (?, ?, ?, ?, ?, ?)"
    )
    with open_view(root, plan) as view:
        rows: Iterator[Any] = (
            (r.id, r.hash, r.parent, r.origin, r.output_step, r.status, r.message, r.anti_collision, r.created, r.nanos)
            for r in status_rows(view, 0, view.settled)
        )
        execute_concurrent_with_args(session, status, rows, concurrency=100)
        rows = (
            (r.id, r.created, r.nanos, r.anti_collision, "BLAKE2b-128", r.hash)
            for r in hash_rows(view, 0, view.settled, microseconds(view.created))
        )
        execute_concurrent_with_args(session, hashed, rows, concurrency=100)
    cluster.shutdown()


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    count = min(sizes.documents, MOST)
    plan, root = make_state(empty_folder(folder / "cassandra"), count)
    turns = itertools.count()
    with QuickServer() as server:
        mirror = Mirror(root, plan, Cassandra(server.url))
        keyspace = keyspace_of("files", plan.name, plan.version, "index")

        def ours() -> None:
            (root / MIRRORED).unlink(missing_ok=True)
            assert mirror.catch_up().events == count, next(turns)

        took, looped = alternate(sizes.rounds, ours, lambda: loop(server.url, plan, root, keyspace))
    what = f"mirror {count} events, with their documents' hashes, into Cassandra"
    yield speed_row(f"{what}; a loop over cassandra-driver", count, took, looped, TARGET)
    yield limit_row(f"{what}: at least {LEAST_EVENTS_S} events/s", took, count / LEAST_EVENTS_S)
