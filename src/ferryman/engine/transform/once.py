"""A task that runs once at most, though Spark starts it again where it does not hear of it.

It makes a file that only one can make, then runs, and keeps what it returns. Whoever comes later returns the same. He
waits for it as long as the first one is alive (where Spark speculates, two run side by side); if that one has left
nothing, nobody knows how far it came. The folder is the wave's: once that is over, nobody can begin.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Final

import msgspec

from ferryman import crash
from ferryman.engine.transform.staged import NOTHING, Staged
from ferryman.state.layout import OPEN
from ferryman.storage.files import StatePath, exists, publish, read
from ferryman.storage.processes import Process, ProcessWatch, signs_of_life

IN_DOUBT: Final = NOTHING._replace(in_doubt=True)


def run_once(folder: StatePath, number: int, run: Callable[[], Staged]) -> Staged:
    """What the task of this number returns.

    Raises:
        FileNotFoundError: its wave is over.
    """
    if not publish(folder / f"{number}.begun", msgspec.json.encode(Process.this())):
        _wait_for_first(folder, number)
        return _kept(folder, number)
    if not exists(folder / OPEN):  # in an object store, the folder does not say it
        raise FileNotFoundError(f"{folder}: its wave is over")
    crash.point("once.begun")
    with signs_of_life(folder / f"{number}.alive", folder / OPEN):
        staged = run()
        publish(_file(folder, number), pickle.dumps(staged))
    crash.point("once.kept")
    return staged


def result_of(folder: StatePath, number: int) -> Staged | None:
    """What the task of this number has come to, for a driver that comes after its own; None: it has not begun, and
    cannot any more."""
    try:
        return None if publish(folder / f"{number}.begun", b"") else _kept(folder, number)
    except FileNotFoundError:
        return IN_DOUBT  # somebody has removed the folder


def _wait_for_first(folder: StatePath, number: int) -> None:
    """Until it has kept what it returns, or is not alive any more."""
    begun = read(folder / f"{number}.begun")
    if not begun:
        return  # a later driver has seen to it that nobody begins
    first = ProcessWatch(msgspec.json.decode(begun, type=Process), folder / f"{number}.alive")
    wait_s = _LOOK_S
    while not exists(_file(folder, number)) and first.is_alive():
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _LOOK_MAX_S)


_LOOK_S: Final = 0.05
_LOOK_MAX_S: Final = 2.0
"""How often it is looked whether the first one is through: in an object store a look is a few requests."""


def _kept(folder: StatePath, number: int) -> Staged:
    kept = _file(folder, number)
    if not exists(kept):
        return IN_DOUBT
    staged = pickle.loads(read(kept))
    assert isinstance(staged, Staged)
    return staged


def _file(folder: StatePath, number: int) -> StatePath:
    return folder / f"{number}.kept"
