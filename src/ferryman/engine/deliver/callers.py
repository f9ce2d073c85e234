"""Calls a destination so that a call that hangs can be given up: from a thread, or from a process that may die."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from ferryman import limits
from ferryman.destinations.base import Destination
from ferryman.engine.runner.child import Child, Died, TooLong
from ferryman.errors import DeliveryError, Unavailable, WorkerDied, as_exception

_END: Final = object()


class Hung(Exception):
    """A call of the destination did not return in time; what it did is not known."""


class Killed(Exception):
    """A call of the destination ended its process, or an allocation of it failed there: ``death`` says how."""

    def __init__(self, death: Died) -> None:
        super().__init__(death)
        self.death = death

    def __str__(self) -> str:
        return self.death.said(1)


class Caller(Protocol):
    """Makes a destination's calls, one after the other."""

    @property
    def left_behind(self) -> bool:
        """Does a call that was given up still run in this process?"""
        ...

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Any:
        """The call's result; what it raises is raised here.

        Args:
            meanwhile: called about every ``limits.RESULT_EVERY_S`` until the call returns, where that can be.

        Raises:
            Hung: it did not return within ``timeout_s``.
            Killed: it ended its process.
        """
        ...

    def end(self) -> None:
        """No more calls."""


class ThreadCaller:
    """Runs a destination's calls one after the other in a daemon thread.

    After ``Hung`` the thread is left behind: it cannot be stopped, only its process can. This object must not be used
    again.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"ferryman-{name}", daemon=True)
        self._thread.start()
        self.left_behind = False

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Any:
        """See ``Caller.call``."""
        self._calls.put((function, args))
        until = time.monotonic() + timeout_s
        while True:
            try:
                left = max(0.0, until - time.monotonic())
                fine, answer = self._answers.get(timeout=min(left, limits.RESULT_EVERY_S))
                break
            except queue.Empty:
                if time.monotonic() >= until:
                    self.left_behind = True
                    raise Hung(f"no answer within {timeout_s:g} s") from None
                meanwhile()
        if fine:
            return answer
        raise as_exception(answer)

    def end(self) -> None:
        """No more calls."""
        self._calls.put(_END)

    def _work(self) -> None:
        while (call := self._calls.get()) is not _END:
            function, args = call
            try:
                self._answers.put((True, _whole(function(*args))))
            except BaseException as e:
                self._answers.put((False, e))


class ProcessCaller:
    """Runs a destination's calls in a child process. After a death the next call finds the destination open again.

    A call that is given up ends with its process.

    Args:
        destination: one that was not opened in this process: it travels to the child pickled.
    """

    left_behind = False

    def __init__(self, destination: Destination) -> None:
        self._opened: tuple[Any, ...] | None = None
        self._child = Child(_Called(destination))

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Any:
        """See ``Caller.call``."""
        meanwhile()
        name = function.__name__
        try:
            answer = self._child.ask((name, args, self._opened), timeout_s)
        except TooLong:
            raise Hung(f"no answer within {timeout_s:g} s") from None
        except Died as e:
            raise Killed(e) from None
        except WorkerDied as e:  # by nothing that the destination did
            raise Unavailable(str(e)) from e
        if name == "open":
            self._opened = args
        return answer

    def end(self) -> None:
        """No more calls."""
        self._child.end()


class _Called:
    """In the child: calls the destination, which is open after a death as it was before."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._is_open = False

    def __call__(self, request: tuple[str, tuple[Any, ...], tuple[Any, ...] | None]) -> Any:  # pragma: no cover
        name, args, opened = request
        if opened is not None and not self._is_open:
            self._destination.open(*opened)
        self._is_open = True
        return _whole(getattr(self._destination, name)(*args))


def _whole(answer: Any) -> Any:
    """What a call has answered; a generator works as it is asked, and that is part of the call."""
    return [*answer] if isinstance(answer, Iterator) else answer


def universal(error: BaseException) -> bool:
    """Is it the destination's trouble, not one document's?"""
    if isinstance(error, DeliveryError):
        return error.universal
    return isinstance(error, (ConnectionError, TimeoutError))
