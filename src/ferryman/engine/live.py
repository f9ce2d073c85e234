"""Reports of running tasks: their progress and first errors. They pass through small files in the driver's scratch
folder, since Spark reports nothing about a task before it ends.

Nothing depends on it: what cannot be written is not told, and a task that is run twice is counted twice.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ferryman.observe import Observer

FIRST: Final = 20
"""Documents of a task whose errors are told as they happen, in the first wave of a run; and errors that are told."""

_ALIKE: Final = 3
"""Errors that are told of those at the same place, or with the same words."""
_WRITE_EVERY_S: Final = 0.5
_READ_EVERY_S: Final = 0.5
_COUNT: Final = struct.Struct("<q")


class Live:
    """A task's side.

    Args:
        folder: of this phase; "": nobody listens.
        errors: errors are told, too.
    """

    def __init__(self, folder: str, *, errors: bool = False) -> None:
        self.wants_errors = errors and bool(folder)
        self._base = f"{folder}/{uuid.uuid4().hex}" if folder else ""
        self._done = 0
        self._due = time.monotonic() + _WRITE_EVERY_S

    def add(self, documents: int) -> None:
        """Add to the number of documents done."""
        self._done += documents
        if self._base and time.monotonic() >= self._due:
            self.flush()
            self._due = time.monotonic() + _WRITE_EVERY_S

    def flush(self) -> None:
        """Tell it now: the task is at its end."""
        if self._base:
            with contextlib.suppress(OSError):
                Path(f"{self._base}.count").write_bytes(_COUNT.pack(self._done))

    def error(self, document: str, text: str, trace: str) -> None:
        """A document failed."""
        with contextlib.suppress(OSError), open(f"{self._base}.errors", "a", encoding="utf-8") as file:
            file.write(json.dumps([document, text, trace]) + "\n")


class Follower:
    """The driver's side: tells the observer what the tasks write, while a phase runs.

    Args:
        folder: scratch, of its own; emptied for each phase.
    """

    def __init__(self, folder: Path, observer: Observer) -> None:
        self._folder = folder
        self._observer = observer
        self._left = FIRST
        self._told: Counter[str] = Counter()
        self._read: dict[Path, int] = {}
        self._phases = 0

    def make(self) -> str:
        """A folder for the tasks of a phase that is followed later; "": nobody wants to know."""
        if not self._observer.wants_live:
            return ""
        self._phases += 1
        folder = self._folder / str(self._phases)
        folder.mkdir(parents=True)
        return str(folder)

    @contextlib.contextmanager
    def following(self, made: str | None = None) -> Iterator[str]:
        """While a phase runs; yields the folder for its tasks, "" if nobody wants to know.

        Args:
            made: by ``make``, for tasks that run already.
        """
        name = self.make() if made is None else made
        if not name:
            yield ""
            return
        folder = Path(name)
        ended = threading.Event()
        thread = threading.Thread(target=self._follow, args=(folder, ended), name="ferryman-live", daemon=True)
        thread.start()
        try:
            yield name
        finally:
            ended.set()
            thread.join()
            self._look(folder)  # what they wrote last
            self._read.clear()
            shutil.rmtree(folder, ignore_errors=True)

    def _follow(self, folder: Path, ended: threading.Event) -> None:
        while not ended.wait(_READ_EVERY_S):
            self._look(folder)

    def _look(self, folder: Path) -> None:
        done = 0
        with contextlib.suppress(OSError):
            for path in sorted(folder.iterdir()):
                if path.suffix == ".errors":
                    self._tell_errors(path)
                elif len(count := path.read_bytes()) == _COUNT.size:
                    done += _COUNT.unpack(count)[0]
        self._observer.live(done)

    def _tell_errors(self, path: Path) -> None:
        with open(path, encoding="utf-8") as file:
            file.seek(self._read.get(path, 0))
            while (line := file.readline()).endswith("\n"):
                self._read[path] = file.tell()
                document, text, trace = json.loads(line)
                alike = text.rpartition(" (")[2]  # the place, where there is one
                if self._left and self._told[alike] < _ALIKE:
                    self._left -= 1
                    self._told[alike] += 1
                    self._observer.error(document, text, trace)
