"""The second phase of a run's waves: its tasks are run, and what they say of the nodes is heard."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from ferryman.engine.commit.intake import commit_intake
from ferryman.engine.live import Follower
from ferryman.engine.logs import Logs
from ferryman.engine.nodes import Nodes
from ferryman.engine.runner.base import PickledPlan, Runner, run_isolating
from ferryman.engine.scan.batches import TaskSplit, WaveBatch
from ferryman.engine.scan.log_batches import LogBatch, LogSplit
from ferryman.engine.transform.staged import Staged
from ferryman.engine.transform.task import Transform
from ferryman.errors import WorkerDied
from ferryman.records.due import now_us
from ferryman.state.state import State
from ferryman.storage import files


class TransformPhase:
    """Of all waves of a run.

    Attributes:
        littered: tasks may have left files that nothing names.
        unseen: sources of which known documents could not be looked at in the last wave.
    """

    def __init__(
        self,
        state: State,
        shipped: PickledPlan,
        runner: Runner,
        nodes: Nodes,
        logs: Logs,
        live: Follower,
        tell: Callable[[str], None],
    ) -> None:
        self._state = state
        self._shipped = shipped
        self._runner = runner
        self._nodes = nodes
        self._logs = logs
        self._live = live
        self._tell = tell
        self._first = True
        """No documents have been through the steps in this run."""
        self.littered = False
        self.unseen: set[str] = set()

    def run(self, number: int, batch: WaveBatch | LogBatch) -> tuple[list[Staged], dict[str, int]]:
        """What the wave of this number commits: of its tasks, and of the logs' positions."""
        task = Transform(self._shipped, str(self._state.root), number, now_us(), self._state.epoch, self._nodes.now())
        task = dataclasses.replace(task, at_once=max(1, min(len(batch.tasks), self._runner.slots)))
        positions: dict[str, int] = {}
        with self._live.following() as live:
            task = dataclasses.replace(task, live=live, live_errors=self._first)
            if isinstance(batch, LogBatch) and batch.once:
                return self._run_once(batch, task)
            again = partial(self._tasks, task)
            staged = again(batch.tasks)
            reports = [report for s in staged for report in s.nodes]
            if isinstance(batch, LogBatch):
                staged, positions, left = self._logs.kept_of(batch.tasks, staged, again)
                self._remove(left)
            else:
                self.unseen = {cut.source for cut, s in zip(batch.tasks, staged, strict=True) if s.unseen}
        self._first = False
        self._nodes.hear(reports)
        return staged, positions

    def _run_once(self, batch: LogBatch, task: Transform) -> tuple[list[Staged], dict[str, int]]:
        """The same, of what no step may see a second time."""
        intake = commit_intake(self._state, task.wave, *self._logs.taken(batch.tasks))
        staged = self._tasks(dataclasses.replace(task, once=str(intake.folder)), batch.tasks)
        kept = self._logs.kept_once(intake, batch.tasks, staged)
        self._remove(kept.left)
        self._first = False
        self._nodes.hear([report for s in staged for report in s.nodes])
        return kept.staged, kept.positions

    def _remove(self, left: Sequence[Staged]) -> None:
        """Files of tasks that do not count."""
        tables = self._state.outbox, self._state.documents, self._state.ledger
        for each in left:
            of_table = ([part for _, part in each.outbox], each.documents, each.ledger)
            for table, parts in zip(tables, of_table, strict=True):
                for part in parts:
                    files.remove(table.folder / part.path)

    def _tasks(self, task: Transform, items: Sequence[TaskSplit | LogSplit]) -> list[Staged]:
        """If a worker dies, the tasks one by one, and those that die again in isolation mode."""

        def died(death: WorkerDied) -> None:
            again = (
                "What it had begun is in doubt, the rest goes on"
                if task.once
                else "Its tasks are run again, one by one"
            )
            self._tell(f"wave {task.wave}: {death}. {again}.")
            self.littered = True

        return run_isolating(self._runner, task, items, dataclasses.replace(task, isolated=True), died)
