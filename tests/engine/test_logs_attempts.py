"""Attempts of an entry at which an ordered log waits: counted over all runs, however each of them ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.errors import TransientError, Unavailable
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Queue
from tests.support.invariants import rows
from tests.support.plan_world import PlanWorld, Watch, run_plan

ERRORS: dict[str, Callable[[str], Exception]] = {"transient": TransientError, "away": Unavailable}


def working(folder: Path) -> Callable[[Document], Document]:
    """A step that fails for one number as a file says, and notes each call for it."""

    def work(doc: Document) -> Document:
        kind, _, bad = (folder / "fails").read_text().partition(" ")
        if doc["n"] == int(bad):
            with (folder / "calls").open("ab") as calls:
                calls.write(b".")
            if kind in ERRORS:
                raise ERRORS[kind]("not now")
        return doc

    return work


def build_waiting(world: PlanWorld) -> Plan:
    """Build plan ``waiting``: queue ``in`` → a step → queue ``out``, with an error queue."""
    plan, folder = Plan("waiting"), world.folder
    node = plan.source("from_in", Queue("in", folder)).step("work", working(folder), attempts=3)
    node.destination("to_out", ToQueue("out", folder), backoff=3600)
    plan.errors(ToQueue("errors", folder), backoff=0)
    return plan


class Waiting(PlanWorld):
    """A plan whose step fails for one number. Each run tries the entry that waits once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, build_waiting, field="n", wait=0)
        self.fails("transient")

    def fails(self, kind: str, number: int = 2) -> None:
        (self.folder / "fails").write_text(f"{kind} {number}")

    def attempt(self, **options: Any) -> str:
        """Run; return which attempt the run says that it was, "" if it does not wait."""
        self.run(**options)
        told = [m for m in self.watch.messages if " waits at " in m]
        return told[0].split("(attempt ")[1].split(")")[0] if told else ""

    def failed(self) -> list[int]:
        """Read the numbers in the error queue."""
        return [body["messages"][0]["body"]["n"] for body in self.bodies("errors")]


@pytest.mark.rule("log.attempts")
def test_a_new_run_goes_on_counting(place: Path) -> None:
    """The last attempt ends the entry as it would have in one run; nothing is kept of it in ``documents``."""
    waiting = Waiting(place)
    waiting.into.append([{"n": n} for n in range(4)])
    assert [waiting.attempt() for _ in range(3)] == ["1", "2", ""]
    assert (place / "calls").stat().st_size == 3
    assert waiting.values() == [0, 1, 3]
    assert waiting.failed() == [2]
    [failed] = [row for row in rows(waiting.root, "ledger") if row["status"] == "DEAD"]
    assert (failed["document"], failed["attempt"]) == ("in/3", 3)
    [row] = rows(waiting.root, "documents")
    assert row["document"] == "in/3"


@pytest.mark.rule("log.attempts")
def test_the_first_entry_of_a_log_is_counted_too(place: Path) -> None:
    """Its position was never committed."""
    waiting = Waiting(place)
    waiting.fails("transient", 0)
    waiting.into.append([{"n": 0}])
    assert [waiting.attempt() for _ in range(3)] == ["1", "2", ""]
    assert waiting.failed() == [0]


@pytest.mark.rule("log.attempts")
def test_an_outage_spends_none_and_forgets_none(place: Path) -> None:
    waiting = Waiting(place)
    waiting.into.append([{"n": n} for n in range(4)])
    assert [waiting.attempt(), waiting.attempt()] == ["1", "2"]
    waiting.fails("away")
    waiting.attempt()
    waiting.attempt()
    assert waiting.failed() == []
    waiting.fails("transient")
    assert waiting.attempt() == ""
    assert waiting.failed() == [2]


def test_the_next_entry_begins_from_none(place: Path) -> None:
    """What was counted is of one entry."""
    waiting = Waiting(place)
    waiting.into.append([{"n": n} for n in range(4)])
    assert [waiting.attempt(), waiting.attempt()] == ["1", "2"]
    waiting.fails("never")
    assert waiting.attempt() == ""
    assert waiting.values() == [0, 1, 2, 3]
    waiting.fails("transient", 4)
    waiting.into.append([{"n": 4}])
    assert [waiting.attempt() for _ in range(3)] == ["1", "2", ""]


def again(waiting: Waiting) -> None:
    """Delete the queue, and make it again with the same messages."""
    waiting.into.delete()
    waiting.into = DurableQueue("in", waiting.folder)
    waiting.into.append([{"n": n} for n in range(4)])


def rewound(waiting: Waiting) -> None:
    [reader] = waiting.into.readers()
    waiting.into.tailer(reader).to(3)


@pytest.mark.parametrize("happens", [again, rewound])
def test_an_entry_that_is_read_again_begins_from_none(place: Path, happens: Callable[[Waiting], None]) -> None:
    """It has another revision."""
    waiting = Waiting(place)
    waiting.into.append([{"n": n} for n in range(4)])
    assert [waiting.attempt(), waiting.attempt()] == ["1", "2"]
    happens(waiting)
    assert [waiting.attempt() for _ in range(3)] == ["1", "2", ""]


def test_a_wait_without_an_attempt_commits_no_wave(place: Path) -> None:
    """While a service is away, runs leave the state as it is, but for their epochs."""
    waiting = Waiting(place)
    waiting.fails("away")
    waiting.into.append([{"n": n} for n in range(4)])
    waiting.attempt()
    phases = Watch()
    run_plan(waiting.plan, place / "state", observer=phases, wait=0)
    assert "commit" not in {phase for _, phase in phases.phases}


def test_inputs_of_alts_are_counted_apart(place: Path) -> None:
    """Each waits at its own entry, and neither holds the other."""
    for name, other in (("a", 3), ("b", 4)):
        DurableQueue(name, place).append([{"n": 2}, {"n": other}])
    (place / "fails").write_text("transient 2")
    plan = Plan("alts")
    inputs = [plan.source(f"in_{name}", Queue(name, place)) for name in "ab"]
    node = plan.alts("any", inputs).step("work", working(place), attempts=2)
    node.destination("out", ToQueue("out", place), backoff=3600)
    plan.errors(ToQueue("errors", place), backoff=0)
    for _ in range(2):
        run_plan(plan, place / "state", wait=0)
    assert (place / "calls").stat().st_size == 4
    assert sorted(m.body["n"] for m in DurableQueue("out", place).read(limit=10)) == [3, 4]
