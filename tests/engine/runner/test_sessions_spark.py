"""Sessions of Spark: the program's is used and left alone; one of ours is shared, and ends with its last run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEAD = """
import json, os, pathlib, signal, sys, threading
import ferryman
from ferryman import Plan
from ferryman.destinations import JsonLines
from ferryman.sources import DataFrame, Memory
from pyspark import SparkContext
from pyspark.sql import SparkSession

here = pathlib.Path(sys.argv[1])
said = {}


def until(path):
    import time
    while not path.exists():
        time.sleep(0.01)


def plan(name, step=None, source=None):
    made = Plan(name)
    docs = made.source("docs", source or Memory([{"id": f"d{n}"} for n in range(3)]))
    (docs.step("step", step) if step else docs).destination("out", JsonLines(here / name))
    return made


def run(plan, **options):
    try:
        return ferryman.run(plan, state=here / "state", master="local[2]", **options).delivered
    except Exception as e:
        return f"{type(e).__name__}: {e}"


def waiting(name):
    reached, go = here / f"{name}-reached", here / f"{name}-go"

    def step(doc):
        reached.touch()
        until(go)
        return doc

    return step, reached, go


def beside(name, meanwhile, **options):
    step, reached, go = waiting(name)
    thread = threading.Thread(target=lambda: said.update({name: run(plan(name, step), **options)}))
    thread.start()
    until(reached)
    meanwhile()
    go.touch()
    thread.join()


def mine():
    return SparkSession.builder.config("spark.sql.shuffle.partitions", "7").getOrCreate()


def works(session):
    return session.range(10).count() == 10 and session.conf.get("spark.sql.shuffle.partitions") == "7"
"""

TAIL = "\nprint(json.dumps(said))\n"


def program(folder: Path, body: str) -> dict[str, Any]:
    """What a program has said in the end."""
    (folder / "program.py").write_text(HEAD + body + TAIL)
    done = subprocess.run(
        [sys.executable, folder / "program.py", folder],
        capture_output=True, text=True, check=False, env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


OURS = """
beside("slow", lambda: said.update(fast=run(plan("fast"))))
said["ended"] = SparkContext._active_spark_context is None

def take():
    global session
    session = mine()

beside("taken", take)
said["mine stays"] = works(session)
thread = threading.Thread(target=lambda: said.update(thread=run(plan("thread"))))
thread.start()
thread.join()
said["after a run in a thread"] = works(session) and SparkSession.getActiveSession() is session
beside("one", lambda: said.update(other=run(plan("other"), spark=session)), spark=session)
said["after two that were given it"] = works(session)
session.stop()
said["given one that was stopped"] = run(plan("stopped"), spark=session)
said["given no session"] = [
    run(plan("stopped"), spark=each) for each in ("local[2]", SparkSession, SparkSession.builder, SparkContext)
]
"""


@pytest.mark.spark
def test_a_session_of_the_program_is_left_alone(place: Path) -> None:
    """Made before, or in the middle of a run, in whatever thread; runs that share one of ours do not end each other."""
    said = program(place, OURS)

    assert said.pop("given one that was stopped") == (
        "UsageError: spark=: this Spark session was stopped. Give one that runs, or leave spark= out."
    )
    refused = said.pop("given no session")
    assert refused[0] == "UsageError: spark='local[2]': give a SparkSession, or leave spark= out."
    assert all("give a SparkSession, or leave spark= out" in each for each in refused), refused
    runs = {name: said.pop(name) for name in ("slow", "fast", "taken", "thread", "one", "other")}
    assert runs == dict.fromkeys(runs, 3)
    assert said == dict.fromkeys(said, True)


ENDED = """
def frame(spark):
    assert SparkSession.getActiveSession() is spark and SparkSession.builder.getOrCreate() is spark
    return spark.read.json(spark.sparkContext.parallelize(['{"id": "a"}', '{"id": "b"}']))

said["frame"] = run(plan("frame", source=DataFrame(frame)))
said["ended"] = SparkContext._active_spark_context is None
beside("stopped", lambda: mine().stop())
said["after it"] = run(plan("after"))
beside("killed", lambda: os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL))
said["started anew"] = run(plan("anew"))
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_session_that_ends_in_the_middle_of_a_run(place: Path) -> None:
    """The words say so, and blame nothing else; the next run of the program starts another."""
    said = program(place, ENDED)

    assert said["stopped"].startswith("RunnerLost: The Spark session was stopped in the middle of the run, by this")
    assert said["killed"].startswith("RunnerLost: Spark's JVM ended in the middle of the run: it was killed from")
    assert (said["frame"], said["ended"], said["after it"], said["started anew"]) == (2, True, 3, 3)


INTERRUPTED = """
from unittest import mock

frame = DataFrame(lambda spark: spark.createDataFrame([("a",), ("b",)], "id string"))
start = SparkSession.Builder.getOrCreate

def interrupted(builder):
    os.kill(os.getpid(), signal.SIGINT)
    return start(builder)

with mock.patch.object(SparkSession.Builder, "getOrCreate", interrupted):
    try:
        said["interrupted"] = run(plan("interrupted", source=frame))
    except KeyboardInterrupt:
        said["interrupted"] = True
said["ended"] = SparkContext._active_spark_context is None
said["delivered"] = run(plan("interrupted", source=frame))
said["Ctrl-C does what it did"] = signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


@pytest.mark.spark
def test_an_interrupted_start(place: Path) -> None:
    """Ctrl-C while a session of ours starts ends the run, and the session: no run takes it for the program's own."""
    said = program(place, INTERRUPTED)
    assert said == {"interrupted": True, "ended": True, "delivered": 2, "Ctrl-C does what it did": True}
