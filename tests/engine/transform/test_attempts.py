"""Attempts: how they are counted, when the next one is due, and what a run refuses before the first."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ferryman
from ferryman.destinations import Outcome
from ferryman.document import Document
from ferryman.errors import Dropped, PlanError
from ferryman.plan import Plan
from ferryman.sources import Memory
from tests.support.invariants import rows
from tests.support.plan_world import PlanWorld, Watch, run_plan
from tests.support.recorder import Recorder


def broken(doc: Document) -> Document:
    raise RuntimeError("not yet")


def once(flag: Path) -> Callable[[Document], Document]:
    """A step that fails at its first call."""

    def step(doc: Document) -> Document:
        if not flag.exists():
            flag.touch()
            raise RuntimeError("not yet")
        return doc

    return step


def busy(delivery: Any) -> Outcome:
    return Outcome.transient("busy")


@pytest.mark.rule("retry.counted")
def test_steps_and_destination_spend_the_same_attempts(trial: PlanWorld) -> None:
    """One of a step's, then two of the destination's, and it is dead; the destination is told which one it is."""
    trial.build(once(trial.folder / "flag"), answer=busy, attempts=3)
    trial.put("a")
    assert trial.run().exit == 3
    assert [(e["status"], e["attempt"], e["message"].partition(":")[0]) for e in trial.history("a")] == [
        ("ERROR", 1, "step step"),
        ("ERROR", 2, "busy"),
        ("DEAD", 3, "busy (attempt 3, the last)"),
    ]
    assert [line["attempt"] for line in trial.out().lines()] == [2, 3]


def wrong(delivery: Any) -> Outcome:
    raise RuntimeError("a bug")


class Panic(BaseException):
    """As extensions in Rust raise it: no Exception."""


@pytest.mark.parametrize("error", [Panic("unwrap of None"), SystemExit(3)], ids=["panic", "exit"])
def test_whatever_a_step_raises_is_an_error_of_its_document(trial: PlanWorld, error: BaseException) -> None:
    """Not of the task, of which the other documents would have to be done again."""

    def step(doc: Document) -> Document:
        if doc.id == "b":
            raise error
        return doc

    trial.build(step, attempts=1)
    trial.put("a", "b", "c")
    assert trial.run().exit == 3
    assert [(d["document"], d["status"]) for d in trial.deliveries(status="failed")] == [("b", "DEAD")]
    assert sorted(line["id"] for line in trial.out().lines()) == ["a", "c"]


def test_progress_counts_what_failed_steps_owe(trial: PlanWorld) -> None:
    """Beside the rows that wait in the outbox; once they are delivered nothing is owed."""

    class Progress(Watch):
        def __init__(self) -> None:
            super().__init__()
            self.settled_waves: list[tuple[int, int, int]] = []

        def settled(self, delivered: int, owed: int, dead: int) -> None:
            self.settled_waves.append((delivered, owed, dead))

    progress = Progress()
    trial.build(
        once(trial.folder / "flag"), answer=lambda d: busy(d) if d.id == "b" and d.attempt == 1 else Outcome.ok()
    )
    trial.put("a", "b", "c")
    assert trial.run(observer=progress).exit == 0
    assert progress.settled_waves[0] == (1, 2, 0)
    assert progress.settled_waves[-1][1] == 0


@pytest.mark.rule("retry.counted")
def test_a_new_version_begins_with_its_first_attempt(trial: PlanWorld) -> None:
    """Whatever the old one had spent."""
    trial.build(answer=busy, attempts=2)
    for text in ("one", "two"):
        trial.put("a", text=text)
        trial.run()
    assert [(e["revision"], e["attempt"], e["status"]) for e in trial.history("a")] == [
        (1, 1, "ERROR"), (1, 2, "DEAD"), (2, 1, "ERROR"), (2, 2, "DEAD")
    ]  # fmt: skip


@pytest.mark.rule("retry.attempts")
@pytest.mark.parametrize("where", ["step", "destination"])
def test_after_three_attempts_it_is_dead(trial: PlanWorld, where: str) -> None:
    """Where the plan says nothing else, in steps as at the destination; no run tries it again by itself."""
    trial.build(*([broken] if where == "step" else []), answer=wrong)
    trial.put("a")
    for _ in range(2):
        assert trial.run().exit == 3
    assert trial.statuses("a") == ["ERROR", "ERROR", "DEAD"]


def waits(trial: PlanWorld, where: str) -> list[float]:
    """Seconds from each document's first error to its due time."""
    if where == "step":
        found = {e["document"]: (e["due"], e["created"]) for e in rows(trial.root, "ledger")}
    else:
        created = {e["document"]: e["created"] for e in rows(trial.root, "ledger")}
        found = {r["document"]: (r["due"], created[r["document"]]) for r in rows(trial.root, "outbox")}
    return [due / 1e6 - _seconds(created) for due, created in found.values()]


def _seconds(created: dt.datetime) -> float:
    return created.replace(tzinfo=created.tzinfo or dt.UTC).timestamp()


@pytest.mark.rule("retry.backoff", "retry.due")
@pytest.mark.parametrize("where", ["step", "destination"])
def test_the_wait_is_drawn_by_lot(trial: PlanWorld, where: str) -> None:
    """Anything from nothing to the longest wait, so that what failed together does not come back together.

    It is kept: later runs leave alone what is not due.
    """
    trial.build(*([broken] if where == "step" else []), answer=busy, backoff=1000, called={"brake": None})
    ids = [f"d{n:03}" for n in range(200)]
    trial.put(*ids)
    trial.run(wait=0)
    found = waits(trial, where)
    assert len(found) == 200
    assert -5 < min(found) < 100
    assert 900 < max(found) <= 1000
    assert 400 < sum(found) / 200 < 600
    before = {r["document"]: r["due"] for r in rows(trial.root, "documents" if where == "step" else "outbox")}
    late = [id for id in ids if before[id] == max(before.values())]
    trial.run(wait=0)
    assert [trial.statuses(id) for id in late] == [["ERROR"]]


@pytest.mark.rule("step.dropped")
def test_a_reason_for_dropping_is_kept(trial: PlanWorld) -> None:
    """DROPPED, with the words; it is no error and not tried again."""

    def draft(doc: Document) -> Document:
        raise Dropped("a draft")

    trial.build(draft)
    trial.put("a")
    assert trial.run().exit == 0
    assert trial.run().waves == 0
    assert [(e["status"], e["message"]) for e in trial.history("a")] == [("DROPPED", "a draft")]
    assert trial.out().lines() == []


@pytest.mark.rule("check.first")
def test_a_run_checks_the_plan_before_anything_else(place: Path) -> None:
    """It is refused with all findings and exit code 2; no state was made, no destination asked."""
    out = Recorder(place / "out.jsonl")
    plan = Plan("wrong", version=1)
    plan.source("docs", Memory([{"id": "a"}])).destination("out", out, attempts=0)
    plan.step("lonely", broken)
    with pytest.raises(PlanError) as refused:
        ferryman.run(plan, state=place / "state")
    assert [text.partition(":")[0] for text in refused.value.findings] == ["lonely", "lonely", "out"]
    assert refused.value.exit_code == 2
    assert list(place.iterdir()) == []


@pytest.mark.rule("plan.frozen")
def test_a_plan_that_has_run_is_frozen(place: Path) -> None:
    """What would be added could not have been checked."""
    plan = Plan("ran", version=1)
    node = plan.source("docs", Memory([{"id": "a"}]))
    node.destination("out", Recorder(place / "out.jsonl"))
    run_plan(plan, place / "state")
    with pytest.raises(PlanError, match="more: plan ran has run and is frozen"):
        node.step("more", broken)
