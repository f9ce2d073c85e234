"""Deliver: the order of versions, lanes and pace."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from ferryman import limits
from ferryman.destinations.base import Outcome
from ferryman.plan import Plan
from ferryman.sources import Memory
from ferryman.testing.inprocess import InProcess
from tests.support import NOT_SOON_S
from tests.support.delivering import down, kept
from tests.support.invariants import rows
from tests.support.plan_world import PlanWorld, run_plan
from tests.support.recorder import Recorder

GUARANTEES = ["exactly-once", "at-least-once", "at-most-once"]
KIB = 1024


# --- order ----------------------------------------------------------------------------------------------


def in_order(out: Recorder) -> bool:
    """Was no row of an id sent before an older one of it had its end?"""
    seqs: dict[str, list[int]] = {}
    for line in out.lines():
        seqs.setdefault(line["id"], []).append(line["seq"])
    return all(a <= b for found in seqs.values() for a, b in itertools.pairwise(found))


def test_a_newer_version_waits_for_the_older_one(trial: PlanWorld) -> None:
    """The older one is due now, whatever its backoff; the newer one goes when it has ended, no attempt spent."""
    trial.build(answer=lambda d: Outcome.ok() if d.attempt > 1 else Outcome.transient("busy"), backoff=NOT_SOON_S)
    trial.put("a", text="one")
    trial.run(wait=0)
    trial.put("a", text="two")
    trial.build(answer=lambda d: Outcome.ok() if d.attempt > 1 or d.text() == "two" else Outcome.transient("busy"))
    trial.run(wait=0)
    told = [(line["text"], line["attempt"], line["said"]) for line in trial.out().lines()]
    assert told == [("one", 1, "transient"), ("one", 2, "ok"), ("two", 1, "ok")]
    assert trial.counts() == {"delivered": 1}


@pytest.mark.rule("delete.undelivered", "delete.order")
def test_a_delete_waits_for_the_upsert_before_it(trial: PlanWorld) -> None:
    """Else the upsert would bring back what was deleted."""
    trial.build(answer=lambda d: Outcome.ok() if d.attempt > 1 else Outcome.transient("busy"), backoff=NOT_SOON_S)
    trial.put("a", "b")
    trial.run(wait=0)
    trial.drop("a")
    trial.build(answer=lambda d: Outcome.ok())
    trial.run(wait=0)
    assert [line["op"] for line in trial.out().lines() if line["id"] == "a"] == ["upsert", "upsert", "delete"]
    assert in_order(trial.out())


def test_a_dead_or_parked_older_version_holds_nothing(trial: PlanWorld) -> None:
    """It has its end."""
    trial.build(answer=lambda d: Outcome.permanent("no") if d.text() == "one" else Outcome.ok())
    trial.put("a", text="one")
    trial.run()
    trial.put("a", text="two")
    assert trial.run().exit == 0
    assert trial.counts() == {"delivered": 1}


def test_order_holds_while_the_destination_is_down(trial: PlanWorld) -> None:
    """Three versions gather; when it is back they come one after the other."""
    flag = trial.folder / "down"
    flag.touch()
    trial.build(answer=down(flag))
    for text in ("one", "two", "three"):
        trial.put("a", "b", text=text)
        trial.run(wait=0)
    assert trial.counts()["pending"] == 6
    flag.unlink()
    trial.out().forget()
    trial.run()
    for id in "ab":
        assert [line["text"] for line in trial.out().lines() if line["id"] == id] == ["one", "two", "three"]
    assert trial.counts() == {"delivered": 2}


def test_order_holds_after_the_outbox_was_merged(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two versions of an id may then lie in one file; if the older one fails the newer one is held all the same."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    flag = trial.folder / "down"
    flag.touch()
    trial.build(answer=down(flag), attempts=9)
    for text in ("one", "two", "three"):
        trial.put("a", "b", text=text)
        trial.run(wait=0)
    assert len({r["first_sequence"] for r in rows(trial.root, "outbox")}) == 1, "merged"
    flag.unlink()
    trial.out().forget()
    trial.build(answer=lambda d: Outcome.ok() if d.attempt > 2 else Outcome.transient("busy"), attempts=9)
    trial.run()
    assert in_order(trial.out())
    assert trial.counts() == {"delivered": 2}


def three_versions_wait(place: Path, flag: Path, documents: int, slots: int) -> PlanWorld:
    """Each in a wave of its own, none delivered: the destination is down until the flag goes."""
    flag.touch()
    trial = PlanWorld(place).build(answer=down(flag))
    for text in ("one", "two", "three"):
        trial.put(*(f"d{i:03}" for i in range(documents)), text=text)
        trial.run(wait=0, runner=InProcess(slots=slots))
    return trial


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_order_holds_over_several_lanes(place: Path, slots: int) -> None:
    """Files are dealt to lanes; versions of one id may lie in different ones."""
    flag = place / "down"
    trial = three_versions_wait(place, flag, 600, slots)
    flag.unlink()
    trial.out().forget()
    trial.run(runner=InProcess(slots=slots))
    assert in_order(trial.out())
    assert len(trial.out().lines()) == 1800
    assert trial.counts() == {"delivered": 600}


@pytest.mark.parametrize("slots", [1, 2])
def test_order_holds_when_waiting_files_were_merged(place: Path, monkeypatch: pytest.MonkeyPatch, slots: int) -> None:
    """A merged file carries the number of its first wave, and a new wave's file may hold the same ids."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    flag = place / "down"
    trial = three_versions_wait(place, flag, 40, slots)
    with trial.take() as state:
        assert len(state.outbox.files) == 1, "they were merged"
    flag.unlink()
    trial.out().forget()
    trial.put(*(f"d{i:03}" for i in range(40)), text="four")
    trial.run(runner=InProcess(slots=slots))
    assert in_order(trial.out())
    assert len(trial.out().lines()) == 160
    assert trial.counts() == {"delivered": 40}


# --- lanes and pace -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("single", "lanes"), [(True, 1), (False, 2)])
def test_a_single_writer_has_one_lane(place: Path, single: bool, lanes: int) -> None:
    """However many slots there are; others use them."""
    out = Recorder(place / "out.jsonl", single_writer=single)
    trial = PlanWorld(place).build(out=out, batch=100)
    trial.put(*(f"d{i:03}" for i in range(600)))
    trial.run(runner=InProcess(slots=2))
    assert len(out.calls("open")) == lanes
    assert len(out.counted()) == 600


@pytest.mark.rule("destination.lanes")
@pytest.mark.parametrize(("lanes", "writers"), [(1, 1), (2, 2), (9, 3), (None, 3)])
def test_a_destination_is_written_to_by_so_many(place: Path, lanes: int | None, writers: int) -> None:
    """At most, and never by more than there are slots."""
    trial = PlanWorld(place).build(batch=100, lanes=lanes)
    trial.put(*(f"d{i:03}" for i in range(900)))
    trial.run(runner=InProcess(slots=3))
    assert len(trial.out().calls("open")) == writers
    assert len(trial.out().counted()) == 900


def test_with_two_destinations_none_gets_the_last_slot(place: Path) -> None:
    """Each has one lane less than there are slots."""
    plan = Plan("two", 1)
    outs = [Recorder(place / f"{i}.jsonl") for i in range(2)]
    for i, out in enumerate(outs):
        plan.source(f"s{i}", Memory([{"id": f"{i}-{j:04}"} for j in range(900)])).destination(f"d{i}", out)
    run_plan(plan, place / "state", runner=InProcess(slots=3))
    assert [len(out.calls("open")) for out in outs] == [2, 2]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_slow_destination_gets_its_time_and_the_rest_stays_owed(place: Path, guarantee: str) -> None:
    """The pass ends with the budget; the next one goes on where it ended; every row once, no attempt spent."""
    out = kept(place, guarantee, before=lambda chunk: time.sleep(0.05))
    trial = PlanWorld(place).build(out=out, batch=1, guarantee=guarantee)
    trial.put(*(f"d{i}" for i in range(12)))
    summary = trial.run(pace_s=0.2)
    assert summary.exit == 0
    assert summary.waves > 1
    assert out.counted() == {f"d{i}": 1 for i in range(12)}
    assert {line["attempt"] for line in out.lines()} == {1}


def test_a_scan_goes_on_beside_a_slow_destination(place: Path) -> None:
    """Its backlog does not hold the waves of a scan: the other destination gets all of its rows meanwhile."""
    plan = Plan("slow", 1)
    slow = Recorder(place / "slow.jsonl", before=lambda chunk: time.sleep(0.1))
    fast = Recorder(place / "fast.jsonl")
    for name, out in (("slow", slow), ("fast", fast)):
        documents = [{"id": f"{name}{i}", "raw": b"x" * (600 * KIB)} for i in range(6)]
        plan.source(name, Memory(documents)).destination(f"to-{name}", out, batch=1)
    summary = run_plan(plan, place / "state", pace_s=0.15, wave_bytes=700 * KIB)
    assert summary.exit == 0
    assert len(fast.counted()) == len(slow.counted()) == 6


def test_a_destination_without_any_time_is_no_endless_run(trial: PlanWorld) -> None:
    """A budget in which nothing can be sent: the run ends, its rows are owed."""
    trial.put("a")
    summary = trial.run(pace_s=-1, wait=0)
    assert (summary.exit, summary.pending) == (4, 1)
    assert trial.run().exit == 0
