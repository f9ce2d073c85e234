"""A document for which workers have too little memory, on real Spark with a limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark

PLAN = """
import os
from pathlib import Path
from ferryman import Effect, Plan
from ferryman.destinations import Destination, Outcome
from ferryman.sources import Files

FOLDER = Path({folder!r})

class Counting(Destination):
    effect = Effect.IDEMPOTENT

    def write(self, chunk):
        with open(FOLDER / "arrived", "a") as file:
            file.write("".join(d.id + "\\n" for d in chunk))
        peak = Path("/proc/self/status").read_text().partition("VmPeak:")[2].split()[0]
        (FOLDER / f"peak-{{os.getpid()}}").write_text(peak)
        return [Outcome.ok() for _ in chunk]

plan = Plan("memory", version=1)
plan.source("files", Files(FOLDER / "in")).destination("out", Counting(), backoff=0)
"""

SAME_SIZE = {"MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Variables with which a worker reserves as much memory on a busy machine as on an idle one: the C library reserves 64
MiB more for each thread that meets another one in ``malloc``, which the limit counts."""

NAMES = [f"s{n:02}.txt" for n in range(20)]

MIB = 1 << 20
SIZE = 160 * MIB
"""Of the large document: less than Files reads, more than what a worker's size varies by."""


def ferryman(*args: Any) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("ferryman"), *map(str, args)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=570,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **SAME_SIZE},
    )


@pytest.mark.slow  # test_memory does so each time, without Spark
@pytest.mark.rule("kill.memory")
def test_a_document_that_no_worker_can_hold_is_named_and_alone(place: Path) -> None:
    """The limit lets a worker do all else, and hold that document once: but not several times, as it must. With far too
    little the run ends with one line that says so."""
    (place / "in").mkdir()
    (place / "plan.py").write_text(PLAN.format(folder=str(place)))
    run = ["run", place / "plan.py", "--master", "local[1]", "--json"]
    (place / "in" / "before.txt").write_text("small")
    done = ferryman(*run)
    assert done.returncode == 0, done.stderr
    peak = max(int(each.read_text()) for each in place.glob("peak-*")) << 10

    for name in NAMES:
        (place / "in" / name).write_text(f"small {name}")
    with (place / "in" / "m.bin").open("wb") as file:
        file.truncate(SIZE)
    limit = "spark.executor.pyspark.memory={}m"
    done = ferryman(*run, "--conf", limit.format(150))
    assert done.returncode == 1, done.stdout
    assert "error: Spark: a Python worker has too little memory for anything: raise its limit" in done.stderr
    assert "Traceback" not in done.stderr

    done = ferryman(*run, "--conf", limit.format((peak + SIZE + SIZE // 2) // MIB))
    assert done.returncode == 3, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["delivered"], summary["rejected"] + summary["failed"], summary["pending"]) == (len(NAMES), 1, 0)
    assert set((place / "arrived").read_text().split()) == {"before.txt", *NAMES}
    rows = json.loads(ferryman("deliveries", place / "plan.py", "--json").stdout)
    [row] = [each for each in rows if each["document"] not in NAMES and each["document"] != "before.txt"]
    assert row["document"] == "m.bin"
    assert "there is too little memory for it (" in row["message"]
    assert "spark.executor.pyspark.memory" in row["message"]
