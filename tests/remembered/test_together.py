"""Steps that remember beside other runs, in an object store, on a disk that is full, and in a store that is deleted."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, Plan, Remember, steps
from ferryman.remembered.upkeep import StoreKeeper
from ferryman.sources import Memory
from ferryman.storage.files import path_of
from ferryman.testing.inprocess import InProcess
from tests.support.in_store import faulty, states
from tests.support.paid import Notes, Service, build_paid, vector_of
from tests.support.plan_world import PlanWorld, run_plan

__all__ = ["faulty", "states"]


@pytest.mark.rule("remember.one-caller")
@pytest.mark.parametrize("mode", ["plain", "batch", "threads"])
def test_two_plans_at_once_call_once(place: Path, mode: str) -> None:
    """Two drivers with tasks in processes of their own, which begin together: the second one waits for the answers."""
    service = Service(place)
    words = [f"t{n}" for n in range(24)]
    begin = threading.Barrier(2)
    errors: list[BaseException] = []

    def run(name: str, order: list[str]) -> None:
        try:
            world = PlanWorld(place, build_paid).build(mode, name=name)
            for n, text in enumerate(order):
                world.put(f"{name}{n:02}", words=text)
            begin.wait()
            world.run(runner=InProcess(fork=True), checked=False)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=each) for each in (("one", words), ("two", words[8:] + words[:8]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert service.calls() == dict.fromkeys(words, 1)
    totals = StoreKeeper(place / "state" / "remembered" / "embed").totals()
    assert (totals.calls, totals.hits, totals.in_doubt, totals.answers) == (24, 24, 0, 24)


@pytest.mark.parametrize("mode", ["plain", "async batch"])
def test_a_state_in_an_object_store(place: Path, states: str, mode: str) -> None:
    """Answers are beside it, and last."""
    world, service = PlanWorld(place, build_paid).build(mode), Service(place)
    world.state = path_of(states)  # type: ignore[assignment]
    for n in range(9):
        world.put(f"d{n}", words=f"t{n % 5}")
    first = run_plan(world.plan, world.state, checked=False)
    for n in range(9):
        world.put(f"d{n}", words=f"t{n % 6}", title="changed")
    second = run_plan(world.plan, world.state, checked=False)
    assert service.calls() == {f"t{n}": 1 for n in range(6)}
    assert [first.remembered["embed"][name] for name in ("calls", "hits")] == [5, 4]
    assert [second.remembered["embed"][name] for name in ("calls", "hits")] == [1, 8]
    assert StoreKeeper(path_of(states) / "remembered" / "embed").totals().answers == 6


def plan_with(step: Callable[[Document], Document]) -> Callable[[PlanWorld], Plan]:
    """A plan with a step that remembers by ``words``."""

    def build(world: PlanWorld) -> Plan:
        plan = Plan("paid", version=1)
        node = plan.source("docs", Memory(world.documents, max_deleted=1.0))
        remember = Remember("v1", reads=["words"])
        node.step("embed", step, remember=remember).destination("out", world.out(), backoff=0)
        return plan

    return build


def test_a_store_that_is_deleted_while_a_run_is_on(place: Path) -> None:
    """Its answers are gone, the run is not: what it needs again is called for again."""
    folder, service = place / "state" / "remembered", Service(place)

    def step(doc: Document) -> Document:
        if doc["words"] == "t5":
            shutil.rmtree(folder)
        doc["vector"] = service.vector(doc["words"])
        return doc

    world = PlanWorld(place, plan_with(step))
    for n in range(10):
        world.put(f"d{n}", words=f"t{n}")
    assert world.run().delivered == 10
    world.put("more", words="t9")
    assert world.run().delivered == 1


def test_a_full_disk_costs_no_attempt(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be kept is not gone on with: the step waits, as if it were away, and the next run goes on."""
    world, service = PlanWorld(place, build_paid).build(), Service(place)
    for n in range(20):
        world.put(f"d{n}", words=f"t{n}")
    append = "ferryman.remembered.log.LogWriter.append"

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(append, full)
        summary = world.run(wait=0)
    assert (summary.exit, summary.pending, summary.failed) == (4, 20, 0)
    assert any("what it remembers cannot be read or written" in text for text in summary.messages)
    assert service.calls().total() == 0
    assert world.run().delivered == 20
    assert set(service.calls().values()) == {1}


def test_ids_and_answers_of_any_size(place: Path) -> None:
    """Ids of 5 000 characters, hostile ones, an answer of 10 MB, a text of 1 MB."""
    calls = Notes(place / "calls")

    def step(doc: Document) -> Document:
        calls.append(len(doc["words"]))
        doc["answer"] = doc["words"][:1] * (10 << 20 if doc["words"] == "large" else 10)
        return doc

    def plan(world: PlanWorld) -> Plan:
        plan = Plan("sizes", version=1)
        node = plan.source("docs", Memory(world.documents, max_deleted=1.0))
        node.step("say", step, remember=Remember("v/1 ~ä\n", reads="words")).destination("out", world.out(), backoff=0)
        return plan

    world = PlanWorld(place, plan)
    for n, id in enumerate(["i" * 5000, "../../x~1~y.rec", "a\nb", "é", "x" * 45]):
        world.put(id, words=("x" * (1 << 20)) if n == 1 else f"w{n}")
    world.put("large", words="large")
    assert world.run().delivered == 6
    keeper = StoreKeeper(place / "state" / "remembered" / "say")
    for document in world.documents:
        assert len(keeper.keys_of_documents([document["id"]])) == 1
    for document in [*world.documents]:
        world.put(document["id"], words=document["words"], title="other")
    assert world.run().remembered["say"]["hits"] == 6
    assert len(calls.read()) == 6
    lines = {line["id"]: line["fields"]["answer"] for line in world.out().lines()}
    assert len(lines["large"]) == 10 << 20


def test_an_edited_paragraph_costs_one_call(place: Path) -> None:
    """Chunks by content: a text grows at its top, a paragraph changes, and only what is new is paid for and sent."""
    service = Service(place)

    def step(doc: Document) -> Document:
        doc["vector"] = service.vector(doc.text())
        return doc

    def plan(world: PlanWorld) -> Plan:
        plan = Plan("chunks", version=1)
        node = plan.source("docs", Memory(world.documents, max_deleted=1.0))
        node = node.step("split", steps.split_text(by="paragraphs", key="content"))
        remember = Remember("v1", reads=["text"], writes=["vector"])
        node.step("embed", step, batch=None, remember=remember).destination("out", world.out(), backoff=0)
        return plan

    world = PlanWorld(place, plan)
    paragraphs = [f"paragraph-{n}" for n in range(20)]
    world.put("book", text="\n\n".join(paragraphs))
    world.run()
    before = {line["id"] for line in world.out().lines()}
    paragraphs[10] = "edited"
    world.put("book", text="\n\n".join(["new", *paragraphs]))
    summary = world.run()
    assert summary.remembered["embed"]["calls"] == 2
    assert (summary.delivered, summary.deleted) == (2, 1)
    assert service.calls().total() == 22
    after = [line for line in world.out().lines() if line["id"] not in before]
    assert len(after) == 2
    assert all(line["fields"]["vector"] for line in after)
    assert vector_of("edited")


def test_an_input_that_kills_its_process(place: Path) -> None:
    """It fails alone, after as many calls as it has attempts, each in doubt; the others are called for once."""
    service = Service(place)

    def step(doc: Document) -> Document:
        doc["vector"] = service.vector(doc["words"], doc.idempotency_key)
        if doc["words"] == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        return doc

    world = PlanWorld(place, plan_with(step))
    for n in range(8):
        world.put(f"d{n}", words="deadly" if n == 3 else f"t{n % 4}")
    summary = world.run(runner=InProcess(fork=True, failures=2))
    assert summary.delivered == 7
    assert summary.failed + summary.rejected == 1
    calls = service.calls()
    deaths = calls.pop("deadly")
    assert calls == {"t0": 1, "t1": 1, "t2": 1, "t3": 1}
    assert summary.remembered["embed"]["in_doubt"] == deaths - 1
    assert {len(keys) for keys in service.keys().values()} == {1}
