"""A plan from a stream of real Spark to PostgreSQL, of which the driver, the JVM or a Python worker is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from ferryman.crash import EXECUTOR, POINTS, STREAM
from tests.crash import spark
from tests.crash.test_streams_killed import ENGINE, Streamed
from tests.destinations.postgres import Database, database, postgres
from tests.support.plan_world import place

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

    def start(self, **job: object) -> subprocess.Popen[bytes]:
        told = {"url": self.database.url, "root": str(self.rows.parent), **job}
        with (self.rows.parent / "said").open("wb") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.crash.streams", msgspec.json.encode(told).decode()],
                cwd=spark.ROOT,
                stdout=said,
                stderr=said,
            )

    def said(self) -> str:
        return (self.rows.parent / "said").read_text()[-5000:]


def kill_one(chance: random.Random, driver: subprocess.Popen[bytes]) -> bool:
    """Kill the driver, its JVM or one of the processes below that; return whether there was one."""
    family = spark.family(driver.pid)
    java = [pid for pid in family if spark.is_java(pid)]
    workers = [pid for each in java for pid in spark.family(each)]
    victims = chance.choice([[driver.pid], java, workers])
    if not victims or driver.poll() is not None:
        return False
    spark.end([chance.choice(victims)], signal.SIGKILL)
    return True


@pytest.mark.rule("stream.once")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(5))
def test_ten_kills(place: Path, database: Database, seed: int) -> None:
    chance = random.Random(seed)
    streamed = OnSpark(place, database)
    kills, took = 0, 10.0
    while kills < 10:
        for _ in range(chance.randint(1, 3)):
            streamed.put(chance)
        if chance.random() < 0.5:
            seen = place / f"killed-{kills}-{streamed.written}"
            point = chance.choice(POINTS_OF_A_RUN)
            process = streamed.start(arm=(f"{point}:{chance.choice((1, 1, 2, 3))}", str(seen)))
            code = process.wait(600)
            killed = seen.exists()
            assert code == (0 if KILLED[point] == EXECUTOR or not killed else -9), (point, streamed.said())
        else:
            began = time.monotonic()
            process = streamed.start()
            try:
                code = process.wait(chance.uniform(0, took))
                killed = False
            except subprocess.TimeoutExpired:
                killed = kill_one(chance, process)
                code = process.wait(600)
            assert code == 0 or killed, streamed.said()
            took = took if killed else time.monotonic() - began
        kills += killed
        (place / "kills").write_text(f"{kills}\n")
        if chance.random() < 0.5 or kills == 10:
            assert streamed.start().wait(600) == 0, streamed.said()
            streamed.check()
