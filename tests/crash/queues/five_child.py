"""Runs in forked children of the zygote: the flow of five plans, killed somewhere on its way."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import msgspec

from ferryman import crash, limits
from ferryman.engine import logs
from ferryman.testing.inprocess import InProcess
from tests.crash.queues import five
from tests.support.joined import Told, run_flow


class FlowJob(msgspec.Struct):
    """One run of the flow.

    Attributes:
        turns: so many times its inputs have been filled.
        arm: crash point, and a file that is made at the kill.
        kill_s: it is killed so many seconds after it began.
    """

    root: str
    turns: int
    arm: tuple[str, str] | None = None
    kill_s: float | None = None


Job = FlowJob


def work(job: FlowJob) -> None:
    """Run it; to the end, everything is checked."""
    limits.COMPACT_FILES = 2  # type: ignore[misc]
    limits.CHECKPOINT_COMMITS = 4  # type: ignore[misc]
    logs._MIN_TASK_ENTRIES = 3  # type: ignore[misc]
    root = Path(job.root)
    if job.kill_s is not None:
        timer = threading.Timer(job.kill_s, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
    if job.arm is not None:
        crash.arm(*job.arm)
    summary = run_flow(
        five.make_flow(root),
        root / "state",
        runner=InProcess(fork=job.arm is not None),
        observer=Told(1000),
        wave_bytes=30,
    )
    assert summary.exit in (0, 3), summary  # 3: something is in doubt
    if job.arm is None and job.kill_s is None:
        five.check(root, job.turns)
