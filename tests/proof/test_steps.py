"""Steps in a proof: what they are called with, what they make of it, and whom they call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ferryman import Document, Effect, Plan, Remember, Unavailable
from ferryman.destinations import Null
from ferryman.plan import StepNode
from ferryman.proof.faults import Effects
from ferryman.proof.steps import observe, outside_steps, read_calls, undetermined
from ferryman.sources import Memory


def upper(doc: Document) -> Document:
    doc["title"] = str(doc["title"]).upper()
    return doc


def chance(doc: Document) -> Document:
    doc["n"] = random.random()
    return doc


def pages(doc: Document) -> Iterator[Document]:
    yield doc.child("a")
    yield doc.child("b")


async def awaited(doc: Document) -> Document:
    return upper(doc)


def all_upper(docs: list[Document]) -> list[Document]:
    return [upper(doc) for doc in docs]


def rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def step_of(fn: Any, **options: Any) -> StepNode:
    plan = Plan("p")
    plan.step("it", fn, **options)
    [node] = plan.nodes
    assert isinstance(node, StepNode)
    return node


def doc(id: str = "a") -> Document:
    return Document(id, title="t")


def test_equal_documents_show_whether_a_step_makes_the_same_of_them(tmp_path: Path) -> None:
    for fn in (upper, chance):
        for _ in range(2):
            observe(step_of(fn), tmp_path, Effects.none())(doc())

    calls = [each._replace(step=name) for each, name in zip(read_calls(tmp_path), ["u", "u", "c", "c"], strict=True)]
    assert undetermined(calls) == {"c": "a"}


def test_children_are_part_of_what_a_step_makes(tmp_path: Path) -> None:
    for _ in range(2):
        assert [each.id for each in observe(step_of(pages), tmp_path, Effects.none())(doc())] == ["a#a", "a#b"]

    calls = read_calls(tmp_path)
    assert len(calls) == 2
    assert undetermined(calls) == {}
    assert calls[0].made


def test_each_document_of_a_batch_is_a_call(tmp_path: Path) -> None:
    observe(step_of(all_upper, batch=10), tmp_path, Effects.none())([doc("a"), doc("b")])
    batch = pa.RecordBatch.from_pylist([{"id": "a"}, {"id": "b"}])
    observe(step_of(rows, arrow=True), tmp_path, Effects.none())(batch)

    assert [each.document for each in read_calls(tmp_path)] == ["a", "b", "a", "b"]


def test_an_async_step_stays_one(tmp_path: Path) -> None:
    step = observe(step_of(awaited), tmp_path, Effects.none())

    made = asyncio.run(step(doc()))

    assert made["title"] == "T"
    assert len(read_calls(tmp_path)) == 1


def test_the_service_of_a_step_is_away_for_some_calls(tmp_path: Path) -> None:
    step = observe(step_of(upper), tmp_path, Effects(tmp_path, 1, 2))

    for _ in range(2):
        with pytest.raises(Unavailable):
            step(doc())
    assert step(doc())["title"] == "T"


def test_a_step_that_changes_something_outside_needs_leave() -> None:
    plan = Plan("p")
    source = plan.source("s", Memory([doc()]))
    paid = source.step("pays", upper, effect=Effect.IDEMPOTENT)
    remember = Remember("v1", reads=["title"], writes=["title"])
    paid.step("remembers", upper, effect=Effect.IDEMPOTENT, remember=remember).destination("out", Null())

    assert outside_steps(plan, ()) == ["pays"]
    assert outside_steps(plan, ("pays",)) == []
