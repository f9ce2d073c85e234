"""Results of tasks, which executors return to the driver: staged files, listings, the health of nodes."""

from __future__ import annotations

import enum
import os
import pickle
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Final, NamedTuple

import msgspec

import ferryman
from ferryman import crash
from ferryman.document import RereadRequest
from ferryman.engine.runner.base import QueryFailed
from ferryman.errors import (
    BadDocument,
    FerrymanError,
    Misconfigured,
    PermanentError,
    TransientError,
    Unavailable,
    UsageError,
    WorkerDied,
    class_name,
    describe,
    message_of,
    plain_text,
    shortened,
)
from ferryman.memory import describe_memory_error, is_failed_allocation
from ferryman.net.faults import causes, is_connection_error
from ferryman.plan import SourceNode
from ferryman.records.families import Published
from ferryman.records.rows import HEADING, LONGEST
from ferryman.sources import Doubt
from ferryman.state.logs import LogHead, number_of_text
from ferryman.state.state import OPEN
from ferryman.storage.files import StatePath, exists, fsync_folder, publish, read
from ferryman.storage.parquet import Part
from ferryman.storage.processes import Process, ProcessWatch, heartbeat


class Savepoint(NamedTuple):
    """Position in what a task has staged, to which it can be rolled back; see ``Stager.savepoint``."""

    outbox: OutboxSavepoint
    events: int
    published: tuple[int, list[Published]]
    counts: dict[str, int]
    reread: RereadRequest | None


class Staged(NamedTuple):
    """Files and counts that a task returns."""

    outbox: list[tuple[str, Part]]
    """(destination, file) in the order of their rows."""
    documents: list[Part]
    ledger: list[Part]
    counts: dict[str, int]
    nodes: list[NodeReport]
    unseen: bool
    """Known documents of the source could not be looked at."""
    new: int = 0
    """Rows of documents of which there was none before, at least."""
    blocked: Blocked | None = None
    """First entry of a log that cannot be processed now; the entries behind it do not count."""
    entries: int = 0
    """Number of log entries read."""
    reached: dict[str, int] | None = None
    """Positions of a log behind these entries, by partition."""
    held: frozenset[int] = frozenset()
    """Keys whose export was not delivered in this task and that were not held before; only for exports of a keyed node.
    """
    in_doubt: bool = False
    """It had begun before, may not begin again, and nobody knows how far it came; nothing is staged."""


def sync_names(root: StatePath, staged: Staged) -> None:
    """Make the names of a task's files durable; their content is.

    Args:
        root: the state's folder.
    """
    for table, files in (("outbox", staged.outbox), ("documents", staged.documents), ("ledger", staged.ledger)):
        if files:
            fsync_folder(root / table)


NOTHING_STAGED: Final = Staged([], [], [], dict.fromkeys(("dropped", "error_doc", "dead"), 0), [], False)


class Attempts(NamedTuple):
    """Earlier attempts of a row: their number; first transient error, µs since 1970; number of transient errors."""

    attempt: int
    since: int | None
    transient: int | None


class Outage(NamedTuple):
    """Why a source cannot be listed that is away, or has to be repaired."""

    why: str
    permanent: bool
    """Whether somebody has to repair it."""


class ListedPart(NamedTuple):
    """Result of listing some partitions of one source."""

    source: str
    path: str
    rows: int
    bytes: int
    failure: str | None
    """Why the part is incomplete."""
    host: str = ""
    """Host on which it was listed."""
    doubts: tuple[Doubt, ...] = ()
    """Doubtful places that the driver checks."""
    outage: Outage | None = None
    """Set if it is incomplete by a fault of the source as a whole."""


class Listing(NamedTuple):
    """All listed parts of one source, in its own order."""

    source: SourceNode
    parts: list[ListedPart]

    @property
    def rows(self) -> int:
        return sum(p.rows for p in self.parts)

    @property
    def bytes(self) -> int:
        return sum(p.bytes for p in self.parts)

    @property
    def failures(self) -> list[str]:
        return [p.failure for p in self.parts if p.failure is not None]

    @property
    def outage(self) -> Outage | None:
        """Return the worst outage; permanent ones count most."""
        return max((p.outage for p in self.parts if p.outage), key=lambda each: each.permanent, default=None)


WantedIds = Mapping[str, frozenset[str]]
"""Source -> ids of the documents that are wanted; nothing of the other sources."""


NO_IDS: Final[WantedIds] = MappingProxyType({})


def outage_of(error: BaseException) -> Outage | None:
    """Return the outage of a source that raised this; None: what was read is at fault, and retrying is useless."""
    cause = error.__cause__ if isinstance(error, QueryFailed) and error.__cause__ is not None else error
    if isinstance(cause, Misconfigured):
        return Outage(message_of(error), permanent=True)
    if isinstance(error, Unavailable | WorkerDied) or is_connection_error(error, reading=True):
        return Outage(message_of(error), permanent=False)
    if isinstance(error, UsageError | QueryFailed):
        return Outage(message_of(error), permanent=True)
    return None


class PendingRetries(NamedTuple):
    """Pending deliveries of documents that failed at steps, by what they wait for.

    Attributes:
        held: nodes in trouble, as ``documents`` has them; None: they wait for their time only.
        owed: number of deliveries.
        due: when the first of them is due, µs since 1970; 0: an operator waits for it.
        unlisted: whether the documents were looked for and not found.
    """

    held: str | None
    owed: int
    due: int
    unlisted: bool = False


@dataclass(frozen=True, slots=True)
class NodeStates:
    """Health of the nodes when a wave begins."""

    blocked: frozenset[str] = frozenset()
    """NodeBreakers that are not called now."""
    proven: frozenset[str] = frozenset()
    """NodeBreakers of which a call has succeeded in this run, since they were in trouble last."""
    failing: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Node -> batch -> documents that met unforeseen errors there; since the last call that has succeeded."""
    unreached: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Node -> some of the documents that met errors of the connection there at their first try; since the last call
    that has succeeded."""


class NodeReport(NamedTuple):
    """A task's observations of one node."""

    node: str
    succeeded: bool
    """Whether a call succeeded."""
    faults: tuple[NodeError, ...]
    """Faults of the node as a whole, and of single scopes."""
    by_brake: bool
    """Stopped by its brake: no error said that the node is in trouble."""
    lacks_needs: bool = False
    """Not called, since this machine does not have what it needs."""
    failing: tuple[tuple[str, int], ...] = ()
    """(batch, documents) that met unforeseen errors there; since the last call that has succeeded."""
    unreached: tuple[str, ...] = ()
    """Some of the documents that met errors of the connection there at their first try; since the last call that has
    succeeded."""
    returned_none: int = 0
    """Number of calls that returned None, of a step that has returned nothing else."""
    returned_document: bool = False
    """Whether a call returned a document."""


class Blocked(NamedTuple):
    """First entry of a task that cannot be processed now."""

    place: int
    id: str
    why: str
    stop: bool
    """It failed for good, and the plan stops there; or somebody has to repair the source."""
    held: tuple[str, ...] = ()
    """NodeBreakers in trouble that it waits for; see ``family.encode_held``."""
    due: int | None = None
    """When it is tried again, µs since 1970."""
    attempt: int = 0
    transient: int = 0
    since: int | None = None

    def head(self, replay: int) -> LogHead:
        """Return the attempts so far, for the entry's next attempt.

        Args:
            replay: of the log.
        """
        return LogHead(self.place, number_of_text(self.id), self.attempt, self.transient, self.since or 0, replay)


# What an error of a step, a router or a source's read means: for its document, or for the whole node.


class ErrorKind(enum.Enum):
    """Kind of an error, by which it is counted."""

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
    """A transient error of the connection; if all documents fail so, it is the node's."""
    UNFORESEEN = enum.auto()
    """No class of the error tells what it means."""


TRANSIENT: Final = (ErrorKind.TRANSIENT, ErrorKind.CONNECTION)
OF_NODE: Final = (ErrorKind.HELD, ErrorKind.UNAVAILABLE, ErrorKind.MISCONFIGURED)
AWAY: Final = (*OF_NODE, ErrorKind.CONNECTION)
"""Kinds of errors that are not a document's own if many documents have them."""


class NodeError(NamedTuple):
    """An error at a node, in words: an exception of foreign code may not be kept or pickled.

    Attributes:
        node: node that it occurred at.
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
        """Return the key under which documents wait for this error to end."""
        return f"{self.node} {self.scope}" if self.scope else self.node


class StepTimeout(TransientError):
    """Raised when a step's call takes longer than ``timeout=``. Nobody knows why, so it counts as unforeseen."""


class NodeAway(Exception):
    """Raised for a document that waited for a call, after the node was found to be in trouble."""


def classify_error(
    error: BaseException, node: str, where: str, *, reading: bool = False, traces: Traces | None = None
) -> NodeError:
    """Classify an error. This never raises, whatever the error's class does when it is inspected.

    Args:
        where: how a message names the node.
        reading: a source's ``read`` raised it.
        traces: decides whether the traceback is kept; None: it is not.
    """
    try:
        return _classify(error, node, where, reading, traces)
    except Exception as e:
        why = f"(it cannot be looked at: that raises a {class_name(e)})"
        return NodeError(ErrorKind.UNFORESEEN, node, f"{where}: {class_name(error)} {why}")


def _classify(error: BaseException, node: str, where: str, reading: bool, traces: Traces | None) -> NodeError:
    text = plain_text(error) if isinstance(error, BadDocument) else f"{where}: {_describe(error)}"
    kind = _kind_of_error(error, reading)
    trace = ""
    if (
        kind in (ErrorKind.UNFORESEEN, ErrorKind.CONNECTION)
        and not _is_deliberate(error)
        and (at := _innermost_line(error))
    ):
        text = f"{text} ({at})"
        trace = traces.keep(error, at) if traces is not None else ""
    return NodeError(
        kind, node, text, trace, plain_text(getattr(error, "scope", "")) if kind is ErrorKind.UNAVAILABLE else ""
    )


class Traces:
    """Tracebacks of a task: kept for the first errors of each line, so that they take little room and time."""

    def __init__(self) -> None:
        self._read_kept: Counter[str] = Counter()

    def keep(self, error: BaseException, at: str) -> str:
        """Return the traceback from users' code on, without heading; "": enough others of this line have been kept."""
        if self._read_kept[at] >= _TRACES:
            return ""
        self._read_kept[at] += 1
        theirs = error.__traceback__
        while (
            theirs is not None and theirs.tb_next is not None and theirs.tb_frame.f_code.co_filename.startswith(_OURS)
        ):
            theirs = theirs.tb_next
        text = (
            plain_text("".join(_format_traceback(error, theirs)), limit=_UNSHORTENED).removeprefix(HEADING).strip("\n")
        )
        return text if len(text) <= LONGEST else f"  …\n{text[-LONGEST:]}"


def _format_traceback(error: BaseException, theirs: TracebackType | None) -> list[str]:
    """Return the lines of a traceback, none of them long.

    Formatting asks the error for its words, its notes and more, any of which may raise; its frames are there in any
    case.
    """
    try:
        formatted = traceback.TracebackException(type(error), error, theirs, limit=-_FRAMES, compact=True)
        lines = [*formatted.format()]
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
"""Frames of a traceback that are kept, the innermost ones."""


def _kind_of_error(error: BaseException, reading: bool) -> ErrorKind:
    if isinstance(error, Misconfigured):
        return ErrorKind.MISCONFIGURED
    if isinstance(error, PermanentError):
        return ErrorKind.PERMANENT
    if isinstance(error, Unavailable):
        return ErrorKind.UNAVAILABLE
    if any(isinstance(each, StepTimeout) for each in causes(error)):
        return ErrorKind.UNFORESEEN
    if is_connection_error(error, reading=reading):
        return ErrorKind.CONNECTION
    return ErrorKind.TRANSIENT if isinstance(error, TransientError) else ErrorKind.UNFORESEEN


def _is_deliberate(error: BaseException) -> bool:
    """Return whether the code chose this message on purpose: then its author knows where it comes from."""
    return isinstance(error, FerrymanError) and not isinstance(error, StepTimeout)


def _describe(error: BaseException) -> str:
    if is_failed_allocation(error):
        return describe_memory_error(error)
    return f"TransientError: {plain_text(error)}" if isinstance(error, StepTimeout) else describe(error)


_OURS: Final = os.path.dirname(os.path.abspath(ferryman.__file__)) + os.sep


def _innermost_line(error: BaseException) -> str:
    """Return the innermost line that is neither ours nor of a library; else the innermost."""
    lines = [(f.f_code.co_filename, number) for f, number in traceback.walk_tb(error.__traceback__)]
    theirs = [each for each in lines if not each[0].startswith(_OURS)]
    own = [each for each in theirs if "site-packages" not in each[0] and f"{os.sep}lib{os.sep}python" not in each[0]]
    if not theirs:
        return ""
    path, number = (own or theirs)[-1]
    return f"{plain_text(path)}:{number}"


# A task that runs at most once, though Spark starts it again if it gets no answer.
#
# It makes a file that only one run can make, then runs, and keeps its result in a file. A later run returns that
# result: it waits for it while the first one is alive (where Spark speculates, two run side by side). If the first one
# kept nothing, nobody knows how far it came. The folder belongs to the wave: once that is over, no run can begin.

IN_DOUBT: Final = NOTHING_STAGED._replace(in_doubt=True)


def run_once(folder: StatePath, number: int, run: Callable[[], Staged]) -> Staged:
    """Return the result of the task with this number; only one run of it begins.

    Raises:
        FileNotFoundError: its wave is over.
    """
    if not publish(folder / f"{number}.begun", msgspec.json.encode(Process.current())):
        _wait_for_first(folder, number)
        return _read_kept(folder, number)
    if not exists(folder / OPEN):  # in an object store, the folder does not say it
        raise FileNotFoundError(f"{folder}: its wave is over")
    crash.point("once.begun")
    with heartbeat(folder / f"{number}.alive", folder / OPEN):
        staged = run()
        publish(_kept_file(folder, number), pickle.dumps(staged))
    crash.point("once.kept")
    return staged


def kept_result(folder: StatePath, number: int) -> Staged | None:
    """Return the result of the task with this number, for a driver that starts after its own; None: it has not begun,
    and cannot any more."""
    try:
        return None if publish(folder / f"{number}.begun", b"") else _read_kept(folder, number)
    except FileNotFoundError:
        return IN_DOUBT  # somebody has removed the folder


def _wait_for_first(folder: StatePath, number: int) -> None:
    """Wait until the first run has kept its result, or is not alive any more."""
    begun = read(folder / f"{number}.begun")
    if not begun:
        return  # a later driver has seen to it that nobody begins
    first = ProcessWatch(msgspec.json.decode(begun, type=Process), folder / f"{number}.alive")
    wait_s = _LOOK_S
    while not exists(_kept_file(folder, number)) and first.is_alive():
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _LOOK_MAX_S)


_LOOK_S: Final = 0.05
_LOOK_MAX_S: Final = 2.0
"""Seconds between looks for the first run's result: in an object store a look is a few requests."""


def _read_kept(folder: StatePath, number: int) -> Staged:
    kept = _kept_file(folder, number)
    if not exists(kept):
        return IN_DOUBT
    staged = pickle.loads(read(kept))
    assert isinstance(staged, Staged)
    return staged


def _kept_file(folder: StatePath, number: int) -> StatePath:
    return folder / f"{number}.kept"


class OutboxSavepoint(NamedTuple):
    """Position in the staged outbox rows, see ``OutboxStage.savepoint``."""

    files: int
    family_destinations: set[str]
