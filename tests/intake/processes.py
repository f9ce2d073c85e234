"""Consumers as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]


class Consumer:
    """A process of tests/intake/consumer.py."""

    def __init__(self, what: str, url: str, session_s: float, *rest: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.intake.consumer", what, url, str(session_s), *rest],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def heard(self) -> str:
        """The next line it says."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"it ended with {self._process.wait()} instead of saying something"
        return line.rstrip("\n")

    def told(self) -> None:
        """Give it the word to go on."""
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def send(self, what: signal.Signals) -> None:
        os.kill(self._process.pid, what)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue
