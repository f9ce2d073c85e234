"""What a job costs, from its creation to its report: requests to ZooKeeper, transactions of SQLite, syncs of files."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ferryman.intake import JobQueue
from ferryman.intake.store.base import COMMITS_AT_ONCE, Commit
from ferryman.intake.store.sqlite import SqliteStore
from ferryman.storage import disk
from tests.intake.conftest import zookeeper_url
from tests.intake.service.place import Place, until
from tests.servers.server import Server

JOBS = 60
READS, CHANGES = 16, 1.5
"""Most reads and most changes a job: 66 and 15 before jobs kept their locks and watches said what has not changed, 16
and 12 before they moved in groups."""
TRANSACTIONS, NODES, SYNCS = 2, 16, 1
"""Most transactions that write, nodes of jobs that are read, and syncs a job on SQLite: 12 transactions before they
moved in groups. How large the groups are depends on how threads take turns."""
STATEMENTS = 75
"""Most statements that change something, a job on SQLite: 99 before a transaction wrote the counters of a folder's
children once, and checked its session once; 53 since."""
SHARED_SYNCS = 120
"""Syncs that jobs share, of the plan's state above all."""
SHARED = 900
"""Reads that jobs share: looks into empty states, batches, the layout. They depend on how long it takes."""


def serve_warm(intake: Place, *counts: Counter[str]) -> None:
    """Serve a batch while counting. An earlier one has opened the plan, and has shown that the work is quick."""
    with intake.served(), JobQueue.open(intake.queue.url, session_timeout_s=60.0) as watching:
        for name in ("warm", "counted"):
            for each in counts:
                each.clear()
            rows = [intake.row(f"{name} {n}.txt", local_id=f"{name} {n}") for n in range(JOBS)]
            batch = intake.submit(manifest_url=intake.manifest(rows, f"{name}.csv"))
            until(lambda batch=batch: watching.load_batch(batch).status == "Completed")  # type: ignore[misc]
        assert watching.list_jobs() == watching.list_jobs("Completed")


@pytest.mark.server
def test_requests_a_job(place: Path, server: Callable[[str], Server], monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted at the client. Each of a job's nodes is read once at most while its lock is held."""
    from kazoo.client import KazooClient

    intake = Place(place, session_timeout_s=60.0, url=zookeeper_url(server))
    kinds: Counter[str] = Counter()
    nodes: Counter[str] = Counter()
    clients: list[Any] = []
    inner = KazooClient._call

    def call(self: Any, request: Any, result: Any) -> Any:
        clients.append(self)
        if self is clients[0]:
            kinds[type(request).__name__] += 1
            if type(request).__name__ == "GetData" and ("/jobs/jid" in request.path or "/localid/" in request.path):
                nodes[request.path] += 1
        return inner(self, request, result)

    monkeypatch.setattr(KazooClient, "_call", call)
    intake.queue.list_batches()  # its client's requests are counted
    serve_warm(intake, kinds, nodes)
    monkeypatch.undo()
    assert kinds["Transaction"] <= CHANGES * JOBS + SHARED / 20, kinds
    assert 0 < sum(nodes.values()) <= READS * JOBS, kinds
    assert kinds["GetData"] + kinds["GetChildren"] <= READS * JOBS + SHARED, kinds
    job = f"/jobs/{intake.queue.list_jobs()[-1]}"
    found = {path.rpartition("/")[2]: count for path, count in nodes.items() if f"{job}/" in path}
    reported = ("configuration", "identifiers")  # again for the batch's report
    assert all(count <= found["lock"] + (name in reported) for name, count in found.items()), found
    intake.queue.close()


def test_transactions_a_job(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On SQLite, where each transaction writes and locks; with the syncs of the working space."""
    counts: Counter[str] = Counter()

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            counts["statements"] += not statement.startswith(("SELECT", "PRAGMA"))
            return super().execute(statement, *values)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))
    intake = Place(place, session_timeout_s=60.0)

    def count(owner: Any, name: str, kind: str) -> None:
        inner = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            counts[kind] += 1
            return inner(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    commit_all, read = SqliteStore.commit_all, SqliteStore.read  # a single commit is one of many

    def count_nodes(store: SqliteStore, paths: Iterable[str]) -> None:
        if store is intake.queue.tree.store:
            counts["nodes"] += sum(path.startswith("/jobs/jid") for path in paths)

    def counted_commits(self: SqliteStore, commits: Sequence[Commit]) -> Any:
        counts["transactions"] += -(-len(commits) // COMMITS_AT_ONCE)
        count_nodes(self, [path for each in commits for path in each.read_after])
        return commit_all(self, commits)

    def counted_read(self: SqliteStore, paths: Sequence[str]) -> Any:
        count_nodes(self, paths)
        return read(self, paths)

    monkeypatch.setattr(SqliteStore, "commit_all", counted_commits)
    monkeypatch.setattr(SqliteStore, "read", counted_read)
    for name in ("fsync", "fdatasync"):
        count(os, name, "syncs")
    count(disk, "fsync_tree", "syncs")
    serve_warm(intake, counts)
    monkeypatch.undo()
    assert 0 < counts["transactions"] <= TRANSACTIONS * JOBS, counts
    assert 0 < counts["statements"] <= STATEMENTS * JOBS, counts
    assert 0 < counts["nodes"] <= NODES * JOBS, counts
    assert 0 < counts["syncs"] <= SYNCS * JOBS + SHARED_SYNCS, counts
