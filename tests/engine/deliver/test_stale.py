"""Destinations that hold something newer than what a state sends: it is counted, told, and got above."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Outcome, Sql
from ferryman.destinations.base import Delivery
from ferryman.plan import Plan
from ferryman.sources import Memory
from ferryman.state import state
from tests.support.plan_world import PlanWorld, run_plan
from tests.support.recorder import Recorder

YEAR_S = 365 * 86_400


class Keeping(Recorder):
    """One document an id, by sequence; says what it holds unless ``mute``."""

    compares_sequences = True
    mute = False

    def highest_sequence(self) -> int | None:
        if self.mute:
            raise ConnectionError("away")
        return max((line["seq"] for line in self.lines()), default=None)


def keeping(place: Path) -> Keeping:
    out = Keeping(place / "out.jsonl")

    def answer(delivery: Delivery) -> Outcome:
        held = [line["seq"] for line in out.lines() if line["id"] == delivery.id and line["said"] == "ok"]
        return Outcome.stale() if max(held, default=0) > delivery.sequence else Outcome.ok()

    out.answer = answer
    return out


class Clock:
    """In place of ``time`` in ``ferryman.state.state``."""

    def __init__(self, behind_s: int) -> None:
        self._behind_s = behind_s

    def time(self) -> float:
        import time

        return time.time() - self._behind_s


def made_anew(place: Path, monkeypatch: pytest.MonkeyPatch, out: Recorder, text: str) -> PlanWorld:
    """A state of its own, under a clock that is a year behind, over the same destination."""
    monkeypatch.setattr(state, "time", Clock(YEAR_S))
    (place / "anew").mkdir()
    trial = PlanWorld(place / "anew").build(out=out)
    trial.put("a", "b", text=text)
    return trial


@pytest.mark.rule("sequence.above")
def test_a_state_that_is_made_anew_begins_above_what_the_destination_holds(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the clock is behind: what it delivers takes effect, and the run says that it was so."""
    out = keeping(place)
    trial = PlanWorld(place).build(out=out)
    trial.put("a", "b", text="one")
    trial.run()
    anew = made_anew(place, monkeypatch, out, "two")
    summary = anew.run()
    assert [line["text"] for line in out.lines() if line["said"] == "ok"] == ["one", "one", "two", "two"]
    assert any("destination out holds deliveries newer than this state" in m for m in summary.messages)
    anew.put("a", text="three")
    assert anew.run().messages == [], "once it is above it stays above"
    assert [line["text"] for line in out.lines() if line["said"] == "ok"][-1] == "three"


@pytest.mark.rule("sequence.stale")
def test_stale_deliveries_are_counted_and_told_and_can_be_sent_once_more(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not be asked when the state was made. A forced retry is above."""
    out = keeping(place)
    trial = PlanWorld(place).build(out=out)
    trial.put("a", "b", text="one")
    trial.run()
    out.mute = True
    anew = made_anew(place, monkeypatch, out, "two")
    summary = anew.run()
    assert any("destination out: 2 deliveries were stale" in m for m in summary.messages)
    assert {d["message"] for d in anew.deliveries()} == {"stale: the destination has something newer"}
    anew.put("a", text="three")
    out.mute = False
    summary = anew.build(out=out).run()
    assert any("1 delivery was stale" in m for m in summary.messages)
    assert any("holds deliveries newer than this state" in m for m in summary.messages)
    anew.retry(force=True)
    assert not any("stale" in m for m in anew.run().messages)
    assert [line["text"] for line in out.lines() if line["said"] == "ok"] == ["one", "one", "two", "three"]


@pytest.mark.rule("sequence.above")
@pytest.mark.parametrize("held", [2**53, -5, None, "many", True])
def test_what_is_no_sequence_is_not_believed(place: Path, held: Any) -> None:
    """Somebody else's numbers cannot use up ours."""
    out = keeping(place)
    trial = PlanWorld(place).build(out=out)
    out.highest_sequence = lambda: held  # type: ignore[method-assign]
    trial.put("a")
    assert trial.run().messages == []
    assert out.lines()[0]["seq"] < 2**52


@pytest.mark.rule("sequence.above")
@pytest.mark.parametrize("last", ["upsert", "delete"])
def test_sql_tells_what_it_holds(place: Path, monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    """Of deletes too: an upsert below a tombstone would be stale."""
    documents = [{"id": "a", "raw": b"one"}]
    out = Sql(f"sqlite:///{place}/out.db")
    plan = Plan("first")
    plan.source("docs", Memory(documents, max_deleted=1.0)).destination("out", out)
    out.check()
    assert out.highest_sequence() is None
    run_plan(plan, place / "state")
    if last == "delete":
        documents.clear()
        run_plan(plan, place / "state")
    monkeypatch.setattr(state, "time", Clock(YEAR_S))
    plan = Plan("second")
    plan.source("docs", Memory([{"id": "a", "raw": b"two"}])).destination("out", out)
    run_plan(plan, place / "state")
    with sqlite3.connect(place / "out.db") as db:
        assert db.execute("SELECT id, text FROM documents").fetchall() == [("a", "two")]
