"""Faults of Spark: its Java process and its Python workers are killed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ferryman import crash
from ferryman.proof.faults import PlannedFault, on_reaching

MASTER: Final = "local[2,4]"
"""Two tasks at once; a task whose worker dies is tried four times."""

CONF: Final = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.python.worker.reuse": "true"}


def arm(fault: PlannedFault, folder: Path) -> None:
    """Arm a fault of Spark, before it is started: its workers inherit the environment."""
    if fault.kind == "spark":
        os.environ[crash.ENVIRONMENT] = f"{fault.at}:{fault.nth}@{folder / 'effect'}"
    elif fault.kind == "jvm":
        on_reaching(fault, lambda: _kill_java(folder))


def _kill_java(folder: Path) -> None:
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if "java" in Path(f"/proc/{pid}/comm").read_text():
                os.kill(pid, signal.SIGKILL)
                (folder / "effect").touch()


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))
