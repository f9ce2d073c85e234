"""A runner for tests of the protocol: the same tasks as on Spark, in this process or in forked children.

It has no DataFrames (``DataFrame`` sources need Spark) and is for tests only. Without ``fork`` a call of a destination
that times out keeps running in this process.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from ferryman.engine.runner.base import Answer, Item, Runner, treat_memory_errors_as_deaths
from ferryman.errors import EngineError, WorkerDied
from ferryman.plan.calls import dumps


class InProcess(Runner):
    """Runs tasks one after the other. Task, items and answers are pickled, as they would be by Spark.

    Args:
        fork: run each task in a child process, so that it can be killed; it is retried as Spark does.
        failures: number of times a task's process may die before the run fails (``spark.task.maxFailures``).
    """

    def __init__(self, *, slots: int = 2, fork: bool = False, failures: int = 4) -> None:
        self._slots = slots
        self._fork = fork
        self._failures = failures
        self._started = False

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def on_one_machine(self) -> bool:
        return True

    @property
    def started(self) -> bool:
        return self._started

    def start(self) -> None:
        """Implement ``Runner.start``."""
        self._started = True

    def run(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Implement ``Runner.run``: one task after the other."""
        self.start()
        return self.run_early(task, items)

    def run_early(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Implement ``Runner.run_early``."""
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


def _call(call: bytes) -> Any:
    task, item = pickle.loads(call)
    with treat_memory_errors_as_deaths():
        return task(item)


def _call_in_child(call: bytes) -> bytes | None:
    """Run a call in a forked process; return the pickled (succeeded, answer or error), or None if the process died."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - measured in the parent
        os.close(read)
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
