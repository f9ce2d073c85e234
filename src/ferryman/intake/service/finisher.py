"""Files of many jobs made durable together: one sync for all of them, and each job goes on from there.

Alone a job of one file takes some five syncs, and a disk takes about as long for each as for a hundred jobs' at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from ferryman.errors import FerrymanError
from ferryman.intake import Job
from ferryman.storage import disk, files

ALONE: Final = 12
"""Most files and folders that are synced one by one; for more, the whole file system is synced once."""

WAITING_MAX: Final = 128
"""Jobs that wait for a sync: their threads wait too while there are more."""


class Unsynced(NamedTuple):
    """Files that were written and are not durable yet."""

    files: tuple[Path, ...]
    folders: tuple[Path, ...]
    """Whose names are not durable yet."""
    then: Callable[[], None]
    """Work to do once they are durable. Raises as a stage's work does."""


def sync(written: Sequence[Unsynced]) -> list[OSError | None]:
    """Make it durable. Returns for each why it is not; None if it is."""
    folders = [folder for one in written for folder in one.folders]
    places = {*folders, *(path for one in written for path in one.files)}
    if len(places) > ALONE:
        try:
            disk.fsync_tree(folders[0] if folders else written[0].files[0].parent)
        except OSError as e:
            return [e for _ in written]
        return [None for _ in written]
    errors: dict[Path, OSError | None] = {}
    for one in written:  # names after contents
        errors.update({path: _error_of(files.fsync_file, path) for path in one.files})
    errors.update({folder: _error_of(files.fsync_folder, folder) for folder in dict.fromkeys(folders)})
    return [next((found for path in (*one.files, *one.folders) if (found := errors[path])), None) for one in written]


def _error_of(synced: Callable[[Path], None], path: Path) -> OSError | None:
    try:
        synced(path)
    except OSError as e:
        return e
    return None


def finish(steps: Iterable[Unsynced]) -> None:
    """All steps of one job, here and now.

    Raises:
        OSError: it could not be made durable.
        And as each step's ``then``.
    """
    for step in steps:
        (error,) = sync([step])
        if error is not None:
            raise error
        step.then()


class FinishRequest(NamedTuple):
    """A job, locked, whose work is done but for these steps."""

    job: Job
    steps: tuple[Unsynced, ...]
    attempt: Callable[[Callable[[], None]], bool]
    """Does something for the job; what it raises becomes of the job what it should. False: it was not done."""
    moves: Callable[[], None]
    """The job's move, after the last step."""


class Finisher:
    """A consumer of what others have written: it syncs all that waits at once, and moves the jobs on.

    1. What waits is taken.
    2. All that is written is synced, each job's next step is done; and again, until no job has one left.
    3. Each job moves.

    Whoever is slow to write holds nobody up: only what is written comes here. A job whose lock was lost is dropped.
    """

    def __init__(self) -> None:
        self._waiting: deque[FinishRequest] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def give(self, pledge: FinishRequest) -> None:
        """Take over a job. Waits while too many wait."""
        with self._changed:
            while len(self._waiting) >= WAITING_MAX and not self._closed:
                self._changed.wait()
            if not self._closed:
                self._waiting.append(pledge)
                self._changed.notify_all()
                return
        pledge.job.unlock()

    def turn(self) -> bool:
        """Move on what waits. False: nothing does.

        Raises:
            QueueLost: the jobs are given back.
        """
        with self._changed:
            some = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        try:
            self._move(some)
        except BaseException:
            for pledge in some:
                with suppress(FerrymanError):
                    pledge.job.unlock()
            raise
        return bool(some)

    def _move(self, some: list[FinishRequest]) -> None:
        at = 0
        while some:
            ending = [pledge for pledge in some if len(pledge.steps) <= at]
            for pledge in ending:
                pledge.attempt(pledge.moves)
            some = [pledge for pledge in some if len(pledge.steps) > at]
            some = self._next(some, at) if some else []
            at += 1

    def _next(self, some: list[FinishRequest], at: int) -> list[FinishRequest]:
        """Their next step. Returns those that it was done for."""
        errors = sync([pledge.steps[at] for pledge in some])
        return [
            pledge
            for pledge, error in zip(some, errors, strict=True)
            if pledge.attempt(pledge.steps[at].then if error is None else _raising(error))
        ]

    def wait(self) -> None:
        """Until something waits, or the end."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closed)

    def release(self) -> None:
        """Give back what waits, and what comes still."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = list(self._waiting), deque()
            self._changed.notify_all()
        for pledge in waiting:
            pledge.job.unlock()


def _raising(error: OSError) -> Callable[[], None]:
    def fails() -> None:
        raise error

    return fails
