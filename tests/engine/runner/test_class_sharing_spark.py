"""Spark's JVM and the archive of its classes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ferryman.engine.runner.class_sharing import ClassArchive
from tests.crash.spark import until
from tests.support.tiers import sampled

pytestmark = pytest.mark.spark

PROGRAM = """
from pathlib import Path
from pyspark import SparkContext
from ferryman.engine.runner.sessions import start, stop
from ferryman.engine.runner.spark import SparkRunner

session = start("local[1]", {"spark.driver.extraJavaOptions": "-Dmine=1"}, "sharing", queries=False)
jvm = SparkContext._gateway.proc
maps = Path(f"/proc/{jvm.pid}/maps").read_text()
options = Path(f"/proc/{jvm.pid}/cmdline").read_text().split("\\0")
print(SparkRunner(session).submit(str, [1, 2]).result(), "/spark-" in maps, "-Dmine=1" in options)
stop(session)
"""

PLAN = """
from ferryman import Plan
from ferryman.destinations import Null
from ferryman.sources import Memory

plan = Plan("first", version=1)
plan.source("docs", Memory([{"id": "a"}])).destination("out", Null())
"""


@pytest.fixture(scope="module")
def whole() -> Path:
    """The archive of this machine, made at `make setup`."""
    archive = ClassArchive.of_machine()
    made = None if archive is None else archive.make()
    assert made is not None
    return made


@pytest.mark.parametrize("damaged", sampled([False, True], 2))
def test_spark_starts_from_an_archive_that_is_whole(whole: Path, place: Path, damaged: bool) -> None:
    """From a damaged one it starts as without, and neither the JVM nor the end of the session says a word."""
    copy = place / "ferryman" / whole.name
    copy.parent.mkdir(mode=0o700)
    shutil.copyfile(whole, copy)
    if damaged:
        with copy.open("r+b") as file:
            for at in range(1 << 20, copy.stat().st_size, 1 << 16):
                file.seek(at)
                file.write(b"\xff" * 64)
    environment = {**os.environ, "XDG_CACHE_HOME": str(place)}
    done = subprocess.run(  # until the JVM has ended, too: it has the other ends of the pipes
        [sys.executable, "-c", PROGRAM], env=environment, cwd=place, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == (f"['1', '2'] {not damaged} True\n", "", 0)
    assert [p.name for p in place.iterdir()] == ["ferryman"]  # no report of a crash


@pytest.mark.slow
def test_the_first_run_has_it_made(place: Path) -> None:
    """In the background, after its end: whoever waits for the run does not wait for it."""
    (place / "plan.py").write_text(PLAN)
    environment = {**os.environ, "XDG_CACHE_HOME": str(place / "cache")}
    command = [sys.executable, "-m", "ferryman.cli", "run", str(place / "plan.py"), "--master", "local[2]"]
    done = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    archive = ClassArchive.of_machine(environment)
    assert archive is not None
    assert archive.find() is None
    until(lambda: archive.find() is not None, "the archive")
    until(lambda: len(list(archive.folder.iterdir())) == 2, "what is left behind is removed")
