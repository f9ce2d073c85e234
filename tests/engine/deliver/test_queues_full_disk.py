"""A disk that is full while a plan appends: nothing is lost or doubled, and with room again the next run goes on."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.errors import EngineError, PermanentError
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Queue
from tests.support.full_disk import Disk, disk
from tests.support.plan_world import run_plan

__all__ = ["disk"]

MESSAGES = 30


def work(doc: Document) -> Document:
    if doc["n"] % 10 == 9:
        raise PermanentError("a nine")
    return doc


def appending(source: Path, into: Path) -> Plan:
    plan = Plan("filling")
    node = plan.source("from_in", Queue("in", source)).step("work", work)
    node.destination("to_out", ToQueue("out", into), batch=5, backoff=0)
    plan.errors(ToQueue("errors", into), backoff=0)
    return plan


def put(place: Path, count: int = MESSAGES) -> None:
    DurableQueue("in", place).append([{"n": n, "text": os.urandom(2000).hex()} for n in range(count)])


def check(into: Path) -> None:
    out = [m.body["n"] for m in DurableQueue("out", into).read(limit=1000)]
    assert out == [n for n in range(MESSAGES) if n % 10 != 9]
    errors = [m.body["messages"][0]["body"]["n"] for m in DurableQueue("errors", into).read(limit=1000)]
    assert errors == [9, 19, 29]


@pytest.mark.parametrize(
    "room",
    [
        *({"free_kib": kib} for kib in (0, 8, 24, 60, 100, 160)),
        *({"free_files": files} for files in (0, 3, 6, 9, 14, 20)),
    ],
    ids=lambda room: "-".join(map(str, *room.items())),
)
def test_the_queues_are_on_a_full_disk(place: Path, disk: Disk, room: dict[str, Any]) -> None:
    """The run says so and ends with 4, or has had enough room; what was appended stays."""
    put(place)
    plan = appending(place, disk.folder)
    disk.limit(**room)
    summary = run_plan(plan, place / "state", wait=0)
    assert summary.exit in (0, 4)
    assert summary.exit == 4 or room not in ({"free_kib": 0}, {"free_files": 0})
    assert bool(summary.pending) == (summary.exit == 4)
    if summary.exit == 4:
        assert any("the disk is full" in message or "No space left" in message for message in summary.messages)
    disk.limit()
    assert run_plan(plan, place / "state", wait=0).exit == 0
    check(disk.folder)


@pytest.mark.parametrize("kib", [0, 100, 300, 500, 700])
def test_all_is_on_a_full_disk(place: Path, disk: Disk, kib: int) -> None:
    """State and queues share it: whatever meets its end first."""
    put(place)
    plan = appending(place, disk.folder)
    disk.limit(free_kib=kib)
    with contextlib.suppress(EngineError):
        run_plan(plan, disk.folder / "state", wait=0, checked=False)
    disk.limit()
    assert run_plan(plan, disk.folder / "state", wait=5).exit == 0
    check(disk.folder)
