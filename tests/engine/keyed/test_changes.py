"""State by key that follows documents: changed, moved to another key, deleted, forced."""

from __future__ import annotations

import operator
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, limits
from ferryman.destinations import Queue as IntoQueue
from ferryman.errors import PermanentError, PlanError, UsageError
from ferryman.operations import retry
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import Duplicate
from ferryman.sources import Memory, Queue
from ferryman.state.state import State, state_root
from tests.support.invariants import Files, states
from tests.support.keyed import Sums, count, count_words
from tests.support.plan_world import PlanWorld, run_plan


def balance(key: str, state: int | None, documents: list[Document]) -> tuple[int | None, dict[str, Any]]:
    """The sum of ``n`` over the documents of a key: what they were is taken back."""
    new = state or 0
    for doc in documents:
        new -= doc.previous["n"] if doc.previous else 0
        new += doc["n"] if doc.operation == "upsert" else 0
    return new or None, {"key": key, "old": state or 0, "new": new}


def build_ledger(place: Path, update: Any = balance) -> Sums:
    """Create plan ``ledger``: a list of documents → keyed node ``sums``, by ``key`` → queue ``out``."""

    def build(world: PlanWorld) -> Plan:
        plan = Plan("ledger", version=1)
        node = plan.source("docs", Memory(world.documents, max_deleted=1.0)).keyed("sums", update, key="key")
        node.destination("out", IntoQueue("out", place))
        return plan

    return Sums(place, build)


@pytest.mark.rule("keyed.changes")
def test_a_changed_document_replaces_what_it_was(place: Path) -> None:
    ledger = build_ledger(place)
    ledger.contents = {"a": {"key": "x", "n": 3}, "b": {"key": "x", "n": 4}}
    ledger.run()
    ledger.contents["a"]["n"] = 10
    ledger.run()
    assert ledger.states(node="sums") == {"x": 14}


@pytest.mark.rule("keyed.changes")
def test_a_document_that_moves_leaves_its_old_key(place: Path) -> None:
    ledger = build_ledger(place)
    ledger.contents = {"a": {"key": "x", "n": 3}, "b": {"key": "x", "n": 4}}
    ledger.run()
    ledger.contents["a"] = {"key": "y", "n": 5}
    assert ledger.run().exit == 0
    assert ledger.states(node="sums") == {"x": 4, "y": 5}


@pytest.mark.rule("keyed.changes")
def test_a_deleted_document_is_taken_back(place: Path) -> None:
    ledger = build_ledger(place)
    ledger.contents = {"a": {"key": "x", "n": 3}, "b": {"key": "y", "n": 4}}
    ledger.run()
    del ledger.contents["a"]
    assert ledger.run().exit == 0
    assert ledger.states(node="sums") == {"y": 4}
    ledger.contents["a"] = {"key": "x", "n": 6}
    ledger.run()
    assert ledger.states(node="sums") == {"x": 6, "y": 4}


@pytest.mark.rule("keyed.changes")
def test_a_forced_document_is_not_added_twice(place: Path) -> None:
    ledger = build_ledger(place)
    ledger.contents = {"a": {"key": "x", "n": 3}}
    ledger.run()
    retry(ledger.plan, state=place / "state", force=True, why="a test says so")
    ledger.run()
    assert ledger.states(node="sums") == {"x": 3}


def picky(key: str, state: int | None, documents: list[Document]) -> Any:
    if any(doc.get("n", 0) < 0 for doc in documents):
        raise PermanentError("negative")
    return balance(key, state, documents)


def test_what_was_rejected_is_not_taken_back(place: Path) -> None:
    """A version that never went into the state leaves what was there before."""
    ledger = build_ledger(place, picky)
    ledger.contents = {"a": {"key": "x", "n": 3}}
    ledger.run()
    ledger.contents["a"]["n"] = -1
    assert ledger.run().rejected == 1
    assert ledger.states(node="sums") == {"x": 3}
    ledger.contents["a"]["n"] = 5
    assert ledger.run().exit == 0
    assert ledger.states(node="sums") == {"x": 5}


def test_a_document_that_was_never_counted_can_be_deleted(place: Path) -> None:
    ledger = build_ledger(place, picky)
    ledger.contents = {"a": {"key": "x", "n": -1}, "b": {"key": "x", "n": 1}}
    ledger.run()
    del ledger.contents["a"]
    assert ledger.run().pending == 0
    assert ledger.states(node="sums") == {"x": 1}


@pytest.mark.rule("keyed.changes")
def test_random_changes_equal_a_recount(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents come, change, move and go; files are merged; and each export tells what was told before."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 4)
    chance = random.Random(14)
    ledger = build_ledger(place)
    for _ in range(6):
        for _ in range(60):
            id = f"d{chance.randrange(80)}"
            if chance.random() < 0.2:
                ledger.contents.pop(id, None)
            else:
                ledger.contents[id] = {"key": f"k{chance.randrange(12)}", "n": chance.randrange(1, 9)}
        assert ledger.run().exit == 0
        assert ledger.states(node="sums") == ledger.recount()
    assert len(Files(ledger.root / "contributions", "sums").paths) <= 8
    told: dict[str, int] = defaultdict(int)
    for message in ledger.queue("out").read(limit=10_000):
        assert message.body["old"] == told[message.body["key"]]
        told[message.body["key"]] = message.body["new"]
    assert {key: n for key, n in told.items() if n} == ledger.recount()


def total(key: str, values: list[int]) -> int | None:
    return sum(values) or None


@pytest.mark.rule("keyed.inverse")
def test_a_combining_node_takes_back_by_its_inverse(place: Path) -> None:
    plan = Plan("sums")
    documents = [{"id": "a", "key": "x", "n": 3}, {"id": "b", "key": "x", "n": 4}]
    source = plan.source("docs", Memory(documents, max_deleted=1.0))
    source.combine("sums", total, key="key", value="n", inverse=operator.neg).destination(
        "out", IntoQueue("out", place)
    )
    DurableQueue("out", place)
    run_plan(plan, place / "state")
    documents[:] = [{"id": "b", "key": "y", "n": 5}]
    run_plan(plan, place / "state")
    assert states(place / "state" / "sums-v0", "sums") == {"y": 5}


@pytest.mark.rule("keyed.inverse")
def test_without_an_inverse_documents_may_not_change() -> None:
    plan = Plan("sums")
    plan.source("docs", Memory([])).combine("sums", total, key="key", value="n")
    with pytest.raises(PlanError, match="documents of docs may change or vanish"):
        plan.check()


def test_copies_of_a_document_that_may_change_may_not_meet() -> None:
    plan = Plan("copies")
    fork = plan.source("docs", Memory([])).route("fork", Duplicate())
    ways = [fork.step(name, lambda doc: doc) for name in ("one", "two")]
    plan.keyed("sums", balance, key="key", after=ways)
    with pytest.raises(PlanError, match="sums: copies of one document of docs come here by several routes"):
        plan.check()


@pytest.mark.rule("keyed.again")
def test_an_entry_of_a_log_is_counted_once(place: Path) -> None:
    """Neither force nor a rewind has it counted again."""
    words = count_words(place)
    words.put("a", "b")
    words.run()
    retry(words.plan, state=words.state, force=True, why="a test says so")
    [reader] = words.into.readers()
    words.into.tailer(reader).to(1)
    assert words.run().exit == 0
    words.put("a")
    words.run()
    assert words.states() == {"a": 2, "b": 1}


@pytest.mark.rule("keyed.again")
def test_an_entry_that_asks_to_be_read_again_is_rejected(place: Path) -> None:
    """It would be counted twice. So would what is exported be told twice."""

    def ask(doc: Document) -> Document:
        if doc.get("word") == "b" or doc.get("new") == 2:
            doc.again("1h")
        return doc

    into = DurableQueue("in", place)
    into.append([{"word": word} for word in "abca"])
    plan = Plan("asks", version=1)
    counts = plan.source("in", Queue("in", place)).step("ask", ask).keyed("counts", count, key="word")
    counts.step("ask-below", ask).destination("out", IntoQueue("out", place))
    plan.errors(IntoQueue("errors", place))
    assert run_plan(plan, place / "state").exit == 0
    assert states(place / "state" / "asks-v1", "counts") == {"a": 2, "c": 1}
    assert [message.body["key"] for message in DurableQueue("out", place).read()] == ["c"]
    errors = [message.body for message in DurableQueue("errors", place).read()]
    assert sorted(error["where"] for error in errors) == ["ask", "ask-below"]
    assert all("not read again" in error["cause"] for error in errors)


@pytest.mark.rule("keyed.another")
def test_a_queue_that_was_made_again_is_not_counted_on_top(place: Path) -> None:
    """At the start of a run, and in the middle of one; nothing of it is read. A plan of its own counts it anew."""
    words = count_words(place)
    words.put("a", "b")
    words.run()
    waves = words.status()["waves"]
    words.into.delete()
    words.into = DurableQueue("in", place)
    words.put("a")
    for _ in range(2):
        with pytest.raises(UsageError, match="counts would count its entries on top") as refused:
            words.run()
        assert refused.value.exit_code == 2
    assert (words.states(), words.status()["waves"]) == ({"a": 1, "b": 1}, waves)
    anew = count_words(place)
    anew.state = place / "anew"
    assert anew.run().exit == 0
    assert states(state_root(anew.plan, anew.state), "counts") == {"a": 1}


@pytest.mark.rule("keyed.another")
def test_a_queue_is_made_again_while_a_plan_runs(place: Path) -> None:
    """The next look ends the run."""
    words = count_words(place)
    words.put("a")

    def meanwhile(_: float) -> None:
        words.into.delete()
        words.into = DurableQueue("in", place)
        words.put("b")

    with pytest.raises(UsageError, match="would count its entries on top"):
        words.run(every=0.001, sleep=meanwhile)
    assert words.states() == {"a": 1}


@pytest.mark.rule("keyed.back")
def test_a_node_that_was_taken_out_cannot_come_back_under_its_name(place: Path) -> None:
    """Its state has missed what came since: that is said, and nothing changed. Under another name it begins anew."""
    words, queue = count_words(place), DurableQueue("in", place)
    words.put("a")
    words.run()

    def run(name: str = "") -> None:
        plan = Plan("words", version=1)
        source = plan.source("from_in", Queue("in", place))
        if name:
            source.keyed(name, count, key="word")
        else:
            source.destination("plain", IntoQueue("plain", place))
        with State.take(words.root, plan) as state:
            state.record_plan(accept_changes=True)
        run_plan(plan, place / "state", checked=False)  # what came before has no row at a node that is new

    run()
    queue.append([{"word": "a"}])
    run()
    with pytest.raises(UsageError, match="counts: this keyed node was taken out of the plan"):
        run("counts")
    queue.append([{"word": "a"}])
    run("again")
    assert states(words.root, "again") == {"a": 1}
    assert words.states() == {"a": 1}
