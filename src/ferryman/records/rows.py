"""Columns of the three tables, as users of Spark, DuckDB and Polars find them."""

from __future__ import annotations

import datetime as dt
import enum
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import limits
from ferryman.document import Operation
from ferryman.errors import UsageError
from ferryman.storage.delta import DataFile
from ferryman.storage.parquet import Part

_DELIVERY: Final = [
    pa.field("source", pa.string()),
    pa.field("document", pa.string()),
    pa.field("parent", pa.string()),
    pa.field("origin", pa.string()),
    pa.field("version", pa.string()),
    pa.field("revision", pa.int64()),
    pa.field("operation", pa.string()),
    pa.field("route", pa.string()),
    pa.field("branches", pa.string()),
]

LEDGER: Final = pa.schema(
    [
        *_DELIVERY,
        pa.field("destination", pa.string()),
        pa.field("delivery_hash", pa.string()),
        pa.field("status", pa.string()),
        pa.field("message", pa.string()),
        pa.field("attempt", pa.int64()),
        pa.field("wave", pa.int64()),
        pa.field("ordinal", pa.int64()),
        pa.field("due", pa.int64()),
        pa.field("since", pa.int64()),
        pa.field("transient", pa.int64()),
        pa.field("created", pa.timestamp("us", tz="UTC")),
    ]
)
"""Columns of an event, one row each. ``attempt``: attempts made. ``due``: when an ERROR is retried, µs since 1970, with
``since`` and ``transient`` as in the outbox. Events of a delivery are ordered by (wave, ordinal). An empty
``destination`` means that the event is about the document."""

LEDGER_COLUMNS: Final = [f.name for f in LEDGER if f.name not in ("ordinal", "due", "since", "transient")]
"""Public columns of the ledger, in their public order."""

COUNTING_COLUMNS: Final = (
    *("source", "document", "origin", "revision", "operation", "destination"),
    *("delivery_hash", "status", "message", "wave", "ordinal"),
)
"""Columns of the ledger by which deliveries are counted."""

DOCUMENTS: Final = pa.schema(
    [
        pa.field("source", pa.string()),
        pa.field("document", pa.string()),
        pa.field("version", pa.string()),
        pa.field("revision", pa.int64()),
        pa.field("fingerprint", pa.string()),
        pa.field("operation", pa.string()),
        pa.field("wave", pa.int64()),
        pa.field("given", pa.string()),
        pa.field("due", pa.int64()),
        pa.field("owed", pa.int64()),
        pa.field("failed", pa.string()),
        pa.field("held", pa.string()),
        pa.field("forced", pa.bool_()),
        pa.field("again", pa.int64()),
    ]
)
"""Columns of a document. Of several rows with the same (source, document), the one with the highest ``wave`` counts.
``given``: what was published of its family, JSON; "" if nothing. ``due``: when failed steps are retried (µs since 1970;
null: no step has failed). ``owed``: for how many deliveries. ``failed``: where they failed, JSON; see
``records.families``. ``held``: the nodes in trouble that all of them wait for, one per line; null: they wait only until
they are due. ``forced``: an operator wants the document read again as a new revision. ``again``: when a step wants that
(µs since 1970; null: never)."""

OUTBOX: Final = pa.schema(
    [
        pa.field("wave", pa.int64()),
        pa.field("destination", pa.string()),
        pa.field("first_sequence", pa.int64()),
        pa.field("row", pa.int64()),
        *_DELIVERY,
        pa.field("delivery_hash", pa.string()),
        pa.field("attempt", pa.int64()),
        pa.field("due", pa.int64()),
        pa.field("since", pa.int64()),
        pa.field("transient", pa.int64()),
        pa.field("key_hash", pa.int64()),
        pa.field("fields", pa.binary()),
        pa.field("raw", pa.binary()),
        pa.field("provenance", pa.string()),
    ]
)
"""Columns of a committed delivery that is still in the outbox, one row each. Sequence = ``first_sequence`` + ``row``.
``attempt``: attempts made. ``due``: µs since 1970, 0 = now; null: held for review (dead, rejected, in doubt).
``since``: time of its first transient error, µs since 1970; ``transient``: number of attempts that ended in one; null:
none did. ``key_hash``: for exports of a keyed node, the hash of the key, see ``records.keys.key_hash``; otherwise null.
``fields`` is JSON. ``provenance``: for documents from logs, where they came from, as JSON."""

OUTBOX_PARTITION: Final = ["wave", "destination", "first_sequence"]

OUTBOX_FILE: Final = pa.schema([f for f in OUTBOX if f.name not in OUTBOX_PARTITION])
"""Columns inside an outbox file."""

OUTBOX_CONTENT: Final = ["fields", "raw", "provenance"]
"""Large columns of the outbox."""

OUTBOX_SMALL: Final = [name for name in OUTBOX_FILE.names if name not in OUTBOX_CONTENT]
"""Small columns of the outbox: those of a whole file fit into memory."""

RANGE: Final = "range "
"""Prefix of the version of a range, which no document's version begins with. A range stands for log entries that an
at-most-once plan processed together, and about which nothing more is known. Its row in ``ledger`` is like a
document's."""


# Identity of a delivery: a hash that is the same for every attempt.

DeliveryHash = Callable[[str, str, int], str]
"""(document id, version, revision) -> delivery hash."""


def hasher(
    plan: str, plan_version: int, source: str, destination: str, route: str, operation: Operation
) -> DeliveryHash:
    """Return a function (document id, version, revision) -> delivery hash, 32 hex digits of BLAKE2b-128.

    The parts that all rows of a task share are hashed once. Parts are separated by NUL, which no name, version or
    number contains; the id comes last, so that it may contain anything.
    """
    shared = blake2b(
        "\0".join((plan, str(plan_version), source, destination, route, operation, "")).encode(), digest_size=16
    )

    def delivery_hash(document: str, version: str, revision: int) -> str:
        h = shared.copy()
        h.update(f"{version}\0{revision}\0{document}".encode("utf-8", "surrogatepass"))
        return h.hexdigest()

    return delivery_hash


# Due times. If a clock was once ahead, it must not delay rows for years: a due time further in the future than the
# plan's longest back-off cannot have been set by a correct clock, and counts as due now.


def wait_s(due_us: int, now_us: int, longest_s: float) -> float:
    """Return the seconds until ``due_us``; both times are in µs since 1970.

    Args:
        longest_s: the longest back-off, see ``Plan.longest_backoff_s``.
    """
    return (due_us - now_us) / 1e6 if now_us < due_us <= latest_us(now_us, longest_s) else 0.0


def wait_of_file_s(file: DataFile, now_us: int, longest_s: float) -> float:
    """Return the seconds until the first pending row of an outbox file is due."""
    dues = [int(file.stats.get(kind, {}).get("due", 0)) for kind in ("minValues", "maxValues")]
    return min(wait_s(due, now_us, longest_s) for due in dues)


def is_due_sql(column: str, now_us: int, longest_s: float) -> str:
    """Return SQL that tests whether the due time in a column has come; NULL if the column is NULL."""
    return f"({column} <= {now_us} OR {column} > {latest_us(now_us, longest_s)})"


def latest_us(now_us: int, longest_s: float) -> int:
    """Return the latest valid due time, µs since 1970."""
    return now_us + int(longest_s * 1e6)


def now_us() -> int:
    """Return the wall clock, µs since 1970."""
    return time.time_ns() // 1000


EVENT_ORDER: Final = "wave * 4 + ordinal"
"""SQL that orders the events of a delivery."""

# Ledger events as Arrow tables: made from outbox rows that were sent, or from single values.

ORDINAL_COMMAND: Final = 0
ORDINAL_STEPS: Final = 1
ORDINAL_SENT: Final = 2
"""Order of the events of one wave: first operator commands, then results of steps, then results of sending."""

BINARY_BYTES: Final = (1 << 31) - 1
"""Largest total size of the values in a binary array, which has offsets of 32 bits."""

EVENT_OF_ROW: Final = (
    "source",
    "document",
    "parent",
    "origin",
    "version",
    "revision",
    "operation",
    "route",
    "branches",
    "delivery_hash",
)
"""Columns that an event copies from its outbox row."""


def table_of(schema: pa.Schema, rows: int, **columns: Any) -> pa.Table:
    """Make a table from columns, each a sequence or one value for all rows; missing ones are null."""
    assert columns.keys() <= set(schema.names), columns.keys() - set(schema.names)
    arrays = []
    for field in schema:
        value = columns.get(field.name)
        if value is None:
            arrays.append(pa.nulls(rows, field.type))
        elif isinstance(value, (pa.Array, pa.ChunkedArray)):
            arrays.append(value)
        elif isinstance(value, (str, int, dt.datetime)):
            arrays.append(pa.repeat(scalar_of(value, field.type), rows))
        elif field.type == pa.binary():
            arrays.append(binary_array(value))
        else:
            arrays.append(array_of(value, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return the result of ``pa.array``, where possible without pandas: pyarrow loads that at the first array it makes
    of Python objects, and loading it takes longer than a scan that finds nothing new."""
    types, n = set(map(type, values)), len(values)
    if types == {type(None)}:
        return pa.nulls(n, kind)
    valid = _bits(value is not None for value in values) if type(None) in types else None
    if kind == pa.string() and all(issubclass(each, str | None) for each in types):
        contents = [b"" if value is None else value.encode() for value in values]
        offsets = np.zeros(n + 1, np.int64)
        np.cumsum(np.fromiter(map(len, contents), np.int64, n), out=offsets[1:])
        if offsets[-1] <= BINARY_BYTES:
            buffers = [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(contents))]
            return pa.Array.from_buffers(kind, n, buffers)
    if kind == pa.int64() and types <= {int, type(None)}:
        known = values if valid is None else [0 if value is None else value for value in values]
        numbers = np.fromiter(known, np.int64, n)
        return pa.Array.from_buffers(kind, n, [valid, pa.py_buffer(numbers)])
    if kind == pa.bool_() and types <= {bool}:
        return pa.Array.from_buffers(kind, n, [None, _bits(values)])
    return pa.array(values, kind)


def scalar_of(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return the result of ``pa.scalar``, where possible without pandas, see ``array_of``."""
    if isinstance(value, dt.datetime) and value.tzinfo is not None and kind == pa.timestamp("us", tz="UTC"):
        return array_of([(value - _EPOCH) // _MICROSECOND], pa.int64()).cast(kind)[0]
    return array_of([value], kind)[0]


_EPOCH: Final = dt.datetime.fromtimestamp(0, dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)


def _bits(values: Iterable[bool]) -> pa.Buffer:
    """Return truth values as Arrow stores them."""
    return pa.py_buffer(np.packbits(np.fromiter(values, np.bool_), bitorder="little"))


def binary_array(values: Sequence[bytes | None]) -> pa.Array:
    """Return the result of ``pa.array``, ten times faster if no value is missing and values have a few hundred
    bytes."""
    if None not in values:
        contents = cast("Sequence[bytes]", values)
        ends = np.cumsum(np.fromiter(map(len, contents), np.int64, len(values)))
        if len(values) and ends[-1] <= BINARY_BYTES:
            offsets = np.zeros(len(values) + 1, np.int32)
            offsets[1:] = ends
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(contents))]
            return pa.Array.from_buffers(pa.binary(), len(values), buffers)
    elif values.count(None) == len(values):
        return pa.nulls(len(values), pa.binary())
    return pa.array(values, pa.binary())


def events(rows: list[dict[str, Any]], **constant: Any) -> pa.Table:
    """Make ledger rows from dicts that all have the same keys, and values that are the same for all rows."""
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    columns = {"route": "", "branches": "", "created": dt.datetime.now(dt.UTC), **constant, **columns}
    return table_of(LEDGER, len(rows), **columns)


DELETE: Final = scalar_of("delete", pa.string())
_ONE: Final = scalar_of(1, pa.int64())


def sent_events(outbox_rows: pa.Table, noted: Iterable[RowResult], destination: str, wave: int) -> pa.Table:
    """Return the events of outbox rows that were sent: INDEXED, except for those with a noted result; UNTOUCHED rows
    have no event."""
    n = outbox_rows.num_rows
    columns: dict[str, Any] = {name: outbox_rows[name] for name in EVENT_OF_ROW}
    columns["status"] = Status.INDEXED.value
    columns["attempt"] = pc.add(outbox_rows["attempt"], _ONE)
    exceptions = {r.row: r for r in noted}
    if exceptions:
        rows = outbox_rows["row"].to_pylist()
        results = [exceptions.get(r) for r in rows]
        columns["status"] = [Status.INDEXED.value if f is None else f.status for f in results]
        columns["message"] = [None if f is None else f.message for f in results]
        columns["attempt"] = [
            a + 1 if f is None else f.attempt for a, f in zip(outbox_rows["attempt"].to_pylist(), results, strict=True)
        ]
        for name in ("due", "since", "transient"):
            columns[name] = [None if f is None else getattr(f, name) for f in results]
    table = table_of(
        LEDGER, n, **columns, destination=destination, wave=wave, ordinal=ORDINAL_SENT, created=dt.datetime.now(dt.UTC)
    )
    return table.filter(pc.not_equal(table["status"], UNTOUCHED)) if exceptions else table


# Reasons of failed deliveries, in the ``message`` of their events, and how they are grouped.
#
# The first line is the reason. For an unforeseen error, a traceback may follow in further lines.

HEADING: Final = "Traceback (most recent call last):"
_TRACEBACK_START: Final = f"\n{HEADING}\n"

LONGEST: Final = limits.TRACE_CHARACTERS
"""Characters of a traceback that are kept: its first line, and the last ones."""


def with_traceback(reason: str, trace: str) -> str:
    """Join a reason and a traceback, which is given without its heading, to one message; "": there is no traceback."""
    return f"{reason}{_TRACEBACK_START}{trace}" if trace else reason


def reason_of(message: str) -> str:
    """Return a message without its traceback."""
    return message.partition(_TRACEBACK_START)[0]


def traceback_of(message: str) -> str:
    """Return the traceback of a message with its heading; "" if there is none."""
    _, mark, trace = message.partition(_TRACEBACK_START)
    return f"{HEADING}\n{trace}" if mark else ""


def reason_sql() -> str:
    """Return SQL for the reason in an event's columns ``message`` and ``document``: without the traceback, the
    document's id before it, and the attempt number after it; "" if there is none."""
    first = f"split_part(coalesce(message, ''), chr(10) || '{HEADING}' || chr(10), 1)"
    about = (
        f"CASE WHEN starts_with({first}, document || ': ') THEN substr({first}, length(document) + 3) ELSE {first} END"
    )
    return f"regexp_replace({about}, ' \\((attempt [0-9]+, the last|no attempt is spent)\\)$', '')"


def common_form_sql(reason: str) -> str:
    """Return SQL for the common form of reasons that differ only in numbers and quoted text, followed by the line of
    code; line breaks are alike, since a form of a web page sends all as CR LF."""
    plain = f"regexp_replace(replace({reason}, chr(13), ''), '[0-9]+|''[^'']*''|\"[^\"]*\"', '0', 'g')"
    return f"{plain} || regexp_extract({reason}, ':[0-9]+\\)$')"


# Messages of what was delivered.

STALE: Final = "stale: the destination has something newer"

NOT_READ: Final = "not read: "
"""Beginning of the message of a delivery whose document has a field ``unread``: what its text has not, see
``steps.extract_text``."""

_UNREAD_KEY: Final = b'"unread":["'
_UNREAD_NAMES: Final = 20
"""Names in a message, at most; ``extract_text`` has fewer."""
_UNREAD_CHARACTERS: Final = 60
"""Longest name in a message; a longer one is none of ``extract_text``."""


def not_read_messages(fields: pa.ChunkedArray) -> dict[int, str]:
    """Return index -> message, of the deliveries that have a list of words in the field ``unread``.

    The message stays in the ledger when the field has left with the document. It costs nothing where nothing is
    unread, and no column: what is delivered has no other message.

    Args:
        fields: the column of the outbox, JSON.
    """
    if not any(_UNREAD_KEY in _content(chunk) for chunk in fields.chunks):  # takes a quarter of the next line's time
        return {}
    found = pc.indices_nonzero(pc.fill_null(pc.match_substring(fields, _UNREAD_KEY), False)).to_pylist()
    messages = {}
    for at in found:
        unread = msgspec.json.decode(fields[at].as_py()).get("unread")
        if isinstance(unread, list) and all(isinstance(n, str) and 0 < len(n) <= _UNREAD_CHARACTERS for n in unread):
            messages[at] = NOT_READ + ", ".join(unread[:_UNREAD_NAMES])
    return messages


def _content(column: pa.Array) -> bytes:
    """Return the bytes of all values of a binary column, one after the other."""
    _, offsets, content = column.buffers()
    if content is None or offsets is None:
        return b""
    first, last = np.frombuffer(offsets, np.int32)[[column.offset, column.offset + len(column)]].tolist()
    return bytes(content.slice(first, last - first))


# Messages of an error queue: what failed, where and why, and for which documents.


def error_fields(
    *,
    kind: str,
    cause: str,
    where: str,
    plan: tuple[str, int],
    destinations: Sequence[str],
    messages: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return the fields of a message about a failure.

    Args:
        kind: kind of the node that failed: ``source``, ``step``, ``router``, ``destination``.
        cause: the reason, as in the ledger.
        where: the node's name.
        plan: name and version.
        destinations: destinations that get nothing because of it.
        messages: the documents that it failed for, see ``failed_message``.
    """
    name, version = plan
    config = {"plan": name, "version": version, "destinations": list(dict.fromkeys(destinations))}
    return {"type": kind, "cause": cause, "where": where, "config": config, "messages": messages}


def failed_message(id: str, source: str, body: bytes | None) -> dict[str, Any]:
    """Return the subject of a failure: ``id``, ``source``, and the fields where they are at hand, as ``body``.

    Fields too deeply nested for a queue's message are included as text in ``json``; fields too large are left out.
    """
    about: dict[str, Any] = {"id": id, "source": source}
    if body is None or len(body) > _BODY_BYTES:
        return about
    fields = msgspec.json.decode(body)
    return {**about, "body": fields} if _depth(fields) <= _BODY_NESTED else {**about, "json": body.decode()}


_BODY_NESTED: Final = limits.QUEUE_NESTED - 3
"""Levels of fields that go into an error message as they are: they lie in an object in a list in an object."""

_BODY_BYTES: Final = limits.QUEUE_MESSAGE_BYTES // 4
"""Largest fields in an error message, in bytes: other parts need room too, and fields included as text become
longer."""


def _depth(value: object) -> int:
    """Return the depth of nested objects and lists."""
    deepest, level = 0, [value]
    while level := [each for each in level if isinstance(each, dict | list)]:
        deepest += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return deepest


def error_route(node: str, route: str, wave: int) -> str:
    """Return the route of an error message, which identifies the failure: if an operator retries it, another failure
    has another route."""
    return f"{route}/{node}@{wave}" if route else f"{node}@{wave}"


# Results that workers record for the rows that they sent; the journal keeps them until the wave is settled.

HELD_DELETE: Final = "held: "
"""Beginning of the message of a delete that is held for review, since an upsert of its family was not delivered."""

UNTOUCHED: Final = "UNTOUCHED"
"""Pseudo-status of a row that was not tried, because the destination was unavailable; the row stays pending,
unchanged."""


class RowSpan(NamedTuple):
    """Rows of an outbox file: ``first`` ≤ row < ``end``."""

    key: int
    first: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.key}.{self.first:09d}-{self.end:09d}"


class RowResult(msgspec.Struct, frozen=True, array_like=True):
    """Result of a row with an outcome other than ok, or with a message."""

    row: int
    status: str
    message: str
    attempt: int
    due: int | None
    """When an ERROR is retried, µs since 1970; None: the row is not pending any more."""
    since: int | None = None
    """Time of its first transient error, µs since 1970."""
    transient: int | None = None
    """Number of attempts that ended in a transient error."""


class Result(msgspec.Struct, frozen=True):
    """Result of a range of rows.

    Attributes:
        sent: number of rows that were attempted; the others were not eligible in this pass, or not reached.
        leave: number of attempted rows that are finished and leave the outbox; the others are retried or held for
            review.
        part: their ledger events, as a data file of the ledger.
        rows: results of rows with an outcome other than ok; only if there is no such file.
        deleted: number of deletes among those that leave.
        stale: number of rows that the destination ignored because it has newer ones.
        failed: number of failed and rejected rows.
        eligible: rows that were attempted; None: all rows of the range; only if there is no such file.
    """

    key: int
    first: int
    end: int
    sent: int
    leave: int
    part: tuple[str, int, int] | None
    rows: list[RowResult] = []
    deleted: int = 0
    stale: int = 0
    failed: int = 0
    eligible: list[int] | None = None

    @classmethod
    def of(
        cls,
        rows: RowSpan,
        eligible: int,
        noted: list[RowResult],
        part: tuple[str, int, int] | None,
        *,
        deleted: int = 0,
        meant: list[int] | None = None,
    ) -> Result:
        """Make a result from the results of the eligible rows with an outcome other than ok, or with a message.

        Args:
            eligible: number of rows of the range that were to be sent.
            noted: results of the rows with an outcome other than ok, or with a message.
            meant: the eligible rows; None: the whole range.
        """
        statuses = Counter(n.status for n in noted)
        return cls(
            *rows,
            sent=eligible - statuses[UNTOUCHED],
            leave=eligible - len(noted) + statuses[Status.INDEXED],
            part=part,
            rows=noted if part is None else [],
            deleted=deleted,
            stale=sum(n.message == STALE for n in noted),
            failed=statuses[Status.DEAD] + statuses[Status.ERROR_DOC],
            eligible=meant if part is None else None,
        )

    @property
    def range(self) -> RowSpan:
        return RowSpan(self.key, self.first, self.end)

    @property
    def ledger_part(self) -> Part | None:
        return None if self.part is None else Part(*self.part)


# Statuses of the ledger and their legal transitions, as data. Pictures and docs are generated from these tables.


class Status(enum.StrEnum):
    """Status of a delivery. The latest event counts; PROCESSING and BATCHED are derived by readers, never stored."""

    FORCE = "FORCE"
    RESTART = "RESTART"
    DIRTY = "DIRTY"
    PROCESSING = "PROCESSING"
    ERROR = "ERROR"
    BATCHED = "BATCHED"
    INDEXING = "INDEXING"
    INDEXED = "INDEXED"
    DROPPED = "DROPPED"
    DEAD = "DEAD"
    ERROR_DOC = "ERROR_DOC"


TERMINAL: Final = frozenset({Status.INDEXED, Status.DROPPED, Status.DEAD, Status.ERROR_DOC})
"""Statuses in which a delivery has ended, until its document changes or an operator intervenes."""

MEANING: Final[dict[Status, str]] = {
    Status.FORCE: "an operator wants it read again, changed or not; the next scan reads it as a new revision",
    Status.RESTART: "an operator, a repair or a new plan version wants it retried; due now, with its attempts reset",
    Status.DIRTY: "an operator suspects a change: the next scan reads it; or a step wants it again later",
    Status.PROCESSING: "in a wave that has not committed; after a crash it is processed again",
    Status.ERROR: "a step or the destination failed; retried when due",
    Status.BATCHED: "committed to the outbox; will be delivered",
    Status.INDEXING: "at-most-once: sent, and nobody knows with what result; in doubt until an operator resolves it",
    Status.INDEXED: "delivered (or the destination has something newer, or the same child already)",
    Status.DROPPED: "dropped on purpose, replaced or superseded; the message says which",
    Status.DEAD: "its attempts are exhausted, or the destination refused it with a permanent error",
    Status.ERROR_DOC: "the document itself is bad: it cannot be read or parsed, or kills the process that handles it",
}

_S = Status
PENDING: Final = frozenset({_S.FORCE, _S.RESTART, _S.ERROR, _S.BATCHED})
"""Statuses of deliveries that still have to be sent."""

DISPLAY_STATUSES: Final[dict[str, tuple[frozenset[Status], str | None]]] = {
    "delivered": (frozenset({_S.INDEXED}), "upsert"),
    "deleted": (frozenset({_S.INDEXED}), "delete"),
    "dropped": (frozenset({_S.DROPPED}), None),
    "failed": (frozenset({_S.DEAD}), None),
    "rejected": (frozenset({_S.ERROR_DOC}), None),
    "pending": (PENDING, None),
    "in_doubt": (frozenset({_S.INDEXING}), None),
}
"""Status shown to users -> the stored statuses, and the operation if it matters."""


STOPPED: Final = "stopped"
"""Status shown to users for an entry of a log that a plan stops before. It has no delivery yet, so that no count of
deliveries includes it. Its events in the ledger are ERROR, about the document."""

STOPS: Final = "the plan stops before it: "
"""Beginning of the message of such an event."""

HELD: Final = "held"
"""Status shown to users for a delete that is not committed yet, since a step failed for a part of the newer version. No
count of deliveries includes it: that the older version is at its destination was delivered, and counted, long ago."""


def display_status(status: str, operation: str) -> str:
    """Return the status shown to users for a delivery of this status: a key of ``DISPLAY_STATUSES``, ``STOPPED`` or
    ``HELD``."""
    if status in (STOPPED, HELD):
        return status
    for word, (statuses, only) in DISPLAY_STATUSES.items():
        if status in statuses and only in (None, operation):
            return word
    return "pending"


def parse_status(text: str) -> tuple[frozenset[str], str | None]:
    """Return the stored statuses, and the operation if it matters, for a displayed or stored name in any letter case.

    Raises:
        ValueError: there is no such status; the message names all.
    """
    word = text.strip().lower().replace("-", "_")
    if word in DISPLAY_STATUSES:
        return DISPLAY_STATUSES[word]
    if word in (STOPPED, HELD):
        return frozenset({word}), None
    if word.upper() in set(Status):
        return frozenset({Status(word.upper())}), None
    words = ", ".join([*DISPLAY_STATUSES, STOPPED, HELD])
    raise ValueError(f"choose one of {words}; or of the stored names {', '.join(Status)}")


def named_statuses(status: str | None) -> tuple[frozenset[str], str | None]:
    """Return the stored statuses that a status means (empty: any), and the operation where it matters.

    Raises:
        UsageError: there is no such status.
    """
    if status is None:
        return frozenset(), None
    try:
        return parse_status(status)
    except ValueError as e:
        raise UsageError(f"status {status}: {e}.") from None


_STEPS = frozenset({_S.BATCHED, _S.ERROR, _S.DROPPED, _S.DEAD, _S.ERROR_DOC})
"""Statuses that steps may give a document that is processed."""
_SENT = frozenset({_S.INDEXING, _S.INDEXED, _S.ERROR, _S.DEAD, _S.ERROR_DOC})
"""Statuses that sending may give a committed row."""
_OPERATOR = frozenset({_S.RESTART, _S.FORCE})

MOVES: Final[dict[Status | None, frozenset[Status]]] = {
    None: frozenset({_S.PROCESSING, _S.RESTART}),  # RESTART: a repair of what an older plan version delivered
    _S.PROCESSING: _STEPS | {_S.INDEXED},
    _S.BATCHED: _SENT | {_S.DROPPED},
    _S.INDEXING: _SENT | _OPERATOR | {_S.DROPPED},
    _S.ERROR: _STEPS | _SENT | _OPERATOR,
    _S.RESTART: _STEPS | _SENT | _OPERATOR,
    _S.FORCE: frozenset({_S.PROCESSING, _S.FORCE, _S.DROPPED}),
    _S.DIRTY: frozenset({_S.PROCESSING, _S.DIRTY}),
    _S.INDEXED: frozenset({_S.FORCE, _S.RESTART, _S.DIRTY}),
    _S.DROPPED: frozenset({_S.FORCE, _S.RESTART, _S.DIRTY}),
    _S.DEAD: _OPERATOR | {_S.DROPPED},
    _S.ERROR_DOC: _OPERATOR | {_S.DROPPED},
}
"""Legal transitions of a delivery: from -> to. None: there is no event yet.

The table describes what the code does: the model uses it, the tests check every ledger against it, docs and pictures
are generated from it. It is not used while events are written, because the writer does not know the event before.
"""


def check_move(before: Status | None, after: Status) -> Status:
    """Return the status after a transition.

    Raises:
        ValueError: the transition is not legal.
    """
    if after not in MOVES[before]:
        raise ValueError(
            f"a delivery cannot go from {before or 'nothing'} to {after}: only to {', '.join(sorted(MOVES[before]))}"
        )
    return after
