"""Isolation mode: a task whose worker died is run again, each document in a child process that may die.

The child reads and walks the document. It records the calls of the walk's sink and sends them to the parent, which
replays and stages them once they are complete; those of a large family go through a file. So if the child dies, nothing
else is lost. If a call of a step for a document kills as many processes as a delivery has attempts, it is not made
again but fails, and everything else continues: the document's other branches, its family, other documents. If a worker
is killed together with its child, no document is blamed.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, BinaryIO, Final, NamedTuple

import cloudpickle

from ferryman import limits
from ferryman.document import Document, RereadRequest
from ferryman.engine.results import NodeError, classify_error
from ferryman.engine.runner.base import PickledPlan
from ferryman.engine.runner.child import Child, Died, note
from ferryman.engine.tasks import LogSplit, TaskSplit
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.compiled_nodes import End
from ferryman.engine.transform.health import NodeHealth
from ferryman.engine.transform.reader import DocumentReader, RowAction, stage_row
from ferryman.engine.transform.remembering import TaskAnswers
from ferryman.engine.transform.staging import Stager
from ferryman.engine.transform.walk import MemberFailure, WalkSink, run_walk
from ferryman.errors import EngineError, PermanentError
from ferryman.memory import describe_memory_error
from ferryman.plan import DestinationNode, StepNode
from ferryman.records.families import FailedMember, MissingDelivery

_Place = tuple[str, str]
"""(step name, or "" for reading; document id)."""

_Contents = tuple[list[bytes | None], list[bytes | None]]
"""Fields and raw bytes of each row, where they were staged while listing."""


class RecordedOutcome(NamedTuple):
    """Outcome of a walk in a child process, see ``staging.WalkOutcome``."""

    new_failures: list[MemberFailure]
    ended_failures: list[FailedMember]
    reached: list[FailedMember]
    unneeded: list[str]


class ChildReport(NamedTuple):
    """A child process's answer for one document."""

    action: RowAction
    version: Any
    fingerprint: str
    entry: tuple[bytes | None, str | None]
    """Fields and provenance of a log entry that was read again by its id."""
    calls: list[SinkCall]
    """Recorded calls of the sink, in order; with a spool, only those after its end."""
    spooled: bool
    outcome: RecordedOutcome | None
    fault: NodeError | None
    """Why the document could not be read; None: it was read."""
    health: dict[str, NodeHealth]
    """Health of the nodes after the walk."""
    size: int
    """Bytes that were read."""


class DocumentSizes:
    """Sizes of a task's documents. If memory runs out while they are staged, the largest one is refused.

    Attributes:
        refused: documents that must not be read again -> reason.
    """

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}
        self._bytes: dict[str, int] = {}

    def add(self, id: str, size: int) -> None:
        """Record the size of the document that is staged next."""
        self._bytes[id] = size

    def refuse_largest(self, error: Exception) -> bool:
        """Refuse the largest document, so that the others can be staged again; return False if it is too small to be
        the cause."""
        id = max(self._bytes, key=self._bytes.__getitem__, default="")
        size = self._bytes.get(id, 0)
        if size < limits.BLAMED_BYTES:
            return False
        self.refused[id] = describe_memory_error(error, size)
        self._bytes.clear()
        return True


def _content_bytes(calls: list[SinkCall]) -> int:
    """Return the number of content bytes in these calls."""
    found = (each.raw if isinstance(each, Document) else each for _, args in calls for each in args)
    return sum(len(each) for each in found if isinstance(each, bytes))


class IsolatedReader:
    """Processes the blocks of one task, each document in a child process."""

    def __init__(
        self,
        pickled_plan: PickledPlan,
        answers: TaskAnswers,
        split: TaskSplit | LogSplit,
        stager: Stager,
        sizes: DocumentSizes,
        state: str = "",
    ) -> None:
        self._pickled_plan = pickled_plan
        self._remembered = answers
        plan = pickled_plan.plan()
        self._split = split
        self._state = state
        self._stager = stager
        self._attempts = max((n.policy.attempts for n in plan.nodes if isinstance(n, DestinationNode)), default=1)
        self._row = 0
        self._timeouts = {n.name: n.call_timeout_s for n in plan.nodes if isinstance(n, StepNode)}
        self._deaths: Counter[_Place] = Counter()
        self._deadly_calls: dict[_Place, str] = {("", id): why for id, why in sizes.refused.items()}
        """Calls that must not be made again -> reason."""
        self._sizes = sizes
        self._children = 0

    def process_block(
        self, block: Block, contents: _Contents, health: dict[str, NodeHealth]
    ) -> tuple[list[int], dict[str, NodeHealth]]:
        """Read, walk and stage each document of the block; return which rows had changed, and the health of the
        nodes."""
        processed = []
        spool = Spool(shared=True)
        reader = _ChildReader(self._pickled_plan, self._remembered, self._split, block, contents, spool, self._state)
        child = Child(reader.read, reader.begin)
        self._stager.begin_block(block)
        try:
            for i in range(len(block)):
                if self._stager.stage_if_waiting(i):
                    self._row += 1
                    continue
                report = self._ask(child, reader, i, health)
                health = report.health
                self._row += 1
                block.versions[i], block.fingerprints[i] = report.version, report.fingerprint
                if report.entry[0] is not None:
                    block.set_read(i, *report.entry)
                self._sizes.add(block.ids[i], max(report.size, _content_bytes(report.calls) + spool.size()))
                calls = chain(spool.read() if report.spooled else (), report.calls)
                stage_calls = partial(replay, calls, self._stager)
                if stage_row(self._stager, i, report.action, report.fault, report.outcome, stage_calls):
                    processed.append(i)
        finally:
            child.end()
            spool.close()
        self._stager.end_block()
        return processed, health

    def _ask(self, child: Child, reader: _ChildReader, i: int, health: dict[str, NodeHealth]) -> ChildReport:
        """Return the child's report for row ``i``; if the child dies, ask a new one."""
        while True:
            reader.children = self._children
            try:
                report: ChildReport = child.ask((i, self._row, health, self._deadly_calls))
                return report
            except Died as e:
                if not e.place:
                    raise EngineError(f"a child process ended before it read a document: {e.how}") from e
                self._children += 1  # so that routers that alternate begin at another branch
                step, began, id = e.place.split("\0", 2)
                self._deaths[step, id] += 1
                if self._deaths[step, id] >= self._attempts:
                    e.how = self._describe_death(step, time.monotonic() - float(began), e.how)
                    self._deadly_calls[step, id] = e.describe(
                        self._attempts, size=reader.block.table["size"][i].as_py()
                    )

    def _describe_death(self, step: str, took_s: float, how: str) -> str:
        timeout_s = self._timeouts.get(step)
        if timeout_s is None or took_s < timeout_s:
            return how
        return f"took longer than timeout={timeout_s:g} s and could not be interrupted ({how})"


class _ChildReader:
    """Reads and walks rows in the child process, and reports the calls of the walk's sink."""

    def __init__(
        self,
        pickled_plan: PickledPlan,
        answers: TaskAnswers,
        split: TaskSplit | LogSplit,
        block: Block,
        contents: _Contents,
        spool: Spool,
        state: str,
    ) -> None:
        self.block = block
        self.children = 0
        """Number of earlier children."""
        self._pickled_plan = pickled_plan
        self._split = split
        self._state = state
        self._remembered = answers
        self._contents = contents
        self._recorder = Recorder(spool)
        self._deadly_calls: dict[_Place, str] = {}
        self._reader: DocumentReader

    def begin(self) -> None:  # pragma: no cover - the child
        split = self._split._replace(number=self._split.number + self.children)
        self._reader = DocumentReader(
            self._pickled_plan.plan(), split, self._recorder, {}, self._prepare_step, self._state
        )

    def read(
        self, request: tuple[int, int, dict[str, NodeHealth], dict[_Place, str]]
    ) -> ChildReport:  # pragma: no cover - the child
        i, self._reader.walk.row, health, self._deadly_calls = request
        self._reader.set_health(health)
        block, (fields, raws) = self.block, self._contents
        self._recorder.begin()
        self._note_place("", block.ids[i])
        if (why := self._deadly_calls.get(("", block.ids[i]))) is not None:
            action, walking = self._reader.walk_unread(
                block, i, classify_error(PermanentError(why), self._split.source, "reading it")
            )
        else:
            action, walking = self._reader.read_row(block, i, fields[i], raws[i])
        outcome = None
        if walking is not None:
            walk = self._reader.walk
            run_walk(walk, walking)
            outcome = RecordedOutcome(walk.new_failures, walk.ended_failures, walk.reached, walk.unneeded)
        self._remembered.note_used()
        fault = self._reader.fault if action is RowAction.POSTPONE else None
        recorder = self._recorder
        return ChildReport(
            action,
            block.versions[i],
            block.fingerprints[i],
            block.read_fields(i),
            recorder.calls,
            recorder.spooled,
            outcome,
            fault,
            health,
            0 if action is RowAction.POSTPONE else self._reader.size,
        )

    def _note_place(self, step: str, id: str) -> None:  # pragma: no cover - the child
        note(f"{step}\0{time.monotonic()}\0{id}")

    def _prepare_step(self, step: StepNode) -> Callable[[Document], Any]:  # pragma: no cover - the child
        """Return the step's function, extended to record what it is called for, and to raise instead of making a deadly
        call."""
        fn, name = self._remembered.document_call(step), step.name

        def call_noted(doc: Document) -> Any:
            if (why := self._deadly_calls.get((name, doc.id))) is not None:
                raise PermanentError(why)
            id, origin = doc.id, doc.origin_id
            self._note_place(name, id)
            out = fn(doc)
            self._note_place("", origin)
            return iterate_noted(out, id, origin) if isinstance(out, Iterator) else out

        def iterate_noted(out: Iterator[Any], id: str, origin: str) -> Iterator[Any]:
            """Record each call of the iterator, since other steps are called in between."""
            while True:
                self._note_place(name, id)
                each = next(out, _END)
                self._note_place("", origin)
                if each is _END:
                    return
                yield each

        return call_noted


_END: Final = object()


# Recorded calls of a sink, to be replayed later or in another process.

SinkCall = tuple[str, tuple[Any, ...]]
"""Name of a ``WalkSink`` method, and its arguments."""


class Recorder:
    """A sink that records its calls; those of a large family go to a spool.

    Attributes:
        calls: recorded calls that are not in the spool.
    """

    def __init__(self, spool: Spool | None = None) -> None:
        self._spool = spool or Spool()
        self.calls: list[SinkCall] = []
        self._bytes = 0

    def begin(self) -> None:
        """Begin another document."""
        self._spool.truncate(0)
        self._clear()

    @property
    def spooled(self) -> bool:
        """Return whether any calls were written to the spool."""
        return self._spool.size() > 0

    def upsert(self, doc: Document, end: End, branches: str, fields: bytes, earlier: MissingDelivery | None) -> None:
        only = _stub(doc, doc.raw)  # its fields are encoded separately
        only.only_if_changed = bool(doc.only_if_changed)
        self._bytes += len(fields) + len(doc.raw or b"")
        self._note("upsert", only, end, branches, fields, earlier)

    def drop(self, doc: Document, *args: Any) -> None:
        self._note("drop", _stub(doc), *args)

    def request_reread(self, doc: Document, request: RereadRequest) -> None:
        self._note("request_reread", _stub(doc), request)

    def savepoint(self) -> int:
        """Record a savepoint, also for the replay, where it reduces the memory that the stager needs for a family."""
        self._write()
        size = self._spool.size()
        self.calls.append(("savepoint", ()))
        return size

    def roll_back(self, savepoint: int) -> None:
        self._spool.truncate(savepoint)
        self._clear()

    def append(self, later: Recorder) -> None:
        """Append the calls of another recorder to these."""
        if later.spooled:
            self._write()
            self._spool.append(later._spool)
        self.calls += later.calls
        self._bytes += later._bytes
        self._spill_if_large()

    def extend(self, calls: list[SinkCall]) -> None:
        """Append calls that another recorder has given."""
        self._write()
        self.calls = calls

    def all_calls(self) -> Iterator[SinkCall]:
        """Yield all calls in order."""
        for calls in self.parts():
            yield from calls

    def parts(self) -> Iterator[list[SinkCall]]:
        """Yield all calls in order, as many at a time as are held in memory."""
        if self.spooled:
            yield from self._spool.parts()
        if self.calls:
            yield self.calls

    def close(self) -> None:
        """Close the spool."""
        self._spool.close()

    def _note(self, name: str, *args: Any) -> None:
        self.calls.append((name, args))
        self._spill_if_large()

    def _spill_if_large(self) -> None:
        if len(self.calls) >= limits.HELD_CHILDREN or self._bytes >= limits.GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if self.calls:
            self._spool.write(self.calls)
            self._clear()

    def _clear(self) -> None:
        self.calls, self._bytes = [], 0


class Spool:
    """Unnamed file of recorded calls, created at the first write.

    A ``shared`` spool is alternately written by a child process and read by its parent. After a child's death, the next
    child starts over.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._fd = _unnamed_file() if shared else -1

    def size(self) -> int:
        """Return the size in bytes."""
        return os.fstat(self._fd).st_size if self._fd >= 0 else 0

    def truncate(self, size: int) -> None:
        """Remove everything after the first ``size`` bytes."""
        if self._fd >= 0:
            os.ftruncate(self._fd, size)

    def write(self, calls: list[SinkCall]) -> None:
        """Append these calls."""
        self._write(cloudpickle.dumps(calls))

    def append(self, other: Spool) -> None:
        """Append the content of another spool."""
        with other._open() as file:
            while some := file.read(_COPIED_BYTES):
                self._write(some)

    def read(self) -> Iterator[SinkCall]:
        """Yield all calls in order; at any time, those of one ``write`` are in memory."""
        for calls in self.parts():
            yield from calls

    def parts(self) -> Iterator[list[SinkCall]]:
        """Yield the calls of each ``write``, in order."""
        with self._open() as file:
            while True:
                try:
                    calls: list[SinkCall] = pickle.load(file)
                except EOFError:
                    return
                yield calls

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the spool for a child process, which opens the same file."""
        return _open_in_process, (os.getpid(), self._fd)

    def __del__(self) -> None:
        self.close()  # calls of a task that failed

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> BinaryIO:
        file = os.fdopen(os.dup(self._fd), "rb")
        file.seek(0)
        return file

    def _write(self, content: bytes) -> None:
        if self._fd < 0:
            self._fd = _unnamed_file()
        os.lseek(self._fd, 0, os.SEEK_END)
        left = memoryview(content)
        while left:
            left = left[os.write(self._fd, left) :]


def _open_in_process(pid: int, fd: int) -> Spool:
    spool = Spool()
    spool._fd = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    return spool


def _unnamed_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


_COPIED_BYTES: Final = limits.MIB


def _stub(doc: Document, raw: bytes | None = None) -> Document:
    """Return a document reduced to what an event needs, so that it can be pickled."""
    return Document.of(doc.id, {}, raw)


def replay(calls: Iterable[SinkCall], sink: WalkSink) -> None:
    """Make the recorded calls on a sink."""
    for name, args in calls:
        getattr(sink, name)(*args)
