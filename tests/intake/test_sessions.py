"""Who dies, or is stopped for too long, has lost its locks; nobody else has."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable

import pytest

from ferryman.intake import Job, JobQueue, LockLost, StateError
from tests.intake.conftest import SESSION_S, Opening, layout, started
from tests.intake.processes import Consumer

LATE_S = 300.0
"""A machine that is busy with other tests may take so long for what takes the session timeout."""


def until(ask: Callable[[], Job | None]) -> Job:
    """What it gives at last."""
    give_up = time.monotonic() + SESSION_S + LATE_S
    while (found := ask()) is None:
        assert time.monotonic() < give_up
        time.sleep(0.05)
    return found


@pytest.fixture
def shared_url(url: str) -> str:
    """Of a queue that other processes can open."""
    if url.startswith("memory:"):
        pytest.skip("a queue in memory is this process's alone")
    return url


@pytest.mark.rule("intake.freed")
def test_a_killed_consumer_frees_its_job(shared_url: str, queue: JobQueue) -> None:
    """Within the session timeout it is found again in the same state, and can be done again."""
    started(queue)
    with Consumer("hold", shared_url, SESSION_S) as consumer:
        held = consumer.heard()
        before = layout(queue)
        assert queue.acquire_job("Pending") is None
        consumer.kill()
        again = until(lambda: queue.acquire_job("Pending"))
    assert again.id == held
    assert layout(queue) == before
    again.set_status("Estimating")
    assert queue.audit() == []


@pytest.mark.rule("intake.lock-lost")
def test_a_consumer_that_was_stopped_too_long_cannot_go_on(shared_url: str, queue: JobQueue) -> None:
    """Another has its job by then: it is told so, and changes nothing. There are never two owners."""
    started(queue)
    with Consumer("hold", shared_url, SESSION_S) as consumer:
        held = consumer.heard()
        consumer.send(signal.SIGSTOP)
        job = until(lambda: queue.acquire_job("Pending"))
        assert job.id == held
        before = layout(queue)
        consumer.told()
        consumer.send(signal.SIGCONT)
        assert consumer.heard() == "lost False"
    assert layout(queue) == before
    assert job.locked
    job.set_status("Estimating")


def test_a_living_consumer_keeps_its_job(shared_url: str, queue: JobQueue) -> None:
    """However long it takes: its session is renewed."""
    started(queue)
    with Consumer("hold", shared_url, SESSION_S) as consumer:
        consumer.heard()
        time.sleep(SESSION_S * 2)  # that much time is the very condition
        assert queue.acquire_job("Pending") is None
        consumer.told()
        assert consumer.heard() == "moved"


@pytest.mark.rule("intake.lock-lost")
def test_a_lost_lock_stops_every_change(opening: Opening) -> None:
    """Through the object that held it. Who acquires the job goes on."""
    one, two = opening(), opening()
    started(two)
    job = one.acquire_job("Pending")
    assert job is not None
    two.tree.store.commit([])
    before = layout(two)
    del before[f"/jobs/{job.id}/lock"]
    end_session(one)
    assert not job.locked
    for change in (
        lambda: job.set_status("Estimating"),
        lambda: job.fail("x"),
        lambda: job.set_space_needed(5),
        lambda: job.set_store({"x": 1}),
    ):
        with pytest.raises(LockLost, match=f"/jobs/{job.id}/lock"):
            change()
    assert layout(two) == before
    job.unlock()
    again = two.load_job(job.id)
    assert again.lock()
    with pytest.raises(StateError):
        one.load_job(job.id).set_status("Estimating")
    again.set_status("Estimating")


def end_session(queue: JobQueue) -> None:
    """End it as the store would, if its holder had been cut off."""
    store = queue.tree.store
    if queue.url.startswith("memory:"):
        store.close()
        return
    if queue.url.startswith("sqlite:"):
        with store._write_transaction():  # type: ignore[attr-defined]
            store._remove_session(store.session())  # type: ignore[attr-defined]
        store._lease.mark_lost(store.session())  # type: ignore[attr-defined]
        return
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError

    client = store._client  # type: ignore[attr-defined]
    session, password = client.client_id
    hosts = queue.url.removeprefix("zookeeper://").partition("/")[0]
    give_up = time.monotonic() + LATE_S
    while client.client_id is None or client.client_id[0] == session:
        assert time.monotonic() < give_up
        other = KazooClient(hosts=hosts, client_id=(session, password))
        with contextlib.suppress(KazooTimeoutError):  # it has ended
            other.start()  # the same session, from elsewhere: the server moves it here
            other.stop()  # and this ends it, unless the other side was faster and has it back
        other.close()
        time.sleep(0.02)


def test_leases_end_with_the_machine(place: object) -> None:
    """A session of another start of this machine is dead, whatever its lease says."""
    import sqlite3

    url = f"sqlite:///{place}/queue.db"
    with JobQueue.open(url, session_timeout_s=1000) as queue:
        started(queue)
        job = queue.acquire_job("Pending")
        assert job is not None
        with sqlite3.connect(f"{place}/queue.db") as connection:
            connection.execute("UPDATE session SET boot = 'another start'")
        with JobQueue.open(url) as other:
            again = other.acquire_job("Pending")
            assert again is not None
            assert again.id == job.id
            with pytest.raises(LockLost):
                job.set_status("Estimating")
