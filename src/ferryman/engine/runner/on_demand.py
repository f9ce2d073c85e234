"""Spark on this machine, started when there is something to run on it. Until then sources are read beside it.

Spark takes seconds to start, and most runs of most plans find that nothing has changed.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final, Self

from ferryman.engine.runner.base import Answer, Item, Runner
from ferryman.engine.runner.beside import ProcessesBeside

_LOCAL: Final = re.compile(r"local(?:\[(?P<cores>\d+|\*)(?:\s*,\s*\d+)?\])?")
_ENVIRONMENT: Final = "spark.executorEnv."


def cores_of(master: str) -> int | None:
    """The task slots of a master on this machine; None: it is a cluster, or no master that is known."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        return None
    cores = found["cores"] or "1"
    return len(os.sched_getaffinity(0)) if cores == "*" else max(1, int(cores))


class OnDemand(Runner):
    """Starts the runner that it is given when a task needs it.

    Args:
        begin: starts it. Called once, perhaps in a thread of its own.
        tell: called before.
        cores: task slots that it will have.
        conf: its settings: processes beside it get the environment that they name for executors.
        modules: what the processes beside it load ahead.
    """

    def __init__(
        self,
        begin: Callable[[], Runner],
        cores: int,
        conf: Mapping[str, str],
        modules: Sequence[str] = (),
        tell: Callable[[], object] = lambda: None,
    ) -> None:
        theirs = {k.removeprefix(_ENVIRONMENT): v for k, v in conf.items() if k.startswith(_ENVIRONMENT)}
        self._make_beside = partial(ProcessesBeside, cores, {**os.environ, **theirs}, modules)
        self._beside: ProcessesBeside | None = None
        self._begin = begin
        self._tell = tell
        self._cores = cores
        self._runner: Runner | None = None
        self._starting: Future[Runner] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_beside()
        if self._starting is not None:
            wait([self._starting])  # a start that is broken off leaves a JVM that nobody ends

    def expect(self) -> None:
        """Start it meanwhile: a task will need it."""
        if self._starting is None:
            self._tell()
            self._starting = Future()
            threading.Thread(target=self._start_for, args=(self._starting,), name="ferryman-start").start()

    @property
    def slots(self) -> int:
        return self._cores if self._runner is None else self._runner.slots

    @property
    def on_one_machine(self) -> bool:
        return True

    @property
    def concurrent(self) -> bool:
        return True

    @property
    def started(self) -> bool:
        return self._runner is not None

    def start(self) -> None:
        """Start Spark, see ``Runner.start``."""
        self._started()

    def run(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Run the task on Spark, see ``Runner.run``."""
        return self._started().run(task, items) if items else []

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        """Run the task for each partition of a frame, see ``Runner.run_frame``."""
        return self._started().run_frame(read, task)

    def run_early(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Run a task that only reads beside Spark, see ``Runner.run_early``; if that fails, on Spark."""
        if self._runner is None and items:
            self._beside = self._beside or self._make_beside()
            if (answers := self._beside.run(task, items)) is not None:
                return answers
        return self.run(task, items)

    def run_before(
        self, task: Callable[[Item], Answer], items: Sequence[Item], then: Callable[[], None]
    ) -> list[Answer]:
        """Run the task on Spark, see ``Runner.run_before``."""
        return self._started().run_before(task, items, then)

    def run_ahead(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Run work ahead on Spark, see ``Runner.run_ahead``."""
        return self._started().run_ahead(work)

    def _started(self) -> Runner:
        if self._runner is None:
            self._end_beside()
            if self._starting is None:
                self._tell()
                self._starting = Future()
                self._start_for(self._starting)
            self._runner = self._starting.result()
        return self._runner

    def _end_beside(self) -> None:
        if self._beside is not None:
            self._beside.end()

    def _start_for(self, waiting: Future[Runner]) -> None:
        try:
            waiting.set_result(self._begin())
        except BaseException as e:
            waiting.set_exception(e)
