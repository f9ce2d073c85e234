"""Processes of this Python beside the driver, for what is to be done before Spark has started.

They are started, not forked: a driver has threads of its libraries, and a copy of it would have their locks, and not
them.
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
from ferryman.engine.runner.fork_server import die_with
from ferryman.engine.runner.worker import ImportPath
from ferryman.plan.calls import dumps

MOST: Final = 8
"""Processes: what they do is reading, and the memory of each is that of a worker."""


class ProcessesBeside:
    """Run tasks in processes of their own, as Spark's workers would.

    Args:
        count: so many processes, at most ``MOST``. The first loads what all need, then copies itself.
        environment: of the processes.
        modules: what they load ahead, by name.
    """

    def __init__(self, count: int, environment: Mapping[str, str], modules: Sequence[str] = ()) -> None:
        self._there: list[_Caller] = []
        self._process: subprocess.Popen[bytes] | None = None
        theirs: list[int] = []
        try:
            for _ in range(min(count, MOST)):
                caller, *ends = _caller()
                self._there.append(caller)
                theirs += ends
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(os.getpid()), ",".join(map(str, theirs)), *modules],
                stdin=subprocess.DEVNULL, stdout=2, env=dict(environment), pass_fds=theirs,
            )  # fmt: skip
        except OSError:  # no memory for one more, or nowhere to write to: Spark may say so
            self.end()
        finally:
            for end in theirs:
                os.close(end)

    def run(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer] | None:
        """``task(item)`` for every item, answers in the items' order; None: one failed, or its process died."""
        if not self._there:
            return None if items else []
        free: SimpleQueue[_Caller] = SimpleQueue()
        for process in self._there:
            free.put(process)

        def one(item: Item) -> Answer:
            process = free.get()
            try:
                answer: Answer = process.ask(task, item)
            finally:
                free.put(process)
            return answer

        with ThreadPoolExecutor(len(self._there), thread_name_prefix="ferryman-beside") as pool:
            given = [pool.submit(one, item) for item in items]
            try:
                return [each.result() for each in given]
            except BaseException as e:  # nobody waits for what the others are at
                pool.shutdown(wait=False, cancel_futures=True)
                self.end()
                if isinstance(e, Exception):
                    return None
                raise

    def end(self) -> None:
        """Kill them: whatever they are at, they only read."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        for caller in self._there:
            caller.asks.close()
            caller.hears.close()
        self._there = []


class _Caller(NamedTuple):
    """The driver's side of one process."""

    asks: Connection
    hears: Connection

    def ask(self, task: Any, item: Any) -> Any:
        """
        Raises:
            EOFError, OSError: it died.
            RuntimeError: the task failed.
        """
        self.asks.send_bytes(dumps(ImportPath.of_driver()))
        self.asks.send_bytes(dumps((task, item)))
        fine, answer = cloudpickle.loads(self.hears.recv_bytes())
        if not fine:
            raise RuntimeError(answer)
        return answer


def _caller() -> tuple[_Caller, int, int]:
    """And its process's ends: for requests, for answers."""
    requests, asks = os.pipe()
    hears, answers = os.pipe()
    return _Caller(Connection(asks, readable=False), Connection(hears, writable=False)), requests, answers


def main(parent: int, ends: Sequence[int], modules: Sequence[str]) -> None:
    """The first process: make the others, and answer until the driver has no more requests."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of Ctrl-C the driver decides
    die_with(parent)
    for module in modules:
        importlib.import_module(module)
    first, *others = zip(ends[::2], ends[1::2], strict=True)
    for other in others:
        me = os.getpid()
        if os.fork() == 0:
            die_with(me)
            first = other
            break
    for end in set(ends) - set(first):
        os.close(end)
    with contextlib.suppress(EOFError):
        _serve(Connection(first[0], writable=False), Connection(first[1], readable=False))


def _serve(requests: Connection, answers: Connection) -> None:
    """
    Raises:
        EOFError: there are no more requests.
    """
    while True:
        path: ImportPath = cloudpickle.loads(requests.recv_bytes())
        request = requests.recv_bytes()
        try:
            path.follow()
            task, item = cloudpickle.loads(request)
            answer = cloudpickle.dumps((True, task(item)))
        except Exception as e:  # it is done again on Spark, which says what is wrong
            answer = cloudpickle.dumps((False, repr(e)))
        answers.send_bytes(answer)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(end) for end in sys.argv[2].split(",")], sys.argv[3:])
