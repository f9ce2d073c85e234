"""A task of an at-most-once plan of which a twin is started: it waits for the first one, as long as that is alive."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ferryman.engine import once_task
from ferryman.engine.once_task import IN_DOUBT, TaskNotes, run_once
from ferryman.engine.results import NOTHING_STAGED, Staged
from ferryman.errors import EngineError
from ferryman.state.state import OPEN
from ferryman.storage import files, processes
from ferryman.storage.files import StatePath, path_of
from ferryman.storage.processes import EXPIRES_S, Process
from tests.support.in_store import faulty, states
from tests.support.waiting import wait_until

__all__ = ["faulty", "states"]

_FORK = multiprocessing.get_context("fork")

STAGED = NOTHING_STAGED._replace(entries=7)

ELSEWHERE = Process("another machine", 4711, "12345")


class Clock:
    """Time that goes by only while somebody sleeps.

    Args:
        then: called in each sleep.
    """

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.now = 0.0
        self.then = then

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.then()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(once_task, "time", found)
    monkeypatch.setattr(processes, "time", found)
    return found


@pytest.fixture(params=["disk", "store"])
def folder(request: pytest.FixtureRequest, place: Path) -> StatePath:
    """That of a wave."""
    found = place if request.param == "disk" else path_of(request.getfixturevalue("states"))
    files.publish(found / OPEN, b"")
    return found


def never(notes: TaskNotes) -> Staged:
    raise AssertionError("a step was called a second time")


def doubt(notes: Iterator[Any]) -> Staged:
    return IN_DOUBT


class First:
    """A first task in a process of its own; it goes on until it is told to end."""

    def __init__(self, folder: StatePath) -> None:
        self.may_end = _FORK.Event()
        self._folder = folder
        self.process = _FORK.Process(target=self._work)
        self.process.start()
        wait_until(lambda: files.exists(folder / "0.begun"))

    def _work(self) -> None:
        run_once(self._folder, 0, self._run, doubt)

    def _run(self, notes: TaskNotes) -> Staged:
        notes.add("first")
        notes.sync()
        self.may_end.wait()
        try:
            notes.sync()
        except EngineError:
            (self._folder / "stopped").touch()
            raise
        return STAGED

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid


@pytest.fixture
def first(place: Path) -> Iterator[First]:
    files.publish(place / OPEN, b"")
    found = First(place)
    yield found
    found.process.kill()
    found.process.join()


@pytest.mark.rule("once.twin")
def test_a_twin_waits_for_the_first_and_returns_the_same(first: First, place: Path, clock: Clock) -> None:
    """Also when that has given no sign of life yet."""
    looks = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 3:
            first.may_end.set()
            first.process.join()

    clock.then = look
    assert run_once(place, 0, never, doubt) == STAGED
    assert len(looks) == 3


@pytest.mark.rule("once.twin")
def test_where_the_first_was_killed_it_is_in_doubt_at_once(first: First, place: Path, clock: Clock) -> None:
    """Also before its parent has looked at its end."""
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: not processes.start_time_of(first.pid))
    assert run_once(place, 0, never, doubt) == IN_DOUBT
    assert clock.now == 0


@pytest.mark.rule("once.twin")
def test_where_the_first_is_killed_meanwhile_nobody_waits_on(first: First, place: Path, clock: Clock) -> None:
    def kill() -> None:
        first.process.kill()
        first.process.join()

    clock.then = kill
    assert run_once(place, 0, never, doubt) == IN_DOUBT
    assert clock.now < 1


@pytest.mark.rule("once.twin")
def test_where_the_first_was_stopped_the_wait_ends(first: First, place: Path, clock: Clock) -> None:
    """What it has begun is in doubt; when it goes on, it notices before its next call."""
    wait_until(lambda: (place / "0.notes").exists() and (place / "0.notes").stat().st_size)
    os.kill(first.pid, signal.SIGSTOP)
    noted: list[Any] = []

    def rebuild(notes: Iterator[Any]) -> Staged:
        noted.extend(notes)
        return IN_DOUBT

    assert run_once(place, 0, never, rebuild) == IN_DOUBT
    assert noted == ["first"]
    assert EXPIRES_S <= clock.now < EXPIRES_S + 3
    os.kill(first.pid, signal.SIGCONT)
    first.may_end.set()
    first.process.join()
    assert (place / "stopped").exists()
    assert run_once(place, 0, never, rebuild) == IN_DOUBT


@pytest.mark.rule("once.twin")
@pytest.mark.parametrize("ends", [True, False])
def test_of_a_first_on_another_machine_signs_of_life_tell(folder: StatePath, clock: Clock, ends: bool) -> None:
    """As long as it gives some, its twin waits: for hours. Without, no longer than they may be late."""
    files.publish(folder / "0.begun", msgspec.json.encode(ELSEWHERE))
    signs = 0

    def go_on() -> None:
        nonlocal signs
        if signs < 100 and clock.now >= 50 * (signs + 1):
            signs += 1
            if signs == 100 and ends:
                files.publish(folder / "0.kept", pickle.dumps(STAGED))
            files.replace(folder / "0.alive", str(signs).encode())

    clock.then = go_on
    assert run_once(folder, 0, never, doubt) == (STAGED if ends else IN_DOUBT)
    assert clock.now >= 100 * 50
    assert clock.now < 100 * 50 + EXPIRES_S + 5


def test_a_first_that_works_for_long_gives_signs_of_life(folder: StatePath, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has ended, or its wave is over."""
    monkeypatch.setattr(processes, "HEARTBEAT_S", 0.01)

    def alive() -> Any:
        return files.read_version(folder / "0.alive")

    def run(notes: TaskNotes) -> Staged:
        wait_until(alive)
        before = alive()
        wait_until(lambda: alive() != before)
        return STAGED

    assert run_once(folder, 0, run, doubt) == STAGED
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "ferryman-alive"])

    def outlive(notes: TaskNotes) -> Staged:
        files.remove(folder / OPEN)
        wait_until(lambda: not [t for t in threading.enumerate() if t.name == "ferryman-alive"])
        return STAGED

    assert run_once(folder, 1, outlive, doubt) == STAGED


def test_notes_are_read_up_to_the_first_that_was_cut_off(folder: StatePath) -> None:
    """Also large ones, and none; a store has them in several objects."""
    path, large = folder / "0.notes", b"x" * 5_000_000
    assert list(files.read_records(path)) == []
    writer = files.RecordWriter(path)
    writer.sync()
    assert list(files.read_records(path)) == []
    for record in (b"a", b"", large):
        writer.add(record)
    writer.sync()
    writer.add(b"lost")
    writer.close()
    assert list(files.read_records(path)) == [b"a", b"", large]
    if isinstance(path, Path):
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        assert list(files.read_records(path)) == [b"a", b""]
        path.write_bytes(whole.replace(b"a", b"b", 1))
        assert list(files.read_records(path)) == []


def test_records_have_the_places_at_which_they_are_read(folder: StatePath) -> None:
    """A store has an object for each sync, and one for each few megabytes."""
    path, large = folder / "0.notes", b"x" * 5_000_000
    writer = files.RecordWriter(path)
    added = [b"a", b"", large, b"b"]
    places = [writer.add(record) for record in added]
    writer.sync()
    added.append(b"c")
    places.append(writer.add(b"c"))
    writer.sync()
    writer.close()
    found = []
    for number, at in places:
        with io.BytesIO(files.read(path if isinstance(path, Path) else files.numbered(path, number))) as file:
            file.seek(at)
            found.append(next(files.framed_records(file))[1])
    assert found == added
    assert len({place.object for place in places}) == (1 if isinstance(path, Path) else 3)
