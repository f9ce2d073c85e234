"""Queues on every store, for tests that hold them all to the same words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from ferryman.intake import JobQueue
from ferryman.intake.nodes import layout_folders
from tests.servers.server import Server
from tests.support.plan_world import place

__all__ = ["place"]

STORES = ("memory", "sqlite", pytest.param("zookeeper", marks=pytest.mark.server))
SESSION_S = 4.0
"""A dead consumer's locks are free after this time: short, so that a test need not wait long."""
PATIENT_S = 60.0
"""Of the test's own handles: on a loaded machine a server may answer late, and no session may end over it."""

Opening = Callable[[], JobQueue]


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, place: Path) -> str:
    """Of a queue of this test's own, not made yet."""
    if request.param == "memory":
        return f"memory:{uuid4().hex}"
    if request.param == "sqlite":
        return f"sqlite:///{place}/queue.db"
    return zookeeper_url(request.getfixturevalue("server"))


def zookeeper_url(server: Callable[[str], Server]) -> str:
    """A chroot of its own on this worker's server."""
    return f"{server('zookeeper').url}/{uuid4().hex}"


@pytest.fixture
def opening(url: str) -> Iterator[Opening]:
    """Opens another handle on this test's queue: what another process would have."""
    opened: list[JobQueue] = []

    def one_more() -> JobQueue:
        opened.append(JobQueue.open(url, session_timeout_s=PATIENT_S, clock=lambda: NOW_S))
        return opened[-1]

    yield one_more
    for queue in opened:
        queue.close()


@pytest.fixture
def queue(opening: Opening) -> JobQueue:
    """An empty queue."""
    return opening()


NOW_S = 1_795_211_138.0
"""What the clock of these queues says."""
NOW = "2026-11-20 21:45:38 +0000"
"""As it is written in nodes."""


def layout(queue: JobQueue) -> dict[str, str]:
    """All nodes but the folders that every queue has: path and data."""
    folders = {*layout_folders(), "/"}
    return {
        path: node.data.decode(errors="backslashreplace")
        for path, node in queue.tree.store.walk("/")
        if path not in folders
    }


def started(queue: JobQueue, jobs: int = 1, submission: dict[str, object] | None = None) -> str:
    """A batch in Processing with some pending jobs; its id."""
    made = queue.create_batch(submission or {})
    batch = queue.acquire_pending_batch()
    assert batch is not None
    assert batch.id == made.id
    for number in range(jobs):
        batch.create_job({"payload_url": f"file:///{number}"})
    batch.unlock()
    return batch.id


def brought(queue: JobQueue, job_id: str, state: str) -> None:
    """Move a pending job to a state of work, or to Completed."""
    job = queue.load_job(job_id)
    job.set_status("Estimating")
    while job.status != state:
        job.success()
