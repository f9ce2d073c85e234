"""Patience: how long transient errors are retried, and what counts against attempts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.destinations import Outcome
from ferryman.document import Document
from ferryman.errors import TransientError
from tests.support.plan_world import PlanWorld


def busy_step(doc: Document) -> Document:
    raise TransientError("not yet")


@pytest.mark.rule("patience.time")
def test_what_is_transient_is_tried_with_patience(trial: PlanWorld) -> None:
    """Until the time has passed, and so many tries at least; then it is failed."""
    trial.build(busy_step, called={"patience": 0})
    trial.put("a")
    assert trial.run(wait=100).exit == 3
    assert trial.statuses("a") == ["ERROR"] * (limits.PATIENCE_TRIES - 1) + ["DEAD"]
    assert trial.history("a")[-1]["message"] == "step busy_step: TransientError: not yet (attempt 8, the last)"


def busy(delivery: Any) -> Outcome:
    return Outcome.transient("not yet")


@pytest.mark.rule("patience.time")
def test_a_destination_is_tried_with_patience(trial: PlanWorld) -> None:
    """As a step: what it says is transient."""
    trial.build(answer=busy, patience=0)
    trial.put("a")
    assert trial.run(wait=100).exit == 3
    assert trial.statuses("a") == ["ERROR"] * (limits.PATIENCE_TRIES - 1) + ["DEAD"]


@pytest.mark.rule("patience.attempts")
def test_a_fault_of_a_destination_counts_against_attempts(trial: PlanWorld) -> None:
    """Transient errors before it do not, not even those of a step."""

    def answer(delivery: Any) -> Outcome:
        if delivery.attempt <= 5:
            return Outcome.transient("not yet")
        raise RuntimeError("a bug")

    trial.build(once_busy(trial.folder / "flag"), answer=answer)
    trial.put("a")
    assert trial.run(wait=100).exit == 3
    assert trial.statuses("a") == ["ERROR"] * 7 + ["DEAD"]


def once_busy(flag: Path) -> Callable[[Document], Document]:
    def step(doc: Document) -> Document:
        if not flag.exists():
            flag.touch()
            raise TransientError("not yet")
        return doc

    return step


@pytest.mark.rule("patience.time")
@pytest.mark.parametrize("where", ["step", "destination"])
def test_patience_is_a_day(trial: PlanWorld, where: str) -> None:
    """More tries than that do not end it; a run that is not to wait ends with 4."""
    trial.build(*([busy_step] if where == "step" else []), answer=busy)
    trial.put("a")
    assert trial.run(wait=0).exit == 4
    assert set(trial.statuses("a")) == {"ERROR"}
    assert len(trial.statuses("a")) >= limits.PATIENCE_TRIES


@pytest.mark.rule("patience.attempts")
@pytest.mark.parametrize("where", ["step", "destination"])
def test_attempts_win_where_they_are_given(trial: PlanWorld, where: str) -> None:
    """Whoever says them, the step or the destination below it."""
    if where == "step":
        trial.build(busy_step, called={"attempts": 2})
    else:
        trial.build(busy_step, attempts=2)
    trial.put("a")
    assert trial.run().exit == 3
    assert trial.statuses("a") == ["ERROR", "DEAD"]


@pytest.mark.rule("patience.attempts")
def test_what_nobody_anticipated_counts_against_attempts(trial: PlanWorld) -> None:
    """Transient errors before it do not."""
    calls = trial.folder / "calls"

    def step(doc: Document) -> Document:
        with calls.open("a") as file:
            file.write("x")
        if len(calls.read_text()) <= 5:
            raise TransientError("not yet")
        raise RuntimeError("a bug")

    trial.build(step)
    trial.put("a")
    trial.run(wait=100)
    assert trial.statuses("a") == ["ERROR"] * 7 + ["DEAD"]
