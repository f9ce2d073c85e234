"""Spark on this machine, started when a task needs it. Until then sources are read in helper processes.

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
from ferryman.engine.runner.helper_processes import HelperProcesses

_LOCAL: Final = re.compile(r"local(?:\[(?P<cores>\d+|\*)(?:\s*,\s*\d+)?\])?")
_ENVIRONMENT: Final = "spark.executorEnv."


def cores_of(master: str) -> int | None:
    """Return the task slots of a master on this machine; None: it is a cluster, or unknown."""
    match = _LOCAL.fullmatch(master)
    if match is None:
        return None
    cores = match["cores"] or "1"
    return len(os.sched_getaffinity(0)) if cores == "*" else max(1, int(cores))


class OnDemandRunner(Runner):
    """Starts a runner when a task needs it.

    Args:
        start_runner: starts it. Called once, perhaps in a thread of its own.
        cores: task slots that it will have.
        conf: settings of Spark; helper processes get the environment variables that they name for executors.
        modules: names of modules that helper processes load ahead.
        announce: called before the runner is started.
    """

    def __init__(
        self,
        start_runner: Callable[[], Runner],
        cores: int,
        conf: Mapping[str, str],
        modules: Sequence[str] = (),
        announce: Callable[[], object] = lambda: None,
    ) -> None:
        environment = {k.removeprefix(_ENVIRONMENT): v for k, v in conf.items() if k.startswith(_ENVIRONMENT)}
        self._make_helpers = partial(HelperProcesses, cores, {**os.environ, **environment}, modules)
        self._helpers: HelperProcesses | None = None
        self._start_runner = start_runner
        self._announce = announce
        self._cores = cores
        self._runner: Runner | None = None
        self._starting: Future[Runner] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_helpers()
        if self._starting is not None:
            wait([self._starting])  # a start that is interrupted leaves a JVM that nobody ends

    def start_early(self) -> None:
        """Start the runner in the background now, because a task will need it."""
        if self._starting is None:
            self._announce()
            self._starting = Future()
            threading.Thread(target=self._set_started, args=(self._starting,), name="ferryman-start").start()

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
        self._start_and_wait()

    def run(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Run the task on Spark, see ``Runner.run``."""
        return self._start_and_wait().run(task, items) if items else []

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        """Run the task for each partition of a frame, see ``Runner.run_frame``."""
        return self._start_and_wait().run_frame(read, task)

    def run_early(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Run a task that only reads in helper processes, see ``Runner.run_early``; if that fails, on Spark."""
        if self._runner is None and items:
            self._helpers = self._helpers or self._make_helpers()
            if (answers := self._helpers.run(task, items)) is not None:
                return answers
        return self.run(task, items)

    def run_with_callback(
        self, task: Callable[[Item], Answer], items: Sequence[Item], on_submitted: Callable[[], None]
    ) -> list[Answer]:
        """Run the task on Spark, see ``Runner.run_with_callback``."""
        return self._start_and_wait().run_with_callback(task, items, on_submitted)

    def run_ahead(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Run work ahead on Spark, see ``Runner.run_ahead``."""
        return self._start_and_wait().run_ahead(work)

    def _start_and_wait(self) -> Runner:
        if self._runner is None:
            self._end_helpers()
            if self._starting is None:
                self._announce()
                self._starting = Future()
                self._set_started(self._starting)
            self._runner = self._starting.result()
        return self._runner

    def _end_helpers(self) -> None:
        if self._helpers is not None:
            self._helpers.end()

    def _set_started(self, waiting: Future[Runner]) -> None:
        try:
            waiting.set_result(self._start_runner())
        except BaseException as e:
            waiting.set_exception(e)
