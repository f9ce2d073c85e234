"""The port to whatever runs tasks: Spark in the product, plain processes in protocol tests."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar

import cloudpickle

from ferryman import limits
from ferryman.errors import EngineError, OutOfMemory, UsageError, WorkerDied
from ferryman.memory import describe_memory_error, lacks_memory
from ferryman.plan import Plan
from ferryman.plan.calls import dumps

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class QueryFailed(EngineError):
    """A user's DataFrame failed: the function that builds it, or its query. ``__cause__``: the original error."""


class RunnerLost(EngineError):
    """There are no executors any more, and this program cannot start others: no task can run."""


class Runner(Protocol):
    """Runs tasks on executors. A task may run more than once, also at the same time; there is one answer per item."""

    @property
    def slots(self) -> int:
        """Return how many tasks run at the same time."""
        ...

    @property
    def on_one_machine(self) -> bool:
        """Return whether tasks run on the driver's machine, and see what the driver sees."""
        ...

    def submit(
        self, task: Callable[[Item], Answer], items: Sequence[Item], *, background: bool = False
    ) -> Future[list[Answer]]:
        """Run ``task(item)`` for every item; returns the answers in the items' order. All of it is pickled.

        Tasks that are submitted later run behind these. The future raises:

        - WorkerDied: the process of a task ended in the middle of it, as often as the runner tries.
        - RunnerLost: there are no executors any more.
        - EngineError: a task failed permanently.

        Args:
            background: the tasks run ahead of their wave. They share the executors with others, however many of these
                wait.
        """
        ...

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        """Run ``task(partition number, iterator of Arrow record batches)`` for every partition of a DataFrame.

        Args:
            read: SparkSession -> DataFrame.

        Raises:
            QueryFailed: the frame cannot be built, or its rows cannot be computed. Spark itself works.
            WorkerDied, EngineError: see ``submit``.
        """
        ...

    def use_session(self, use: Callable[[Any], Answer]) -> Answer:
        """Call a function with the SparkSession, in this process, and return its result.

        Raises:
            UsageError: tasks do not run on Spark.
        """
        raise UsageError("a Stream is a query of Spark's, and there is no Spark here")

    @property
    def early(self) -> Runner | None:
        """Return what runs tasks that call no step and only read, before there are executors; None: there are some."""
        return None

    def note_work(self, documents: int) -> None:
        """Note how many documents there are to process as far as it is known, from any thread: executors that take long
        to start may be started meanwhile."""
        return

    def start(self, *, small: bool = False) -> None:
        """Start the executors, if there are none yet; otherwise the first ``submit`` waits for them.

        Args:
            small: the tasks that follow have so little to do that they may do without executors.
        """
        return


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


def call_now(work: Callable[[], Answer]) -> Future[Answer]:
    """Call ``work``, and return its result or error as a future."""
    done: Future[Answer] = Future()
    set_outcome(done, work)
    return done


def set_outcome(done: Future[Answer], work: Callable[[], Answer]) -> None:
    """Call ``work``, and set its result or error as that of ``done``."""
    try:
        done.set_result(work())
    except BaseException as e:  # without an outcome, ``done.result()`` would never return
        done.set_exception(e)


class Deferred(Future[Answer]):
    """Future whose work begins when somebody asks for its result.

    Args:
        begin: sets the outcome, now or soon.
    """

    def __init__(self, begin: Callable[[Deferred[Answer]], object]) -> None:
        super().__init__()
        self._begin = begin

    def result(self, timeout: float | None = None) -> Answer:
        """Do the work unless it was done, and return or raise its result."""
        if not self.done():
            self._begin(self)
        return super().result(timeout)


def run_isolating(
    runner: Runner,
    task: Callable[[Item], Answer],
    items: Sequence[Item],
    isolated: Callable[[Item], Answer] | None = None,
    on_death: Callable[[WorkerDied], None] = lambda death: None,
    submitted: Future[list[Answer]] | None = None,
    *,
    in_driver: bool = False,
) -> list[Answer]:
    """Run the tasks; if a worker dies, run each task again on its own, so that one death fails only one task.

    Args:
        isolated: the task in isolation mode, for an item over which the worker dies again.
        on_death: called with the first death.
        submitted: the tasks, if they have been submitted already.
        in_driver: run a task for which workers have too little memory in this process, which has no limit of
            ``spark.executor.pyspark.memory``. The task must not call the user's code.

    Raises:
        WorkerDied: it died over the same item ``limits.DEATHS`` times more.
    """
    try:
        return (submitted or runner.submit(task, items)).result()
    except WorkerDied as e:
        on_death(e)

    def one(item: Item) -> Answer:
        for task_now in [task, *[isolated or task] * limits.DEATHS]:
            try:
                [answer] = runner.submit(task_now, [item]).result()
            except WorkerDied as e:
                death = e
                continue
            return answer
        if not in_driver or not isinstance(death, OutOfMemory):
            raise death
        with treat_memory_errors_as_deaths():
            return task(item)

    with ThreadPoolExecutor(runner.slots, thread_name_prefix="ferryman-apart") as pool:
        return list(pool.map(one, items))


def run_frame_again(runner: Runner, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
    """Run the task for each partition of a frame; if a worker dies, run all of them again, ``limits.DEATHS`` times."""
    for _ in range(limits.DEATHS):
        try:
            return runner.run_frame(read, task)
        except WorkerDied:
            continue
    return runner.run_frame(read, task)


class PickledPlan(NamedTuple):
    """A plan pickled for the workers of one run, with what is defined in the plan file by value.

    Attributes:
        run: identifies the run. A worker may live longer, and what a step has learnt in one run, such as that a host
            is unavailable, says nothing in the next.
    """

    blob: bytes
    run: str

    @classmethod
    def of(cls, plan: Plan) -> PickledPlan:
        return cls(dumps(plan), uuid.uuid4().hex)

    def plan(self) -> Plan:
        """Return the plan, which is unpickled once per process and run."""
        return _unpickle(self.blob, self.run)

    def fresh_plan(self) -> Plan:
        """Return a new copy of the plan, of which nothing was opened: its parts can be pickled for a child process."""
        plan: Plan = cloudpickle.loads(self.blob)
        return plan


@lru_cache(maxsize=4)
def _unpickle(blob: bytes, run: str) -> Plan:
    plan: Plan = cloudpickle.loads(blob)
    return plan
