"""Plans of several versions over the same documents, and kills on the way from one to the next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman import crash
from ferryman.destinations import Outcome
from ferryman.document import Document
from ferryman.engine.migration import migrate
from ferryman.errors import StateHeld
from ferryman.plan import Plan
from ferryman.routers import Duplicate
from ferryman.sources import Memory
from ferryman.state.state import state_root
from tests.support.plan_world import PlanWorld

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


def build_version(world: PlanWorld, version: int, *steps: Any, outs: tuple[str, ...] = ("out",), **policy: Any) -> Plan:
    """Build a version: ``docs`` → steps → recorders, each of which keeps what it got."""
    plan = Plan("trial", version=version)
    node = plan.source("docs", Memory(world.documents, max_deleted=1.0))
    for step in steps:
        node = node.step(step.__name__, step)
    if len(outs) > 1:
        node = node.route("all", Duplicate())
    for name in outs:
        node.destination(name, world.out(name), **{"backoff": 0, **policy})
    return plan


class Versions(PlanWorld):
    """Plans of one name over the same documents; each run records its plan."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, build_version, accept_changes=False)

    def migrate_meanwhile(self, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Version 2 continues from 1; at a point of that another one tries the same, and is told that the older state
        is held."""
        refused = []

        def meanwhile(name: str) -> None:
            if name == point and not refused:
                with pytest.raises(StateHeld) as caught:
                    migrate(state_root(self.make_plan(2), self.state), self.make_plan(2), 1)
                refused.append(str(caught.value))

        self.run(self.make_plan(1))
        monkeypatch.setattr(crash, "point", meanwhile)
        assert self.run(self.make_plan(2), from_version=1).exit == 0
        assert len(refused) == 1


def louder(doc: Document) -> Document:
    doc["loud"] = True
    return doc


def down(delivery: Any) -> Outcome:
    return Outcome.unavailable("down")
