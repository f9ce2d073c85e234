"""The transform task: reads the documents that the scan selected, runs the plan's steps, and stages what the wave will
commit.

A task's files are in the folders of the tables, fsynced, but not yet part of any table: readers ignore them until the
commit names them. Spark may run a task twice; only files returned by the winning attempt are ever named.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self

from ferryman.engine.live import MAX_ERRORS, ProgressWriter
from ferryman.engine.once_task import TaskNotes, run_once
from ferryman.engine.results import NodeError, NodeStates, Staged, sync_names
from ferryman.engine.runner.base import PickledPlan
from ferryman.engine.tasks import LogSplit, TaskSplit
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.block_walk import BlockWalk
from ferryman.engine.transform.calls import signals_interrupt
from ferryman.engine.transform.concurrent import ConcurrentReader, ConcurrentWalks
from ferryman.engine.transform.first_batches import make_first_batches
from ferryman.engine.transform.health import health_of_nodes
from ferryman.engine.transform.isolation import DocumentSizes, IsolatedReader
from ferryman.engine.transform.log_entries import LogEntries
from ferryman.engine.transform.once_reader import OnceReader, stage_notes
from ferryman.engine.transform.reader import DocumentReader, RowAction, stage_row
from ferryman.engine.transform.remembering import TaskAnswers
from ferryman.engine.transform.staging import Stager
from ferryman.engine.transform.walk import run_walk
from ferryman.memory import lacks_memory
from ferryman.plan import StepNode
from ferryman.plan.paths import called_nodes_below
from ferryman.state.state import id_of
from ferryman.storage.files import path_of

_BLOCK: Final = 4096
"""Rows processed at a time; they are held as Python objects."""


@dataclass(frozen=True, slots=True)
class Transform:
    """Task: process the documents of one split."""

    pickled_plan: PickledPlan
    root: str
    wave: int
    now_us: int
    epoch: int = 0
    """Epoch of the driver; 0: the task's results are never committed."""
    nodes: NodeStates = field(default_factory=NodeStates)
    isolated: bool = False
    """A worker has died in this task, so each document is processed in a child process."""
    live: str = ""
    """Folder for live progress; see ``engine.live``."""
    live_errors: bool = False
    """Whether the errors of its first documents are reported live, too."""
    parallel_tasks: int = 1
    """Number of tasks that run at the same time and share the rates of steps."""
    once: str = ""
    """Folder of a wave whose tasks run at most once; "": the task may be repeated. See ``engine.once_task``."""
    preview_of: str = ""
    """Folder of the state of which this is a preview: steps that remember are not called. "": it is none."""

    def __call__(self, split: TaskSplit | LogSplit) -> Staged:
        if self.once:
            assert isinstance(split, LogSplit)
            return run_once(
                path_of(self.once), split.number, partial(self._run_durably, split), partial(self.rebuild, split)
            )
        return self._run(split)

    def _run_durably(self, split: LogSplit, notes: TaskNotes) -> Staged:
        """Run the task, and make the names of its files durable, since the commit may name them."""
        staged = self._process_interruptibly(split, notes)
        sync_names(path_of(self.root), staged)
        return staged

    @signals_interrupt()
    def _process_interruptibly(self, split: LogSplit, notes: TaskNotes) -> Staged:
        return self._process(split, DocumentSizes(), notes)

    def open_answers(self) -> TaskAnswers:
        """Return what the steps of a task remember."""
        root = path_of(self.preview_of or self.root)
        return TaskAnswers(root, self.wave, share=1 / self.parallel_tasks, may_call=not self.preview_of)

    def rebuild(self, split: LogSplit, notes: Iterator[Any]) -> Staged:
        """Stage what this task had finished when it was killed; no step is called."""
        plan = self.pickled_plan.plan()
        entries = LogEntries(plan, split, once=True)
        root = path_of(self.root)
        stager = Stager(plan, split.source, root, self.wave, self.now_us, self.epoch, entries)
        staged = stage_notes(notes, stager, split, entries, health_of_nodes(plan, self.nodes, 0))
        sync_names(root, staged)
        return staged

    @signals_interrupt()
    def _run(self, split: TaskSplit | LogSplit) -> Staged:
        """Process the split. In isolation mode, if memory runs out, process it again without the largest document."""
        sizes = DocumentSizes()
        while True:
            try:
                return self._process(split, sizes)
            except Exception as e:
                if not self.isolated or not lacks_memory(e) or not sizes.refuse_largest(e):
                    raise
            gc.collect()  # results of the attempt that failed

    def _process(self, split: TaskSplit | LogSplit, sizes: DocumentSizes, notes: TaskNotes | None = None) -> Staged:
        with TaskProcessing(self, split, sizes, notes) as processing:
            for block in processing.blocks():
                processing.process_block(block)
        return processing.finish()


class TaskProcessing:
    """Processing of the documents of one split, block by block.

    Args:
        notes: notes of a task that runs at most once.
    """

    def __init__(
        self,
        task: Transform,
        split: TaskSplit | LogSplit,
        sizes: DocumentSizes | None = None,
        notes: TaskNotes | None = None,
    ) -> None:
        plan = task.pickled_plan.plan()
        self._split = split
        once = bool(task.once)
        self._entries = LogEntries(plan, split, once=once) if isinstance(split, LogSplit) else None
        # A second look at a node in trouble skips documents between its calls. Where errors are final a skipped
        # document would fail, so with 0 rows none is skipped.
        self._health = health_of_nodes(plan, task.nodes, 0 if once else split.rows)
        below = called_nodes_below(plan.nodes, split.source) if once else ()
        self._nodes_below = [self._health[name] for name in below]
        self._stager = Stager(plan, split.source, path_of(task.root), task.wave, task.now_us, task.epoch, self._entries)
        state = id_of(path_of(task.root))  # a preview has none
        share = 1 / task.parallel_tasks
        concurrent_steps = [n for n in plan.nodes if isinstance(n, StepNode) and n.is_concurrent and not task.isolated]
        self.answers = task.open_answers()
        self._walks = walks = ConcurrentWalks(concurrent_steps, self._health, share, self.answers)
        self._live = ProgressWriter(task.live, errors=task.live_errors)
        prepare_step = self.answers.document_call
        self._once_reader = None
        if notes is not None:
            self._once_reader = OnceReader(notes, plan.checkpoint, self._stager, self._live)
        sink = self._stager if self._once_reader is None else self._once_reader.recorder
        self._reader = DocumentReader(plan, split, sink, self._health, prepare_step, state)
        self._reader.walk.on_error = self._report_error if self._live.wants_errors else None
        self._isolated_reader = None
        if task.isolated:
            self._isolated_reader = IsolatedReader(
                task.pickled_plan, self.answers, split, self._stager, sizes or DocumentSizes(), state
            )
        self._concurrent_reader = self._first_batches = None
        if self._reader.walk.may_reach({n.name for n in concurrent_steps}):
            self._first_batches = make_first_batches(concurrent_steps, self._reader, walks, self._stager, self._live)
            self._concurrent_reader = ConcurrentReader(self._reader, walks, self._stager, self._live)
        self._block_walk = None
        if self._concurrent_reader is None and not self._reader.in_batches and not task.isolated and not once:
            self._block_walk = BlockWalk.create(self._reader.walk, self._stager, self._live)

    def blocks(self, max_rows: int = _BLOCK) -> Iterator[Block]:
        """Yield the task's rows in blocks."""
        if self._entries is not None:
            yield from self._entries.blocks(max_rows, lambda: self._stager.is_full)
            return
        assert isinstance(self._split, TaskSplit)
        for rows in self._split.tables():
            for at in range(0, rows.num_rows, max_rows):
                yield Block(rows.slice(at, max_rows), self._split.revision)

    def process_block(self, block: Block) -> list[int]:
        """Read, walk and stage each document of the block; return which rows had changed."""
        if self._once_reader is not None:
            return self._once_reader.process_block(self._reader, block, self._must_stop)
        if self._isolated_reader is not None:
            processed, self._health = self._isolated_reader.process_block(
                block, self._reader.contents(block), self._health
            )
            self._live.add(len(block))
            return processed
        if self._concurrent_reader is not None:
            contents = self._reader.contents(block)
            if self._first_batches is not None and self._first_batches.process_block(block, contents):
                return list(range(len(block)))
            return self._concurrent_reader.process_block(block, contents, self._report_read_error)
        processed = []
        reader, stager, live = self._reader, self._stager, self._live
        stager.begin_block(block)
        fast_walk = self._block_walk if BlockWalk.suits(block) else None
        drops, may_wait = block.drops, self._entries is not None and self._entries.by_key
        for i, (fields, raw) in enumerate(zip(*reader.contents(block), strict=True)):
            waits = may_wait and stager.stage_if_waiting(i)
            dropped = drops and block.drop_reason(i) is not None
            if fast_walk is not None and fields is not None and not waits and not dropped:
                fast_walk.walk_row(block, i, fields, raw)
                processed.append(i)
                continue
            action, walking = (RowAction.SKIP, None) if waits else reader.read_row(block, i, fields, raw)
            reader.walk.row += 1
            live.add(1)
            fault = reader.fault if action is RowAction.POSTPONE else None
            stage_deliveries = None if walking is None else partial(run_walk, reader.walk, walking)
            if stage_row(stager, i, action, fault, reader.walk, stage_deliveries):
                processed.append(i)
            if fault is not None:
                self._report_read_error(block.ids[i], fault)
        stager.end_block()
        return processed

    def _must_stop(self, block: Block, i: int) -> bool:
        """Return whether the entry of row ``i`` may reach a node in trouble; since it has not begun, it can wait."""
        away = next((node_health for node_health in self._nodes_below if node_health.away), None)
        if away is None:
            return False
        assert self._entries is not None
        away.turn_away()
        self._entries.stop(block, i, f"{away.node} {away.why}", away.node)
        return True

    def _report_read_error(self, document: str, fault: NodeError) -> None:
        if self._live.wants_errors:
            self._report_error(document, fault)

    def _report_error(self, document: str, fault: NodeError) -> None:
        """Report the first failures of a wave at once, since the wave may take long."""
        if self._reader.walk.row <= MAX_ERRORS:
            self._live.error(document, fault.text, fault.trace)

    def finish(self) -> Staged:
        """Return what was staged, after the last block."""
        self._live.flush()
        for node_health in self._health.values():
            node_health.finish()
        if self._once_reader is not None:
            assert self._entries is not None
            self._once_reader.finish(self._entries)
        self._stager.decide(self._health, self._reader)
        seconds = self._reader.walk.step_seconds()
        seconds.update(self._walks.step_seconds())
        took_us = {name: round(each * 1e6) for name, each in seconds.items() if each}
        return self._stager.finish([r for p in self._health.values() if (r := p.report())])._replace(took_us=took_us)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        if self._concurrent_reader is not None:
            self._concurrent_reader.close()
        self.answers.close()
