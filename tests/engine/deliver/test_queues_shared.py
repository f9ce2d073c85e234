"""One queue and several who append to it or read it: destinations of one plan, plans, states, processes."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import Duplicate
from ferryman.sources import Queue
from tests.support.plan_world import Interrupted, Until, run_plan


def put(place: Path, *numbers: int) -> None:
    DurableQueue("in", place).append([{"n": n} for n in numbers])


def by_writer(place: Path) -> dict[str, list[int]]:
    """Numbers in the queue ``out``, in order, by who appended them."""
    found: dict[str, list[int]] = {}
    for message in DurableQueue("out", place).read(limit=10_000):
        found.setdefault(message.meta["writer"].partition(" ")[0], []).append(message.body["n"])
    return found


def forked(place: Path) -> Plan:
    plan = Plan("fork")
    fork = plan.source("from_in", Queue("in", place)).route("both", Duplicate())
    for name in ("one", "two"):
        fork.destination(name, ToQueue("out", place), batch=2, backoff=0)
    return plan


@pytest.mark.rule("queue.exactly-once")
@pytest.mark.parametrize("phase", ["commit", "deliver", "settle"])
def test_two_destinations_append_to_one_queue(place: Path, phase: str) -> None:
    """Each has its own account there, also if the run is killed: all of both, each in order."""
    put(place, *range(7))
    with pytest.raises(Interrupted):
        run_plan(forked(place), place / "state", observer=Until(1, phase), checked=False)
    put(place, *range(7, 12))
    assert run_plan(forked(place), place / "state").exit == 0
    assert by_writer(place) == {"fork-v0/one": list(range(12)), "fork-v0/two": list(range(12))}


def halve(doc: Document) -> Document:
    doc["n"] = 10 // doc["n"]
    return doc


def test_the_error_queue_is_an_output_queue_too(place: Path) -> None:
    """Nothing forbids it; outputs and error messages have an account each."""

    plan = Plan("mixed")
    node = plan.source("from_in", Queue("in", place)).step("halve", halve)
    node.destination("to_out", ToQueue("out", place), backoff=0)
    plan.errors(ToQueue("out", place), backoff=0)
    put(place, 1, 0, 2)
    for _ in range(2):
        assert run_plan(plan, place / "state").exit == 0
    bodies = [m.body for m in DurableQueue("out", place).read(limit=10)]
    assert sorted(body["n"] for body in bodies if "n" in body) == [5, 10]
    assert [body["where"] for body in bodies if "n" not in body] == ["halve"]


def run_alone(place: str, name: str) -> None:
    plan = Plan(name)
    plan.source("from_in", Queue("in", place)).destination("to_out", ToQueue("out", place), batch=3, backoff=0)
    run_plan(plan, Path(place) / "state")


def test_plans_in_several_processes_at_one_queue(place: Path) -> None:
    """They read the same messages and append to the same queue at the same time: all of each, each in order."""
    put(place, *range(60))
    context = multiprocessing.get_context("spawn")
    names = ("a", "b", "c")
    processes = [context.Process(target=run_alone, args=(str(place), name)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert by_writer(place) == {f"{name}-v0/to_out": list(range(60)) for name in names}
    assert [m.index for m in DurableQueue("out", place).read(limit=1000)] == list(range(1, 181))


LONG = "abcdefghijklmnopqrstuvwxyz0123456789-ABCDEFGH"


def test_names_of_45_characters(place: Path) -> None:
    """Of plan, nodes and queues; two plans whose names differ in the last character are two readers."""
    assert len(LONG) == 45
    DurableQueue(LONG, place).append([{"n": n} for n in range(3)])
    for last in "XY":
        plan = Plan(LONG[:-1] + last)
        node = plan.source(LONG.lower(), Queue(LONG, place)).step(f"s{LONG[1:]}", lambda doc: doc)
        node.destination(f"d{LONG[1:]}", ToQueue("out", place), backoff=0)
        assert run_plan(plan, place / "state").exit == 0
    assert len(DurableQueue(LONG, place).readers()) == 2
    messages = DurableQueue("out", place).read(limit=10)
    assert [m.body["n"] for m in messages] == [0, 1, 2, 0, 1, 2]
    assert messages[-1].meta["queues"][LONG]["index"] == 3
