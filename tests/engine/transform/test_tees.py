"""Tees, and what a retry repeats of the steps above and below them."""

from __future__ import annotations

from typing import Any

import pytest

from ferryman.destinations import Effect
from ferryman.document import Document
from ferryman.plan import StepNode
from tests.support.failing import failing
from tests.support.invariants import rows
from tests.support.plan_world import PlanWorld


@pytest.mark.rule("tee.unchanged")
def test_a_tap_gets_the_document_as_it_is_there(net: PlanWorld) -> None:
    """It goes on whether or not it is delivered to the tee, whose failure is its own."""

    def later(doc: Document) -> Document:
        doc["later"] = True
        doc.raw = b"changed"
        return doc

    tee = net.source().tee("seen", net.out("seen"), attempts=1)
    tee.step("later", later).destination("out", net.out("out"))
    net.out("seen").answer = refuse_b
    net.put("a", "b")
    summary = net.run()
    assert (summary.exit, summary.delivered, summary.failed) == (3, 3, 1)
    assert {line["id"]: (line["fields"], line["text"]) for line in net.out("seen").lines()} == {
        "a": ({}, "one"),
        "b": ({}, "one"),
    }
    assert {line["id"]: line["fields"] for line in net.out("out").lines()} == {
        "a": {"later": True},
        "b": {"later": True},
    }
    assert net.counts("seen") == {"delivered": 1, "failed": 1}


def refuse_b(delivery: Any) -> Any:
    from ferryman.destinations import Outcome

    return Outcome.permanent("no") if delivery.id == "b" else Outcome.ok()


@pytest.mark.rule("effect.potent")
def test_a_potent_tap_is_not_repeated_with_the_steps_below_it(net: PlanWorld) -> None:
    """Nor with those above it, which run again for what failed below."""
    net.out("mail").effect = Effect.POTENT  # type: ignore[misc]
    tee = net.source().step("above", net.counting("above")).tee("mail", net.out("mail"))
    tee.step("below", failing(2)).destination("out", net.out("out"), backoff=0)
    net.put("a")
    assert net.run().exit == 0
    assert net.calls("above") == {"a": 3}
    assert net.arrived("mail") == {"a": 1}


@pytest.mark.rule("effect.safe", "effect.idempotent")
@pytest.mark.parametrize("effect", [None, Effect.IDEMPOTENT])
def test_steps_are_not_tracked(net: PlanWorld, effect: Effect | None) -> None:
    """A retry calls them again; the ledger speaks of destinations only."""
    options = {} if effect is None else {"effect": effect}
    node = net.source().step("first", net.counting("first"), **options)
    node.step("late", failing(1)).destination("out", net.out("out"), backoff=0)
    net.put("a")
    assert net.run().exit == 0
    assert net.calls("first") == {"a": 2}
    assert {e["destination"] for e in rows(net.root, "ledger")} == {"out"}
    assert {n.effect for n in net.plan.nodes if isinstance(n, StepNode) and n.name == "first"} == {
        effect or Effect.SAFE
    }


@pytest.mark.rule("router.retry", "retry.others")
def test_a_tap_that_was_delivered_is_not_called_again(net: PlanWorld) -> None:
    """A step below it fails and is tried again."""
    tee = net.source().tee("seen", net.out("seen"))
    tee.step("below", failing(2)).destination("out", net.out("out"), backoff=0)
    net.put("a")
    assert net.run().exit == 0
    assert net.arrived("seen") == {"a": 1}
    assert net.events("a", "seen") == ["INDEXED"]
    assert net.events("a", "out") == ["ERROR", "ERROR", "INDEXED"]
