"""A run that is told to end, while Spark starts or in the middle of a step, leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tiers import sampled
from tests.support.waiting import wait_until

PLAN = """
from ferryman import Plan
from ferryman.destinations import Null
from ferryman.sources import Memory

plan = Plan("start", version=1)
plan.source("docs", Memory([{"id": "a", "raw": b"x"}])).destination("out", Null())
"""


def processes(mark: str) -> list[int]:
    """Processes that have this in their environment: children keep it, whoever their parent is by now."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def is_jvm(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    return False


STUCK = """
import pathlib
import threading

from ferryman import Plan
from ferryman.destinations import Null
from ferryman.sources import Memory


def wait(doc):
    (pathlib.Path(FOLDER) / "reached").touch()
    threading.Event().wait()


plan = Plan("stuck", version=1)
plan.source("docs", Memory([{"id": "a", "raw": b"x"}])).step("wait", wait).destination("out", Null())
"""


@contextlib.contextmanager
def running(folder: Path, plan: str, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A run of this plan, and the mark of its processes; none of them is left at the end."""
    (folder / "plan.py").write_text(plan)
    mark = f"FERRYMAN_TEST_{uuid.uuid4().hex}"
    run = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ferryman.cli",
            "run",
            str(folder / "plan.py"),
            "--state",
            str(folder / "state"),
            *options,
        ],
        env={**os.environ, mark: "1"},
        stdout=subprocess.DEVNULL,
        stderr=(folder / "stderr").open("wb"),
    )
    try:
        yield mark, run
    finally:
        for pid in processes(mark):
            os.kill(pid, signal.SIGKILL)
        run.wait()


def check_last_words(folder: Path) -> None:
    """Check that the message of the interrupted run is the last line, and that nothing of Spark's stands before it."""
    *before, last = (folder / "stderr").read_text().splitlines()
    assert last.startswith("interrupted: nothing is lost"), last
    assert [line for line in before if re.search(r"Java|java\.|\bat org\.|WARN|ERROR|Traceback|Exception", line)] == []


@pytest.mark.spark
@pytest.mark.parametrize("number", sampled([signal.SIGTERM, signal.SIGINT, signal.SIGHUP], 2))
def test_no_process_is_left(tmp_path: Path, number: signal.Signals) -> None:
    """The signal comes as soon as the JVM has been started. The run has the last word."""
    with running(tmp_path, PLAN, "--master", "local[2]") as (mark, run):
        wait_until(lambda: any(map(is_jvm, processes(mark))), "Spark was not started")
        run.send_signal(number)
        assert run.wait(timeout=600) == 130
        wait_until(lambda: not processes(mark), "a process is left")
    check_last_words(tmp_path)


@pytest.mark.spark
@pytest.mark.parametrize(("times", "master"), [(1, "local[*]"), *sampled([(2, "local[2]"), (1, "local[2]")], 2)])
def test_no_process_is_left_of_a_step_that_hangs(tmp_path: Path, times: int, master: str) -> None:
    """Workers too, and the helper processes in their place; twice is at once. Spark says nothing of its end."""
    with running(tmp_path, STUCK.replace("FOLDER", repr(str(tmp_path))), "--master", master) as (mark, run):
        wait_until((tmp_path / "reached").exists, "the step was not reached")
        for _ in range(times):
            run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=600) == 130
        wait_until(lambda: not processes(mark), "a process is left")
    check_last_words(tmp_path)
