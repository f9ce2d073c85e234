"""Makes the files of many jobs durable together, with one sync for all of them, and then moves the jobs on.

A job with a single file takes about five syncs, and a disk needs about as long for one sync as for those of a hundred
jobs together.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from ferryman.errors import FerrymanError
from ferryman.intake import Job, JobState
from ferryman.storage import disk, files

SYNC_SINGLY_MAX: Final = 12
"""Number of files and folders up to which they are synced one by one; for more, the whole file system is synced
once."""

WAITING_MAX: Final = 128
"""Number of jobs waiting for a sync from which on threads that submit more have to wait."""


class UnsyncedFiles(NamedTuple):
    """Files that were written and are not durable yet."""

    files: tuple[Path, ...]
    folders: tuple[Path, ...]
    """Folders whose entries are not durable yet."""
    then: Callable[[], None]
    """Called once they are durable. Raises as a stage's work does."""


def sync(unsynced: Sequence[UnsyncedFiles]) -> list[OSError | None]:
    """Make the files durable. Returns, for each item, the error or None."""
    folders = [folder for one in unsynced for folder in one.folders]
    places = {*folders, *(path for one in unsynced for path in one.files)}
    if len(places) > SYNC_SINGLY_MAX:
        try:
            disk.fsync_tree(folders[0] if folders else unsynced[0].files[0].parent)
        except OSError as e:
            return [e for _ in unsynced]
        return [None for _ in unsynced]
    errors: dict[Path, OSError | None] = {}
    for each in unsynced:  # names after content
        errors.update({path: _try_sync(files.fsync_file, path) for path in each.files})
    errors.update({folder: _try_sync(files.fsync_folder, folder) for folder in dict.fromkeys(folders)})
    return [next((error for path in (*one.files, *one.folders) if (error := errors[path])), None) for one in unsynced]


def _try_sync(sync_path: Callable[[Path], None], path: Path) -> OSError | None:
    try:
        sync_path(path)
    except OSError as e:
        return e
    return None


def finish(steps: Iterable[UnsyncedFiles]) -> None:
    """Run all steps of one job in this thread.

    Raises:
        OSError: the files could not be made durable.
        Exception: raised by a step's ``then``.
    """
    for step in steps:
        (error,) = sync([step])
        if error is not None:
            raise error
        step.then()


class FinishRequest(NamedTuple):
    """A locked job whose work is done except for these steps."""

    job: Job
    steps: tuple[UnsyncedFiles, ...]
    run: Callable[[Callable[[], None]], bool]
    """Runs a function for the job and handles the errors it raises. Returns False if the function did not succeed."""
    state: JobState
    """State in which the work was done."""
    result: Any
    """Result of the work, with which the job moves on after the last step."""


class Finisher:
    """Syncs the files of all waiting jobs at once, and moves the jobs on.

    1. Take all waiting jobs.
    2. Sync all files of their next steps at once and finish these steps; repeat until no job has a step left.
    3. Move the jobs that are done to their next states, together.

    Jobs are submitted only after their files are written, so a slow job delays no others. A job whose lock was lost is
    dropped. ``wake`` is called when there are jobs to take; ``advance`` moves jobs, and unlocks or hands on each of
    them, also if it raises.
    """

    def __init__(self) -> None:
        self._waiting: deque[FinishRequest] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.wake: Callable[[], None] = lambda: None
        self.advance: Callable[[Sequence[FinishRequest]], None] = lambda requests: None

    def submit(self, *requests: FinishRequest) -> None:
        """Take over jobs. Blocks while too many are waiting."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < WAITING_MAX or self._closed)
            is_closed = self._closed
            if not is_closed:
                self._waiting.extend(requests)
        if is_closed:
            for request in requests:
                request.job.unlock()
        else:
            self.wake()

    def take(self) -> list[FinishRequest] | None:
        """Return all waiting jobs; None if there are none."""
        with self._changed:
            requests = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        return requests or None

    def finish(self, requests: list[FinishRequest]) -> None:
        """Finish jobs.

        Raises:
            QueueLost: the jobs were unlocked.
        """
        remaining, step = requests, 0
        try:
            while remaining:
                done = [request for request in remaining if len(request.steps) <= step]
                remaining = [request for request in remaining if len(request.steps) > step]
                if done:
                    self.advance(done)
                errors = sync([request.steps[step] for request in remaining]) if remaining else []
                remaining = [
                    request
                    for request, error in zip(remaining, errors, strict=True)
                    if request.run(request.steps[step].then if error is None else partial(_raise, error))
                ]
                step += 1
        except BaseException:
            for request in remaining:
                with suppress(FerrymanError):
                    request.job.unlock()
            raise

    def release(self) -> None:
        """Unlock the waiting jobs, and any that are submitted later."""
        with self._changed:
            self._closed = True
        for request in self.take() or []:
            request.job.unlock()


def _raise(error: OSError) -> None:
    raise error
