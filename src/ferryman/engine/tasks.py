"""Descriptions of tasks, which the driver sends to executors: rows of listings and pieces of logs."""

from __future__ import annotations

import enum
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import limits
from ferryman.plan import Plan, destinations_of_sources, logs_read
from ferryman.records.families import (
    STALE,
    FailedMember,
    Published,
    decode_failures,
    decode_published,
    encode_published,
)
from ferryman.records.rows import (
    EVENT_ORDER,
    ORDINAL_STEPS,
    PENDING,
    RANGE,
    Status,
    events,
    hasher,
    scalar_of,
    table_of,
)
from ferryman.sources.log import Log, Piece
from ferryman.sources.log_rows import ROWS
from ferryman.state.logs import RANGES, LogHead
from ferryman.state.state import State
from ferryman.storage.parquet import RowGroups, number_array, numbers_of
from ferryman.storage.query import connect, quote_list
from ferryman.storage.tables import Table

# Known rows of the documents to process: tasks read them from ``documents`` themselves, by file and row.
#
# The row of a large family is long. So the driver compares without it, and nothing of it is written a second time.

KNOWN_COLUMNS: Final = {
    "known_version": "version",
    "known_revision": "revision",
    "known_fingerprint": "fingerprint",
    "known_operation": "operation",
    "given": "given",
    "due": "due",
    "failed": "failed",
    "held": "held",
    "again": "again",
}
"""Columns that a compared row takes from its document's last row in ``documents`` -> their names there."""


def link_files(table: Table, folder: Path) -> list[str]:
    """Link the table's files into ``folder``, so that tasks can read them even if the table replaces them between
    waves; return the paths of the links.

    Objects are kept until the next scan and need no links. Where links are impossible, as across file systems in a
    preview, the original paths are returned.
    """
    if not isinstance(table.folder, Path):
        return [str(table.folder / name) for name in table.files]
    folder.mkdir(exist_ok=True)
    links = []
    for path in table.paths():
        link = folder / path.name
        if not link.exists():
            try:
                os.link(path, link)
            except FileNotFoundError:
                raise
            except OSError:
                link = path
        links.append(str(link))
    return links


def join_known(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a batch's rows together with the known row of each document, in the columns of ``schema``.

    Raises:
        StateDamaged: a file of ``documents`` is missing, or not what was written.
    """
    known = _known(rows["known_file"], numbers_of(rows["known_row"]))
    columns = {name: known[name] if name in KNOWN_COLUMNS else rows[name] for name in schema.names}
    columns["given"] = _correct_published(columns["given"], rows["unconfirmed"], rows["unsure"])
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _known(files: pa.ChunkedArray, rows: np.ndarray[Any, Any]) -> pa.Table:
    """Return the columns of ``KNOWN_COLUMNS`` for these rows of these files; null where there is no file."""
    names = list(KNOWN_COLUMNS.values())
    encoded = files.combine_chunks().dictionary_encode()
    codes = numbers_of(pa.chunked_array([encoded.indices]))
    places, tables = [], []
    for code, path in enumerate(encoded.dictionary.to_pylist()):
        mine = np.flatnonzero(codes == code)
        mine = mine[np.argsort(rows[mine], kind="stable")]
        with RowGroups(path, names, verified=True) as file:
            tables += [table.select(names) for table in file.rows_at(rows[mine])]
        places.append(mine)
    if not tables:
        return pa.table({name: pa.nulls(len(files)) for name in KNOWN_COLUMNS})
    # rows were read file by file, so restore the requested order
    found = np.full(len(files), -1, np.int64)
    order = np.concatenate(places)
    found[order] = np.arange(len(order))
    every = pa.concat_tables(tables).combine_chunks()
    every = every.take(number_array(found))
    there = pc.equal(every["operation"], _UPSERT)
    every = every.set_column(names.index("given"), "given", pc.if_else(there, every["given"], _NOTHING))  # deleted
    return every.rename_columns(list(KNOWN_COLUMNS))


_UPSERT, _NOTHING = scalar_of("upsert", pa.string()), scalar_of("", pa.string())


def _correct_published(given: pa.ChunkedArray, unconfirmed: pa.ChunkedArray, unsure: pa.ChunkedArray) -> Any:
    """Return ``given`` with unconfirmed deletes added, and without content hashes where an upsert is unconfirmed."""
    found = pc.or_(pc.is_valid(unconfirmed), unsure)
    if not pc.any(found).as_py():
        return given
    columns = (column.to_pylist() for column in (given, unconfirmed, unsure))
    return pa.array([add_unconfirmed(*row) for row in zip(*columns, strict=True)], pa.string())


def add_unconfirmed(given: str | None, unconfirmed: str | None, unsure: bool) -> str | None:
    if unconfirmed is None and not unsure:
        return given
    every: Iterable[Published] = decode_published(given or "")
    if unconfirmed is not None:
        every = {each.place: each for each in (*every, *decode_published(unconfirmed))}.values()
    if unsure:
        every = (each if each.content == STALE else Published(*each.place) for each in every)
    return encode_published(every)


COMPARED: Final = pa.schema(
    [
        pa.field("part", pa.string()),
        pa.field("row", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("fingerprint", pa.string()),
        pa.field("location", pa.string()),
        pa.field("refused", pa.string()),
        pa.field("version", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("known_version", pa.string()),
        pa.field("known_revision", pa.int64()),
        pa.field("known_fingerprint", pa.string()),
        pa.field("known_operation", pa.string()),
        pa.field("given", pa.string()),
        pa.field("due", pa.int64()),
        pa.field("failed", pa.string()),
        pa.field("held", pa.string()),
        pa.field("again", pa.int64()),
    ]
)
"""Columns of a document that a wave processes, one row each; ``part`` and ``row`` locate its listing row (null for
``gone``)."""


BATCH_FILE: Final = pa.schema(
    [
        *(f for f in COMPARED if f.name not in KNOWN_COLUMNS),
        pa.field("known_file", pa.string()),
        pa.field("known_row", pa.int64()),
        pa.field("known_size", pa.int64()),
        pa.field("unconfirmed", pa.string()),
        pa.field("unsure", pa.bool_()),
    ]
)
"""Columns of a file of compared rows: those of ``COMPARED``, but with the location and size of the row in ``documents``
in place of its values."""


LISTED: Final = ["row", "id", "size", "fingerprint", "location", "refused", "version"]
"""Columns that a compared row takes from its listing."""


class RowRange(NamedTuple):
    """Rows ``first`` ≤ n < ``end`` of a file."""

    path: str
    first: int
    end: int


class TaskSplit(NamedTuple):
    """Rows of a wave for one transform task."""

    source: str
    pieces: list[RowRange]
    compared: bool
    """Whether ``pieces`` are of a file of compared rows; otherwise they are of the listing itself, and all documents
    are new."""
    number: int = 0
    """Number of this task in its wave."""
    revision: int = 1
    """Revision for documents that are new."""

    @property
    def rows(self) -> int:
        return sum(p.end - p.first for p in self.pieces)

    def after(self, rows: int) -> TaskSplit:
        """Return the split without its first ``rows`` rows."""
        pieces = []
        for path, first, end in self.pieces:
            passed = min(rows, end - first)
            rows -= passed
            if first + passed < end:
                pieces.append(RowRange(path, first + passed, end))
        return self._replace(pieces=pieces)

    def reasons(self) -> Counter[str]:
        """Return reason -> number of rows that are processed for it."""
        counts: Counter[str] = Counter()
        if not self.compared:
            counts[Reason.NEW] = self.rows
        for path, first, end in self.pieces if self.compared else ():
            with RowGroups(path, ["reason"]) as file:
                for rows in file.rows_between(first, end):
                    counts.update(rows["reason"].to_pylist())
        return counts

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows in the columns of ``COMPARED``, at most a row group at a time."""
        for rows in self.stored_rows():
            yield join_known(rows, COMPARED)

    def stored_rows(self) -> Iterator[pa.Table]:
        """Yield the rows in BATCH_FILE's columns."""
        for path, first, end in self.pieces:
            with RowGroups(path, BATCH_FILE.names if self.compared else LISTED) as file:
                for rows in file.rows_between(first, end):
                    yield rows if self.compared else _new_rows(path, rows)


class WaveBatch(NamedTuple):
    """Documents that one wave processes."""

    tasks: list[TaskSplit]
    bytes: int
    known: Mapping[str, int] = MappingProxyType({})
    """Name of a file of ``documents`` -> number of its rows that belong to these documents."""

    @property
    def rows(self) -> int:
        return sum(t.rows for t in self.tasks)


def _new_rows(path: str, listed: pa.Table) -> pa.Table:
    columns = {name: listed[name] for name in LISTED}
    return table_of(BATCH_FILE, listed.num_rows, part=path, reason=Reason.NEW, unsure=False, **columns)


_LOG_COLUMNS = [name for name in ROWS.names if name not in COMPARED.names]
"""Columns that a log's rows have in addition to those of ``COMPARED``."""

_KNOWN_NAMES = COMPARED.names[COMPARED.names.index("known_version") :]


class KnownDocument(NamedTuple):
    """A document's row in ``documents``; every value is None if it has none."""

    version: str
    revision: int
    fingerprint: str
    operation: str
    given: str
    due: int | None
    failed: str | None
    held: str | None
    again: int | None

    @property
    def failures(self) -> list[FailedMember]:
        """Return the failures at its steps."""
        return decode_failures(self.failed)


NOTHING_KNOWN: Final = KnownDocument(*[None] * len(KnownDocument._fields))  # type: ignore[arg-type]
"""Stands for a document that has no row."""


class IndexedFile(NamedTuple):
    """A data file, and where its index is.

    Attributes:
        index_path: path of the index without its ending.
        destination: of an outbox file; "" for one of ``documents``.
    """

    path: str
    index_path: str
    destination: str = ""


class KnownFiles(NamedTuple):
    """Files in which a task looks up what is known of documents, see ``engine.known_entries``."""

    documents: tuple[IndexedFile, ...] = ()
    outbox: tuple[IndexedFile, ...] = ()


class HeldEntry(NamedTuple):
    """An export that was held back and is processed again.

    Attributes:
        known: values of ``_KNOWN_NAMES`` from its row of ``documents``.
    """

    place: int
    known: tuple[Any, ...]


class LogSplit(NamedTuple):
    """Entries of a log for one transform task."""

    source: str
    piece: Piece
    revision: int = 1
    """Revision of the entries, one higher each time the log is read again from another place."""
    head: LogHead | None = None
    """Entry at which the log last waited, which this split tries again; None: there is none."""
    number: int = 0
    """Number of this task in its wave."""
    rerun: EntryRange | None = None
    """Range of entries that is run again; None: the entries are read for the first time."""
    held: frozenset[int] = frozenset()
    """Key hashes with an earlier export that was not processed; only for exports of a keyed node."""
    held_back: tuple[HeldEntry, ...] = ()
    """Exports that failed in a step, or waited for one that did. If there are any, only these are processed, and
    positions do not move."""
    passed: tuple[int, int] | None = None
    """Place and number of the entry that counts as failed if it fails, in place of stopping the plan; see
    ``StoppedEntry.passed``."""
    known: KnownFiles | None = None
    """Where the documents of the entries are looked up; None: they are not, since ``documents`` has none of this log's
    that went through."""

    @property
    def rows(self) -> int:
        return len(self.held_back) or self.piece.end - self.piece.start

    def tables(self, log: Log) -> Iterator[pa.Table]:
        """Yield the entries in the columns of ``COMPARED``, plus those of ``_LOG_COLUMNS``."""
        for rows in log.rows(self.piece):
            if self.held_back:
                rows = rows.filter(pc.is_in(rows["place"], value_set=pa.array([p.place for p in self.held_back])))
            columns: dict[str, Any] = {name: rows[name] for name in ("id", "version", "refused")}
            if "key_hash" in rows.column_names:
                columns |= self._export_columns(rows)
            table = table_of(
                COMPARED,
                rows.num_rows,
                **{"fingerprint": "", "reason": Reason.NEW.value, **columns},
                size=0,
                location="",
            )
            for name in (*_LOG_COLUMNS, *(n for n in rows.column_names if n not in ROWS.names)):
                table = table.append_column(
                    name, self._replayed_revisions(rows[name]) if name == "revision" else rows[name]
                )
            yield table

    def _replayed_revisions(self, revisions: pa.ChunkedArray) -> pa.ChunkedArray:
        """Raise the log's own revisions above those of all earlier replays."""
        return pc.add(revisions, (self.revision - 1) * limits.REVISIONS_PER_REPLAY)

    def _export_columns(self, rows: pa.Table) -> dict[str, Any]:
        """Return the columns of ``COMPARED`` for exports, filled with the known values of held ones."""
        columns: dict[str, Any] = {"fingerprint": rows["key_hash"].cast(pa.string())}
        if self.held_back:
            known = {each.place: each.known for each in self.held_back}
            mine = [known[place] for place in rows["place"].to_pylist()]
            columns |= {name: [each[at] for each in mine] for at, name in enumerate(_KNOWN_NAMES)}
            columns["reason"] = Reason.RETRY.value
        return columns

    def with_held(self, keys: frozenset[int]) -> LogSplit:
        """Return the split with more key hashes in ``held``."""
        return self._replace(held=self.held | keys)

    def after(self, places: int) -> LogSplit:
        """Return the split without its first ``places`` places."""
        return self._replace(piece=self.piece._replace(start=self.piece.start + places))

    def reasons(self) -> Counter[str]:
        """Return reason -> number of places; how many of these have an entry is known only when they are read."""
        return Counter({Reason.NEW.value: self.rows})

    def before(self, place: int) -> LogSplit:
        """Return the split without the entries from this place on."""
        left = tuple(each for each in self.held_back if each.place < place)
        if self.held_back and not left:
            place = self.piece.start
        return self._replace(piece=self.piece._replace(end=place), held_back=left)


class LogBatch(NamedTuple):
    """Entries of logs that one wave processes."""

    tasks: list[LogSplit]
    bytes: int
    once: bool = False
    """No step may see an entry of this batch twice."""

    @property
    def rows(self) -> int:
        return sum(t.rows for t in self.tasks)


# Ranges of log entries that an at-most-once plan processes together, as rows of the ledger.
#
# Once a range's wave is committed, the outcome of each entry is known, and the range needs no row. It has one row per
# destination that its source reaches only if that is not the case: in doubt, if its steps were killed after they had
# begun; pending, if they had not begun, or if an operator wants the range run again.

KILLED_MESSAGE: Final = "its steps had begun when they were killed: what they did is not known"
NOT_BEGUN_MESSAGE: Final = "its steps have not begun: its run was killed"
RERUN_MESSAGE: Final = "run again, entry by entry"


class EntryRange(NamedTuple):
    """A range of log entries that one task processes.

    Attributes:
        id: name of the range in the ledger.
        rows: (destination, delivery hash) of each of its rows in the ledger.
        in_ledger: whether the ledger has these rows.
    """

    source: str
    piece: Piece
    revision: int
    id: str
    rows: tuple[tuple[str, str], ...]
    in_ledger: bool = False

    @property
    def version(self) -> str:
        return _version(self.piece)


class RangeStatus(NamedTuple):
    """New status of a range, to be recorded in the ledger."""

    range: EntryRange
    status: Status
    message: str


def new_range(plan: Plan, source: str, log: Log, piece: Piece, revision: int) -> EntryRange:
    """Return a range that is not in the ledger yet."""
    id, version = log.range_id(piece), _version(piece)
    names = destinations_of_sources(plan.nodes)[source]
    hashers = {name: hasher(plan.name, plan.version, source, name, "", "upsert") for name in names}
    return EntryRange(
        source, piece, revision, id, tuple((n, make(id, version, revision)) for n, make in hashers.items())
    )


def pending_ranges(state: State) -> list[EntryRange]:
    """Return the ranges that are still to be run, ordered by place."""
    if not state.outbox.transaction(RANGES) or not (paths := state.ledger.paths()):
        return []
    sources = [n.name for n in logs_read(state.plan.nodes)]
    query = f"""
        SELECT source, version, revision, document, list((destination, delivery_hash) ORDER BY destination)
        FROM (
            SELECT source, version, revision, document, destination, delivery_hash,
                arg_max(status, {EVENT_ORDER}) AS status
            FROM read_parquet({quote_list(map(str, paths))})
            WHERE starts_with(version, '{RANGE}') AND source IN {quote_list(sources)}
            GROUP BY ALL
        )
        WHERE status IN {quote_list([*PENDING, Status.INDEXING])}
        GROUP BY ALL HAVING bool_or(status <> '{Status.INDEXING}')
    """
    with connect(state.local_scratch) as db:
        rows = db.execute(query).fetchall()
    found = [
        EntryRange(source, _piece(version), revision, id, tuple(deliveries), in_ledger=True)
        for source, version, revision, id, deliveries in rows
    ]
    return sorted(found, key=lambda each: (each.source, each.piece.partition, each.piece.start))


def range_events(statuses: Sequence[RangeStatus], wave: int) -> pa.Table:
    """Return a ledger row for each range and destination."""
    rows = []
    for entry_range, status, message in statuses:
        about: dict[str, Any] = {
            "source": entry_range.source,
            "document": entry_range.id,
            "origin": entry_range.id,
            "parent": None,
        }
        about |= {"version": entry_range.version, "revision": entry_range.revision, "operation": "upsert"}
        about |= {"status": status.value, "message": message, "attempt": 0}
        rows += [{**about, "destination": name, "delivery_hash": digest} for name, digest in entry_range.rows]
    return events(rows, wave=wave, ordinal=ORDINAL_STEPS)


def _version(piece: Piece) -> str:
    return RANGE + msgspec.json.encode(piece).decode()


def _piece(version: str) -> Piece:
    return msgspec.json.decode(version.removeprefix(RANGE), type=Piece)


LISTING: Final = pa.schema(
    [
        pa.field("row", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("fingerprint", pa.string()),
        pa.field("location", pa.string()),
        pa.field("refused", pa.string()),
        pa.field("version", pa.string()),
        pa.field("deleted", pa.bool_()),
    ]
)
"""Columns of a listed document. ``version`` is null if the content is read later. ``deleted``: the source says that it
was deleted."""


CONTENT: Final = pa.schema([pa.field("row", pa.int64()), pa.field("fields", pa.binary()), pa.field("raw", pa.binary())])
"""Columns with the content of a listing's rows, in a separate file. Sources that read the content while listing stage
it here, so that exactly what was hashed is processed, even if the source changes meanwhile. For unchanged documents it
is not read again."""


def content_path(listing: str) -> str:
    """Return the path of the content of a listing file's rows."""
    return f"{listing}.content"


# Reasons why a scan has a document processed.


class Reason(enum.StrEnum):
    """Reasons why a document is processed, as written in the files of a scan."""

    NEW = "new"
    CHANGED = "changed"
    LOOK = "look"
    """The content was not read while listing; the worker that reads it decides whether it has changed."""
    RETRY = "retry"
    """A failed step is due."""
    FORCED = "forced"
    """Requested by `retry --force`, or by a step."""
    AGAIN = "again"
    """The source has every document processed in every run (``detect="none"``)."""
    DELETED = "gone"
    """Not listed any more."""
    UNCHANGED = "unchanged"
    """Not processed, except that a preview was asked for it by its id."""
