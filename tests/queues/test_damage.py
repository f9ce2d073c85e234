"""A damaged file is named, whichever it is; and what the disk does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ferryman import limits
from ferryman.errors import EngineError, QueueDamaged, StateDamaged
from ferryman.queues import Queue
from tests.support.damage import flip
from tests.support.full_disk import Disk, disk

__all__ = ["disk"]


def made(root: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """With something of everything: a checkpoint, entries after it, keys, a reader."""
    monkeypatch.setattr(limits, "QUEUE_FILES", 4)
    monkeypatch.setattr(limits, "QUEUE_COMMITS", 8)
    queue = Queue("orders", root)
    for n in range(14):
        queue.append([{"n": n}], key=f"k{n}")
    queue.tailer("auditor").read()
    return queue


def one(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern))


KINDS = {
    "identity": "queue.json",
    "entry": "messages/_delta_log/*.json",
    "checkpoint": "messages/_delta_log/*.checkpoint.parquet",
    "data": "messages/*.parquet",
    "keys": "keys/*",
    "reader": "tailers/*",
}


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.rule("queue.damage")
@pytest.mark.parametrize("how", [flip, truncate, empty])
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_named(root: Path, monkeypatch: pytest.MonkeyPatch, kind: str, how: object) -> None:
    """Nothing is overwritten, nothing wrong is returned."""
    queue = made(root, monkeypatch)
    path = one(queue.folder, KINDS[kind])
    how(path)  # type: ignore[operator]
    damaged = path.read_bytes()

    with pytest.raises(StateDamaged) as caught:
        use_all(Queue("orders", root))

    assert caught.value.path == str(path)
    assert path.read_bytes() == damaged
    assert kind == "identity" or isinstance(caught.value, QueueDamaged)
    assert "fsck" not in str(caught.value) or kind == "identity"


def use_all(queue: Queue) -> None:
    queue.read(limit=1000)
    queue.tailer("auditor").read()
    queue.appended("never")


@pytest.mark.rule("queue.damage")
@pytest.mark.parametrize("kind", ["data", "checkpoint"])
def test_a_missing_file_is_named(root: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    queue = made(root, monkeypatch)
    path = one(queue.folder, KINDS[kind])
    path.unlink()

    with pytest.raises(QueueDamaged) as caught:
        use_all(Queue("orders", root))

    assert caught.value.path == str(path)


def test_a_gap_in_the_log_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUEUE_COMMITS", 100)
    queue = Queue("orders", root)
    for n in range(5):
        queue.append([{"n": n}])
    gone = queue.folder / "messages" / "_delta_log" / f"{3:020d}.json"
    gone.unlink()
    with pytest.raises(QueueDamaged, match="the log file is missing") as caught:
        Queue("orders", root).read()
    assert caught.value.path == str(gone)


def test_somebody_elses_commit_is_named(root: Path) -> None:
    """An ``OPTIMIZE`` or ``DELETE`` by another program is refused."""
    from deltalake import DeltaTable

    queue = Queue("orders", root)
    queue.append([{"n": 1}, {"n": 2}])
    DeltaTable(str(queue.folder / "messages")).delete("index = 1")
    with pytest.raises(QueueDamaged, match="it was not written by Ferryman"):
        queue.append([{"n": 3}])


def test_a_newer_format_is_refused(root: Path) -> None:
    from ferryman.errors import StateForeign
    from ferryman.storage.files import seal

    Queue("orders", root).append([{}])
    (root / "orders" / "queue.json").write_bytes(seal({"format": 99, "id": "x", "created": ""}))
    with pytest.raises(StateForeign, match="format 99"):
        Queue("orders", root).read()


@pytest.mark.rule("queue.disk")
def test_a_full_disk(disk: Disk) -> None:
    """The append says so, nothing of it is there; with room it goes on."""
    queue = Queue("orders", disk.folder / "queues")
    queue.append([{"n": 0}], key="k0")
    disk.limit(free_kib=64)
    with pytest.raises(EngineError, match="the disk is full"):
        queue.append([{"x": os.urandom(100_000).hex()}], key="large")
    assert [m.body for m in queue.read()] == [{"n": 0}]
    disk.limit()
    assert queue.append([{"n": 1}], key="large") == [2]
    assert Queue("orders", disk.folder / "queues").last_index == 2
    left = [p.name for p in (queue.folder / "messages").iterdir() if p.name.startswith(".tmp")]
    assert left == []


@pytest.mark.parametrize("files", range(8))
def test_no_room_for_files(disk: Disk, files: int) -> None:
    """At whatever step there is none: the append with its key takes effect once."""
    queue = Queue("orders", disk.folder / "queues")
    queue.append([{"n": 0}])
    disk.limit(free_files=files)
    try:
        queue.append([{"n": 1}], key="k")
    except EngineError as e:
        assert "the disk is full" in str(e)  # noqa: PT017 - with enough room there is no error
    disk.limit()
    assert queue.append([{"n": 1}], key="k") == [2]
    assert queue.last_index == 2


def test_a_read_only_folder(disk: Disk) -> None:
    """Is read by whoever has no name; who wants to write is told, with the file."""
    queue = Queue("orders", disk.folder / "queues")
    queue.append([{"n": 0}, {"n": 1}])
    subprocess.run(["mount", "-o", "remount,ro", "none", str(disk.folder)], check=True)
    reader = Queue("orders", disk.folder / "queues")
    assert [m.index for m in reader.read()] == [1, 2]
    assert [m.index for m in reader.tailer().read_many(5)] == [1, 2]
    with pytest.raises(EngineError, match=f"{queue.folder}.*Read-only file system"):
        reader.append([{"n": 2}])
    with pytest.raises(EngineError, match="Read-only file system"):
        reader.tailer("auditor")
