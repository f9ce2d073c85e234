"""Readers that know their place: kept under a name, shared by handles and processes, in either direction."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.errors import QueueReplaced, ReaderHeld, UsageError
from ferryman.queues import Message, Queue, Tailer

ROOT = Path(__file__).parents[2]


@pytest.fixture
def queue(root: Path) -> Queue:
    """Five messages in three appends."""
    made = Queue("orders", root)
    made.append([{"n": 1}, {"n": 2}])
    made.append([{"n": 3}])
    made.append([{"n": 4}, {"n": 5}])
    return made


def all_of(tailer: Tailer) -> list[int]:
    found = []
    while (message := tailer.read()) is not None:
        found.append(message.index)
    return found


def index_of(message: Message | None) -> int | None:
    return None if message is None else message.index


def test_each_message_in_order(queue: Queue) -> None:
    """Then None; then what is appended later."""
    tailer = queue.tailer("auditor")
    assert tailer.position == 1
    assert all_of(tailer) == [1, 2, 3, 4, 5]
    assert tailer.position == 6
    queue.append([{"n": 6}])
    assert [tailer.read(), tailer.read()] == [queue.read(6)[0], None]


@pytest.mark.rule("queue.tailer")
def test_a_place_with_a_name_is_kept(queue: Queue, root: Path) -> None:
    """By another handle, as by another process; one without a name begins at 1."""
    queue.tailer("auditor").read_many(3)
    assert index_of(Queue("orders", root).tailer("auditor").peek()) == 4
    assert queue.readers() == {"auditor": 4}

    assert index_of(queue.tailer().read()) == index_of(queue.tailer().read()) == 1
    assert queue.readers() == {"auditor": 4}


@pytest.mark.rule("queue.shared")
def test_handles_of_one_name_share_a_place(queue: Queue, root: Path) -> None:
    """Each message goes to one of them."""
    one, two = queue.tailer("auditor"), Queue("orders", root).tailer("auditor")
    assert [index_of(t.read()) for t in (one, two, two, one, two, one)] == [1, 2, 3, 4, 5, None]
    two.to_start()
    assert one.position == 1


@pytest.mark.rule("queue.shared")
def test_two_processes_share_a_place(queue: Queue) -> None:
    """Two that read at the same time: together they have each message once, each of them in order."""
    queue.append([{"n": n} for n in range(200)])
    code = (
        "import sys; from ferryman.queues import Queue\n"
        "t = Queue('orders', sys.argv[1]).tailer('auditor')\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "while (m := t.read()) is not None: print(m.index)\n"
    )
    command = [sys.executable, "-c", code, str(queue.root)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    readers = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
    for reader in readers:
        assert reader.stdin is not None
        reader.stdin.write("go\n")
        reader.stdin.flush()
    seen = [[int(line) for line in reader.communicate(timeout=300)[0].split()] for reader in readers]

    assert sorted(seen[0] + seen[1]) == [*range(1, 206)]
    assert all(each == sorted(each) for each in seen)


def test_read_many_notes_once(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    tailer = queue.tailer("auditor")
    noted: list[int] = []
    note = tailer._store.positions.record
    monkeypatch.setattr(tailer._store.positions, "record", lambda name, at, by: (noted.append(at), note(name, at, by)))
    assert [m.index for m in tailer.read_many(4)] == [1, 2, 3, 4]
    assert [m.index for m in tailer.read_many(4)] == [5]
    assert tailer.read_many(4) == tailer.read_many(0) == []
    assert noted == [5, 6]


def test_moving(queue: Queue) -> None:
    tailer = queue.tailer("auditor")
    assert index_of(tailer.to_end().read()) is None
    assert tailer.position == 6
    assert index_of(tailer.to(4).read()) == 4
    assert index_of(tailer.to_start().peek()) == 1
    assert tailer.to(6).position == 6
    for wrong in (0, -1, 7):
        with pytest.raises(UsageError, match=f"there is no message {wrong}; 1 to 5 are kept"):
            tailer.to(wrong)
    assert tailer.position == 6


@pytest.mark.rule("queue.direction")
def test_backward(queue: Queue) -> None:
    """Its place is between two messages: what was read last is what comes next after a turn."""
    tailer = queue.tailer("auditor")
    tailer.read_many(3)
    assert tailer.backward().position == 3
    assert [m.index for m in tailer.read_many(2)] == [3, 2]
    assert index_of(tailer.forward().peek()) == 2
    assert all_of(tailer.backward()) == [1]
    assert tailer.position == 0
    assert all_of(tailer.to_end()) == [5, 4, 3, 2, 1]
    assert index_of(tailer.to(4).read()) == 4
    assert index_of(tailer.read()) == 3
    with pytest.raises(UsageError, match="no message 6"):
        tailer.to(6)
    assert all_of(tailer.forward()) == [3, 4, 5]


def test_direction_is_of_the_handle(queue: Queue) -> None:
    one, two = queue.tailer("auditor").to_end().backward(), queue.tailer("auditor")
    assert [index_of(one.read()), index_of(two.read()), index_of(one.read())] == [5, 5, 5]


def test_an_empty_queue(root: Path) -> None:
    tailer = Queue("empty", root).tailer("auditor")
    assert (tailer.read(), tailer.peek(), tailer.position) == (None, None, 1)
    assert tailer.to_start().to_end().to(1).position == 1
    assert tailer.backward().read() is None
    assert tailer.position == 0
    with pytest.raises(UsageError, match="no message is kept"):
        tailer.to(2)


@pytest.mark.rule("queue.wait")
@pytest.mark.parametrize("name", [None, "auditor"])
def test_waiting_ends_when_something_comes(queue: Queue, root: Path, name: str | None) -> None:
    """Appended by another handle; long before the time is over."""
    tailer = queue.tailer(name).to_end()
    late = threading.Timer(0.2, lambda: Queue("orders", root).append([{"late": True}]))
    late.start()
    began = time.monotonic()
    found = tailer.read(wait_s=600)
    late.join()

    assert found is not None
    assert found.body == {"late": True}
    assert time.monotonic() - began < 300


def test_waiting_for_nothing(queue: Queue) -> None:
    began = time.monotonic()
    assert queue.tailer("auditor").to_end().read(wait_s=0.05) is None
    assert time.monotonic() - began >= 0.05


@pytest.mark.rule("queue.forget")
def test_a_forgotten_reader(queue: Queue, root: Path) -> None:
    """Its handles say so; taken again it begins at the first message."""
    tailer = queue.tailer("auditor")
    tailer.read_many(3)
    assert Queue.unused(root) == []
    assert queue.forget("auditor")
    assert not queue.forget("auditor")
    assert not queue.forget("../queue.json")
    assert queue.readers() == {}
    assert Queue.unused(root) == ["orders"]
    with pytest.raises(UsageError, match="the reader auditor was forgotten"):
        tailer.read()
    assert queue.readers() == {}
    assert queue.tailer("auditor").position == 1


@pytest.mark.rule("queue.another")
def test_a_tailer_of_a_queue_that_was_made_again(queue: Queue, root: Path) -> None:
    tailers = [queue.tailer("auditor"), queue.tailer()]
    for tailer in tailers:
        tailer.read()
    queue.delete()
    Queue("orders", root).append([{"new": 1}])
    for tailer in tailers:
        for use in (tailer.read, tailer.peek, tailer.to_end, tailer.to_start, lambda t=tailer: t.position):
            with pytest.raises(QueueReplaced, match="was deleted and made again"):
                use()
    assert Queue("orders", root).readers() == {}


@pytest.mark.parametrize("name", ["", "a/b", ".x", "a b", "../x", 1])
def test_names_of_readers(queue: Queue, name: Any) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a reader"):
        queue.tailer(name)
    with pytest.raises(UsageError, match="cannot be the name of a reader"):
        queue.register(name, 1)


def test_a_plan_registers(queue: Queue) -> None:
    """With the position that its own commit has."""
    queue.register("plan-words", 3)
    queue.register("plan-words", 5)
    assert queue.readers() == {"plan-words": 5}


def test_it_reads_ahead_only_so_much(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many large messages: a part of them is held; all of them come, in both directions."""
    monkeypatch.setattr("ferryman.limits.QUEUE_AHEAD_BYTES", 10_000)
    monkeypatch.setattr("ferryman.limits.QUEUE_AHEAD_ROWS", 7)
    monkeypatch.setattr("ferryman.limits.QUEUE_BACK_ROWS", 3)
    queue = Queue("large", root)
    for _ in range(5):
        queue.append([{"x": "y" * 3000} for _ in range(8)])
    tailer = queue.tailer()
    assert all_of(tailer) == [*range(1, 41)]
    assert all_of(tailer.backward()) == [*range(40, 0, -1)]
    assert len(tailer._ahead) <= 8


@contextlib.contextmanager
def stopped_with(lock: Path) -> Iterator[int]:
    """A process that was stopped while it held this lock; its id."""
    code = (
        "import os, signal, sys; from pathlib import Path; from ferryman.storage.locks import hold_lock\n"
        "with hold_lock(Path(sys.argv[1]), 0, signed=True) as ours:\n"
        "    print(ours, flush=True); os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    command = [sys.executable, "-c", code, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "True\n"
        yield held.pid
        held.kill()


@pytest.mark.rule("queue.held-reader")
def test_a_reader_that_a_stopped_process_holds(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it for ever: the error says who holds it. Trimming says so too."""
    monkeypatch.setattr(limits, "QUEUE_READER_S", 0)
    monkeypatch.setattr(limits, "QUEUE_TURN_S", 0)
    tailer = queue.tailer("auditor")
    with stopped_with(queue.folder / "tailers" / ".lock-auditor") as pid:
        moves: list[Callable[[], object]] = [
            tailer.read,
            tailer.to_end,
            lambda: queue.tailer("auditor"),
            lambda: queue.register("auditor", 3),
            lambda: queue.forget("auditor"),
        ]
        for move in moves:
            with pytest.raises(ReaderHeld, match=rf"the reader auditor is held by process {pid} on .* since ") as held:
                move()
            assert "was stopped" in str(pickle.loads(pickle.dumps(held.value)))
        with pytest.raises(UsageError, match=rf"the reader auditor is busy: process {pid} on "):
            queue.trim("0s")
    assert index_of(tailer.read()) == 1


def test_a_reader_that_another_thread_holds(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUEUE_READER_S", 0)
    tailer = queue.tailer("auditor")
    by = pytest.raises(ReaderHeld, match="by another thread of this process")
    with tailer._store.positions.hold("auditor"), ThreadPoolExecutor(1) as other, by:
        other.submit(tailer.read).result()
    assert index_of(tailer.read()) == 1
