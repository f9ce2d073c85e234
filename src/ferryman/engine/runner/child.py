"""A process that does what might kill it: its parent sees its death, and what it was at."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ferryman.engine.runner.fork_server import ForkServer, fork_server
from ferryman.engine.runner.worker import Descriptors
from ferryman.errors import (
    Misconfigured,
    PermanentError,
    TransientError,
    Unavailable,
    WorkerDied,
    as_exception,
    describe,
)
from ferryman.memory import describe_memory_error, lacks_memory
from ferryman.plan.calls import dumps

_PLACE_BYTES: Final = 64 * 1024
"""Longest note of a child about its place, in bytes; longer ones are cut."""

_GRACE_S: Final = 2.0
"""A child that has closed its pipes gets so long to end by itself, before it is killed."""
_LOOK_S: Final = 0.002

_SIZE: Final = struct.Struct("<Q")


class Died(Exception):
    """The child died over a request.

    Attributes:
        how: "signal 11 (SIGSEGV)", "exit code 3".
        place: what it had last noted.
        error: of the allocation that failed; None: it ended by itself.
    """

    def __init__(self, how: str, place: str, error: Exception | None = None) -> None:
        super().__init__(how, place, error)
        self.how, self.place, self.error = how, place, error

    def describe(self, attempts: int, whose: str = "its process", size: int | None = None) -> str:
        """Return the message for what it died over, after so many attempts.

        Args:
            size: bytes of that.
        """
        tries = f" in each of {attempts} tries" if attempts > 1 else ""
        if self.error is None:
            return f"it ended {whose}{tries}: {self.how}"
        return f"{describe_memory_error(self.error, size)}{tries}"


class TooLong(Exception):
    """The child gave no answer in time, and was killed. ``place``: what it had last noted."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


def _nothing() -> None:
    """A child that needs no beginning."""


class Child:
    """Answers requests one at a time by ``serve``, in a process of its own; begins at the first request.

    After ``Died`` and ``TooLong`` the next request begins a new one. It is forked from a process that has opened
    nothing (``runner.fork_server``): a copy of this one would have the locks and clients of its libraries (an object
    store's, delta-rs's), and not the threads behind them.

    Args:
        serve: called in the child, to which it travels pickled. What it raises is raised by ``ask``.
        began: called in each new child before its first request; it travels together with ``serve``.
    """

    def __init__(self, serve: Callable[[Any], Any], began: Callable[[], object] = _nothing) -> None:
        self._serve = serve
        self._began = began
        self._place_fd = os.memfd_create("ferryman-place")
        os.ftruncate(self._place_fd, _PLACE_BYTES)
        self._place = mmap.mmap(self._place_fd, _PLACE_BYTES)
        self._fork_server: ForkServer | None = None
        self._pid = 0
        self._requests = self._answers = -1

    def ask(self, request: Any, timeout_s: float | None = None) -> Any:
        """Return or raise what ``serve(request)`` returned or raised in the child. Requests and answers are pickled.

        Raises:
            Died: it died over it, or has been ended because an allocation failed, here or there.
            TooLong: no answer within ``timeout_s``.
            WorkerDied: there is no child, by nothing that it was asked for: none could be made, or somebody has killed
                it together with what it was forked from. The next request begins a new one.
        """
        if not self._pid:
            self._begin()
        value: Any = None
        answer, fine = None, True
        try:
            _send(self._requests, dumps(request))
            answer = _receive(self._answers, None if timeout_s is None else time.monotonic() + timeout_s)
            if answer is not None:
                fine, value = pickle.loads(answer)
        except BrokenPipeError:
            pass
        except MemoryError as e:  # what is left of a message would be taken for the next one
            fine, value = False, e
        except TimeoutError:
            self._bury()
            raise TooLong(self._noted()) from None
        if not fine and lacks_memory(value):
            self._bury()
            raise Died(describe_memory_error(value), self._noted(), value) from value
        if answer is None:
            raise Died(_how(self._buried_by_itself()), self._noted())
        if fine:
            return value
        raise value

    def end(self) -> None:
        """No more requests."""
        if self._pid:  # it waits for a request: there is nothing that it could lose
            with contextlib.suppress(WorkerDied):  # then it has ended
                self._bury()

    def __del__(self) -> None:
        os.close(self._place_fd)

    # -- inside ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """
        Raises:
            WorkerDied: it died before it had anything to do, or none can be made: there are too many processes.
        """
        self._place[: _SIZE.size] = _SIZE.pack(0)
        work = dumps((self._serve, self._began))
        asked, self._requests = os.pipe()
        self._answers, answering = os.pipe()
        try:
            self._fork_server = fork_server()
            self._pid = self._fork_server.child(asked, answering, self._place_fd)
        except BaseException as e:
            self._forget()
            if isinstance(e, OSError) and not lacks_memory(e):  # no request is to blame
                raise WorkerDied(f"no child process can be made: {e.strerror}") from e
            raise
        finally:
            os.close(asked)
            os.close(answering)
        try:
            _send(self._requests, dumps((sys.path, _folder(), dict(os.environ))))
            _send(self._requests, work)
            answer = _receive(self._answers, None)
        except BrokenPipeError:
            answer = None
        if answer is None:
            raise WorkerDied(f"a child process ended before it had anything to do: {_how(self._buried_by_itself())}")
        fine, value = pickle.loads(answer)
        if not fine:
            self._bury()
            raise value

    def _buried_by_itself(self) -> int:
        """How it has ended, or ends now: code that was called may have closed its pipes, and go on."""
        assert self._fork_server is not None
        until = time.monotonic() + _GRACE_S
        try:
            while (status := self._fork_server.ended(self._pid)) is None:
                if time.monotonic() > until:
                    return self._bury()
                time.sleep(_LOOK_S)
        finally:
            self._forget()
        return status

    def _bury(self) -> int:
        """Kill it, if it lives; how it ended."""
        assert self._fork_server is not None
        try:
            return self._fork_server.reap(self._pid)
        finally:
            self._forget()

    def _forget(self) -> None:
        self._pid = 0
        for end in (self._requests, self._answers):
            if end >= 0:
                os.close(end)
        self._requests = self._answers = -1

    def _noted(self) -> str:
        (size,) = _SIZE.unpack(self._place[: _SIZE.size])
        return self._place[_SIZE.size : _SIZE.size + size].decode("utf-8", "surrogatepass")


def _folder() -> str | None:
    """That this process works in; None: somebody has removed it."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return None


def serve_requests(requests: int, answers: int, place: int) -> None:  # pragma: no cover - the child
    """Be the child: get ready as it was asked for, say so, and answer until there are no more requests."""
    me = os.getpid()
    pipes = Descriptors((requests, answers))
    _mine.append(_Place(mmap.mmap(place, _PLACE_BYTES), pipes))
    settings, work = _receive(requests, None), _receive(requests, None)
    if settings is None or work is None:
        return
    try:
        sys.path[:], folder, environment = pickle.loads(settings)
        os.environ.clear()
        os.environ.update(environment)
        if folder is not None:
            with contextlib.suppress(OSError):
                os.chdir(folder)
        serve, began = pickle.loads(work)
        began()
    except BaseException as e:
        _send(answers, _pickled(as_exception(e)))
        return
    _send(answers, dumps((True, None)))
    while (answer := _answer(serve, requests)) is not None:
        end_copy_of(me)
        pipes.end_unless_intact()
        _send(answers, answer)


class _Place(NamedTuple):
    """Shared memory where a child notes its place."""

    memory: mmap.mmap
    pipes: Descriptors


_mine: list[_Place] = []
"""This child's own place."""


def note(place: str) -> None:  # pragma: no cover - the child
    """In a child: note where it is, which survives its death. "" for nowhere.

    Code that has closed its pipe has killed it, and is still where it is.
    """
    (mine,) = _mine
    mine.pipes.end_unless_intact()
    said = place.encode("utf-8", "surrogatepass")[: _PLACE_BYTES - _SIZE.size]
    mine.memory[_SIZE.size : _SIZE.size + len(said)] = said
    mine.memory[: _SIZE.size] = _SIZE.pack(len(said))


def _answer(serve: Callable[[Any], Any], requests: int) -> bytes | None:  # pragma: no cover - the child
    """To the next request; None: there are no more."""
    try:
        if (request := _receive(requests, None)) is None:
            return None
        return dumps((True, serve(pickle.loads(request))))
    except BaseException as e:
        return _pickled(as_exception(e))


def _pickled(error: Exception) -> bytes:  # pragma: no cover - the child
    """An error on its way to the parent; one that cannot be pickled as its nearest relative."""
    with contextlib.suppress(Exception):
        answer = dumps((False, error))
        pickle.loads(answer)
        return answer
    for kind in (Misconfigured, PermanentError, Unavailable, TransientError, ConnectionError, TimeoutError):
        if isinstance(error, kind):
            return dumps((False, kind(describe(error))))
    return dumps((False, RuntimeError(describe(error))))


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(ValueError):
            return f"signal {number} ({signal.Signals(number).name})"
        return f"signal {number}"
    return f"exit code {os.WEXITSTATUS(status)}"


def end_copy_of(process: int) -> None:
    """End this process if it is not the one of this id but a copy, which code that was called there has made by a fork
    and let go on: whatever it is at, the original does. Called before anything is written."""
    if os.getpid() != process:
        os._exit(0)  # pragma: no cover - the copy


def _send(pipe: int, message: bytes) -> None:
    for part in (_SIZE.pack(len(message)), message):  # not joined: that would take as much memory again
        view = memoryview(part)
        while view:
            view = view[os.write(pipe, view) :]


def _receive(pipe: int, until: float | None) -> bytes | None:
    """The next message; None: the other end is closed.

    Raises:
        TimeoutError: it is not whole at ``until`` (monotonic time).
    """
    head = _read(pipe, _SIZE.size, until)
    return None if head is None else _read(pipe, _SIZE.unpack(head)[0], until)


def _read(pipe: int, size: int, until: float | None) -> bytes | None:
    chunks = []
    while size:
        if until is not None and not _readable(pipe, until):
            raise TimeoutError
        chunk = os.read(pipe, min(size, 1 << 20))
        if not chunk:
            return None
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _readable(pipe: int, until: float) -> bool:
    """Return whether there is something to read, or no writer any more, before ``until``.

    Not by ``select``: that takes no number from 1024 on, and a worker may have more files open than that.
    """
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    return bool(waiting.poll(max(0.0, until - time.monotonic()) * 1000))
