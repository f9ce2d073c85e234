"""Steps that remember, in every way in which steps are called."""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferryman import Document, PermanentError, Plan, Remember
from ferryman.destinations import Null
from ferryman.errors import Unavailable
from ferryman.queues import Queue
from ferryman.remembered import log
from ferryman.remembered.upkeep import StoreKeeper
from ferryman.sources import Memory
from ferryman.sources import Queue as FromQueue
from tests.support.paid import Notes, Service, build_paid, steps, vector_of
from tests.support.plan_world import PlanWorld, run_plan

MODES = list(steps(Service(Path())))


def paid(place: Path, mode: str = "plain", **options: Any) -> PlanWorld:
    return PlanWorld(place, build_paid).build(mode, **options)


def delivered(world: PlanWorld, name: str = "out") -> dict[str, Any]:
    """Id -> fields, as they came last."""
    return {line["id"]: line["fields"] for line in world.out(name).lines() if line["op"] == "upsert"}


def _compared(world: PlanWorld) -> list[Any]:
    return [[line[c] for c in ("op", "id", "fields", "hash", "route")] for line in world.out().lines()]


@pytest.mark.rule("remember.once-plus-in-flight")
@pytest.mark.rule("remember.same-deliveries")
@pytest.mark.parametrize("mode", MODES)
def test_each_input_is_called_for_once(place: Path, mode: str) -> None:
    """Equal texts of several documents, now and later, cost one call; a change outside of what is read costs none."""
    world, service = paid(place, mode), Service(place)
    texts = [f"t{n % 7}" for n in range(20)]
    for n, text in enumerate(texts):
        world.put(f"d{n}", words=text, title=f"number {n}")
    summary = world.run()
    assert service.calls() == dict.fromkeys(set(texts), 1)
    assert summary.remembered["embed"] | {"bytes": 0, "spent": 0, "saved": 0} == {
        "calls": 7, "hits": 13, "in_doubt": 0, "spent": 0, "saved": 0, "bytes": 0
    }  # fmt: skip
    first = _compared(world)
    shutil.rmtree(world.root)
    Path(world.out().path).unlink()
    assert world.run().remembered["embed"]["calls"] == 0
    assert _compared(world) == first, "a run with hits only delivers the same"
    wanted = {f"d{n}": np.float32(vector_of(text)).tolist() for n, text in enumerate(texts)}
    assert {id: fields["vector"] for id, fields in delivered(world).items()} == wanted
    for n, text in enumerate(texts):
        world.put(f"d{n}", words=text, title="another")
    world.put("new", words="t3")
    assert world.run().remembered["embed"]["hits"] == 21
    assert service.calls().total() == 7


@pytest.mark.rule("remember.refusals")
@pytest.mark.parametrize("mode", ["plain", "batch", "async batch", "threads"])
def test_what_fails_is_its_document_s_alone(place: Path, mode: str) -> None:
    """A refusal is remembered, an error that passes is not, and the answers beside them are kept."""
    world, service = paid(place, mode, attempts=1), Service(place)
    for text in ("a", "never", "b", "later", "c", "never"):
        world.put(f"{text}-{len(world.documents)}", words=text)
    world.run()
    assert set(delivered(world)) == {"a-0", "b-2", "c-4"}
    world.retry()
    world.run()
    calls = service.calls()
    assert calls["never"] == 1
    assert {calls[text] for text in "abc"} == {1}
    assert calls["later"] == 2


def test_a_list_that_is_refused_is_halved(place: Path) -> None:
    """The one text that is too long is its document's error alone; what was answered stays, also when one is away."""
    service, sizes = Service(place), Notes(place / "sizes")

    def several(docs: list[Document]) -> list[Document]:
        sizes.append(len(docs))
        if any(doc["words"] == "long" for doc in docs):
            raise PermanentError("maximum context length is 8192 tokens")
        for doc in docs:
            doc["vector"] = service.vector(doc["words"])
        return docs

    world = PlanWorld(place, lambda w: plan_with(w, several, batch=8))
    for n in range(8):
        world.put(f"d{n}", words="long" if n == 5 else f"t{n}")
    summary = world.run()
    assert (summary.delivered, summary.rejected) == (7, 1)
    assert set(service.calls().values()) == {1}
    assert sizes.read()[0] == 8
    made = len(sizes.read())
    world.retry()
    world.run()
    assert len(sizes.read()) == made, "the refusal is remembered"


@pytest.mark.rule("remember.once-plus-in-flight")
def test_what_was_answered_before_the_service_went_away_stays(place: Path) -> None:
    """Of a list in whose middle it goes away, the first part is not paid for again, and no attempt is spent."""
    service, away = Service(place), place / "away"
    away.touch()

    def several(docs: list[Document]) -> list[Any]:
        answers: list[Any] = []
        for doc in docs:
            if away.exists() and len(answers) == 3:
                answers += [Unavailable("503")] * (len(docs) - 3)
                break
            doc["vector"] = service.vector(doc["words"])
            answers.append(doc)
        return answers

    world = PlanWorld(place, lambda w: plan_with(w, several, batch=8, attempts=1))
    for n in range(8):
        world.put(f"d{n}", words=f"t{n}")
    summary = world.run(wait=0)
    assert (summary.exit, summary.delivered, summary.pending) == (4, 3, 5)
    assert service.calls() == {f"t{n}": 1 for n in range(3)}
    away.unlink()
    assert world.run().delivered == 5
    assert service.calls() == {f"t{n}": 1 for n in range(8)}


def plan_with(world: PlanWorld, fn: Callable[..., Any], **options: Any) -> Plan:
    """A plan with this step, which remembers."""
    remember = options.pop("remember", Remember("v1", reads=["words"], cost=0.5))
    plan = Plan("paid", version=1)
    node = plan.source("docs", Memory(world.documents, max_deleted=1.0))
    node.step("embed", fn, remember=remember, **options).destination("out", world.out(), backoff=0)
    return plan


@pytest.mark.rule("remember.numbers")
@pytest.mark.parametrize("wrong", [[math.nan] * 32, [0.0] * 32, [1.5, math.inf] * 16])
def test_numbers_that_are_none_are_never_remembered(place: Path, wrong: list[float]) -> None:
    """NaN, infinity and a vector of zeros are what the step made of this document now, and are asked for again."""
    calls = Notes(place / "calls")

    def step(doc: Document) -> Document:
        calls.append(doc.id)
        doc["vector"] = wrong
        return doc

    world = PlanWorld(place, lambda w: plan_with(w, step, attempts=1))
    world.put("a", "b", words="x")
    world.run()
    assert len(calls.read()) == 2


@pytest.mark.rule("remember.numbers")
@pytest.mark.parametrize("count", [-1, 1])
def test_an_answer_of_a_wrong_length_is_never_remembered(place: Path, count: int) -> None:
    """Lists match by place: one answer too many or too few would shift all vectors behind it."""
    fixed = place / "fixed"
    calls = Notes(place / "calls")

    def step(docs: list[Document]) -> list[Document]:
        calls.append(len(docs))
        for doc in docs:
            doc["vector"] = vector_of(doc["words"])
        return [*docs, docs[0]][: len(docs) + count] if not fixed.exists() else docs

    world = PlanWorld(place, lambda w: plan_with(w, step, attempts=1, batch=4))
    for n in range(4):
        world.put(f"d{n}", words=f"t{n}")
    assert world.run().rejected == 4
    fixed.touch()
    calls.clear()
    world.retry()
    assert world.run().delivered == 4
    assert sum(calls.read()) == 4, "nothing was remembered, not even as refused"


def _children(doc: Document) -> list[Document]:
    return [doc, doc.child("one", words="x")]


def _content(doc: Document) -> Document:
    doc.raw = b"other"
    return doc


def _again(doc: Document) -> Document:
    doc.again("1h")
    return doc


def _other_field(doc: Document) -> Document:
    doc["title"] = "other"
    return doc


@pytest.mark.rule("remember.fields-only")
@pytest.mark.parametrize(
    ("step", "why"),
    [
        (_children, "made children"),
        (_content, "content"),
        (_again, "expires="),
        (_other_field, "wrote the field 'title'"),
    ],
)
def test_what_cannot_be_remembered_stops_the_step(place: Path, step: Callable[..., Any], why: str) -> None:
    """The first such call stops the step with the reason, so that no more calls are paid in vain."""
    calls = Notes(place / "calls")

    def counted(doc: Document) -> Any:
        calls.append(doc.id)
        return step(doc)

    remember = Remember("v1", reads=["words"], writes=["vector"])
    world = PlanWorld(place, lambda w: plan_with(w, counted, remember=remember))
    for n in range(20):
        world.put(f"d{n}", words=f"t{n}")
    summary = world.run()
    assert (summary.exit, summary.pending, len(calls.read())) == (4, 20, 1)
    assert any(why in text for text in summary.messages), summary.messages


@pytest.mark.rule("remember.reads")
def test_a_step_sees_only_what_it_reads(place: Path) -> None:
    """So what is not read cannot change an answer; it stays in the document."""
    seen = Notes(place / "seen")

    def step(doc: Document) -> Document:
        seen.append({**doc.fields, "raw": doc.raw})
        doc["words"].append("changed in place")
        doc["length"] = 3
        return doc

    world = PlanWorld(place, lambda w: plan_with(w, step))
    world.put("a", words=["x"], title="t")
    world.put("b", words=["x"], title="u")
    world.run()
    assert seen.read() == [{"words": ["x"], "raw": None}]
    changed = {"words": ["x", "changed in place"], "length": 3}
    assert delivered(world) == {"a": {**changed, "title": "t"}, "b": {**changed, "title": "u"}}


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_content_is_read_as_text_or_raw(place: Path) -> None:
    """``reads=["text"]`` is the content of a document without such a field, so that chunks of a text differ."""
    calls = Notes(place / "calls")

    def step(doc: Document) -> Document:
        calls.append(doc.text())
        doc["size"] = len(doc.text())
        return doc

    for name in ("text", "raw"):
        remember = Remember("v1", name=name, reads=[name])
        world = PlanWorld(_folder(place / name), lambda w, r=remember: plan_with(w, step, remember=r))
        world.put("a", text="one")
        world.put("b", text="three")
        world.put("c", text="one")
        world.run()
    assert sorted(calls.read()) == ["one", "one", "three", "three"]


def test_a_document_without_what_is_read_is_called_for_each_time(place: Path) -> None:
    """A misspelt name must not give all documents one answer."""
    calls = Notes(place / "calls")

    def step(doc: Document) -> Document:
        calls.append(doc["words"])
        doc["vector"] = vector_of(doc["words"])
        return doc

    world = PlanWorld(place, lambda w: plan_with(w, step, remember=Remember("v1", reads=["wrods"])))
    world.put("a", words="x")
    world.put("b", words="y")
    world.run()
    assert sorted(calls.read()) == ["x", "y"]
    assert delivered(world)["a"]["vector"] != delivered(world)["b"]["vector"]


@pytest.mark.rule("remember.shared")
def test_two_plans_and_two_versions_share_answers(place: Path) -> None:
    """What a version of a plan has paid for, another one and another plan get."""
    world, service = PlanWorld(place, build_paid), Service(place)
    for n in range(6):
        world.put(f"d{n}", words=f"t{n}")
    world.run(world.make_plan())
    world.run(world.make_plan(version=2))
    world.run(world.make_plan(name="other"))
    assert service.calls().total() == 6
    another = Remember("v2", reads=["words"], writes=["vector"])
    world.run(world.make_plan(name="third", remember=another))
    assert service.calls().total() == 12


@pytest.mark.rule("remember.shared")
def test_a_document_that_moved_or_came_back_costs_nothing(place: Path) -> None:
    world, service = paid(place), Service(place)
    world.put("old/a", words="x")
    world.run()
    world.drop("old/a")
    world.put("new/a", words="x")
    world.run()
    world.drop("new/a")
    world.run()
    world.put("old/a", words="x")
    world.run()
    assert service.calls() == {"x": 1}


@pytest.mark.rule("remember.force")
def test_retry_with_force_does_not_call_again(place: Path) -> None:
    """``--forget`` does, for the documents that are asked for."""
    world, service = paid(place), Service(place)
    for n in range(4):
        world.put(f"d{n}", words=f"t{n}")
    world.run()
    world.retry(force=True)
    world.run()
    assert set(service.calls().values()) == {1}
    world.retry(force=True, forget=True, document="d2")
    world.run()
    assert service.calls() == {"t0": 1, "t1": 1, "t2": 2, "t3": 1}
    world.retry(force=True, forget=True)
    world.run()
    assert service.calls() == {"t0": 2, "t1": 2, "t2": 3, "t3": 2}


def test_forgetting_reads_a_store_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many documents there are: for ten thousand of them it would take hours otherwise."""
    world, read, reads = paid(place), log.all_records, Counter[str]()

    def count_read(path: Path) -> Iterator[log.Record]:
        reads[path.name] += 1
        return read(path)

    for n in range(12):
        world.put(f"d{n}", words=f"t{n}")
    world.run()
    world.retry(force=True)
    world.run()
    monkeypatch.setattr(StoreKeeper, "fold", lambda keeper, *_, **__: Counter[str]())
    for n in range(12):
        world.put(f"d{n}", words=f"newer t{n}")
    world.run()
    monkeypatch.setattr(log, "all_records", count_read)
    world.retry(force=True, forget=True)
    assert reads
    assert max(reads.values()) == 1


@pytest.mark.rule("remember.refusals")
def test_answers_and_refusals_expire(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(place)
    remember = Remember("v1", reads=["words"], expires="10d", refusals="2d")
    world = PlanWorld(place, lambda w: build_paid(w, remember=remember))
    world.put("a", words="a")
    world.put("b", words="never")
    now = time.time_ns() // 1000
    world.run()
    for days, calls in ((0, (1, 1)), (1, (1, 1)), (3, (1, 2)), (11, (2, 3))):
        at = now + days * 86_400_000_000
        monkeypatch.setattr("ferryman.remembered.store.now_us", lambda at=at: at)
        monkeypatch.setattr("ferryman.engine.transform.remembering.now_us", lambda at=at: at)
        world.retry(force=True)
        world.run()
        assert (service.calls()["a"], service.calls()["never"]) == calls, days


@pytest.mark.rule("remember.code-changed")
def test_a_changed_step_is_said_once(place: Path) -> None:
    """Nothing is invalidated behind anybody's back."""
    world = PlanWorld(place)
    world.put("a", words="x")

    def one(doc: Document) -> Document:
        doc["size"] = 1
        return doc

    def two(doc: Document) -> Document:
        doc["size"] = 1 + 1
        return doc

    said = []
    for fn in (one, one, two, two):
        summary = world.run(plan_with(world, fn))
        said.append(sum("its code has changed, but not the version" in text for text in summary.messages))
    assert said == [0, 0, 1, 0]


def test_at_most_once_plans_remember(place: Path) -> None:
    """A remembered answer is not a second call."""
    service = Service(place)
    queue = Queue("in", place)

    def plan() -> Plan:
        plan = Plan("once", version=1, strategy="at-most-once")
        fn, _ = steps(service)["plain"]
        node = plan.source("docs", FromQueue("in", place))
        node.step("embed", fn, remember=Remember("v1", reads=["words"])).destination("out", Null())
        return plan

    queue.append([{"words": f"t{n % 3}"} for n in range(7)])
    summary = run_plan(plan(), place / "state")
    assert (summary.delivered, service.calls()) == (7, {"t0": 1, "t1": 1, "t2": 1})
    queue.append([{"words": "t1"}, {"words": "t9"}])
    run_plan(plan(), place / "state")
    assert service.calls() == {"t0": 1, "t1": 1, "t2": 1, "t9": 1}


@pytest.mark.parametrize("weight", [None, lambda doc: len(doc["words"]) / 10])
def test_a_list_closes_at_a_size(place: Path, weight: Callable[[Document], float] | None) -> None:
    """By count and by size, in bytes or in what ``weight=`` counts; a larger document comes alone."""
    sizes = Notes(place / "sizes")

    def several(docs: list[Document]) -> list[Document]:
        sizes.append([len(doc["words"]) for doc in docs])
        return docs

    limit = {"batch_bytes": 100 if weight is None else 10, "weight": weight}
    world = PlanWorld(place, lambda w: plan_with(w, several, batch=4, **limit))
    for n, size in enumerate((30, 40, 50, 300, 10, 11, 12, 13, 14, 60)):
        world.put(f"d{n}", words=f"{n}".ljust(size, "x"))
    assert world.run().delivered == 10
    lists = sizes.read()
    assert sorted(each for some in lists for each in some) == [10, 11, 12, 13, 14, 30, 40, 50, 60, 300]
    assert all(len(some) <= 4 and (sum(some) <= 100 or len(some) == 1) for some in lists), lists
    assert [30, 40] in lists
    assert [300] in lists
    assert [10, 11, 12, 13] in lists
