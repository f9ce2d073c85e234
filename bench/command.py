"""Whole commands: from the start of a process until it has ended, with all that it started."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.harness import ROOT, Took, say
from bench.processes import Watch, adopt_orphans, processes

ORPHANS_S = 60.0
"""A JVM ends within a second after its driver; what makes its archive takes longer."""
QUIET: Mapping[str, str] = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}


def ferryman(*arguments: str, environment: Mapping[str, str] = QUIET) -> Took:
    """The command of this checkout."""
    return command([sys.executable, "-m", "ferryman.cli", *arguments], environment)


def command(line: Sequence[str | Path], environment: Mapping[str, str] = QUIET) -> Took:
    """Run it; raises if it fails. The clock stops when it has ended; what it leaves behind ends before this returns,
    and is in its CPU time."""
    adopt_orphans()
    before = _children()
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as errors:  # no pipe, which those that outlive it would hold open
        process = subprocess.Popen(
            line, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=errors, text=True
        )
        with Watch(process.pid) as watch:
            _, status, used = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        cpu_s = used.ru_utime + used.ru_stime + _of_orphans(before)
        if process.returncode:
            errors.seek(0)
            say(errors.read())
            raise SystemExit(f"{' '.join(map(str, line))}: ended with {process.returncode}")
    return Took(wall_s, cpu_s, {kind: mb for kind, mb in watch.peaks.items() if mb})


def _children() -> set[int]:
    me = os.getpid()
    return {pid for pid, stat in processes().items() if stat[0] == me}


def _of_orphans(before: set[int]) -> float:
    """CPU seconds of what has become ours, once it has ended."""
    cpu_s, until = 0.0, time.monotonic() + ORPHANS_S
    while (orphans := _children() - before) and time.monotonic() < until:
        for pid in orphans:
            ended, _, used = os.wait4(pid, os.WNOHANG)
            if ended:
                cpu_s += used.ru_utime + used.ru_stime
        time.sleep(0.02)
    return cpu_s
