"""A plan from a stream of real Spark to PostgreSQL, of which the driver, the JVM or a Python worker is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from ferryman.crash import EXECUTOR, POINTS, STREAM
from tests.crash import spark
from tests.crash.test_streams_killed import ENGINE, Streamed
from tests.destinations.postgres import Database, database, postgres
from tests.support.plan_world import place
from tests.support.waiting import LATE_S, wait_until
from tests.support.zygote import Zygote

__all__ = ["database", "place", "postgres"]

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.server]

POINTS_OF_A_RUN = [*ENGINE, *list(STREAM) * 4]
KILLED = {**POINTS, **STREAM}
"""Point -> which process it kills."""


class OnSpark(Streamed):
    """The rows lie in files, of which a batch has one; each file is newer than the one before."""

    def put(self, chance: random.Random, most: int = 25) -> None:
        before = self.rows.stat().st_size if self.rows.exists() else 0
        super().put(chance, most)
        number, folder = self.written, self.rows.parent / "in"
        folder.mkdir(exist_ok=True)
        made = self.rows.parent / "new.json"
        made.write_bytes(self.rows.read_bytes()[before:])
        os.utime(made, (number, number))
        made.rename(folder / f"{number}.json")


class Driver:
    """A process that does runs on Spark until it or its JVM is killed; the next run then forks another one.

    The JVM is the child of a process that ends with the driver: as in a run, nothing of a killed driver goes on.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = 0
        self.zygote = Zygote(folder, "tests.crash.streams_spark")
        self.pool = ThreadPoolExecutor(1)
        self.keeper: subprocess.Popen[bytes] | None = None
        self.ended: Future[tuple[int, str]] | None = None

    def begin(self, **job: object) -> None:
        if self.ended is None or self.ended.done() or not self.jvm():
            self._start()
        self.runs += 1
        print(msgspec.json.encode((job, str(self._done))).decode(), file=self.jobs, flush=True)

    def await_end(self, seconds: float = LATE_S) -> int | None:
        """Wait until the run is done (0) or the process has ended (its exit code); None: neither is so yet."""
        assert self.ended is not None
        deadline = time.monotonic() + seconds
        while not self._done.exists() and not self.ended.done() and time.monotonic() < deadline:
            time.sleep(0.05)
        return 0 if self._done.exists() else self.ended.result()[0] if self.ended.done() else None

    def run(self, **job: object) -> int | None:
        self.begin(**job)
        return self.await_end()

    def jvm(self) -> list[int]:
        return [] if self.keeper is None else [pid for pid in spark.family(self.keeper.pid) if spark.is_java(pid)]

    def kill_one(self, chance: random.Random) -> bool:
        """Kill the driver, the JVM or one of the processes below that; return whether there was one."""
        assert self.ended is not None
        java = self.jvm()
        workers = [pid for each in java for pid in spark.family(each)]
        victims = chance.choice([[int((self.folder / "pid").read_text())], java, workers])
        if not victims or self.ended.done():
            return False
        victim = chance.choice(victims)
        spark.end([victim], signal.SIGKILL)
        wait_until(lambda: has_ended(victim))
        if victim not in (*java, *workers):
            self.ended.result()
        return True

    def said(self) -> str:
        return "\n".join((self.folder / name).read_text()[-5000:] for name in ("jvm.txt", "output.txt"))

    def close(self) -> None:
        self.end()
        self.pool.shutdown()
        self.zygote.close()

    def end(self) -> None:
        """End the driver and the JVM."""
        if self.ended is not None:
            self.jobs.close()
            if not self.ended.done():
                spark.end([int((self.folder / "pid").read_text())], signal.SIGKILL)
            self.ended.result()
        if self.keeper is not None:
            self.keeper.kill()
            self.keeper.wait()
        self.keeper = self.ended = None

    def _start(self) -> None:
        self.end()
        file = self.folder / "jvm.json"
        file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.crash.streams_spark", str(file)]
        with (self.folder / "jvm.txt").open("ab") as said:
            self.keeper = keeper = subprocess.Popen(
                command, cwd=spark.ROOT, stdin=subprocess.PIPE, stdout=said, stderr=said
            )
        wait_until(lambda: file.exists() or keeper.poll() is not None)
        jobs, pid = self.folder / "jobs", self.folder / "pid"
        for path in (jobs, pid):
            path.unlink(missing_ok=True)
        os.mkfifo(jobs)
        jvm = msgspec.json.decode(file.read_bytes())
        self.ended = self.pool.submit(self.zygote.run, jvm=jvm, pid=str(pid), jobs=str(jobs))
        wait_until(pid.exists)
        self.jobs = os.fdopen(os.open(jobs, os.O_RDWR), "w")  # nothing that opens it waits for the other side

    @property
    def _done(self) -> Path:
        return self.folder / f"done-{self.runs}"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    made = Driver(tmp_path_factory.mktemp("driver"))
    yield made
    made.close()


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.rule("stream.once")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(5))
def test_ten_kills(place: Path, database: Database, driver: Driver, seed: int) -> None:
    chance = random.Random(seed)
    streamed = OnSpark(place, database)
    kills, took = 0, 3.0
    while kills < 10:
        for _ in range(chance.randint(1, 3)):
            streamed.put(chance)
        job = {"url": database.url, "root": str(place)}
        if chance.random() < 0.5:
            seen = place / f"killed-{kills}-{streamed.written}"
            point = chance.choice(POINTS_OF_A_RUN)
            code = driver.run(**job, arm=(f"{point}:{chance.choice((1, 1, 2, 3))}", str(seen)))
            killed = seen.exists()
            assert code == (0 if KILLED[point] == EXECUTOR or not killed else -9), (point, driver.said())
        else:
            began = time.monotonic()
            driver.begin(**job)
            code, killed = driver.await_end(chance.uniform(0, took)), False
            if code is None:
                killed = driver.kill_one(chance)
                code = driver.await_end()
            assert code == 0 or killed, driver.said()
            took = took if killed else time.monotonic() - began
        kills += killed
        (place / "kills").write_text(f"{kills}\n")
        if chance.random() < 0.5 or kills == 10:
            assert driver.run(**job) == 0, driver.said()
            streamed.check()
