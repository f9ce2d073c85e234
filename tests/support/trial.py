"""A plan, its state and its destination in one folder; every run is followed by a check that all adds up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ferryman import account
from ferryman.engine import driver
from ferryman.engine.run import Run, Summary
from ferryman.engine.runner.base import Runner
from ferryman.observe import Silent
from ferryman.operations import Retried, retry
from ferryman.plan import Plan
from ferryman.sources import Memory
from ferryman.sources.base import Source
from ferryman.state.state import State, state_root
from ferryman.testing.inprocess import InProcess
from tests.support.invariants import check
from tests.support.recorder import Answer, Recorder


class Watch(Silent):
    """Listens to a run: ``phases`` and ``messages``. One that goes round in circles is stopped."""

    def __init__(self, most: int = 50) -> None:
        self.phases: list[tuple[int, str]] = []
        self.messages: list[str] = []
        self._most = most

    def phase(self, wave: int, name: str) -> None:
        self.phases.append((wave, name))
        scans = sum(n == "scan" for _, n in self.phases)
        assert scans <= self._most, f"it scans for ever: wave {wave} for the {scans}th time"

    def message(self, text: str) -> None:
        self.messages.append(text)


class Interrupted(Exception):
    """Stands for a kill: the run ends there, at once."""


class Until(Watch):
    """Ends a run when it comes to a phase of a wave."""

    def __init__(self, wave: int, phase: str) -> None:
        super().__init__()
        self._end = (wave, phase)

    def phase(self, wave: int, name: str) -> None:
        if (wave, name) == self._end:
            raise Interrupted
        super().phase(wave, name)


def run_plan(
    plan: Plan,
    state: Path,
    *,
    runner: Runner | None = None,
    observer: Silent | None = None,
    every: float | None = None,
    checked: bool = True,
    **options: Any,
) -> Summary:
    """``ferryman.run`` without Spark (or on a given runner), with all the knobs of ``Run``; then everything is checked.

    Args:
        checked: assert the invariants afterwards, also if the run raised.
    """
    plan.freeze()
    root = state_root(plan, state)
    with State.take(root, plan) as taken, driver.explain_errors(taken):
        summary = Run(taken, runner or InProcess(), observer or Watch(), **options).run(every)
    if checked:
        check(root, plan, summary)
    return summary


class Trial:
    """A folder with a plan ``trial`` version 1: source ``docs`` (a list in memory) → steps → ``out`` (a recorder).

    Attributes:
        documents: the source's list; change it between runs.
        out: the destination.
        plan: made by ``build`` at the first use, or anew by ``build``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.documents: list[Any] = []
        self.out = Recorder(folder / "out.jsonl")
        self._plan: Plan | None = None

    def build(
        self,
        *steps: Callable[..., Any],
        source: Source | None = None,
        out: Recorder | None = None,
        answer: Answer | None = None,
        detect: str = "content",
        max_deleted: float = 1.0,
        called: dict[str, Any] | None = None,
        **policy: Any,
    ) -> Trial:
        """Say what the plan is; steps are named as their functions.

        Args:
            called: policy of the source and the steps.
            policy: of the destination.
        """
        if out is not None:
            self.out = out
        if answer is not None:
            self.out.answer = answer
        plan = Plan("trial", version=1)
        given = source or Memory(self.documents, detect=detect, max_deleted=max_deleted)  # type: ignore[arg-type]
        node = plan.source("docs", given, **(called or {}))
        for step in steps:
            node = node.step(step.__name__.strip("_"), step, **(called or {}))
        node.destination("out", self.out, **{"backoff": 0, **policy})
        self._plan = plan
        return self

    @property
    def plan(self) -> Plan:
        if self._plan is None:
            self.build()
        assert self._plan is not None
        return self._plan

    @property
    def root(self) -> Path:
        """The state directory."""
        return state_root(self.plan, self.state)

    def run(self, **options: Any) -> Summary:
        """See ``run_plan``."""
        return run_plan(self.plan, self.state, **options)

    def take(self) -> State:
        """Become the driver."""
        self.plan.freeze()
        return State.take(self.root, self.plan)

    def retry(self, **options: Any) -> Retried:
        return retry(self.plan, state=self.state, **options)

    def status(self) -> dict[str, Any]:
        return account.status(self.root, self.plan)

    def counts(self) -> dict[str, int]:
        """What ``status`` says of the destination, zeros left out."""
        return {name: n for name, n in self.status()["destinations"]["out"].items() if n}

    def docs(self, **filters: Any) -> list[dict[str, Any]]:
        return account.deliveries(self.root, plan=self.plan, **filters)

    def history(self, document: str) -> list[dict[str, Any]]:
        return account.history(self.root, document, self.plan)

    def statuses(self, document: str) -> list[str]:
        """Statuses of a document's events, oldest first."""
        return [e["status"] for e in self.history(document)]

    def put(self, *ids: str, text: str = "one") -> None:
        """Set these documents' content; unknown ones are added."""
        for id in ids:
            self.drop(id)
            self.documents.append({"id": id, "raw": text.encode()})

    def drop(self, *ids: str) -> None:
        """Take these documents away."""
        self.documents[:] = [d for d in self.documents if d["id"] not in ids]
