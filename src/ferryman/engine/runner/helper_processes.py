"""Helper processes on the driver's machine, which read sources before Spark has started.

They are started, not forked from the driver: libraries have threads there, and a forked copy would have their locks
without the threads.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

import cloudpickle

from ferryman.engine.runner.base import Answer, Item
from ferryman.engine.runner.fork_server import die_with_parent
from ferryman.engine.runner.worker import ImportPath
from ferryman.plan.calls import dumps

MAX_PROCESSES: Final = 8
"""Most helper processes: they only read, and each takes as much memory as a worker."""


class HelperProcesses:
    """Runs tasks in helper processes, as Spark's workers would.

    Args:
        count: number of processes, cut at ``MAX_PROCESSES``. The first loads what all need, then forks the others.
        environment: environment variables of the processes.
        modules: names of modules to load ahead.
    """

    def __init__(self, count: int, environment: Mapping[str, str], modules: Sequence[str] = ()) -> None:
        self._callers: list[_HelperPipes] = []
        self._process: subprocess.Popen[bytes] | None = None
        child_ends: list[int] = []
        try:
            for _ in range(min(count, MAX_PROCESSES)):
                caller, *ends = _open_pipes()
                self._callers.append(caller)
                child_ends += ends
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(os.getpid()), ",".join(map(str, child_ends)), *modules],
                stdin=subprocess.DEVNULL, stdout=2, env=dict(environment), pass_fds=child_ends,
            )  # fmt: skip
        except OSError:  # too little memory, or no writable folder: Spark reports it if it fails, too
            self.end()
        finally:
            for end in child_ends:
                os.close(end)

    def run(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer] | None:
        """Run ``task(item)`` for every item; returns the answers in the items' order. None: a task failed, or a process
        died."""
        if not self._callers:
            return None if items else []
        free: SimpleQueue[_HelperPipes] = SimpleQueue()
        for process in self._callers:
            free.put(process)

        def one(item: Item) -> Answer:
            process = free.get()
            try:
                answer: Answer = process.ask(task, item)
            finally:
                free.put(process)
            return answer

        with ThreadPoolExecutor(len(self._callers), thread_name_prefix="ferryman-beside") as pool:
            futures = [pool.submit(one, item) for item in items]
            try:
                return [each.result() for each in futures]
            except BaseException as e:  # do not wait for the others
                pool.shutdown(wait=False, cancel_futures=True)
                self.end()
                if isinstance(e, Exception):
                    return None
                raise

    def end(self) -> None:
        """Kill the processes: they only read, whatever they are doing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        for caller in self._callers:
            caller.requests.close()
            caller.answers.close()
        self._callers = []


class _HelperPipes(NamedTuple):
    """The driver's ends of the pipes to one helper process."""

    requests: Connection
    answers: Connection

    def ask(self, task: Any, item: Any) -> Any:
        """Have the process run ``task(item)``, and return the answer.

        Raises:
            EOFError, OSError: the process died.
            RuntimeError: the task failed.
        """
        self.requests.send_bytes(dumps(ImportPath.of_driver()))
        self.requests.send_bytes(dumps((task, item)))
        succeeded, answer = cloudpickle.loads(self.answers.recv_bytes())
        if not succeeded:
            raise RuntimeError(answer)
        return answer


def _open_pipes() -> tuple[_HelperPipes, int, int]:
    """Open the pipes to one process; returns the driver's ends, and the process's: for requests, for answers."""
    requests_read, requests_write = os.pipe()
    answers_read, answers_write = os.pipe()
    pipes = _HelperPipes(Connection(requests_write, readable=False), Connection(answers_read, writable=False))
    return pipes, requests_read, answers_write


def main(parent: int, ends: Sequence[int], modules: Sequence[str]) -> None:
    """Run the first process: fork the others, and answer until the driver has no more requests."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver
    die_with_parent(parent)
    for module in modules:
        importlib.import_module(module)
    first, *others = zip(ends[::2], ends[1::2], strict=True)
    for other in others:
        me = os.getpid()
        if os.fork() == 0:
            die_with_parent(me)
            first = other
            break
    for end in set(ends) - set(first):
        os.close(end)
    with contextlib.suppress(EOFError):
        _serve(Connection(first[0], writable=False), Connection(first[1], readable=False))


def _serve(requests: Connection, answers: Connection) -> None:
    """Answer requests.

    Raises:
        EOFError: there are no more requests.
    """
    while True:
        path: ImportPath = cloudpickle.loads(requests.recv_bytes())
        request = requests.recv_bytes()
        try:
            path.apply()
            task, item = cloudpickle.loads(request)
            answer = cloudpickle.dumps((True, task(item)))
        except Exception as e:  # the task runs again on Spark, which reports the error
            answer = cloudpickle.dumps((False, repr(e)))
        answers.send_bytes(answer)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(end) for end in sys.argv[2].split(",")], sys.argv[3:])
