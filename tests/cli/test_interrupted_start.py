"""A run that is told to end while Spark starts leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

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


def wait_for(condition: object, what: str) -> None:
    until = time.monotonic() + 120
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until, what
        time.sleep(0.05)


@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_no_process_is_left(tmp_path: Path, number: signal.Signals) -> None:
    """The signal comes as soon as the JVM has been started."""
    (tmp_path / "plan.py").write_text(PLAN)
    mark = f"FERRYMAN_TEST_{uuid.uuid4().hex}"
    run = subprocess.Popen(
        [sys.executable, "-m", "ferryman.cli", "run", str(tmp_path / "plan.py"), "--state", str(tmp_path / "state")],
        env={**os.environ, mark: "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: len(processes(mark)) > 1, "Spark was not started")
        run.send_signal(number)
        assert run.wait(timeout=120) == 130
        wait_for(lambda: not processes(mark), "a process is left")
    finally:
        for pid in processes(mark):
            os.kill(pid, signal.SIGKILL)
