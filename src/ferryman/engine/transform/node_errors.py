"""What an error of a step, a router or a source's read means: for its document, or for the whole node."""

from __future__ import annotations

import enum
import os
import traceback
from collections import Counter
from types import TracebackType
from typing import Final, NamedTuple

import ferryman
from ferryman.errors import (
    BadDocument,
    FerrymanError,
    Misconfigured,
    PermanentError,
    TransientError,
    Unavailable,
    class_name,
    describe,
    plain_text,
    shortened,
)
from ferryman.memory import is_failed_allocation, why_no_memory
from ferryman.outages import chain, is_connection
from ferryman.records.reasons import HEADING, LONGEST


class ErrorKind(enum.Enum):
    """How it is counted."""

    HELD = enum.auto()
    """Nothing was called: the node is known to be in trouble."""
    UNAVAILABLE = enum.auto()
    """The whole node, for now."""
    MISCONFIGURED = enum.auto()
    """The whole node, until somebody fixes it."""
    PERMANENT = enum.auto()
    """The document, permanently."""
    TRANSIENT = enum.auto()
    """The document, for now, by the error's own word."""
    CONNECTION = enum.auto()
    """As transient; if all fail so, it is the node's."""
    UNFORESEEN = enum.auto()
    """Nobody said what it means."""


TRANSIENT: Final = (ErrorKind.TRANSIENT, ErrorKind.CONNECTION)
OF_NODE: Final = (ErrorKind.HELD, ErrorKind.UNAVAILABLE, ErrorKind.MISCONFIGURED)
AWAY: Final = (*OF_NODE, ErrorKind.CONNECTION)
"""Of such faults those of many documents are alike: they say nothing of one document."""


class NodeError(NamedTuple):
    """What went wrong at a node, in words: an error of other people's code may not be kept, nor travel.

    Attributes:
        node: whose it is.
        text: for the ledger; begins with the node, ends with the line of other people's code, where that is known.
        trace: of the first errors of a line, their traceback.
        scope: only what the node has to do with this ("host:…") is in trouble; "": the whole node.
    """

    kind: ErrorKind
    node: str
    text: str
    trace: str = ""
    scope: str = ""

    @property
    def key(self) -> str:
        """What documents wait for that are held back."""
        return f"{self.node} {self.scope}" if self.scope else self.node


class StepTimeout(TransientError):
    """A step's call took longer than ``timeout=``: nobody knows why, so it counts as what nobody anticipated."""


class NodeAway(Exception):
    """A document waited to be called for, and meanwhile the node was found to be in trouble."""


def classify_error(
    error: BaseException, node: str, where: str, *, reading: bool = False, traces: Traces | None = None
) -> NodeError:
    """What an error means. Whatever its class does when it is looked at, this does not raise.

    Args:
        where: how a message names the node.
        reading: a source's ``read`` raised it.
        traces: decides whether the traceback is kept; None: it is not.
    """
    try:
        return _classified(error, node, where, reading, traces)
    except Exception as e:
        why = f"(it cannot be looked at: that raises a {class_name(e)})"
        return NodeError(ErrorKind.UNFORESEEN, node, f"{where}: {class_name(error)} {why}")


def _classified(error: BaseException, node: str, where: str, reading: bool, traces: Traces | None) -> NodeError:
    text = plain_text(error) if isinstance(error, BadDocument) else f"{where}: {_named(error)}"
    kind = _kind(error, reading)
    trace = ""
    if kind in (ErrorKind.UNFORESEEN, ErrorKind.CONNECTION) and not _is_meant(error) and (at := _line_of(error)):
        text = f"{text} ({at})"
        trace = traces.of(error, at) if traces is not None else ""
    return NodeError(
        kind, node, text, trace, plain_text(getattr(error, "scope", "")) if kind is ErrorKind.UNAVAILABLE else ""
    )


class Traces:
    """The tracebacks of a task: kept of the first errors of each line, so that they take little room and time."""

    def __init__(self) -> None:
        self._kept: Counter[str] = Counter()

    def of(self, error: BaseException, at: str) -> str:
        """The traceback from other people's code on, without heading; "": enough others have been kept."""
        if self._kept[at] >= _TRACES:
            return ""
        self._kept[at] += 1
        theirs = error.__traceback__
        while (
            theirs is not None and theirs.tb_next is not None and theirs.tb_frame.f_code.co_filename.startswith(_OURS)
        ):
            theirs = theirs.tb_next
        text = plain_text("".join(_formatted(error, theirs)), most=_UNSHORTENED).removeprefix(HEADING).strip("\n")
        return text if len(text) <= LONGEST else f"  …\n{text[-LONGEST:]}"


def _formatted(error: BaseException, theirs: TracebackType | None) -> list[str]:
    """The lines of a traceback, none of them long. Formatting asks the error for its words, its notes and more, any of
    which may raise; its frames are there in any case."""
    try:
        found = traceback.TracebackException(type(error), error, theirs, limit=-_FRAMES, compact=True)
        lines = [*found.format()]
    except Exception:
        lines = [*traceback.format_tb(theirs, -_FRAMES), f"{describe(error)}\n"]
    return [line if len(line) <= _LINE else f"{shortened(line, _LINE).rstrip()}\n" for line in lines]


def _is_ours(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_OURS)


_TRACES: Final = 20
"""Tracebacks that a task keeps of errors of one line."""
_LINE: Final = LONGEST // 4
"""Characters of a part of it: the words of the error must not leave the frames no room."""
_UNSHORTENED: Final = 1 << 30
_FRAMES: Final = 20
"""Of the frames of a traceback, the innermost that are kept."""


def _kind(error: BaseException, reading: bool) -> ErrorKind:
    if isinstance(error, Misconfigured):
        return ErrorKind.MISCONFIGURED
    if isinstance(error, PermanentError):
        return ErrorKind.PERMANENT
    if isinstance(error, Unavailable):
        return ErrorKind.UNAVAILABLE
    if any(isinstance(each, StepTimeout) for each in chain(error)):
        return ErrorKind.UNFORESEEN
    if is_connection(error, reading=reading):
        return ErrorKind.CONNECTION
    return ErrorKind.TRANSIENT if isinstance(error, TransientError) else ErrorKind.UNFORESEEN


def _is_meant(error: BaseException) -> bool:
    """Did the code choose these words on purpose? Then its author knows where they come from."""
    return isinstance(error, FerrymanError) and not isinstance(error, StepTimeout)


def _named(error: BaseException) -> str:
    if is_failed_allocation(error):
        return why_no_memory(error)
    return f"TransientError: {plain_text(error)}" if isinstance(error, StepTimeout) else describe(error)


_OURS: Final = os.path.dirname(os.path.abspath(ferryman.__file__)) + os.sep


def _line_of(error: BaseException) -> str:
    """The innermost line that is neither ours nor a library's; else the innermost."""
    lines = [(f.f_code.co_filename, number) for f, number in traceback.walk_tb(error.__traceback__)]
    theirs = [each for each in lines if not each[0].startswith(_OURS)]
    own = [each for each in theirs if "site-packages" not in each[0] and f"{os.sep}lib{os.sep}python" not in each[0]]
    if not theirs:
        return ""
    path, number = (own or theirs)[-1]
    return f"{plain_text(path)}:{number}"
