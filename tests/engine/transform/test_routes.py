"""Routers: who gets what, by which way, and what a retry does not touch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ferryman import account
from ferryman.document import Document
from ferryman.routers import ByField, Duplicate, RoundRobin, Router
from tests.support.failing import failing
from tests.support.invariants import rows
from tests.support.plan_world import Interrupted, PlanWorld, Until


def kinds(net: PlanWorld, default: str | None = "other") -> Any:
    """docs → by-kind → comedy | tragedy | other, each with its destination."""
    kind = net.source().route("by-kind", ByField("kind", default=default))
    for name in ("comedy", "tragedy", "other"):
        kind.destination(name, net.out(name), backoff=0)
    return kind


@pytest.mark.rule("router.branches", "router.by-field", "router.untaken")
def test_a_document_takes_the_branch_that_its_field_names(net: PlanWorld) -> None:
    """Where it does not go it is DROPPED, so that every destination adds up."""
    kinds(net)
    net.put("a", kind="comedy")
    net.put("b", kind="tragedy")
    net.put("c", kind="farce")
    net.put("d")
    assert net.run().exit == 0
    assert net.arrived("comedy") == {"a": 1}
    assert net.arrived("tragedy") == {"b": 1}
    assert net.arrived("other") == {"c": 1, "d": 1}
    assert net.counts("comedy") == {"delivered": 1, "dropped": 3}
    assert net.events("a", "other") == ["DROPPED"]
    [event] = [e for e in account.history(net.root, "a", net.plan) if e["destination"] == "other"]
    assert event["message"] == "not its branch: router by-kind sent it to comedy"
    [event] = [e for e in account.history(net.root, "a", net.plan) if e["destination"] == "comedy"]
    assert event["branches"] == "by-kind=comedy"


@pytest.mark.rule("router.no-branch")
def test_what_matches_no_branch_is_an_error_of_that_document(net: PlanWorld) -> None:
    """Permanent, and of no other document."""
    kinds(net, default=None)
    net.put("a", kind="comedy")
    net.put("b", kind="farce")
    net.put("c", kind=["comedy"])
    net.put("d")
    summary = net.run()
    assert (summary.exit, summary.delivered, summary.rejected) == (3, 1, 9)
    [event, *_] = account.deliveries(net.root, destination="comedy", status="rejected", plan=net.plan)
    assert (
        "names none of the branches comedy, other, tragedy. Give ByField a mapping or a default=." in event["message"]
    )
    messages = {e["message"] for e in account.history(net.root, "d", net.plan)}
    assert messages == {
        "d: it has no field 'kind', by which it is routed. Set it in a step before, or give ByField a default=."
    }


@pytest.mark.rule("router.by-field")
def test_values_are_mapped_to_branches(net: PlanWorld) -> None:
    """Numbers and truth values too."""
    kind = net.source().route("by-year", ByField("year", {1599: "old", "new": "young", True: "young"}, default="old"))
    kind.destination("old", net.out("old"))
    kind.destination("young", net.out("young"))
    net.put("a", year=1599)
    net.put("b", year="new")
    net.put("c", year=True)
    net.put("d", year="young")
    net.put("e", year=7)
    net.run()
    assert net.arrived("old") == {"a": 1, "e": 1}
    assert net.arrived("young") == {"b": 1, "c": 1, "d": 1}


@pytest.mark.rule("child.gone")
def test_a_changed_field_moves_the_document(net: PlanWorld) -> None:
    """Deleted where it was, inserted where it is now; where it never was nothing happens."""
    kinds(net)
    net.put("a", kind="comedy")
    net.run()
    net.put("a", kind="other", text="two")
    assert net.run().exit == 0
    assert net.arrived("comedy") == {"a": 1, "-a": 1}
    assert net.arrived("other") == {"a": 1}
    assert net.arrived("tragedy") == {}
    assert net.counts("comedy") == {"deleted": 1, "dropped": 1}
    net.put("a", kind="comedy", text="three")
    net.run()
    assert net.arrived("comedy") == {"a": 2, "-a": 1}
    assert net.arrived("other") == {"a": 1, "-a": 1}


@pytest.mark.rule("delete.given")
def test_a_document_that_is_gone_is_deleted_only_where_it_was(net: PlanWorld) -> None:
    kinds(net)
    net.put("a", kind="comedy")
    net.put("b", kind="tragedy")
    net.run()
    net.drop("a")
    assert net.run().exit == 0
    assert net.arrived("comedy") == {"a": 1, "-a": 1}
    assert net.arrived("tragedy") == {"b": 1}
    assert net.arrived("other") == {}


@pytest.mark.rule("router.untaken")
def test_what_a_taken_branch_leads_to_as_well_is_not_dropped(net: PlanWorld) -> None:
    """Both branches come to one destination; only what lies on the other branch alone counts as DROPPED."""
    kind = net.source().route("by-kind", ByField("kind"))
    tees = [kind.tee(name, net.out(name)) for name in ("comedy", "tragedy")]
    net.plan.destination("all", net.out("all"), after=tees)
    net.put("a", kind="comedy")
    assert net.run().exit == 0
    assert (net.events("a", "all"), net.counts("all")) == (["INDEXED"], {"delivered": 1})
    assert (net.events("a", "comedy"), net.events("a", "tragedy")) == (["INDEXED"], ["DROPPED"])


@pytest.mark.rule("router.copies")
def test_copies_go_down_every_branch_and_are_apart(net: PlanWorld) -> None:
    """What one branch does to its copy, deep down too, the other does not see."""

    def shout(doc: Document) -> Document:
        doc["words"][0] = doc["words"][0].upper()
        doc["loud"] = True
        return doc

    twice = net.source().route("twice", Duplicate())
    twice.step("loud", shout).destination("one", net.out("one"))
    twice.destination("two", net.out("two"))
    net.put("a", words=["mild"])
    net.run()
    [one], [two] = net.out("one").lines(), net.out("two").lines()
    assert (one["fields"], one["route"]) == ({"words": ["MILD"], "loud": True}, "loud")
    assert (two["fields"], two["route"]) == ({"words": ["mild"]}, "two")


def diamond(net: PlanWorld, *steps: Callable[..., Any]) -> None:
    """docs → twice → left | right → join → out."""
    twice = net.source().route("twice", Duplicate())
    left = twice.step("left", steps[0] if steps else failing(0))
    right = twice.step("right", steps[1] if len(steps) > 1 else failing(0))
    net.plan.step("join", steps[2] if len(steps) > 2 else failing(0), after=[left, right])
    net.plan.destination("out", net.out("out"), after="join", backoff=0)


@pytest.mark.rule("router.routes")
def test_two_routes_to_one_destination_are_two_deliveries(net: PlanWorld) -> None:
    """With hashes of their own, in one wave."""
    diamond(net)
    net.put("a", "b")
    summary = net.run()
    assert (summary.delivered, summary.waves) == (4, 1)
    assert net.arrived("out") == {"a by left": 1, "a by right": 1, "b by left": 1, "b by right": 1}
    assert len({line["hash"] for line in net.out("out").lines()}) == 4
    net.drop("a")
    net.run()
    assert net.arrived("out")["-a by left"] == net.arrived("out")["-a by right"] == 1


@pytest.mark.rule("router.retry", "retry.way", "retry.others")
def test_a_retry_goes_only_by_the_route_that_failed(net: PlanWorld) -> None:
    """The other copy gets no new event and no second call."""
    diamond(net, failing(2, "a"), net.counting("right"))
    net.put("a", "b")
    summary = net.run()
    assert (summary.exit, summary.delivered) == (0, 4)
    assert net.arrived("out") == {"a by left": 1, "a by right": 1, "b by left": 1, "b by right": 1}
    assert net.calls("right") == {"a": 1, "b": 1}
    by_route = {
        route: [e["status"] for e in account.history(net.root, "a", net.plan) if e["route"] == route]
        for route in ("left", "right")
    }
    assert by_route == {"left": ["ERROR", "ERROR", "INDEXED"], "right": ["INDEXED"]}
    attempts = {line["route"]: line["attempt"] for line in net.out("out").lines() if line["id"] == "a"}
    assert attempts == {"left": 3, "right": 1}


@pytest.mark.rule("retry.below")
def test_a_failure_above_a_duplicator_is_one_of_both_routes(net: PlanWorld) -> None:
    """An attempt of every delivery below is spent."""
    below = net.source().step("early", failing(1)).route("twice", Duplicate())
    left, right = below.step("left", failing(0)), below.step("right", failing(0))
    net.plan.destination("out", net.out("out"), after=[left, right], backoff=0)
    net.put("a")
    assert net.run().delivered == 2
    history = [(e["route"], e["status"], e["attempt"]) for e in account.history(net.root, "a", net.plan)]
    assert sorted(history) == [
        ("left", "ERROR", 1), ("left", "INDEXED", 2), ("right", "ERROR", 1), ("right", "INDEXED", 2)
    ]  # fmt: skip


@pytest.mark.rule("retry.below")
def test_each_destination_has_its_own_number_of_attempts(net: PlanWorld) -> None:
    """One dies of an error above both, the other goes on; a person may open the dead one again, alone."""
    twice = net.source().step("early", failing(1)).route("twice", Duplicate())
    twice.destination("once", net.out("once"), attempts=1, backoff=0)
    twice.destination("often", net.out("often"), attempts=3, backoff=0)
    net.put("a")
    summary = net.run()
    assert (summary.exit, summary.failed, summary.delivered) == (3, 1, 1)
    assert net.events("a", "once") == ["DEAD"]
    assert net.events("a", "often") == ["ERROR", "INDEXED"]
    assert net.retry(destination="once").count == 1
    assert net.run().exit == 0
    assert net.arrived("once") == {"a by once": 1}
    assert net.arrived("often") == {"a by often": 1}
    assert net.events("a", "often") == ["ERROR", "INDEXED"]


@pytest.mark.rule("router.turns")
def test_round_robin_spreads_evenly(net: PlanWorld) -> None:
    """±1 a task, and tasks begin at different branches."""
    turns = net.source().route("turns", RoundRobin())
    for name in ("one", "two", "three"):
        turns.destination(name, net.out(name))
    net.put(*map(str, range(1000)))
    net.run()
    counts = [sum(net.arrived(name).values()) for name in ("one", "two", "three")]
    assert sum(counts) == 1000
    assert max(counts) - min(counts) <= 4  # as many as tasks


@pytest.mark.rule("router.same-branch")
def test_a_retry_below_round_robin_takes_the_branch_it_took(net: PlanWorld) -> None:
    """Not the next one's turn: what was chosen is kept."""
    turns = net.source().route("turns", RoundRobin())
    for name in ("one", "two"):
        turns.step(f"to-{name}", failing(1)).destination(name, net.out(name), backoff=0)
    net.put(*map(str, range(7)))
    assert net.run().exit == 0
    first = {
        e["document"]: e["branches"] for e in rows(net.root, "ledger") if e["status"] == "ERROR" and e["wave"] == 1
    }
    last = {e["document"]: e["branches"] for e in rows(net.root, "ledger") if e["status"] == "INDEXED"}
    assert first == last
    assert sum(net.arrived("one").values()) + sum(net.arrived("two").values()) == 7


@pytest.mark.rule("router.committed")
def test_what_was_committed_goes_its_way_after_a_kill(net: PlanWorld) -> None:
    """The router is not asked again: each document comes where the wave had it, once."""
    turns = net.source().route("turns", RoundRobin())
    for name in ("one", "two"):
        turns.destination(name, net.out(name))
    net.put(*map(str, range(9)))
    with pytest.raises(Interrupted):
        net.run(observer=Until(1, "deliver"), checked=False)
    chosen = {(r["document"], r["destination"]) for r in rows(net.root, "outbox")}
    assert net.run().exit == 0
    assert {(id, name) for name in ("one", "two") for id in net.arrived(name)} == chosen
    assert len(chosen) == 9


class Both(Router):
    copies = True

    def choose(self, document: Document) -> Sequence[str]:
        answer: Sequence[str] = document["go"]
        return answer


@pytest.mark.rule("router.own")
@pytest.mark.parametrize(
    ("go", "delivered", "says"),
    [
        (["one"], ["one"], ""),
        (["two", "one"], ["one", "two"], ""),
        ("three", ["three"], ""),
        ([], [], "chose no branch"),
        (["one", "one"], [], "chose a branch twice: one, one"),
        (["four"], [], "chose 'four', which is not one of its branches one, two, three"),
    ],
)
def test_a_router_of_ones_own_may_copy_to_some(net: PlanWorld, go: Any, delivered: list[str], says: str) -> None:
    """The others are dropped; what is no branch is this document's error."""
    both = net.source().route("both", Both())
    for name in ("one", "two", "three"):
        both.destination(name, net.out(name))
    net.put("a", go=go)
    net.run()
    assert [name for name in ("one", "two", "three") if net.arrived(name)] == delivered
    if says:
        assert all(says in e["message"] for e in account.history(net.root, "a", net.plan))


def test_a_router_that_raises_is_tried_again(net: PlanWorld) -> None:
    """As a step would be."""

    class Moody(Router):
        asked = itertools.count()

        def choose(self, document: Document) -> str:
            if next(self.asked) == 0:
                raise RuntimeError("in a mood")
            return "out"

    net.source().route("moody", Moody()).destination("out", net.out("out"), backoff=0)
    net.put("a")
    assert net.run().exit == 0
    first, _ = account.history(net.root, "a", net.plan)
    assert first["message"].startswith("router moody: RuntimeError: in a mood (")
