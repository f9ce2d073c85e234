"""Much through queues: many messages, large ones, many that are passed over, many waves of one run; and queues that
vanish or cannot be written."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Queue as ToQueue
from ferryman.errors import UsageError
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.queues.positions import Positions
from ferryman.sources import Queue
from tests.support.plan_world import Watch, run_plan


def piped(place: Path, **source: Any) -> Plan:
    plan = Plan("pipe", version=1)
    plan.source("from_in", Queue("in", place, **source)).destination("to_out", ToQueue("out", place), backoff=0)
    return plan


def numbers(place: Path) -> list[int]:
    queue = DurableQueue("out", place)
    parts = queue.read_rows(1, queue.last_index + 1)
    return [json.loads(text)["n"] for part in parts for text in part["message"].to_pylist()]


@pytest.mark.slow
def test_a_hundred_thousand_messages(place: Path) -> None:
    DurableQueue("in", place).append([{"n": n, "id": f"customer-{n:08}-order"} for n in range(100_000)])
    assert run_plan(piped(place), place / "state").delivered == 100_000
    assert numbers(place) == list(range(100_000))


def test_messages_of_a_megabyte(place: Path) -> None:
    text = "ü" * 500_000
    DurableQueue("in", place).append([{"n": n, "text": text} for n in range(10)])
    assert run_plan(piped(place), place / "state", wave_bytes=3_000_000).exit == 0
    assert numbers(place) == list(range(10))
    assert DurableQueue("out", place).read(10, 1)[0].body["text"] == text


def test_ten_thousand_that_are_passed_over(place: Path) -> None:
    """The position moves, nothing is delivered; and what comes after them is."""
    into = DurableQueue("in", place)
    into.append([{"n": n, "type": "other"} for n in range(10_000)])
    plan = piped(place, types=["mine"], topics=["mine"])
    summary = run_plan(plan, place / "state")
    assert (summary.exit, summary.delivered, summary.dropped) == (0, 0, 10_000)
    assert list(into.readers().values()) == [10_001]
    into.append([{"n": 1, "topics": {"mine": 1}}])
    assert run_plan(plan, place / "state").delivered == 1
    assert numbers(place) == [1]


def test_hostile_bodies(place: Path) -> None:
    """Numbers of any size and characters of any plane come out as they went in."""
    bodies = [
        {"n": 0, "huge": 10**400, "low": -(2**63), "high": 2**64, "far": 1.5e308},
        {"n": 1, "text": '\U0001f600 \\ud800 \x00 "', "": 1, " ": None, "id": "../../x", "_raw": [], "a.b": {"c": {}}},
        {"n": 2, "deep": json.loads("[" * 99 + "]" * 99)},
    ]
    into = DurableQueue("in", place)
    into.append(bodies, meta={"queues": "no", "tx": "no", "writer": 5, "sequence": "no"})
    for bad in (float("nan"), float("inf")):
        with pytest.raises(UsageError, match="message 1: JSON has no"):
            into.append([{"n": bad}])
    assert run_plan(piped(place), place / "state").exit == 0
    assert [m.body for m in DurableQueue("out", place).read()] == bodies


class Enough(Exception):
    """The run has gone on for long enough."""


@pytest.mark.slow
def test_a_hundred_waves_of_one_run(place: Path) -> None:
    """With more appended between any two; neither state nor queues grow with the number of waves."""
    into = DurableQueue("in", place)
    into.append([{"n": 0}])
    done = 0

    def sleep(seconds: float) -> None:
        nonlocal done
        done += 1
        if done == 100:
            raise Enough
        into.append([{"n": done}])

    plan = piped(place)
    with pytest.raises(Enough):
        run_plan(plan, place / "state", every=0, sleep=sleep, observer=Watch(1000), checked=False)
    assert numbers(place) == list(range(100))
    assert run_plan(plan, place / "state").waves == 0
    assert sum(path.is_file() for path in place.rglob("*")) < 200


class Vanishing(Watch):
    """Something happens to a queue when a phase of a wave begins."""

    def __init__(self, at: tuple[int, str], act: Any) -> None:
        super().__init__()
        self.at, self.act = at, act

    def phase(self, wave: int, name: str) -> None:
        super().phase(wave, name)
        if (wave, name) == self.at:
            self.act()


def test_a_queue_that_is_deleted_while_a_run_reads_it(place: Path) -> None:
    """It is said; the next one of that name is read from its beginning."""
    into = DurableQueue("in", place)
    into.append([{"n": n} for n in range(5)])
    watch = Vanishing((1, "transform"), into.delete)
    assert run_plan(piped(place), place / "state", observer=watch, wait=0).exit == 4
    assert any("source from_in is not available" in message for message in watch.messages), watch.messages
    DurableQueue("in", place).append([{"n": 7}])
    assert run_plan(piped(place), place / "state").exit == 0
    assert numbers(place) == [7]


def test_a_queue_that_is_deleted_before_it_is_written(place: Path) -> None:
    """It is made again: what was to be delivered is."""
    DurableQueue("in", place).append([{"n": 1}])
    run_plan(piped(place), place / "state")
    DurableQueue("in", place).append([{"n": 2}])
    watch = Vanishing((2, "deliver"), lambda: shutil.rmtree(place / "out"))
    assert run_plan(piped(place), place / "state", observer=watch).exit == 0
    assert numbers(place) == [2]


def test_a_queue_that_can_only_be_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read; that its position is not noted there is said, and nothing is read twice."""

    def held(self: Positions, name: str) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    DurableQueue("in", place).append([{"n": 1}])
    monkeypatch.setattr(Positions, "hold", held)
    watch = Watch()
    assert run_plan(piped(place), place / "state", observer=watch).exit == 0
    assert any("source from_in: its position could not be recorded" in message for message in watch.messages)
    assert run_plan(piped(place), place / "state").delivered == 0
    assert numbers(place) == [1]
