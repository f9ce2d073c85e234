"""Spark on this machine, started when a task needs it. Until then sources are read in helper processes.

Spark takes seconds to start, and most runs of most plans find that nothing has changed.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final, Self

from ferryman.engine.runner.base import Answer, Item, Runner, call_now, set_outcome
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
        announce: called before the runner is started.
        cancel_start: ends a start that is under way, which then fails at once.
    """

    on_one_machine = True

    def __init__(
        self,
        start_runner: Callable[[], Runner],
        cores: int,
        conf: Mapping[str, str],
        announce: Callable[[], object] = lambda: None,
        cancel_start: Callable[[], object] = lambda: None,
    ) -> None:
        environment = {k.removeprefix(_ENVIRONMENT): v for k, v in conf.items() if k.startswith(_ENVIRONMENT)}
        self._helpers = HelperProcesses(cores, {**os.environ, **environment}, fallback=self)
        self._start_runner = start_runner
        self._announce = announce
        self._cancel_start = cancel_start
        self._cores = cores
        self._runner: Runner | None = None
        self._starting: Future[Runner] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._helpers.end()
        if self._starting is not None:
            if kind is not None:
                self._cancel_start()
            wait([self._starting])  # a start that is interrupted leaves a JVM that nobody ends

    def start_early(self) -> None:
        """Start the runner in the background now, because a task will need it."""
        if self._starting is None:
            self._announce()
            self._starting = Future()
            threading.Thread(
                target=set_outcome, args=(self._starting, self._start_runner), name="ferryman-start"
            ).start()

    @property
    def slots(self) -> int:
        return self._cores if self._runner is None else self._runner.slots

    @property
    def early(self) -> Runner | None:
        """Return the helper processes until Spark is used, see ``Runner.early``."""
        return self._helpers if self._runner is None else None

    def start(self) -> None:
        """Start Spark, see ``Runner.start``."""
        self._started()

    def submit(
        self, task: Callable[[Item], Answer], items: Sequence[Item], *, background: bool = False
    ) -> Future[list[Answer]]:
        """Run the task on Spark, see ``Runner.submit``."""
        return self._started().submit(task, items, background=background) if items else call_now(list)

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        """Run the task for each partition of a frame, see ``Runner.run_frame``."""
        return self._started().run_frame(read, task)

    def use_session(self, use: Callable[[Any], Answer]) -> Answer:
        return self._started().use_session(use)

    def _started(self) -> Runner:
        if self._runner is None:
            self._helpers.end()
            if self._starting is None:
                self._announce()
                self._starting = call_now(self._start_runner)
            self._runner = self._starting.result()
        return self._runner
