"""The port to whatever runs tasks: Spark in the product, plain processes in protocol tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar

import cloudpickle

from ferryman.plan import Plan

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Runner(Protocol):
    """Runs tasks on executors. A task may run more than once, at the same time too; one answer an item is returned."""

    @property
    def slots(self) -> int:
        """How many tasks run at the same time."""
        ...

    def run(self, task: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """``task(item)`` for every item, answers in the items' order. Task, items and answers are pickled.

        Raises:
            EngineError: a task failed for good, or its worker died.
        """
        ...

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Answer]) -> list[Answer]:
        """``task(partition number, iterator of Arrow record batches)`` for every partition of a DataFrame.

        Args:
            read: SparkSession -> DataFrame.
        """
        ...


class Shipped(NamedTuple):
    """A plan on its way to the workers; what lives in the plan file travels by value."""

    blob: bytes

    @classmethod
    def of(cls, plan: Plan) -> Shipped:
        return cls(cloudpickle.dumps(plan))

    def plan(self) -> Plan:
        """The plan, unpickled once a process."""
        return _unpickled(self.blob)


@lru_cache(maxsize=4)
def _unpickled(blob: bytes) -> Plan:
    plan: Plan = cloudpickle.loads(blob)
    return plan
