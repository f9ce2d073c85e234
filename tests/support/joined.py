"""Plans joined by queues: what the tests of flows are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ferryman import Document, Flow, Plan
from ferryman.destinations import Destination
from ferryman.destinations import Queue as Into
from ferryman.engine.flow import FlowRun, take_plans
from ferryman.engine.runner.base import Runner
from ferryman.engine.summary import FlowSummary
from ferryman.observe import Silent
from ferryman.queues import Queue
from ferryman.sources import Memory, Source
from ferryman.state.state import state_root
from ferryman.testing.inprocess import InProcess
from tests.support.invariants import check
from tests.support.plan_world import PlanWorld, settings_and_clock

__all__ = ["FlowWorld", "Into", "Messages", "Told", "pipe", "run_flow", "same"]


class Messages(Source):
    """The messages of a queue; a document's id is its index. The simplest source that a flow can join."""

    def __init__(self, name: str, root: Path, **options: Any) -> None:
        super().__init__(**options)
        self.queue, self.root = name, root

    def reads(self) -> str:
        return (self.root / self.queue).as_uri()

    def partitions(self) -> list[None]:
        return [None]

    def listing(self, partition: None) -> Iterator[Document]:
        if (self.root / self.queue).is_dir():
            for message in Queue(self.queue, self.root).read(start=1, limit=10_000):
                yield Document(str(message.index), **message.body)


def same(doc: Document) -> Document:
    return doc


def pipe(
    name: str,
    source: Source | list[Any],
    destination: Destination,
    step: Callable[..., Any] = same,
    version: int = 0,
    **policy: Any,
) -> Plan:
    """A plan: ``in`` → ``work`` → ``out``."""
    plan = Plan(name, version)
    given = source if isinstance(source, Source) else Memory(source, max_deleted=1.0)
    plan.source("in", given).step("work", step).destination("out", destination, **{"backoff": 0, **policy})
    return plan


def run_flow(
    flow: Flow,
    state: Path,
    *,
    runner: Runner | None = None,
    observer: Silent | None = None,
    every: float | None = None,
    accept_changes: bool = False,
    **options: Any,
) -> FlowSummary:
    """``ferryman.run(flow)`` without Spark, with all the knobs of ``FlowRun``; then the state of each plan is checked
    that did not stop."""
    with take_plans(flow, state, accept_changes) as plans:
        settings, clock = settings_and_clock(options)
        summary = FlowRun(flow.name, plans, runner or InProcess(), observer or Told(), settings, clock).run(every)
    for plan in flow.plans:
        if flow.label(plan) not in summary.errors:
            check(state_root(plan, state), plan, summary.plans[flow.label(plan)])
    return summary


class Told(Silent):
    """Listens to the run of a flow: ``lines`` are what was said, ``scans`` which plan scanned, in order."""

    def __init__(self, most: int = 50) -> None:
        self.plan = ""
        self.lines: list[str] = []
        self.scans: list[str] = []
        self.most = most

    def about(self, plan: str) -> None:
        self.plan = plan

    def phase(self, wave: int, name: str) -> None:
        if name == "scan":
            self.scans.append(self.plan)
            assert len(self.scans) <= self.most, f"it scans without end: {self.scans}"

    def message(self, text: str) -> None:
        self.lines.append(f"{self.plan}: {text}")


class FlowWorld(PlanWorld):
    """A world whose runs are those of a flow, which a subclass makes.

    Attributes:
        told: heard the last run.
    """

    told: Told

    def flow(self) -> Flow:
        """Make the flow, for each run."""
        raise NotImplementedError

    def run(self, observer: Told | None = None, **options: Any) -> FlowSummary:  # type: ignore[override]
        self.told = observer or Told()
        return run_flow(self.flow(), self.state, observer=self.told, **options)
