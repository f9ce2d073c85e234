"""``batch=``, ``arrow=``, ``concurrency=`` and ``rate=`` of a step: what ``plan check`` says of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.destinations import Null
from ferryman.document import Document
from ferryman.errors import PlanError
from ferryman.plan import Plan
from ferryman.plan.picture import text
from ferryman.sources import Memory, Queue


def plan_of(fn: Any, source: Any = None, strategy: Any = None, **options: Any) -> Plan:
    plan = Plan("calls", 1, strategy=strategy)
    plan.source("docs", source or Memory([])).step("ask", fn, **options).destination("out", Null())
    return plan


def same(doc: Any) -> Any:
    return doc


def generator(doc: Document) -> Iterator[Document]:
    yield doc


async def async_generator(doc: Document) -> AsyncIterator[Document]:
    yield doc


BAD = {
    "batch 0": (same, {"batch": 0}, "ask: batch=0: give a whole number of documents, 1 or more"),
    "batch text": (same, {"batch": "64"}, "ask: batch='64': give a whole number"),
    "concurrency 0": (same, {"concurrency": 0}, "ask: concurrency=0: give a whole number from 1 to 1000."),
    "too many": (same, {"concurrency": 1001}, "ask: concurrency=1001: give a whole number from 1 to 1000."),
    "true": (same, {"concurrency": True}, "ask: concurrency=True: give a whole number"),
    "rate": (same, {"rate": "often"}, "ask: rate='often': give a number a second, or text as in '100/s'"),
    "rate 0": (same, {"rate": 0}, "ask: rate=0: give a number a second"),
    "rate unit": (same, {"rate": "5/week"}, "ask: rate='5/week': give a number a second"),
    "generator": (generator, {"concurrency": 4}, "ask: its function is a generator"),
    "async generator": (async_generator, {}, "ask: its function is an async generator: return a list of documents."),
}


@pytest.mark.rule("check.calls")
@pytest.mark.parametrize("what", BAD)
def test_what_makes_no_sense_is_refused(what: str) -> None:
    fn, options, message = BAD[what]
    with pytest.raises(PlanError) as refused:
        plan_of(fn, **options).check()
    assert message in str(refused.value)


@pytest.mark.rule("check.calls")
@pytest.mark.parametrize("options", [{"batch": 2}, {"arrow": True}, {"concurrency": 2}], ids=str)
def test_a_plan_that_calls_once_at_most_calls_one_after_the_other(tmp_path: Path, options: dict[str, Any]) -> None:
    """What was under way with it would be in doubt, or called again in a half."""
    with pytest.raises(PlanError, match="ask: strategy='at-most-once' calls a step for one entry after the other"):
        plan_of(same, Queue("orders", tmp_path), "at-most-once", **options).check()
    plan_of(same, Queue("orders", tmp_path), "at-most-once", rate="5/s").check()


@pytest.mark.parametrize(
    ("rate", "expected"), [(100, 100.0), (0.5, 0.5), ("100/s", 100.0), ("90 / min", 1.5), ("36/h", 0.01), ("2.5", 2.5)]
)
def test_rates_as_people_write_them(rate: object, expected: float) -> None:
    assert limits.per_second(rate) == pytest.approx(expected)


def test_the_picture_says_how_a_step_is_called() -> None:
    drawn = text(plan_of(same, batch=64, concurrency=8, rate="100/s"))
    assert "batches of 64, 8 calls at once, 100/s" in drawn


def test_how_a_step_is_called_is_not_what_it_does() -> None:
    """It may change without a new version."""
    assert plan_of(same, batch=64, concurrency=8, rate="100/s").fingerprint == plan_of(same).fingerprint
