"""``step(…, batch=n)``: a function of several documents; what goes wrong is found to be of one of them, or of the
step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ferryman import account
from ferryman.document import Document
from ferryman.errors import Dropped, Misconfigured, TransientError, Unavailable
from ferryman.routers import Duplicate
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import PlanWorld

IDS = [f"series/{n // 10:04}/volume-{n:06}/contents/{n:05}.txt" for n in range(40)]


class Calls:
    """Writes down the ids of each call, a line each."""

    def __init__(self, net: PlanWorld) -> None:
        self._path = net.folder / "batches"

    def note(self, docs: list[Document]) -> None:
        with self._path.open("a") as file:
            file.write(" ".join(doc.id for doc in docs) + "\n")

    def sizes(self) -> list[int]:
        return [len(line.split()) for line in self._path.read_text().splitlines()]


def build(net: PlanWorld, fn: Callable[[list[Document]], Any], *ids: str, **options: Any) -> None:
    step = net.source().step("embed", fn, **{"batch": 8, **options})
    step.destination("out", net.out("out"), backoff=0)
    net.put(*(ids or IDS))


@pytest.mark.rule("step.batch")
def test_it_is_called_with_so_many_documents_at_most_in_their_order(net: PlanWorld) -> None:
    """All but the last call of a task get a whole batch; what comes out is in the order of the source."""
    calls = Calls(net)

    def embed(docs: list[Document]) -> list[Document]:
        calls.note(docs)
        for doc in docs:
            doc["size"] = len(docs)
        return docs

    build(net, embed)
    assert net.run(runner=InProcess(slots=1)).exit == 0
    assert calls.sizes() == [8] * 5
    assert [line["id"] for line in net.out("out").lines()] == IDS
    net.put(*IDS[:11], text="two")
    net.run(runner=InProcess(slots=1))
    assert calls.sizes()[5:] == [8, 3]


def shortest_first(docs: list[Document]) -> list[Document]:
    given = [*docs]
    docs.sort(key=lambda doc: len(doc.raw or b""))
    return [noted(doc) for doc in given]


def one_by_one(docs: list[Document]) -> list[Document]:
    done = []
    while docs:
        done.append(noted(docs.pop(0)))
    return done


def emptied(docs: list[Document]) -> list[Document]:
    done = [noted(doc) for doc in docs]
    docs.clear()
    return done


async def awaited(docs: list[Document]) -> list[Document]:
    return one_by_one(docs)


def noted(doc: Document) -> Document:
    doc["said"] = doc.text()
    return doc


def unchanged(doc: Document) -> Document:
    return doc


@pytest.mark.rule("step.batch-list")
@pytest.mark.parametrize("above", [False, True], ids=["below the source", "below a step"])
@pytest.mark.parametrize(
    ("fn", "options"),
    [
        (shortest_first, {}),
        (one_by_one, {}),
        (emptied, {}),
        (one_by_one, {"concurrency": 2}),
        (awaited, {}),
    ],
    ids=["sorted", "popped", "cleared", "popped in threads", "popped in the event loop"],
)
def test_the_list_is_the_steps_own(
    net: PlanWorld, fn: Callable[..., Any], options: dict[str, Any], *, above: bool
) -> None:
    """Whatever is done to it, each document has its own fields, and goes on under its own id."""
    node = net.source().step("above", unchanged) if above else net.source()
    batched = node.step("embed", fn, batch=4, **options)
    batched.step("named", lambda doc: doc.fields.update(id=doc.id) or doc).destination("out", net.out("out"))
    ids = [f"d{n}" for n in range(10)]
    for n, id in enumerate(ids):
        net.put(id, text="x" * (20 - n) + id)
    assert net.run(runner=InProcess(slots=1)).exit == 0
    lines = net.out("out").lines()
    assert [(line["id"], line["fields"]["id"], line["fields"]["said"].lstrip("x")) for line in lines] == [
        (id, id, id) for id in ids
    ]


def pair(doc: Document) -> Iterator[Document]:
    yield from (doc.child(n) for n in range(2))


def mixed(docs: list[Document]) -> Iterator[Any]:
    for doc in docs:
        number = int(doc.id[-5])
        yield [
            doc,
            None,
            pair(doc),
            [doc, doc.child("more")],
            ValueError("not this one"),
            Dropped("not wanted"),
            42,
        ][number]


@pytest.mark.rule("step.batch-answers")
def test_each_document_has_an_answer_of_its_own(net: PlanWorld) -> None:
    """A document, nothing, children, an exception object: as if the step had returned or raised it for one."""
    build(net, mixed, *(f"d{n}.txt" for n in range(7)), attempts=1)
    summary = net.run()
    assert net.arrived("out") == dict.fromkeys(("d0.txt", "d2.txt#0", "d2.txt#1", "d3.txt", "d3.txt#more"), 1)
    assert (summary.exit, summary.dropped) == (3, 2)
    assert net.counts("out") == {"delivered": 5, "dropped": 2, "failed": 1, "rejected": 1}
    [event] = account.history(net.root, "d4.txt", net.plan)
    assert "step embed: ValueError: not this one" in event["message"]
    [event] = account.history(net.root, "d5.txt", net.plan)
    assert event["message"] == "not wanted"
    [event] = account.history(net.root, "d6.txt", net.plan)
    assert "returned a int, not the document" in event["message"]


def refusing(*bad: str, how: Callable[[list[Document]], Any]) -> Callable[[list[Document]], Any]:
    def step(docs: list[Document]) -> Any:
        for doc in docs:
            doc["calls"] = doc.get("calls", 0) + 1
        return how(docs) if any(doc.id in bad for doc in docs) else docs

    return step


def raising(docs: list[Document]) -> None:
    raise ValueError(f"cannot embed {len(docs)}")


def one_less(docs: list[Document]) -> list[Document]:
    return docs[:-1]


def nothing(docs: list[Document]) -> None:
    return None


def text(docs: list[Document]) -> str:
    return "x" * len(docs)


@pytest.mark.rule("step.batch-halves")
@pytest.mark.parametrize("how", [raising, one_less, nothing, text])
def test_what_fails_a_whole_batch_is_found(net: PlanWorld, how: Callable[[list[Document]], Any]) -> None:
    """Two of 40 are bad. All others go through, as if they had never met them: the call that failed has changed them,
    and they come to the next one as they were."""
    build(net, refusing(IDS[3], IDS[22], how=how), attempts=1)
    assert net.run().exit == 3
    assert net.arrived("out") == dict.fromkeys((id for id in IDS if id not in (IDS[3], IDS[22])), 1)
    assert {line["fields"]["calls"] for line in net.out("out").lines()} == {1}
    for bad in (IDS[3], IDS[22]):
        [event] = account.history(net.root, bad, net.plan)
        assert event["status"] in ("DEAD", "ERROR_DOC")
        expected = {
            raising: "step embed: ValueError: cannot embed 1",
            one_less: "returned 0 answers for a batch of 1: return one for each document",
            nothing: "returned None, not a list with an answer for each",
            text: "returned a str, not a list",
        }[how]
        assert expected in event["message"]


@pytest.mark.rule("step.batch-halves")
def test_a_batch_that_takes_too_long_is_halved(net: PlanWorld) -> None:
    """``timeout=`` is of the whole call; the document over which it hangs has spent an attempt, and only that one."""

    def hangs(docs: list[Document]) -> list[Document]:
        if any(doc.id == "c" for doc in docs):
            time.sleep(3600)
        return docs

    build(net, hangs, *"abcd", timeout=1, attempts=1)
    assert net.run().exit == 3
    assert net.arrived("out") == dict.fromkeys("abd", 1)
    [event] = account.history(net.root, "c", net.plan)
    assert "step embed took longer than timeout=1 s" in event["message"]


@pytest.mark.rule("step.batch-away")
@pytest.mark.parametrize(
    "error",
    [Unavailable("the model is loading"), Misconfigured("no key"), ConnectionRefusedError("refused")],
    ids=["unavailable", "misconfigured", "connection"],
)
def test_a_service_that_is_away_is_not_asked_for_each_half(net: PlanWorld, error: Exception) -> None:
    """One call, and all of its documents wait, none with an attempt spent; later they arrive."""
    calls, away = Calls(net), net.folder / "away"
    away.touch()

    def embed(docs: list[Document]) -> list[Document]:
        calls.note(docs)
        if away.exists():
            raise error
        return docs

    build(net, embed, brake=3)
    assert net.run(wait=0, runner=InProcess(slots=1)).exit == 4
    assert not net.arrived("out")
    assert set(calls.sizes()) == {8}
    assert len(calls.sizes()) == 1
    away.unlink()
    assert net.run(wait=0).exit == 0
    assert net.arrived("out") == dict.fromkeys(IDS, 1)


@pytest.mark.rule("step.batch-halves")
def test_the_brake_counts_single_documents_and_a_success_between_resets_it(net: PlanWorld) -> None:
    """A bad document in each batch is no trouble of the step; one that fails for all is stopped."""
    bad = IDS[::8]
    build(net, refusing(*bad, how=raising), attempts=1, brake=3)
    summary = net.run()
    assert net.counts("out") == {"delivered": len(IDS) - len(bad), "failed": len(bad)}
    assert summary.exit == 3


@pytest.mark.rule("step.batch-halves")
def test_a_step_that_fails_for_every_document_is_stopped(net: PlanWorld) -> None:
    build(net, refusing(*IDS, how=raising), brake=3)
    summary = net.run(wait=0)
    assert summary.exit == 4
    assert net.counts("out") == {"pending": len(IDS)}
    assert any("embed" in message and "cannot embed 1" in message for message in summary.messages)


@pytest.mark.rule("step.batch-children")
@pytest.mark.parametrize("held", [10_000, 5], ids=["held", "streamed"])
def test_children_of_one_document_come_together(net: PlanWorld, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document is split into parts: they fill batches, with each other and with those of other documents."""
    monkeypatch.setattr("ferryman.limits.HELD_CHILDREN", held)
    calls = Calls(net)

    def embed(docs: list[Document]) -> list[Document]:
        calls.note(docs)
        return docs

    def split(doc: Document) -> Iterator[Document]:
        return (doc.child(n) for n in range(30))

    node = net.source().step("split", split).step("embed", embed, batch=16)
    node.destination("out", net.out("out"), backoff=0)
    net.put("a", "b", "c")
    assert net.run(runner=InProcess(slots=1)).exit == 0
    expected = [f"{id}#{n}" for id in "abc" for n in range(30)]
    assert [line["id"] for line in net.out("out").lines()] == expected
    assert calls.sizes() == [16] * 5 + [10]


@pytest.mark.rule("step.batch-children")
@pytest.mark.parametrize("held", [10_000, 5], ids=["held", "streamed"])
def test_a_part_that_fails_is_tried_again_alone(net: PlanWorld, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 30 parts one fails once: the others arrive at once and stay; it arrives with the retry."""
    monkeypatch.setattr("ferryman.limits.HELD_CHILDREN", held)
    failed = net.folder / "failed"

    def embed(docs: list[Document]) -> list[Any]:
        if not failed.exists() and any(doc.id == "b#7" for doc in docs):
            if len(docs) == 1:
                failed.touch()
            raise TransientError("not yet")
        return docs

    def split(doc: Document) -> Iterator[Document]:
        return (doc.child(n) for n in range(30))

    node = net.source().step("split", split).step("embed", embed, batch=16, patience=0, attempts=3)
    node.destination("out", net.out("out"), backoff=0)
    net.put("a", "b")
    assert net.run().exit == 0
    assert net.arrived("out") == {f"{id}#{n}": 1 for id in "ab" for n in range(30)}
    assert net.out("out").lines()[-1]["id"] == "b#7"


@pytest.mark.rule("doc.idempotency-key")
def test_a_document_knows_its_key_within_a_batch(net: PlanWorld) -> None:
    """Each has its own, by its own route, the same when the batch is halved and when it is tried again."""
    seen = net.folder / "keys"

    def embed(docs: list[Document]) -> list[Document]:
        with seen.open("a") as file:
            for doc in docs:
                file.write(f"{doc.id} {doc['way']} {doc.idempotency_key}\n")
        if len(docs) > 2:
            raise ValueError("too many")
        return docs

    def way(name: str) -> Callable[[Document], Document]:
        def step(doc: Document) -> Document:
            doc["way"] = name
            return doc

        return step

    fork = net.source().route("fork", Duplicate())
    ways = [fork.step(name, way(name)) for name in ("left", "right")]
    net.plan.step("embed", embed, batch=8, after=ways).destination("out", net.out("out"), backoff=0)
    net.put("a", "b", "c")
    net.run()
    keys: dict[tuple[str, str], set[str]] = {}
    for line in seen.read_text().splitlines():
        id, by, key = line.split()
        keys.setdefault((id, by), set()).add(key)
    assert len(keys) == 6
    assert all(len(each) == 1 for each in keys.values())
    assert len(set.union(*keys.values())) == 6


@pytest.mark.rule("step.batch-halves")
def test_a_document_that_kills_the_worker_fails_alone(net: PlanWorld) -> None:
    """In isolation each comes in a batch of one."""

    def embed(docs: list[Document]) -> list[Document]:
        if any(doc.id == "b" for doc in docs):
            os._exit(3)
        return docs

    build(net, embed, *"abc")
    assert net.run(runner=InProcess(fork=True, failures=1)).exit == 3
    assert net.arrived("out") == dict.fromkeys("ac", 1)
    [event, *_] = account.history(net.root, "b", net.plan)
    assert "it ended its process in each of 3 tries" in event["message"]


def test_a_step_may_ask_for_documents_again_within_a_batch(net: PlanWorld) -> None:
    """Also of one that came to it in a half."""

    def embed(docs: list[Document]) -> list[Document]:
        if len(docs) > 1:
            raise ValueError("one at a time")
        docs[0].again("1h", why="later")
        return docs

    build(net, embed, "a", "b")
    assert net.run().exit == 0
    for id in "ab":
        assert any("it is read again" in event["message"] for event in account.history(net.root, id, net.plan))
