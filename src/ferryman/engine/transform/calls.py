"""Calls of a step's function: for one document or several, with a time limit, not more often than its rate."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager, nullcontext
from hashlib import blake2b
from itertools import chain, repeat
from types import FrameType
from typing import Any, Final

import pyarrow as pa

from ferryman import limits
from ferryman.document import Document, is_text
from ferryman.engine.results import StepTimeout
from ferryman.engine.transform.block import Block
from ferryman.errors import Dropped, Interrupted, PermanentError, plain_text, safe_repr, unless_interrupt
from ferryman.plan import Plan, StepNode
from ferryman.plan.calls import is_async
from ferryman.records.families import descends

_LEAST_S: Final = 0.001
"""A timer that is set to no time at all is not set."""


def why_late(step: StepNode) -> str:
    """Return the message for a call that takes too long."""
    return f"step {step.name} took longer than timeout={step.call_timeout_s:g} s"


def in_time(step: StepNode) -> AbstractContextManager[None]:
    """Within what a call of it may take, where that can be interrupted."""
    if step.call_timeout_s is None or not can_interrupt():
        return nullcontext()
    return limited(step.call_timeout_s, why_late(step))


def one_by_one(step: StepNode, share: float = 1.0) -> Callable[[Document], Any]:
    """The step's function, to be called for one document after the other in this thread; one that takes batches gets
    batches of one.

    With a time limit the call is interrupted after that many seconds. What a generator makes is made within the call:
    the time counts in which it works, not that in which what it has made goes on. A call that is stuck in C code cannot
    be interrupted: its process is ended a little later, and isolation finds whose call it was. (Interrupting needs the
    worker's main thread.)

    Args:
        share: of the step's rate, for this task.
    """
    if not step.in_batches and not is_async(step.fn) and step.rate is None and step.call_timeout_s is None:
        return step.fn
    call, limiter = _called(step), RateLimiter(step.rate, share)

    def called(doc: Document) -> Any:
        limiter.wait()
        began = time.monotonic()
        with in_time(step):
            out = call(doc)
        if step.call_timeout_s is None or not can_interrupt() or not isinstance(out, Iterator):
            return out
        return _going_on(out, step.call_timeout_s - (time.monotonic() - began), why_late(step))

    return called


def _going_on(out: Iterator[Any], left_s: float, why: str) -> Iterator[Any]:
    """Continue a call's iterator for the rest of its time."""
    all_ = False
    while not all_:
        began = time.monotonic()
        with limited(max(left_s, _LEAST_S), why):
            found, all_ = few(out)
        left_s -= time.monotonic() - began
        yield from found


def batches(step: StepNode) -> Callable[[list[Document]], list[Any] | Coroutine[Any, Any, list[Any]]]:
    """The step's function, to be called for several documents. It gives an answer for each, in their order, which is an
    exception object where it went wrong for that one alone. Of an ``async def`` it gives a coroutine. The step gets a
    list of its own: it may sort it, or take documents out of it as it goes.

    Raises:
        PermanentError: it returned something else, or another number of answers.
    """
    fn = on_record_batches(step.fn) if step.arrow else step.fn
    if not step.in_batches:
        return _each_alone(fn)

    def called(docs: list[Document]) -> list[Any]:
        return _answers(fn([*docs]), len(docs))

    async def awaited(docs: list[Document]) -> list[Any]:
        return _answers(await fn([*docs]), len(docs))

    return awaited if is_async(step.fn) else called


def _each_alone(fn: Callable[..., Any]) -> Callable[[list[Document]], Any]:
    async def awaited(docs: list[Document]) -> list[Any]:
        return [await fn(docs[0])]

    return awaited if is_async(fn) else lambda docs: [_complete(fn(docs[0]))]


def _called(step: StepNode) -> Callable[[Document], Any]:
    """For one document, in this thread."""
    if not step.in_batches and not is_async(step.fn):
        return step.fn
    several = batches(step)

    def called(doc: Document) -> Any:
        out = several([doc])
        [answer] = _run(out) if isinstance(out, Coroutine) else out
        if isinstance(answer, Exception):
            raise answer
        return answer

    return called


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    from ferryman.engine.transform.event_loop import run  # asyncio would make each start slower

    return run(coroutine)


def _answers(out: Any, count: int) -> list[Any]:
    """One for each document."""
    if isinstance(out, (str, bytes, Mapping, Document)) or not hasattr(out, "__iter__"):
        raise PermanentError(
            f"returned {kind_of(out)}, not a list with an answer for each of its documents: return one for each"
        )
    found = list(out)
    if len(found) != count:
        raise PermanentError(
            f"returned {len(found)} answers for a batch of {count}: return one for each document, in their order, and "
            "None for one that is dropped"
        )
    return [_complete(answer) for answer in found]


def _complete(answer: Any) -> Any:
    """An iterator's documents are made within the call, unless they are many."""
    if not isinstance(answer, Iterator):
        return answer
    try:
        first, all_ = few(answer)
    except BaseException as e:
        error = unless_interrupt(e)
        return error if isinstance(error, Exception) else _raising(error)
    return first if all_ else chain(first, answer)


def _raising(error: BaseException) -> Iterator[Any]:
    raise error
    yield


# Functions of record batches as functions of documents.


def on_record_batches(fn: Callable[..., Any]) -> Callable[[list[Document]], Any]:
    """Called with documents, it calls ``fn`` with a record batch of them. A document is its row then: its fields, and
    ``raw``, are those that the row has; None where its row is missing."""

    def called(docs: list[Document]) -> list[Document | None]:
        given = Given(docs)
        return given.matched(fn(given.batch))

    async def awaited(docs: list[Document]) -> list[Document | None]:
        given = Given(docs)
        return given.matched(await fn(given.batch))

    return awaited if is_async(fn) else called


class Given:
    """Documents as a record batch.

    Attributes:
        batch: columns ``id``, ``raw``, and one for each field that a document has.

    Raises:
        PermanentError: they do not make one.
    """

    def __init__(self, docs: list[Document]) -> None:
        self._docs = docs
        names = dict.fromkeys(name for doc in docs for name in doc.fields)
        if all(doc.fields.get("id", doc.id) == doc.id for doc in docs):
            names.pop("id", None)  # such as a table's rows have it: one column is both
        for name in ("id", "raw"):
            if name in names:
                raise PermanentError(
                    f"a field is called {name!r}, as a column of each record batch is: rename it in a step before this "
                    "one"
                )
        self._values: dict[str, list[Any]] = {name: [doc.fields.get(name) for doc in docs] for name in names}
        raws = pa.array([doc.raw for doc in docs], pa.large_binary())
        columns = [pa.array([doc.id for doc in docs], pa.string()), raws]
        for name, values in self._values.items():
            try:
                columns.append(pa.array(values))
            except Exception as e:  # Arrow's own errors, overflows, and what an object's conversion raises
                raise PermanentError(f"field {name!r} does not make one Arrow column: {plain_text(e)}") from None
        self.batch = pa.RecordBatch.from_arrays(columns, ["id", "raw", *names])

    def matched(self, out: Any) -> list[Document | None]:
        """Each document as its row; None where that is missing.

        Raises:
            PermanentError: what the step returned does not match.
        """
        if not isinstance(out, (pa.RecordBatch, pa.Table)):
            raise PermanentError(f"returned {kind_of(out)}, not a pyarrow.RecordBatch")
        names = out.schema.names
        if "id" not in names:
            raise PermanentError("returned a record batch without its column 'id', by which rows and documents match")
        if len(set(names)) < len(names):
            raise PermanentError("returned a record batch with two columns of one name")
        if isinstance(out, pa.RecordBatch) and self._takes_columns(out):
            return list(self._docs)
        return self._by_row(out)

    def _takes_columns(self, out: pa.RecordBatch) -> bool:
        """Take the columns as they are, if each document has its row, in its place, and each row all fields."""
        given, names = self.batch, [name for name in out.schema.names if name not in ("id", "raw")]
        if not out["id"].equals(given["id"]) or any(out[name].null_count for name in names):
            return False
        columns = []
        for name in names:
            is_given = name in self._values
            if is_given and out[name].equals(given[name]):
                columns.append(self._values[name])
            elif is_given and not _is_exact(given[name].type):
                return False  # of some documents it may be as it was
            else:
                columns.append(out[name].to_pylist())
        raws: list[bytes | None] = [None] * len(self._docs)
        if "raw" in out.schema.names:
            raws = [doc.raw for doc in self._docs] if out["raw"].equals(given["raw"]) else out["raw"].to_pylist()
        rows = zip(*columns, strict=True) if columns else repeat(())
        for doc, raw, row in zip(self._docs, raws, rows, strict=bool(columns)):
            doc.raw = raw
            _set_fields(doc, zip(names, row, strict=True))
        return True

    def _by_row(self, out: pa.RecordBatch | pa.Table) -> list[Document | None]:
        given, names = self.batch, out.schema.names
        loose = [name for name in given.schema.names if name in names and not _is_exact(given.schema.field(name).type)]
        before = given.select(loose).to_pylist() if loose else [{}] * len(self._docs)
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in out.to_pylist():
            rows.setdefault(row.pop("id"), []).append(row)
        found: list[Document | None] = []
        for doc, as_given in zip(self._docs, before, strict=True):
            mine = rows.get(doc.id)
            found.append(_taken(doc, mine.pop(0), as_given) if mine else None)
        for id, left in rows.items():
            if left:
                raise PermanentError(f"returned a row for {id!r} that it was not called with, or a second one")
        return found


def _taken(doc: Document, row: dict[str, Any], as_given: dict[str, Any]) -> Document:
    """The document is its row. A value that the step has left alone stays as it was: Arrow may hold it in other words,
    such as 1.0 for 1, or an object with the names of all."""
    doc.raw = row.pop("raw", None)
    fields = doc.fields
    kept = {name for name, value in as_given.items() if name in fields and row.get(name) == value}
    now = {name: fields[name] if name in kept else value for name, value in row.items()}
    _set_fields(doc, ((name, value) for name, value in now.items() if value is not None or name in kept))
    return doc


def _set_fields(doc: Document, now: Iterable[tuple[str, Any]]) -> None:
    """All but the one that is its id."""
    fields = doc.fields
    has_id = "id" in fields
    fields.clear()
    if has_id:
        fields["id"] = doc.id
    fields.update(now)


def _is_exact(of: pa.DataType) -> bool:
    """Do values of this type come back as they went?"""
    return any(kind(of) for kind in (pa.types.is_string, pa.types.is_large_binary, pa.types.is_boolean))


# The call of a step that a task is in, for what its document tells of it: the idempotency key.


class Calling:
    """Scope of the step call that runs now, one for each task: set before a call and cleared after it.

    Attributes:
        state: id of the state; "" in a preview.
        step: its name; "": no step is being called.
        route: branches of the copying routers so far.
    """

    def __init__(self, plan: Plan, source: str) -> None:
        self.state = ""
        self.step = ""
        self.route = ""
        self._plan = f"{plan.name}\0{plan.version}\0{source}"
        self._block: Block | None = None
        self._row = 0

    def at(self, block: Block, i: int) -> None:
        """The family of this row is walked now."""
        self._block, self._row = block, i

    def key_of(self, doc: Document) -> str | None:
        """32 hex digits, the same on every attempt of this call; None: no step is being called.

        The parts are told apart by NUL, as in ``records.delivery_hash``; the id comes last.
        """
        if not self.step or self._block is None:
            return None
        revision = self._block.revision(self._row)
        parts = (self._plan, self.state, self.step, self.route, doc.version, str(revision), doc.id)
        return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


# Not more calls a second than a rate.

_CATCH_UP_S: Final = 0.1
"""Longest time, in seconds, that is caught up with after calls were late."""


class RateLimiter:
    """Limits how often one task calls a step.

    Its first call waits, too: a task cannot know when the one before it made its last call. So the rate is kept however
    many tasks there are.

    Args:
        rate: as ``durations.per_second`` reads it; None: none.
        share: of the rate, for this task.
    """

    def __init__(self, rate: str | float | None, share: float = 1.0) -> None:
        self._interval_s = 0.0 if rate is None else 1 / (limits.per_second(rate) * share)
        self._next = time.monotonic() + self._interval_s

    def wait_s(self) -> float:
        """Until the next call may begin."""
        return max(0.0, self._next - time.monotonic()) if self._interval_s else 0.0

    def wait(self) -> None:
        """Until it may, and it begins."""
        if self._interval_s:
            while (left := self.wait_s()) > 0:
                time.sleep(left)
            self.begun()

    def begun(self) -> None:
        """A call begins now."""
        if self._interval_s:
            self._next = max(self._next, time.monotonic() - _CATCH_UP_S) + self._interval_s


# What one call of a step returns: documents of one family, looked at as they come, and held all at once if they are
# few.


class Many:
    """More documents than are held at once: the first ones, and those that are still to come.

    Args:
        made: hashes of (route, id) of its children so far.
        route: by which the document came that they are made of.
    """

    def __init__(self, first: list[Document], rest: Iterator[Document], made: set[int], route: str) -> None:
        self._first = iter(first)
        self._rest = rest
        self.made = made
        self.route = route

    def next(self) -> Document | None:
        """The next one; None: there are no more. Raises whatever the step raises."""
        for source in (self._first, self._rest):
            for doc in source:
                return doc
        return None


class Returned:
    """Looks at what the steps of one family's walk return.

    A child's id stands as 64 bits of hash: as text, those of a million would take ten times the memory, and that two of
    a million have the same hash is as likely as 1 in 10⁷.

    Args:
        wish: told of each document whether a step wants it again.
    """

    def __init__(self, wish: Callable[[Document], None]) -> None:
        self._wish = wish
        self._made: list[set[int]] = [set()]
        """The last but the first: of calls that are not through yet."""
        self._above: list[set[int]] = []
        """Child keys made above a member that is walked by itself."""

    def beside(self, wish: Callable[[Document], None]) -> Returned:
        """Return the state for a member that is walked by itself."""
        apart = Returned(wish)
        apart._above = [*self._above, *self._made]
        return apart

    def join(self, member: Returned) -> None:
        """It is through."""
        self._made[-1] |= member._made[0]

    def clear(self) -> None:
        """Another family's walk begins."""
        if self._made[0]:
            self._made = [set()]

    def take(self, doc: Document, where: str, route: str, out: Any) -> list[Document] | Many:
        """Check what a step made of this document and return it: at least one document. (``None`` is handled before.)

        Raises:
            Dropped: none.
            PermanentError: something else than documents of this family, or one of them twice.
        """
        if isinstance(out, Document):
            out = [out]
        elif isinstance(out, (str, bytes, Mapping)) or not isinstance(out, Iterable):
            raise PermanentError(f"returned {kind_of(out)}, not the document, None, or an iterable of documents")
        made: set[int] = set()
        each = self._each(doc, route, out, made)
        found, all_ = few(each)
        if not found:
            raise Dropped(f"{where} returned no document")
        if not all_ and not (isinstance(out, Sized) and len(out) == len(found)):
            return Many(found, each, made, route)
        self._made[-1] |= made
        return found

    def begin(self, many: Many) -> None:
        """Start the documents of an iterator that are walked while it still makes others."""
        self._made.append(many.made)

    def end(self, *, failed: bool) -> None:
        """The last that was begun is through; if it has failed, nothing of it was made."""
        made = self._made.pop()
        if not failed:
            self._made[-1] |= made

    def _each(self, doc: Document, route: str, out: Iterable[Any], made: set[int]) -> Iterator[Document]:
        id, itself = doc.id, False
        documents = iter(out)
        while True:
            try:
                each = next(documents, _END)
            finally:
                doc.id = id  # its id is the source's, whatever a step does to the object
            if each is _END:
                return
            if not isinstance(each, Document):
                raise PermanentError(f"returned a {type(each).__name__} among its documents")
            if not isinstance(each.id, str) or not is_text(each.id):
                raise PermanentError(
                    f"returned a document with the id {safe_repr(each.id)}, which is not text that is whole"
                )
            if not descends(each.id, id):
                raise PermanentError(
                    f"returned a document of another id, {each.id!r}: make children with document.child()"
                )
            if each.id == id:
                if itself:
                    raise PermanentError("returned the document itself twice: give each child a key of its own")
                itself = True
            else:
                name = hash((route, each.id))
                if name in made or any(name in names for names in (*self._above, *self._made)):
                    raise PermanentError(
                        f"returned two children of one key, {each.id!r}: give each child a key of its own"
                    )
                made.add(name)
            self._wish(each)
            yield each


def kind_of(out: Any) -> str:
    """Return in words what a step returned."""
    return "None" if out is None else f"a {type(out).__name__}"


def few(documents: Iterator[Document]) -> tuple[list[Document], bool]:
    """Read up to HELD_CHILDREN; also whether the iterator is exhausted."""
    found, size = [], 0
    for doc in documents:
        found.append(doc)
        size += _size(doc)
        if len(found) >= limits.HELD_CHILDREN or size >= limits.GROUP_BYTES:
            return found, False
    return found, True


def _size(doc: Any) -> int:
    """Bytes of its content, about; a step may return anything."""
    if not isinstance(doc, Document):
        return 0
    return len(doc.raw or b"") + sum(len(value) for value in doc.fields.values() if isinstance(value, (str, bytes)))


_END: Final = object()


# What interrupts calls of other people's code: a time limit, and a signal that asks this process to stop.

_GRACE_S: Final = 2.0
"""How long a call may go on after it was interrupted; then its process is ended."""


def can_interrupt() -> bool:
    """Return whether this thread can be interrupted by a signal."""
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def limited(limit_s: float, why: str) -> Iterator[None]:
    """Interrupt the block after ``limit_s`` seconds. Code that is stuck in C cannot be interrupted: its process is
    ended a little later.

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
    """Let the block tell a signal that asks this process to stop (Ctrl-C) from a ``KeyboardInterrupt`` raised by the
    code itself: where a signal's handler raises one, ``Interrupted`` is raised instead."""
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

# A fork has the state of its parent's watch, and not its thread: to set or cancel one, it would wait for that for ever.
os.register_at_fork(before=faulthandler.cancel_dump_traceback_later, after_in_parent=lambda: _end_at(_until))
