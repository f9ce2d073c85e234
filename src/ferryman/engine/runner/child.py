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
import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from ferryman.engine.runner.fork_server import ForkServer, fork_server
from ferryman.engine.runner.worker import Descriptors
from ferryman.errors import (
    Misconfigured,
    NoChild,
    PermanentError,
    TransientError,
    Unavailable,
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
_STOP_POLL_S: Final = 0.1
"""Seconds between two checks whether to stop."""

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


class RequestStopped(Exception):
    """The parent was to stop, and the child was killed over its request."""


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
        find_server: returns the fork server of a new child.
    """

    def __init__(
        self,
        serve: Callable[[Any], Any],
        on_start: Callable[[], object] = _do_nothing,
        find_server: Callable[[], ForkServer] = fork_server,
    ) -> None:
        self._serve = serve
        self._on_start = on_start
        self._find_server = find_server
        self._place_fd = os.memfd_create("ferryman-place")
        os.ftruncate(self._place_fd, _MAX_PLACE_BYTES)
        self._place = mmap.mmap(self._place_fd, _MAX_PLACE_BYTES)
        self._fork_server: ForkServer | None = None
        self._pid = 0
        self._requests = self._answers = self._death = -1

    def ask(
        self,
        request: Any,
        timeout_s: float | None = None,
        answer_call: Callable[[Any], Any] | None = None,
        is_stopped: Callable[[], bool] | None = None,
    ) -> Any:
        """Return or raise what ``serve(request)`` returned or raised in the child. Requests and answers are pickled.

        Args:
            answer_call: called with what the child gives to ``call_parent``, which returns or raises the same there.
            is_stopped: called now and then while the child is at work; True ends it.

        Raises:
            RequestStopped: see ``is_stopped``.
            Died: it died over the request, or was ended because an allocation failed, here or there.
            TooLong: no answer within ``timeout_s``.
            NoChild: there is no child, and the request is not to blame: none could be forked, or it was killed
                together with the fork server. The next request starts a new one.
        """
        if not self._pid:
            self._start()
        value: Any = None
        kind: _Kind | None = None
        until = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            _send(self._requests, dumps(request), self._death)
            while (answer := _receive(self._answers, until, is_stopped, self._death)) is not None:
                kind, value = pickle.loads(answer)
                if kind is not _Kind.CALL:
                    break
                assert answer_call is not None
                kind = None
                _send(self._requests, _pickle_result(answer_call, value), self._death)
        except BrokenPipeError:
            pass
        except MemoryError as e:  # the rest of a message would be taken for the next one, so the child is killed below
            kind, value = _Kind.ERROR, e
        except TimeoutError:
            self._kill()
            raise TooLong(self._read_place()) from None
        except RequestStopped:
            self._kill()
            raise
        if kind is _Kind.ERROR and lacks_memory(value):
            self._kill()
            raise Died(describe_memory_error(value), self._read_place(), value) from value
        if kind is None:
            raise Died(_describe_status(self._wait_for_exit()), self._read_place())
        if kind is _Kind.ERROR:
            raise value
        return value

    def end(self) -> None:
        """End the child; a later request starts a new one."""
        if self._pid:  # it waits for a request, so there is nothing that it could lose
            with contextlib.suppress(NoChild):  # it has ended already
                self._kill()

    def __del__(self) -> None:
        os.close(self._place_fd)
        self._close_pipes()

    # -- inside ------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Fork a child, and wait until it is ready.

        Raises:
            NoChild: it died before it had anything to do, or none can be forked: there are too many processes.
        """
        self._place[: _SIZE.size] = _SIZE.pack(0)
        work = dumps((self._serve, self._on_start))
        request_end, self._requests = os.pipe()
        self._answers, answer_end = os.pipe()
        try:
            self._fork_server = self._find_server()
            self._pid = self._fork_server.fork(request_end, answer_end, self._place_fd)
            self._death = _watch_death(self._pid)
            os.set_blocking(self._requests, False)
        except BaseException as e:
            self._close_pipes()
            if isinstance(e, OSError) and not lacks_memory(e):  # no request is to blame
                raise NoChild(f"no child process can be made: {e.strerror}") from e
            raise
        finally:
            os.close(request_end)
            os.close(answer_end)
        try:
            _send(self._requests, dumps((sys.path, _working_folder(), self._fork_server.environment())), self._death)
            _send(self._requests, work, self._death)
            answer = _receive(self._answers, death=self._death)
        except BrokenPipeError:
            answer = None
        if answer is None:
            raise NoChild(
                f"a child process ended before it had anything to do: {_describe_status(self._wait_for_exit())}"
            )
        kind, value = pickle.loads(answer)
        if kind is _Kind.ERROR:
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
        for end in (self._requests, self._answers, self._death):
            if end >= 0:
                os.close(end)
        self._requests = self._answers = self._death = -1

    def _read_place(self) -> str:
        (size,) = _SIZE.unpack(self._place[: _SIZE.size])
        return self._place[_SIZE.size : _SIZE.size + size].decode("utf-8", "surrogatepass")


def _watch_death(pid: int) -> int:
    """Return a descriptor that becomes readable when this process ends; -1: the system has none.

    Processes that a child leaves behind, such as those of a pool, may keep its pipes open.
    """
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return -1


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
    _own_ends.append(_ChildEnds(requests, answers, pipes, mmap.mmap(place, _MAX_PLACE_BYTES), threading.Lock()))
    settings, work = _receive(requests), _receive(requests)
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
    _send(answers, dumps((_Kind.RESULT, None)))
    while (answer := _answer_next(serve, requests)) is not None:
        exit_if_forked(me)
        pipes.exit_unless_intact()
        _send(answers, answer)


class _Kind(Enum):
    """Kind of a message from a child, or of the reply to its call."""

    RESULT = 1
    ERROR = 2
    CALL = 3


class _ChildEnds(NamedTuple):
    """Ends of the pipes and memory that this child shares with its parent."""

    requests: int
    answers: int
    pipes: Descriptors
    place: mmap.mmap
    calling: threading.Lock


_own_ends: list[_ChildEnds] = []
"""Pipes and memory of this process, if it is a child."""


def call_parent(value: Any) -> Any:  # pragma: no cover - the child
    """Return or raise, in a child, what ``answer_call(value)`` returned or raised in its parent; see ``Child.ask``."""
    (ends,) = _own_ends
    with ends.calling:
        _send(ends.answers, dumps((_Kind.CALL, value)))
        reply = _receive(ends.requests)
    if reply is None:
        os._exit(0)  # there is no parent any more
    kind, answer = pickle.loads(reply)
    if kind is _Kind.ERROR:
        raise answer
    return answer


def note(place: str) -> None:  # pragma: no cover - the child
    """Note, in a child, what it is about to do, for the parent to read after its death; "" for nothing.

    A child whose pipes were closed by the code it called ends here, with the note of that code still in place.
    """
    (ends,) = _own_ends
    ends.pipes.exit_unless_intact()
    text = place.encode("utf-8", "surrogatepass")[: _MAX_PLACE_BYTES - _SIZE.size]
    ends.place[_SIZE.size : _SIZE.size + len(text)] = text
    ends.place[: _SIZE.size] = _SIZE.pack(len(text))


def _answer_next(serve: Callable[[Any], Any], requests: int) -> bytes | None:  # pragma: no cover - the child
    """Return the answer to the next request; None: there are no more."""
    try:
        if (request := _receive(requests)) is None:
            return None
        return _pickle_result(lambda text: serve(pickle.loads(text)), request)
    except BaseException as e:
        return _pickle_error(as_exception(e))


def _pickle_result(function: Callable[[Any], Any], argument: Any) -> bytes:
    """Call the function, and return its result or error, pickled for the other process."""
    try:
        return dumps((_Kind.RESULT, function(argument)))
    except Exception as e:
        return _pickle_error(e)


def _pickle_error(error: Exception) -> bytes:
    """Return an error pickled for the other process; the nearest base class of ours if it cannot be pickled."""
    with contextlib.suppress(Exception):
        answer = dumps((_Kind.ERROR, error))
        pickle.loads(answer)
        return answer
    for kind in (Misconfigured, PermanentError, Unavailable, TransientError, ConnectionError, TimeoutError):
        if isinstance(error, kind):
            return dumps((_Kind.ERROR, kind(describe(error))))
    return dumps((_Kind.ERROR, RuntimeError(describe(error))))


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


def _send(pipe: int, message: bytes, death: int = -1) -> None:
    """Write a message.

    Args:
        death: see ``_watch_death``.

    Raises:
        BrokenPipeError: the other end is closed, or its process has ended.
    """
    for part in (_SIZE.pack(len(message)), message):  # not joined: that would take as much memory again
        view = memoryview(part)
        while view:
            try:
                view = view[os.write(pipe, view) :]
            except BlockingIOError:
                if not _wait_ready(pipe, select.POLLOUT, None, None, death):
                    raise BrokenPipeError from None


def _receive(
    pipe: int, until: float | None = None, is_stopped: Callable[[], bool] | None = None, death: int = -1
) -> bytes | None:
    """Read the next message; None: the other end is closed, or its process has ended.

    Raises:
        TimeoutError: it is not complete at ``until`` (monotonic time).
        RequestStopped: ``is_stopped`` returned True.
    """
    head = _read(pipe, _SIZE.size, until, is_stopped, death)
    return None if head is None else _read(pipe, _SIZE.unpack(head)[0], until, is_stopped, death)


def _read(pipe: int, size: int, until: float | None, is_stopped: Callable[[], bool] | None, death: int) -> bytes | None:
    chunks = []
    while size:
        waits = until is not None or is_stopped is not None or death >= 0
        if waits and not _wait_ready(pipe, select.POLLIN, until, is_stopped, death):
            return None
        chunk = os.read(pipe, min(size, 1 << 20))
        if not chunk:
            return None
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _wait_ready(pipe: int, event: int, until: float | None, is_stopped: Callable[[], bool] | None, death: int) -> bool:
    """Wait until a pipe is ready, or its other end is closed; return False if the process there has ended, and nothing
    is left to read.

    Uses ``poll``: ``select`` accepts only descriptors below 1024, and a worker may have more files open.
    """
    waiting = select.poll()
    waiting.register(pipe, event)
    if death >= 0:
        waiting.register(death, select.POLLIN)
    while True:
        left_s = None if until is None else max(0.0, until - time.monotonic())
        if is_stopped is not None:
            left_s = _STOP_POLL_S if left_s is None else min(left_s, _STOP_POLL_S)
        ready = {descriptor for descriptor, _ in waiting.poll(None if left_s is None else left_s * 1000)}
        if pipe in ready:
            return True
        if ready:  # it may have written something since the pipe was looked at
            return event == select.POLLIN and pipe in {descriptor for descriptor, _ in waiting.poll(0)}
        if is_stopped is not None and is_stopped():
            raise RequestStopped
        if until is not None and time.monotonic() >= until:
            raise TimeoutError
