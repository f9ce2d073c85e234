"""Removing the oldest messages: by age, not what a reader still needs; and keeping files few."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from ferryman import limits
from ferryman.errors import UsageError
from ferryman.queues import Queue, upkeep
from ferryman.queues.table import MessageFile
from tests.queues.child import store_of

DAY_S = 86_400.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds by which the clock of whoever trims is ahead."""
    ahead = [0.0]
    before = upkeep._oldest_kept
    monkeypatch.setattr(upkeep, "_oldest_kept", lambda keep_s: before(keep_s - ahead[0]))
    return ahead


def indices(queue: Queue) -> list[int]:
    return [m.index for m in queue.read(limit=100_000)]


def files(queue: Queue) -> list[str]:
    return [name for name in os.listdir(queue.folder / "messages") if name.endswith(".parquet")]


@pytest.mark.rule("queue.trim")
def test_by_age(root: Path, clock: list[float]) -> None:
    """What is younger stays; indices stay what they are, also when nothing is left."""
    queue = Queue("orders", root)
    queue.append([{"n": n} for n in range(5)])
    assert queue.trim("1d") == 0
    clock[0] = DAY_S + 1
    assert queue.trim("2d") == 0
    assert queue.trim("1d") == 5
    assert (queue.read(), queue.first_index, queue.last_index) == ([], 6, 5)
    assert queue.trim(0) == 0
    assert queue.append([{"n": 6}]) == [6]
    assert indices(queue) == indices(Queue("orders", root)) == [6]
    assert files(queue) == [f.path for f in live(queue)]


def live(queue: Queue) -> list[MessageFile]:
    return store_of(queue).table.files


@pytest.mark.rule("queue.trim")
@pytest.mark.parametrize("reader", range(1, 8))
def test_not_what_a_reader_has_not_read(root: Path, reader: int) -> None:
    """Also in the middle of a file; ``force`` does not ask."""
    queue = Queue("orders", root)
    queue.append([{"n": n} for n in range(4)])
    queue.append([{"n": n} for n in range(2)])
    queue.register("done", 7)
    queue.register("slow", reader)
    assert queue.trim("0s") == reader - 1
    assert indices(queue) == [*range(reader, 7)]
    assert queue.first_index == reader
    assert len(DeltaTable(str(queue.folder / "messages")).to_pyarrow_table()) == 7 - reader
    assert queue.trim("0s", force=True) == 7 - reader
    tailer = queue.tailer("slow")
    queue.append([{"n": 7}])
    assert tailer.position == 7
    message = tailer.read()
    assert message is not None
    assert message.index == 7


def test_a_part_of_a_merged_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the message, also where old and young ones are in one file; a look at it alone copies nothing."""
    monkeypatch.setattr(limits, "QUEUE_FILES", 6)
    queue = Queue("orders", root)
    for n in range(6):
        queue.append([{"n": n}], key=f"k{n}")
    [file] = live(queue)
    born = [m.created.timestamp() for m in queue.read()]
    for n in range(5):
        monkeypatch.setattr(upkeep, "_oldest_kept", lambda _, n=n: int((born[n] + born[n + 1]) / 2 * 1e6))
        assert queue.trim(0) == 1
        assert queue.trim(0) == 0
        assert indices(queue) == [*range(n + 2, 7)]
    assert [f.path for f in live(queue)] != [file.path]
    assert [queue.append([{}], key=f"k{n}") for n in range(6)] == [[n + 1] for n in range(6)]


@pytest.mark.rule("queue.keep")
def test_at_each_append(root: Path, clock: list[float]) -> None:
    """Files all of whose messages are too old go by themselves, unless a reader needs them."""
    queue = Queue("orders", root, keep="10d")
    for n in range(3):
        queue.append([{"n": n}])
    queue.register("slow", 2)
    clock[0] = 11 * DAY_S
    queue._keep_s = 10 * DAY_S + 1
    Queue("orders", root).append([{"n": 3}])
    assert indices(queue) == [1, 2, 3, 4]
    clock[0] = 11 * DAY_S
    queue.append([{"n": 4}])
    assert indices(queue)[0] == 2
    queue.forget("slow")
    queue.append([{"n": 5}])
    assert indices(queue) in ([], [6])
    assert queue.last_index == 6


@pytest.mark.parametrize("keep", ["soon", "", "1w", "-1d"])
def test_not_a_duration(root: Path, keep: str) -> None:
    with pytest.raises(UsageError, match="keep="):
        Queue("orders", root, keep=keep)
    with pytest.raises(UsageError, match="keep="):
        Queue("orders", root).trim(keep)


def test_a_tailer_in_what_was_trimmed(root: Path) -> None:
    """It goes on with the first message that is kept; going to one that is not is refused."""
    queue = Queue("orders", root)
    queue.append([{"n": n} for n in range(4)])
    tailer = queue.tailer()
    queue.register("r", 3)
    queue.trim(0)
    assert tailer.position == 3
    assert tailer.read() == queue.read()[0]
    with pytest.raises(UsageError, match="there is no message 2; 3 to 4 are kept"):
        tailer.to(2)
    assert [m.index for m in tailer.to_end().backward().read_many(9)] == [4, 3]
    assert tailer.read() is None


def test_a_tailer_whose_messages_are_trimmed_while_it_reads(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another handle, farther than it reads ahead: the first message that is kept comes, not the end."""
    monkeypatch.setattr(limits, "QUEUE_AHEAD_ROWS", 2)
    queue = Queue("orders", root)
    for _ in range(10):
        queue.append([{}])
    tailer = queue.tailer()
    assert tailer.peek() is not None
    other = Queue("orders", root)
    other.register("r", 8)
    other.trim(0)
    tailer._ahead = {}
    assert [m.index for m in tailer.read_many(9)] == [8, 9, 10]


def test_a_reader_that_is_just_moving(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be going back: a trim says so, an append leaves it for later, force does not ask."""
    monkeypatch.setattr(limits, "QUEUE_TURN_S", 0)
    queue = Queue("orders", root, keep="0s")
    queue.register("auditor", 3)
    queue.append([{"n": 1}])
    queue.append([{"n": 2}])
    with store_of(queue).positions.hold("auditor"):
        with pytest.raises(UsageError, match="the reader auditor is busy"):
            queue.trim(0)
        first = queue.first_index
        queue.append([{"n": 3}])
        assert queue.first_index == first
        assert queue.trim(0, force=True) == 3 - first + 1
    assert queue.append([{"n": 4}]) == [4]


# --- files are few --------------------------------------------------------------------------------------


@pytest.mark.rule("queue.flat")
def test_files_and_log_stay_bounded(root: Path) -> None:
    """Over hundreds of appends, with keys: data files, log, keys; nothing is lost."""
    queue = Queue("orders", root)
    most = {"files": 0, "log": 0, "keys": 0}
    for n in range(700):
        queue.append([{"n": n}], key=f"k{n}")
        most["files"] = max(most["files"], len(files(queue)))
        most["log"] = max(most["log"], len(os.listdir(queue.folder / "messages" / "_delta_log")))
        most["keys"] = max(most["keys"], len(os.listdir(queue.folder / "keys")))
    assert most["files"] <= 2 * limits.QUEUE_FILES
    assert most["log"] <= limits.QUEUE_COMMITS + 10
    assert most["keys"] <= 24
    assert [m.body["n"] for m in queue.read(limit=1000)] == [*range(700)]
    assert [queue.appended(f"k{n}") for n in range(700)] == [range(n + 1, n + 2) for n in range(700)]
    assert max(f.level for f in live(queue)) == 1


def test_readers_beside_merges(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has listed files which are merged away, again and again, finds the messages all the same."""
    monkeypatch.setattr(limits, "QUEUE_FILES", 2)
    monkeypatch.setattr(limits, "QUEUE_COMMITS", 3)
    queue, reader = Queue("orders", root), Queue("orders", root)
    queue.append([{"n": 0}])
    tailer = reader.tailer()
    seen: list[int] = []
    for n in range(1, 61):
        assert [m.index for m in reader.read(limit=100)] == [*range(1, n + 1)]
        rows = reader.read_rows(1, n + 1)
        queue.append([{"n": n}])
        assert sum(part.num_rows for part in rows) == n
        if n % 3 == 0:
            seen += [m.index for m in tailer.read_many(100)]
            assert seen == [*range(1, n + 2)]
    assert tailer.read() is None


def test_what_becomes_one_file() -> None:
    """Neighbours of one level at the end, as many as fit; large ones stay."""

    def made(*kinds: tuple[int, int]) -> list[MessageFile]:
        return [MessageFile(f"f{n}", size, n + 1, 1, 0, 0, level) for n, (level, size) in enumerate(kinds)]

    def found(batch: list[MessageFile]) -> list[str]:
        return [f.path for f in batch]

    small, half = 1000, limits.PART_BYTES // 2
    assert upkeep.next_batch(made(*[(0, small)] * 3), 4) == []
    assert found(upkeep.next_batch(made((1, small), *[(0, small)] * 4), 4)) == ["f1", "f2", "f3", "f4"]
    assert found(upkeep.next_batch(made(*[(1, small)] * 4, (0, small)), 4)) == ["f0", "f1", "f2", "f3"]
    assert found(upkeep.next_batch(made(*[(0, half)] * 4), 4)) == ["f0", "f1"]
    assert upkeep.next_batch(made(*[(0, half + 1)] * 9), 4) == []


def test_what_cannot_be_merged_waits(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The append has taken effect, and says so; the next one merges."""
    monkeypatch.setattr(limits, "QUEUE_FILES", 2)
    queue = Queue("orders", root)
    queue.append([{"n": 0}])
    write = upkeep.write_rows

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(upkeep, "write_rows", full)
    assert queue.append([{"n": 1}]) == [2]
    assert len(files(queue)) == 2
    monkeypatch.setattr(upkeep, "write_rows", write)
    assert queue.append([{"n": 2}]) == [3]
    assert len(files(queue)) == 1
    assert indices(queue) == [1, 2, 3]


def test_what_a_kill_left_is_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a later merge, once nobody can be about to name it."""
    monkeypatch.setattr(limits, "QUEUE_FILES", 2)
    queue = Queue("orders", root)
    queue.append([{"n": 0}])
    old, young = (queue.folder / "messages" / f"0-{n:032x}-00000000-00000000.parquet" for n in (1, 2))
    for stray in (old, young):
        stray.write_bytes(b"x")
    long_ago = time.time() - 2 * limits.READERS_GRACE_S
    os.utime(old, (long_ago, long_ago))
    queue.append([{"n": 1}])
    assert (old.exists(), young.exists()) == (False, True)


def test_a_merger_that_is_stopped_is_not_waited_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody holds the turn to merge and does not merge: when it is too much, another does."""
    from ferryman.storage.locks import hold_lock

    monkeypatch.setattr(limits, "QUEUE_FILES", 4)
    queue = Queue("orders", root)
    queue.append([{"n": 0}])
    with hold_lock(queue.folder / "merging"):
        most = 0
        for n in range(40):
            queue.append([{"n": n}])
            most = max(most, len(files(queue)))
    assert 4 < most <= 20
