"""Forks a fresh process for each job from one that has all modules loaded, so that a case costs milliseconds.

What a job is, and how it is worked, says a module: its ``Job`` and its ``work``; perhaps with ``LOADED``, modules that
its jobs would load. Nothing here starts a thread before the fork: delta-rs and Arrow start theirs in the children.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import IO, Any, Final, NoReturn, Self

import duckdb
import msgspec

from ferryman.storage import query
from tests.support import forked_servers

_WAKE: Final = b"wake"
_KILL: Final = b"kill"

databases: Final[list[duckdb.DuckDBPyConnection]] = []
"""A database without threads, for each child."""


class Zygote:
    """A process to fork from. ``run`` returns the child's exit code (-9: killed) and what it printed.

    -19: it has stopped itself (SIGSTOP), and stays so until it is woken; others may run meanwhile.
    """

    def __init__(self, folder: Path, child: str = "tests.crash.child") -> None:
        self._output = folder / "output.txt"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.zygote", child, str(self._output)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )

    def run(self, **job: object) -> tuple[int, str]:
        return self._ask(msgspec.json.encode(job))

    def wake(self) -> tuple[int, str]:
        """Let the child that stopped first go on; its exit code, and what it has printed since."""
        return self._ask(_WAKE)

    def kill_stopped(self) -> None:
        """Kill all that have stopped and were not woken."""
        self._ask(_KILL)

    def _ask(self, what: bytes) -> tuple[int, str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(what + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        return int(answer), self._output.read_text()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(name: str, output: str, jobs: IO[bytes]) -> None:
    child = importlib.import_module(name)
    forked_servers.install()
    for module in ("pyarrow.dataset", *getattr(child, "LOADED", ())):  # that of Arrow loads pandas, too
        importlib.import_module(module)  # else each child that needs it loads it
    with contextlib.suppress(duckdb.Error):  # an older one, in which a database has threads from its beginning
        databases.append(duckdb.connect(":memory:", config={"threads": 1, "async_threads": 0}))
    gc.freeze()  # else each child copies what it looks for garbage in
    stopped: list[int] = []
    try:
        for line in jobs:
            Path(output).write_bytes(b"")
            if line.strip() == _KILL:
                _kill(stopped)
                print(0, flush=True)
                continue
            if line.strip() == _WAKE:
                pid = stopped.pop(0)
                os.kill(pid, signal.SIGCONT)
            else:
                pid = os.fork()
            if pid == 0:
                _work(child, line, output)
            _, status = os.waitpid(pid, os.WUNTRACED)
            if os.WIFSTOPPED(status):
                stopped.append(pid)
                print(-os.WSTOPSIG(status), flush=True)
            else:
                print(os.waitstatus_to_exitcode(status), flush=True)
    finally:  # also when nobody reads the answers any more
        _kill(stopped)


def _kill(stopped: list[int]) -> None:
    while stopped:
        pid = stopped.pop()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _work(child: Any, line: bytes, output: str) -> NoReturn:
    out = os.open(output, os.O_WRONLY | os.O_APPEND)  # one that is woken later finds it emptied
    os.dup2(out, 1)
    os.dup2(out, 2)
    code = 0
    query.idle_databases.extend(databases)  # opening one takes longer than all queries of most jobs
    gc.disable()  # it does one job, and is gone
    try:
        child.work(msgspec.json.decode(line, type=child.Job))
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(*sys.argv[1:], sys.stdin.buffer)
