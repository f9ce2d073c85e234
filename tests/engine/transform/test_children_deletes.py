"""Children: deletes that wait, are refused, or are confirmed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from ferryman.destinations import Outcome
from ferryman.document import Document
from tests.support import NOT_SOON_S
from tests.support.families import end, net, words
from tests.support.invariants import rows
from tests.support.plan_world import PlanWorld

__all__ = ["net"]


def test_deletes_wait_for_the_familys_upserts(net: PlanWorld) -> None:
    """While the destination is down neither is sent; then the upserts come first."""
    end(net.source().step("words", words), net)
    net.put("a", text="x y")
    net.run()
    net.out("out").answer = down
    net.put("a", text="y z")
    assert net.run(wait=0).exit == 4
    net.out("out").answer = None
    assert net.run().exit == 0
    said = [line["id"] if line["op"] == "upsert" else "-" + line["id"] for line in net.out("out").lines()]
    assert said[-1] == "-a#x"


def down(delivery: Any) -> Outcome:
    return Outcome.unavailable("down")


@pytest.mark.parametrize("later", ["x z", None])
def test_a_delete_that_was_refused_is_not_forgotten(net: PlanWorld, later: str | None) -> None:
    """The next version, or the end of the document, takes it up again; once it is confirmed nothing more is sent."""

    def refuse_deletes(delivery: Any) -> Outcome:
        return Outcome.permanent("no deletes today") if delivery.operation == "delete" else Outcome.ok()

    end(net.source().step("words", words), net)
    net.put("a", text="x y")
    net.run()
    net.out("out").answer = refuse_deletes
    net.put("a", text="x")
    assert net.run().failed == 1
    net.out("out").answer = None
    net.drop("a")
    if later:
        net.put("a", text=later)
    assert net.run().exit == 0
    assert net.arrived("out")["-a#y"] == 1
    net.drop("a")
    net.run()
    assert net.arrived("out")["-a#y"] == 1


def test_a_delete_that_waits_may_still_die(net: PlanWorld) -> None:
    """After a newer version it would belong to nobody: that version sends one of its own."""
    end(net.source().step("words", words), net, backoff=NOT_SOON_S)
    net.put("a", text="x y")
    net.run()
    net.out("out").answer = down
    net.put("a", text="x")
    assert net.run(wait=0).exit == 4
    net.put("a", text="x z")
    assert net.run(wait=0).exit == 4
    net.out("out").answer = None
    assert net.run(wait=0).exit == 0
    assert net.arrived("out") == {"a#x": 3, "a#y": 1, "-a#y": 2, "a#z": 1}


def test_each_member_is_of_its_own_family(net: PlanWorld) -> None:
    """Also where a task has as many rows for a destination as documents, but not one of each."""

    def one_has_all(doc: Document) -> Iterable[Document] | None:
        return None if doc.id == "a" else [doc, *words(doc)]

    end(net.source().step("step", one_has_all), net)
    net.put("a", text="other")
    net.put("b", text="x")
    assert net.run().exit == 0
    versions = {row["document"]: row["version"] for row in rows(net.root, "documents")}
    told = {line["id"]: (line["origin"], line["version"]) for line in net.out("out").lines()}
    assert told == {"b": ("b", versions["b"]), "b#x": ("b", versions["b"])}


@pytest.mark.rule("delete.given")
def test_a_confirmed_delete_is_not_repeated(net: PlanWorld) -> None:
    """A document comes back with fewer children, or is dropped then: what was taken out is out."""

    def split(doc: Document) -> Any:
        return None if doc.text() == "none" else words(doc)

    end(net.source().step("split", split), net)
    net.put("a", "b", text="x y")
    net.run()
    net.drop("a", "b")
    net.run()
    net.put("a", text="x")
    net.put("b", text="none")
    assert net.run().exit == 0
    assert net.arrived("out") == {"a#x": 2, "a#y": 1, "-a#x": 1, "-a#y": 1, "b#x": 1, "b#y": 1, "-b#x": 1, "-b#y": 1}
