"""Tasks that run at most once, although Spark may start a task again if it receives no answer.

::

    <wave>/open         the wave is not over
    <wave>/<n>.begun    who runs task n; empty: it has been stopped
    <wave>/<n>.alive    its heartbeat
    <wave>/<n>.notes    how far it is: what the entries before came to, and which ones a step may see now
    <wave>/<n>.kept     its result

1. The task creates ``begun``, which only one run can create.
2. Before a step sees an entry, it appends to its notes, durably, what the entries before came to, and that this one
   begins; *then* it looks whether ``begun`` still names it; *then* it calls the step.
3. It stores its result.

A later run returns the result of the first one, and waits for it while that is alive (under speculative execution, two
run side by side). If the first one is dead, the later run empties ``begun``, *then* reads the notes: the entry that had
begun is in doubt, what was made of those before is staged, and those behind it are left to a later wave. If the first
one only seemed dead, it stops before its next call, because of this order. The folder belongs to the wave: once the
wave is over, no run can begin.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from ferryman import crash
from ferryman.engine.results import NOTHING_STAGED, KilledTask, Staged
from ferryman.errors import EngineError
from ferryman.state.state import OPEN
from ferryman.storage.files import RecordWriter, StatePath, exists, publish, read, read_records, replace
from ferryman.storage.processes import Process, ProcessWatch, heartbeat

IN_DOUBT: Final = NOTHING_STAGED._replace(killed=KilledTask())

Rebuild = Callable[[Iterator[Any]], Staged]
"""Stages what a killed task had finished, given its notes."""


class TaskNotes:
    """Notes of a task on how far it is.

    Args:
        owner: content of the file that says that the task runs.
    """

    def __init__(self, folder: StatePath, number: int, owner: bytes) -> None:
        self._records = RecordWriter(_notes_file(folder, number))
        self._begun = _begun_file(folder, number)
        self._owner = owner

    def add(self, note: object) -> None:
        """Add a note, which is durable with the next ``sync``."""
        self._records.add(pickle.dumps(note))

    def sync(self) -> None:
        """Make all notes durable.

        Raises:
            EngineError: another run has taken the task over, so that this one must not call a step any more.
        """
        self._records.sync()
        if read(self._begun) != self._owner:
            raise EngineError(f"{self._begun}: this task was taken for dead, and has been taken over.")

    def close(self) -> None:
        """Close the file. What was not synced is lost."""
        self._records.close()


def run_once(folder: StatePath, number: int, run: Callable[[TaskNotes], Staged], rebuild: Rebuild) -> Staged:
    """Run a task unless it has run before; return its result, or that of the first run.

    Raises:
        FileNotFoundError: its wave is over.
    """
    owner = msgspec.json.encode(Process.current())
    if not publish(_begun_file(folder, number), owner):  # 1
        _wait_for_first(folder, number)
        return _take_over(folder, number, rebuild)
    if not exists(folder / OPEN):  # an object store has no folder that could be missing
        raise FileNotFoundError(f"{folder}: its wave is over")
    crash.point("once.begun")
    notes = TaskNotes(folder, number, owner)
    try:
        with heartbeat(folder / f"{number}.alive", folder / OPEN):
            staged = _keep(folder, number, run(notes))  # 2, 3
    finally:
        notes.close()
    crash.point("once.kept")
    return staged


def kept_result(folder: StatePath, number: int, rebuild: Rebuild) -> Staged | None:
    """Return the result of an earlier driver's task with this number; None: the task had not begun, and now cannot."""
    try:
        return None if publish(_begun_file(folder, number), b"") else _take_over(folder, number, rebuild)
    except FileNotFoundError:
        return IN_DOUBT  # somebody has removed the folder


def _take_over(folder: StatePath, number: int, rebuild: Rebuild) -> Staged:
    """Return the result that the first run stored, or stop it and stage what it had finished."""
    if (kept := _read_kept(folder, number)) is not None:
        return kept
    replace(_begun_file(folder, number), b"")
    crash.point("once.stopped")
    if (kept := _read_kept(folder, number)) is not None:
        return kept
    staged = _keep(folder, number, rebuild(map(pickle.loads, read_records(_notes_file(folder, number)))))
    crash.point("once.rebuilt")
    return staged


def _wait_for_first(folder: StatePath, number: int) -> None:
    """Wait until the first run has stored its result, or is no longer alive."""
    begun = read(_begun_file(folder, number))
    if not begun:
        return  # a later driver has claimed the task so that no run can begin
    first = ProcessWatch(msgspec.json.decode(begun, type=Process), folder / f"{number}.alive")
    wait_s = _LOOK_S
    while not exists(_kept_file(folder, number)) and first.is_alive():
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _LOOK_MAX_S)


_LOOK_S: Final = 0.05
_LOOK_MAX_S: Final = 2.0
"""Longest pause between two checks for the first run's result, in seconds; in an object store each check is several
requests."""


def _keep(folder: StatePath, number: int, staged: Staged) -> Staged:
    """Store the result of a task durably; return the one that another run has stored before, if there is one."""
    if publish(_kept_file(folder, number), pickle.dumps(staged)):
        return staged
    return _read_kept(folder, number) or staged


def _read_kept(folder: StatePath, number: int) -> Staged | None:
    kept = _kept_file(folder, number)
    if not exists(kept):
        return None
    staged = pickle.loads(read(kept))
    assert isinstance(staged, Staged)
    return staged


def _begun_file(folder: StatePath, number: int) -> StatePath:
    return folder / f"{number}.begun"


def _kept_file(folder: StatePath, number: int) -> StatePath:
    return folder / f"{number}.kept"


def _notes_file(folder: StatePath, number: int) -> StatePath:
    return folder / f"{number}.notes"
