"""Everything at once: two processes, kills, a store that is away, one that sleeps longer than its lease."""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.intake.conftest import layout
from tests.intake.history import ONCE, history_in, history_on, keep_history
from tests.intake.service.place import Place, until
from tests.intake.service.receiver import Receiver
from tests.intake.service.soaking import SESSION_S, Soaking
from tests.servers.zookeeper import ZooKeeperServer

BATCHES, JOBS, KILLS, AWAY_S = 4, 50, 10, 10.0
BAD = {7: "digest", 19: "zero byte", 31: "No such file", 43: "zero byte"}
"""Number of an object -> a word of the reason for which it fails."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def submitted(place: Place, number: int, response_url: str) -> str:
    """A batch of jobs with a file each."""
    rows = []
    for n in range(JOBS):
        content = "good until here\0" if BAD.get(n) == "zero byte" else f"content {number} {n}"
        row = place.row(f"{number}/{n}.txt", content, local_id=f"{number}-{n}", priority=n % 4)
        if BAD.get(n) == "digest":
            row["digest"] = "sha256:" + "0" * 64
        if BAD.get(n) == "No such file":
            place.files.joinpath(f"{number}/{n}.txt").unlink()
        rows.append(row)
    return place.submit(manifest_url=place.manifest(rows, f"{number}.csv"), response_url=response_url)


def soak(place: Place, url: str, away: Callable[[], contextlib.AbstractContextManager[None]], seed: int) -> list[str]:
    """The batches, each reported."""
    dice = random.Random(seed)
    with Receiver() as receiver:
        batches = [submitted(place, number, receiver.url) for number in range(BATCHES)]
        two = [Soaking(place.folder, url) for _ in range(2)]
        for kill in range(KILLS):
            share = BATCHES * JOBS * (kill + dice.random()) / (KILLS + 1)
            until(lambda share=share: ended(place) >= share)  # type: ignore[misc]
            if kill == KILLS // 3:
                with away():
                    time.sleep(AWAY_S)
            if kill == KILLS // 2:
                sleeper = two[dice.randrange(2)]
                sleeper.send(signal.SIGSTOP)
                time.sleep(3 * SESSION_S)
                sleeper.send(signal.SIGCONT)
            at = dice.randrange(2)
            two[at].kill()
            two[at] = Soaking(place.folder, url)
        until(lambda: {place.queue.load_batch(batch).status for batch in batches} == {"Failed"}, 900)
        for process in two:
            process.kill()
        check_reports(place, batches, receiver)
    return batches


def ended(place: Place) -> int:
    return len(place.queue.list_jobs("Completed")) + len(place.queue.list_jobs("Failed"))


def check_reports(place: Place, batches: list[str], receiver: Receiver) -> None:
    """Each says what became of each job, with the reason."""
    for number, batch in enumerate(batches):
        told = [one for one in receiver.told if one["batch"] == batch and "failed_jobs" in one]
        assert len({one["id"] for one in told}) == 1, "what is told again has the same id"
        whys = {one["local_id"][0]: one["why"] for one in told[-1]["failed_jobs"]}
        assert whys.keys() == {f"{number}-{n}" for n in BAD}
        assert all(BAD[int(name.partition("-")[2])] in why for name, why in whys.items())
        good = {f"{number}-{n}" for n in range(JOBS) if n not in BAD}
        assert {one["local_id"][0] for one in told[-1]["completed_jobs"]} == good


def check(place: Place, batches: list[str], histories: dict[str, list[str]]) -> None:
    """Each job went through each state once, each document came once; cleaned up, nothing is left."""
    queue = place.queue
    good = [(f"{b}-{n}/{n}.txt", f"content {b} {n}") for b in range(BATCHES) for n in range(JOBS) if n not in BAD]
    assert place.rows() == sorted(good)
    completed, failed = queue.list_jobs("Completed"), queue.list_jobs("Failed")
    assert len(completed) + len(failed) == BATCHES * JOBS
    assert {job: histories[job] for job in completed if histories[job] != ONCE} == {}
    ways = [[*ONCE[: at + 1], "failed"] for at in range(len(ONCE))]
    assert {job: histories[job] for job in failed if histories[job] not in ways} == {}
    until(lambda: not [path for path in layout(queue) if path.endswith("/lock")])
    assert queue.audit() == []
    for batch in batches:
        queue.load_batch(batch).set_status("Deleted")
    queue.delete_completed_batches()
    place.serve()
    assert [path for path in layout(queue) if "/jid" in path or "/bid" in path or "-jid" in path] == []
    left = [path.name for folder in place.serving.work.iterdir() for path in folder.iterdir()]
    assert left == []


def test_on_sqlite(place: Path) -> None:
    """Another program holds the file for a while."""

    @contextmanager
    def away() -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(place / "queue.db", timeout=60, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield
            other.execute("ROLLBACK")

    there = Place(place, SESSION_S)
    keep_history(place / "queue.db")
    batches = soak(there, there.queue.url, away, seed=1)
    check(there, batches, history_in(place / "queue.db"))


@pytest.mark.server
def test_on_zookeeper(place: Path) -> None:
    """Its only server is killed, and started again."""
    with ZooKeeperServer() as server:

        @contextmanager
        def away() -> Iterator[None]:
            server.kill()
            yield
            server.start()

        url = f"{server.url}/{uuid4().hex}"
        there = Place(place, SESSION_S, url)
        batches = soak(there, url, away, seed=2)
        check(there, batches, history_on(server, "/" + url.rpartition("/")[2]))
