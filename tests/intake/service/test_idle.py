"""What a queue costs in which nothing is to be done: its thousands of batches are not asked about again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ferryman.intake import Job, JobQueue
from ferryman.intake.nodes import BATCHES, state_path
from ferryman.intake.queue import OPERATOR_POLL_S, Acquirer
from ferryman.intake.service.scheduler import EMPTY_POLL_S, QUIET_POLL_S, LaneWatch, Scheduler, WorkLane
from tests.intake.conftest import Opening, opening, place, queue, url
from tests.intake.service.place import Place, until

__all__ = ["opening", "place", "queue", "url"]

COUNT = 30


def failed(queue: JobQueue, count: int = COUNT) -> list[str]:
    """Batches that wait for an operator."""
    found = []
    for number in range(count):
        batch = queue.create_batch({"submitter": f"test {number}"})
        batch.set_status("Processing")
        batch.set_status("Reporting")
        batch.fail()
        found.append(batch.id)
    return found


class Asked:
    """Counts what a queue's store is asked for, and has a clock."""

    def __init__(self, queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        self.now_s = 1000.0
        store = queue.tree.store
        read, children = store.read, store.children

        def counted(paths: Any) -> Any:
            self.paths += paths
            return read(paths)

        def named(path: str, prefix: str = "") -> Any:
            self.paths.append(path)
            return children(path, prefix)

        monkeypatch.setattr(store, "read", counted)
        monkeypatch.setattr(store, "children", named)
        self.acquirer = Acquirer(queue.tree, queue.locks, lambda text: None, lambda: self.now_s)

    def look(self) -> tuple[str | None, int]:
        """(the batch whose report is due, how much was asked for to know it)"""
        self.paths.clear()
        batch = self.acquirer.acquire_batch_for_reporting(None)
        return (batch.id if batch else None), len(self.paths)


def test_batches_that_wait_for_an_operator_are_not_asked_about_again(
    queue: JobQueue, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until one moves them: then the next look finds it, whichever process moved it."""
    ids = failed(queue)
    asked = Asked(queue, monkeypatch)
    assert asked.look() == (None, 2 + COUNT + 1)
    asked.now_s += 0.001 + OPERATOR_POLL_S  # two of them are due
    assert asked.look()[1] <= 2 + 2
    opening().load_batch(ids[17]).set_status("UpdateReporting")
    assert asked.look()[0] == ids[17]


def test_what_other_programs_move_is_found_too(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """They set the status and nothing else: it takes longer, in proportion to how many wait."""
    from ferryman.intake.store.base import Set

    ids = failed(queue)
    asked = Asked(queue, monkeypatch)
    asked.look()
    path = f"{BATCHES}/{ids[29]}/status"
    (node,) = queue.tree.store.read([path])
    assert node is not None
    queue.tree.store.commit([Set(path, node.data.replace(b"Failed", b"UpdateReporting"))])
    asked.now_s += 0.001
    assert asked.look()[0] is None
    asked.now_s += OPERATOR_POLL_S * COUNT
    assert asked.look()[0] == ids[29]


@pytest.mark.parametrize("verb", ["hold", "release"])
def test_a_held_batch_that_is_released_is_taken_up(queue: JobQueue, verb: str) -> None:
    """A consumer that has looked at it while it was held looks again."""
    batch = queue.create_batch({"submitter": "test"})
    batch.set_status("Held")
    assert queue.acquire_pending_batch() is None
    assert queue.acquire_pending_batch() is None
    if verb == "release":
        batch.set_status("Pending")
    found = queue.acquire_pending_batch()
    assert (found and found.id) == (batch.id if verb == "release" else None)


def test_nobody_looks_into_an_empty_state(queue: JobQueue) -> None:
    """One thread looks when it begins, and again after some seconds whether it is empty; then a job that comes wakes
    it."""
    batch = queue.create_batch({"submitter": "test"})
    now, stop, found, looked, asked = [0.0], threading.Event(), list[str](), list[float](), list[float]()

    def acquire(skip: object) -> Job | None:
        looked.append(now[0])
        return queue.acquire_job("Pending")

    def is_empty() -> bool:
        asked.append(now[0])
        node = queue.tree.find(state_path("Pending"))
        return node is not None and not node.children

    def work(job: Job) -> None:
        found.append(job.id)
        job.unlock()

    watch = LaneWatch(lambda on_change: queue.watch_jobs("Pending", on_change), is_empty)
    scheduler = Scheduler(stop, lambda text: None, queue.acquire_again, lambda: now[0])
    lane = scheduler.add(WorkLane("Pending", 2, acquire, work, watch=watch))
    scheduler.start()
    until(lambda: bool(looked) and not lane.is_polling)

    def pass_time(seconds: float) -> None:
        now[0] = seconds
        with scheduler._changed:  # who minds the time waits by another clock
            scheduler._changed.notify_all()

    pass_time(QUIET_POLL_S)
    until(lambda: asked == [QUIET_POLL_S] and not lane.is_polling, 60.0)
    pass_time(QUIET_POLL_S + EMPTY_POLL_S - 0.1)
    assert looked == [0.0]
    batch.set_status("Processing")
    job = batch.create_job({})
    until(lambda: job.id in found)
    stop.set()
    scheduler.close()


def test_who_sleeps_is_woken_by_the_end(place: Any) -> None:
    """Threads that wait for what never comes end with the others, at once and not when they look next."""
    intake, stop = Place(place), threading.Event()
    serving = threading.Thread(target=lambda: intake.serve(stop, once=False))
    serving.start()
    until(lambda: sum(t.name.startswith("intake ") for t in threading.enumerate()) > 25)
    stop.set()
    serving.join(60)
    assert not serving.is_alive()
    mine = [t.name for t in threading.enumerate() if t.name.startswith("intake ") and t.name != "intake lease"]
    assert mine == []
    assert not [line for line in intake.said.lines if "did not end" in line]


def test_a_watch_that_is_closed_ends_its_waits(queue: JobQueue) -> None:
    """Without a change; another one of the same node goes on."""
    one, other = queue.watch_jobs("Pending"), queue.watch_jobs("Pending")
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(one.wait(300)))
    waiting.start()
    one.close()
    waiting.join(60)
    assert found == [False]
    batch = queue.create_batch({"submitter": "test"})
    batch.set_status("Processing")
    assert not other.wait(0)
    batch.create_job({})
    assert other.wait(60)


@pytest.mark.server
def test_watches_of_one_node_are_one_at_the_servers(
    server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On ZooKeeper: setting one reads the names of all children. It is set again when it has told."""
    from tests.intake.conftest import zookeeper_url

    with JobQueue.open(zookeeper_url(server)) as queue:
        batch = queue.create_batch({"submitter": "test"})
        batch.set_status("Processing")
        store: Any = queue.tree.store
        asked: list[str] = []
        inner = store._client.get_children

        def counted(path: str, **named: Any) -> Any:
            asked.append(path)
            return inner(path, **named)

        monkeypatch.setattr(store._client, "get_children", counted)
        watches = [queue.watch_jobs("Pending") for _ in range(5)]
        for watch in watches[:3]:
            watch.close()
        watches += [queue.watch_jobs("Pending") for _ in range(5)]
        assert asked == [state_path("Pending")]
        batch.create_job({})
        assert all(watch.wait(60) for watch in watches[3:])
        again = queue.watch_jobs("Pending")
        assert asked == [state_path("Pending")] * 2
        assert not again.wait(0)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", pytest.param("zookeeper", marks=pytest.mark.server)])
def test_an_idle_serve_reads_little(store: str, place: Any, request: pytest.FixtureRequest) -> None:
    """With hundreds of batches that are done with, some dozens of reads in ten seconds, once it has seen them."""
    from tests.intake.conftest import zookeeper_url

    url = "" if store == "sqlite" else zookeeper_url(request.getfixturevalue("server"))
    intake, stop = Place(place, url=url), threading.Event()
    for batch in failed(intake.queue, 300)[::2]:
        intake.queue.load_batch(batch).set_status("UpdateReporting")
        intake.queue.load_batch(batch).success()
    with pytest.MonkeyPatch.context() as patched:
        asked = Asked(intake.queue, patched)
        serving = threading.Thread(target=lambda: intake.serve(stop, once=False))
        serving.start()
        reads = []
        while not reads or (reads[-1] >= 600 and len(reads) < 6):
            asked.paths.clear()
            time.sleep(10)
            reads.append(len(asked.paths))
        assert 0 < reads[-1] < 600, reads
        stop.set()
        serving.join(60)
