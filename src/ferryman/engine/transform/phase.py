"""The transform phase of waves: runs the tasks, and passes on their reports about nodes.

The tasks of a wave of listed documents may run ahead, while the previous wave is delivered and settled. No table names
the files that they stage until their own wave commits, which happens afterwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from ferryman.engine.at_most_once import OnceWave, begin_once_wave
from ferryman.engine.breakers import NodeBreakers
from ferryman.engine.live import ProgressReader
from ferryman.engine.logs import Logs
from ferryman.engine.results import Staged
from ferryman.engine.runner.base import PickledPlan, Runner, run_isolating
from ferryman.engine.tasks import LogBatch, LogSplit, TaskSplit, WaveBatch
from ferryman.engine.transform.task import Transform
from ferryman.errors import WorkerDied
from ferryman.observe import WARNING
from ferryman.records.rows import now_us
from ferryman.state.state import State
from ferryman.storage import files


class _TasksAhead(NamedTuple):
    """Tasks of a wave that run while the previous wave is delivered."""

    number: int
    batch: WaveBatch
    task: Transform
    submitted: Future[list[Staged]]


class TransformPhase:
    """Runs the transform phase of each wave.

    Attributes:
        has_orphans: whether tasks may have left files that no table will name.
        unseen: sources whose known documents could not be read in the last wave.
    """

    def __init__(
        self,
        state: State,
        pickled_plan: PickledPlan,
        runner: Runner,
        nodes: NodeBreakers,
        logs: Logs,
        live: ProgressReader,
        report: Callable[[str], None],
    ) -> None:
        self._state = state
        self._pickled_plan = pickled_plan
        self._runner = runner
        self._nodes = nodes
        self._logs = logs
        self._live = live
        self._report = report
        self._first = True
        """Whether this run has not transformed any documents yet."""
        self.has_orphans = False
        self.unseen: set[str] = set()
        self._ahead: _TasksAhead | None = None

    @property
    def runs_ahead(self) -> bool:
        """Return whether tasks of the next wave are running already. Their wave number must be the next one that is
        committed."""
        return self._ahead is not None

    def begin(self, number: int, batch: WaveBatch) -> None:
        """Start the tasks of this wave in the background; ``run`` returns what they staged."""
        task = self._task(number, batch, self._live.make_folder())
        submitted = self._runner.submit(task, batch.tasks, background=True)
        self._ahead = _TasksAhead(number, batch, task, submitted)

    def run(self, number: int, batch: WaveBatch | LogBatch) -> tuple[list[Staged], dict[str, int]]:
        """Run the tasks of this wave; return what it commits: the staged results, and the logs' new positions."""
        if isinstance(batch, LogBatch):
            with self._live.follow() as live:
                return self._run_logs(batch, self._task(number, batch, live))
        staged = self._run_ahead(number, batch) if self._ahead else self._run_now(number, batch)
        self.unseen = {split.source for split, s in zip(batch.tasks, staged, strict=True) if s.unseen}
        self._note_staged(staged)
        return staged, {}

    def _task(self, number: int, batch: WaveBatch | LogBatch, live: str) -> Transform:
        return Transform(
            self._pickled_plan,
            str(self._state.root),
            number,
            now_us(),
            self._state.epoch,
            self._nodes.states(),
            live=live,
            live_errors=self._first,
            parallel_tasks=max(1, min(len(batch.tasks), self._runner.slots)),
        )

    def _run_now(self, number: int, batch: WaveBatch) -> list[Staged]:
        with self._live.follow() as live:
            return self._run_tasks(self._task(number, batch, live), batch.tasks, partial(self._note_death, number))

    def _run_ahead(self, number: int, batch: WaveBatch) -> list[Staged]:
        """Wait for the tasks that are already running, and return what they staged."""
        ahead, self._ahead = self._ahead, None
        assert ahead is not None
        assert (ahead.number, ahead.batch) == (number, batch)
        with self._live.follow(ahead.task.live):
            return self._run_tasks(ahead.task, batch.tasks, partial(self._note_death, number), ahead.submitted)

    def _run_logs(self, batch: LogBatch, task: Transform) -> tuple[list[Staged], dict[str, int]]:
        if batch.once:
            return self._run_once(batch, task)
        again = partial(self._run_tasks, task, died=partial(self._note_death, task.wave))
        staged = again(batch.tasks)
        kept = self._logs.select_results(batch.tasks, staged, again)
        self._remove(kept.discarded)
        self._note_staged(staged)
        return kept.staged, kept.positions

    def _note_staged(self, staged: Sequence[Staged]) -> None:
        self._first = False
        self._nodes.record_reports([report for s in staged for report in s.nodes])

    def _run_once(self, batch: LogBatch, task: Transform) -> tuple[list[Staged], dict[str, int]]:
        """Run a batch whose entries no step may see twice; return what it commits."""
        once_wave = begin_once_wave(self._state, task.wave, *self._logs.ranges_to_take(batch.tasks))
        task = dataclasses.replace(task, once=str(once_wave.folder))
        staged = self._run_tasks(task, batch.tasks, partial(self._note_death, task.wave, once=True))
        self.has_orphans |= any(each.killed is not None for each in staged)
        kept = self._logs.select_once_results(once_wave, batch.tasks, staged)
        self._remove(kept.discarded)
        self._note_staged(staged)
        return kept.staged, kept.positions

    def rebuild(self, once_wave: OnceWave, split: LogSplit, notes: Iterator[Any]) -> Staged:
        """Stage what a task of an earlier driver had finished when it was killed."""
        task = Transform(self._pickled_plan, str(self._state.root), once_wave.wave, now_us(), self._state.epoch)
        return task.rebuild(split, notes)

    def _remove(self, left: Sequence[Staged]) -> None:
        """Remove the files of tasks whose results do not count."""
        tables = self._state.outbox, self._state.documents, self._state.ledger
        for each in left:
            of_table = ([part for _, part in each.outbox], each.documents, each.ledger)
            for table, parts in zip(tables, of_table, strict=True):
                for part in parts:
                    files.remove(table.folder / part.path)

    def _run_tasks(
        self,
        task: Transform,
        items: Sequence[TaskSplit | LogSplit],
        died: Callable[[WorkerDied], None],
        submitted: Future[list[Staged]] | None = None,
    ) -> list[Staged]:
        """Run the tasks. If a worker dies, run them one by one, and those whose worker dies again in isolation mode,
        unless they run at most once."""
        isolated = dataclasses.replace(task, isolated=not task.once)  # of two processes only one notes what it calls
        return run_isolating(self._runner, task, items, isolated, died, submitted)

    def _note_death(self, wave: int, death: WorkerDied, *, once: bool = False) -> None:
        again = "What it had begun is in doubt, the rest goes on" if once else "Its tasks are run again, one by one"
        self._report(f"{WARNING}wave {wave}: {death}. {again}.")
        self.has_orphans = True
