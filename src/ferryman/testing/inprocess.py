"""A runner for tests of the protocol: the same tasks as on Spark, in this process or in forked children.

It has no DataFrames (``DataFrame`` sources need Spark) and is for tests only. Without ``fork`` a call of a destination
that times out keeps running in this process.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from ferryman.engine.runner.base import (
    Answer,
    Deferred,
    Item,
    Runner,
    call_now,
    set_outcome,
    treat_memory_errors_as_deaths,
)
from ferryman.errors import EngineError, WorkerDied
from ferryman.plan.calls import dumps


class InProcess(Runner):
    """Runs tasks one after the other. Task, items and answers are pickled, as they would be by Spark.

    Args:
        fork: run each task in a child process, so that it can be killed; it is retried as Spark does.
        failures: number of times a task's process may die before the run fails (``spark.task.maxFailures``).
    """

    on_one_machine = True

    def __init__(self, *, slots: int = 2, fork: bool = False, failures: int = 4) -> None:
        self._slots = slots
        self.started = False
        self._fork = fork
        self._failures = failures
        self._submitted: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def early(self) -> Runner | None:
        """Return a runner for tasks that only read, until other tasks were submitted, see ``Runner.early``."""
        return None if self.started else _EarlyTasks(self)

    def submit(
        self, task: Callable[[Item], Answer], items: Sequence[Item], *, background: bool = False
    ) -> Future[list[Answer]]:
        """Implement ``Runner.submit``: tasks run when answers are asked for, and those in the background now, so that
        they run ahead of the others in every test."""
        self.started = True
        work = partial(self.run, task, items)
        if background:
            return call_now(work)
        submitted: Deferred[list[Answer]] = Deferred(lambda _: self._run_submitted())
        with self._lock:
            self._submitted.append(partial(set_outcome, submitted, work))
        return submitted

    def _run_submitted(self) -> None:
        """Run all that was submitted: each in a thread, unless it is the only one."""
        with self._lock:
            submitted, self._submitted = self._submitted, []
        if len(submitted) == 1:
            submitted[0]()
        else:
            for each in submitted:
                threading.Thread(target=each, name="ferryman-tasks").start()

    def run(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Run one task after the other."""
        return [self._run_one(dumps((task, item))) for item in items]

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        raise EngineError("DataFrames need Spark: the in-process runner has none.")

    def _run_one(self, call: bytes) -> Any:
        if not self._fork:
            return pickle.loads(pickle.dumps(_call(call)))
        for _ in range(self._failures):
            answer = _call_in_child(call)
            if answer is not None:
                succeeded, value = pickle.loads(answer)
                if succeeded:
                    return value
                raise value
        raise WorkerDied(f"a worker died over a task, as often as it may ({self._failures})")


class _EarlyTasks(Runner):
    """Runs tasks in an in-process runner, and leaves it as one that has not started."""

    on_one_machine = True

    def __init__(self, runner: InProcess) -> None:
        self._runner = runner

    @property
    def slots(self) -> int:
        return self._runner.slots

    def submit(
        self, task: Callable[[Item], Answer], items: Sequence[Item], *, background: bool = False
    ) -> Future[list[Answer]]:
        return call_now(lambda: InProcess.run(self._runner, task, items))

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        return self._runner.run_frame(read, task)


def _call(call: bytes) -> Any:
    task, item = pickle.loads(call)
    with treat_memory_errors_as_deaths():
        return task(item)


def _give_up_locks() -> None:  # pragma: no cover - the child
    """Close the locks of states that this process has from the driver it is forked from: they end with the driver."""
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/lock"):
                os.close(int(descriptor))


def _call_in_child(call: bytes) -> bytes | None:
    """Run a call in a forked process; return the pickled (succeeded, answer or error), or None if the process died."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - measured in the parent
        os.close(read)
        _give_up_locks()
        try:
            try:
                answer = pickle.dumps((True, _call(call)))
            except Exception as e:
                answer = pickle.dumps((False, e))
            with os.fdopen(write, "wb") as pipe:
                pipe.write(answer)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    return answer if status == 0 and answer else None
