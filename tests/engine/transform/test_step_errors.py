"""Errors of steps: when a document is tried again, and what ends its retries."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferryman.document import Document
from ferryman.records.rows import reason_of
from tests.support import NOT_SOON_S
from tests.support.invariants import rows
from tests.support.plan_world import PlanWorld
from tests.support.scanning import counting


def fragile(doc: Document) -> Document:
    """Fails for what says so, with what it says."""
    if doc.text().startswith("fail"):
        raise LookupError(doc.text())
    return doc


@pytest.mark.rule("step.raises")
def test_a_step_error_names_step_type_and_message(trial: PlanWorld) -> None:
    """And harms only its own document."""
    trial.build(fragile, backoff=NOT_SOON_S)
    trial.put("a", "c")
    trial.put("b", text="fail: no such word")
    assert trial.run(wait=0).exit == 4
    assert trial.counts() == {"delivered": 2, "pending": 1}
    [event] = trial.history("b")
    assert event["status"] == "ERROR"
    place = f"{__file__}:{fragile.__code__.co_firstlineno + 3}"
    assert reason_of(event["message"]) == f"step fragile: LookupError: fail: no such word ({place})"
    assert event["attempt"] == 1


@pytest.mark.rule("retry.calls")
def test_a_step_error_is_tried_again_when_due_and_dead_at_the_end(place: Path) -> None:
    """Each attempt calls the step once; the last one says so."""
    calls = place / "calls"
    trial = PlanWorld(place).build(counting(calls, "counted"), fragile, attempts=3)
    trial.put("a", text="fail")
    trial.put("b")
    assert trial.run().exit == 3
    assert trial.statuses("a") == ["ERROR", "ERROR", "DEAD"]
    assert [e["attempt"] for e in trial.history("a")] == [1, 2, 3]
    assert "(attempt 3, the last)" in trial.history("a")[-1]["message"]
    assert sorted(calls.read_text().splitlines()) == ["counted a"] * 3 + ["counted b"]
    assert trial.counts() == {"delivered": 1, "failed": 1}
    trial.run()
    assert len(trial.history("a")) == 3, "dead is not tried again by itself"


@pytest.mark.rule("retry.due")
def test_a_step_error_is_not_tried_before_it_is_due(trial: PlanWorld) -> None:
    """Its due time outlives the run; other scans leave it alone."""
    trial.build(fragile, backoff=NOT_SOON_S)
    trial.put("a", text="fail")
    for _ in range(3):
        trial.run(wait=0)
    assert trial.statuses("a") == ["ERROR"]
    assert [r["owed"] for r in rows(trial.root, "documents")] == [1]


def test_a_step_that_recovers_delivers_the_same_delivery(trial: PlanWorld) -> None:
    """The hash of the first attempt, attempt number two."""
    flag = trial.folder / "once"

    def once(doc: Document) -> Document:
        if not flag.exists():
            flag.touch()
            raise RuntimeError("not the first time")
        return doc

    trial.build(once)
    trial.put("a")
    trial.run()
    assert trial.statuses("a") == ["ERROR", "INDEXED"]
    error, indexed = trial.history("a")
    assert error["delivery_hash"] == indexed["delivery_hash"] == trial.out().lines()[0]["hash"]
    assert trial.out().lines()[0]["attempt"] == 2


@pytest.mark.rule("retry.way")
def test_only_what_is_owed_is_fed_again(place: Path) -> None:
    """A retry within a run looks for its documents only: what was delivered is not walked again."""
    calls = place / "calls"
    trial = PlanWorld(place).build(counting(calls, "counted"), fragile, attempts=2, detect="none")
    trial.put("a", "b", "c")
    trial.put("d", text="fail")
    trial.run()
    assert sorted(calls.read_text().splitlines()) == ["counted a", "counted b", "counted c", "counted d", "counted d"]


def test_a_step_error_is_superseded_by_a_newer_version(trial: PlanWorld) -> None:
    """It ends DROPPED when the new one is committed."""
    trial.build(fragile, backoff=NOT_SOON_S)
    trial.put("a", text="fail")
    trial.run(wait=0)
    trial.put("a", text="fine")
    trial.run(wait=0)
    events = trial.history("a")
    assert [(e["revision"], e["status"]) for e in events] == [(1, "ERROR"), (1, "DROPPED"), (2, "INDEXED")]
    assert "superseded" in events[1]["message"]
    assert trial.counts() == {"delivered": 1}


def test_a_step_error_is_superseded_by_a_delete(trial: PlanWorld) -> None:
    """Nothing was ever given, so nothing is sent."""
    trial.build(fragile, backoff=NOT_SOON_S)
    trial.put("a", text="fail")
    trial.put("b")
    trial.run(wait=0)
    trial.drop("a")
    assert trial.run(wait=0).exit == 0
    assert trial.statuses("a") == ["ERROR", "DROPPED"]
    assert trial.counts() == {"delivered": 1}
    assert trial.out().counted() == {"b": 1}


@pytest.mark.rule("child.kept")
def test_a_failing_new_version_leaves_the_old_one_where_it_is(trial: PlanWorld) -> None:
    """The destination keeps what it has until something better comes; when the document goes, it is deleted there."""
    trial.build(fragile, attempts=1)
    trial.put("a")
    trial.run()
    trial.put("a", text="fail")
    trial.run()
    assert trial.counts() == {"failed": 1}
    assert trial.out().counted() == {"a": 1}
    trial.drop("a")
    trial.run()
    assert trial.out().counted() == {"a": 1, "-a": 1}
    assert trial.counts() == {"deleted": 1}
