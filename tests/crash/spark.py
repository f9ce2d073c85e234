"""Starting, killing and stopping whole Spark drivers from tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]


def start(
    root: Path, guarantee: str, *, shape: str = "first", arm: tuple[tuple[str, str], ...] = (), log: str = "run.log"
) -> subprocess.Popen[bytes]:
    """A driver on real Spark, running the scenario's plan; its output goes to ``root/log``."""
    job = {"verb": "run", "root": str(root), "guarantee": guarantee, "shape": shape, "arm": arm}
    with (root / log).open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.crash.spark_run", msgspec.json.encode(job).decode()],
            cwd=ROOT,
            stdout=out,
            stderr=out,
        )


def run(root: Path, guarantee: str, **options: object) -> tuple[int, str]:
    """Run it to its end: exit code (-9: killed) and everything it said."""
    process = start(root, guarantee, **options)  # type: ignore[arg-type]
    code = process.wait(300)
    return code, (root / "run.log").read_text()


def family(pid: int) -> list[int]:
    """All descendants of a process, itself not."""
    found: list[int] = []
    for child in _children(pid):
        found += [child, *family(child)]
    return found


def stop(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def end(pids: list[int], sign: int) -> None:
    """Signal whoever is still there."""
    for pid in pids:
        try:
            os.kill(pid, sign)
        except ProcessLookupError:
            continue


def is_java(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").resolve().name == "java"
    except OSError:
        return False


def until(condition: Callable[[], bool], what: str, seconds: float = 240) -> None:
    """Wait for a condition; fail with its name."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        time.sleep(0.02)


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(c) for t in tasks for c in (t / "children").read_text().split()]
    except (OSError, ValueError):
        return []
