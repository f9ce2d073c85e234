"""Runs in forked children of the zygote: serves until nothing is left to do; killed at a point, or at a moment."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import msgspec

from ferryman import crash
from ferryman.cli.app import start
from ferryman.engine import run  # noqa: F401 - loaded before the first fork
from ferryman.intake.service import isolation
from tests.intake.service import killer
from tests.intake.service.minting import minting_into
from tests.intake.service.place import Place

CHILD = __name__


class Job(msgspec.Struct):
    """What a process does."""

    folder: str
    arm: str = ""
    """A crash point that kills it, or several with blanks between, of which the first that is passed does."""
    kill_after_s: float | None = None
    killer: bool = False
    """Do files end their process whose names say so?"""
    url: str = ""
    """Of the queue; none: the place's own."""
    state: str = ""
    """The folder of the plan's state, where several processes serve: each drives its own."""
    mints: bool = False
    """Does the plan mint identifiers?"""
    command: list[str] = []
    """A command line of ``ferryman`` instead of serving."""


def work(job: Job) -> None:
    """Serve."""
    for point in job.arm.split():
        crash.arm(point)
    if job.kill_after_s is not None:
        threading.Timer(job.kill_after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if job.killer:
        killer.install()
        isolation.run_task = killer.run_task
    if job.command:
        assert start(job.command) == 0
        return
    place = Place(Path(job.folder), session_timeout_s=1.5, url=job.url)
    if job.mints:
        place.plan = minting_into(place.folder / "index.db")
    if job.state:
        place.states = job.state
    place.serve()
    place.queue.close()
    print("\n".join(place.said.lines))
