"""Several threads a state in several processes, killed at random: each job goes through every state once."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ferryman.intake import JobQueue
from tests.intake.conftest import layout, started, zookeeper_url
from tests.intake.history import ONCE, history_in, history_on, keep_history
from tests.intake.processes import Consumer
from tests.servers.zookeeper import ZooKeeperServer
from tests.support.waiting import wait_until

PROCESSES = 2
JOBS_A_KILL = 25
SESSION_S = 1.0
OWN_SESSION_S = 60.0
"""Of the test's own handle, which nobody kills: on a busy machine a second may pass without a beat."""
KILLS = [
    pytest.param(4, id="4 kills"),
    pytest.param(200, id="200 kills", marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
]


def carried(url: str, queue: JobQueue, kills: int) -> None:
    """Kill one of the processes at any moment, start another in its place, until all jobs are done."""
    chance = random.Random()
    consumers = [Consumer("carry", url, SESSION_S) for _ in range(PROCESSES)]
    jobs = len(queue.list_jobs())
    try:
        for kill in range(kills):
            share = jobs * (kill + chance.random()) / (kills + 1)  # so many jobs are completed at the kill
            wait_until(lambda share=share: len(queue.list_jobs("Completed")) >= share)  # type: ignore[misc]
            at = chance.randrange(PROCESSES)
            with consumers[at]:
                consumers[at].kill()
            consumers[at] = Consumer("carry", url, SESSION_S)
        wait_until(lambda: len(queue.list_jobs("Completed")) == jobs)
    finally:
        for consumer in consumers:
            with consumer:
                consumer.kill()


def check(queue: JobQueue, histories: dict[str, list[str]]) -> None:
    """Every job came into every state once, in order, and the work of each was done; nothing is left locked."""
    wait_until(lambda: not [path for path in layout(queue) if path.endswith("/lock")])
    jobs = queue.list_jobs("Completed")
    assert {job: histories[job] for job in jobs if histories[job] != ONCE} == {}
    works = {job: [state.lower() for state in queue.load_job(job).inventory] for job in jobs}
    assert {job: done for job, done in works.items() if done != ONCE[1:-1]} == {}
    assert queue.audit() == []


@pytest.mark.rule("intake.owner")
@pytest.mark.parametrize("kills", KILLS)
def test_on_sqlite(place: Path, kills: int) -> None:
    """The file itself keeps what each job goes through."""
    url = f"sqlite:///{place}/queue.db"
    with JobQueue.open(url, session_timeout_s=OWN_SESSION_S) as queue:
        keep_history(place / "queue.db")
        started(queue, jobs=JOBS_A_KILL * kills)
        carried(url, queue, kills)
        check(queue, history_in(place / "queue.db"))


@pytest.mark.rule("intake.owner")
@pytest.mark.parametrize("kills", KILLS)
def test_on_zookeeper(server: Callable[[str], ZooKeeperServer], kills: int) -> None:
    """The server's log keeps it."""
    url = zookeeper_url(server)  # type: ignore[arg-type]
    with JobQueue.open(url, session_timeout_s=OWN_SESSION_S) as queue:
        started(queue, jobs=JOBS_A_KILL * kills)
        carried(url, queue, kills)
        check(queue, history_on(server("zookeeper"), "/" + url.rpartition("/")[2]))
