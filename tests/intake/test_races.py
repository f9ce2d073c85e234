"""Many at once: nobody gets what another has, and nothing is lost."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from ferryman.intake import JobQueue
from tests.intake.conftest import SESSION_S, Opening, layout, started
from tests.intake.processes import Consumer
from tests.support.tiers import sampled

CONSUMERS = 8


@pytest.mark.rule("intake.once")
@pytest.mark.parametrize("jobs", sampled([200, 2000], 2))
def test_eight_consumers_acquire_many_jobs(url: str, queue: JobQueue, opening: Opening, jobs: int) -> None:
    """Nobody one twice, none lost, each the most urgent first, then the oldest."""
    batch = queue.load_batch(started(queue, jobs=0))
    for number in range(jobs):
        batch.create_job({"n": number}, priority=(number * 7) % 12)
    order = {job: place for place, job in enumerate(queue.list_jobs("Pending"))}

    acquired = in_threads(opening) if url.startswith("memory:") else in_processes(url)

    assert sorted(job for got in acquired for job in got) == sorted(order)
    for got in acquired:
        places = [order[job] for job in got]
        assert places == sorted(places)
    assert len([got for got in acquired if got]) > 1


def in_threads(opening: Opening) -> list[list[str]]:
    def drained(queue: JobQueue) -> list[str]:
        got = []
        while job := queue.acquire_job("Pending"):
            got.append(job.id)
        return got

    queues = [opening() for _ in range(CONSUMERS)]
    with ThreadPoolExecutor(CONSUMERS) as pool:
        return list(pool.map(drained, queues))


def in_processes(url: str) -> list[list[str]]:
    with contextlib.ExitStack() as stack:
        consumers = [stack.enter_context(Consumer("drain", url, 60.0)) for _ in range(CONSUMERS)]
        for consumer in consumers:
            assert consumer.heard() == "ready"
        for consumer in consumers:
            consumer.told()
        return [consumer.heard().split() for consumer in consumers]


def test_batches_and_jobs_are_made_by_many_at_once(opening: Opening) -> None:
    """Each has its number and all of its nodes; one batchID makes one batch."""
    queues = [opening() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        same = set(pool.map(lambda queue: queue.create_batch({"batchID": "one"}).id, queues))
        assert len(same) == 1
        made = list(pool.map(lambda at: queues[at % 4].create_batch({"n": at}).id, range(40)))
        assert len(set(made)) == 40
        batch = queues[0].acquire_pending_batch()
        assert batch is not None
        jobs = list(pool.map(lambda at: queues[at % 4].load_batch(batch.id).create_job({"n": at}).id, range(80)))
    assert len(set(jobs)) == 80
    assert batch.processing_jobs == sorted(jobs)
    assert queues[0].audit() == []


def test_one_queue_is_used_by_many_threads(queue: JobQueue) -> None:
    """A consumer has threads for each state; they share a handle."""
    jobs = 30
    started(queue, jobs=jobs)
    order = ["Pending", "Estimating", "Provisioning", "Downloading", "Processing", "Storing", "Recording", "Notify"]

    def serve(state: str) -> None:
        done = 0
        while done < jobs:
            watch = queue.watch_jobs(state)
            job = queue.acquire_job(state)
            if job is None:
                watch.wait(0.1)
                continue
            if state == "Pending":
                job.set_status("Estimating")
                job.unlock()
            else:
                job.success(unlock=True)
            done += 1

    with ThreadPoolExecutor(len(order)) as pool:
        list(pool.map(serve, order))
    assert len(queue.list_jobs("Completed")) == jobs
    assert queue.audit() == []
    assert not [path for path in layout(queue) if path.endswith("/lock")]


@pytest.mark.rule("intake.pause")
def test_a_pause_is_seen_everywhere_within_a_second(url: str, queue: JobQueue) -> None:
    """Consumers that are at full speed stop; what they hold they hold."""
    if url.startswith("memory:"):
        pytest.skip("a queue in memory is this process's alone")
    batch = queue.load_batch(started(queue, jobs=0))
    for number in range(300):
        batch.create_job({"n": number})
    assert queue.locks.lock("ingest")
    with contextlib.ExitStack() as stack:
        consumers = [stack.enter_context(Consumer("drain", url, SESSION_S)) for _ in range(2)]
        for consumer in consumers:
            consumer.heard()
            consumer.told()
        assert [consumer.heard() for consumer in consumers] == ["", ""]
        queue.locks.unlock("ingest")
        assert queue.acquire_job("Pending") is not None
