"""A clock that was ahead once puts nothing off for years."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferryman.destinations.base import Outcome
from ferryman.document import Document
from ferryman.engine.run import ActivityRecorder
from ferryman.errors import TransientError
from ferryman.records.rows import is_due_sql, wait_s
from ferryman.state.activity import Activity
from ferryman.state.runs import RunRecorder, load_runs
from tests.support import NOT_SOON_S
from tests.support.plan_world import PlanWorld
from tests.support.recorder import Recorder

YEARS_NS = 10 * 365 * 86_400 * 10**9
HOUR_US = 3_600_000_000


@pytest.mark.rule("state.clock")
@pytest.mark.parametrize(("due", "wait"), [(-5, 0), (0, 0), (1_000_000, 1), (HOUR_US, 3600), (HOUR_US + 1, 0)])
def test_nothing_is_due_later_than_the_longest_back_off(due: int, wait: float) -> None:
    now = time.time_ns() // 1000
    assert wait_s(now + due, now, 3600.0) == wait
    assert is_due_sql("5", 4, 3600.0) == f"(5 <= 4 OR 5 > {4 + HOUR_US})"


@pytest.mark.rule("state.clock")
@pytest.mark.parametrize("where", ["destination", "step"])
def test_a_back_off_of_days_is_kept(place: Path, where: str) -> None:
    """A plan may ask for more than an hour: what waits for that is not tried before."""
    DOWN[:] = [True]
    trial = PlanWorld(place)
    if where == "destination":
        trial.build(out=Recorder(place / "out.jsonl", answer=busy_at_first), backoff=NOT_SOON_S)
    else:
        trial.build(fails_at_first, backoff=NOT_SOON_S)
    trial.put("a")
    trial.run(wait=0)
    DOWN.clear()
    assert trial.run(wait=0).pending == 1


DOWN: list[bool] = []


def busy_at_first(_delivery: object) -> Outcome:
    return Outcome.transient("busy") if DOWN else Outcome.ok()


def fails_at_first(doc: Document) -> Document:
    if DOWN:
        raise TransientError("busy")
    return doc


@pytest.mark.rule("state.clock")
@pytest.mark.parametrize("where", ["destination", "step"])
def test_a_clock_that_was_ahead_puts_nothing_off(place: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """It failed while the clock was ten years ahead; with the right clock it is tried at once."""
    DOWN[:] = [True]
    real = time.time_ns
    trial = PlanWorld(place)
    if where == "destination":
        trial.build(out=Recorder(place / "out.jsonl", answer=busy_at_first), backoff=600)
    else:
        trial.build(fails_at_first, backoff=600)
    trial.put("a", "b")
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: real() + YEARS_NS)
        trial.run(wait=0, checked=False)
    DOWN.clear()
    trial.run(wait=0)
    assert trial.counts() == {"delivered": 2}


@pytest.mark.rule("state.clock")
def test_an_endless_run_is_recorded_after_the_clock_was_put_back(place: Path) -> None:
    """It counted as hanging until the clock had caught up."""
    clock = iter([10_000.0, 10_000.0, 10_030.0, 100.0, 130.0, 161.0])
    state: Any = SimpleNamespace(root=place)
    recorder = RunRecorder(state, lambda: next(clock))
    recorded = []
    for pending in range(5):
        recorder.record_turn(partial(dict, exit=4, pending=pending))
        recorded.append(load_runs(place).last[-1].pending)
    assert recorded == [0, 0, 2, 2, 4]


@pytest.mark.rule("state.clock")
def test_what_a_run_does_is_noted_after_the_clock_was_put_back() -> None:
    """``status`` shows how far it is."""
    clock = iter([10_000.0, 10_000.5, 100.0, 100.5, 101.5])
    noted: list[Activity] = []
    state: Any = SimpleNamespace(note_activity=noted.append)
    recorder = ActivityRecorder(state, tuple, lambda: next(clock))
    for documents in range(5):
        recorder.live(documents)
    assert [activity.done for activity in noted] == [0, 2, 4]
