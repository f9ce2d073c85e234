"""What interrupts calls of other people's code: a time limit, and a signal that asks this process to stop."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from ferryman.engine.transform.node_errors import StepTimeout
from ferryman.errors import Interrupted

_GRACE_S: Final = 2.0
"""How long a call may go on after it was interrupted; then its process is ended."""


def can_interrupt() -> bool:
    """Is this the thread that can be interrupted?"""
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def limited(limit_s: float, why: str) -> Iterator[None]:
    """What runs inside is interrupted after that time. What is stuck in C code cannot be: its process is ended a little
    later.

    Raises:
        StepTimeout: with these words.
    """

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise StepTimeout(why)

    before = signal.signal(signal.SIGALRM, interrupt)
    _end_at(time.monotonic() + limit_s + _GRACE_S)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _end_at(None)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def signals_noticed() -> Iterator[None]:
    """What runs inside can tell a signal that asks this process to stop (Ctrl-C) from a ``KeyboardInterrupt`` that the
    code itself raises: where the handler of such a signal raises one, ``Interrupted`` is raised instead."""
    before = {number: signal.getsignal(number) for number in _STOPPING} if can_interrupt() else {}
    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, _noticing(handler))
    try:
        yield
    finally:
        for number, handler in before.items():
            if callable(handler):
                signal.signal(number, handler)


_STOPPING: Final = (signal.SIGINT, signal.SIGTERM)


def _noticing(handler: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], Any]:
    def heard(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except KeyboardInterrupt as e:
            raise Interrupted from e

    return heard


def _end_at(until: float | None) -> None:
    """End this process then (monotonic time), whatever it is stuck in; None: do not."""
    global _until  # noqa: PLW0603 - one watch a process
    _until = until
    if until is None:
        faulthandler.cancel_dump_traceback_later()
    else:
        left_s = max(_LEAST_S, until - time.monotonic())
        faulthandler.dump_traceback_later(left_s, exit=True, file=_nowhere())


def _nowhere() -> int:
    """Where the traceback goes that nobody wants: what is stuck is named by the ledger."""
    global _null  # noqa: PLW0603 - one open file a process
    if _null is None:
        _null = os.open(os.devnull, os.O_WRONLY)
    return _null


_null: int | None = None
_until: float | None = None
_LEAST_S: Final = 0.001

# A fork has the state of its parent's watch, and not its thread: to set or cancel one, it would wait for that for ever.
os.register_at_fork(before=faulthandler.cancel_dump_traceback_later, after_in_parent=lambda: _end_at(_until))
