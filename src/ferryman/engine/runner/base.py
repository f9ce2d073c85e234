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
    """A user's DataFrame failed: the function that builds it, or its query. ``__cause__``: the original error."""


class Runner(Protocol):
    """Runs tasks on executors. A task may run more than once, also at the same time; one answer per item is returned.

    The methods about starting have defaults for runners whose executors exist from the beginning.
    """

    @property
    def slots(self) -> int:
        """Return how many tasks run at the same time."""
        ...

    @property
    def on_one_machine(self) -> bool:
        """Return whether tasks run on the driver's machine, and see what the driver sees."""
        ...

    def run(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Run ``task(item)`` for every item; returns the answers in the items' order. All of it is pickled.

        Raises:
            WorkerDied: the process of a task ended in the middle of it, as often as the runner tries.
            EngineError: a task failed permanently.
        """
        ...

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        """Run ``task(partition number, iterator of Arrow record batches)`` for every partition of a DataFrame.

        Args:
            read: SparkSession -> DataFrame.

        Raises:
            QueryFailed: the frame cannot be built, or its rows cannot be computed. Spark itself works.
            WorkerDied, EngineError: see ``run``.
        """
        ...

    @property
    def started(self) -> bool:
        """Return whether there are executors. If not, the first ``run`` waits for them; ``run_early`` does not."""
        return True

    def start(self) -> None:
        """Start the executors now."""
        return

    def run_early(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Run a task that calls no step and only reads; it may run before there are executors."""
        return self.run(task, items)

    @property
    def concurrent(self) -> bool:
        """Return whether jobs of several threads run at the same time. If not, ``run_ahead`` runs its work at once, in
        the calling thread, so that tests see the same order each time."""
        return False

    def run_with_callback(
        self, task: Callable[[Item], Answer], items: Sequence[Item], on_submitted: Callable[[], None]
    ) -> list[Answer]:
        """Run the task, and call ``on_submitted`` when its tasks have been submitted.

        Args:
            on_submitted: called once; tasks that it submits run behind these.
        """
        on_submitted()
        return self.run(task, items)

    def run_ahead(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Call ``work``, which calls ``run``, in the background; or at once, see ``concurrent``."""
        done: Future[Answer] = Future()
        set_outcome(done, work)
        return done


@contextmanager
def treat_memory_errors_as_deaths() -> Iterator[None]:
    """Convert failed allocations of a task in the block, which count as the death of its worker.

    Raises:
        OutOfMemory: an allocation has failed.
    """
    try:
        yield
    except Exception as e:
        if isinstance(e, OutOfMemory) or not lacks_memory(e):
            raise
        raise OutOfMemory(f"a task ended: {describe_memory_error(e)}") from e


def set_outcome(done: Future[Answer], work: Callable[[], Answer]) -> None:
    """Call ``work``, and set its result or error as that of ``done``."""
    try:
        done.set_result(work())
    except BaseException as e:  # without an outcome, ``done.result()`` would never return
        done.set_exception(e)


def run_isolating(
    runner: Runner,
    task: Callable[[Item], Answer],
    items: Sequence[Item],
    isolated: Callable[[Item], Answer] | None = None,
    on_death: Callable[[WorkerDied], None] = lambda death: None,
) -> list[Answer]:
    """Call ``runner.run``; if a worker dies, run each task again on its own, so that one death fails only one task.

    Args:
        isolated: the task in isolation mode, for an item over which the worker dies again.
        on_death: called with the first death.

    Raises:
        WorkerDied: it died over the same item ``limits.DEATHS`` times more.
    """
    try:
        return runner.run(task, items)
    except WorkerDied as e:
        on_death(e)

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
    """Runs tasks again, one by one, if a worker dies. For tasks of our own, which are not what kills workers."""

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
    """A plan pickled for workers, with what is defined in the plan file by value."""

    blob: bytes

    @classmethod
    def of(cls, plan: Plan) -> PickledPlan:
        return cls(dumps(plan))

    def plan(self) -> Plan:
        """Return the plan, which is unpickled once per process."""
        return _unpickle(self.blob)

    def fresh_plan(self) -> Plan:
        """Return a new copy of the plan, of which nothing was opened: its parts can be pickled for a child process."""
        plan: Plan = cloudpickle.loads(self.blob)
        return plan


@lru_cache(maxsize=4)
def _unpickle(blob: bytes) -> Plan:
    plan: Plan = cloudpickle.loads(blob)
    return plan
