"""A clock that was ahead once puts nothing off for years."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ferryman.destinations.base import Outcome
from ferryman.document import Document
from ferryman.errors import TransientError
from ferryman.records.rows import is_due_sql, wait_s
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
