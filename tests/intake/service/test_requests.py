"""How many requests to ZooKeeper a job costs, from its creation to its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.intake.conftest import zookeeper_url
from tests.intake.service.place import Place
from tests.servers.server import Server

JOBS = 60
READS, CHANGES = 25, 13
"""Most reads and most changes a job: 66 and 15 before jobs kept their locks and watches said what has not changed."""
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
    twice = {name: count for name, count in found.items() if count > 1}
    assert twice.keys() <= {"configuration", "identifiers"}, found  # again for the batch's report
    intake.queue.close()
