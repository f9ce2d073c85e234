"""Updates of keys, in the workers: the sorted runs of one range of keys are merged, and each key's state is updated.

A task publishes the names of its files only when they are durable, and only one result per range can be published, so
that of two tasks for a range only one counts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import crash, limits
from ferryman.document import Document, check_size, content_version, decode_fields, encode_fields, encode_value, is_text
from ferryman.engine.keyed.grouping import KeyTask, merge_runs, range_starts
from ferryman.engine.results import (
    OF_NODE,
    TRANSIENT,
    Attempts,
    ErrorKind,
    NodeError,
    StepTimeout,
    Traces,
    classify_error,
)
from ferryman.engine.retries import judge_failure
from ferryman.engine.runner.base import PickledPlan
from ferryman.engine.runner.child import Child, Died, TooLong, exit_if_forked
from ferryman.engine.transform.calls import can_interrupt, interrupt_after, signals_interrupt
from ferryman.errors import BadDocument, Dropped, NoChild, PermanentError, plain_text, safe_repr, unless_interrupt
from ferryman.plan import KeyedNode, Policy, successors
from ferryman.records.keys import (
    CONTRIBUTIONS,
    EXPORTS_FILE,
    KEY_STATE,
    KeyFile,
    KeyRow,
    KeyValues,
    UpdateResult,
    file_stats,
    lane_of,
)
from ferryman.records.rows import LEDGER, UNTOUCHED, RowResult, Status, latest_us, sent_events, table_of, with_traceback
from ferryman.state.journal import Journal
from ferryman.storage.files import StatePath, fsync_folder, path_of, remove
from ferryman.storage.parquet import Part, PartWriter, column_values


class KeyRange(NamedTuple):
    """Input of one task: the sorted runs of a range of keys, and the files with the keys' stored states."""

    number: int
    runs: list[str]
    known: list[KeyFile]


class KeyReport(NamedTuple):
    """A task's report on a keyed node."""

    trouble: str = ""
    """Reason why the node failed as a whole; "" if it did not."""
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class UpdateKeys:
    """Task: update a range of keys."""

    pickled_plan: PickledPlan
    root: str
    node: str
    ranges: int
    wave: int
    now_us: int
    epoch: int
    isolated: bool = False
    """A worker died over it: ``update`` is called in a child process."""

    @signals_interrupt()
    def __call__(self, keys: KeyRange) -> KeyReport:
        plan = self.pickled_plan.fresh_plan() if self.isolated else self.pickled_plan.plan()
        node = next(n for n in plan.nodes if n.name == self.node)
        assert isinstance(node, KeyedNode)
        first = range_starts(self.ranges)[keys.number]
        has_followers = bool(successors(plan.nodes)[node.name])
        output = UpdateOutput(path_of(self.root), self.node, self.wave, self.epoch, first, has_followers=has_followers)
        known = KeyValues(keys.known)
        caller: UpdateCaller = ChildCaller(node) if self.isolated else DirectCaller(node)
        calls = KeyCalls(node, output, caller, self.now_us)
        try:
            process = os.getpid()
            updater = _RangeUpdater(calls, output, known, self.now_us, latest_us(self.now_us, plan.longest_backoff_s))
            report = updater.run(merge_runs(keys.runs))
            exit_if_forked(process)
            result = output.finish(keys.number)
        except BaseException:
            output.abandon()
            raise
        finally:
            known.close()
            caller.end()
        if result.sent or result.withdrawn:
            crash.point("update.staged")
            if not Journal(path_of(self.root) / "journal").publish_update(self.wave, result):
                output.remove(result)
            crash.point("update.result")
        return report


_COLUMNS: Final = (
    *("key", "document", "operation", "fields", "raw", "sequence", "fault", "holds"),
    *("source", "route", "revision", "task", "kept", "previous"),
    *("due", "attempt", "since", "transient"),
)
_CONTENT: Final = ("fields", "raw", "previous")


class _RangeUpdater:
    """Updates the keys of one range."""

    def __init__(self, calls: KeyCalls, output: UpdateOutput, known: KeyValues, now_us: int, latest: int) -> None:
        self._output = output
        self._known = known
        self._calls = calls
        self._states: dict[str, KeyRow] = {}
        self._now_us = now_us
        self._latest = latest

    def run(self, tables: Iterator[pa.Table]) -> KeyReport:
        trouble: NodeTrouble | None = None
        for table in self._small_tables(tables):
            trouble = self._update_table(table)
            if trouble is not None:
                break
        self._calls.close()
        if trouble is None:
            return KeyReport()
        return KeyReport(str(trouble), trouble.permanent)

    def _small_tables(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Yield the rows in tables small enough to be held as Python objects; states are looked up for more rows at
        once."""
        for table in tables:
            whole = table.combine_chunks()
            self._states = self._stored_states(whole)
            for at in range(0, whole.num_rows, limits.KEY_MERGE_INPUT_ROWS):
                yield whole.slice(at, limits.KEY_MERGE_INPUT_ROWS)

    def _update_table(self, table: pa.Table) -> NodeTrouble | None:
        """Update keys by some rows, in order; return the trouble that keeps the remaining rows from being processed, if
        any."""
        known, sequences = self._states, table["sequence"].to_pylist()
        self._calls.begin(sequences)
        trouble = None
        try:
            for key, rows in groupby(self._keyed_rows(table), key=lambda each: each[0]):
                mine = [row for _, row in rows]
                if not self._calls.is_open(key):
                    bucket = table["bucket"][mine[0].at].as_py()
                    self._calls.open(key, bucket, known.get(key))
                self._calls.update(mine, self._now_us)
        except NodeTrouble as e:
            trouble = e
            if e.blameless:
                self._calls.begin(sequences)
        self._output.add_events(table, self._calls.results)
        return trouble

    def _stored_states(self, table: pa.Table) -> dict[str, KeyRow]:
        buckets = table["bucket"]
        keys = pc.unique(table["key"])
        return self._known.of(keys, buckets[0].as_py(), buckets[table.num_rows - 1].as_py())

    def _keyed_rows(self, table: pa.Table) -> Iterator[tuple[str, KeyedRow]]:
        """Yield (key, row) in order; a due time that a wrong clock has set too far ahead counts as due now."""
        columns: Sequence[list[Any]] = [column_values(table[name]) for name in _COLUMNS]
        lengths = [pc.fill_null(pc.binary_length(table[name]), 0).cast(pa.int64()) for name in _CONTENT]
        sizes = pc.add(pc.add(lengths[0], lengths[1]), lengths[2]).to_pylist()
        for at, (key, *row, due, attempt, since, transient) in enumerate(zip(*columns, strict=True)):
            due = 0 if due is not None and due > self._latest else due
            yield key, KeyedRow._make((at, *row, due, attempt, since, transient, sizes[at]))


# Check of what ``update`` returns: a state that JSON can hold, and documents to export.


class Export(NamedTuple):
    """A document to export, encoded."""

    key: str
    document: str
    operation: str
    fields: bytes | None
    raw: bytes | None
    version: str


def check_answer(key: str, given: Any) -> tuple[str | None, list[Export]]:
    """Check what ``update`` returned; return the new state as JSON (None: the key has no state), and the exports.

    Raises:
        PermanentError: it is not a pair of state and exports.
    """
    if not isinstance(given, tuple) or len(given) != 2:
        raise PermanentError(f"returned a {type(given).__name__}: return a pair: the new state, and what to export")
    state, exports = given
    return _encode_state(state), [_check_export(key, each) for each in _each_export(exports)]


def _encode_state(state: Any) -> str | None:
    if state is None:
        return None
    try:
        encoded = encode_value(state, "a state that")
    except BadDocument as e:
        raise PermanentError(f"returned {e}") from None
    check_size(encoded, None)
    return encoded.decode()


def _each_export(exports: Any) -> Iterator[Any]:
    if exports is None:
        return
    if isinstance(exports, Document | Mapping):
        yield exports
    elif isinstance(exports, Iterable) and not isinstance(exports, str | bytes):
        yield from exports
    else:
        raise PermanentError(f"returned a {type(exports).__name__} to export: give documents, a list of them, or None")


def _check_export(key: str, given: Any) -> Export:
    if not isinstance(given, Document):
        if not isinstance(given, Mapping):
            raise PermanentError(
                f"returned a {type(given).__name__} among its exports: give documents or dicts of fields"
            )
        given = Document.of(key, dict(given))
    id = given.id
    if not isinstance(id, str) or not id:
        raise PermanentError(f"returned an export with the id {safe_repr(id)}: an id is text that is not empty")
    if not is_text(id):
        raise PermanentError(
            f"returned an export with the id {safe_repr(id)}, which has half a character in it (a lone surrogate)"
        )
    if given.operation == "delete":
        return Export(key, id, "delete", None, None, content_version(b"", None))
    fields, raw = encode_fields(given.fields), given.raw
    if raw is not None and not isinstance(raw, bytes):
        raise BadDocument(f"{id} has a {type(raw).__name__} as raw, which must be bytes or None")
    check_size(fields, raw)
    return Export(key, id, "upsert", fields, raw, content_version(fields, raw))


# Callers of ``update``: in this process, or in a child process after a worker has died in a call.
#
# If a call kills the child, only the child is lost. The call is repeated with half of its documents each until the
# document at fault is alone.

UpdateAnswer = tuple[str | None, list[Export]]
"""The new state as JSON, None if there is none, and the exports."""

_decode = msgspec.json.decode


class UpdateCaller(Protocol):
    """Calls a keyed node's ``update``."""

    def call(self, key: str, value: str | None, documents: Sequence[Document]) -> UpdateAnswer:
        """Call ``update`` and return its checked result; its exceptions are raised here.

        Args:
            value: the state as JSON; None: there is none.

        Raises:
            StepTimeout: it took longer than ``timeout=``.
            PermanentError: it returned something invalid, or it kills its process over this single document.
        """
        ...

    def end(self) -> None:
        """End the child process, if there is one."""


class DirectCaller:
    """Calls an ``update`` in this process."""

    def __init__(self, node: KeyedNode) -> None:
        self._node = node
        self._timeout_s = node.timeout if can_interrupt() else None

    def call(self, key: str, value: str | None, documents: Sequence[Document]) -> UpdateAnswer:
        """Call ``update`` in this process, see ``UpdateCaller.call``."""
        state = None if value is None else _decode(value)
        if self._timeout_s is None:
            return check_answer(key, self._node.update(key, state, [*documents]))
        with interrupt_after(self._timeout_s, _timeout_message(self._node)):
            given = self._node.update(key, state, [*documents])
            return check_answer(key, given)  # exports may be a generator, which runs here

    def end(self) -> None:
        """Return at once: there is no child process."""


class ChildCaller:
    """Calls an ``update`` in a child process."""

    def __init__(self, node: KeyedNode) -> None:
        self._node = node
        self._child = Child(partial(_update, node))

    def call(self, key: str, value: str | None, documents: Sequence[Document]) -> UpdateAnswer:
        """Call ``update`` in a child process, see ``UpdateCaller.call``."""
        attempts = self._node.policy.attempts if len(documents) == 1 else 1
        for _ in range(attempts):
            try:
                found: UpdateAnswer = self._child.ask((key, value, [*documents]), self._node.timeout)
                return found
            except TooLong:
                raise StepTimeout(_timeout_message(self._node)) from None
            except Died as e:
                death = e
        raise PermanentError(death.describe(attempts, size=sum(len(doc.raw or b"") for doc in documents)))

    def end(self) -> None:
        """End the child process."""
        self._child.end()


def _update(node: KeyedNode, request: tuple[str, str | None, list[Document]]) -> Any:  # pragma: no cover - the child
    key, value, documents = request
    return check_answer(key, node.update(key, None if value is None else _decode(value), documents))


def _timeout_message(node: KeyedNode) -> str:
    return f"it took longer than timeout={node.timeout:g} s"


# Calls of ``update``, key by key, each with as many of the key's documents as a call may get, in order.
#
# A call that raises is repeated with half of its documents each until the document at fault is alone. Only that one
# fails, or is dropped; those after one that failed wait, because the state that they build on does not exist yet.

_UNEXPLAINED: Final = (ErrorKind.UNFORESEEN, ErrorKind.CONNECTION)
"""Kinds of errors for which the node itself may be at fault."""


class NodeTrouble(Exception):
    """Raised if ``update`` itself is in trouble; documents that it was not called for wait."""

    def __init__(self, why: str, *, permanent: bool, blameless: bool) -> None:
        super().__init__(why)
        self.permanent = permanent
        self.blameless = blameless
        """Whether the documents that failed in this task are not to blame either."""


class KeyedRow(NamedTuple):
    """A document of the key that is being updated."""

    at: int
    """Row number in the current table."""
    document: str
    operation: str
    fields: bytes | None
    raw: bytes | None
    sequence: int
    fault: str | None
    holds: bool
    source: str
    route: str
    revision: int
    task: str
    kept: bool
    previous: bytes | None
    due: int | None
    attempt: int
    since: int | None
    transient: int | None
    size: int
    """Bytes of its content."""

    @property
    def tries(self) -> Attempts:
        return Attempts(self.attempt, self.since, self.transient)

    @property
    def counts_in_state(self) -> bool:
        """Return whether the key's state contains the document after this call."""
        return self.task == KeyTask.COUNT and self.operation == "upsert"

    def as_document(self) -> Document:
        """Return the document that ``update`` receives for this row."""
        if self.counts_in_state:
            doc = Document.of(self.document, decode_fields(self.fields or b"{}"), self.raw)
        else:
            doc = Document.deletion(self.document)
        if self.previous is not None:
            doc.previous = decode_fields(self.previous)
        return doc


class KeyCalls:
    """Calls ``update`` for one key after another.

    Attributes:
        results: result of each row of the current table: None if it was counted; see ``UpdateOutput.add_events``.
    """

    def __init__(self, node: KeyedNode, output: UpdateOutput, caller: UpdateCaller, now_us: int) -> None:
        self._node = node
        self._caller = caller
        self._output = output
        self._now_us = now_us
        self._traces = Traces()
        self._failures = self._successes = 0
        self._key: str | None = None
        self.results: list[RowResult | None] = []

    def begin(self, sequences: Sequence[int]) -> None:
        """Begin a table with rows of these sequences; each waits until it gets a result."""
        self.results = [RowResult(sequence, UNTOUCHED, "", 0, None) for sequence in sequences]

    def is_open(self, key: str) -> bool:
        """Return whether documents of this key are being updated."""
        return self._key == key

    def open(self, key: str, bucket: int, known: KeyRow | None) -> None:
        """Begin a key; the following documents belong to it."""
        self.close()
        self._key, self._bucket = key, bucket
        self._before = self._value = None if known is None else known.value
        self._sequence = 0 if known is None else known.sequence
        self._held = False

    def close(self) -> None:
        """End the key, and write its state as the last call returned it, if that changed."""
        if self._key is not None and self._value != self._before:
            self._output.add_state(self._key, self._value, self._sequence, self._bucket)
        self._key = None

    def update(self, rows: Sequence[KeyedRow], due_us: int) -> None:
        """Update the key with some documents, in their order.

        Args:
            due_us: if no row is due by this time, µs since 1970, all of them wait.
        """
        self._held = self._held or not any(row.due is not None and row.due <= due_us for row in rows)
        # a row without a due time failed permanently, and holds back the rows behind it
        batch: list[KeyedRow] = []
        size = 0
        for row in rows:
            if batch and (size + row.size > self._node.buffer_bytes or row.fault or row.due is None):
                self._call(batch)
                batch, size = [], 0
            self._held = self._held or row.due is None
            if self._held:
                return
            if row.task == KeyTask.NOTHING:
                self.results[row.at] = None
                continue
            if row.fault:
                self._note_failed(row, NodeError(ErrorKind.UNFORESEEN, self._node.name, row.fault))
                continue
            batch.append(row)
            size += row.size
        if batch:
            self._call(batch)

    def _call(self, rows: Sequence[KeyedRow]) -> None:
        if self._held:
            return
        assert self._key is not None
        try:
            value, exports = self._caller.call(self._key, self._value, [row.as_document() for row in rows])
        except Dropped as e:
            if len(rows) > 1:
                self._call_halves(rows)
            else:
                self._note_dropped(rows[0], plain_text(e) or f"dropped by {self._node.name}")
        except NoChild:  # no document is to blame
            raise
        except BaseException as e:
            self._retry_halves(rows, unless_interrupt(e))
        else:
            self._value, self._sequence = value, max(self._sequence, rows[-1].sequence)
            self._successes += 1
            self._output.add_exports(exports)
            for row in rows:
                self._note_counted(row)

    def _note_counted(self, row: KeyedRow) -> None:
        """Record that the key's state now includes this document, or no longer does."""
        assert self._key is not None
        if row.task == KeyTask.WITHDRAW:
            self._output.withdrawn += 1  # its new key has yet to count it
        else:
            self.results[row.at] = None
        if row.kept:
            whose = (row.source, row.document, row.route, row.revision)
            self._output.add_contribution(
                self._key, whose, (row.fields or b"{}") if row.counts_in_state else None, self._bucket
            )

    def _note_dropped(self, row: KeyedRow, why: str) -> None:
        self._successes += 1
        self.results[row.at] = RowResult(row.sequence, Status.DROPPED, why, row.tries.attempt + 1, None)

    def _call_halves(self, rows: Sequence[KeyedRow]) -> None:
        half = len(rows) // 2
        self._call(rows[:half])
        self._call(rows[half:])

    def _retry_halves(self, rows: Sequence[KeyedRow], error: Any) -> None:
        fault = classify_error(error, self._node.name, f"update of {self._node.name}", traces=self._traces)
        if fault.kind in OF_NODE:
            raise NodeTrouble(fault.text, permanent=fault.kind is ErrorKind.MISCONFIGURED, blameless=False)
        if len(rows) > 1:
            self._call_halves(rows)
        else:
            self._note_failed(rows[0], fault)

    def _note_failed(self, row: KeyedRow, fault: NodeError) -> None:
        """Record that this document failed. Those behind it wait, unless it failed permanently and its source lets
        later ones pass."""
        self._failures += fault.kind in _UNEXPLAINED
        if self._is_broken(fault):
            why = f"{fault.text}. So did the first {self._failures} calls, and none succeeded"
            raise NodeTrouble(why, permanent=fault.kind is ErrorKind.UNFORESEEN, blameless=True)
        self.results[row.at] = result = failed_row(row.sequence, row.tries, fault, self._node.policy, self._now_us)
        self._held = row.holds or result.status == Status.ERROR

    def _is_broken(self, fault: NodeError) -> bool:
        """Return whether ``update`` counts as broken: every call so far has failed, with errors that may be the node's
        own."""
        brake = self._node.brake
        return brake is not None and fault.kind in _UNEXPLAINED and not self._successes and self._failures >= brake


# Output of a task for the keys that it updates: their states, their exports, and the events of their documents.

_ROWS: Final = 16_384
"""Rows that are held in memory as Python objects."""

_DONE: Final = (Status.INDEXED, Status.DROPPED)


def interleave(rows: Sequence[Sequence[Any]], column: int) -> list[Sequence[Any]]:
    """Order rows so that equal values of the column are spread: the first row of each value, then the second of each,
    and so on.

    A chunk has at most one export per key, so spreading the exports of each key makes chunks large.
    """
    turns: Counter[Any] = Counter()
    numbers = []
    for row in rows:
        turns[row[column]] += 1
        numbers.append(turns[row[column]])
    return [rows[at] for at in sorted(range(len(rows)), key=numbers.__getitem__)]


class _DataFile:
    """Data file that is written row by row.

    Args:
        interleave_by: number of the column by which rows are interleaved; None: they stay in order.
    """

    def __init__(self, folder: StatePath, schema: pa.Schema, epoch: int, interleave_by: int | None = None) -> None:
        self._open_writer: Callable[[], PartWriter] = lambda: PartWriter(folder, schema, epoch=epoch)
        self._schema = schema
        self._interleave_by = interleave_by
        self._file: PartWriter | None = None
        self._rows: list[Sequence[Any]] = []
        self._size = 0

    def add(self, row: Sequence[Any], size: int = 0) -> None:
        """Add a row with values in the order of the columns; ``size``: bytes of its content."""
        self._rows.append(row)
        self._size += size
        if len(self._rows) >= _ROWS or self._size >= limits.GROUP_BYTES:
            self._flush()

    def write(self, table: pa.Table) -> None:
        """Write rows that are already a table."""
        if table.num_rows:
            if self._file is None:
                self._file = self._open_writer()
            self._file.write(table)

    def finish(self, stats: dict[str, Any] | None = None) -> Part | None:
        """Return the file, fsynced; None if it has no rows."""
        self._flush()
        return None if self._file is None else self._file.finish(stats)

    def abandon(self) -> None:
        """Delete the unfinished file."""
        if self._file is not None:
            self._file.abandon()

    def _flush(self) -> None:
        if self._rows:
            if self._interleave_by is not None:
                self._rows = interleave(self._rows, self._interleave_by)
            columns = [*map(list, zip(*self._rows, strict=True))]
            self.write(table_of(self._schema, len(self._rows), **dict(zip(self._schema.names, columns, strict=True))))
        self._rows, self._size = [], 0


class UpdateOutput:
    """Output files of one task.

    Args:
        first_bucket: first bucket of the task's range of keys.
        has_followers: whether nodes follow the keyed node; otherwise exports are dropped.
    """

    def __init__(
        self, root: StatePath, node: str, wave: int, epoch: int, first_bucket: int, *, has_followers: bool
    ) -> None:
        self._node = node
        self._wave = wave
        self._lane = lane_of(first_bucket)
        self._has_followers = has_followers
        self._state = _DataFile(root / "state" / node, KEY_STATE, epoch)
        self._exports = _DataFile(root / "exports" / node, EXPORTS_FILE, epoch, EXPORTS_FILE.get_field_index("key"))
        self._ledger = _DataFile(root / "ledger", LEDGER, epoch)
        self._contributions = _DataFile(root / "contributions" / node, CONTRIBUTIONS, epoch)
        self._folders = {name: root / name / node for name in ("state", "exports", "contributions")}
        self._folders["ledger"] = root / "ledger"
        self.withdrawn = 0
        """Number of documents that were withdrawn from a former key."""
        self._buckets: list[int] = []
        self._leaving: Counter[int] = Counter()
        self._counts: Counter[str] = Counter()

    def add_state(self, key: str, value: str | None, sequence: int, bucket: int) -> None:
        """Write a key's new state as JSON; None: the key has no state any more."""
        self._state.add((key, value, sequence, self._wave, bucket), len(value or "") + len(key))
        self._buckets = [min([bucket, *self._buckets]), max([bucket, *self._buckets])]

    def add_contribution(self, key: str, whose: tuple[str, str, str, int], fields: bytes | None, bucket: int) -> None:
        """Write a document's contribution to the key, as JSON; None: it contributes no longer. ``whose``: source, id,
        route, revision."""
        size = len(key) + sum(map(len, whose[:3])) + len(fields or b"")
        self._contributions.add((key, *whose, fields, self._wave, bucket), size)

    def add_exports(self, exports: Sequence[Export]) -> None:
        """Write exports in order, unless no node follows."""
        for each in exports if self._has_followers else ():
            size = len(each.key) + len(each.document) + len(each.fields or b"") + len(each.raw or b"")
            self._exports.add(each, size)  # keys may be large

    def add_events(self, rows: pa.Table, results: Sequence[RowResult | None]) -> None:
        """Write an event for each row of a run that has a result; None counts as INDEXED."""
        noted = [result for result in results if result is not None]
        events = sent_events(rows.rename_columns({"sequence": "row"}), noted, self._node, self._wave)
        self._ledger.write(events)
        touched = [at for at, result in enumerate(results) if result is None or result.status != UNTOUCHED]
        done = [at for at in touched if (result := results[at]) is None or result.status in _DONE]
        files, operations = (rows[name].to_pylist() for name in ("file", "operation"))
        self._leaving.update(dict.fromkeys([files[at] for at in touched], 0))
        self._leaving.update([files[at] for at in done])
        self._counts["deleted"] += sum(results[at] is None and operations[at] == "delete" for at in done)
        self._counts["sent"] += len(touched)
        self._counts["failed"] += sum(result.status in (Status.DEAD, Status.ERROR_DOC) for result in noted)
        self._counts["dropped"] += sum(result.status == Status.DROPPED for result in noted)

    def finish(self, number: int) -> UpdateResult:
        """Finish all files; they and their names are durable when this returns."""
        first, last = self._buckets or (0, 0)
        state = self._state.finish(file_stats((first, last), (self._wave, self._wave)))
        ledger, exports, contributions = (t.finish() for t in (self._ledger, self._exports, self._contributions))
        parts = {"ledger": ledger, "state": state, "exports": exports, "contributions": contributions}
        for name in (name for name, part in parts.items() if part is not None):
            fsync_folder(self._folders[name])
        count = self._counts
        return UpdateResult(
            self._node,
            number,
            self._lane,
            ledger,
            state,
            exports,
            contributions,
            dict(self._leaving),
            count["sent"],
            count["deleted"],
            count["failed"],
            self.withdrawn,
            count["dropped"],
        )

    def remove(self, result: UpdateResult) -> None:
        """Remove the files of this result, because another task has updated these keys first."""
        for name, folder in self._folders.items():
            if (part := getattr(result, name)) is not None:
                remove(folder / part.path)

    def abandon(self) -> None:
        """Delete the unfinished files after an error."""
        for each in (self._state, self._exports, self._ledger, self._contributions):
            each.abandon()


# Meaning of a failed call for its document: retried, failed or rejected.


def failed_row(sequence: int, before: Attempts, fault: NodeError, policy: Policy, now_us: int) -> RowResult:
    """Return the result to record in the journal for a document whose attempt failed."""
    attempt, why = before.attempt + 1, with_traceback(fault.text, fault.trace)
    if fault.kind is ErrorKind.PERMANENT:
        return RowResult(sequence, Status.ERROR_DOC, why, attempt, None)
    failed = judge_failure(before, policy.limits, now_us, transient=fault.kind in TRANSIENT)
    if failed.is_last:
        why = with_traceback(f"{fault.text} (attempt {attempt}, the last)", fault.trace)
        return RowResult(sequence, Status.DEAD, why, attempt, None)
    after = failed.attempts
    return RowResult(sequence, Status.ERROR, why, attempt, failed.next_us(policy, now_us), after.since, after.transient)
