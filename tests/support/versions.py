"""Plans of several versions over the same documents, and kills on the way from one to the next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman import crash
from ferryman.destinations import Outcome
from ferryman.document import Document
from ferryman.engine import driver
from ferryman.engine.migration import migrate
from ferryman.engine.run import Run, Summary
from ferryman.errors import StateHeld
from ferryman.observe import Silent
from ferryman.plan import Plan
from ferryman.routers import Duplicate
from ferryman.sources import Memory
from ferryman.state.state import State, state_root
from ferryman.storage.files import StatePath
from ferryman.testing.inprocess import InProcess
from tests.support.invariants import check
from tests.support.recorder import Recorder

MIGRATION_POINTS = [name for name in crash.POINTS if name.startswith(("version.", "plan."))]


class Killed(BaseException):
    """Stands for a kill: the run ends there, at once."""


def kill_at(point: str, nth: int = 1) -> Callable[[str], None]:
    """In place of ``crash.point``: kills at the n-th pass of a point."""
    left = nth

    def kill(name: str) -> None:
        nonlocal left
        left -= name == point
        if name == point and left == 0:
            raise Killed

    return kill


class Versions:
    """Plans of one name over the same documents; each recorder keeps what it got."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.documents: list[Any] = []
        self.outs: dict[str, Recorder] = {}

    def out(self, name: str) -> Recorder:
        return self.outs.setdefault(name, Recorder(self.folder / f"{name}.jsonl"))

    def plan(self, version: int, *steps: Any, outs: tuple[str, ...] = ("out",), **policy: Any) -> Plan:
        plan = Plan("trial", version=version)
        node = plan.source("docs", Memory(self.documents, max_deleted=1.0))
        for step in steps:
            node = node.step(step.__name__, step)
        if len(outs) > 1:
            node = node.route("all", Duplicate())
        for name in outs:
            node.destination(name, self.out(name), **{"backoff": 0, **policy})
        return plan

    def run(
        self, plan: Plan, *, accept_changes: bool = False, from_version: int | None = None, **options: Any
    ) -> Summary:
        """As ``ferryman.run``, without Spark."""
        plan.freeze()
        root = state_root(plan, self.state)
        if from_version is not None:
            migrate(root, plan, from_version)
        with State.take(root, plan) as taken, driver.check_plan_changes(taken, accept_changes):
            summary = Run(taken, InProcess(), Silent(), **options).run()
        self.check(root, plan, summary)
        return summary

    def check(self, root: StatePath, plan: Plan, summary: Summary) -> None:
        """What holds after every run."""
        assert isinstance(root, Path)
        check(root, plan, summary)

    def migrate_meanwhile(self, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Version 2 continues from 1; at a point of that another one tries the same, and is told that the older state
        is held."""
        refused = []

        def meanwhile(name: str) -> None:
            if name == point and not refused:
                with pytest.raises(StateHeld) as caught:
                    migrate(state_root(self.plan(2), self.state), self.plan(2), 1)
                refused.append(str(caught.value))

        self.run(self.plan(1))
        monkeypatch.setattr(crash, "point", meanwhile)
        assert self.run(self.plan(2), from_version=1).exit == 0
        assert len(refused) == 1


def louder(doc: Document) -> Document:
    doc["loud"] = True
    return doc


def down(delivery: Any) -> Outcome:
    return Outcome.unavailable("down")
