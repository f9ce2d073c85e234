"""A walk asks for the calls of steps and makes none itself."""

from __future__ import annotations

from typing import Any

import pytest

from ferryman import Document, Plan
from ferryman.destinations import Null
from ferryman.engine.results import NodeStates
from ferryman.engine.transform.health import health_of_nodes
from ferryman.engine.transform.isolation import Recorder
from ferryman.engine.transform.walk import AwaitMembers, Raised, StepCall, Walk, WalkMember, run_walk
from ferryman.sources import Memory


def never(document: Document) -> Document:
    raise AssertionError(f"{document.id}: a walk does not call steps itself")


def split(document: Document) -> list[Document]:
    return [document, document.child("a")]


def walk_of(*steps: Any) -> tuple[Walk, Recorder]:
    plan = Plan("asked")
    node = plan.source("docs", Memory([]))
    for number, step in enumerate(steps):
        node = node.step(f"s{number}", step)
    node.destination("out", Null())
    plan.freeze()
    recorder = Recorder()
    health = health_of_nodes(plan, NodeStates(), 10)
    return Walk(plan, "docs", recorder, task=0, prepare_step=lambda step: step.fn, health=health), recorder


def delivered(recorder: Recorder) -> list[str]:
    return [args[0].id for name, args in recorder.calls if name == "upsert"]


def test_each_call_is_a_request() -> None:
    walk, recorder = walk_of(never, never)
    document = Document("a")
    walking = walk.walk_document(document)
    for name in ("s0", "s1"):
        request = next(walking) if name == "s0" else walking.send(document)
        assert isinstance(request, StepCall)
        assert (request.node.name, request.doc) == (name, document)
        assert delivered(recorder) == []
    with pytest.raises(StopIteration):
        walking.send(document)
    assert delivered(recorder) == ["a"]


@pytest.mark.parametrize("error", [ValueError("no"), GeneratorExit(), StopIteration(), SystemExit(3)])
def test_what_a_step_raises_is_an_answer(error: BaseException) -> None:
    walk, recorder = walk_of(never)
    walking = walk.walk_document(Document("a"))
    next(walking)
    with pytest.raises(StopIteration):
        walking.send(Raised(error))
    [failure] = walk.new_failures
    assert (failure.node, delivered(recorder)) == ("s0", [])
    assert type(error).__name__ in failure.fault.text


def test_members_are_requests_where_they_may_have_to_wait() -> None:
    walk, _ = walk_of(split, never)
    walking = walk.walk_document(Document("a"))
    request = next(walking)
    assert isinstance(request, StepCall)
    asked = [walking.send(split(request.doc)), next(walking), next(walking)]
    assert list(map(type, asked)) == [WalkMember, WalkMember, AwaitMembers]


def test_members_that_come_to_no_step_are_walked_at_once() -> None:
    walk, recorder = walk_of(split)
    run_walk(walk, walk.walk_document(Document("a")))
    assert delivered(recorder) == ["a", "a#a"]


def test_a_walk_that_is_closed_does_nothing_more() -> None:
    walk, recorder = walk_of(never)
    walking = walk.walk_document(Document("a"))
    next(walking)
    walking.close()
    assert (walk.new_failures, recorder.calls) == ([], [])
