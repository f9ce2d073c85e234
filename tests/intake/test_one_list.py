"""At no instant is a job in no list or in two, whoever is killed while it moves.

On SQLite a reader looks at all lists in one transaction, again and again. On ZooKeeper every transaction of the
server's own log is done again, and the lists are looked at after each.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from ferryman.intake import JobQueue
from tests.intake.conftest import started, zookeeper_url
from tests.intake.processes import Consumer
from tests.intake.transactions import transactions
from tests.servers.zookeeper import ZooKeeperServer

JOBS, CONSUMERS = 12, 3
SESSION_S = 1.0
KILLS = [
    pytest.param(10, id="10 kills"),
    pytest.param(200, id="200 kills", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
]


def under_kills(url: str, kills: int, read_after: Callable[[], None]) -> None:
    """Consumers move jobs about; one after the other is killed at any moment, and another takes its place."""
    chance = random.Random(kills)
    consumers = [Consumer("wander", url, SESSION_S, str(n)) for n in range(CONSUMERS)]
    try:
        for consumer in consumers:
            consumer.heard()
        for kill in range(kills):
            until = time.monotonic() + chance.uniform(0.02, 0.4)
            while time.monotonic() < until:
                read_after()
            at = chance.randrange(CONSUMERS)
            with consumers[at]:
                consumers[at].kill()
            consumers[at] = Consumer("wander", url, SESSION_S, f"{kill}")
            consumers[at].heard()
    finally:
        for consumer in consumers:
            with consumer:
                consumer.kill()


def all_in_one_list(names: Iterable[str], jobs: set[str]) -> None:
    """``names``: of all lists' entries of one kind, as job ids."""
    assert Counter(names) == Counter(jobs)


@pytest.mark.rule("intake.one-list")
@pytest.mark.parametrize("kills", KILLS)
def test_on_sqlite(place: Path, kills: int) -> None:
    """A reader in one transaction never sees a job that is in no list, or in two."""
    url = f"sqlite:///{place}/queue.db"
    looks = 0
    with JobQueue.open(url) as queue:
        started(queue, jobs=JOBS)
        jobs = set(queue.list_jobs())
        reader = sqlite3.connect(f"file:{place}/queue.db?mode=ro", uri=True, isolation_level=None)

        def look() -> None:
            nonlocal looks
            looks += 1
            reader.execute("BEGIN")
            listed = reader.execute("SELECT name FROM node WHERE parent LIKE '/batches/%/states/batch-%'").fetchall()
            states = reader.execute("SELECT name FROM node WHERE parent LIKE '/jobs/states/%'").fetchall()
            reader.execute("COMMIT")
            all_in_one_list((name for (name,) in listed), jobs)
            all_in_one_list((name.partition("-")[2] for (name,) in states), jobs)

        under_kills(url, kills, look)
        reader.close()
        assert looks > kills
        assert queue.audit() == []


@pytest.mark.rule("intake.one-list")
@pytest.mark.parametrize("kills", KILLS)
def test_on_zookeeper(server: Callable[[str], ZooKeeperServer], kills: int) -> None:
    """After no transaction of the server's log a job is in no list, or in two."""
    url = zookeeper_url(server)  # type: ignore[arg-type]
    with JobQueue.open(url) as queue:
        started(queue, jobs=JOBS)
        jobs = set(queue.list_jobs())
        under_kills(url, kills, lambda: time.sleep(0.01))
        assert queue.audit() == []
    checked = replayed(server("zookeeper"), "/" + url.rpartition("/")[2], jobs)
    assert checked > kills * 5


def replayed(server: ZooKeeperServer, chroot: str, jobs: set[str]) -> int:
    """Do all transactions again; look after each one that touches a list. How many did?"""
    there: set[str] = set()
    checked = 0
    for log in server.transactions:
        for changes in transactions(log):
            ours = [change for change in changes if change.path.startswith(f"{chroot}/")]
            for change in ours:
                if change.kind == "create":
                    there.add(change.path.removeprefix(chroot))
                elif change.kind == "delete":
                    there.discard(change.path.removeprefix(chroot))
            if not any("/states/" in change.path for change in ours):
                continue
            parts = [path.split("/") for path in there]
            made = {p[2] for p in parts if p[1] == "jobs" and len(p) == 3 and p[2] in jobs}
            all_in_one_list((p[5] for p in parts if p[1] == "batches" and len(p) == 6), made)
            all_in_one_list(
                (p[4].partition("-")[2] for p in parts if p[1:3] == ["jobs", "states"] and len(p) == 5), made
            )
            checked += 1
    assert {path.split("/")[2] for path in there if path.startswith("/jobs/jid")} == jobs
    return checked
