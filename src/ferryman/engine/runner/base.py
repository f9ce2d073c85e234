"""The port to whatever runs tasks: Spark in the product, plain processes in protocol tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar

import cloudpickle

from ferryman import limits
from ferryman.errors import EngineError, OutOfMemory, WorkerDied
from ferryman.memory import describe_memory_error, lacks_memory
from ferryman.plan import Plan
from ferryman.plan.calls import dumps

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class QueryFailed(EngineError):
    """A user's DataFrame failed: what made it, or its query. ``__cause__``: what that raised."""


class Runner(Protocol):
    """Runs tasks on executors. A task may run more than once, at the same time too; one answer an item is returned.

    One that is there from the beginning inherits what is said of those that start when they are needed.
    """

    @property
    def slots(self) -> int:
        """How many tasks run at the same time."""
        ...

    @property
    def on_one_machine(self) -> bool:
        """Do tasks run on the driver's machine, and see what it sees?"""
        ...

    def run(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """``task(item)`` for every item, answers in the items' order. Task, items and answers are pickled.

        Raises:
            WorkerDied: the process of a task ended in the middle of it, as often as the runner tries.
            EngineError: a task failed permanently.
        """
        ...

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        """``task(partition number, iterator of Arrow record batches)`` for every partition of a DataFrame.

        Args:
            read: SparkSession -> DataFrame.

        Raises:
            QueryFailed: the frame cannot be made, or its rows cannot be computed. Spark is well.
            WorkerDied, EngineError: see ``run``.
        """
        ...

    @property
    def started(self) -> bool:
        """Are there executors? If not, the first ``run`` waits for them, and ``run_early`` does not."""
        return True

    def start(self) -> None:
        """Have executors now."""
        return

    def run_early(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Run a task that calls no step and only reads: it may run before there are executors."""
        return self.run(task, items)

    @property
    def concurrent(self) -> bool:
        """Do jobs of several threads run at the same time? If not, what could run ahead is run at once, in this thread:
        tests then see the same order each time."""
        return False

    def run_before(
        self, task: Callable[[Item], Answer], items: Sequence[Item], then: Callable[[], None]
    ) -> list[Answer]:
        """Run the task, and call ``then`` when its tasks have been submitted.

        Args:
            then: called once, when the tasks are on their way. What it runs comes behind them.
        """
        then()
        return self.run(task, items)

    def run_ahead(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Call ``work``, which calls ``run``, beside what this thread does next; or at once, see ``concurrent``."""
        done: Future[Answer] = Future()
        set_outcome(done, work)
        return done


@contextmanager
def no_memory_is_death() -> Iterator[None]:
    """In a runner's process, around a task: an allocation that fails counts as the death of its worker.

    Raises:
        OutOfMemory: it has failed.
    """
    try:
        yield
    except Exception as e:
        if isinstance(e, OutOfMemory) or not lacks_memory(e):
            raise
        raise OutOfMemory(f"a task ended: {describe_memory_error(e)}") from e


def set_outcome(done: Future[Answer], work: Callable[[], Answer]) -> None:
    """Call ``work``; what it returns or raises is for whoever asks ``done``."""
    try:
        done.set_result(work())
    except BaseException as e:  # whoever asks waits for ever if nothing comes
        done.set_exception(e)


def run_isolating(
    runner: Runner,
    task: Callable[[Item], Answer],
    items: Sequence[Item],
    isolated: Callable[[Item], Answer] | None = None,
    died: Callable[[WorkerDied], None] = lambda death: None,
) -> list[Answer]:
    """``runner.run``; if a worker dies, each task again for itself, so that only its own may fail.

    Args:
        isolated: the same task in another way, for an item of which the worker dies again.
        died: told of the first death.

    Raises:
        WorkerDied: it died over the same item ``limits.DEATHS`` times more.
    """
    try:
        return runner.run(task, items)
    except WorkerDied as e:
        died(e)

    def one(item: Item) -> Answer:
        for task_now in [task, *[isolated or task] * limits.DEATHS]:
            try:
                [answer] = runner.run(task_now, [item])
            except WorkerDied as e:
                death = e
                continue
            return answer
        raise death

    with ThreadPoolExecutor(runner.slots, thread_name_prefix="ferryman-apart") as pool:
        return list(pool.map(one, items))


class IsolatingRunner(Runner):
    """A runner that tries again what a worker died over: the deaths are somebody else's, the tasks are ours."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def slots(self) -> int:
        return self._runner.slots

    @property
    def on_one_machine(self) -> bool:
        return self._runner.on_one_machine

    def run(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Run the task for each item, see ``Runner.run``."""
        return run_isolating(self._runner, task, items)

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        """Run the task for each partition of a frame, see ``Runner.run_frame``."""
        for _ in range(limits.DEATHS):
            try:
                return self._runner.run_frame(read, task)
            except WorkerDied:
                continue
        return self._runner.run_frame(read, task)

    @property
    def started(self) -> bool:
        return self._runner.started

    def start(self) -> None:
        """Start the runner, see ``Runner.start``."""
        self._runner.start()

    def run_early(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Run a task that only reads, see ``Runner.run_early``."""
        return self.run(task, items) if self.started else self._runner.run_early(task, items)


class PickledPlan(NamedTuple):
    """A plan on its way to the workers; what lives in the plan file travels by value."""

    blob: bytes

    @classmethod
    def of(cls, plan: Plan) -> PickledPlan:
        return cls(dumps(plan))

    def plan(self) -> Plan:
        """The plan, unpickled once a process."""
        return _unpickled(self.blob)

    def unused(self) -> Plan:
        """The plan, of which nothing was opened yet: its parts can be pickled again, for a child process."""
        plan: Plan = cloudpickle.loads(self.blob)
        return plan


@lru_cache(maxsize=4)
def _unpickled(blob: bytes) -> Plan:
    plan: Plan = cloudpickle.loads(blob)
    return plan
