"""What a state says of its run while there is one, and why what is pending is pending."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.cli.account import describe_run
from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document
from ferryman.errors import Unavailable
from ferryman.storage.locks import Lock, find_holder
from ferryman.testing.inprocess import InProcess
from tests.support.outages import down
from tests.support.plan_world import Interrupted, PlanWorld, Watch


def refuse(chunk: list[Delivery]) -> None:
    raise Unavailable("connection refused by 10.0.0.1:9200")


class Asking(Watch):
    """Asks for the status of a plan at each phase, as another process would."""

    wants_live = True

    def __init__(self, world: PlanWorld) -> None:
        super().__init__()
        self.world = world
        self.seen: dict[tuple[int, str], Any] = {}

    def phase(self, wave: int, name: str) -> None:
        super().phase(wave, name)
        self.seen[wave, name] = status(self.world)["running"]


def status(world: PlanWorld) -> dict[str, Any]:
    found = world.status()
    return {**found, **account.activity(world.root, world.plan, found)}


def test_a_run_says_what_it_is_doing_while_it_does_it_and_no_longer(trial: PlanWorld) -> None:
    """Process, host, wave and phase at each phase, from the lock alone; afterwards no run is active."""
    trial.build()
    trial.put("a", "b")
    asking = Asking(trial)
    trial.run(observer=asking)
    assert {phase for _, phase in asking.seen} >= {"scan", "transform", "commit", "deliver", "settle"}
    for (wave, phase), running in asking.seen.items():
        assert (running["wave"], running["phase"]) == (wave, phase)
        assert (running["host"], running["pid"]) == (socket.gethostname(), os.getpid())
        words = describe_run(running)
        assert f"process {os.getpid()} on {socket.gethostname()} since " in words
        assert f"wave {wave}, {phase} since " in words
    assert status(trial)["running"] is None
    assert status(trial)["pending_reasons"] == []


def test_a_killed_run_is_not_active(trial: PlanWorld) -> None:
    """The lock ends with its process: what it noted last is no sign of life."""

    class Killed(Watch):
        def phase(self, wave: int, name: str) -> None:
            if name == "deliver":
                raise Interrupted

    trial.build()
    trial.put("a")
    with pytest.raises(Interrupted):
        trial.run(observer=Killed(), checked=False)
    assert status(trial)["running"] is None
    [row] = status(trial)["pending_reasons"]
    assert (row["node"], row["reason"]) == ("out", "committed, and not sent yet")


def test_what_waits_for_a_destination_says_why_since_when_and_until_when(trial: PlanWorld) -> None:
    """In `status`, `deliveries` and `--by reason`: not "not sent yet"."""
    trial.build()
    trial.out().before = refuse
    trial.put("a", "b", "c")
    assert trial.run(wait=0).exit == 4
    [row] = status(trial)["pending_reasons"]
    assert (row["node"], row["deliveries"], row["next_try"]) == ("out", 3, None)
    assert "connection refused by 10.0.0.1:9200" in row["reason"]
    assert row["since"].startswith("20")
    for each in trial.deliveries(status="pending"):
        assert "connection refused by 10.0.0.1:9200 (since 20" in each["message"]
        assert each["message"].endswith("tried again by the next run)")
    [by_reason] = account.reasons(trial.root, status="pending", plan=trial.plan)
    assert by_reason["deliveries"] == 3
    assert "connection refused" in by_reason["reason"]
    trial.retry()
    assert "connection refused" in status(trial)["pending_reasons"][0]["reason"], "a command forgets why"


def test_what_waits_for_a_step_names_the_step(trial: PlanWorld) -> None:
    def ask(doc: Document) -> Document:
        raise Unavailable("the service is down")

    trial.build(ask)
    trial.put("a", "b")
    assert trial.run(wait=0).exit == 4
    rows = status(trial)["pending_reasons"]
    assert {row["node"] for row in rows} == {"ask"}
    assert sum(row["deliveries"] for row in rows) == 2
    assert all("the service is down" in row["reason"] for row in rows)


def test_one_document_that_failed_says_when_it_is_tried_again(trial: PlanWorld) -> None:
    """Its own due time, not that of the destination, which is well."""
    trial.build(answer=lambda d: Outcome.transient("shard 3 is closed") if d.id == "a" else Outcome.ok(), backoff=3600)
    trial.put("a", "b")
    trial.run(wait=0)
    [row] = status(trial)["pending_reasons"]
    assert (row["node"], row["deliveries"], row["reason"]) == ("out", 1, "shard 3 is closed")
    assert row["next_try"] > row["since"]


def test_the_cached_counts_of_a_large_state_are_enough(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read of millions of rows: what the destination said, and the cached number."""
    monkeypatch.setattr("ferryman.limits.COUNTED_EVENTS", 0)
    trial.build(answer=None)
    trial.put("z")
    trial.run()
    trial.out().before = refuse
    trial.put("a", "b")
    trial.run(wait=0)
    monkeypatch.setattr("ferryman.account.queries.View.pending_reasons", None)
    [row] = status(trial)["pending_reasons"]
    assert (row["node"], row["deliveries"]) == ("out", 2)
    assert "connection refused" in row["reason"]


def test_retry_has_an_endless_run_ask_a_destination_at_once(trial: PlanWorld) -> None:
    """Which it would otherwise leave alone for up to an hour: the command closes the wait."""
    away = down(trial.folder)
    trial.build()
    trial.out().before = lambda chunk: refuse(chunk) if away.exists() else None
    trial.put("a")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:  # it is back, and would be asked in seconds that never pass
            away.unlink()
        if len(slept) == 6:
            assert trial.counts() == {"pending": 1}
            trial.retry(destination="out")
        if len(slept) > 6:
            raise Interrupted

    with pytest.raises(Interrupted):
        trial.run(every=0.001, sleep=sleep, clock=lambda: 100.0, runner=InProcess(), checked=False)
    assert trial.counts() == {"delivered": 1}


def test_an_id_that_is_not_known_suggests_the_nearest_ones(trial: PlanWorld) -> None:
    """Another case, a part of it, a slip of the pen; nothing where nothing is near."""
    trial.build()
    trial.put("Letters/to my mother.txt", "Letters/to my father.txt", "invoice.pdf")
    trial.run()

    def near(id: str) -> list[str]:
        return account.nearest_documents(trial.root, id, trial.plan)

    assert near("letters/to my mother.txt")[0] == "Letters/to my mother.txt"
    assert near("to my father.txt") == ["Letters/to my father.txt"]
    assert near("invioce.pdf") == ["invoice.pdf"]
    assert near("zzzz") == []


def test_asking_who_holds_a_lock_keeps_nobody_out(place: Path) -> None:
    """While it is asked again and again, the lock can be taken; who held it last is known."""
    path = place / "lock"
    assert find_holder(path) is None
    for number in range(50):
        lock = Lock.take(path)
        lock.note({"number": number})
        holder = find_holder(path)
        assert holder is not None
        assert (holder.is_active, holder.note) == (True, {"number": number})
        lock.release()
        holder = find_holder(path)
        assert holder is not None
        assert (holder.is_active, holder.pid) == (False, os.getpid())
