"""Careful mode: a task of which the worker died is done again, each document in a child process that may die.

The child reads the document and walks it; what the walk says of it is written down and told to the parent, which stages
it once it is complete; of a large family it goes through a file. So a death costs nothing but the child. A call that
kills its process as often as a delivery is attempted is known by its step and its document; from then on it is an error
instead, and all else goes on: the document's other branches, its family, its neighbours. Nobody is accused of a worker
that is killed together with its child.
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
from ferryman.engine.batches import LogSplit, TaskSplit
from ferryman.engine.results import NodeError, classify_error
from ferryman.engine.runner.base import PickledPlan
from ferryman.engine.runner.child import Child, Died, note
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.calls import one_by_one
from ferryman.engine.transform.health import NodeHealth
from ferryman.engine.transform.reader import DocumentReader, Taken, stage_row
from ferryman.engine.transform.staging import Stager
from ferryman.engine.transform.walk import End, Met, Stage
from ferryman.errors import EngineError, PermanentError
from ferryman.memory import describe_memory_error
from ferryman.plan import DestinationNode, StepNode
from ferryman.records.families import FailedMember, MissingDelivery

_Place = tuple[str, str]
"""(step, or "" for reading, document id)."""

_Contents = tuple[list[bytes | None], list[bytes | None]]
"""Fields and raw bytes of each row, where they were staged while listing."""


class Walked(NamedTuple):
    """Result of one walk."""

    met: list[Met]
    failures: list[FailedMember]
    reached: list[FailedMember]
    kept: list[str]


class ChildReport(NamedTuple):
    """Answer of a child process for one document."""

    taken: Taken
    version: Any
    fingerprint: str
    entry: tuple[bytes | None, str | None]
    """Fields and provenance of a log entry that was read by its id."""
    calls: list[Call]
    """Calls of the stage in their order; if there is a spool, only those after its end."""
    spooled: bool
    walked: Walked | None
    fault: NodeError | None
    """Why it could not be read."""
    health: dict[str, NodeHealth]
    """How the nodes are doing now."""
    size: int
    """Bytes that were read."""


class Weights:
    """Sizes of a task's documents: where an allocation fails while they are staged, the heaviest is isolated.

    Attributes:
        refused: documents that are not read again -> why.
    """

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}
        self._bytes: dict[str, int] = {}

    def add(self, id: str, size: int) -> None:
        """A document is about to be staged."""
        self._bytes[id] = size

    def refuse_heaviest(self, error: Exception) -> bool:
        """Stage all again without it; False: what there is weighs nothing, so that it cannot be the documents."""
        id = max(self._bytes, key=self._bytes.__getitem__, default="")
        size = self._bytes.get(id, 0)
        if size < limits.BLAMED_BYTES:
            return False
        self.refused[id] = describe_memory_error(error, size)
        self._bytes.clear()
        return True


def _bytes_of(calls: list[Call]) -> int:
    """Return the bytes of content in these calls."""
    found = (each.raw if isinstance(each, Document) else each for _, args in calls for each in args)
    return sum(len(each) for each in found if isinstance(each, bytes))


class IsolatedReader:
    """Takes up the blocks of one task, each document in a child."""

    def __init__(
        self,
        shipped: PickledPlan,
        cut: TaskSplit | LogSplit,
        stager: Stager,
        weights: Weights,
        state: str = "",
        share: float = 1.0,
    ) -> None:
        self._shipped = shipped
        plan = shipped.plan()
        self._cut = cut
        self._state = state
        self._share = share
        self._stager = stager
        self._attempts = max((n.policy.attempts for n in plan.nodes if isinstance(n, DestinationNode)), default=1)
        self._row = 0
        self._timeouts = {n.name: n.call_timeout_s for n in plan.nodes if isinstance(n, StepNode)}
        self._deaths: Counter[_Place] = Counter()
        self._killers: dict[_Place, str] = {("", id): why for id, why in weights.refused.items()}
        """Calls that are not made again -> why."""
        self._weights = weights
        self._children = 0

    def take_up(
        self, block: Block, contents: _Contents, health: dict[str, NodeHealth]
    ) -> tuple[list[int], dict[str, NodeHealth]]:
        """Read, walk and stage each document of the block; which rows were not as they were, and how the nodes are
        doing then."""
        taken_up = []
        spool = Spool(shared=True)
        reader = _Reader(self._shipped, self._cut, block, contents, spool, self._state, self._share)
        child = Child(reader.read, reader.begin)
        self._stager.begin(block)
        try:
            for i in range(len(block)):
                if self._stager.waits(i):
                    self._row += 1
                    continue
                told = self._ask(child, reader, i, health)
                health = told.health
                self._row += 1
                block.versions[i], block.fingerprints[i] = told.version, told.fingerprint
                if told.entry[0] is not None:
                    block.was_read(i, *told.entry)
                self._weights.add(block.ids[i], max(told.size, _bytes_of(told.calls) + spool.size()))
                calls = chain(spool.read() if told.spooled else (), told.calls)
                go = partial(replay, calls, self._stager)
                if stage_row(self._stager, i, told.taken, told.fault, told.walked, go):
                    taken_up.append(i)
        finally:
            child.end()
            spool.close()
        self._stager.end()
        return taken_up, health

    def _ask(self, child: Child, reader: _Reader, i: int, health: dict[str, NodeHealth]) -> ChildReport:
        """Return the child's answer for row ``i``; if the child dies, ask another one."""
        while True:
            reader.children = self._children
            try:
                told: ChildReport = child.ask((i, self._row, health, self._killers))
                return told
            except Died as e:
                if not e.place:
                    raise EngineError(f"a child process ended before it read a document: {e.how}") from e
                self._children += 1  # routers that take turns begin elsewhere
                step, began, id = e.place.split("\0", 2)
                self._deaths[step, id] += 1
                if self._deaths[step, id] >= self._attempts:
                    e.how = self._how(step, time.monotonic() - float(began), e.how)
                    self._killers[step, id] = e.said(self._attempts, size=reader.block.table["size"][i].as_py())

    def _how(self, step: str, took_s: float, how: str) -> str:
        timeout_s = self._timeouts.get(step)
        if timeout_s is None or took_s < timeout_s:
            return how
        return f"took longer than timeout={timeout_s:g} s and could not be interrupted ({how})"


class _Reader:
    """In the child: reads and walks a row, and tells what the walk said."""

    def __init__(
        self,
        shipped: PickledPlan,
        cut: TaskSplit | LogSplit,
        block: Block,
        contents: _Contents,
        spool: Spool,
        state: str,
        share: float,
    ) -> None:
        self.block = block
        self.children = 0
        """How many there have been."""
        self._shipped = shipped
        self._cut = cut
        self._state = state
        self._share = share
        self._contents = contents
        self._recorder = Recorder(spool)
        self._killers: dict[_Place, str] = {}
        self._feed: DocumentReader

    def begin(self) -> None:  # pragma: no cover - the child
        cut = self._cut._replace(number=self._cut.number + self.children)
        self._feed = DocumentReader(self._shipped.plan(), cut, self._recorder, {}, self._guarded, self._state)

    def read(
        self, request: tuple[int, int, dict[str, NodeHealth], dict[_Place, str]]
    ) -> ChildReport:  # pragma: no cover - the child
        i, self._feed.walk.row, health, self._killers = request
        self._feed.take_over(health)
        block, (fields, raws) = self.block, self._contents
        self._recorder.begin()
        self._at("", block.ids[i])
        if (why := self._killers.get(("", block.ids[i]))) is not None:
            taken, go = self._feed.unread(block, i, classify_error(PermanentError(why), self._cut.source, "reading it"))
        else:
            taken, go = self._feed.take(block, i, fields[i], raws[i])
        walked = None
        if go is not None:
            go()
            walk = self._feed.walk
            walked = Walked(walk.met, walk.failures, walk.reached, walk.kept)
        fault = self._feed.fault if taken is Taken.UNREAD else None
        recorder = self._recorder
        return ChildReport(
            taken,
            block.versions[i],
            block.fingerprints[i],
            block.read_by_id(i),
            recorder.calls,
            recorder.spooled,
            walked,
            fault,
            health,
            0 if taken is Taken.UNREAD else self._feed.size,
        )

    def _at(self, step: str, id: str) -> None:  # pragma: no cover - the child
        note(f"{step}\0{time.monotonic()}\0{id}")

    def _guarded(self, step: StepNode) -> Callable[[Document], Any]:  # pragma: no cover - the child
        """The step's function; notes what it is called for, and does not call it for whom it kills."""
        fn, name = one_by_one(step, self._share), step.name

        def noted(doc: Document) -> Any:
            if (why := self._killers.get((name, doc.id))) is not None:
                raise PermanentError(why)
            id, origin = doc.id, doc.origin_id
            self._at(name, id)
            out = fn(doc)
            self._at("", origin)
            return each_noted(out, id, origin) if isinstance(out, Iterator) else out

        def each_noted(out: Iterator[Any], id: str, origin: str) -> Iterator[Any]:
            """Each goes on before the next one is made: other steps are called in between."""
            while True:
                self._at(name, id)
                each = next(out, _END)
                self._at("", origin)
                if each is _END:
                    return
                yield each

        return noted


_END: Final = object()


# What a walk says of a document, written down: to be told to the stage later, or by another process.

Call = tuple[str, tuple[Any, ...]]
"""A method of the stage, and its arguments."""


class Recorder:
    """A stage that writes down what it is told; of a large family in a spool.

    Attributes:
        calls: what is not in the spool.
    """

    def __init__(self, spool: Spool | None = None) -> None:
        self._spool = spool or Spool()
        self.calls: list[Call] = []
        self._bytes = 0

    def begin(self) -> None:
        """Another document."""
        self._spool.cut(0)
        self._forget()

    @property
    def spooled(self) -> bool:
        """Return whether calls were written to the spool."""
        return self._spool.size() > 0

    def upsert(self, doc: Document, end: End, branches: str, fields: bytes, before: MissingDelivery | None) -> None:
        only = _named(doc, doc.raw)  # its fields are encoded beside it
        only.only_if_changed = bool(doc.only_if_changed)
        self._bytes += len(fields) + len(doc.raw or b"")
        self._note("upsert", only, end, branches, fields, before)

    def dropped(self, doc: Document, *args: Any) -> None:
        self._note("dropped", _named(doc), *args)

    def again(self, doc: Document, wish: RereadRequest) -> None:
        self._note("again", _named(doc), wish)

    def mark(self) -> int:
        """The stage is to be marked too: then it needs less memory for a family."""
        self._write()
        mark = self._spool.size()
        self.calls.append(("mark", ()))
        return mark

    def take_back(self, mark: int) -> None:
        self._spool.cut(mark)
        self._forget()

    def absorb(self, later: Recorder) -> None:
        """Append the calls of another recorder to these."""
        if later.spooled:
            self._write()
            self._spool.append(later._spool)
        self.calls += later.calls
        self._bytes += later._bytes
        self._write_if_much()

    def all_calls(self) -> Iterator[Call]:
        """In their order."""
        if self.spooled:
            yield from self._spool.read()
        yield from self.calls

    def close(self) -> None:
        """It is not needed any more."""
        self._spool.close()

    def _note(self, name: str, *args: Any) -> None:
        self.calls.append((name, args))
        self._write_if_much()

    def _write_if_much(self) -> None:
        if len(self.calls) >= limits.HELD_CHILDREN or self._bytes >= limits.GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if self.calls:
            self._spool.write(self.calls)
            self._forget()

    def _forget(self) -> None:
        self.calls, self._bytes = [], 0


class Spool:
    """A file without a name, made when it is first written to.

    One that is ``shared`` is written by a child process and read by its parent, in turns. After a death the next child
    begins it again.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._fd = _nameless() if shared else -1

    def size(self) -> int:
        """Bytes."""
        return os.fstat(self._fd).st_size if self._fd >= 0 else 0

    def cut(self, size: int) -> None:
        """Forget what is behind so many bytes."""
        if self._fd >= 0:
            os.ftruncate(self._fd, size)

    def write(self, calls: list[Call]) -> None:
        """At its end."""
        self._write(cloudpickle.dumps(calls))

    def append(self, other: Spool) -> None:
        """All of another one, at its end."""
        with other._open() as file:
            while some := file.read(_COPIED_BYTES):
                self._write(some)

    def read(self) -> Iterator[Call]:
        """All that was written, in its order; what one ``write`` took is in memory."""
        with self._open() as file:
            while True:
                try:
                    calls: list[Call] = pickle.load(file)
                except EOFError:
                    return
                yield from calls

    def __reduce__(self) -> tuple[Any, ...]:
        """To a child process, as the same file."""
        return _of_process, (os.getpid(), self._fd)

    def __del__(self) -> None:
        self.close()  # that of a task that failed

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
            self._fd = _nameless()
        os.lseek(self._fd, 0, os.SEEK_END)
        left = memoryview(content)
        while left:
            left = left[os.write(self._fd, left) :]


def _of_process(pid: int, fd: int) -> Spool:
    spool = Spool()
    spool._fd = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    return spool


def _nameless() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


_COPIED_BYTES: Final = limits.MIB


def _named(doc: Document, raw: bytes | None = None) -> Document:
    """Enough of it for an event, to be pickled."""
    return Document.of(doc.id, {}, raw)


def replay(calls: Iterable[Call], stage: Stage) -> None:
    """Tell it what was written down."""
    for name, args in calls:
        getattr(stage, name)(*args)
