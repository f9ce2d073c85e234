"""Two sources whose documents have the same ids at one destination keyed by id: the later one is refused, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.destinations.base import Outcome
from ferryman.operations import retry
from ferryman.plan import Plan
from ferryman.state.state import state_root
from tests.support.plan_world import PlanWorld


def build_two(world: PlanWorld, prefix: str = "", detect: str = "content") -> Plan:
    """Build plan ``two``: sources ``left`` and ``right`` (lists in memory), both to ``out``."""
    out = world.out()
    out.keyed_by_id = True
    world.plan = Plan("two", version=1)
    left = world.source("left", max_deleted=1, detect=detect)
    right = world.source("right", max_deleted=1, prefix=prefix, detect=detect)
    return world.plan.destination("out", out, after=[left, right]).plan


def statuses(world: PlanWorld, source: str) -> dict[str, str]:
    """Document of a source -> status now."""
    return {row["document"]: row["status"] for row in world.deliveries(source=source)}


def doc(id: str, text: str = "one") -> dict[str, Any]:
    return {"id": id, "raw": text.encode()}


@pytest.fixture
def two(place: Path) -> PlanWorld:
    return PlanWorld(place, build_two).build()


@pytest.mark.rule("doc.clash")
def test_of_two_new_ones_the_later_source_is_refused(two: PlanWorld) -> None:
    """By the order of the plan; all others are delivered, and nothing is asked twice."""
    two.listed["left"] += [doc("a"), doc("b")]
    two.listed["right"] += [doc("b", "two"), doc("c")]
    summary = two.run()
    assert (summary.delivered, summary.rejected, summary.exit) == (3, 1, 3)
    assert statuses(two, "left") == {"a": "INDEXED", "b": "INDEXED"}
    assert statuses(two, "right") == {"b": "ERROR_DOC", "c": "INDEXED"}
    [row] = account.deliveries(state_root(two.plan, two.state), status="rejected", plan=two.plan)
    assert row["message"].startswith("its id is taken: source left sends a document of this id to the same destination")
    assert two.out().counted() == {"a": 1, "b": 1, "c": 1}
    again = two.run()
    assert (again.waves, again.rejected) == (0, 1)


@pytest.mark.rule("doc.clash")
@pytest.mark.parametrize("detect", ["content", "fingerprint"])
def test_who_was_there_first_keeps_the_id(place: Path, detect: str) -> None:
    """Also against a source that the plan names before it; changes go on to be delivered."""
    two = PlanWorld(place, build_two).build(detect=detect)
    two.listed["right"] += [doc("b", "two")]
    two.run()
    two.listed["left"] += [doc("b")]
    two.listed["right"][0] = doc("b", "three")
    assert two.run().delivered == 1
    assert statuses(two, "left") == {"b": "ERROR_DOC"}
    assert statuses(two, "right") == {"b": "INDEXED"}
    assert two.run().waves == 0


def test_the_other_one_follows_when_the_first_is_gone(two: PlanWorld) -> None:
    """In the scan after: the delete goes first."""
    two.listed["left"] += [doc("b")]
    two.listed["right"] += [doc("b", "two")]
    two.run()
    two.listed["left"].clear()
    two.run()
    assert statuses(two, "right") == {"b": "ERROR_DOC"}
    assert two.run().delivered == 1
    assert statuses(two, "right") == {"b": "INDEXED"}
    assert [line["op"] for line in two.out().lines()] == ["upsert", "delete", "upsert"]


@pytest.mark.rule("doc.clash")
def test_the_other_one_waits_for_the_delete_of_the_first(two: PlanWorld) -> None:
    """A destination that does not compare sequences would remove what it got in the meantime."""
    two.put("b", source="left")
    two.run()
    two.out().answer = lambda d: Outcome.transient("locked") if d.operation == "delete" else Outcome.ok()
    two.drop("b", source="left")
    two.put("b", source="right", text="two")
    for _ in range(2):
        two.run(wait=0)
        assert statuses(two, "right") == {"b": "ERROR_DOC"}
    two.out().answer = None
    retry(two.plan, state=two.state)
    two.run()
    assert two.run().exit == 0
    assert two.out().arrived() == ["b", "-b", "b"]


def test_a_retry_of_a_clash_ends_as_it_did(two: PlanWorld) -> None:
    """A person may ask again, by RESTART or by FORCE: the id is still taken, and nothing is called for it."""
    two.listed["left"] += [doc("b")]
    two.listed["right"] += [doc("b", "two")]
    two.run()
    state = state_root(two.plan, two.state)
    for force in (False, True):
        retry(two.plan, state=two.state, source="right", force=force)
        assert (two.run().rejected, two.run().waves) == (1, 0)
    told = [e["status"] for e in account.history(state, "b", two.plan) if e["source"] == "right"]
    assert told == ["ERROR_DOC", "RESTART", "ERROR_DOC", "FORCE", "ERROR_DOC"]
    assert two.out().counted() == {"b": 1}


@pytest.mark.rule("doc.prefix")
def test_a_prefix_keeps_them_apart(place: Path) -> None:
    """As ``plan check`` says."""
    two = PlanWorld(place, build_two).build(prefix="right/")
    two.listed["left"] += [doc("b")]
    two.listed["right"] += [doc("b", "two")]
    assert two.run().delivered == 2


@pytest.mark.rule("doc.two-sources")
def test_a_destination_that_is_not_keyed_takes_both(two: PlanWorld) -> None:
    """Two sources may read the same files: they are different documents, and a log of deliveries holds both."""
    two.out().keyed_by_id = False
    two.listed["left"] += [doc("b")]
    two.listed["right"] += [doc("b")]
    summary = two.run()
    assert (summary.delivered, summary.exit) == (2, 0)
    assert statuses(two, "left") == statuses(two, "right") == {"b": "INDEXED"}
    assert "prefix" not in " ".join(two.plan.check())
