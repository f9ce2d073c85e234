"""A runner whose worker outlives its tasks, as Spark's do: what a task leaves running in it may act later."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ferryman.engine.runner.base import Answer, Item, Runner
from ferryman.engine.runner.child import Child, Died
from ferryman.errors import EngineError, WorkerDied


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
        self._child = Child(lambda call: call[0](call[1]), began=_give_up_locks)

    def run(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """See ``Runner.run``."""
        return [self._one(task, item) for item in items]

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
