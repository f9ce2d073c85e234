"""Queues in an object store: all that a queue in a folder does, also while answers are lost, and in many processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ferryman
from ferryman import account, limits
from ferryman.crash import QUEUES
from ferryman.errors import QueueReplaced, UsageError
from ferryman.plan import Plan
from ferryman.queues import Queue
from ferryman.state.state import state_root
from ferryman.storage import files, objects
from ferryman.storage.delta import CommitUnknown
from tests.queues.test_processes import said, start
from tests.queues.test_sleepers import bodies, meanwhile
from tests.servers.faulty_s3 import FaultyS3
from tests.support.http_store import HttpStore
from tests.support.in_store import faulty, states
from tests.support.plan_world import run_plan
from tests.support.tiers import sampled
from tests.support.zygote import Zygote

__all__ = ["faulty", "states"]

KILLED = -9


@pytest.fixture
def _busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are merged and logs folded soon."""
    monkeypatch.setattr(limits, "QUEUE_COMMITS", 4)
    monkeypatch.setattr(limits, "QUEUE_FILES", 4)


@pytest.mark.rule("queue.store")
@pytest.mark.usefixtures("_busy")
@pytest.mark.parametrize("lost", [0.0, 0.2])
def test_what_a_queue_does(states: str, faulty: FaultyS3, lost: float) -> None:
    faulty.fail(lost=lost, refused=lost / 2, seed=3)
    queue = Queue("orders", states)
    assert not queue.exists
    assert Queue.all(states) == []
    for n in range(20):
        assert queue.append([{"n": n}], key=f"k{n}") == [n + 1]
    assert queue.append([{"n": "again"}], key="k3") == [4]
    reader = Queue("orders", states)
    assert [m.body["n"] for m in reader.read(limit=100)] == [*range(20)]
    tailer = reader.tailer("audit")
    assert [m.index for m in tailer.read_many(12)] == [*range(1, 13)]
    assert reader.tailer("audit").to(5).position == 5
    assert [m.index for m in tailer.read_many(3)] == [5, 6, 7]
    assert reader.readers() == {"audit": 8}
    assert queue.trim(0) == 7
    assert queue.first_index == 8
    assert queue.appended("k0") == range(1, 2)
    assert tailer.to_end().read() is None
    with pytest.raises(UsageError, match="there is no message 3"):
        tailer.to(3)
    assert Queue.all(states) == ["orders"]
    assert Queue.unused(states) == []
    assert queue.forget("audit")
    with pytest.raises(UsageError, match="was forgotten"):
        tailer.read()
    reader.delete()
    assert Queue.all(states) == []
    with pytest.raises(QueueReplaced):
        queue.append([{"n": 1}])
    again = Queue("orders", states)
    assert again.append([{"n": "new"}]) == [1]
    assert bodies_of(again) == ["new"]
    with pytest.raises(QueueReplaced):
        queue.read()


def bodies_of(queue: Queue) -> list[Any]:
    return [m.body["n"] for m in queue.read(limit=1000)]


@pytest.mark.rule("queue.store")
def test_made_by_two_at_once(states: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them makes it, both append to it; nothing of the other one's is left."""
    first, second = Queue("orders", states), Queue("orders", states)

    def work() -> None:
        second.append([{"n": 2}])

    with monkeypatch.context() as patched:
        meanwhile(patched, HttpStore, "create", work, "before")
        first.append([{"n": 1}])
    assert sorted(bodies_of(Queue("orders", states))) == [1, 2]
    assert first.id == second.id


@pytest.mark.rule("queue.sleepers")
@pytest.mark.parametrize("again", [False, True], ids=["in use", "deleted and made again"])
def test_who_slept_while_he_made_it_removes_nobodys(states: str, monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    """Another one has made the queue, and nobody has used it for long; or it was deleted, and made again."""
    monkeypatch.setattr(limits, "TEMPORARY_S", -1.0)

    def sleep() -> None:
        Queue("orders", states).append([{"x": "early"}])
        if again:
            Queue("orders", states).delete()
            Queue("orders", states).append([{"x": "late"}])

    with monkeypatch.context() as patched:
        meanwhile(patched, files, "read_version", sleep, "after")
        Queue("orders", states).append([{"x": "mine"}])
    assert bodies(Queue("orders", states)) == ["late" if again else "early", "mine"]


@pytest.mark.rule("queue.store")
@pytest.mark.usefixtures("_busy")
@pytest.mark.parametrize("others", [1, 3, 9])
@pytest.mark.parametrize("key", [None, "mine"])
def test_an_appender_that_slept(states: str, monkeypatch: pytest.MonkeyPatch, others: int, key: str | None) -> None:
    """Others have appended, merged and trimmed the log before its entry came: it is there once, or this is said."""
    queue, other = Queue("orders", states), Queue("orders", states)
    queue.append([{"x": 0}])

    def work() -> None:
        for n in range(others):
            other.append([{"x": n + 1}])

    wanted: list[Any] = [*range(others + 1)]
    with monkeypatch.context() as patched:
        meanwhile(patched, HttpStore, "create", work, "before")
        try:
            assert queue.append([{"x": "mine"}], key=key) == [others + 2]
            wanted.append("mine")
        except CommitUnknown:
            assert key is None
    assert bodies(Queue("orders", states)) == wanted


@pytest.mark.rule("queue.store")
@pytest.mark.parametrize(("messages", "appenders"), [(120, 2), pytest.param(2000, 6, marks=pytest.mark.slow)])
def test_many_processes(states: str, faulty: FaultyS3, messages: int, appenders: int) -> None:
    """With a client of its own each, while answers are lost; of three readers of one name each message goes to one."""
    faulty.fail(lost=0.05, refused=0.02, seed=5)
    total = appenders * messages
    writers = [start("append", states, n, messages, 20) for n in range(appenders)]
    given = [(first, first + size) for writer in writers for first, size in said(writer)]
    assert [i for first, end in sorted(given) for i in range(first, end)] == [*range(1, total + 1)]
    readers = [start("share", states, "shared", total) for _ in range(3)]
    seen = [index for reader in readers for (index,) in said(reader)]
    assert sorted(seen) == [*range(1, total + 1)]


@pytest.mark.rule("queue.store")
@pytest.mark.parametrize("point", sampled(list(QUEUES), 5))
def test_killed(place: Path, states: str, faulty: FaultyS3, zygote: Zygote, point: str) -> None:
    """At a crash point, over a store that loses answers; the same work again: as if nothing had been."""
    faulty.fail(lost=0.05, refused=0.02, seed=7)
    environment = {**faulty.settings, objects.CACHE_VARIABLE: str(place / "cache")}
    code, out = zygote.run(verb="work", root=str(place), queues=states, arm=f"{point}:1", environment=environment)
    assert code == KILLED, f"{point} was not reached: {out}"

    code, out = zygote.run(verb="check", root=str(place), queues=states, environment=environment)

    assert code == 0, out


@pytest.mark.rule("queue.store")
def test_a_plan_reads_and_writes_them(states: str, tmp_path: Path) -> None:
    plan = Plan("orders", version=1)
    source = plan.source("in", ferryman.sources.Queue("in", states))
    source.step("double", double).destination("out", ferryman.destinations.Queue("out", states))
    Queue("in", states).append([{"n": n} for n in range(5)])
    assert run_plan(plan, tmp_path / "state").delivered == 5
    Queue("in", states).append([{"n": 7}])
    assert run_plan(plan, tmp_path / "state").delivered == 1
    assert bodies_of(Queue("out", states)) == [0, 2, 4, 6, 8, 14]
    assert Queue("in", states).readers() != {}
    assert account.status(state_root(plan, tmp_path / "state"), plan)["balanced"]
    Queue("out", states).delete()
    Queue("in", states).append([{"n": 8}])
    assert run_plan(plan, tmp_path / "state").exit != 1


def double(doc: ferryman.Document) -> ferryman.Document:
    doc["n"] *= 2
    return doc


def test_what_an_append_costs(states: str, faulty: FaultyS3) -> None:
    """Two objects: the messages and the entry of the log."""
    queue = Queue("orders", states)
    queue.append([{"n": 0}])
    faulty.counts()
    queue.append([{"n": 1}])
    counts = faulty.counts()
    assert counts["PUT"] == 2, counts
    assert counts.get("LIST", 0) == 0, counts
    assert counts.get("GET", 0) + counts.get("HEAD", 0) <= 12, counts
