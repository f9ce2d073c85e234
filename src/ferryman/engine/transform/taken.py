"""What becomes of a row that a task takes up, and the same said to what it stages."""

from __future__ import annotations

import enum
from collections.abc import Callable

from ferryman.engine.transform.node_errors import NodeError
from ferryman.engine.transform.staging import Stager
from ferryman.engine.transform.undecided import Trail


class Taken(enum.Enum):
    """What becomes of a row."""

    KNOWN = enum.auto()
    """It is as it was."""
    TOUCHED = enum.auto()
    """It is as it was, but for its fingerprint."""
    GONE = enum.auto()
    FIRST = enum.auto()
    """It goes its whole way."""
    AGAIN = enum.auto()
    """It goes on where it failed."""
    UNREAD = enum.auto()
    """It could not be read; what that means shows when the task is through."""


def stage_row(
    stager: Stager, i: int, taken: Taken, fault: NodeError | None, walk: Trail | None, go: Callable[[], None] | None
) -> bool:
    """Stage what became of row ``i``; was it not as it was?

    Args:
        fault: why it could not be read.
        walk: what it met on its way, once ``go`` has run; None of both: it did not set out.
    """
    if taken is Taken.KNOWN:
        return False
    if fault is not None:
        stager.unread(i, fault)
    elif walk is not None and go is not None:
        stager.walked(i, walk, go, retry=taken is Taken.AGAIN)
    elif taken is Taken.GONE:
        stager.gone(i)
    else:
        stager.touched(i)
    return taken is not Taken.TOUCHED
