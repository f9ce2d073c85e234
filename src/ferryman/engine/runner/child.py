"""A forked process that does what might kill it: its parent sees its death, and what it was at."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pickle
import select
import signal
import struct
import time
from collections.abc import Callable
from typing import Any, Final

import cloudpickle

from ferryman.errors import Misconfigured, PermanentError, TransientError, Unavailable, as_exception, describe
from ferryman.memory import lacks_memory, why_no_memory

_PLACE_BYTES: Final = 64 * 1024
"""What a child may say of where it is; longer words are cut."""

_SIZE: Final = struct.Struct("<Q")
_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG of Linux


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

    def said(self, attempts: int, whose: str = "its process", size: int | None = None) -> str:
        """What is said of what it died over, so many times.

        Args:
            size: bytes of that.
        """
        tries = f" in each of {attempts} tries" if attempts > 1 else ""
        if self.error is None:
            return f"it ended {whose}{tries}: {self.how}"
        return f"{why_no_memory(self.error, size)}{tries}"


class TooLong(Exception):
    """The child gave no answer in time, and was killed. ``place``: what it had last noted."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


class Child:
    """Answers requests one at a time by ``serve``, in a copy of this process; begins at the first request.

    After ``Died`` and ``TooLong`` the next request begins a new one.

    Args:
        serve: called in the child. What it raises is raised by ``ask``.
        began: called in each new child before its first request.
    """

    def __init__(self, serve: Callable[[Any], Any], began: Callable[[], object] = lambda: None) -> None:
        self._serve = serve
        self._began = began
        self._place = mmap.mmap(-1, _PLACE_BYTES)
        self._pid = 0
        self._requests = self._answers = -1

    def ask(self, request: Any, timeout_s: float | None = None) -> Any:
        """What ``serve(request)`` returns or raises in the child. Requests and answers are pickled.

        Raises:
            Died: it died over it, or has been ended because an allocation failed, here or there.
            TooLong: no answer within ``timeout_s``.
        """
        if not self._pid:
            self._begin()
        value: Any = None
        answer, fine = None, True
        try:
            _send(self._requests, _dumps(request))
            answer = _receive(self._answers, None if timeout_s is None else time.monotonic() + timeout_s)
            if answer is not None:
                fine, value = pickle.loads(answer)
        except BrokenPipeError:
            pass
        except MemoryError as e:  # what is left of a message would be taken for the next one
            fine, value = False, e
        except TimeoutError:
            os.kill(self._pid, signal.SIGKILL)
            self._bury()
            raise TooLong(self._noted()) from None
        if not fine and lacks_memory(value):
            os.kill(self._pid, signal.SIGKILL)
            self._bury()
            raise Died(why_no_memory(value), self._noted(), value) from value
        if answer is None:
            status = self._bury()
            raise Died(_how(status), self._noted())
        if fine:
            return value
        raise value

    def note(self, place: str) -> None:
        """In the child: where it is; survives its death. "" for nowhere."""
        said = place.encode("utf-8", "surrogatepass")[: _PLACE_BYTES - _SIZE.size]
        self._place[_SIZE.size : _SIZE.size + len(said)] = said
        self._place[: _SIZE.size] = _SIZE.pack(len(said))

    def end(self) -> None:
        """No more requests."""
        if self._pid:
            os.close(self._requests)
            self._requests = -1
            os.kill(self._pid, signal.SIGKILL)  # it waits for a request: there is nothing that it could lose
            self._bury()

    # -- inside ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.note("")
        asked, self._requests = os.pipe()
        self._answers, answering = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._pid = pid
            os.close(asked)
            os.close(answering)
            return
        try:  # pragma: no cover - the child
            os.close(self._requests)
            os.close(self._answers)
            die_with(parent)
            self._began()
            while (answer := self._answer(asked)) is not None:
                _send(answering, answer)
        finally:
            os._exit(0)

    def _answer(self, asked: int) -> bytes | None:  # pragma: no cover - the child
        """To the next request; None: there are no more."""
        try:
            if (request := _receive(asked, None)) is None:
                return None
            return _dumps((True, self._serve(pickle.loads(request))))
        except BaseException as e:
            return _pickled(as_exception(e))

    def _bury(self) -> int:
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        for end in (self._requests, self._answers):
            if end >= 0:
                os.close(end)
        self._requests = self._answers = -1
        return status

    def _noted(self) -> str:
        (size,) = _SIZE.unpack(self._place[: _SIZE.size])
        return self._place[_SIZE.size : _SIZE.size + size].decode("utf-8", "surrogatepass")


def _pickled(error: Exception) -> bytes:  # pragma: no cover - the child
    """An error on its way to the parent; one that cannot be pickled as its nearest relative."""
    with contextlib.suppress(Exception):
        answer = _dumps((False, error))
        pickle.loads(answer)
        return answer
    for kind in (Misconfigured, PermanentError, Unavailable, TransientError, ConnectionError, TimeoutError):
        if isinstance(error, kind):
            return _dumps((False, kind(describe(error))))
    return _dumps((False, RuntimeError(describe(error))))


def _dumps(value: Any) -> bytes:
    """Pickled, what lives in the plan file by value."""
    pickled: bytes = cloudpickle.dumps(value)
    return pickled


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(ValueError):
            return f"signal {number} ({signal.Signals(number).name})"
        return f"signal {number}"
    return f"exit code {os.WEXITSTATUS(status)}"


def die_with(parent: int) -> None:  # pragma: no cover - the child
    """A child does not outlive its parent, where the system can see to that."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


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
        if until is not None and not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            raise TimeoutError
        chunk = os.read(pipe, min(size, 1 << 20))
        if not chunk:
            return None
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)
