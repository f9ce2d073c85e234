"""Drivers of plans over queues that are overtaken in their sleep, at a state whose lock does not hold; and several
plans, states and flows at one queue."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman import Flow
from ferryman.destinations import Queue as ToQueue
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Queue
from tests.crash import child
from tests.crash.test_overtaken import FREE
from tests.crash.test_queue_matrix import CASES as KILLED
from tests.crash.test_queue_matrix import prepare, said_well
from tests.support.joined import run_flow
from tests.support.plan_world import place, run_plan
from tests.support.zygote import Zygote

__all__ = ["place"]

END = "end"
WAKES_AT = (END, "deliver.sent", "append.staged")
"""Where the second driver is when the first one wakes up."""

CASES = [
    (point, wakes, line, stage)
    for number, (point, line, stage) in enumerate(KILLED)
    if not point.startswith("command.") and ":" not in point
    for wakes in (WAKES_AT if number % 3 == 0 else (END,))
]

SHORT = {
    ("append.logged", END, "alts", 2),
    ("transform.done", END, "join", 1),
}


@pytest.fixture(scope="module")
def zygote(folder: Path) -> Iterator[Zygote]:
    with Zygote(folder, "tests.crash.queues.child") as made:
        yield made


@pytest.fixture(autouse=True)
def _nobody_sleeps(zygote: Zygote) -> Iterator[None]:
    yield
    zygote.kill_stopped()


@pytest.fixture(scope="module")
def after_first(folder: Path) -> dict[str, Path]:
    return {}


@pytest.mark.rule("state.overtaken")
@pytest.mark.parametrize(
    ("point", "wakes", "line", "stage"),
    [pytest.param(*c, marks=[] if c in SHORT else [pytest.mark.slow], id="-".join(map(str, c))) for c in CASES],
)
def test_a_driver_of_queues_that_was_overtaken(
    zygote: Zygote, folder: Path, after_first: dict[str, Path], point: str, wakes: str, line: str, stage: int
) -> None:
    """It appends nothing twice, and nothing that the one after it has not taken over."""
    root = folder / f"{point}-{wakes}-{line}-{stage}"
    prepare(zygote, after_first, folder, root, line, stage)
    job = {"root": str(root), "line": line, "stage": stage}
    if stage == 2:
        said_well(zygote.run(verb="retry", **job))
    asleep = {**job, "verb": "run", "stop": True, "unlocked": True}
    code, said = zygote.run(arm=[(point, str(root / "sleeps"))], **asleep)
    assert code == -signal.SIGSTOP, f"{point} was never reached: {said}"
    code, said = zygote.run(arm=[] if wakes == END else [(wakes, str(root / "second"))], **asleep)
    assert code in (0, -signal.SIGSTOP), said
    second_sleeps = code != 0
    said = said_well(zygote.wake())
    assert child.OVERTAKEN in said or point.startswith((*FREE, "queue.")), f"it did not notice: {said}"
    if second_sleeps:
        said_well(zygote.wake())
    said_well(zygote.run(verb="run and check", again=True, **job))
    shutil.rmtree(root)


def through(root: Path, name: str, into: str) -> Plan:
    plan = Plan(name)
    plan.source("from_in", Queue("in", root)).destination("to_out", ToQueue(into, root), backoff=0)
    return plan


def numbers(root: Path, queue: str) -> list[int]:
    return [message.body["n"] for message in DurableQueue(queue, root).read(limit=1000)]


@pytest.mark.rule("queue.destination")
def test_two_states_of_one_plan_write_into_one_queue(place: Path) -> None:
    """Each delivers for itself, and each in order."""
    into = DurableQueue("in", place)
    for turn in range(3):
        into.append([{"n": 10 * turn + n} for n in range(10)])
        for state in ("one", "two"):
            run_plan(through(place, "pipe", "out"), place / state)
    by_writer: dict[str, list[int]] = {}
    for message in DurableQueue("out", place).read(limit=1000):
        by_writer.setdefault(message.meta["writer"], []).append(message.body["n"])
    assert list(by_writer.values()) == [list(range(30)), list(range(30))]


@pytest.mark.rule("queue.exactly-once")
def test_two_flows_read_one_queue(place: Path) -> None:
    """Each gets every message."""
    into = DurableQueue("in", place)
    flows = [Flow(name, [through(place, name, name)]) for name in ("left", "right")]
    for turn in range(3):
        into.append([{"n": 10 * turn + n} for n in range(10)])
        for flow in flows:
            run_flow(flow, place / "state")
    assert numbers(place, "left") == numbers(place, "right") == list(range(30))
    assert len(into.readers()) == 2
