"""A step delivers what there is, and has the document read and walked again later."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import pytest

from ferryman.document import Document
from ferryman.engine.migration import migrate
from ferryman.errors import PermanentError, TransientError
from ferryman.plan import Plan
from ferryman.records import rows
from ferryman.sources import Files, Memory
from ferryman.state.state import state_root
from tests.support.plan_world import PlanWorld, run_plan

HOUR_S = 3600


class Clock:
    """The time of day as the driver sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_s = 0.0
        real = rows.now_us
        for module in ("run", "pending_work", "logs", "scan.phase", "transform.phase"):
            monkeypatch.setattr(f"ferryman.engine.{module}.now_us", lambda: real() + int(self.ahead_s * 1e6))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def partial(doc: Document) -> Document:
    if doc.text().startswith("partial"):
        doc.again("1h", why="the pictures are not ready")
    return doc


def times(trial: PlanWorld, id: str) -> int:
    """How often it arrived."""
    return trial.out().arrived().count(id)


@pytest.mark.rule("again.later")
@pytest.mark.parametrize("detect", ["content", "fingerprint"])
def test_it_is_delivered_now_and_read_again_later(trial: PlanWorld, clock: Clock, detect: str) -> None:
    """It is not pending meanwhile; its time comes once, with an unchanged content, as a new revision."""
    trial.build(partial, detect=detect)
    trial.put("a", text="partial")
    trial.put("b")
    assert trial.run().exit == 0
    assert (times(trial, "a"), times(trial, "b")) == (1, 1)
    assert trial.status()["sources"]["docs"] == {"documents": 2, "deleted": 0, "again": 1}
    [wish] = [e for e in trial.history("a") if e["status"] == "DIRTY"]
    assert wish["destination"] == ""
    assert "partial: it is read again after" in wish["message"]
    assert "the pictures are not ready" in wish["message"]

    assert trial.run().waves == 0
    clock.ahead_s = HOUR_S + 60
    assert trial.run().exit == 0
    assert (times(trial, "a"), times(trial, "b")) == (2, 1)
    assert trial.history("a")[-1]["revision"] == 2
    assert trial.run().waves == 0, "it has asked for another hour"
    clock.ahead_s = 2 * (HOUR_S + 60)
    trial.run()
    assert times(trial, "a") == 3
    assert trial.status()["balanced"]


@pytest.mark.rule("again.wish")
def test_a_new_version_has_a_wish_of_its_own(trial: PlanWorld, clock: Clock) -> None:
    """What the old one asked for is dropped; so it is when the document vanishes."""
    trial.build(partial)
    trial.put("a", "b", text="partial")
    trial.run()
    trial.put("a", text="whole")
    trial.drop("b")
    trial.run()
    assert trial.status()["sources"]["docs"] == {"documents": 1, "deleted": 1, "again": 0}
    clock.ahead_s = HOUR_S + 60
    assert trial.run().waves == 0


def children(doc: Document) -> list[Document]:
    made = [doc.child(word, raw=word.encode()) for word in doc.text().split()]
    for child in made:
        if child.text() == "partial":
            child.again(HOUR_S)
        if child.text() == "sooner":
            child.again(dt.timedelta(minutes=10))
    return made


def test_a_child_asks_for_its_origin(trial: PlanWorld, clock: Clock) -> None:
    """Of several the earliest counts."""
    trial.build(children)
    trial.put("a", text="one partial sooner")
    trial.run()
    assert trial.status()["sources"]["docs"]["again"] == 1
    clock.ahead_s = 660
    trial.run()
    assert times(trial, "a#one") == 2


def failing_later(doc: Document) -> Document:
    marker = Path(doc["marker"])
    if not marker.exists():
        raise TransientError("not yet")
    return doc


def test_a_retry_keeps_the_wish(trial: PlanWorld, clock: Clock, place: Path) -> None:
    """A step behind the one that asked fails first: the wish stays as it was."""
    marker = place / "marker"

    def marked(doc: Document) -> Document:
        doc["marker"] = str(marker)
        return doc

    trial.build(partial, marked, failing_later, backoff=3600, attempts=50)
    trial.put("a", text="partial")
    assert trial.run(wait=0).exit == 4
    marker.touch()
    trial.retry()
    trial.run()
    assert times(trial, "a") == 1
    assert trial.status()["sources"]["docs"]["again"] == 1
    clock.ahead_s = HOUR_S + 60
    trial.run()
    assert times(trial, "a") == 2


def test_a_person_who_forces_it_comes_first(trial: PlanWorld, clock: Clock) -> None:
    """And the wish that it makes then counts, not the one of before."""
    trial.build(partial)
    trial.put("a", text="partial")
    trial.run()
    clock.ahead_s = HOUR_S / 2
    trial.retry(force=True)
    trial.run()
    assert times(trial, "a") == 2
    clock.ahead_s = HOUR_S + 60
    assert trial.run().waves == 0
    clock.ahead_s = 2 * HOUR_S
    trial.run()
    assert times(trial, "a") == 3


def test_it_survives_a_touched_file(trial: PlanWorld, clock: Clock) -> None:
    """Same content, another fingerprint: the wish stays."""
    file = trial.folder / "in" / "a"
    file.parent.mkdir()
    file.write_text("partial")
    trial.build(partial, source=Files(str(file.parent), detect="fingerprint"))
    trial.run()
    os.utime(file, (1, 1))
    assert trial.run().waves == 1
    assert times(trial, "a") == 1
    clock.ahead_s = HOUR_S + 60
    trial.run()
    assert times(trial, "a") == 2


def test_a_dropped_document_may_ask(trial: PlanWorld, clock: Clock) -> None:
    """Nothing of it is delivered now, and it is read again."""

    def not_yet(doc: Document) -> None:
        doc.again("1h")

    trial.build(not_yet)
    trial.put("a")
    assert trial.run().exit == 0
    assert trial.status()["sources"]["docs"]["again"] == 1


def test_a_document_that_kills_keeps_its_wish(trial: PlanWorld, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a child process walks is staged with what it asked for."""
    import dataclasses

    from ferryman.engine.transform.task import TaskProcessing

    before = TaskProcessing.__init__

    def careful(self: Any, task: Any, *others: Any) -> None:
        before(self, dataclasses.replace(task, isolated=True), *others)

    monkeypatch.setattr(TaskProcessing, "__init__", careful)
    trial.build(partial)
    trial.put("a", text="partial")
    assert trial.run().exit == 0
    assert trial.status()["sources"]["docs"]["again"] == 1


@pytest.mark.parametrize("after", ["soon", -1, float("nan"), float("inf"), None, "", True, object(), "99999999d"])
def test_what_is_no_duration_is_refused(after: Any) -> None:
    """As an error of the document that says so."""
    with pytest.raises(PermanentError, match="give seconds"):
        Document("a").again(after)


def test_it_never_comes_at_once() -> None:
    """A scan that found it due each time would have no end."""
    doc = Document("a")
    doc.again(0)
    assert doc.asked_again is not None
    assert doc.asked_again.after_s == 1


def test_a_new_version_of_the_plan_takes_the_wishes_along(trial: PlanWorld, clock: Clock) -> None:
    """What the older state was asked for, the newer one does."""

    def built(version: int) -> Plan:
        plan = Plan("trial", version=version)
        docs = plan.source("docs", Memory(trial.documents))
        docs.step("partial", partial).destination("out", trial.out())
        return plan

    trial.put("a", text="partial")
    run_plan(built(1), trial.state)
    plan = built(2)
    migrate(state_root(plan, trial.state), plan, 1)
    assert run_plan(plan, trial.state).delivered == 0
    clock.ahead_s = HOUR_S + 60
    run_plan(plan, trial.state)
    assert times(trial, "a") == 2
