"""A plan's fingerprint changes when its routers choose otherwise, and with nothing else of theirs."""

from __future__ import annotations

import pytest

from ferryman import Document, Plan
from ferryman.destinations import Null
from ferryman.routers import ByField, Duplicate, RoundRobin, Router
from ferryman.sources import Memory
from tests.support.processes import printed_always


def fingerprint(router: Router) -> str:
    plan = Plan("plays")
    fork = plan.source("a", Memory([])).route("fork", router)
    fork.destination("one", Null())
    fork.destination("two", Null())
    return plan.fingerprint


class BySize(Router):
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._seen = 0

    def choose(self, document: Document) -> str:
        self._seen += 1
        return "one" if len(document.raw or b"") > self.limit else "two"


class Slotted(Router):
    __slots__ = ("limit",)

    def __init__(self, limit: int) -> None:
        self.limit = limit


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ByField("kind"), ByField("genre")),
        (ByField("kind"), ByField("kind", default="one")),
        (ByField("kind", default="one"), ByField("kind", default="two")),
        (ByField("kind", {"a": "one"}), ByField("kind", {"a": "two"})),
        (ByField("kind", {"1": "one"}), ByField("kind", {1: "one"})),
        (RoundRobin(), RoundRobin(on_unequal="error")),
        (RoundRobin(), Duplicate()),
        (BySize(1), BySize(2)),
        (Slotted(1), Slotted(2)),
    ],
    ids=["field", "a default", "default", "mapping", "type of a key", "on_unequal", "class", "own", "slots"],
)
def test_options_count(one: Router, other: Router) -> None:
    """Plans whose routers choose otherwise are different plans."""
    assert fingerprint(one) != fingerprint(other)


def test_equal_options_are_one_fingerprint() -> None:
    """The order of a mapping says nothing; nor does what a router keeps for itself while it runs."""
    assert fingerprint(ByField("kind", {"a": "one", "b": "two"})) == fingerprint(
        ByField("kind", {"b": "two", "a": "one"})
    )
    used = BySize(1)
    used.choose(Document("a"))
    assert fingerprint(used) == fingerprint(BySize(1))
    opened = ByField("kind")
    opened.open(["one", "two"], 0)
    assert fingerprint(opened) == fingerprint(ByField("kind"))


PROGRAM = """
from ferryman.routers import Router
from tests.plan.test_router_fingerprint import fingerprint

class Strange(Router):
    def __init__(self):
        self.words, self.thing, self.key, self.most = {"a", "b", "c"}, object(), lambda d: d["x"], frozenset("xyz")

print(fingerprint(Strange()))
"""


def test_it_is_the_same_in_every_process() -> None:
    """Sets, functions and objects without a text of their own are told without their order or address."""
    assert len(printed_always(PROGRAM).strip()) == 32
