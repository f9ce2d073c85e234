"""Spark on this machine, started when there is enough to do. Until then sources are read, and few documents are
processed, in helper processes.

Spark takes seconds to start, and most runs of most plans find that nothing has changed, or little.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final, Self

from ferryman import limits
from ferryman.engine.runner.base import Answer, Item, Runner, call_now, set_outcome
from ferryman.engine.runner.helper_processes import HelperProcesses

DEFAULT_MASTER: Final = "local[*]"
_LOCAL: Final = re.compile(r"local(?:\[(?P<cores>\d+|\*)(?:\s*,\s*\d+)?\])?")
_ENVIRONMENT: Final = "spark.executorEnv."
_PYTHON_VARIABLES: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
_SPARK_VARIABLES: Final = frozenset({"PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME"})


def cores_of(master: str) -> int | None:
    """Return the task slots of a master on this machine; None: it is a cluster, or unknown."""
    match = _LOCAL.fullmatch(master)
    if match is None:
        return None
    cores = match["cores"] or "1"
    return len(os.sched_getaffinity(0)) if cores == "*" else max(1, int(cores))


def is_default(master: str, conf: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Return whether nobody has said how Spark is to run: by a master, by settings, or by variables that name a Python,
    settings, or another Spark that has its own."""
    own_python = {environment.get(name, sys.executable) for name in _PYTHON_VARIABLES} == {sys.executable}
    own_settings = all(name.startswith(_ENVIRONMENT) for name in conf) and not _SPARK_VARIABLES & environment.keys()
    return master == DEFAULT_MASTER and own_python and own_settings


class OnDemandRunner(Runner):
    """Starts a runner when a task needs it.

    Args:
        start_runner: starts it. Called once, perhaps in a thread of its own.
        cores: task slots that it will have.
        conf: settings of Spark; helper processes get the environment variables that they name for executors.
        announce: called before the runner is started.
        cancel_start: ends a start that is under way, which then fails at once.
        small_waves: helper processes may process what is small, see ``start``.
    """

    on_one_machine = True

    def __init__(
        self,
        start_runner: Callable[[], Runner],
        cores: int,
        conf: Mapping[str, str],
        announce: Callable[[], object] = lambda: None,
        cancel_start: Callable[[], object] = lambda: None,
        *,
        small_waves: bool = False,
    ) -> None:
        environment = {k.removeprefix(_ENVIRONMENT): v for k, v in conf.items() if k.startswith(_ENVIRONMENT)}
        self._helpers = HelperProcesses(cores, {**os.environ, **environment}, fallback=self)
        self._start_runner = start_runner
        self._announce = announce
        self._cancel_start = cancel_start
        self._cores = cores
        self._small_waves = small_waves and cores <= self._helpers.slots
        self._small = False
        """Whether the tasks of this wave have little to do."""
        self._expects_work = False
        self._lock = threading.RLock()
        self._runner: Runner | None = None
        self._starting: Future[Runner] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._helpers.end()
        if self._starting is not None:
            if kind is not None or self._runner is None:
                self._cancel_start()
            wait([self._starting])  # a start that is interrupted leaves a JVM that nobody ends

    def expect_work(self) -> None:
        """Start the runner in the background, because tasks will need it; where helper processes may do without it, not
        before there is much to do."""
        self._expects_work = True
        if not self._small_waves:
            self.start_early()

    def note_work(self, documents: int) -> None:
        """Start the runner in the background if that was expected, and documents are many; see ``Runner.note_work``."""
        if self._expects_work and documents > limits.SMALL_DOCUMENTS:
            self.start_early()

    def start_early(self) -> None:
        """Start the runner in the background now, because a task will need it."""
        with self._lock:
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

    def start(self, *, small: bool = False) -> None:
        """Start Spark, see ``Runner.start``; what is small is left to the helper processes, unless they have failed."""
        self._small = small and self._small_waves
        if not self._small:
            self._started()

    def submit(
        self, task: Callable[[Item], Answer], items: Sequence[Item], *, background: bool = False
    ) -> Future[list[Answer]]:
        """Run the task on Spark, or in helper processes, see ``Runner.submit``."""
        if not items:
            return call_now(list)
        if self._small and self._runner is None and not self._helpers.retired:
            return self._helpers.process(task, items)
        return self._started().submit(task, items, background=background)

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        """Run the task for each partition of a frame, see ``Runner.run_frame``."""
        return self._started().run_frame(read, task)

    def use_session(self, use: Callable[[Any], Answer]) -> Answer:
        return self._started().use_session(use)

    def _started(self) -> Runner:
        with self._lock:
            if self._runner is None:
                self._helpers.retire()
                if self._starting is None:
                    self._announce()
                    self._starting = call_now(self._start_runner)
                self._runner = self._starting.result()
            return self._runner
