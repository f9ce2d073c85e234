"""The intake queue: jobs through all states, beside bare multi-operations; the cost of acquiring among many jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.servers.zookeeper import ZooKeeperServer

from bench.harness import Row, Sizes, empty_folder
from ferryman.intake import JobQueue

STATES = ("Pending", "Estimating", "Provisioning", "Downloading", "Processing", "Storing", "Recording", "Notify")
DOCUMENTS_A_JOB = 1000
"""Documents of the size option for each job: the usual million makes a thousand jobs."""
SQLITE_JOBS_S, ZOOKEEPER_SHARE = 500, 0.6
TURNS, ACQUIRED = 5, 10
HEAP = "4g"
"""Heap of the server, which keeps all nodes in memory."""
FLAT = 1.5
"""Greatest ratio of the cost of acquiring among a hundred times as many jobs: the tree is a bit deeper."""


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    jobs = max(50, sizes.documents // DOCUMENTS_A_JOB)
    small, large = jobs, 100 * jobs
    rate = max(jobs_per_second(create_queue(folder), jobs) for _ in range(sizes.rounds))
    target = f"≥ {SQLITE_JOBS_S}/s"
    yield Row(f"SQLite: {jobs} jobs through all states", f"{rate:.0f}/s", "", "", target, rate >= SQLITE_JOBS_S)
    yield compare_acquiring("SQLite", lambda: create_queue(folder), small, large)
    server = ZooKeeperServer()
    server.heap = HEAP
    with server:

        def queue() -> JobQueue:
            return JobQueue.open(f"{server.url}/{uuid4().hex}")

        turns = [(jobs_per_second(queue(), jobs), bare_jobs_per_second(server, jobs)) for _ in range(sizes.rounds)]
        ours, plain = (max(side) for side in zip(*turns, strict=True))
        share = ours / plain
        what = f"ZooKeeper: {jobs} jobs through all states, beside as many bare multi-operations"
        met = share >= ZOOKEEPER_SHARE
        yield Row(what, f"{ours:.0f}/s", f"{plain:.0f}/s", f"{share:.2f}×", f"≥ {ZOOKEEPER_SHARE}×", met)
        yield compare_acquiring("ZooKeeper", queue, small, large)


def create_queue(folder: Path) -> JobQueue:
    """Create a queue in a file."""
    return JobQueue.open(f"sqlite:///{empty_folder(folder / 'intake')}/queue.db")


def add_jobs(queue: JobQueue, jobs: int) -> None:
    """Add a batch with pending jobs."""
    queue.create_batch({"submitter": "bench"})
    batch = queue.acquire_pending_batch()
    assert batch is not None
    for number in range(jobs):
        batch.create_job({"payload_url": f"http://127.0.0.1/{number}", "submitter": "bench"})


def jobs_per_second(queue: JobQueue, jobs: int) -> float:
    """Return jobs a second of one thread that acquires, moves and unlocks them in each state."""
    with queue:
        add_jobs(queue, jobs)
        began = time.perf_counter()
        for state in STATES:
            for _ in range(jobs):
                job = queue.acquire_job(state)
                assert job is not None
                if state == "Pending":
                    job.set_status("Estimating")
                    job.unlock()
                else:
                    job.success(unlock=True)
        took = time.perf_counter() - began
        assert len(queue.list_jobs("Completed")) == jobs
    return jobs / took


def bare_jobs_per_second(server: ZooKeeperServer, jobs: int) -> float:
    """Return jobs a second of the bare multi-operations, without reads and checks."""
    from kazoo.client import KazooClient

    client = KazooClient(hosts=f"127.0.0.1:{server.port}")
    client.start()
    root = f"/bare-{uuid4().hex}"
    for state in STATES:
        client.ensure_path(f"{root}/{state}")
    client.ensure_path(f"{root}/Completed")
    status = b'{"status":"Estimating","last_successful_status":"Pending","last_modified":"2026","retry_count":0}'
    for number in range(jobs):
        commit(client, ("create", f"{root}/{number}", status), ("create", f"{root}/Pending/{number}", b""))
    began = time.perf_counter()
    for state, after in zip(STATES, [*STATES[1:], "Completed"], strict=True):
        for number in range(jobs):
            lock = f"{root}/{number}/lock"
            entry = f"{root}/{state}/{number}"
            commit(client, ("create", lock, b"", None, True), ("check", entry, -1))
            move = [
                ("set_data", f"{root}/{number}", status),
                ("delete", entry),
                ("create", f"{root}/{after}/{number}", b""),
            ]
            if state == "Pending":
                commit(client, *move)
                commit(client, ("delete", lock))
            else:
                commit(client, *move, ("delete", lock))
    took = time.perf_counter() - began
    client.stop()
    client.close()
    return jobs / took


def commit(client: Any, *ops: tuple[Any, ...]) -> None:
    transaction = client.transaction()
    for what, *arguments in ops:
        getattr(transaction, what)(*arguments)
    results = transaction.commit()
    assert not [result for result in results if isinstance(result, Exception)], results


def compare_acquiring(store: str, queue: Callable[[], JobQueue], small: int, large: int) -> Row:
    """Compare the cost of one acquisition among few pending jobs and among many."""
    costs = [acquire_cost_s(queue(), jobs) for jobs in (small, large)]
    ratio = costs[1] / costs[0]
    texts = [f"{cost * 1000:.2f} ms" for cost in costs]
    return Row(
        f"{store}: acquire among {large}, beside {small}",
        texts[1],
        texts[0],
        f"{ratio:.2f}×",
        f"≤ {FLAT}×",
        ratio <= FLAT,
    )


def acquire_cost_s(queue: JobQueue, jobs: int) -> float:
    """Return seconds for one acquisition, move and unlock; the best of several rounds, against disturbances."""
    best = float("inf")
    with queue:
        add_jobs(queue, jobs)
        for _ in range(TURNS):
            began = time.perf_counter()
            for _ in range(ACQUIRED):
                job = queue.acquire_job("Pending")
                assert job is not None
                job.set_status("Estimating")
                job.unlock()
            best = min(best, (time.perf_counter() - began) / ACQUIRED)
    return best
