"""Documents that wait for a retry while their plan changes under them, in the same version."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferryman import Document
from ferryman.errors import TransientError
from ferryman.operations import retry
from ferryman.plan import Handle, Plan
from ferryman.routers import ByField, Duplicate
from ferryman.sources import Queue
from ferryman.sources.base import Source
from ferryman.testing.inprocess import InProcess
from tests.support.keyed import count
from tests.support.plan_world import PlanWorld, run_plan


def away(doc: Document) -> Document:
    raise TransientError("away")


def back(doc: Document) -> Document:
    return doc


def begin(source: Source | None, world: PlanWorld) -> tuple[Plan, Handle]:
    world.plan = plan = Plan("changed", version=1)
    return plan, world.source() if source is None else plan.source("docs", source)


@pytest.mark.rule("retry.changed")
@pytest.mark.parametrize("change", ["renamed", "copied", "routed", "moved"])
def test_a_document_whose_failed_step_is_elsewhere_is_processed_again(place: Path, change: str) -> None:
    """A step has another name, or stands below a new router; or the destination has another name."""
    world = PlanWorld.empty(place)
    plan, node = begin(None, world)
    node.step("parse", away).destination("out", world.out())
    world.put("a", "b", kind="out")
    assert world.run(plan, wait=0).pending == 2
    plan, node = begin(None, world)
    if change in ("copied", "routed"):
        fork = node.route("fork", Duplicate() if change == "copied" else ByField("kind"))
        fork.destination("other", world.out("other"))
        node = fork
    step = node.step("out" if change == "routed" else "parse2" if change == "renamed" else "parse", back)
    step.destination("moved" if change == "moved" else "index" if change == "routed" else "out", world.out())
    retry(plan, state=world.state)
    summary = world.run(plan, wait=0, accept_changes=True)
    assert (summary.exit, summary.delivered) == (0, 4 if change == "copied" else 2)
    assert sorted(world.out().arrived()) == ["a", "b"]


@pytest.mark.rule("retry.changed")
def test_an_entry_that_a_keyed_node_counts_is_not_processed_again(place: Path) -> None:
    """It could be counted twice: it is rejected, until the step is put back."""
    world = PlanWorld(place, field="word")
    plans = []
    for name, step in (("parse", away), ("parse2", back), ("parse", back)):
        plan, node = begin(Queue("in", place, ordered=False), world)
        node.step(name, step).keyed("counts", count, key="word")
        plans.append(plan)
    world.into.append([{"word": "a"}])
    assert run_plan(plans[0], world.state, wait=0, runner=InProcess()).pending == 1
    for plan, rejected in zip(plans[1:], (1, 0), strict=True):
        retry(plan, state=world.state)
        assert run_plan(plan, world.state, wait=0, accept_changes=True).rejected == rejected
    assert world.states(plans[-1]) == {"a": 1}


@pytest.mark.rule("retry.changed")
def test_a_document_that_an_at_most_once_destination_has_is_not_processed_again(place: Path) -> None:
    """It would get it twice: what failed is rejected, until the step is put back."""
    world = PlanWorld.empty(place)
    world.put("a")
    for name, step, rejected in (("parse", away, 0), ("parse2", back, 1), ("parse", back, 0)):
        plan, node = begin(None, world)
        told = node.tee("told", world.out("told"), guarantee="at-most-once")
        told.step(name, step).destination("out", world.out())
        if world.root.exists():
            retry(plan, state=world.state)
        assert world.run(plan, wait=0, accept_changes=True).rejected == rejected
    assert [*world.out("told").arrived()] == [*world.out().arrived()] == ["a"]
