"""The process that is killed: it does one run of a plan with a step that remembers, and dies at some event."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ferryman import crash
from ferryman.testing.inprocess import InProcess
from tests.support import paid
from tests.support.plan_world import PlanWorld

DIED = "died"
"""The file that says how many kills there were."""


class Job(msgspec.Struct):
    """A run.

    Attributes:
        mode: how the step is called.
        words: the text of each document, by its number.
        die_at: number of the event at which it is killed, counted over crash points and calls; 0: it is not.
        arm: crash point at which it is killed; "": at none.
        fork: each task in a process of its own: only that is killed.
    """

    root: str
    mode: str
    words: list[str]
    die_at: int = 0
    arm: str = ""
    fork: bool = False


def work(job: Job) -> None:
    """Do it."""
    root = Path(job.root)
    world = PlanWorld(root, paid.build_paid).build(job.mode)
    for n, text in enumerate(job.words):
        world.put(f"d{n}", words=text)
    if job.arm:
        crash.arm(job.arm, f"{root}/{DIED}")
    elif job.die_at:
        _die_at(job.die_at, root / DIED, os.getpid() if job.fork else 0)
    world.run(runner=InProcess(fork=job.fork), checked=not job.fork)  # a task that was killed leaves files


def _die_at(number: int, died: Path, spared: int) -> None:
    """Kill this process, or a child of it, at the event of this number."""
    left = [number]

    def count(_name: str = "") -> None:
        if os.getpid() == spared or died.exists():
            return
        left[0] -= 1
        if left[0] <= 0:
            died.touch()
            crash.stop_here(9)

    crash.point = count
    paid.event = count
