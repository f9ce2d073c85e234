"""Calls of other people's code that may take so long."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

from ferryman.engine.transform.node_errors import StepTimeout

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
    faulthandler.dump_traceback_later(limit_s + _GRACE_S, exit=True, file=_nowhere())
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def _nowhere() -> int:
    """Where the traceback goes that nobody wants: what is stuck is named by the ledger."""
    global _null  # noqa: PLW0603 - one open file a process
    if _null is None:
        _null = os.open(os.devnull, os.O_WRONLY)
    return _null


_null: int | None = None
