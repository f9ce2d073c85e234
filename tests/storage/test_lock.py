"""One driver a state: the second is told who has it, and a killed one frees it."""

from __future__ import annotations

import datetime as dt
import errno
import multiprocessing.process
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from ferryman.errors import StateHeld
from ferryman.storage import locks
from ferryman.storage.locks import Lock, hold_lock

Holder = multiprocessing.process.BaseProcess


def hold(path: Path, told: Connection, child: list[str]) -> None:
    lock = Lock.take(path)
    if child:
        subprocess.Popen(child)
    told.send(lock is not None)
    time.sleep(60)


def start(path: Path, child: list[str]) -> Holder:
    """A process that holds a lock, and perhaps has started another program."""
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    process = fork.Process(target=hold, args=(path, there, child))
    process.start()
    assert here.recv()
    return process


@pytest.fixture
def holder(place: Path) -> Iterator[Holder]:
    """A process that holds the lock ``place/lock``."""
    process = start(place / "lock", [])
    yield process
    process.kill()
    process.join()


def test_the_second_is_told_who_and_since_when(place: Path, holder: Holder) -> None:
    """Host, process id and time of taking; the message says what to do."""
    with pytest.raises(StateHeld) as error:
        Lock.take(place / "lock")
    held = error.value
    assert (held.path, held.host, held.pid) == (str(place), socket.gethostname(), holder.pid)
    age = dt.datetime.now().astimezone() - dt.datetime.fromisoformat(held.since)
    assert dt.timedelta(seconds=-2) < age < dt.timedelta(seconds=30)
    assert str(holder.pid) in str(held)
    assert "Wait until it ends" in str(held)
    assert held.exit_code == 1


def test_being_refused_changes_nothing(place: Path, holder: Holder) -> None:
    """The note of who holds it stays the holder's."""
    before = (place / "lock").read_bytes()
    for _ in range(3):
        with pytest.raises(StateHeld):
            Lock.take(place / "lock")
    assert (place / "lock").read_bytes() == before


def test_kill_9_frees_it_at_once(place: Path, holder: Holder) -> None:
    """No time-out, no stale lock file to remove."""
    holder.kill()
    holder.join()
    began = time.monotonic()
    Lock.take(place / "lock").release()
    assert time.monotonic() - began < 10


def test_a_released_lock_can_be_taken(place: Path) -> None:
    """Again and again, in one process too; releasing twice is no error."""
    for _ in range(3):
        lock = Lock.take(place / "lock")
        with pytest.raises(StateHeld):
            Lock.take(place / "lock")
        lock.release()
        lock.release()


def test_a_lock_file_of_a_dead_holder_is_no_obstacle(place: Path) -> None:
    """What an old holder wrote there is overwritten, also when it was longer."""
    (place / "lock").write_bytes(b'{"host": "' + b"x" * 500 + b'", "pid": 1, "since": "2001-01-01"}')
    lock = Lock.take(place / "lock")
    assert str(os.getpid()).encode() in (place / "lock").read_bytes()
    assert b"2001" not in (place / "lock").read_bytes()
    lock.release()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"host": 1, "pid": "x", "since": 0}', b"\xff\xfe"])
def test_an_unreadable_note_is_no_crash(place: Path, holder: Holder, content: bytes) -> None:
    """Held, though not (yet) signed: still refused, in words."""
    (place / "lock").write_bytes(content)
    with pytest.raises(StateHeld, match="is held by process"):
        Lock.take(place / "lock")


def test_a_program_that_was_started_meanwhile_does_not_keep_it(place: Path) -> None:
    """The lock dies with its holder, not with the programs it started (Spark's JVM may live a while longer)."""
    process = start(place / "lock", ["sh", "-c", f"echo $$ > {place}/pid; exec sleep 60"])
    while not (place / "pid").exists() or not (place / "pid").read_text():
        time.sleep(0.01)
    child = int((place / "pid").read_text())
    try:
        process.kill()
        process.join()
        os.kill(child, 0)
        Lock.take(place / "lock").release()
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("fails", ["ftruncate", "pwrite"])
def test_a_disk_that_is_full_leaves_no_lock(place: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """A lock that cannot be signed is given up: the same process takes it once there is room."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, fails, full)
        with pytest.raises(OSError, match="No space left"):
            Lock.take(place / "lock")
    Lock.take(place / "lock").release()


def test_a_turn_that_is_not_ours_has_a_holder(place: Path, holder: Holder) -> None:
    """Whoever waits in vain is told who has it; a turn whose owner did not sign has just another process."""
    with hold_lock(place / "lock", 0) as ours:
        assert not ours
    assert locks.describe_holder(place / "lock").startswith(f"process {holder.pid} on {socket.gethostname()} since ")
    with hold_lock(place / "mine", 0, signed=True) as ours:
        assert ours
        assert locks.describe_holder(place / "mine").startswith(f"process {os.getpid()} on ")
    with hold_lock(place / "unsigned", 0):
        assert locks.describe_holder(place / "unsigned") == "another process"


def test_a_turn_on_a_full_disk(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is had without a signature: what makes room needs it."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with hold_lock(place / "lock", 0, signed=True) as ours:
        assert ours
