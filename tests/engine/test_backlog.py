"""Too much is pending: a scan stops reading documents until there is room again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ferryman import limits
from ferryman.cli.options import size_bytes
from ferryman.destinations.base import Delivery, Outcome
from ferryman.engine.run import Run
from ferryman.engine.settings import RunSettings
from ferryman.errors import UsageError
from ferryman.limits import GIB, KIB, MIB
from ferryman.plan import Plan
from ferryman.routers import Duplicate
from ferryman.sources import Memory
from ferryman.state.state import state_root
from ferryman.testing.inprocess import InProcess
from tests.support.invariants import rows
from tests.support.plan_world import PlanWorld, Watch, run_plan
from tests.support.recorder import Recorder

LIMIT = 3 * MIB
"""Five of the documents below."""
SMALL: Any = {"wave_bytes": 1300 * KIB, "max_pending": LIMIT}
"""A few documents a wave."""


def put(trial: PlanWorld, documents: int) -> None:
    """Documents of 600 KiB that cannot be packed."""
    trial.documents += [{"id": f"d{i:02}", "raw": Random(i).randbytes(600 * KIB)} for i in range(documents)]


def down(flag: Path) -> Callable[[], object]:
    def refuse() -> None:
        if flag.exists():
            raise ConnectionError("it is down")

    return refuse


@pytest.mark.rule("size.pending")
def test_a_scan_stops_while_too_much_is_pending(trial: PlanWorld) -> None:
    """The destination is down: not the whole source is copied to the disk. When it is back, all goes on by itself."""
    flag = trial.folder / "down"
    flag.touch()
    trial.build(out=Recorder(trial.folder / "out.jsonl", refuse=down(flag)))
    put(trial, 20)
    summary = trial.run(**SMALL, wait=0)
    assert summary.exit == 4
    [message] = [m for m in summary.messages if "--max-pending" in m]
    assert message.startswith("the scan stopped early: ")
    assert "(out: " in message
    kept = trial.counts()["pending"]
    assert 5 < kept <= 10
    again = Watch()
    summary = trial.run(**SMALL, wait=0, observer=again)
    assert summary.exit == 4
    assert trial.counts()["pending"] == kept, "nothing more was read"
    assert not [name for _, name in again.phases if name == "transform"]
    flag.unlink()
    summary = trial.run(**SMALL)
    assert summary.exit == 0
    assert trial.out().counted() == {f"d{i:02}": 1 for i in range(20)}


@pytest.mark.rule("size.pending")
def test_a_slow_destination_is_waited_for(trial: PlanWorld) -> None:
    """One run, one listing: what is pending is sent before more is read."""
    trial.build(out=Recorder(trial.folder / "out.jsonl", before=lambda chunk: time.sleep(0.2)), batch=1)
    put(trial, 12)
    watch = Watch()
    summary = trial.run(**SMALL, pace_s=0.1, observer=watch)
    assert summary.exit == 0
    assert not summary.messages
    assert [name for _, name in watch.phases].count("scan") == 1
    assert trial.out().counted() == {f"d{i:02}": 1 for i in range(12)}


@pytest.mark.rule("size.pending")
def test_what_goes_on_by_itself_is_told_once(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that reads on once there is room has not stopped before its end; one that goes on says that it waits."""
    flag = trial.folder / "down"
    flag.touch()
    trial.build(out=Recorder(trial.folder / "out.jsonl", refuse=down(flag)))
    put(trial, 12)
    monkeypatch.setattr(limits, "BACKOFF_FIRST_S", 0.01)

    def mended(pause_s: float) -> None:
        flag.unlink(missing_ok=True)
        time.sleep(pause_s)

    summary = trial.run(**SMALL, wait=100, sleep=mended)
    assert (summary.exit, summary.messages) == (0, [])
    assert trial.out().counted() == {f"d{i:02}": 1 for i in range(12)}

    flag.touch()
    for document in trial.documents:
        document["raw"] = document["raw"][::-1]
    watch = Watch()
    with trial.take() as state:
        run = Run(state, InProcess(), watch, RunSettings(wait=0, **SMALL))
        for _ in range(2):
            run.turn()
    [waits] = [message for message in watch.messages if "--max-pending" in message]
    assert waits.startswith("the scan waits: ")


@pytest.mark.rule("size.pending")
def test_other_destinations_go_on(place: Path) -> None:
    """What was read is delivered where it can be, and no deletes follow from what was not read."""
    flag = place / "down"
    flag.touch()
    away, there = Recorder(place / "away.jsonl", refuse=down(flag)), Recorder(place / "there.jsonl")
    trial = PlanWorld(place)
    put(trial, 12)
    plan = Plan("two", 1)
    router = plan.source("docs", Memory(trial.documents)).route("both", Duplicate())
    router.destination("away", away)
    router.destination("there", there)
    run_plan(plan, place / "state", **SMALL, wait=0)
    read = len(there.counted())
    assert 5 < read < 10
    assert {row["destination"] for row in rows(state_root(plan, place / "state"), "outbox")} == {"away"}
    assert not [line for line in there.lines() if line["op"] == "delete"]
    flag.unlink()
    assert run_plan(plan, place / "state", **SMALL).exit == 0
    assert len(there.counted()) == len(away.counted()) == 12
    assert set(there.counted().values()) == set(away.counted().values()) == {1}


def test_what_is_kept_for_review_is_not_pending(trial: PlanWorld) -> None:
    """Dead documents wait for an operator: they hold up nobody."""

    def no(delivery: Delivery) -> Outcome:
        return Outcome.permanent(f"no {delivery.id}")

    trial.build(answer=no)
    put(trial, 12)
    assert trial.run(**SMALL).exit == 3
    assert trial.counts() == {"failed": 12}


def test_sizes_are_said_in_words() -> None:
    """As people write them."""
    said = {"1000": 1000, "500MB": 500 * MIB, "4 GiB": 4 * GIB, "1.5k": 1536, "0": 0, "2g": 2 * GIB, "7b": 7}
    assert {text: size_bytes("--max-pending", text) for text in said} == said
    with pytest.raises(UsageError, match="--max-pending much: give bytes, or a number with K, M, G or T"):
        size_bytes("--max-pending", "much")
