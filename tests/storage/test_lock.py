"""One driver a state: the second is told who has it, and a killed one frees it."""

from __future__ import annotations

import datetime as dt
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.errors import StateHeld
from ferryman.storage.lock import Lock

HOLD = "import sys, time; from pathlib import Path; from ferryman.storage.lock import Lock; \
lock = Lock.take(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"


@pytest.fixture
def holder(place: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock ``place/lock``."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(place / "lock")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_the_second_is_told_who_and_since_when(place: Path, holder: subprocess.Popen[str]) -> None:
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


def test_being_refused_changes_nothing(place: Path, holder: subprocess.Popen[str]) -> None:
    """The note of who holds it stays the holder's."""
    before = (place / "lock").read_bytes()
    for _ in range(3):
        with pytest.raises(StateHeld):
            Lock.take(place / "lock")
    assert (place / "lock").read_bytes() == before


def test_kill_9_frees_it_at_once(place: Path, holder: subprocess.Popen[str]) -> None:
    """No time-out, no stale lock file to remove."""
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    began = time.monotonic()
    Lock.take(place / "lock").release()
    assert time.monotonic() - began < 1


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
def test_an_unreadable_note_is_no_crash(place: Path, holder: subprocess.Popen[str], content: bytes) -> None:
    """Held, though not (yet) signed: still refused, in words."""
    (place / "lock").write_bytes(content)
    with pytest.raises(StateHeld, match="is held by process"):
        Lock.take(place / "lock")


def test_a_program_that_was_started_meanwhile_does_not_keep_it(place: Path) -> None:
    """The lock dies with its holder, not with the programs it started (Spark's JVM may live a while longer)."""
    start = HOLD.replace("time.sleep(60)", "__import__('subprocess').Popen(['sleep', '60']); time.sleep(60)")
    process = subprocess.Popen(
        [sys.executable, "-c", start, str(place / "lock")], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.2)
    try:
        process.kill()
        process.wait()
        Lock.take(place / "lock").release()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
