"""What other people's code is given is its own: whatever it does to it, no other document and nothing of the engine's
changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.destinations import Queue as ToQueue
from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import Router
from ferryman.sources import Listed, Memory, Queue, Source
from ferryman.state.state import state_root
from ferryman.testing.inprocess import InProcess
from tests.support.invariants import states
from tests.support.plan_world import run_plan
from tests.support.recorder import Recorder

IDS = [f"d{n}" for n in range(6)]


class Greedy(Recorder):
    """Takes deliveries out of its chunk, strips them, and fails for several together after that."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        together, outcomes = len(chunk) > 1, []
        while chunk:
            delivery = chunk.pop()
            if not together:
                outcomes += super().write([delivery])
            delivery.fields.clear()
            delivery.id = delivery.hash = "another"
        if together:
            raise ValueError("one by one, please")
        return outcomes


class Emptying(Recorder):
    """Answers for all, and leaves an empty list."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        outcomes = super().write(chunk)
        chunk.clear()
        return outcomes


class Working(Recorder):
    """Works as it is asked for outcomes."""

    def write(self, chunk: list[Delivery]) -> Any:
        for delivery in chunk:
            yield from super().write([delivery])


@pytest.mark.rule("copies.own")
@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
@pytest.mark.parametrize("kind", [Greedy, Emptying, Working])
def test_a_chunk_is_the_destinations_own(place: Path, kind: type[Recorder], guarantee: str, *, fork: bool) -> None:
    """Each delivery arrives as it is, also if the chunk is written again in halves."""
    if kind is Greedy and guarantee == "at-most-once":
        return  # it fails together, so all are in doubt
    plan, out = Plan("own", version=1), kind(place / "out.jsonl")
    plan.source("docs", Memory([{"id": id, "name": id} for id in IDS])).destination("out", out, guarantee=guarantee)
    assert run_plan(plan, place / "state", runner=InProcess(slots=1, fork=fork)).exit == 0
    assert sorted((line["id"], line["fields"]["name"]) for line in out.lines()) == [(id, id) for id in IDS]


def union(key: str, values: list[Any]) -> Any:
    """As one writes it: into the first of them."""
    first = values[0]
    for each in values[1:]:
        first.update(each)
    values.clear()
    return first


@pytest.mark.rule("copies.own")
def test_a_combiner_may_change_what_it_is_given(place: Path) -> None:
    """The state, too: what follows is told of the change, with what it was before."""
    into, out = DurableQueue("in", place), DurableQueue("out", place)
    plan = Plan("own", version=1)
    node = plan.source("from_in", Queue("in", place)).combine("sets", union, key="key", value="seen")
    node.destination("out", ToQueue("out", place))
    for number in range(3):
        into.append([{"key": "a", "seen": {f"{number}{each}": 1}} for each in "xy"])
        assert run_plan(plan, place / "state").exit == 0
    told = [(sorted(m.body["old"] or ()), sorted(m.body["new"])) for m in out.read()]
    every = ["0x", "0y", "1x", "1y", "2x", "2y"]
    assert told == [([], every[:2]), (every[:2], every[:4]), (every[:4], every)]
    assert sorted(states(state_root(plan, place / "state"), "sets")["a"]) == every


def emptied(key: str, state: dict[str, Any] | None, documents: list[Document]) -> tuple[dict[str, Any], Document]:
    if state is not None:
        before = dict(state)
        state.clear()
    else:
        before = {}
    for doc in documents[::-1]:
        before[doc.id] = len(documents)
        doc.fields.clear()
        doc.id = "another"
    documents.clear()
    return before, Document(key, seen=before)


def taken_apart(doc: Document) -> str:
    key = str(doc.fields.pop("key"))
    doc.fields.clear()
    doc.id, doc.raw = "another", b"another"
    return key


@pytest.mark.rule("copies.own")
def test_an_update_and_a_key_may_change_what_they_are_given(place: Path) -> None:
    out = Recorder(place / "out.jsonl")
    plan = Plan("own", version=1)
    node = plan.source("docs", Memory([{"id": id, "key": "k", "raw": b"x"} for id in IDS]))
    node.keyed("seen", emptied, key=taken_apart).destination("out", out)
    assert run_plan(plan, place / "state").exit == 0
    assert [line["fields"]["seen"] for line in out.lines()] == [dict.fromkeys(IDS, 6)]


class Renaming(Router):
    """Names documents anew while it looks at them."""

    def choose(self, document: Document) -> str:
        document.id = "another"
        return "left" if document["n"] < 3 else "right"


class Stripped(Source):
    """Its ``counted`` takes from the fields what does not count."""

    def partitions(self) -> list[Any]:
        return [0]

    def listing(self, partition: Any) -> Iterator[Listed]:
        yield from (Listed(id, 1, "1") for id in IDS)

    def read(self, listed: Listed) -> Document:
        return Document(listed.id, n=int(listed.id[1:]), seen="today")

    def counted(self, fields: dict[str, Any]) -> dict[str, Any]:
        del fields["seen"]
        return fields


@pytest.mark.rule("copies.own")
def test_a_router_and_a_source_change_nothing(place: Path) -> None:
    """A document keeps its id, and its fields."""
    plan, outs = Plan("own", version=1), [Recorder(place / "left.jsonl"), Recorder(place / "right.jsonl")]
    fork = plan.source("docs", Stripped()).route("fork", Renaming())
    for name, out in zip(("left", "right"), outs, strict=True):
        fork.destination(name, out)
    assert run_plan(plan, place / "state").exit == 0
    for ids, out in zip((IDS[:3], IDS[3:]), outs, strict=True):
        assert [line["id"] for line in out.lines()] == ids
        assert {line["fields"]["seen"] for line in out.lines()} == {"today"}


def merged(inputs: dict[str, Document]) -> dict[str, Any]:
    found = {name: doc.fields.pop("n") for name, doc in inputs.items()}
    inputs.clear()
    return found


@pytest.mark.rule("copies.own")
def test_a_join_may_change_what_it_is_given(place: Path) -> None:
    plan = Plan("own", version=1)
    for name in ("one", "two"):
        DurableQueue(name, place).append([{"n": n} for n in range(3)])
    inputs = {name: plan.source(f"from_{name}", Queue(name, place)) for name in ("one", "two")}
    node = plan.join("both", merged, inputs)
    node.destination("out", ToQueue("out", place))
    assert run_plan(plan, place / "state").exit == 0
    assert [m.body for m in DurableQueue("out", place).read()] == [{"one": n, "two": n} for n in range(3)]


def disguised(doc: Document) -> Any:
    """Sets all that a document has besides its content."""
    doc.parent_id, doc.origin_id, doc.version = 5, object(), lambda: None  # type: ignore[assignment]
    if doc.id == "d1":
        raise ValueError("no")
    return [doc, Document(f"{doc.id}#child", n=1)] if doc.id == "d2" else doc


@pytest.mark.rule("copies.own")
@pytest.mark.parametrize("options", [{}, {"batch": 2}])
def test_what_a_step_says_of_a_documents_family_counts_for_nothing(place: Path, options: dict[str, Any]) -> None:
    """Its id tells which family it is of."""
    plan, out = Plan("own", version=1), Recorder(place / "out.jsonl")
    fn = (lambda docs: [_answer(doc) for doc in docs]) if options else disguised
    node = plan.source("docs", Memory([{"id": id} for id in IDS])).step("work", fn, attempts=1, **options)
    node.destination("out", out)
    assert run_plan(plan, place / "state", wait=0).exit == 3
    assert {line["id"] for line in out.lines()} == {*IDS, "d2#child"} - {"d1"}
    events = account.history(state_root(plan, place / "state"), "d2", plan)
    assert {(e["document"], e["parent"]) for e in events if e["destination"]} == {("d2", None), ("d2#child", "d2")}


def _answer(doc: Document) -> Any:
    try:
        return disguised(doc)
    except ValueError as e:
        return e
