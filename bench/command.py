"""Run and measure whole commands, with all processes that they start."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.harness import ROOT, Measurement, print_progress
from bench.processes import Watch, adopt_orphans, processes

ORPHANS_S = 60.0
"""Seconds to wait for orphans: a JVM ends within a second after its driver, the writer of a class archive later."""
POLL_S = 0.02
QUIET: Mapping[str, str] = {
    "PYTHONPATH": str(ROOT),
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONDONTWRITEBYTECODE": "",  # pip compiles what it installs; a checkout is compiled by its first run
}


def ferryman(*arguments: str, environment: Mapping[str, str] = QUIET) -> Measurement:
    """Run the ``ferryman`` command of this checkout."""
    return command([sys.executable, "-m", "ferryman.cli", *arguments], environment)


def command(line: Sequence[str | Path], environment: Mapping[str, str] = QUIET) -> Measurement:
    """Run a command; raise if it fails.

    The clock stops when it has ended. Processes that outlive it end before this returns; their CPU time counts.
    """
    adopt_orphans()
    before = _children()
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as errors:  # not a pipe: processes that outlive it would hold that open
        process = subprocess.Popen(
            line, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=errors, text=True
        )
        with Watch(process.pid) as watch:
            _, status, used = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        cpu_s = used.ru_utime + used.ru_stime + _orphans_cpu_s(before)
        if process.returncode:
            errors.seek(0)
            print_progress(errors.read())
            raise SystemExit(f"{' '.join(map(str, line))}: ended with {process.returncode}")
    return Measurement(wall_s, cpu_s, {kind: mb for kind, mb in watch.peaks.items() if mb})


def command_until(
    line: Sequence[str | Path], is_time: Callable[[], bool], environment: Mapping[str, str] = QUIET
) -> tuple[Measurement, bool]:
    """Run a command and kill it, and all below it, as soon as ``is_time`` says so.

    Returns what it took until then, and whether it was killed: False if it had ended by itself.
    """
    adopt_orphans()
    before = _children()
    began = time.perf_counter()
    process = subprocess.Popen(
        line, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    before.add(process.pid)
    while not (ended := _has_ended(process.pid)) and not is_time():
        time.sleep(POLL_S)
    for pid in [] if ended else processes(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    return Measurement(wall_s, used.ru_utime + used.ru_stime + _orphans_cpu_s(before - {process.pid})), not ended


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _children() -> set[int]:
    own = os.getpid()
    return {pid for pid, stat in processes().items() if stat[0] == own}


def _orphans_cpu_s(before: set[int]) -> float:
    """Return the CPU seconds of adopted processes, once they have ended."""
    cpu_s, deadline = 0.0, time.monotonic() + ORPHANS_S
    while (orphans := _children() - before) and time.monotonic() < deadline:
        for pid in orphans:
            ended, _, used = os.wait4(pid, os.WNOHANG)
            if ended:
                cpu_s += used.ru_utime + used.ru_stime
        time.sleep(0.02)
    return cpu_s
