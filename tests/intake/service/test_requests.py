"""What a job costs, from its creation to its report: requests to ZooKeeper, transactions of SQLite, syncs of files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman.intake.store.sqlite import SqliteStore
from ferryman.storage import disk
from tests.intake.conftest import zookeeper_url
from tests.intake.service.place import Place
from tests.servers.server import Server

JOBS = 60
READS, CHANGES = 16, 1.5
"""Most reads and most changes a job: 66 and 15 before jobs kept their locks and watches said what has not changed, 16
and 12 before they moved in groups."""
TRANSACTIONS, NODES, SYNCS = 2, 16, 1
"""Most transactions that write, nodes of jobs that are read, and syncs a job on SQLite: 12 transactions before they
moved in groups. How large the groups are depends on how threads take turns."""
SHARED_SYNCS = 120
"""Syncs that jobs share, of the plan's state above all."""
SHARED = 300
"""Reads that jobs share: looks into empty states, batches, the layout. They depend on how long it takes."""


@pytest.mark.server
def test_requests_a_job(place: Path, server: Callable[[str], Server], monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted at the client. Each of a job's nodes is read once at most while its lock is held."""
    from kazoo.client import KazooClient

    intake = Place(place, session_timeout_s=60.0, url=zookeeper_url(server))
    intake.submit(manifest_url=intake.manifest([intake.row(f"{n}.txt", local_id=f"object {n}") for n in range(JOBS)]))
    kinds: Counter[str] = Counter()
    nodes: Counter[str] = Counter()
    inner = KazooClient._call

    def call(self: Any, request: Any, result: Any) -> Any:
        kinds[type(request).__name__] += 1
        if type(request).__name__ == "GetData" and "/jobs/jid" in request.path:
            nodes[request.path] += 1
        return inner(self, request, result)

    monkeypatch.setattr(KazooClient, "_call", call)
    intake.serve()
    monkeypatch.undo()
    assert set(intake.jobs().values()) == {"Completed"}
    assert kinds["Transaction"] <= CHANGES * JOBS + SHARED / 10, kinds
    assert kinds["GetData"] + kinds["GetChildren"] <= READS * JOBS + SHARED, kinds
    job = f"/jobs/{intake.queue.list_jobs()[-1]}"
    found = {path.rpartition("/")[2]: count for path, count in nodes.items() if f"{job}/" in path}
    reported = ("configuration", "identifiers")  # again for the batch's report
    assert all(count <= found["lock"] + (name in reported) for name, count in found.items()), found
    intake.queue.close()


def test_transactions_a_job(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On SQLite, where each transaction writes and locks; with the syncs of the working space."""
    intake = Place(place, session_timeout_s=60.0)
    intake.submit(manifest_url=intake.manifest([intake.row(f"{n}.txt", local_id=f"object {n}") for n in range(JOBS)]))
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str, kind: str) -> None:
        inner = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            counts[kind] += 1
            return inner(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    count(SqliteStore, "_write_transaction", "transactions")
    read = SqliteStore._read_alive

    def read_alive(self: SqliteStore, path: str) -> Any:
        counts["nodes"] += path.startswith("/jobs/jid")
        return read(self, path)

    monkeypatch.setattr(SqliteStore, "_read_alive", read_alive)
    for name in ("fsync", "fdatasync"):
        count(os, name, "syncs")
    count(disk, "fsync_tree", "syncs")
    intake.serve()
    monkeypatch.undo()
    assert set(intake.jobs().values()) == {"Completed"}
    assert 0 < counts["transactions"] <= TRANSACTIONS * JOBS, counts
    assert 0 < counts["nodes"] <= NODES * JOBS, counts
    assert 0 < counts["syncs"] <= SYNCS * JOBS + SHARED_SYNCS, counts
