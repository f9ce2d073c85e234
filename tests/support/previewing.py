"""Plans, states and documents to preview, and what a preview and a run say of them."""

from __future__ import annotations

from typing import Any

import pytest

from ferryman.destinations import Outcome
from ferryman.document import Document
from ferryman.engine.preview import Preview
from ferryman.errors import Dropped, PermanentError, TransientError
from ferryman.state.state import State
from tests.support import NOT_SOON_S
from tests.support.invariants import rows
from tests.support.plan_world import Interrupted, PlanWorld, Until
from tests.support.previewed import previewed


def look(net: PlanWorld, **options: Any) -> Preview:
    return previewed(net.plan, net.state, **options)


def ids(found: Preview) -> list[str]:
    return [each["document"] for each in found.documents]


def with_reasons(found: Preview) -> dict[str, str]:
    return {each["document"]: each["reason"] for each in found.documents}


def refusing(delivery: Any) -> Outcome:
    """Each kind of row that can stay in an outbox."""
    match delivery.id:
        case "dead":
            return Outcome.permanent("no")
        case "busy":
            return Outcome.transient("busy")
        case _:
            return Outcome.ok()


def moody(doc: Document) -> Document:
    if doc.id == "failing":
        raise TransientError("not yet")
    if doc.id == "bad":
        raise PermanentError("bad")
    if doc.id == "let-go":
        raise Dropped("let go")
    return doc


ALL = ("a", "b", "c", "dead", "busy", "failing", "bad", "let-go")


def filled(net: PlanWorld) -> None:
    net.source().step("moody", moody).destination("out", net.out("out"), backoff=NOT_SOON_S)
    net.out("out").answer = refusing
    net.put(*ALL)


def changed(net: PlanWorld) -> None:
    """One of each kind of change."""
    net.put("a", text="two")
    net.drop("b")
    net.put("new")


def settled(net: PlanWorld) -> None:
    net.run(wait=0)
    changed(net)


def with_requests(net: PlanWorld) -> None:
    """Of people, which no run has taken up."""
    settled(net)
    with State.take(net.root, net.plan):
        assert net.retry(force=True, document="a").queued
        assert net.retry().queued


def killed_after_commit(net: PlanWorld) -> None:
    settled(net)
    with pytest.raises(Interrupted):
        net.run(wait=0, observer=Until(2, "deliver"), checked=False)


def some_fail(doc: Document) -> Document | None:
    """By content alone, so that every try of it ends the same way."""
    number = len(doc.text()) + len(doc.id)
    if number % 7 == 0:
        raise TransientError("a bad moment")
    if number % 11 == 0:
        raise PermanentError("a bad document")
    if number % 5 == 0:
        return None
    doc["length"] = len(doc.text())
    return doc


_SAME = ("source", "document", "parent", "origin", "version", "revision", "operation", "route", "branches",
         "destination", "delivery_hash", "status", "message", "attempt")  # fmt: skip


def promised(found: Preview) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """(deliveries, events) of a preview."""
    deliveries, events = [], []
    for name, expected in found.destinations.items():
        for d in expected.gets:
            deliveries.append(
                (name, d["document"], d["parent"], d["origin"], d["source"], d["version"], d["operation"], d["route"],
                 d["delivery_hash"], d["attempt"], str(d["fields"] or {}), d["text"] or "")
            )  # fmt: skip
        for e in [*expected.dropped, *expected.refused, *expected.errors]:
            events.append(tuple({**e, "destination": name}[column] for column in _SAME))
    return sorted(deliveries, key=str), sorted(events, key=str)


def done(net: PlanWorld, since: int) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """(deliveries, events of steps) of the runs after this wave."""
    events = [
        tuple(e[column] for column in _SAME)
        for e in rows(net.root, "ledger")
        if e["wave"] > since and e["ordinal"] == 1
    ]
    sent = {e["delivery_hash"] for e in rows(net.root, "ledger") if e["wave"] > since and e["ordinal"] == 2}
    deliveries = [
        (_node(net, name), d["id"], d["parent"], d["origin"], d["source"], d["version"], d["op"], d["route"],
         d["hash"], d["attempt"], str(d["fields"]), d["text"])
        for name, recorder in net.outs.items() for d in recorder.lines() if d["hash"] in sent
    ]  # fmt: skip
    return sorted(deliveries, key=str), sorted(events, key=str)


def _node(net: PlanWorld, recorder: str) -> str:
    return next(n.name for n in net.plan.nodes if getattr(n, "destination", None) is net.out(recorder))
