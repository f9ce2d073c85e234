"""What ``plan check`` warns of."""

from __future__ import annotations

from typing import ClassVar

import pytest

from ferryman import Effect, Plan
from ferryman.destinations import Destination
from ferryman.routers import ByField, Duplicate
from tests.plan.plans import Index, same, source
from tests.support.processes import printed_always


@pytest.mark.rule("check.routes")
def test_two_routes_into_one_target_keyed_by_id() -> None:
    """All that meet there are named, in the plan's order; what is not keyed by id may be met."""
    plan = Plan("p")
    fork = plan.source("a", source()).route("fork", Duplicate())
    fork.tee("one", Index("index://x")).destination("two", Index("index://x"))
    fork.destination("three", Index("index://x"))
    fork.destination("four", Index("index://y"))

    assert plan.check() == [
        (
            "index://x: one document comes here by several routes (one and two and three) under one id, and the last "
            "one wins: give each route a target of its own, or give the copies children's ids."
        )
    ]


@pytest.mark.rule("check.routes")
def test_copies_that_meet_at_one_destination() -> None:
    """It has the name of its own target."""
    plan = Plan("p")
    fork = plan.source("a", source()).route("fork", Duplicate())
    plan.destination("index", Index(), after=[fork.step("b", same), fork.step("c", same)])

    [warning] = plan.check()
    assert warning.startswith("index: one document comes here by several routes (index)")


def test_one_of_several_ways_into_one_target() -> None:
    """A document takes one of them: nothing to say."""
    plan = Plan("p")
    fork = plan.source("a", source()).route("fork", ByField("k"))
    fork.destination("one", Index("index://x"))
    fork.destination("two", Index("index://x"))

    assert plan.check() == []


@pytest.mark.rule("check.prefixes")
def test_sources_without_distinct_prefixes() -> None:
    """Warned of where they come to one target keyed by id; not where each has its own, nor with distinct prefixes."""

    def plan(one: str, two: str, *, apart: bool = False) -> Plan:
        made = Plan("p")
        a, b = made.source("a", source(one)), made.source("b", source(two))
        if apart:
            a.destination("c", Index())
            b.destination("d", Index())
        else:
            made.destination("c", Index("index://x"), after=[a, b])
        return made

    (warning,) = plan("", "").check()
    assert warning == (
        "index://x: the sources a, b reach it without distinct prefixes, so their ids may conflict: "
        "give each a prefix=."
    )
    assert plan("a/", "b/").check() == []
    assert plan("", "", apart=True).check() == []


def test_a_destination_that_does_not_compare_sequences() -> None:
    """Unless it is transactional, which comes to the same."""

    class Notes(Destination):
        effect: ClassVar[Effect] = Effect.IDEMPOTENT

    class Table(Notes):
        transactional: ClassVar[bool] = True

    plan = Plan("p")
    fork = plan.source("a", source()).route("fork", Duplicate())
    fork.destination("notes", Notes())
    fork.destination("table", Table())

    [warning] = plan.check()
    assert warning.startswith("notes: Notes does not compare sequences")
    assert "compares_sequences = True" in warning


PROGRAM = """
from ferryman import Plan
from ferryman.routers import Duplicate
from tests.plan.plans import Index, source
plan = Plan("p")
fork = plan.source("a", source()).route("fork", Duplicate())
for n in range(4):
    for at in "xyz":
        fork.destination(f"{at}{n}", Index(f"index://{at}"))
print(plan.check())
"""


def test_warnings_are_the_same_in_every_process() -> None:
    """No order of sets comes through."""
    assert printed_always(PROGRAM).count("several routes") == 3
