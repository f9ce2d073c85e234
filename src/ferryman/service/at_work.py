"""What is at work now, in files, so that what was at work when a process died is known, and then isolated.

A dead ``serve`` accuses nobody: of what was at work then, one thing may have killed it, or none. Each of them is done
next in a child process, one at a time. If the child dies while ``serve`` lives, that is counted; what has ended as many
children as it has attempts fails, with the reason.
"""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from ferryman import crash
from ferryman.errors import PermanentError
from ferryman.service.errors import ChildDied, Later, Stopping
from ferryman.storage import files

ATTEMPTS: Final = 3
"""Deaths of a child until what it worked at has failed: one may be the machine's fault."""

TURN_AGAIN_S: Final = 0.2
"""Until what is to be isolated asks again whether another one still is."""

DIED_AGAIN_S: Final = 0.5
"""Between a death and the next attempt: a machine without memory gets some of it back."""

_DEATHS: Final = ".deaths"

T = TypeVar("T")


class AtWork:
    """What the threads of all processes of a queue are working at.

    ::

        FOLDER/ID           somebody works at this job or batch, or died while working at it
        FOLDER/ID.deaths    how many children it has ended

    1. The file ID is made. If it was there already, the work is isolated.
    2. The work is done, here or in a child.
    3. If the child died, its death is counted; what has been counted ``ATTEMPTS`` times fails.
    4. The files are removed: it has an outcome. Only its state is still to be changed.

    A file is named by the one who has the lock of the item; it holds a word of its own, by which a process that lost
    the lock without noticing knows that the file is not its own any more. Files are not synced, but for the counts: a
    power cut is not the work's fault.

    Args:
        folder: seen by every process that serves the queue.
        say: told of deaths.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._name, self._count = uuid.uuid4().hex, itertools.count()
        self._slot = threading.Lock()
        """Held while something is isolated."""

    def work(self, id: str, here: Callable[[], T], apart: Callable[[], T]) -> T:
        """Do it here or, if it was at work when a process died, apart.

        Args:
            apart: does it in a child process.

        Raises:
            Later: another one is isolated now, or the child died: it is tried again.
            PermanentError: it has ended its process in every attempt.
            Stopping: as ``apart``; it is isolated by the next process too.
        """
        word = f"{self._name}-{next(self._count)}"
        if self._begin(id, word):
            try:
                return here()
            finally:
                self._end(id, word)
        if not self._slot.acquire(blocking=False):
            raise Later("it waits until it is worked at in a child process", TURN_AGAIN_S)
        try:
            return self._isolated(id, word, apart)
        finally:
            self._slot.release()

    def _isolated(self, id: str, word: str, apart: Callable[[], T]) -> T:
        (self._folder / id).write_text(word)
        try:
            result = apart()
        except ChildDied as e:
            self._died(id, word, e.how)
            raise Later(f"it ended its process: {e.how}", DIED_AGAIN_S) from None
        except (Later, Stopping):
            raise
        except BaseException:
            self._forget(id, word)
            raise
        self._forget(id, word)
        return result

    def _died(self, id: str, word: str, how: str) -> None:
        """Count it. Raises ``PermanentError`` if it is the last one."""
        crash.point("work.died")
        deaths = self.deaths(id) + 1
        files.replace(self._deaths_file(id), str(deaths).encode())
        crash.point("work.counted")
        self._say(f"{id}: ended the child process that worked at it ({deaths} of {ATTEMPTS}): {how}")
        if deaths >= ATTEMPTS:
            self._forget(id, word)
            raise PermanentError(
                f"it ended the process that worked at it, in each of {ATTEMPTS} attempts: {how}. Look for what is "
                "unusual in it: its size, its names, its container."
            )

    def _forget(self, id: str, word: str) -> None:
        """It has an outcome: what it did to its processes does not count any more."""
        self._deaths_file(id).unlink(missing_ok=True)
        self._end(id, word)

    def deaths(self, id: str) -> int:
        """How many children it has ended so far."""
        try:
            return int(self._deaths_file(id).read_bytes())
        except (FileNotFoundError, ValueError):
            return 0

    def sweep(self, is_done: Callable[[str], bool]) -> None:
        """Remove what belongs to jobs and batches that are done with."""
        for path in self._folder.iterdir():
            if is_done(path.name.removesuffix(_DEATHS)):
                path.unlink(missing_ok=True)

    def _deaths_file(self, id: str) -> Path:
        return self._folder / f"{id}{_DEATHS}"

    def _begin(self, id: str, word: str) -> bool:
        """False: it was at work before, and has no outcome."""
        try:
            file = os.open(f"{self._folder}/{id}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            return False
        try:
            os.write(file, word.encode())
        finally:
            os.close(file)
        crash.point("work.begun")
        return True

    def _end(self, id: str, word: str) -> None:
        """It has an outcome, unless another one is at it."""
        path = f"{self._folder}/{id}"
        with suppress(FileNotFoundError):
            file = os.open(path, os.O_RDONLY)
            try:
                is_ours = os.read(file, 2 * len(word)) == word.encode()
            finally:
                os.close(file)
            if is_ours:
                os.unlink(path)
        crash.point("work.ended")
