"""Calls of a step's function: for one document or several, within a time limit, and limited to a rate."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from hashlib import blake2b
from itertools import chain, repeat
from types import FrameType
from typing import Any, Final, NamedTuple, Self

import msgspec
import pyarrow as pa

from ferryman import limits
from ferryman.document import Document, are_finite, encode_fields, is_text, replace_nan
from ferryman.engine.results import StepTimeout
from ferryman.engine.transform.block import Block
from ferryman.errors import Dropped, Interrupted, PermanentError, plain_text, safe_repr, unless_interrupt
from ferryman.plan import Plan, StepNode
from ferryman.plan.calls import is_async
from ferryman.records.families import descends
from ferryman.sources.arrow import row_maker

_LEAST_S: Final = 0.001
"""Shortest timer, in seconds; setting a timer to zero would disable it."""


class WrongReturn(PermanentError):
    """Raised if a step did not return what its way of being called asks for: its code is to blame, not a document."""


def timeout_message(step: StepNode) -> str:
    """Return the message for a call that takes too long."""
    return f"step {step.name} took longer than timeout={step.call_timeout_s:g} s"


def time_limit(step: StepNode) -> AbstractContextManager[None]:
    """Return a context that interrupts a call when its time limit has passed, if calls can be interrupted in this
    thread."""
    if step.call_timeout_s is None or not can_interrupt():
        return nullcontext()
    return interrupt_after(step.call_timeout_s, timeout_message(step))


def make_document_call(step: StepNode, share: float = 1.0) -> Callable[[Document], Any]:
    """Return a function that calls the step for one document at a time in this thread; a step that takes batches gets
    batches of one.

    A call is interrupted when its time limit has passed. If it returns a generator, the time that the generator runs
    counts too, but not the time in which its documents are walked. A call stuck in C code cannot be interrupted: its
    process is killed a little later, and isolation mode then finds the document to blame. Interrupting works only in
    the worker's main thread.

    Args:
        share: this task's share of the step's rate.
    """
    if not step.in_batches and not is_async(step.fn) and step.rate is None and step.call_timeout_s is None:
        return step.fn
    call, limiter = _plain_document_call(step), RateLimiter(step.rate, share)

    def call_step(doc: Document) -> Any:
        limiter.wait()
        began = time.monotonic()
        with time_limit(step):
            out = call(doc)
        if step.call_timeout_s is None or not can_interrupt() or not isinstance(out, Iterator):
            return out
        return _continue_within(out, step.call_timeout_s - (time.monotonic() - began), timeout_message(step))

    return call_step


def _continue_within(out: Iterator[Any], left_s: float, why: str) -> Iterator[Any]:
    """Yield from the iterator that a call returned, within the rest of the call's time."""
    exhausted = False
    while not exhausted:
        began = time.monotonic()
        with interrupt_after(max(left_s, _LEAST_S), why):
            documents, exhausted = take_buffer(out)
        left_s -= time.monotonic() - began
        yield from documents


def make_batch_call(step: StepNode) -> Callable[[list[Document]], list[Any] | Coroutine[Any, Any, list[Any]]]:
    """Return a function that calls the step for several documents.

    The function returns one answer per document, in order; an exception object means that this document failed. For an
    ``async def`` it returns a coroutine. The step receives a list of its own, which it may modify.

    Raises:
        PermanentError: the step returned something else, or the wrong number of answers.
    """
    fn = with_record_batches(step.fn) if step.arrow else step.fn
    if not step.in_batches:
        return _single_document_batches(fn)

    def call_step(docs: list[Document]) -> list[Any]:
        return _check_answers(fn([*docs]), len(docs))

    async def await_step(docs: list[Document]) -> list[Any]:
        return _check_answers(await fn([*docs]), len(docs))

    return await_step if is_async(step.fn) else call_step


def _single_document_batches(fn: Callable[..., Any]) -> Callable[[list[Document]], Any]:
    async def await_step(docs: list[Document]) -> list[Any]:
        return [await fn(docs[0])]

    return await_step if is_async(fn) else lambda docs: [_complete_answer(fn(docs[0]))]


def _plain_document_call(step: StepNode) -> Callable[[Document], Any]:
    """Return a function that calls the step for one document, in this thread, without limits."""
    if not step.in_batches and not is_async(step.fn):
        return step.fn
    call_batch = make_batch_call(step)

    def call_step(doc: Document) -> Any:
        out = call_batch([doc])
        [answer] = _run_coroutine(out) if isinstance(out, Coroutine) else out
        if isinstance(answer, Exception):
            raise answer
        return answer

    return call_step


def _run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    from ferryman.engine.transform.event_loop import run  # asyncio would make each start slower

    return run(coroutine)


def _check_answers(out: Any, count: int) -> list[Any]:
    """Return the answers as a list, one per document; raise if their number is wrong."""
    if isinstance(out, (str, bytes, Mapping, Document)) or not hasattr(out, "__iter__"):
        raise WrongReturn(
            f"returned {describe_type(out)}, not a list with an answer for each of its documents: return one for each"
        )
    answers = list(out)
    if len(answers) != count:
        raise WrongReturn(
            f"returned {len(answers)} answers for a batch of {count}: return one for each document, in their order, "
            "and None for one that is dropped"
        )
    return [_complete_answer(answer) for answer in answers]


def _complete_answer(answer: Any) -> Any:
    """If the answer is an iterator, consume it within the call, unless it yields too many documents."""
    if not isinstance(answer, Iterator):
        return answer
    try:
        first, exhausted = take_buffer(answer)
    except BaseException as e:
        error = unless_interrupt(e)
        return error if isinstance(error, Exception) else _raise_later(error)
    return first if exhausted else chain(first, answer)


def _raise_later(error: BaseException) -> Iterator[Any]:
    raise error


# Steps that take record batches, called with documents.


def with_record_batches(fn: Callable[..., Any]) -> Callable[[list[Document]], Any]:
    """Return a function of documents that calls ``fn`` with a record batch made of them.

    Each document gets the fields and ``raw`` of its row in the returned batch; if the row is missing, the answer for
    the document is None.
    """

    def call_step(docs: list[Document]) -> list[Document | None]:
        given = DocumentBatch.of(docs)
        return given.match(fn(given.batch))

    async def await_step(docs: list[Document]) -> list[Document | None]:
        given = DocumentBatch.of(docs)
        return given.match(await fn(given.batch))

    return await_step if is_async(fn) else call_step


class EncodedRows(NamedTuple):
    """Contents of a call's documents, as a destination gets them: fields as JSON, and raw bytes."""

    fields: list[bytes]
    raws: list[bytes | None]


class _Columns(NamedTuple):
    """Fields of a returned batch with a row for each document, in their order, and every field in every row.

    Attributes:
        types: type of each column; None: the step has not changed it, so that its values are those that were given.
    """

    names: list[str]
    values: list[list[Any]]
    types: list[pa.DataType | None]
    raws: list[bytes | None]


class DocumentBatch:
    """Documents as a record batch.

    Args:
        fields: fields of each document, which they keep.
        versions: their versions, for documents that are made later.

    Attributes:
        batch: columns ``id``, ``raw``, and one for each field that a document has.

    Raises:
        PermanentError: the documents cannot be converted to a record batch.
    """

    def __init__(
        self, ids: list[str], fields: list[dict[str, Any]], raws: list[bytes | None], versions: Sequence[str] = ()
    ) -> None:
        self._ids, self._fields, self._raws, self._versions = ids, fields, raws, versions
        self._docs: list[Document] = []
        names = dict.fromkeys(chain.from_iterable(fields))
        self._with_id = 0
        """Documents that have their id as a field, too."""
        if "id" in names and all(given.get("id", id) == id for id, given in zip(ids, fields, strict=True)):
            names.pop("id")  # as in rows of a table: one column is both field and id
            self._with_id = sum("id" in given for given in fields)
        for name in ("id", "raw"):
            if name in names:
                raise PermanentError(
                    f"a field is called {name!r}, as a column of each record batch is: rename it in a step before this "
                    "one"
                )
        self._values: dict[str, list[Any]] = {name: [given.get(name) for given in fields] for name in names}
        columns = [pa.array(ids, pa.string()), pa.array(raws, pa.large_binary())]
        for name, values in self._values.items():
            try:
                columns.append(pa.array(values))
            except Exception as e:  # errors of Arrow, overflows, and whatever an object's conversion raises
                raise PermanentError(f"field {name!r} does not make one Arrow column: {plain_text(e)}") from None
        self.batch = pa.RecordBatch.from_arrays(columns, ["id", "raw", *names])

    @classmethod
    def of(cls, docs: list[Document]) -> Self:
        """Return the batch of these documents."""
        batch = cls([doc.id for doc in docs], [doc.fields for doc in docs], [doc.raw for doc in docs])
        batch._docs = docs
        return batch

    @property
    def docs(self) -> list[Document]:
        """The documents; made when they are first asked for."""
        if not self._docs:
            self._docs = list(map(Document.of, self._ids, self._fields, self._raws, self._versions))
        return self._docs

    def match(self, out: Any) -> list[Document | None]:
        """Return each document with the content of its row; None in place of a document whose row is missing.

        Raises:
            PermanentError: the batch that the step returned does not match the documents.
        """
        if (columns := self._columns_of(out)) is None:
            return self._apply_rows(out)
        rows = zip(*columns.values, strict=True) if columns.values else repeat(())
        for doc, raw, row in zip(self.docs, columns.raws, rows, strict=bool(columns.values)):
            doc.raw = raw
            _set_fields(doc, zip(columns.names, row, strict=True))
        return list(self.docs)

    def encode(self, out: Any) -> EncodedRows | None:
        """Return the content that each document has after ``match``, as ``encode_fields`` encodes it, without making
        documents; None: they are needed.

        Raises:
            PermanentError: see ``match``.
        """
        columns = self._columns_of(out)
        if columns is None or self._with_id not in (0, len(self._ids)) or not _are_bytes(columns.raws):
            return None
        changed = [
            (kind, values) for kind, values in zip(columns.types, columns.values, strict=True) if kind is not None
        ]
        if not all(_is_plain_column(kind, values) for kind, values in changed):
            return None
        values_by_name = dict(zip(columns.names, columns.values, strict=True))
        if self._with_id:
            values_by_name["id"] = self._ids
        if not values_by_name:
            return EncodedRows([encode_fields({})] * len(self._ids), columns.raws)
        names = sorted(values_by_name)
        rows = map(row_maker(names), *[values_by_name[name] for name in names])
        try:
            return EncodedRows(list(map(_encode_row, rows)), columns.raws)
        except Exception:  # the walk says which document it is
            return None

    def _columns_of(self, out: Any) -> _Columns | None:
        """Return what the step returned by columns; None: rows are missing, in another order, or without some fields.

        Raises:
            PermanentError: see ``match``.
        """
        if not isinstance(out, (pa.RecordBatch, pa.Table)):
            raise WrongReturn(f"returned {describe_type(out)}, not a pyarrow.RecordBatch")
        if "id" not in out.schema.names:
            raise WrongReturn("returned a record batch without its column 'id', by which rows and documents match")
        if len(set(out.schema.names)) < len(out.schema.names):
            raise WrongReturn("returned a record batch with two columns of one name")
        given, names = self.batch, [name for name in out.schema.names if name not in ("id", "raw")]
        if not isinstance(out, pa.RecordBatch) or not out["id"].equals(given["id"]):
            return None
        if any(out[name].null_count for name in names):
            return None
        # unchanged columns keep their Python values, since Arrow may represent them differently
        columns = _Columns(names, [], [], [None] * len(self._ids))
        for name in names:
            is_given = name in self._values
            if is_given and out[name].equals(given[name]):
                columns.values.append(self._values[name])
                columns.types.append(None)
            elif is_given and not _round_trips(given[name].type):
                return None  # of some documents it may be as it was
            else:
                columns.values.append(out[name].to_pylist())
                columns.types.append(out[name].type)
        if "raw" in out.schema.names:
            return columns._replace(raws=self._raws if out["raw"].equals(given["raw"]) else out["raw"].to_pylist())
        return columns

    def _apply_rows(self, out: pa.RecordBatch | pa.Table) -> list[Document | None]:
        given, names = self.batch, out.schema.names
        loose = [
            name for name in given.schema.names if name in names and not _round_trips(given.schema.field(name).type)
        ]
        before = given.select(loose).to_pylist() if loose else [{}] * len(self.docs)
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in out.to_pylist():
            rows.setdefault(row.pop("id"), []).append(row)
        matched: list[Document | None] = []
        for doc, as_given in zip(self.docs, before, strict=True):
            doc_rows = rows.get(doc.id)
            matched.append(_apply_row(doc, doc_rows.pop(0), as_given) if doc_rows else None)
        for id, left in rows.items():
            if left:
                raise WrongReturn(f"returned a row for {id!r} that it was not called with, or a second one")
        return matched


def _apply_row(doc: Document, row: dict[str, Any], as_given: dict[str, Any]) -> Document:
    """Set the document's content to that of its row.

    Values that the step did not change stay the same objects, since Arrow may represent them differently: 1.0 for 1, or
    an object with the fields of all rows.
    """
    doc.raw = row.pop("raw", None)
    fields = doc.fields
    kept = {name for name, value in as_given.items() if name in fields and row.get(name) == value}
    now = {name: fields[name] if name in kept else value for name, value in row.items()}
    _set_fields(doc, ((name, value) for name, value in now.items() if value is not None or name in kept))
    return doc


def _set_fields(doc: Document, now: Iterable[tuple[str, Any]]) -> None:
    """Set all fields except the one that is the id."""
    fields = doc.fields
    has_id = "id" in fields
    fields.clear()
    if has_id:
        fields["id"] = doc.id
    fields.update(now)


def _round_trips(of: pa.DataType) -> bool:
    """Return whether values of this type survive a conversion to Arrow and back unchanged."""
    return any(kind(of) for kind in (pa.types.is_string, pa.types.is_large_binary, pa.types.is_boolean))


def _are_bytes(raws: list[Any]) -> bool:
    return all(raw is None or type(raw) is bytes for raw in raws)


def _is_plain_column(kind: pa.DataType, values: list[Any]) -> bool:
    """Return whether JSON holds all these values of a type as they are: text, integers, booleans, finite numbers, and
    lists of these."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        if kind.value_type.num_fields:
            return False
        return all(_is_plain_column(kind.value_type, [each for each in value if each is not None]) for value in values)
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return are_finite(values)
    return any(of(kind) for of in _PLAIN_TYPES)


_encode_row = msgspec.json.Encoder(order="sorted").encode

_PLAIN_TYPES: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_integer,
    pa.types.is_boolean,
)


# The step call that is running in a task: its document reads the idempotency key from it.


class CallScope:
    """State of the step call that is running now, one object per task; set before a call and cleared after it.

    Attributes:
        state: id of the state; "" in a preview.
        step: name of the step; "": none is being called.
        route: branches of the copying routers so far.
    """

    def __init__(self, plan: Plan, source: str) -> None:
        self.state = ""
        self.step = ""
        self.route = ""
        self._plan = f"{plan.name}\0{plan.version}\0{source}"
        self._block: Block | None = None
        self._row = 0

    def copy(self) -> CallScope:
        """Return a scope for another walk of the task."""
        scope = CallScope.__new__(CallScope)
        scope.__dict__.update(self.__dict__)
        return scope

    def at(self, block: Block, i: int) -> None:
        """Set the row whose family is walked from now on."""
        self._block, self._row = block, i

    def key_of(self, doc: Document) -> str | None:
        """Return the idempotency key: 32 hex digits, the same for every attempt of this call; None: no step is being
        called.

        Its parts are separated by NUL, with the id last, as in ``records.rows.hasher``.
        """
        if not self.step or self._block is None:
            return None
        revision = self._block.revision(self._row)
        parts = (self._plan, self.state, self.step, self.route, doc.version, str(revision), doc.id)
        return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


# Limiting the rate of calls.

_CATCH_UP_S: Final = 0.1
"""Longest delay, in seconds, that later calls may make up for by following each other faster."""


class RateLimiter:
    """Limits how often one task calls a step.

    The first call waits too, because a task does not know when the previous task made its last call. So the rate is
    never exceeded, however many tasks there are.

    Args:
        rate: rate as ``limits.per_second`` parses it; None: no limit.
        share: this task's share of the rate.
    """

    def __init__(self, rate: str | float | None, share: float = 1.0) -> None:
        self._interval_s = 0.0 if rate is None else 1 / (limits.per_second(rate) * share)
        self._next = time.monotonic() + self._interval_s

    def wait_s(self) -> float:
        """Return the seconds until the next call may begin."""
        return max(0.0, self._next - time.monotonic()) if self._interval_s else 0.0

    def wait(self) -> None:
        """Wait until the next call may begin, and count it as begun."""
        if self._interval_s:
            while (left := self.wait_s()) > 0:
                time.sleep(left)
            self.note_call()

    def note_call(self) -> None:
        """Record that a call begins now."""
        if self._interval_s:
            self._next = max(self._next, time.monotonic() - _CATCH_UP_S) + self._interval_s


# Documents that one call of a step returns: checked one by one, and held in memory if they are few.


class DocumentStream:
    """Documents that a step is still producing, more than are held in memory: the first ones, and an iterator of the
    rest.

    Args:
        made_keys: hashes of (route, id) of the children made so far.
        route: route by which the parent document came.
    """

    def __init__(self, first: list[Document], rest: Iterator[Document], made_keys: set[int], route: str) -> None:
        self._first = iter(first)
        self._rest = rest
        self.made_keys = made_keys
        self.route = route

    def next(self) -> Document | None:
        """Return the next document; None: there are no more. Raises whatever the step raises."""
        for source in (self._first, self._rest):
            for doc in source:
                return doc
        return None


class ReturnChecker:
    """Checks the documents that the steps of one family's walk return.

    Ids of children are remembered as 64-bit hashes. Text would take ten times the memory for a million children, among
    which two hashes collide with a probability of 1 in 10⁷.

    Args:
        check_request: called with each document, to find requests to read it again later.
    """

    def __init__(self, check_request: Callable[[Document], None]) -> None:
        self._check_request = check_request
        self._made_keys: list[set[int]] = [set()]
        """Hashes of children by stream; all sets but the first belong to streams that have not ended."""
        self._keys_above: list[set[int]] = []
        """Hashes of children made before a member was walked separately, by the walks above it."""

    def fork(self, check_request: Callable[[Document], None]) -> ReturnChecker:
        """Return a checker for a member that is walked separately."""
        apart = ReturnChecker(check_request)
        apart._keys_above = [*self._keys_above, *self._made_keys]
        return apart

    def merge(self, member: ReturnChecker) -> None:
        """Add the children of a member that was walked separately."""
        self._made_keys[-1] |= member._made_keys[0]

    def clear(self) -> None:
        """Forget all children, to begin another family's walk."""
        if self._made_keys[0]:
            self._made_keys = [set()]

    def check(self, doc: Document, where: str, route: str, out: Any) -> list[Document] | DocumentStream:
        """Check what a step returned for this document, and return at least one document. (``None`` is handled by the
        caller.)

        Raises:
            Dropped: no document was returned.
            PermanentError: it returned something other than documents of this family, or one of them twice.
        """
        if isinstance(out, Document):
            out = [out]
        elif isinstance(out, (str, bytes, Mapping)) or not isinstance(out, Iterable):
            raise PermanentError(f"returned {describe_type(out)}, not the document, None, or an iterable of documents")
        made_keys: set[int] = set()
        each = self._check_each(doc, route, out, made_keys)
        if type(out) is list and len(out) <= limits.HELD_CHILDREN:
            documents, exhausted = list(each), True
        else:
            documents, exhausted = take_buffer(each)
        if not documents:
            raise Dropped(f"{where} returned no document")
        if not exhausted and not (isinstance(out, Sized) and len(out) == len(documents)):
            return DocumentStream(documents, each, made_keys, route)
        self._made_keys[-1] |= made_keys
        return documents

    def begin(self, many: DocumentStream) -> None:
        """Begin a stream; its documents are walked while the step is still producing more."""
        self._made_keys.append(many.made_keys)

    def end(self, *, failed: bool) -> None:
        """End the innermost stream; if it failed, its children count as not made."""
        made_keys = self._made_keys.pop()
        if not failed:
            self._made_keys[-1] |= made_keys

    def _check_each(self, doc: Document, route: str, out: Iterable[Any], made_keys: set[int]) -> Iterator[Document]:
        id, itself = doc.id, False
        documents = iter(out)
        while True:
            try:
                each = next(documents, _EXHAUSTED)
            finally:
                doc.id = id  # its id is the source's, whatever a step does to the object
            if each is _EXHAUSTED:
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
                if name in made_keys or any(name in names for names in (*self._keys_above, *self._made_keys)):
                    raise PermanentError(
                        f"returned two children of one key, {each.id!r}: give each child a key of its own"
                    )
                made_keys.add(name)
            self._check_request(each)
            yield each


def with_null_for_nan(answer: Any) -> Any:
    """Replace NaN and the infinite numbers by None in the fields of each document in a step's answer."""
    if isinstance(answer, Document):
        replace_nan(answer.fields)
    elif type(answer) is list:
        for each in answer:
            with_null_for_nan(each)
    elif isinstance(answer, Iterable) and not isinstance(answer, (str, bytes, Mapping)):
        return map(with_null_for_nan, answer)
    return answer


def describe_type(out: Any) -> str:
    """Describe the type of what a step returned."""
    return "None" if out is None else f"a {type(out).__name__}"


def take_buffer(documents: Iterator[Document]) -> tuple[list[Document], bool]:
    """Read up to ``limits.HELD_CHILDREN`` documents; return them, and whether the iterator is exhausted."""
    buffer, size = [], 0
    for doc in documents:
        buffer.append(doc)
        size += content_size(doc)
        if len(buffer) >= limits.HELD_CHILDREN or size >= limits.GROUP_BYTES:
            return buffer, False
    return buffer, True


def content_size(doc: Any) -> int:
    """Return the approximate size of a document in bytes; the step may have returned anything."""
    if not isinstance(doc, Document):
        return 0
    return len(doc.raw or b"") + sum(len(value) for value in doc.fields.values() if isinstance(value, (str, bytes)))


_EXHAUSTED: Final = object()


# Interrupts of user code: by a time limit, or by a signal that asks this process to stop.

_GRACE_S: Final = 2.0
"""Seconds that a call may continue after it was interrupted, before its process is killed."""


def can_interrupt() -> bool:
    """Return whether this thread can be interrupted by a signal."""
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def interrupt_after(limit_s: float, why: str) -> Iterator[None]:
    """Interrupt the block after ``limit_s`` seconds. If it is stuck in C code, its process is killed a little later.

    Raises:
        StepTimeout: with the message ``why``.
    """

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise StepTimeout(why)

    before = signal.signal(signal.SIGALRM, interrupt)
    _exit_process_at(time.monotonic() + limit_s + _GRACE_S)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _exit_process_at(None)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def signals_interrupt() -> Iterator[None]:
    """Convert the ``KeyboardInterrupt`` of a signal that stops this process (Ctrl-C) to ``Interrupted`` within the
    block, to tell it apart from one that the code raises itself."""
    before = {number: signal.getsignal(number) for number in _STOPPING} if can_interrupt() else {}
    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, _interrupting(handler))
    try:
        yield
    finally:
        for number, handler in before.items():
            if callable(handler):
                signal.signal(number, handler)


_STOPPING: Final = (signal.SIGINT, signal.SIGTERM)


def _interrupting(handler: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], Any]:
    def handle(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except KeyboardInterrupt as e:
            raise Interrupted from e

    return handle


def _exit_process_at(until: float | None) -> None:
    """Kill this process at that monotonic time, whatever it is doing; None: cancel that."""
    global _until  # noqa: PLW0603 - one watch a process
    _until = until
    if until is None:
        faulthandler.cancel_dump_traceback_later()
    else:
        left_s = max(_LEAST_S, until - time.monotonic())
        faulthandler.dump_traceback_later(left_s, exit=True, file=_null_device())


def _null_device() -> int:
    """Return a descriptor of the null device, for the traceback of ``faulthandler``: nobody reads it, since the ledger
    names the step."""
    global _null  # noqa: PLW0603 - one open file a process
    if _null is None:
        _null = os.open(os.devnull, os.O_WRONLY)
    return _null


_null: int | None = None
_until: float | None = None

# A forked process inherits the state of its parent's watchdog but not its thread, so setting or cancelling it would
# block.
os.register_at_fork(before=faulthandler.cancel_dump_traceback_later, after_in_parent=lambda: _exit_process_at(_until))
