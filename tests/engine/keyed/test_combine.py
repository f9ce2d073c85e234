"""Combining nodes: one value for each key, and trees of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.destinations import Queue as IntoQueue
from ferryman.errors import PlanError
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Queue
from tests.support.invariants import states
from tests.support.plan_world import run_plan
from tests.support.tree import Recount, total, tree


def largest(key: str, values: list[int]) -> int:
    return max(values)


def combined(place: Path, combiner: Any, **options: Any) -> tuple[Plan, DurableQueue, DurableQueue]:
    plan = Plan("combined", version=1)
    node = plan.source("in", Queue("in", place)).combine("best", combiner, **{"key": "key", **options})
    node.destination("out", IntoQueue("out", place))
    return plan, DurableQueue("in", place), DurableQueue("out", place)


@pytest.mark.rule("keyed.combine")
def test_only_what_has_changed_is_exported(place: Path) -> None:
    plan, into, out = combined(place, largest, value="n")
    for numbers in ([3, 5, 4], [5, 1], [9]):
        into.append([{"key": "a", "n": n} for n in numbers])
        assert run_plan(plan, place / "state").exit == 0
    assert [m.body for m in out.read()] == [
        {"key": "a", "old": None, "new": 5},
        {"key": "a", "old": 5, "new": 9},
    ]
    assert plan.state("best", place / "state").get("a") == 9


def test_without_value_each_document_counts_one(place: Path) -> None:
    plan, into, _ = combined(place, total)
    into.append([{"key": "a"}, {"key": "a"}, {"key": "b"}])
    run_plan(plan, place / "state")
    assert states(place / "state" / "combined-v1", "best") == {"a": 2, "b": 1}


def test_a_document_without_the_value_is_rejected(place: Path) -> None:
    plan, into, _ = combined(place, total, value="n")
    into.append([{"key": "b", "n": 2}, {"key": "a"}])
    assert run_plan(plan, place / "state").exit == 3
    [row] = account.deliveries(place / "state" / "combined-v1", status="rejected")
    assert "no field 'n', which is to be its value" in row["message"]


@pytest.mark.parametrize(("combiner", "value"), [("sum", "n"), (total, 7)])
def test_what_cannot_combine_is_refused(place: Path, combiner: Any, value: Any) -> None:
    plan, _, _ = combined(place, combiner, value=value)
    with pytest.raises(PlanError, match="best:"):
        plan.check()


@pytest.mark.rule("keyed.chain")
def test_a_tree_of_counts_equals_a_recount(place: Path) -> None:
    """After each round, with counts that come back to nothing: each key is in its index exactly once."""
    plan, into, recount = tree(place), DurableQueue("in", place), Recount(14)
    for _ in range(2):
        into.append(recount.entries(60))
        assert run_plan(plan, place / "state").exit == 0
        recount.check(place)
