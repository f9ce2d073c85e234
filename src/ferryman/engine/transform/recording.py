"""What a walk says of a document, written down: to be told to the stage later, or by another process."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Final

import cloudpickle

from ferryman import limits
from ferryman.document import Again, Document
from ferryman.engine.transform.compiled import End
from ferryman.engine.transform.ends import Stage
from ferryman.records.family import Owed

Call = tuple[str, tuple[Any, ...]]
"""A method of the stage, and its arguments."""


class Recorder:
    """A stage that writes down what it is told; of a large family in a spool.

    Attributes:
        calls: what is not in the spool.
    """

    def __init__(self, spool: Spool | None = None) -> None:
        self._spool = spool or Spool()
        self.calls: list[Call] = []
        self._bytes = 0

    def begin(self) -> None:
        """Another document."""
        self._spool.cut(0)
        self._forget()

    @property
    def spooled(self) -> bool:
        """Is there something in the spool?"""
        return self._spool.size() > 0

    def upsert(self, doc: Document, end: End, branches: str, fields: bytes, before: Owed | None) -> None:
        only = _named(doc, doc.raw)  # its fields are encoded beside it
        only.only_if_changed = bool(doc.only_if_changed)
        self._bytes += len(fields) + len(doc.raw or b"")
        self._note("upsert", only, end, branches, fields, before)

    def dropped(self, doc: Document, *args: Any) -> None:
        self._note("dropped", _named(doc), *args)

    def again(self, doc: Document, wish: Again) -> None:
        self._note("again", _named(doc), wish)

    def mark(self) -> int:
        """The stage is to be marked too: then it needs less memory for a family."""
        self._write()
        mark = self._spool.size()
        self.calls.append(("mark", ()))
        return mark

    def take_back(self, mark: int) -> None:
        self._spool.cut(mark)
        self._forget()

    def absorb(self, later: Recorder) -> None:
        """What another one was told stands behind what this one was."""
        if later.spooled:
            self._write()
            self._spool.append(later._spool)
        self.calls += later.calls
        self._bytes += later._bytes
        self._write_if_much()

    def all_calls(self) -> Iterator[Call]:
        """In their order."""
        if self.spooled:
            yield from self._spool.read()
        yield from self.calls

    def close(self) -> None:
        """It is not needed any more."""
        self._spool.close()

    def _note(self, name: str, *args: Any) -> None:
        self.calls.append((name, args))
        self._write_if_much()

    def _write_if_much(self) -> None:
        if len(self.calls) >= limits.HELD_CHILDREN or self._bytes >= limits.GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if self.calls:
            self._spool.write(self.calls)
            self._forget()

    def _forget(self) -> None:
        self.calls, self._bytes = [], 0


class Spool:
    """A file without a name, made when it is first written to.

    One that is ``shared`` is written by a child process and read by its parent, in turns. After a death the next child
    begins it again.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._fd = _nameless() if shared else -1

    def size(self) -> int:
        """Bytes."""
        return os.fstat(self._fd).st_size if self._fd >= 0 else 0

    def cut(self, size: int) -> None:
        """Forget what is behind so many bytes."""
        if self._fd >= 0:
            os.ftruncate(self._fd, size)

    def write(self, calls: list[Call]) -> None:
        """At its end."""
        self._write(cloudpickle.dumps(calls))

    def append(self, other: Spool) -> None:
        """All of another one, at its end."""
        with other._open() as file:
            while some := file.read(_COPIED_BYTES):
                self._write(some)

    def read(self) -> Iterator[Call]:
        """All that was written, in its order; what one ``write`` took is in memory."""
        with self._open() as file:
            while True:
                try:
                    calls: list[Call] = pickle.load(file)
                except EOFError:
                    return
                yield from calls

    def __reduce__(self) -> tuple[Any, ...]:
        """To a child process, as the same file."""
        return _of_process, (os.getpid(), self._fd)

    def __del__(self) -> None:
        self.close()  # that of a task that failed

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> BinaryIO:
        file = os.fdopen(os.dup(self._fd), "rb")
        file.seek(0)
        return file

    def _write(self, content: bytes) -> None:
        if self._fd < 0:
            self._fd = _nameless()
        os.lseek(self._fd, 0, os.SEEK_END)
        left = memoryview(content)
        while left:
            left = left[os.write(self._fd, left) :]


def _of_process(pid: int, fd: int) -> Spool:
    spool = Spool()
    spool._fd = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    return spool


def _nameless() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


_COPIED_BYTES: Final = limits.MIB


def _named(doc: Document, raw: bytes | None = None) -> Document:
    """Enough of it for an event, to be pickled."""
    return Document.of(doc.id, {}, raw)


def replay(calls: Iterable[Call], stage: Stage) -> None:
    """Tell it what was written down."""
    for name, args in calls:
        getattr(stage, name)(*args)
