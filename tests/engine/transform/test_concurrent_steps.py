"""``step(…, concurrency=n, rate=…)`` and ``async def``: many calls under way, and what happens when some hang."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ferryman import account, limits
from ferryman.document import Document
from ferryman.errors import TransientError, Unavailable
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import PlanWorld

IDS = [f"series/{n // 10:04}/volume-{n:06}/contents/{n:05}.txt" for n in range(60)]


def build(net: PlanWorld, fn: Callable[..., Any], *ids: str, **options: Any) -> None:
    step = net.source().step("ask", fn, **{"concurrency": 8, **options})
    step.destination("out", net.out("out"), backoff=0)
    net.put(*(ids or IDS))


class Meeting:
    """A step of which no call returns before so many are under way; notes how many there were at most."""

    def __init__(self, net: PlanWorld, count: int) -> None:
        self._path = net.folder / "most"
        self._count = count

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_count": self._count}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._now = 0
        self._met = threading.Condition()

    def __call__(self, doc: Document) -> Document:
        with self._met:
            self._now += 1
            with self._path.open("a") as file:
                file.write(f"{self._now}\n")
            self._met.notify_all()
            assert self._met.wait_for(lambda: self._now >= self._count or self._enough(), timeout=600)
            self._now -= 1
        return doc

    def _enough(self) -> bool:
        return self.most() >= self._count

    def most(self) -> int:
        return max(map(int, self._path.read_text().splitlines()))


@pytest.mark.rule("step.concurrency")
def test_so_many_calls_are_under_way_and_no_more(net: PlanWorld) -> None:
    """Eight calls wait for each other; the documents come out in the source's order."""
    meeting = Meeting(net, 8)
    build(net, meeting)
    assert net.run(runner=InProcess(slots=1)).exit == 0
    assert meeting.most() == 8
    assert [line["id"] for line in net.out("out").lines()] == IDS


async def meet(doc: Document) -> Document:
    await asyncio.wait_for(_all_here(), 600)
    doc["loop"] = id(asyncio.get_running_loop())
    return doc


_here = 0


async def _all_here() -> None:
    global _here  # noqa: PLW0603 - of the loop's thread
    _here += 1
    while _here < 8:
        await asyncio.sleep(0.001)


@pytest.mark.rule("step.async")
def test_coroutines_share_one_event_loop(net: PlanWorld) -> None:
    """Also over several tasks of a process: a client may keep its connections."""
    build(net, meet)
    assert net.run(wave_bytes=100).exit == 0
    assert [line["id"] for line in net.out("out").lines()] == IDS
    assert len({line["fields"]["loop"] for line in net.out("out").lines()}) == 1


@pytest.mark.rule("step.async")
@pytest.mark.parametrize("options", [{"concurrency": 1}, {"concurrency": 4}, {"concurrency": 2, "batch": 3}], ids=str)
def test_an_async_def_may_be_called_in_any_way(net: PlanWorld, options: dict[str, Any]) -> None:
    async def one(doc: Document) -> Any:
        await asyncio.sleep(0)
        if doc.id == "bad":
            raise ValueError("not this one")
        doc["key"] = doc.idempotency_key
        return doc

    async def several(docs: list[Document]) -> list[Any]:
        return [await one(doc) for doc in docs]

    build(net, several if "batch" in options else one, "a", "b", "bad", "c", "d", attempts=1, **options)
    assert net.run().exit == 3
    assert net.arrived("out") == dict.fromkeys("abcd", 1)
    assert len({line["fields"]["key"] for line in net.out("out").lines()}) == 4
    [event] = account.history(net.root, "bad", net.plan)
    assert "step ask: ValueError: not this one" in event["message"]
    assert "test_concurrent_steps.py:" in event["message"]


def hangs(doc: Document) -> Document:
    if doc.id in ("b", "y"):
        time.sleep(3600)
    return doc


async def hangs_too(doc: Document) -> Document:
    if doc.id in ("b", "y"):
        await asyncio.sleep(3600)
    return doc


@pytest.mark.rule("step.concurrency-hung")
@pytest.mark.parametrize("fn", [hangs, hangs_too])
def test_a_call_that_hangs_costs_only_its_document(net: PlanWorld, fn: Callable[..., Any]) -> None:
    """It is given up after ``timeout=``; the others go on, with as many calls as before."""
    build(net, fn, *"abcxyz", timeout=1, attempts=1, concurrency=2)
    assert net.run().exit == 3
    assert net.arrived("out") == dict.fromkeys("acxz", 1)
    for id in "by":
        [event] = account.history(net.root, id, net.plan)
        assert "step ask took longer than timeout=1 s" in event["message"]


@pytest.mark.rule("step.concurrency-hung")
def test_a_worker_with_too_many_hung_calls_is_ended(net: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then its documents come one by one, each in a process that can be ended."""
    monkeypatch.setattr(limits, "HUNG_CALLS", 2)
    build(net, hangs, *"abcxyz", timeout=1, attempts=1, concurrency=2)
    assert net.run(runner=InProcess(fork=True, failures=1)).exit == 3
    assert net.arrived("out") == dict.fromkeys("acxz", 1)
    assert net.counts("out") == {"delivered": 4, "failed": 2}


@pytest.mark.rule("step.concurrency-hung")
def test_a_coroutine_that_blocks_the_loop_ends_its_process(net: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else's call can go on there."""
    monkeypatch.setattr("ferryman.engine.transform.concurrent._LOOP_GRACE_S", 0.2)

    async def blocks(doc: Document) -> Document:
        if doc.id == "b":
            time.sleep(3600)
        return doc

    build(net, blocks, *"abc", timeout=1, attempts=1)
    assert net.run(runner=InProcess(fork=True, failures=1)).exit == 3
    assert net.arrived("out") == dict.fromkeys("ac", 1)


@pytest.mark.rule("step.concurrency")
def test_a_slow_document_holds_no_other(net: PlanWorld) -> None:
    """The first one returns when all others have been called."""
    seen = net.folder / "seen"

    def ask(doc: Document) -> Document:
        if doc.id == IDS[0]:
            end = time.monotonic() + 600
            while not seen.exists() or len(seen.read_text().splitlines()) < len(IDS) - 1:
                assert time.monotonic() < end
                time.sleep(0.01)
        else:
            with seen.open("a") as file:
                file.write(f"{doc.id}\n")
        return doc

    build(net, ask, concurrency=2)
    assert net.run(runner=InProcess(slots=1)).exit == 0
    assert [line["id"] for line in net.out("out").lines()] == IDS


@pytest.mark.rule("step.concurrency")
def test_a_service_that_goes_away_turns_the_waiting_away(net: PlanWorld) -> None:
    """Those that wait for a free call are not called for any more; all arrive later."""
    away, calls = net.folder / "away", net.folder / "calls"
    away.touch()

    def ask(doc: Document) -> Document:
        with calls.open("a") as file:
            file.write(f"{doc.id}\n")
        if away.exists():
            raise Unavailable("it is away")
        return doc

    build(net, ask, concurrency=2)
    assert net.run(wait=0, runner=InProcess(slots=1)).exit == 4
    assert len(calls.read_text().splitlines()) <= 4
    away.unlink()
    assert net.run(wait=0).exit == 0
    assert net.arrived("out") == dict.fromkeys(IDS, 1)


@pytest.mark.rule("step.concurrency")
def test_errors_are_tried_again_and_results_are_as_if_it_were_called_once_at_a_time(net: PlanWorld) -> None:
    tried = net.folder / "tried"
    tried.mkdir()

    def ask(doc: Document) -> Any:
        number = int(doc.id[-6])
        if number == 3:
            return None
        if number == 5:
            return [doc.child(n) for n in range(3)]
        if number == 7 and not (tried / str(int(doc.id[-9:-4]))).exists():
            (tried / str(int(doc.id[-9:-4]))).touch()
            raise TransientError("busy")
        return doc

    build(net, ask)
    assert net.run().exit == 0
    expected = {}
    for id in IDS:
        number = int(id[-6])
        names = {3: [], 5: [f"{id}#{n}" for n in range(3)]}.get(number, [id])
        expected |= dict.fromkeys(names, 1)
    assert net.arrived("out") == expected


@pytest.mark.rule("step.rate")
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("options", [{"concurrency": 1}, {"concurrency": 8}, {"batch": 2}], ids=str)
def test_no_more_calls_than_the_rate(net: PlanWorld, slots: int, options: dict[str, Any]) -> None:
    """Of all tasks together, however many wait, and over several waves. The runner of the tests runs one task after
    the other, so a share of the rate shows as so much less."""
    times = net.folder / "times"

    def ask(doc: Any) -> Any:
        with times.open("a") as file:
            file.write(f"{time.monotonic()}\n")
        return doc

    build(net, ask, *IDS[:20], rate="50/s", **options)
    assert net.run(runner=InProcess(slots=slots)).exit == 0
    began = sorted(map(float, times.read_text().splitlines()))
    assert len(began) >= 10
    for one in range(len(began)):
        for other in range(one + 1, len(began)):
            assert other - one <= 50 * (began[other] - began[one] + 0.1) + 1


@pytest.mark.rule("doc.idempotency-key")
def test_a_document_knows_its_key_in_another_thread(net: PlanWorld) -> None:
    def ask(doc: Document) -> Document:
        doc["key"] = doc.idempotency_key
        return doc

    build(net, ask)
    net.run()
    keys = {line["fields"]["key"] for line in net.out("out").lines()}
    assert len(keys) == len(IDS)


def test_a_worker_that_is_killed_amid_many_calls_loses_nothing(net: PlanWorld) -> None:
    """Its task is done again; each document arrives once."""
    killed = net.folder / "killed"

    def ask(doc: Document) -> Document:
        if doc.id == IDS[20] and not killed.exists():
            killed.touch()
            os._exit(9)
        return doc

    build(net, ask)
    assert net.run(runner=InProcess(fork=True)).exit == 0
    assert net.arrived("out") == dict.fromkeys(IDS, 1)
