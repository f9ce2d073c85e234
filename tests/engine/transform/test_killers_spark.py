"""Documents that kill, on real Spark: with one try a task (``local[2]``), and with four."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PLAN = """
import os, signal
from ferryman import Document, Effect, Plan
from ferryman.destinations import Destination, JsonLines, Outcome
from ferryman.routers import Duplicate
from ferryman.sources import Memory

FOLDER = {folder!r}
DEADLY = {{
    "d013": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "d101": lambda: os._exit(3),
    "d160": lambda: [os.close(n) for n in range(3, 200)],    # fails at the first that is closed already
}}


def deadly(doc):
    if doc.id in DEADLY:
        DEADLY[doc.id]()
    if doc.id == "d150" and not os.path.exists(FOLDER + "/killed"):
        open(FOLDER + "/killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)    # as from outside: once
    return doc


def stuck(doc):
    if {stuck!r} and doc.id == "d120":
        sum(range(10**12))    # a loop in C that looks for no signals
    return doc


class Counting(Destination):
    effect = Effect.IDEMPOTENT

    def write(self, chunk):
        if any(d.id == "d055" for d in chunk):
            os.abort()
        with open(FOLDER + "/counted", "a") as file:
            file.write("".join(d.id + "\\n" for d in chunk))
        return [Outcome.ok() for _ in chunk]


plan = Plan("killers", version=1)
source = plan.source("docs", Memory([{{"id": f"d{{n:03}}"}} for n in range(200)]))
twice = source.route("twice", Duplicate())
stuck = twice.step("deadly", deadly).step("stuck", stuck, timeout=0.5)
stuck.destination("lines", JsonLines(FOLDER + "/lines"), attempts=2)
twice.destination("counted", Counting(), batch=20, attempts=2)
"""


def ferryman(*args: Any) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("ferryman"), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=800, stdin=subprocess.DEVNULL)


@pytest.mark.spark
@pytest.mark.slow  # test_killers has each of them each time, without Spark
@pytest.mark.parametrize(("master", "stuck"), [("local[2,4]", False), ("local[2]", True)])
def test_killers_are_named_and_all_else_is_delivered(place: Path, master: str, stuck: bool) -> None:
    """Steps that crash, leave, hang in C; a worker killed from outside; a row that kills its sender."""
    file = place / "plan.py"
    file.write_text(PLAN.format(folder=str(place), stuck=stuck))
    done = ferryman("run", file, "--master", master, "--json")
    assert done.returncode == 3, done.stderr
    bad = {"d013", "d101", "d160", *(["d120"] if stuck else [])}
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["delivered"] == 400 - len(bad) - 1
    assert summary["rejected"] == len(bad) + 1
    rows = json.loads(ferryman("deliveries", file, "--status", "error_doc", "--json").stdout)
    said = {(row["document"], row["destination"]): row["message"] for row in rows}
    assert {document for document, destination in said if destination == "lines"} == bad
    assert said["d013", "lines"] == (
        "step deadly: PermanentError: it ended its process in each of 2 tries: signal 11 (SIGSEGV)"
    )
    assert said["d101", "lines"].endswith("tries: exit code 3")
    assert said["d160", "lines"].endswith("tries: exit code 9")
    if stuck:
        assert "took longer than timeout=0.5 s and could not be interrupted" in said["d120", "lines"]
    assert said["d055", "counted"] == "it ended its sender's process in each of 2 tries: signal 6 (SIGABRT)"
    assert set((place / "counted").read_text().split()) == {f"d{n:03}" for n in range(200)} - {"d055"}
    status = json.loads(ferryman("status", file, "--json").stdout)
    assert status["balanced"]
    assert ferryman("fsck", file).returncode == 0
