"""Transform: workers read what the scan selected, run the plan's steps, and stage everything the wave will commit.

A task's files lie in the tables' folders, fsynced, but are in no table: nobody sees them before the commit names them.
Spark may run a task twice; only the files that the winning attempt returns are ever named.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self

from ferryman.document import Document
from ferryman.engine.batches import LogSplit, TaskSplit
from ferryman.engine.live import FIRST, Live
from ferryman.engine.results import NodeError, NodeStates, Staged, run_once, sync_names
from ferryman.engine.runner.base import PickledPlan
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.block_walk import BlockWalk
from ferryman.engine.transform.calls import one_by_one, signals_noticed
from ferryman.engine.transform.concurrent import ConcurrentReader, Flights, first_batches
from ferryman.engine.transform.health import health
from ferryman.engine.transform.isolation import IsolatedReader, Weights
from ferryman.engine.transform.log_entries import LogEntries
from ferryman.engine.transform.reader import DocumentReader, Taken, stage_row
from ferryman.engine.transform.staging import Stager
from ferryman.memory import lacks_memory
from ferryman.plan import StepNode
from ferryman.plan.paths import called_nodes_below
from ferryman.state.state import id_of
from ferryman.storage.files import path_of

_BLOCK: Final = 4096
"""Rows handled at a time: what is held as Python objects."""


@dataclass(frozen=True, slots=True)
class Transform:
    """Task: process the documents of one cut."""

    shipped: PickledPlan
    root: str
    wave: int
    now_us: int
    epoch: int = 0
    """Epoch of the driver; 0: the task's results are never committed."""
    nodes: NodeStates = field(default_factory=NodeStates)
    isolated: bool = False
    """A worker died over it: each document in a child process."""
    live: str = ""
    """Folder for what is reported meanwhile; see ``engine.live``."""
    live_errors: bool = False
    """Also the errors of its first documents."""
    at_once: int = 1
    """Tasks that run at the same time: they share the rates of steps."""
    once: str = ""
    """Folder of a wave of which each task runs once at most; see ``run_once``."""

    def __call__(self, cut: TaskSplit | LogSplit) -> Staged:
        if self.once:
            return run_once(path_of(self.once), cut.number, partial(self._run_named, cut))
        return self._run(cut)

    def _run_named(self, cut: TaskSplit | LogSplit) -> Staged:
        """Run, and make the names of its files durable: a wave is made of what it returns, also after a power cut."""
        staged = self._run(cut)
        sync_names(path_of(self.root), staged)
        return staged

    @signals_noticed()
    def _run(self, cut: TaskSplit | LogSplit) -> Staged:
        """In isolation mode again and again, without the documents for which there is no memory; not where steps run
        once at most."""
        weights = Weights()
        while True:
            try:
                return self._processed(cut, weights)
            except Exception as e:
                if not self.isolated or self.once or not lacks_memory(e) or not weights.refuse_heaviest(e):
                    raise
            gc.collect()  # what was staged

    def _processed(self, cut: TaskSplit | LogSplit, weights: Weights) -> Staged:
        with TaskProcessing(self, cut, weights) as processing:
            for block in processing.blocks():
                processing.take_up(block)
        return processing.finish()


class TaskProcessing:
    """A task at work: processes the documents of one cut, block by block."""

    def __init__(self, task: Transform, cut: TaskSplit | LogSplit, weights: Weights | None = None) -> None:
        plan = task.shipped.plan()
        self._cut = cut
        once = bool(task.once)
        self._entries = LogEntries(plan, cut, once=once) if isinstance(cut, LogSplit) else None
        # A second look at a node in trouble passes over documents, which they would not survive if errors are final.
        self._pulses = health(plan, task.nodes, 0 if once else cut.rows)
        below = called_nodes_below(plan.nodes, cut.source) if once else ()
        self._on_the_way = [self._pulses[name] for name in below]
        self._stager = Stager(plan, cut.source, path_of(task.root), task.wave, task.now_us, task.epoch, self._entries)
        state = id_of(path_of(task.root))  # none in a preview
        share = 1 / task.at_once
        together = [n for n in plan.nodes if isinstance(n, StepNode) and n.is_concurrent and not task.isolated]
        flights = Flights(together, self._pulses, share)
        self._feed = DocumentReader(plan, cut, self._stager, self._pulses, partial(_called, flights, share), state)
        self._live = Live(task.live, errors=task.live_errors)
        self._feed.walk.heard = self._heard if self._live.wants_errors else None
        self._careful = None
        if task.isolated:
            self._careful = IsolatedReader(task.shipped, cut, self._stager, weights or Weights(), state, share)
        self._together = self._first_batches = None
        if self._feed.walk.comes_to({n.name for n in together}):
            self._first_batches = first_batches(together, self._feed, flights, self._stager, self._live)
            self._together = ConcurrentReader(self._feed, flights, self._stager, self._live)
        self._block_walk = None
        if self._entries is None and self._together is None and not self._feed.in_batches and not task.isolated:
            self._block_walk = BlockWalk.of(self._feed.walk, self._stager, self._live)

    def blocks(self, most: int = _BLOCK) -> Iterator[Block]:
        """Yield the task's rows in blocks."""
        if self._entries is not None:
            yield from self._entries.blocks(most)
            return
        assert isinstance(self._cut, TaskSplit)
        for rows in self._cut.tables():
            for at in range(0, rows.num_rows, most):
                yield Block(rows.slice(at, most), self._cut.revision)

    def take_up(self, block: Block) -> list[int]:
        """Read, walk and stage each document of the block; which rows were not as they were."""
        if self._careful is not None:
            taken_up, self._pulses = self._careful.take_up(block, self._feed.contents(block), self._pulses)
            self._live.add(len(block))
            return taken_up
        if self._together is not None:
            contents = self._feed.contents(block)
            if self._first_batches is not None and self._first_batches.take_up(block, contents):
                return list(range(len(block)))
            return self._together.take_up(block, contents, self._heard_reading)
        taken_up = []
        feed, stager, live = self._feed, self._stager, self._live
        stager.begin(block)
        quick = self._block_walk if BlockWalk.suits(block) else None
        for i, (fields, raw) in enumerate(zip(*feed.contents(block), strict=True)):
            if quick is not None and fields is not None:
                quick.take(block, i, fields, raw)
                taken_up.append(i)
                continue
            if self._on_the_way and self._stops_before(block, i):
                break
            waits = stager.waits(i)
            taken, go = (Taken.KNOWN, None) if waits else feed.take(block, i, fields, raw)
            feed.walk.row += 1
            live.add(1)
            fault = feed.fault if taken is Taken.UNREAD else None
            if stage_row(stager, i, taken, fault, feed.walk, go):
                taken_up.append(i)
            if fault is not None:
                self._heard_reading(block.ids[i], fault)
        stager.end()
        return taken_up

    def _stops_before(self, block: Block, i: int) -> bool:
        """Return whether the entry of row ``i`` may reach a node in trouble. An entry that has not begun can wait."""
        away = next((pulse for pulse in self._on_the_way if pulse.away), None)
        if away is None:
            return False
        assert self._entries is not None
        away.turn_away()
        self._entries.stop(block, i, f"{away.node} {away.why}", away.node)
        return True

    def _heard_reading(self, document: str, fault: NodeError) -> None:
        if self._live.wants_errors:
            self._heard(document, fault)

    def _heard(self, document: str, fault: NodeError) -> None:
        """Report the first failures of a wave at once: its end may be much later."""
        if self._feed.walk.row <= FIRST:
            self._live.error(document, fault.text, fault.trace)

    def finish(self) -> Staged:
        """Return what was staged, after the last block."""
        self._live.flush()
        for pulse in self._pulses.values():
            pulse.finish()
        self._stager.decide(self._pulses, self._feed)
        return self._stager.finish([r for p in self._pulses.values() if (r := p.report())])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._feed.close()
        if self._together is not None:
            self._together.close()


def _called(flights: Flights, share: float, step: StepNode) -> Callable[[Document], Any]:
    """The step's function, as it is called in a task."""
    return partial(flights.call, step.name) if step.is_concurrent else one_by_one(step, share)
