"""Programs to kill, each run in a process that is forked from one with everything loaded: to start it takes longer."""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec

import ferryman.operations
import ferryman.verification  # noqa: F401
import tests.support.plan_world  # noqa: F401
from ferryman import crash
from tests.support.zygote import Zygote


class Job(msgspec.Struct):
    """A run of a program: its module, whose ``main`` it calls, and where its errors go."""

    module: str
    arguments: list[str]
    point: str
    errors: str
    kill_s: float | None = None


def run_program(
    module: str, *arguments: str | Path, point: str = "", kill_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the ``main`` of a module, as ``python -m module arguments`` would.

    Args:
        point: crash point at which it is killed; "": none.
        kill_s: seconds after which it is killed; None: never.
    """
    folder = _folder()
    errors = folder / "errors.txt"
    told = [str(each) for each in arguments]
    code, output = _zygote().run(module=module, arguments=told, point=point, errors=str(errors), kill_s=kill_s)
    return subprocess.CompletedProcess([module, *told], code, output, errors.read_text())


def work(job: Job) -> None:
    with open(job.errors, "w") as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())
    if job.point:
        crash.arm(job.point)
    if job.kill_s is not None:
        threading.Thread(target=_kill_after, args=(job.kill_s,), daemon=True).start()
    importlib.import_module(job.module).main(*job.arguments)


def _kill_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ferryman-programs-"))
    atexit.register(shutil.rmtree, folder)
    return folder


@functools.cache
def _zygote() -> Zygote:
    """One for all programs of this process."""
    zygote = Zygote(_folder(), __name__)
    atexit.register(zygote.close)
    return zygote
