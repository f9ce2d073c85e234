"""An error queue and failures that nobody would think of: what they say, and what they are about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.errors import PermanentError
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Queue
from tests.support.plan_world import run_plan

HALF = "\ud800"
"""Half of a character: no UTF-8 has it."""


def said(text: str) -> Any:
    def fail(doc: Document) -> Document:
        if doc["n"] == 1:
            raise PermanentError(text)
        return doc

    return fail


def made(value: Any) -> Any:
    def make(doc: Document) -> Document:
        if doc["n"] == 1:
            doc["made"] = value
        return doc

    return make


def run(place: Path, step: Any, *bodies: dict[str, Any]) -> tuple[int, list[int], list[dict[str, Any]]]:
    """Exit code, numbers of the outputs, and the error messages."""
    DurableQueue("in", place).append(bodies)
    plan = Plan("hostile")
    node = plan.source("from_in", Queue("in", place)).step("work", step)
    node.destination("to_out", ToQueue("out", place), backoff=0)
    plan.errors(ToQueue("errors", place), backoff=0)
    summary = run_plan(plan, place / "state")
    outputs = [m.body["n"] for m in DurableQueue("out", place).read(limit=100)]
    return summary.exit, outputs, [m.body for m in DurableQueue("errors", place).read(limit=100)]


@pytest.mark.parametrize(
    "text", [HALF, "\x00\x1b[31m", "x" * 5_000_000, "\n" * 100, ""], ids=["half", "control", "long", "lines", "empty"]
)
def test_whatever_an_error_says(place: Path, text: str) -> None:
    """It becomes one message that can be read, and the others go on."""
    code, outputs, [error] = run(place, said(text), {"n": 0}, {"n": 1}, {"n": 2})
    assert (code, outputs) == (0, [0, 2])
    assert error["where"] == "work"
    assert error["cause"].startswith("step work: PermanentError")
    assert error["messages"] == [{"id": "in/2", "source": "from_in", "body": {"n": 1}}]


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"in": value}
    return value


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("-inf"), HALF, {HALF: 1}, deep(150), {1: 2}, object(), "x" * 17_000_000],
    ids=["nan", "infinity", "half", "half a key", "deep", "a number as key", "an object", "17 MB"],
)
def test_whatever_a_step_makes(place: Path, value: Any) -> None:
    """What a queue cannot hold is one message there, or it is an output; the others go on."""
    code, outputs, errors = run(place, made(value), {"n": 0}, {"n": 1}, {"n": 2})
    assert code == 0
    assert [n for n in outputs if n != 1] == [0, 2]
    assert (1 in outputs) + len(errors) == 1
    for error in errors:
        assert error["messages"][0]["id"] == "in/2"


def test_an_input_that_no_document_can_hold(place: Path) -> None:
    """It is a failure of its source; there is no body to show."""
    code, outputs, [error] = run(place, said("never"), {"n": 0}, {"n": 3, "text": HALF}, {"n": 2})
    assert (code, outputs) == (0, [0, 2])
    assert error["type"] == "source"
    assert error["messages"] == [{"id": "in/2", "source": "from_in"}]


def test_an_input_that_leaves_no_room(place: Path) -> None:
    """The error message does without its body, for it must fit into a queue itself."""
    big = {"n": 1, "text": "x" * (limits.QUEUE_MESSAGE_BYTES // 4)}
    code, outputs, [error] = run(place, said("no"), {"n": 0}, big)
    assert (code, outputs) == (0, [0])
    assert error["messages"] == [{"id": "in/2", "source": "from_in"}]
