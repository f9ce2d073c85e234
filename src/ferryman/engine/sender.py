"""Calls a destination from one thread of its own, so that a call that hangs can be given up."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Final

from ferryman.errors import DeliveryError, named

_END: Final = object()


class Hung(Exception):
    """A call of the destination did not return in time; what it did is not known."""


class Sender:
    """Runs a destination's calls one after the other in a daemon thread.

    After ``Hung`` the thread is left to itself: it cannot be stopped, and this object must not be used again.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"ferryman-{name}", daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        """The call's result; what it raises is raised here.

        Raises:
            Hung: it did not return within ``timeout_s``.
        """
        self._calls.put((function, args))
        try:
            fine, answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise Hung(f"no answer within {timeout_s:g} s") from None
        if fine:
            return answer
        if isinstance(answer, Exception):
            raise answer
        raise RuntimeError(f"it raised {named(answer)}") from answer  # sys.exit() ends no worker

    def end(self) -> None:
        """No more calls."""
        self._calls.put(_END)

    def _work(self) -> None:
        while (call := self._calls.get()) is not _END:
            function, args = call
            try:
                self._answers.put((True, function(*args)))
            except BaseException as e:
                self._answers.put((False, e))


def universal(error: BaseException) -> bool:
    """Is it the destination's trouble, not one document's?"""
    if isinstance(error, DeliveryError):
        return error.universal
    return isinstance(error, (ConnectionError, TimeoutError))
