"""The same on Spark: a few cases each time; by `make prove` any two values that can meet, also on two executors."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from tests.matrix import cases
from tests.matrix.cases import Case
from tests.matrix.spark_run import Job
from tests.servers.faulty_s3 import FaultyS3
from tests.servers.spark_cluster import SparkMaster, SparkWorker

pytestmark = pytest.mark.spark

TOGETHER = 8
"""Cases that share a session."""

FEW = [
    Case("files", "keyed", "plain", "exactly", "", "store", "disk", "remembered"),
    Case("queue", "alts", "plain", "queue", "at-most-once", "store", "store", ""),
    Case("dataframe", "copies", "arrow", "sql", "", "disk", "disk", "remembered"),
]


@functools.cache
def groups(runner: str) -> list[list[Case]]:
    found = cases.pairs(cases.accepted(runner))
    return [found[at : at + TOGETHER] for at in range(0, len(found), TOGETHER)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Number the groups of a slow test; where it is left out they are not made, which takes a second."""
    if "number" in metafunc.fixturenames:
        left_out = metafunc.config.option.markexpr.startswith("not slow")
        runner = {"test_on_one_machine": "spark", "test_on_two_executors": "cluster"}[metafunc.function.__name__]
        metafunc.parametrize("number", range(1 if left_out else len(groups(runner))))


@pytest.fixture
def store() -> Iterator[FaultyS3]:
    with FaultyS3() as server:
        yield server


def run(of: list[Case], place: Path, store: FaultyS3, master: str) -> None:
    job = Job(of, str(place), store.url, master)
    command = [sys.executable, "-m", "tests.matrix.spark_run", msgspec.json.encode(job).decode()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]


@pytest.mark.rule("plan.features-together")
def test_a_few(place: Path, store: FaultyS3) -> None:
    """Nothing is lost and nothing comes twice."""
    run(FEW, place, store, "local[2,4]")


@pytest.mark.slow
def test_on_one_machine(place: Path, store: FaultyS3, number: int) -> None:
    """So it is for any two values that can meet."""
    run(groups("spark")[number], place, store, "local[2,4]")


@pytest.mark.slow
def test_on_two_executors(place: Path, store: FaultyS3, number: int) -> None:
    """And so it is where two workers share the tasks."""
    with SparkMaster() as master, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(SparkWorker(master))
        run(groups("cluster")[number], place, store, master.url)
