"""Results of tasks, which executors return to the driver: staged files, listings, the health of nodes."""

from __future__ import annotations

import enum
import os
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Final, NamedTuple

import ferryman
from ferryman import limits
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
from ferryman.sources import Bookmark, Complete, Doubt
from ferryman.sources.base import TouchedFiles
from ferryman.state.logs import LogHead, number_of_text
from ferryman.storage.files import StatePath, fsync_folder
from ferryman.storage.parquet import Part


class Savepoint(NamedTuple):
    """Position in a task's staged results, to which they can be rolled back; see ``Stager.savepoint``."""

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
    """Known documents could not be read because their source was unavailable."""
    new: int = 0
    """Lower bound of the number of staged rows of documents that had none before."""
    blocked: Blocked | None = None
    """First entry of a log that cannot be processed now; the results of later entries do not count."""
    entries: int = 0
    """Number of log entries read."""
    reached: dict[str, int] | None = None
    """Partition -> position of the log after the entries that were read."""
    held: frozenset[int] = frozenset()
    """Key hashes whose export was not processed in this task, without those held before; only for the exports of a
    keyed node."""
    killed: KilledTask | None = None
    """Set if this at-most-once task was killed, and only what it had finished is staged."""
    hashes: bytes = b""
    """Hashes of the documents whose versions a log's entries are, as 64-bit numbers."""
    took_us: dict[str, int] | None = None
    """Step -> microseconds spent in its calls; None if they were made in a child process."""


class KilledTask(NamedTuple):
    """How far an at-most-once task had come when it was killed, as places of its log.

    Entries before ``doubt`` were processed; of those from there on and before ``rest`` a step may have seen some; no
    step has seen those from ``rest`` on. None: unknown, so that all of them are in doubt.
    """

    doubt: int | None = None
    rest: int | None = None


def sync_names(root: StatePath, staged: Staged) -> None:
    """Make the names of a task's files durable; their content is durable already.

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
    """Reason why a source is unavailable or misconfigured, so that it cannot be listed."""

    why: str
    permanent: bool
    """Whether the source stays unusable until somebody fixes it."""
    wait_s: float = 0.0
    """Seconds after which the source may be asked again, as it says; 0: it does not say."""


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
    """Set if the part is incomplete because the source as a whole failed."""
    deleted: int = 0
    """Number of rows that say that a document was deleted."""
    bookmarks: tuple[Bookmark, ...] = ()
    notes: tuple[str, ...] = ()
    """Messages of the source for people."""
    is_complete: bool | None = False
    """Whether every document of the part was listed, although the source's listings usually do not say so; see
    ``sources.base.Complete``. None: nothing was listed, these are documents that were listed before."""
    complete_within: tuple[Complete, ...] = ()
    """Statements that all ids with some beginning were listed; the beginnings are of full ids."""


class Listing(NamedTuple):
    """All listed parts of one source, in its own order."""

    source: SourceNode
    parts: list[ListedPart]
    changes_only: bool = False
    """Whether only what may have changed was listed."""

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
    def deleted(self) -> int:
        return sum(p.deleted for p in self.parts)

    @property
    def is_complete(self) -> bool:
        """Return whether a document that is not listed was deleted at the source."""
        if self.failures or self.changes_only:
            return False
        new = [part.is_complete for part in self.parts if part.is_complete is not None]
        return self.source.source.lists_all or (bool(new) and all(new))

    @property
    def complete_within(self) -> list[str]:
        """Return the beginnings of full ids that were listed completely, also if other parts failed."""
        return [each.within or "" for part in self.parts for each in part.complete_within]

    @property
    def outage(self) -> Outage | None:
        """Return the most serious outage of the parts."""
        return most_serious(p.outage for p in self.parts if p.outage)


WantedIds = Mapping[str, frozenset[str]]
"""Source -> ids of the documents that are wanted; from sources that are not named, none."""

Look = Mapping[str, TouchedFiles | None]
"""Source -> the files and folders that are listed because they may have changed; None: all of it. Sources that are not
named are not listed."""


NO_IDS: Final[WantedIds] = MappingProxyType({})


def outage_of(error: BaseException) -> Outage | None:
    """Return the outage that an error of a source means; None: the error is about the content that was read, so
    retrying is useless."""
    cause = error.__cause__ if isinstance(error, QueryFailed) and error.__cause__ is not None else error
    if isinstance(cause, Misconfigured):
        return Outage(message_of(error), permanent=True)
    if isinstance(error, Unavailable | WorkerDied) or is_connection_error(error, reading=True):
        return Outage(message_of(error), permanent=False, wait_s=_asked_wait_s(error))
    if isinstance(error, UsageError | QueryFailed):
        return Outage(message_of(error), permanent=True)
    return None


def _asked_wait_s(error: BaseException) -> float:
    asked = error.wait_s if isinstance(error, Unavailable) else 0.0
    return min(asked, limits.RETRY_AFTER_MAX_S) if asked > 0 else 0.0


def most_serious(outages: Iterable[Outage]) -> Outage | None:
    """Return a permanent outage if there is any, else the first of those with the longest wait."""
    return max(outages, key=lambda each: (each.permanent, each.wait_s), default=None)


class PendingRetries(NamedTuple):
    """Deliveries that wait for a retry after a step's failure, grouped by the nodes that they wait for.

    Attributes:
        held: nodes in trouble that they wait for, encoded as in ``documents``; None: they wait only until they are due.
        owed: number of deliveries.
        due: when the first of them is due, µs since 1970; 0: an operator waits for it.
        unlisted: whether a scan has looked for these documents and not found them.
    """

    held: str | None
    owed: int
    due: int
    unlisted: bool = False


@dataclass(frozen=True, slots=True)
class NodeStates:
    """Health of the nodes when a wave begins."""

    blocked: frozenset[str] = frozenset()
    """Nodes that must not be called now."""
    proven: frozenset[str] = frozenset()
    """Nodes that a call has reached successfully in this run since they last failed."""
    failing: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Node -> batch -> number of documents that failed there with unforeseen errors since the last successful call."""
    unreached: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Node -> some of the documents that failed there with transient errors at their first attempt, since the last
    successful call."""


class NodeReport(NamedTuple):
    """A task's observations of one node."""

    node: str
    succeeded: bool
    """Whether a call succeeded."""
    faults: tuple[NodeError, ...]
    """Faults of the node as a whole, or of one of its scopes."""
    by_brake: bool
    """Closed by its brake, that is, after many failures in a row; no single error said that the node is in trouble."""
    lacks_needs: bool = False
    """Not called, because this machine lacks a capability that the node needs."""
    failing: tuple[tuple[str, int], ...] = ()
    """(batch, number of documents) that failed there with unforeseen errors since the last successful call."""
    unreached: tuple[str, ...] = ()
    """Some of the documents that failed there with transient errors at their first attempt, since the last successful
    call."""
    returned_none: int = 0
    """Number of calls that returned None, if the step returned nothing else."""
    returned_document: bool = False
    """Whether a call returned a document."""


class Blocked(NamedTuple):
    """First entry that a task cannot process now."""

    place: int
    id: str
    why: str
    stop: bool
    """Whether only an operator can continue: the plan stops at entries that failed permanently, or the source is
    broken."""
    held: tuple[str, ...] = ()
    """Nodes in trouble that the entry waits for; see ``records.families.encode_held``."""
    due: int | None = None
    """When the entry is retried, µs since 1970; None: not before a node is called again or somebody fixes it."""
    attempt: int = 0
    transient: int = 0
    since: int | None = None
    version: str | None = None
    """Version of an entry that failed in a step or router; None: it was not tried, or the log could not be read."""

    @property
    def stops_plan(self) -> bool:
        """Return whether the entry itself stops the plan, rather than an error of reading its log."""
        return self.stop and self.version is not None

    def head(self, replay: int) -> LogHead:
        """Return the attempts so far, as stored for the entry's next attempt.

        Args:
            replay: the log's replay number, see ``state.logs.LogPositions.replay``.
        """
        return LogHead(self.place, number_of_text(self.id), self.attempt, self.transient, self.since or 0, replay)


# What an error of a step, a router or a source's read means: for its document, or for the whole node.


class ErrorKind(enum.Enum):
    """Kinds of errors, by what they say about the document and the node."""

    HELD = enum.auto()
    """Not called, because the node is known to be in trouble."""
    UNAVAILABLE = enum.auto()
    """The whole node fails for now."""
    MISCONFIGURED = enum.auto()
    """The whole node fails until somebody fixes it."""
    PERMANENT = enum.auto()
    """The document fails permanently."""
    TRANSIENT = enum.auto()
    """The document fails for now; the error's class says so."""
    CONNECTION = enum.auto()
    """A transient error of the connection; if every document meets one, the node is at fault."""
    UNFORESEEN = enum.auto()
    """The error's class does not say what it means."""


TRANSIENT: Final = (ErrorKind.TRANSIENT, ErrorKind.CONNECTION)
OF_NODE: Final = (ErrorKind.HELD, ErrorKind.UNAVAILABLE, ErrorKind.MISCONFIGURED)
AWAY: Final = (*OF_NODE, ErrorKind.CONNECTION)
"""Kinds of errors for which the node is to blame if many documents meet them."""


class NodeError(NamedTuple):
    """An error at a node as plain text, since exceptions of foreign code may not be picklable.

    Attributes:
        node: node that it occurred at.
        text: message for the ledger: the node, the error, and the failing line of user code if it is known.
        trace: traceback; "" unless this is one of the first errors of its line.
        scope: the part of the external system that is unavailable ("host:…"); "": the whole node.
    """

    kind: ErrorKind
    node: str
    text: str
    trace: str = ""
    scope: str = ""

    @property
    def key(self) -> str:
        """Return the key under which ``documents`` records what waits for this error to end."""
        return f"{self.node} {self.scope}" if self.scope else self.node


class StepTimeout(TransientError):
    """Raised when a call of a step exceeds ``timeout=``. The cause is unknown, so it counts as an unforeseen error."""


class NodeAway(Exception):
    """Raised in the walk of a document that was waiting for a step which has since been found to be in trouble."""


def classify_error(
    error: BaseException, node: str, where: str, *, reading: bool = False, traces: Traces | None = None
) -> NodeError:
    """Classify an error; never raises, even if the error's class raises when it is inspected.

    Args:
        where: how a message names the node.
        reading: whether a source's ``read`` raised it.
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
    """Tracebacks that a task keeps: only for the first errors of each line of code, to save space and time."""

    def __init__(self) -> None:
        self._read_kept: Counter[str] = Counter()

    def keep(self, error: BaseException, at: str) -> str:
        """Return the traceback from the first frame of user code, without its heading; "" if enough errors of this line
        have one."""
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
    """Return the lines of a traceback, each shortened if it is very long.

    Formatting reads the error's message, notes and other attributes, any of which may raise; then only the frames are
    formatted.
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
"""Tracebacks kept per task for errors of one line of code."""
_LINE: Final = LONGEST // 4
"""Longest line of a traceback, in characters, so that a long message leaves room for the frames."""
_UNSHORTENED: Final = 1 << 30
_FRAMES: Final = 20
"""Innermost frames that a traceback keeps."""


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
    """Return whether the error was raised on purpose, with one of Ferryman's classes, so that its source line is of no
    interest."""
    return isinstance(error, FerrymanError) and not isinstance(error, StepTimeout)


def _describe(error: BaseException) -> str:
    if is_failed_allocation(error):
        return describe_memory_error(error)
    return f"TransientError: {plain_text(error)}" if isinstance(error, StepTimeout) else describe(error)


_OURS: Final = os.path.dirname(os.path.abspath(ferryman.__file__)) + os.sep


def _innermost_line(error: BaseException) -> str:
    """Return the innermost line of user code, or else of a library; "" if there is neither."""
    lines = [(f.f_code.co_filename, number) for f, number in traceback.walk_tb(error.__traceback__)]
    theirs = [each for each in lines if not each[0].startswith(_OURS)]
    own = [each for each in theirs if "site-packages" not in each[0] and f"{os.sep}lib{os.sep}python" not in each[0]]
    if not theirs:
        return ""
    path, number = (own or theirs)[-1]
    return f"{plain_text(path)}:{number}"


class OutboxSavepoint(NamedTuple):
    """Position in the staged outbox rows, see ``OutboxStage.savepoint``."""

    files: int
    family_destinations: set[str]
