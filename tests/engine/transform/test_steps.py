"""Steps: what they may return, leave in a document and raise."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.document import Document
from ferryman.plan import Plan
from ferryman.sources import Memory
from ferryman.state.state import state_root
from tests.support.plan_world import PlanWorld, run_plan
from tests.support.scanning import counting

KIB = 1024


@pytest.mark.rule("retry.calls")
def test_every_step_sees_every_document_once(place: Path) -> None:
    """In the plan's order, over several waves."""
    calls = place / "calls"
    trial = PlanWorld(place).build(counting(calls, "first"), counting(calls, "second"), counting(calls, "third"))
    ids = [f"d{i}" for i in range(8)]
    trial.put(*ids, text="x" * (300 * KIB))
    trial.run(wave_bytes=KIB * KIB)
    lines = calls.read_text().splitlines()
    assert sorted(lines) == sorted(f"{step} {id}" for step in ("first", "second", "third") for id in ids)
    for id in ids:
        assert [line.split()[0] for line in lines if line.endswith(f" {id}")] == ["first", "second", "third"]
    trial.run()
    assert len(calls.read_text().splitlines()) == len(lines)


def another(doc: Document) -> Document:
    return Document("another", raw=doc.raw)


def copy(doc: Document) -> Document:
    return Document.of(doc.id, {**doc.fields, "copied": True}, doc.raw)


def renamed(doc: Document) -> Document:
    doc.id = "renamed"
    return doc


RETURNS: dict[str, tuple[Any, dict[str, int], str]] = {
    "nothing": (lambda doc: None, {"dropped": 1, "delivered": 1}, "dropped by step"),
    "a number": (lambda doc: 42, {"rejected": 1, "delivered": 1}, "returned a int"),
    "another document": (another, {"rejected": 1, "delivered": 1}, "another id, 'another'"),
    "the class": (lambda doc: Document, {"rejected": 1, "delivered": 1}, "not the document, None, or an iterable"),
}


@pytest.mark.rule("step.returns")
@pytest.mark.parametrize("what", RETURNS)
def test_what_a_step_may_return(trial: PlanWorld, what: str) -> None:
    """The document, or nothing; all else is this document's error, in words."""
    fn, counts, message = RETURNS[what]

    def step(doc: Document) -> Any:
        return fn(doc) if doc.id == "a" else doc

    trial.build(step)
    trial.put("a", "b")
    trial.run()
    assert trial.counts() == counts
    assert message in trial.history("a")[0]["message"]


def test_a_step_may_return_a_copy(trial: PlanWorld) -> None:
    """Of the same id."""
    trial.build(copy)
    trial.put("a")
    trial.run()
    assert trial.out().lines()[0]["fields"] == {"copied": True}


def test_a_step_cannot_rename_a_document(trial: PlanWorld) -> None:
    """Its id is the source's; what was done to the object does not move it."""
    trial.build(renamed)
    trial.put("a")
    trial.run()
    assert set(trial.out().counted()) <= {"a"}
    assert trial.statuses("renamed") == []


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raising(error: Callable[[], BaseException]) -> Callable[[Document], Document]:
    def step(doc: Document) -> Document:
        if doc.id == "a":
            raise error()
        return doc

    return step


EVIL: dict[str, Any] = {
    "a message without words": raising(Unspeakable),
    "a message that is no text": raising(lambda: ValueError("caf\udce9.txt")),
    "a message of a megabyte": raising(lambda: ValueError("x" * KIB * KIB)),
    "a message with NUL and line breaks": raising(lambda: ValueError("a\0b\n\n\tc")),
    "the end of the program": raising(lambda: SystemExit(0)),
    "an endless recursion": raising(lambda: RecursionError("maximum recursion depth exceeded")),
    "no memory": raising(MemoryError),
}


@pytest.mark.rule("step.raises")
@pytest.mark.parametrize("what", EVIL)
def test_whatever_a_step_raises_harms_only_its_document(trial: PlanWorld, what: str) -> None:
    """The others go on (I8)."""
    step = EVIL[what]
    step.__name__ = "step"
    trial.build(step, attempts=1)
    trial.put("a", "b", "c")
    try:
        trial.run()
    except SystemExit:
        pytest.fail("the run was ended")
    assert trial.counts() == {"delivered": 2, "failed": 1}


def setting(value: Any) -> Callable[[Document], Document]:
    def step(doc: Document) -> Document:
        if doc.id == "a":
            if isinstance(value, dict):
                doc.fields.update(value)
            else:
                doc.raw = value
        return doc

    return step


LEAVES: dict[str, Any] = {
    "a field that JSON cannot hold": {"x": 1j},
    "a field with half a character": {"x": "\ud800"},
    "a field of its own": {"x": None},
    "text in place of bytes": "text",
    "a number in place of bytes": 5,
    "a list in place of bytes": [1, 2],
}
LEAVES["a field of its own"]["x"] = LEAVES["a field of its own"]


@pytest.mark.parametrize("what", LEAVES)
def test_whatever_a_step_leaves_in_a_document_harms_only_this_one(trial: PlanWorld, what: str) -> None:
    """What cannot be written down is this document's error (I8)."""
    step = setting(LEAVES[what])
    step.__name__ = "step"
    trial.build(step, attempts=1)
    trial.put("a", "b", "c")
    trial.run()
    counts = trial.counts()
    assert counts["delivered"] in (2, 3)
    assert sum(counts.values()) == 3


@pytest.mark.rule("timeout.interrupted")
def test_a_step_that_takes_too_long_is_interrupted(trial: PlanWorld) -> None:
    """``timeout=``: a transient error of its document, in words."""

    def sleepy(doc: Document) -> Document:
        if doc.id == "a":
            time.sleep(3600)
        return doc

    plan = Plan("sleepy", 1)
    trial.put("a", "b")
    node = plan.source("docs", Memory(trial.documents)).step("sleepy", sleepy, timeout=1)
    node.destination("out", trial.out(), attempts=1)
    began = time.monotonic()
    summary = run_plan(plan, trial.state)
    assert time.monotonic() - began < 1800
    assert (summary.exit, summary.delivered, summary.failed) == (3, 1, 1)
    [event, *_] = account.history(state_root(plan, trial.state), "a", plan)
    assert "step sleepy took longer than timeout=1 s" in event["message"]


@pytest.mark.rule("doc.version")
def test_a_document_reaches_the_destination_as_the_steps_left_it(trial: PlanWorld) -> None:
    """Fields and bytes; its version stays that of the source."""

    def shout(doc: Document) -> Document:
        doc.raw = doc.text().upper().encode()
        doc["length"] = len(doc.raw)
        return doc

    trial.build(shout)
    trial.put("a", text="quiet")
    trial.run()
    [line] = trial.out().lines()
    assert (line["text"], line["fields"]) == ("QUIET", {"length": 5})
    assert line["version"] == trial.history("a")[0]["version"]
