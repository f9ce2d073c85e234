"""A plan's picture shows every node and edge, and no secrets."""

from __future__ import annotations

import json
from typing import ClassVar

from ferryman import Effect, Plan
from ferryman.destinations import Destination
from ferryman.plan import picture
from ferryman.sources import Source


class Index(Destination):
    effect: ClassVar[Effect] = Effect.IDEMPOTENT

    def target(self) -> str:
        return "index://here"


def join(doc: object) -> object:
    return doc


def two_sources() -> Plan:
    plan = Plan("plays", version=1)
    a = plan.source("a", Source(prefix="a/"))
    b = plan.source("b", Source(detect="fingerprint"))
    plan.step("join", join, after=[a, b], timeout=2).destination("index", Index(), deletes=False)
    return plan


def test_a_tree_begins_at_each_source() -> None:
    """A node that two paths lead to is drawn once; the second path refers to it."""
    assert picture.text(two_sources()).splitlines() == [
        "plan plays, version 1",
        "",
        "a            source       Source, ids begin with a/",
        "└─ join      step         join, timeout 2 s",
        "   └─ index  destination  Index, index://here, at-least-once, 3 attempts, ignores deletes",
        "b            source       Source, detect=fingerprint",
        "└─ join      (above)",
    ]


def test_a_plan_that_is_refused_is_drawn_too() -> None:
    """Nodes in a cycle, which no source leads to, stand at the end with what they follow."""
    plan = Plan("bad")
    plan.step("a", join, after=["b"])
    plan.step("b", join, after=["a"])

    assert picture.text(plan).splitlines()[2:] == ["a  step  join; after b", "b  step  join; after a"]


def test_json_holds_every_node_in_order_of_making() -> None:
    """Programs get the nodes with their edges and options."""
    plan = two_sources()

    drawn = json.loads(json.dumps(picture.as_json(plan)))

    assert (drawn["plan"], drawn["version"], drawn["fingerprint"]) == ("plays", 1, plan.fingerprint)
    assert [(n["name"], n["kind"], n["after"]) for n in drawn["nodes"]] == [
        ("a", "source", []),
        ("b", "source", []),
        ("join", "step", ["a", "b"]),
        ("index", "destination", ["join"]),
    ]
    assert drawn["nodes"][3]["target"] == "index://here"
    assert drawn["nodes"][3]["guarantee"] == "at-least-once"
