"""A runner whose worker outlives its tasks, as Spark's do: what a task leaves running in it may act later."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from ferryman.engine.runner.base import Answer, Item, Runner, call_now
from ferryman.engine.runner.child import Died
from ferryman.errors import EngineError, WorkerDied, as_exception


class OneWorker(Runner):
    """Runs all tasks in one process; one that died is followed by another.

    Args:
        failures: how often it may die over a task before the run of these tasks fails.
    """

    slots = 1

    def __init__(self, failures: int = 1) -> None:
        self.deaths = 0
        self._busy = threading.Lock()
        self._failures = failures
        self._child = _Forked()

    def submit(
        self, task: Callable[[Item], Answer], items: Sequence[Item], *, background: bool = False
    ) -> Future[list[Answer]]:
        """See ``Runner.submit``."""
        return call_now(lambda: [self._one(task, item) for item in items])

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        raise EngineError("no DataFrames here")

    def _one(self, task: Any, item: Any) -> Any:
        for _ in range(self._failures):
            try:
                with self._busy:  # lanes of several destinations come from several threads
                    return self._child.ask((task, item))
            except Died:
                self.deaths += 1
        raise WorkerDied("the worker died")

    def end(self) -> None:
        self._child.end()


class _Forked:
    """A copy of this process, made at the first call and after a death: it knows what the test has armed."""

    def __init__(self) -> None:
        self._process: Any = None

    def ask(self, call: tuple[Callable[[Any], Any], Any]) -> Any:
        if self._process is None:
            fork = multiprocessing.get_context("fork")
            self._here, there = fork.Pipe()
            self._process = fork.Process(target=_serve, args=(there, self._here))
            self._process.start()
            there.close()
        try:
            self._here.send_bytes(cloudpickle.dumps(call))
            fine, answer = pickle.loads(self._here.recv_bytes())
        except (EOFError, OSError):
            self._process.join()
            code, self._process = self._process.exitcode, None
            raise Died(f"exit code {code}", "") from None
        if fine:
            return answer
        raise answer

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()


def _serve(requests: Connection, parents: Connection) -> None:  # pragma: no cover - the child
    parents.close()
    _give_up_locks()
    with contextlib.suppress(EOFError):
        while True:
            function, item = pickle.loads(requests.recv_bytes())
            try:
                answer = (True, function(item))
            except BaseException as e:
                answer = (False, as_exception(e))
            requests.send_bytes(cloudpickle.dumps(answer))


def _give_up_locks() -> None:  # pragma: no cover - the child
    """It is forked from the driver, whose locks it must not keep."""
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").endswith("/lock"):
                os.close(int(fd))


@contextlib.contextmanager
def one_worker(failures: int = 1) -> Iterator[OneWorker]:
    runner = OneWorker(failures)
    try:
        yield runner
    finally:
        runner.end()
