"""What becomes of documents that change, vanish or move, wherever they were given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Outcome
from ferryman.document import Document
from ferryman.engine.driver import check_plan_changes
from ferryman.engine.run import Run, Summary
from ferryman.observe import Silent
from ferryman.plan import Plan
from ferryman.routers import Duplicate
from ferryman.sources import Files, Memory
from ferryman.state.state import State, state_root
from ferryman.testing.inprocess import InProcess
from tests.support.invariants import check
from tests.support.plan_world import PlanWorld
from tests.support.recorder import Recorder


def broken(doc: Document) -> Document:
    if doc.text() == "one":
        doc["bad"] = 1j
    return doc


def refuse(delivery: Any) -> Outcome:
    return Outcome.permanent("refused") if delivery.text() == "one" else Outcome.ok()


@pytest.mark.rule("change.everywhere")
def test_a_changed_document_goes_to_all_its_destinations(net: PlanWorld) -> None:
    """Delivered, dead, refused and owed alike: the new version is due at each of them."""
    every = net.source().route("all", Duplicate())
    every.destination("fine", net.out("fine"))
    every.destination("dead", net.out("dead"))
    every.step("broken", broken).destination("refused", net.out("refused"))
    every.destination("owed", net.out("owed"))
    net.out("dead").answer = refuse
    net.out("owed").refuse = unreachable
    net.put("a")
    assert net.run(wait=0).exit == 4
    was = {name: list(net.counts(name)) for name in ("fine", "dead", "refused", "owed")}
    assert was == {"fine": ["delivered"], "dead": ["failed"], "refused": ["rejected"], "owed": ["pending"]}
    net.out("owed").refuse = None
    net.put("a", text="two")
    assert net.run().exit == 0
    for name in was:
        assert net.counts(name) == {"delivered": 1}, name
        assert net.out(name).lines()[-1]["text"] == "two"


def unreachable() -> None:
    raise ConnectionError("nobody listens")


@pytest.mark.rule("delete.no-steps")
def test_no_step_is_called_for_what_is_gone(net: PlanWorld) -> None:
    """Nor does a router choose; the delete goes where the document was given."""
    node = net.source().step("counted", net.counting("counted")).route("all", Duplicate())
    for name in ("one", "two"):
        node.step(f"to-{name}", net.counting(name)).destination(name, net.out(name))
    net.put("a", "b")
    net.run()
    net.drop("a")
    assert net.run().exit == 0
    assert net.arrived("one")["-a by to-one"] == net.arrived("two")["-a by to-two"] == 1
    assert [net.calls(name) for name in ("counted", "one", "two")] == [{"a": 1, "b": 1}] * 3


@pytest.mark.rule("delete.given", "delete.undelivered", "delete.order")
def test_what_is_still_owed_counts_as_given(net: PlanWorld) -> None:
    """It may have arrived for all we know: the delete is sent after it, there alone."""
    every = net.source().route("all", Duplicate())
    every.step("split", lambda doc: [doc, doc.child("k")]).destination("down", net.out("down"))
    every.step("none", lambda doc: None).destination("never", net.out("never"))
    net.out("down").refuse = unreachable
    net.put("a")
    net.run(wait=0)
    net.drop("a")
    assert net.run(wait=0).exit == 4
    net.out("down").refuse = None
    assert net.run().exit == 0
    arrived = net.out("down").arrived()
    assert (set(arrived[:2]), set(arrived[2:])) == ({"a", "a#k"}, {"-a", "-a#k"})
    assert net.out("never").lines() == []


@pytest.mark.rule("delete.guard", "change.content", "doc.prefix")
def test_what_a_source_does_if_it_is_not_told() -> None:
    """It goes by content, guards half of its documents, and puts nothing before its ids."""
    for source in (Files("/nowhere"), Memory([])):
        assert (source.detect, source.max_deleted, source.prefix) == ("content", 0.5, "")


def run(plan: Plan, state: Path) -> Summary:
    """With a look at what has changed of the plan."""
    plan.freeze()
    root = state_root(plan, state)
    with State.take(root, plan) as taken, check_plan_changes(taken, False):
        summary = Run(taken, InProcess(), Silent()).run()
    check(root, plan, summary)
    return summary


@pytest.mark.rule("doc.relative")
@pytest.mark.parametrize("detect", ["content", "fingerprint"])
def test_a_state_survives_a_move_of_the_root(place: Path, detect: Any) -> None:
    """The same files below another folder are the same documents: nothing is new, nothing is gone."""
    for name in ("histories/henryv.txt", "note.txt"):
        path = place / "here" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, (1e9, 1e9))  # the date of a file that is younger than two seconds is not trusted
    out = Recorder(place / "out.jsonl")

    def plan(root: Path) -> Plan:
        made = Plan("moves", version=1)
        made.source("files", Files(root, detect=detect)).destination("out", out)
        return made

    assert run(plan(place / "here"), place / "state").delivered == 2
    assert set(out.counted()) == {"histories/henryv.txt", "note.txt"}
    (place / "here").rename(place / "there")
    summary = run(plan(place / "there"), place / "state")
    assert (summary.waves, summary.exit, summary.messages) == (0, 0, [])
