"""Live progress and first errors of running tasks, passed through small files in the driver's scratch folder, since
Spark reports nothing about a task before it ends.

Nothing relies on these reports: if a file cannot be written they are missing, and a task that is run twice is counted
twice.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from ferryman.observe import Observer

MAX_ERRORS: Final = 20
"""Errors that a run reports as they happen, and documents per task (in the first wave) whose errors may be among
them."""

_MAX_SIMILAR: Final = 3
"""Errors reported for one line of code, or for one text if the line is unknown."""
_WRITE_EVERY_S: Final = 0.5
_READ_EVERY_S: Final = 0.5
_COUNT: Final = struct.Struct("<qqq")
"""Documents, and bytes read of a large file and its size."""


class ProgressWriter:
    """Writes the progress of one task, in the worker.

    Args:
        folder: folder of the phase, from ``ProgressReader.follow``; "": write nothing.
        errors: also write errors.
    """

    def __init__(self, folder: str, *, errors: bool = False) -> None:
        self.wants_errors = errors and bool(folder)
        self._base = f"{folder}/{uuid.uuid4().hex}" if folder else ""
        self._done = 0
        self._read = (0, 0)
        self._next_write = time.monotonic() + _WRITE_EVERY_S

    def add(self, documents: int) -> None:
        """Add to the number of finished documents."""
        self._done += documents
        if self._base and time.monotonic() >= self._next_write:
            self.flush()
            self._next_write = time.monotonic() + _WRITE_EVERY_S

    def note_read(self, done: int, total: int) -> None:
        """Note how many bytes of the file that is being read were read. It is written with the documents."""
        self._read = (done, total)

    def flush(self) -> None:
        """Write the current count, at the end of the task."""
        if self._base:
            with contextlib.suppress(OSError):
                Path(f"{self._base}.count").write_bytes(_COUNT.pack(self._done, *self._read))

    def error(self, document: str, text: str, trace: str) -> None:
        """Write the error of a document that failed."""
        with contextlib.suppress(OSError), open(f"{self._base}.errors", "a", encoding="utf-8") as file:
            file.write(json.dumps([document, text, trace]) + "\n")


class ProgressReader:
    """Reads, in the driver, what tasks report, and passes it to the observer while a phase runs.

    Args:
        folder: scratch folder used by nothing else; emptied after each phase.
    """

    def __init__(self, folder: Path, observer: Observer) -> None:
        self._folder = folder
        self.observer = observer
        self._errors_left = MAX_ERRORS
        self._similar: Counter[str] = Counter()
        self._offsets: dict[Path, int] = {}
        self._phases = 0

    def make_folder(self) -> str:
        """Make a folder for the tasks of a phase that is followed later; "" if the observer shows no progress."""
        return self._make_folder() if self.observer.wants_live else ""

    def _make_folder(self) -> str:
        self._phases += 1
        folder = self._folder / str(self._phases)
        folder.mkdir(parents=True)
        return str(folder)

    @contextlib.contextmanager
    def follow(self, folder_name: str | None = None, on_count: Callable[[int], None] | None = None) -> Iterator[str]:
        """Read progress in a thread while a phase runs; yields the folder for its tasks, "" if nothing is shown.

        Args:
            folder_name: result of ``make_folder``, if the tasks are running already.
            on_count: called now and then in that thread, with the number of documents so far.
        """
        if folder_name is None:
            name = self._make_folder() if on_count is not None else self.make_folder()
        else:
            name = folder_name
        if not name:
            yield ""
            return
        folder = Path(name)
        stop = threading.Event()
        thread = threading.Thread(target=self._poll, args=(folder, stop, on_count), name="ferryman-live", daemon=True)
        thread.start()
        try:
            yield name
        finally:
            stop.set()
            thread.join()
            self._read_all(folder)  # reports since the last look
            self._offsets.clear()
            shutil.rmtree(folder, ignore_errors=True)

    def _poll(self, folder: Path, stop: threading.Event, on_count: Callable[[int], None] | None) -> None:
        while not stop.wait(_READ_EVERY_S):
            documents = self._read_all(folder)
            if on_count is not None:
                on_count(documents)

    def _read_all(self, folder: Path) -> int:
        """Pass on what tasks have reported, and return their number of documents."""
        documents = done = total = 0
        with contextlib.suppress(OSError):
            for path in sorted(folder.iterdir()):
                if path.suffix == ".errors":
                    self._report_errors(path)
                elif len(count := path.read_bytes()) == _COUNT.size:
                    of_task = _COUNT.unpack(count)
                    documents, done, total = documents + of_task[0], done + of_task[1], total + of_task[2]
        if total:
            self.observer.live_bytes(done, total)
        self.observer.live(documents)
        return documents

    def _report_errors(self, path: Path) -> None:
        with open(path, encoding="utf-8") as file:
            file.seek(self._offsets.get(path, 0))
            while (line := file.readline()).endswith("\n"):
                self._offsets[path] = file.tell()
                document, text, trace = json.loads(line)
                cause = text.rpartition(" (")[2]  # the line of code, if it is known
                if self._errors_left and self._similar[cause] < _MAX_SIMILAR:
                    self._errors_left -= 1
                    self._similar[cause] += 1
                    self.observer.error(document, text, trace)
