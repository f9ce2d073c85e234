"""What went through is read again, and what failed is tried again: an operator's word about entries of logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman import account, limits
from ferryman.destinations import Outcome
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.errors import PermanentError, TransientError
from ferryman.operations import retry
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.records import rows as due
from ferryman.routers import Duplicate
from ferryman.sources import Queue
from tests.support.invariants import rows
from tests.support.logs import Topic, read_log
from tests.support.plan_world import PlanWorld, run_plan
from tests.support.recorder import Recorder


def revisions(world: PlanWorld, document: str) -> list[tuple[int, str]]:
    """Revision and status of each of a document's events."""
    return [(e["revision"], e["status"]) for e in world.history(document)]


ORDERED = pytest.mark.parametrize("ordered", [True, False])


@ORDERED
@pytest.mark.rule("log.force")
def test_an_entry_that_went_through_is_read_again(place: Path, ordered: bool) -> None:
    """As a new revision, once; and again when somebody says so again. The position does not move."""
    retrying = read_log(place, ordered=ordered)
    retrying.put(0, 1, 2, 3)
    retrying.run()
    assert retrying.retry(force=True, document="in/2").count == 1
    before = retrying.log()
    assert retrying.run().exit == 0
    assert retrying.out().arrived() == ["in/1", "in/2", "in/3", "in/4", "in/2"]
    assert revisions(retrying, "in/2") == [(1, "INDEXED"), (1, "FORCE"), (2, "INDEXED")]
    assert retrying.log() == before == {"positions": {"in": 5}, "read": 4, "lag": 0}
    assert retrying.run().waves == 0
    retrying.retry(force=True, document="in/2")
    retrying.put(4)
    retrying.run()
    assert retrying.out().arrived()[4:] == ["in/2", "in/2", "in/5"]


@ORDERED
def test_all_that_went_through(place: Path, ordered: bool) -> None:
    """Without a filter: each entry once, also one that waits for its turn."""
    retrying = read_log(place, ordered=ordered)
    retrying.put(*range(30))
    retrying.run()
    assert retrying.retry(force=True).count == 30
    retrying.put(30)
    assert retrying.run().exit == 0
    assert sorted(retrying.out().arrived()) == sorted([*(f"in/{n}" for n in range(1, 31))] * 2 + ["in/31"])
    assert retrying.log()["read"] == 31


def test_a_forced_entry_is_not_lost_by_a_merge(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files of the table, between the command and the next scan."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 1)
    retrying = read_log(place)
    retrying.put(0, 1)
    retrying.run()
    for document in ("in/1", "in/2"):
        retrying.retry(force=True, document=document)
    retrying.run()
    assert sorted(retrying.out().arrived()) == ["in/1", "in/1", "in/2", "in/2"]


class Switch:
    """A step that fails for these numbers until a file is there."""

    __name__ = "switch"

    def __init__(self, folder: Path, error: Exception, *numbers: int) -> None:
        self._mended = folder / "mended"
        self._error = error
        self._numbers = numbers

    def __call__(self, doc: Document) -> Document:
        if doc["n"] in self._numbers and not self._mended.exists():
            raise self._error
        return doc


@ORDERED
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.rule("log.retry")
def test_a_failed_entry_is_tried_again(place: Path, ordered: bool, force: bool) -> None:
    """By its row, whether or not the source is ordered; the position is where it was."""
    retrying = read_log(place, None, Switch(place, PermanentError("broken"), 1), ordered=ordered, on_error="continue")
    retrying.put(0, 1, 2)
    assert retrying.run().exit == 3
    before = retrying.log()
    assert before == {"positions": {"in": 4}, "read": 3, "lag": 0}
    (place / "mended").touch()
    assert retrying.run().exit == 3
    assert retrying.retry(force=force, status="rejected").count == 1
    assert retrying.log() == before
    retrying.put(3)
    assert retrying.run().exit == 0
    assert sorted(retrying.out().arrived()) == ["in/1", "in/2", "in/3", "in/4"]
    assert retrying.log() == {"positions": {"in": 5}, "read": 4, "lag": 0}
    assert retrying.run().waves == 0


@ORDERED
def test_a_retry_that_fails_again_holds_nobody(place: Path, ordered: bool) -> None:
    """It has a row: what is appended later passes it."""
    retrying = read_log(place, None, Switch(place, PermanentError("broken"), 1), ordered=ordered, on_error="continue")
    retrying.put(0, 1)
    retrying.run()
    retrying.retry()
    retrying.put(2)
    assert retrying.run().exit == 3
    assert retrying.out().arrived() == ["in/1", "in/3"]


def test_an_entry_that_a_destination_refused(place: Path) -> None:
    """Its row is in the outbox: it is sent again, and not read again. Forced, it is read again."""
    retrying = read_log(place)
    retrying.put(0, 1)
    retrying.out().answer = lambda d: Outcome.permanent("no") if d.id == "in/2" else Outcome.ok()
    assert retrying.run().exit == 3
    retrying.out().answer = None
    retrying.retry()
    assert retrying.run().exit == 0
    assert revisions(retrying, "in/2") == [(1, "DEAD"), (1, "RESTART"), (1, "INDEXED")]
    retrying.out().answer = lambda d: Outcome.permanent("no") if d.id == "in/1" else Outcome.ok()
    retrying.retry(force=True)
    assert retrying.run().exit == 3
    retrying.out().answer = None
    retrying.retry(force=True, status="failed")
    assert retrying.run().exit == 0
    assert retrying.out().arrived() == ["in/1", "in/2", "in/2", "in/1"]


@ORDERED
@pytest.mark.rule("log.force")
def test_a_message_that_is_not_kept_any_more_is_rejected(place: Path, ordered: bool) -> None:
    retrying = read_log(place, ordered=ordered)
    retrying.put(0, 1)
    retrying.run()
    retrying.into.trim(0)
    retrying.put(2)
    retrying.retry(force=True, document="in/1")
    summary = retrying.run()
    assert (summary.exit, summary.rejected, summary.delivered) == (3, 1, 1)
    [found] = account.deliveries(retrying.root, plan=retrying.plan, status="rejected")
    assert found["document"] == "in/1"
    assert "the queue does not keep this message any more" in found["message"]
    assert retrying.out().arrived() == ["in/1", "in/2", "in/3"]


def words(doc: Document) -> Iterator[Document]:
    for word in doc["text"].split():
        yield doc.child(word, word=word)


class Shorter:
    """A step that leaves words out once a file is there."""

    __name__ = "shorter"

    def __init__(self, folder: Path) -> None:
        self._there = folder / "shorter"

    def __call__(self, doc: Document) -> Document:
        if self._there.exists():
            doc["text"] = doc["text"].split()[0]
        return doc


def test_children_that_are_not_made_any_more_are_deleted(place: Path) -> None:
    """What was given of a family is known from its deliveries."""
    retrying = read_log(place, None, Shorter(place), words)
    retrying.into.append([{"text": "to be or not"}])
    retrying.run()
    (place / "shorter").touch()
    retrying.retry(force=True, document="in/1")
    summary = retrying.run()
    assert (summary.delivered, summary.deleted) == (1, 3)
    deleted = {line["id"] for line in retrying.out().lines() if line["op"] == "delete"}
    assert deleted == {"in/1#be", "in/1#or", "in/1#not"}


def test_every_branch_gets_it_again(place: Path) -> None:
    """Also if only one destination is named: a document is read again as a whole."""
    queue = DurableQueue("in", place)
    queue.append([{"n": 0}, {"n": 1}])
    plan = Plan("branches")
    node = plan.source("log", Queue("in", place)).route("both", Duplicate())
    outs = {name: Recorder(place / f"{name}.jsonl") for name in ("a", "b")}
    for name, out in outs.items():
        node.destination(name, out, backoff=0)
    run_plan(plan, place / "state")
    assert retry(plan, state=place / "state", force=True, document="in/2", destination="a").count == 1
    run_plan(plan, place / "state")
    for out in outs.values():
        assert [line["id"] for line in out.lines() if "id" in line] == ["in/1", "in/2", "in/2"]
        assert not [line for line in out.lines() if line.get("op") == "delete"]


def test_a_message_that_a_filter_dropped_is_dropped_again(place: Path) -> None:
    """And goes through, if the filter is another one now."""
    retrying = read_log(place, types=["a"])
    retrying.into.append([{"type": "a"}, {"type": "b"}])
    retrying.run()
    retrying.retry(force=True, document="in/2")
    assert retrying.run().dropped == 1
    assert retrying.out().arrived() == ["in/1"]
    other = read_log(place, types=["a", "b"])
    other.retry(force=True, document="in/2")
    other.run()
    assert other.out().arrived() == ["in/1", "in/2"]


def test_provenance_of_what_is_read_again(place: Path) -> None:
    """The same as the first time."""
    queue = DurableQueue("in", place)
    queue.append([{"n": 0}])
    plan = Plan("pipe")
    plan.source("log", Queue("in", place)).destination("out", ToQueue("out", place))
    run_plan(plan, place / "state")
    retry(plan, state=place / "state", force=True)
    run_plan(plan, place / "state")
    first, second = DurableQueue("out", place).read()
    assert first.meta["queues"] == second.meta["queues"]


class Once:
    """A step that fails once for each document."""

    __name__ = "once"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, doc: Document) -> Document:
        seen = self._folder / f"seen-{doc['n']}"
        if not seen.exists():
            seen.touch()
            raise TransientError("not now")
        return doc


def test_more_entries_than_can_be_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody lists a log: its entries are named in any case."""
    monkeypatch.setattr(limits, "NAMED_DOCUMENTS", 3)
    retrying = read_log(place, None, Once(place), ordered=False)
    retrying.put(*range(10))
    assert retrying.run().exit == 0
    assert sorted(retrying.out().arrived()) == sorted(f"in/{n}" for n in range(1, 11))


def later(doc: Document) -> Document:
    doc.again("1h")
    return doc


def test_an_entry_that_a_step_wants_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is read again by the first scan after that time, as other documents are."""
    retrying = read_log(place, None, later)
    retrying.put(0)
    retrying.run()
    assert retrying.run().waves == 0
    real = due.now_us
    for module in ("run", "pending_work", "logs", "scan.phase", "transform.phase"):
        monkeypatch.setattr(f"ferryman.engine.{module}.now_us", lambda: real() + 2 * 3600 * 1_000_000)
    retrying.run()
    assert retrying.out().arrived() == ["in/1", "in/1"]
    assert [revision for revision, _ in revisions(retrying, "in/1")] == [1, 1, 2, 2]


def test_a_queue_that_was_made_again_and_a_revision_that_was_forced(place: Path) -> None:
    """Are two deliveries, with two hashes."""
    retrying = read_log(place)
    retrying.put(7)
    retrying.run()
    retrying.retry(force=True)
    retrying.run()
    retrying.into.delete()
    retrying.into = DurableQueue("in", place)
    retrying.put(7)
    retrying.run()
    assert retrying.out().arrived() == ["in/1"] * 3
    hashes = [line["hash"] for line in retrying.out().lines() if line["said"] == "ok"]
    assert len(set(hashes)) == 3


def test_a_record_of_a_topic(place: Path) -> None:
    """Of any log; also one that was refused when it was read."""
    topic = Topic(place / "topic", on_error="continue")
    topic.publish("p0", {"n": 0}, "odd")
    retrying = read_log(place, topic)
    assert retrying.run().rejected == 1
    assert retrying.retry(force=True).count == 2
    summary = retrying.run()
    assert (summary.exit, summary.rejected) == (3, 1)
    assert retrying.out().arrived() == ["p0/0", "p0/0"]
    assert rows(retrying.root, "documents")


def test_an_entry_of_one_of_several_queues(place: Path) -> None:
    """Is read again from its own, also where another one has a message of the same index."""
    for name in ("qa", "qb"):
        DurableQueue(name, place).append([{"of": name}])
    plan = Plan("alts")
    both = plan.alts("both", [plan.source(name, Queue(name, place)) for name in ("qa", "qb")])
    both.destination("out", ToQueue("out", place))
    run_plan(plan, place / "state")
    assert retry(plan, state=place / "state", force=True, document="qb/1").count == 1
    run_plan(plan, place / "state")
    assert [m.body["of"] for m in DurableQueue("out", place).read()] == ["qa", "qb", "qb"]
