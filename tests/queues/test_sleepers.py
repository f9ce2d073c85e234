"""Processes that are stopped in the middle, wake up when the log has gone on without them, and do no harm."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.queues import Queue, upkeep
from ferryman.storage import files
from ferryman.storage.delta import CommitUnknown, DeltaLog


@pytest.fixture(autouse=True)
def _busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are folded soon, and nobody waits for a turn."""
    monkeypatch.setattr(limits, "QUEUE_COMMITS", 4)
    monkeypatch.setattr(limits, "QUEUE_FILES", 4)
    monkeypatch.setattr(limits, "QUEUE_TURN_S", 0)


def bodies(queue: Queue) -> list[Any]:
    found = queue.read(limit=1000)
    assert [m.index for m in found] == [*range(1, queue.last_index + 1)]
    return [m.body["x"] for m in found]


def meanwhile(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, work: Callable[[], None], when: str) -> None:
    """Once, before or after the next call of this function, the work is done."""
    original, done = getattr(module, name), [False]

    def slow(*arguments: Any, **named: Any) -> Any:
        if done[0]:
            return original(*arguments, **named)
        done[0] = True
        if when == "before":
            work()
        result = original(*arguments, **named)
        if when == "after":
            work()
        return result

    monkeypatch.setattr(module, name, slow)


@pytest.mark.rule("queue.sleepers")
@pytest.mark.parametrize("others", [1, 3, 9, 30])
@pytest.mark.parametrize("where", ["write_synced", "link"])
@pytest.mark.parametrize("key", [None, "mine"])
def test_before_the_link(root: Path, monkeypatch: pytest.MonkeyPatch, others: int, where: str, key: str | None) -> None:
    """Others have appended, merged and trimmed the log: the name of the next version may be free again."""
    queue, other = Queue("orders", root), Queue("orders", root)
    queue.append([{"x": 0}])

    def work() -> None:
        for n in range(others):
            other.append([{"x": n + 1}])

    meanwhile(monkeypatch, os if where == "link" else files, where, work, "before")
    wanted = [*range(others + 1)]
    try:
        indices = queue.append([{"x": "mine"}], key=key)
    except CommitUnknown as e:
        assert (where, key) == ("link", None)
        assert "Whether the commit took effect is not known" in str(e)  # noqa: PT017 - as above
    else:
        assert indices == [others + 2]
        wanted.append("mine")  # type: ignore[arg-type]
    assert bodies(Queue("orders", root)) == bodies(queue) == wanted
    assert other.append([{"x": "last"}]) == [len(wanted) + 1]
    assert bodies(Queue("orders", root)) == [*wanted, "last"]


@pytest.mark.rule("queue.sleepers")
@pytest.mark.parametrize("others", [1, 3, 9, 30])
@pytest.mark.parametrize("key", [None, "mine"])
def test_after_the_link(root: Path, monkeypatch: pytest.MonkeyPatch, others: int, key: str | None) -> None:
    """It has taken effect, and may have been merged since: it is there once; where nobody can tell, this is said."""
    queue, other = Queue("orders", root), Queue("orders", root)
    queue.append([{"x": 0}])

    def work() -> None:
        for n in range(others):
            other.append([{"x": n + 1}])

    meanwhile(monkeypatch, os, "link", work, "after")
    try:
        assert queue.append([{"x": "mine"}], key=key) == [2]
    except CommitUnknown:
        assert key is None
    assert bodies(Queue("orders", root)) == bodies(queue) == [0, "mine", *range(1, others + 1)]


@pytest.mark.parametrize("others", [1, 5, 30])
@pytest.mark.parametrize("where", ["write_rows", "retire"])
def test_a_merger(root: Path, monkeypatch: pytest.MonkeyPatch, others: int, where: str) -> None:
    """What it wanted to merge has been merged by others: it changes nothing."""
    queue, other = Queue("orders", root), Queue("orders", root)
    for n in range(3):
        queue.append([{"x": n}])

    def work() -> None:
        for n in range(others):
            other.append([{"x": n + 4}])

    monkeypatch.setattr(upkeep, "_WAIT_FACTOR", 1)  # the other one does not wait for it
    meanwhile(monkeypatch, upkeep, where, work, "before")
    queue.append([{"x": 3}])
    assert bodies(Queue("orders", root)) == bodies(queue) == [*range(others + 4)]
    for n in range(20):
        queue.append([{"x": others + 4 + n}])
    assert bodies(Queue("orders", root)) == bodies(other) == [*range(others + 24)]


@pytest.mark.parametrize("others", [3, 30])
def test_a_reader(root: Path, monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    """One that was opening the table, or moving on, while the log was trimmed: it sees all of it."""
    queue = Queue("orders", root)
    queue.append([{"x": 0}])
    reader = Queue("orders", root)
    assert bodies(reader) == [0]
    count = [1]

    def work() -> None:
        for _ in range(others):
            queue.append([{"x": count[0]}])
            count[0] += 1

    for fresh in (False, True):
        queue.append([{"x": count[0]}])
        count[0] += 1
        with monkeypatch.context() as patched:
            meanwhile(patched, DeltaLog, "_read_entry", work, "after")
            assert bodies(Queue("orders", root) if fresh else reader) == [*range(count[0])]
