"""A child process for code that might kill it: the parent learns of its death, and what it was doing."""

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

_MAX_PLACE_BYTES: Final = 64 * 1024
"""Bytes of a child's note about its place at most; longer ones are cut."""

_GRACE_S: Final = 2.0
"""Seconds that a child that has closed its pipes gets to end by itself, before it is killed."""
_POLL_S: Final = 0.002

_SIZE: Final = struct.Struct("<Q")


class Died(Exception):
    """The child died over a request.

    Attributes:
        how: "signal 11 (SIGSEGV)", "exit code 3".
        place: its last note, see ``note``.
        error: error of an allocation that failed; None: the process ended by itself.
    """

    def __init__(self, how: str, place: str, error: Exception | None = None) -> None:
        super().__init__(how, place, error)
        self.how, self.place, self.error = how, place, error

    def describe(self, attempts: int, whose: str = "its process", size: int | None = None) -> str:
        """Return the message for the document over which it died.

        Args:
            attempts: number of times that it died over the document.
            whose: what the process is, for the message.
            size: bytes of the document.
        """
        tries = f" in each of {attempts} tries" if attempts > 1 else ""
        if self.error is None:
            return f"it ended {whose}{tries}: {self.how}"
        return f"{describe_memory_error(self.error, size)}{tries}"


class TooLong(Exception):
    """The child gave no answer in time, and was killed. ``place``: its last note, see ``note``."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


def _do_nothing() -> None:
    """Do nothing when a child starts."""


class Child:
    """A child process that answers requests one at a time by ``serve``; it starts at the first request.

    After ``Died`` and ``TooLong`` the next request starts a new one. It is forked from a process that has opened
    nothing (``runner.fork_server``): a copy of this process would have the locks and clients of its libraries (an
    object store's, delta-rs's), without the threads behind them.

    Args:
        serve: called in the child, for which it is pickled. What it raises is raised by ``ask``.
        on_start: called in each new child before its first request; pickled together with ``serve``.
    """

    def __init__(self, serve: Callable[[Any], Any], on_start: Callable[[], object] = _do_nothing) -> None:
        self._serve = serve
        self._on_start = on_start
        self._place_fd = os.memfd_create("ferryman-place")
        os.ftruncate(self._place_fd, _MAX_PLACE_BYTES)
        self._place = mmap.mmap(self._place_fd, _MAX_PLACE_BYTES)
        self._fork_server: ForkServer | None = None
        self._pid = 0
        self._requests = self._answers = -1

    def ask(self, request: Any, timeout_s: float | None = None) -> Any:
        """Return or raise what ``serve(request)`` returned or raised in the child. Requests and answers are pickled.

        Raises:
            Died: it died over the request, or was ended because an allocation failed, here or there.
            TooLong: no answer within ``timeout_s``.
            WorkerDied: there is no child, and the request is not to blame: none could be forked, or it was killed
                together with the fork server. The next request starts a new one.
        """
        if not self._pid:
            self._start()
        value: Any = None
        answer, succeeded = None, True
        try:
            _send(self._requests, dumps(request))
            answer = _receive(self._answers, None if timeout_s is None else time.monotonic() + timeout_s)
            if answer is not None:
                succeeded, value = pickle.loads(answer)
        except BrokenPipeError:
            pass
        except MemoryError as e:  # the rest of a message would be taken for the next one, so the child is killed below
            succeeded, value = False, e
        except TimeoutError:
            self._kill()
            raise TooLong(self._read_place()) from None
        if not succeeded and lacks_memory(value):
            self._kill()
            raise Died(describe_memory_error(value), self._read_place(), value) from value
        if answer is None:
            raise Died(_describe_status(self._wait_for_exit()), self._read_place())
        if succeeded:
            return value
        raise value

    def end(self) -> None:
        """End the child; a later request starts a new one."""
        if self._pid:  # it waits for a request, so there is nothing that it could lose
            with contextlib.suppress(WorkerDied):  # it has ended already
                self._kill()

    def __del__(self) -> None:
        os.close(self._place_fd)

    # -- inside ------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Fork a child, and wait until it is ready.

        Raises:
            WorkerDied: it died before it had anything to do, or none can be forked: there are too many processes.
        """
        self._place[: _SIZE.size] = _SIZE.pack(0)
        work = dumps((self._serve, self._on_start))
        request_end, self._requests = os.pipe()
        self._answers, answer_end = os.pipe()
        try:
            self._fork_server = fork_server()
            self._pid = self._fork_server.fork(request_end, answer_end, self._place_fd)
        except BaseException as e:
            self._close_pipes()
            if isinstance(e, OSError) and not lacks_memory(e):  # no request is to blame
                raise WorkerDied(f"no child process can be made: {e.strerror}") from e
            raise
        finally:
            os.close(request_end)
            os.close(answer_end)
        try:
            _send(self._requests, dumps((sys.path, _working_folder(), dict(os.environ))))
            _send(self._requests, work)
            answer = _receive(self._answers, None)
        except BrokenPipeError:
            answer = None
        if answer is None:
            raise WorkerDied(
                f"a child process ended before it had anything to do: {_describe_status(self._wait_for_exit())}"
            )
        succeeded, value = pickle.loads(answer)
        if not succeeded:
            self._kill()
            raise value

    def _wait_for_exit(self) -> int:
        """Wait for the child to end, and return its status. If its code has only closed the pipes, it is killed."""
        assert self._fork_server is not None
        until = time.monotonic() + _GRACE_S
        try:
            while (status := self._fork_server.poll(self._pid)) is None:
                if time.monotonic() > until:
                    return self._kill()
                time.sleep(_POLL_S)
        finally:
            self._close_pipes()
        return status

    def _kill(self) -> int:
        """Kill the child if it lives, and return its status."""
        assert self._fork_server is not None
        try:
            return self._fork_server.reap(self._pid)
        finally:
            self._close_pipes()

    def _close_pipes(self) -> None:
        self._pid = 0
        for end in (self._requests, self._answers):
            if end >= 0:
                os.close(end)
        self._requests = self._answers = -1

    def _read_place(self) -> str:
        (size,) = _SIZE.unpack(self._place[: _SIZE.size])
        return self._place[_SIZE.size : _SIZE.size + size].decode("utf-8", "surrogatepass")


def _working_folder() -> str | None:
    """Return the current folder; None: it was removed."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return None


def serve_requests(requests: int, answers: int, place: int) -> None:  # pragma: no cover - the child
    """Run the child: set up the parent's environment, report that it is ready, and answer until there are no more
    requests."""
    me = os.getpid()
    pipes = Descriptors((requests, answers))
    _own_place.append(_PlaceMemory(mmap.mmap(place, _MAX_PLACE_BYTES), pipes))
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
        serve, on_start = pickle.loads(work)
        on_start()
    except BaseException as e:
        _send(answers, _pickle_error(as_exception(e)))
        return
    _send(answers, dumps((True, None)))
    while (answer := _answer_next(serve, requests)) is not None:
        exit_if_forked(me)
        pipes.exit_unless_intact()
        _send(answers, answer)


class _PlaceMemory(NamedTuple):
    """Memory shared with the parent, where a child notes its place."""

    memory: mmap.mmap
    pipes: Descriptors


_own_place: list[_PlaceMemory] = []
"""This child's own place."""


def note(place: str) -> None:  # pragma: no cover - the child
    """Note, in a child, what it is about to do, for the parent to read after its death; "" for nothing.

    A child whose pipes were closed by the code it called ends here, with the note of that code still in place.
    """
    (place_memory,) = _own_place
    place_memory.pipes.exit_unless_intact()
    text = place.encode("utf-8", "surrogatepass")[: _MAX_PLACE_BYTES - _SIZE.size]
    place_memory.memory[_SIZE.size : _SIZE.size + len(text)] = text
    place_memory.memory[: _SIZE.size] = _SIZE.pack(len(text))


def _answer_next(serve: Callable[[Any], Any], requests: int) -> bytes | None:  # pragma: no cover - the child
    """Return the answer to the next request; None: there are no more."""
    try:
        if (request := _receive(requests, None)) is None:
            return None
        return dumps((True, serve(pickle.loads(request))))
    except BaseException as e:
        return _pickle_error(as_exception(e))


def _pickle_error(error: Exception) -> bytes:  # pragma: no cover - the child
    """Return an error pickled for the parent; one that cannot be pickled becomes the nearest base class of ours."""
    with contextlib.suppress(Exception):
        answer = dumps((False, error))
        pickle.loads(answer)
        return answer
    for kind in (Misconfigured, PermanentError, Unavailable, TransientError, ConnectionError, TimeoutError):
        if isinstance(error, kind):
            return dumps((False, kind(describe(error))))
    return dumps((False, RuntimeError(describe(error))))


def _describe_status(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(ValueError):
            return f"signal {number} ({signal.Signals(number).name})"
        return f"signal {number}"
    return f"exit code {os.WEXITSTATUS(status)}"


def exit_if_forked(process: int) -> None:
    """End this process if it is a forked copy of the process with this id.

    A step may fork and let the copy return. The original does the work; so this is called before anything is written.
    """
    if os.getpid() != process:
        os._exit(0)  # pragma: no cover - the copy


def _send(pipe: int, message: bytes) -> None:
    for part in (_SIZE.pack(len(message)), message):  # not joined: that would take as much memory again
        view = memoryview(part)
        while view:
            view = view[os.write(pipe, view) :]


def _receive(pipe: int, until: float | None) -> bytes | None:
    """Read the next message; None: the other end is closed.

    Raises:
        TimeoutError: it is not complete at ``until`` (monotonic time).
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

    Uses ``poll``: ``select`` accepts only descriptors below 1024, and a worker may have more files open.
    """
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    return bool(waiting.poll(max(0.0, until - time.monotonic()) * 1000))
