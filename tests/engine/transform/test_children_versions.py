"""Children: what a new version replaces, keeps and deletes of the old one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from ferryman import account
from ferryman.document import Document
from ferryman.errors import PermanentError, TransientError
from ferryman.routers import ByField, Duplicate, Router
from tests.support import NOT_SOON_S
from tests.support.failing import failing
from tests.support.families import end, letters, net, words
from tests.support.plan_world import PlanWorld
from tests.support.tiers import sampled

__all__ = ["net"]


@pytest.mark.rule("child.gone", "delete.given")
def test_children_that_a_new_version_has_not_are_deleted(net: PlanWorld) -> None:
    """After the upserts, at every destination that had them; grandchildren too."""
    twice = net.source().step("words", words).route("twice", Duplicate())
    end(twice.step("letters", letters), net, "deep")
    end(twice, net, "flat")
    net.put("a", text="to be")
    net.run()
    net.put("a", text="be or")
    assert net.run().exit == 0
    flat = net.out("flat").arrived()
    assert Counter(flat[:2]) == {"a#to": 1, "a#be": 1}
    assert Counter(flat[2:4]) == {"a#be": 1, "a#or": 1}
    assert flat[4:] == ["-a#to"]
    deep = net.out("deep").arrived()
    assert Counter(deep[12:]) == {"-a#to": 1, "-a#to#0": 1, "-a#to#1": 1}
    assert set(deep[6:12]) == {"a#be", "a#be#0", "a#be#1", "a#or", "a#or#0", "a#or#1"}
    net.drop("a")
    net.run()
    assert Counter(net.out("flat").arrived()[5:]) == {"-a#be": 1, "-a#or": 1}


def test_a_destination_that_keeps_gets_no_deletes(net: PlanWorld) -> None:
    """It says so for each child."""
    end(net.source().step("words", words), net, deletes=False)
    net.put("a", text="to be")
    net.run()
    net.put("a", text="be")
    assert net.run().exit == 0
    assert net.arrived("out") == {"a#to": 1, "a#be": 2}
    assert net.events("a#to", "out") == ["INDEXED", "-DROPPED"]


@pytest.mark.rule("child.kept")
def test_what_failed_keeps_its_old_version(net: PlanWorld) -> None:
    """Nothing is deleted for which the new version may still come; once it has come, what it has not is."""

    def split(doc: Document) -> Iterable[Document]:
        return words(doc)

    end(net.source().step("early", failing(1, "a")).step("split", split), net)
    net.put("a", text="x")
    net.run()
    assert net.arrived("out") == {"a#x": 1}
    net.plan = _fresh(net, failing(1, "a"))
    net.put("a", text="y z")
    net.run(wait=0)
    assert net.arrived("out") == {"a#x": 1}
    assert net.retry().count == 1
    assert net.run().exit == 0
    assert net.arrived("out") == {"a#x": 1, "a#y": 1, "a#z": 1, "-a#x": 1}


def _fresh(net: PlanWorld, early: Callable[[Document], Document]) -> Any:
    """The plan of ``test_what_failed_keeps_its_old_version``, its calls not counted yet."""
    from ferryman.plan import Plan
    from ferryman.sources import Memory

    plan = Plan("network", version=1)
    source = plan.source("docs", Memory(net.documents, max_deleted=1.0))
    end(source.step("early", early).step("split", words), net, backoff=NOT_SOON_S)
    return plan


@pytest.mark.rule("child.kept")
def test_a_document_that_ends_as_error_keeps_its_old_children(net: PlanWorld) -> None:
    """ERROR_DOC: the new version is bad, the old one stays."""

    def picky(doc: Document) -> Any:
        if doc.text() == "bad":
            raise PermanentError("bad")
        return words(doc)

    end(net.source().step("picky", picky), net)
    net.put("a", text="x y")
    net.run()
    net.put("a", text="bad")
    assert net.run().exit == 3
    net.put("a", text="x")
    assert net.run().exit == 0
    assert net.arrived("out") == {"a#x": 2, "a#y": 1, "-a#y": 1}


@pytest.mark.rule("child.gone")
def test_children_change_branches(net: PlanWorld) -> None:
    """Deleted at one destination, inserted at the other; the same target by another node gets no delete."""
    kind = net.source().step("words", words).route("by-first", ByField("first", default="rest"))
    end(kind, net, "x")
    end(kind, net, "rest")

    net.put("a", text="xa yb")
    net.run()
    assert (set(net.arrived("x")), set(net.arrived("rest"))) == ({"a#xa"}, {"a#yb"})
    net.put("a", text="yb xc")
    net.run()
    assert net.arrived("x") == {"a#xa": 1, "-a#xa": 1, "a#xc": 1}
    assert net.arrived("rest") == {"a#yb": 2}


@pytest.mark.rule("child.replaced")
def test_one_target_by_another_way_is_replaced_not_deleted(net: PlanWorld) -> None:
    """Two nodes, one physical place: the delete would take out what the upsert put there."""
    left, right = net.out("left"), net.out("right")
    left.place = right.place = "one place"
    kind = net.source().route("by-kind", ByField("kind"))
    end(kind, net, "left")
    end(kind, net, "right")
    net.put("a", kind="left")
    net.run()
    net.put("a", kind="right")
    assert net.run().exit == 0
    assert net.arrived("left") == {"a": 1}
    assert net.arrived("right") == {"a": 1}
    assert sorted(net.events("a", "left")) == ["-DROPPED", "DROPPED", "INDEXED"]
    net.drop("a")
    net.run()
    assert net.arrived("right")["-a"] == 1


def by_route(net: PlanWorld, step: Callable[[Document], Document]) -> PlanWorld:
    """left | right, which make copies → one destination."""
    fork = net.source().route("fork", Either())
    sides = [fork.step("left", lambda doc: doc), fork.step("right", step)]
    net.plan.destination("right-out", net.out("right-out"), after=sides, backoff=NOT_SOON_S)
    return net


def by_node(net: PlanWorld, step: Callable[[Document], Document]) -> PlanWorld:
    """left → a destination, right → another one, in one place."""
    fork = net.source().route("fork", Either())
    for out in (net.out("left-out"), net.out("right-out")):
        out.place = "one place"
    fork.step("left", lambda doc: doc).destination("left-out", net.out("left-out"), backoff=NOT_SOON_S)
    fork.step("right", step).destination("right-out", net.out("right-out"), backoff=NOT_SOON_S)
    return net


@pytest.mark.rule("child.kept", "child.replaced")
@pytest.mark.parametrize("end", ["made", "dropped", "dead"])
@pytest.mark.parametrize("build", sampled([by_route, by_node], 2))
def test_the_old_one_stays_until_the_new_one_comes_by_another_way(
    net: PlanWorld, build: Callable[..., PlanWorld], end: str
) -> None:
    """While it is owed nothing is deleted there; then it is replaced, or deleted if it will not come."""
    mark = net.folder / "mark"
    mark.write_text("fail")

    def step(doc: Document) -> Document | None:
        if mark.read_text() == "fail":
            raise TransientError("not yet")
        if mark.read_text() == "dead":
            raise PermanentError("never")
        return doc if mark.read_text() == "made" else None

    build(net, step)
    net.put("a", text="left")
    net.run()
    net.put("a", text="right")
    assert net.run(wait=0).exit == 4
    mark.write_text(end)
    assert sum(n for name in ("left-out", "right-out") for id, n in net.arrived(name).items() if id[0] == "-") == 0
    assert net.retry().count == 1
    net.run()
    gone = sum(n for name in ("left-out", "right-out") for id, n in net.arrived(name).items() if id[0] == "-")
    assert gone == (1 if end == "dropped" else 0)
    assert net.arrived("right-out")["a by right"] == (1 if end == "made" else 0)
    net.drop("a")
    assert net.run().exit == 0
    gone = sum(n for name in ("left-out", "right-out") for id, n in net.arrived(name).items() if id[0] == "-")
    assert gone == 1


@pytest.mark.rule("child.kept")
def test_copies_in_one_place_are_cleaned_up_when_both_are_through(net: PlanWorld) -> None:
    """What the one copy brought is not taken for old when the other one is tried again."""
    left, right = net.out("left"), net.out("right")
    left.place = right.place = "one place"
    mark = net.folder / "mark"

    def late(doc: Document) -> Document:
        if mark.exists():
            raise TransientError("not yet")
        return doc

    fork = net.source().route("fork", Duplicate())
    end(fork.step("words", words), net, "left")
    end(fork.step("late", late).step("more-words", words), net, "right", backoff=NOT_SOON_S)
    net.put("a", text="x y")
    net.run()
    mark.touch()
    net.put("a", text="y z")
    net.run(wait=0)
    mark.unlink()
    assert left.arrived()[2:] == ["a#y", "a#z"]
    net.retry()
    assert net.run().exit == 0
    assert (left.arrived()[4:], right.arrived()[2:]) == ([], ["a#y", "a#z", "-a#x"])
    net.drop("a")
    net.run()
    assert Counter(left.arrived()[4:]) == Counter(right.arrived()[5:]) == {"-a#y": 1, "-a#z": 1}


@pytest.mark.rule("child.after")
def test_a_familys_deletes_are_in_the_wave_of_its_upserts(net: PlanWorld) -> None:
    """And come after them, by their sequences too."""
    end(net.source().step("words", words), net)
    net.put("a", text="x y")
    net.run()
    net.out("out").forget()
    net.put("a", text="y z")
    assert net.run().waves == 1
    *upserts, delete = net.out("out").lines()
    assert ({line["id"] for line in upserts}, delete["id"], delete["op"]) == ({"a#y", "a#z"}, "a#x", "delete")
    assert delete["seq"] > max(line["seq"] for line in upserts)
    assert {e["wave"] for e in account.history(net.root, "a", net.plan)[-3:]} == {2}


class Either(Router):
    copies = True

    def choose(self, document: Document) -> str:
        return document.text()


@pytest.mark.rule("child.replaced")
def test_one_target_by_another_route_is_replaced_not_deleted(net: PlanWorld) -> None:
    """One destination below two branches that make copies: the new version comes by the other one."""
    fork = net.source().route("fork", Either())
    sides = [fork.step("left", lambda doc: doc), fork.step("right", lambda doc: doc)]
    net.plan.destination("out", net.out("out"), after=sides)
    net.put("a", text="left")
    net.run()
    net.put("a", text="right")
    assert net.run().exit == 0
    assert net.arrived("out") == {"a by left": 1, "a by right": 1}
    net.drop("a")
    net.run()
    assert net.arrived("out")["-a by right"] == 1
