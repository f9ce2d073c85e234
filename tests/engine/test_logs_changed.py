"""Plans over queues that change between two runs: the code of a step, and which queues are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.engine import driver
from ferryman.engine.run import Run
from ferryman.errors import PlanChanged, TransientError
from ferryman.operations import retry
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Queue
from ferryman.state.state import State, state_root
from ferryman.testing.inprocess import InProcess
from tests.support.invariants import check
from tests.support.plan_world import Watch, run_plan


def put(place: Path, name: str, *numbers: int) -> None:
    DurableQueue(name, place).append([{"n": n} for n in numbers])


def numbers(place: Path) -> list[int]:
    return [m.body["n"] for m in DurableQueue("out", place).read(limit=1000)]


def worked(place: Path, step: Any, **source: Any) -> Plan:
    plan = Plan("pipe", version=1)
    node = plan.source("from_in", Queue("in", place, **source)).step("work", step)
    node.destination("to_out", ToQueue("out", place), backoff=3600)
    return plan


def old(doc: Document) -> Document:
    if doc["n"] == 2:
        raise TransientError("not now")
    return doc


def new(doc: Document) -> Document:
    doc["n"] *= 10
    return doc


@pytest.mark.rule("queue.new-code")
@pytest.mark.parametrize("ordered", [True, False])
def test_new_code_completes_what_the_old_one_left(place: Path, ordered: bool) -> None:
    """What had succeeded stays as it was; what waits is the new code's."""
    put(place, "in", 1, 2, 3)
    plan = worked(place, old, ordered=ordered)
    assert run_plan(plan, place / "state").exit == 4
    assert numbers(place) == ([1] if ordered else [1, 3])
    plan = worked(place, new, ordered=ordered)
    if not ordered:
        retry(plan, state=place / "state", status="pending")  # it is due in an hour
    assert run_plan(plan, place / "state").exit == 0
    assert numbers(place) == ([1, 20, 30] if ordered else [1, 3, 20])


def reading(place: Path, *names: str) -> Plan:
    plan = Plan("both", version=1)
    sources = [plan.source(f"from_{name}", Queue(name, place)) for name in names]
    plan.destination("to_out", ToQueue("out", place), after=sources)
    return plan


def run(place: Path, plan: Plan, *, accept_changes: bool = True) -> list[str]:
    """What it says."""
    plan.freeze()
    root = state_root(plan, place / "state")
    with (
        State.take(root, plan) as state,
        driver.explain_errors(state),
        driver.check_plan_changes(state, accept_changes),
    ):
        summary = Run(state, InProcess(), Watch()).run()
    check(root, plan, summary)
    return summary.messages


@pytest.mark.rule("queue.sources-changed")
def test_queues_are_added_and_removed(place: Path) -> None:
    """It is said; the others go on where they were, and so does one that comes back."""
    put(place, "a", 1, 2)
    put(place, "b", 11, 12)
    run(place, reading(place, "a"))
    put(place, "a", 3)
    with pytest.raises(PlanChanged):
        run(place, reading(place, "a", "b"), accept_changes=False)
    said = run(place, reading(place, "a", "b"))
    assert any(message.startswith("source from_b is new") for message in said), said
    assert numbers(place) == [1, 2, 3, 11, 12]
    put(place, "a", 4)
    put(place, "b", 13)
    said = run(place, reading(place, "b"))
    assert any(message.startswith("source from_a was removed") for message in said), said
    assert numbers(place)[5:] == [13]
    run(place, reading(place, "a", "b"))
    assert numbers(place)[6:] == [4]
    plan = reading(place, "a", "b")
    sources = account.status(state_root(plan, place / "state"), plan)["sources"]
    assert {name: counts["positions"] for name, counts in sources.items()} == {"from_a": {"a": 5}, "from_b": {"b": 4}}


@pytest.mark.rule("queue.sources-changed")
def test_a_source_reads_another_queue(place: Path) -> None:
    """Each queue has its own position, to which the plan comes back; what it reads last is said."""

    def naming(queue: str) -> Plan:
        plan = Plan("one")
        plan.source("from", Queue(queue, place)).destination("to_out", ToQueue("out", place), backoff=0)
        return plan

    put(place, "a", 1, 2)
    put(place, "b", 11, 12)
    assert run(place, naming("a")) == []
    [said] = run(place, naming("b"))
    assert said.startswith(f"source from: {place}/b is not what was read before: ")
    put(place, "a", 3)
    [said] = run(place, naming("a"))
    assert said.endswith("is not what was read last, but what was read before that; it is read on from there")
    assert numbers(place) == [1, 2, 11, 12, 3]


@pytest.mark.rule("queue.sources-changed")
def test_a_join_gets_and_loses_an_input(place: Path) -> None:
    """The others go on where they were; the new one is read from its beginning."""

    def added(docs: dict[str, Document]) -> dict[str, int]:
        return {"n": sum(doc["n"] for doc in docs.values())}

    def joining(*names: str) -> Plan:
        plan = Plan("joins")
        inputs = {name: plan.source(f"from_{name}", Queue(name, place)) for name in names}
        plan.join("sum", added, inputs).destination("to_out", ToQueue("out", place), backoff=0)
        return plan

    for name, first in (("a", 1), ("b", 10), ("c", 100)):
        put(place, name, first, 2 * first)
    run(place, joining("a", "b"))
    put(place, "a", 3)
    put(place, "b", 30)
    run(place, joining("a", "b", "c"))
    put(place, "a", 4)
    put(place, "b", 40)
    run(place, joining("a", "b"))
    assert numbers(place) == [11, 22, 133, 44]
