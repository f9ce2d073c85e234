"""Programs in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def printed_always(program: str) -> str:
    """What a Python program prints, which is the same in every process: sets and dicts of strings are in another order
    in each of them.

    Raises:
        AssertionError: it is not the same.
    """
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(printed) == 1
    return printed.pop()


def is_alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return "Z (zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
