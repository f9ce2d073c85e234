"""A run whose terminal is closed ends as with Ctrl-C; with nohup it goes on."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

PROGRAM = """
import contextlib, pathlib, signal, sys, time
from ferryman.cli.app import start
from ferryman.engine import driver
from ferryman.testing.inprocess import InProcess

# Set in either case: the tests themselves may run under nohup.
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1] == "nohup" else signal.SIG_DFL)
driver.open_runner = lambda *_, **__: contextlib.nullcontext(InProcess())
code = start(["run", "plan.py"])
pathlib.Path("code").write_text(str(code))
sys.exit(code)
"""

PLAN = """
import pathlib, time
from ferryman import Plan
from ferryman.destinations import Null
from ferryman.sources import Memory


def wait(doc):
    pathlib.Path("reached").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    return doc


plan = Plan("stuck", version=1)
plan.source("docs", Memory([{"id": "a"}])).step("wait", wait).destination("out", Null())
"""


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "plan.py").write_text(PLAN)


def test_it_says_that_it_was_interrupted(tmp_path: Path) -> None:
    """With the exit code of every signal."""
    run = subprocess.Popen(
        [sys.executable, "program.py", ""], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until((tmp_path / "reached").exists, "the step was not reached")
    run.send_signal(signal.SIGHUP)
    _, said = run.communicate()
    assert run.returncode == 130
    assert "interrupted: nothing is lost. Run the same command again" in said


def test_nobody_is_there_to_hear_it(tmp_path: Path) -> None:
    """Its terminal has gone: that it cannot say anything is no other error."""
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "program.py", ""],
        cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    wait_until((tmp_path / "reached").exists, "the step was not reached")
    os.close(ours)  # what it writes from now on fails
    run.send_signal(signal.SIGHUP)
    run.wait()
    assert (tmp_path / "code").read_text() == "130"


def test_nohup_goes_on(tmp_path: Path) -> None:
    """A signal that was ignored before stays so."""
    run = subprocess.Popen([sys.executable, "program.py", "nohup"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    wait_until((tmp_path / "reached").exists, "the step was not reached")
    run.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    said, _ = run.communicate()
    assert (run.returncode, said.strip()) == (0, "1 wave: 1 delivered")
