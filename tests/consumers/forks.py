"""Processes that serve, forked from one that has all modules loaded; each may be killed at a point, or at a moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import IO, Self

import msgspec


class Served(msgspec.Struct):
    """What a process does."""

    folder: str
    arm: str = ""
    """A crash point that kills it, or several with blanks between, of which the first that is passed does."""
    kill_after_s: float | None = None


class Forks:
    """``serve`` serves until nothing is left to do; it returns the exit code (-9: killed) and what was said."""

    def __init__(self, folder: Path) -> None:
        self._output = folder / "output.txt"

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.consumers.forks", str(self._output)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def serve(self, folder: Path, arm: str = "", kill_after_s: float | None = None) -> tuple[int, str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(Served(str(folder), arm, kill_after_s)) + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline()), self._output.read_text()


def work(served: Served) -> None:
    from ferryman.testing import crash
    from tests.consumers.place import Place

    for point in served.arm.split():
        crash.arm(point)
    if served.kill_after_s is not None:
        threading.Timer(served.kill_after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
    place = Place(Path(served.folder), session_timeout_s=1.5)
    place.serve()
    place.queue.close()
    print("\n".join(place.said.lines))


def fork(output: str, jobs: IO[bytes]) -> None:
    from ferryman.engine import wave  # noqa: F401 - loaded before the first fork
    from tests.consumers import place  # noqa: F401

    for line in jobs:
        pid = os.fork()
        if pid == 0:
            out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            code = 0
            try:
                work(msgspec.json.decode(line, type=Served))
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    fork(sys.argv[1], sys.stdin.buffer)
