"""A task that runs once at most, though Spark starts it again where it does not hear of it.

It makes a file that only one can make, then runs, and keeps what it returns. Whoever comes later returns the same, or
says that nobody knows how far the first one came. The folder is the wave's: once that is over, nobody can begin.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Final

from ferryman import crash
from ferryman.engine.transform.staged import NOTHING, Staged
from ferryman.state.layout import OPEN
from ferryman.storage.files import StatePath, exists, publish, read

IN_DOUBT: Final = NOTHING._replace(in_doubt=True)


def run_once(folder: StatePath, number: int, run: Callable[[], Staged]) -> Staged:
    """What the task of this number returns.

    Raises:
        FileNotFoundError: its wave is over.
    """
    if not publish(folder / f"{number}.begun", b""):
        return _kept(folder, number)
    if not exists(folder / OPEN):  # in an object store, the folder does not say it
        raise FileNotFoundError(f"{folder}: its wave is over")
    crash.point("once.begun")
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


def _kept(folder: StatePath, number: int) -> Staged:
    kept = _file(folder, number)
    if not exists(kept):
        return IN_DOUBT
    staged = pickle.loads(read(kept))
    assert isinstance(staged, Staged)
    return staged


def _file(folder: StatePath, number: int) -> StatePath:
    return folder / f"{number}.kept"
