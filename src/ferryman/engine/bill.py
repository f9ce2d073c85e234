"""The bill of the next run: of all documents that it would process, which ones need a call of a step that remembers.

The documents are read and go through the steps as in the run, up to the first call that would have to be paid. What is
staged on the way is thrown away.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ferryman.engine.results import Staged
from ferryman.engine.runner.base import Runner, run_isolating
from ferryman.engine.tasks import LogSplit, TaskSplit
from ferryman.engine.transform.calls import signals_interrupt
from ferryman.engine.transform.task import TaskProcessing, Transform
from ferryman.errors import WorkerDied
from ferryman.plan import Plan, remembering_steps
from ferryman.remembered.answers import KEY_BYTES
from ferryman.storage import files


class StepNeed(NamedTuple):
    """Calls that the documents of one task need of a step.

    Attributes:
        documents: that come to the step.
        uncalled: those of them that need a call.
        alone: those of them that have no input, and so share the call of no other document.
        keys: file with the inputs that need a call; "": none.
    """

    documents: int
    uncalled: int
    alone: int
    keys: str


@dataclasses.dataclass(frozen=True, slots=True)
class BillTask:
    """Task: count the calls that the documents of a split need.

    Attributes:
        folder: for the files of the inputs.
    """

    transform: Transform
    folder: str

    @signals_interrupt()
    def __call__(self, split: TaskSplit | LogSplit) -> dict[str, StepNeed]:
        with TaskProcessing(self.transform, split) as processing:
            for block in processing.blocks():
                processing.process_block(block)
            needs = {name: self._need(*each) for name, each in processing.answers.needs().items()}
        self._remove(processing.finish())
        return needs

    def _need(self, documents: int, uncalled: int, alone: int, missing: set[bytes]) -> StepNeed:
        path = ""
        if missing:
            path = str(Path(self.folder) / uuid.uuid4().hex)
            Path(path).write_bytes(b"".join(missing))
        return StepNeed(documents, uncalled, alone, path)

    def _remove(self, staged: Staged) -> None:
        root = files.path_of(self.transform.root)
        outbox = [part for _, part in staged.outbox]
        for table, parts in (("outbox", outbox), ("documents", staged.documents), ("ledger", staged.ledger)):
            files.remove_all(root / table / part.path for part in parts)


def count_calls(
    plan: Plan, runner: Runner, transform: Transform, splits: Sequence[TaskSplit | LogSplit], folder: Path
) -> list[dict[str, Any]]:
    """Return for each step that remembers: ``step``, ``documents`` that come to it, ``need`` (those that need a call),
    ``calls`` (as many as these have different inputs, and one for each that has none), and their ``cost`` in dollars.

    Args:
        folder: for scratch files.
    """
    steps = remembering_steps(plan.nodes)
    if not steps:
        return []

    def died(_death: WorkerDied) -> None:
        """Run the tasks again, one by one; the sample reports it."""

    task = BillTask(transform, str(folder))
    isolated = BillTask(dataclasses.replace(transform, isolated=True), str(folder))
    found = run_isolating(runner, task, splits, isolated, died) if splits else []
    bill = []
    for step in steps:
        assert step.remember is not None
        needs = [each[step.name] for each in found if step.name in each]
        keys = [np.fromfile(need.keys, f"S{KEY_BYTES}") for need in needs if need.keys]
        different = len(np.unique(np.concatenate(keys))) if keys else 0
        calls = different + sum(need.alone for need in needs)
        bill.append(
            {
                "step": step.name,
                "documents": sum(need.documents for need in needs),
                "need": sum(need.uncalled for need in needs),
                "calls": calls,
                "cost": calls * step.remember.cost,
            }
        )
    return bill
