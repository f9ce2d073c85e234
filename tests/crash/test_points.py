"""What a process does when it comes to a crash point that is armed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.plan_world import place

__all__ = ["place"]

STOPPED_THREADS = """
import os, signal, sys, threading
from pathlib import Path
from ferryman import crash

def work(after):
    crash.point("deliver.sent")
    after.touch()

crash.arm("deliver.sent", by=getattr(signal, sys.argv[1]))
for turn in range(20):
    pid = os.fork()
    if pid == 0:
        thread = threading.Thread(target=work, args=(Path(sys.argv[2], str(turn)),))
        thread.start()
        thread.join()
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.kill(pid, signal.SIGKILL)
"""
"""Stops or kills twenty processes at a point that a thread comes to while the main thread waits."""


@pytest.mark.parametrize("by", ["SIGSTOP", "SIGKILL"])
def test_a_thread_does_nothing_after_its_point(place: Path, by: str) -> None:
    """Not even where another thread is free to take the signal: it might get a lock, and sleep with it."""
    subprocess.run([sys.executable, "-c", STOPPED_THREADS, by, str(place)], check=True)
    assert list(place.iterdir()) == []
