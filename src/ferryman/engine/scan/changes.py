"""The changes of one source: which of its documents are processed, and why; which are deleted at the source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import limits
from ferryman.engine.results import Listing
from ferryman.engine.scan.splitting import Splitter
from ferryman.engine.tasks import BATCH_FILE, LISTED, Reason
from ferryman.records.families import Published, encode_published
from ferryman.records.rows import OUTBOX, OUTBOX_CONTENT, OUTBOX_PARTITION, is_due_sql, table_of
from ferryman.storage import parquet
from ferryman.storage.files import local_path
from ferryman.storage.parquet import RowGroups, number_array, uncompressed_bytes
from ferryman.storage.query import (
    HashFilter,
    PartitionFiles,
    look_up,
    partition_of,
    partitions_for,
    quote,
    quote_list,
    read_rows,
    select_half,
    stream,
)
from ferryman.storage.tables import Table

_LISTED: Final = pa.schema(
    [
        ("h", pa.uint64()),
        ("place", pa.int64()),
        ("id", pa.string()),
        ("version", pa.string()),
        ("fingerprint", pa.string()),
        ("refused", pa.bool_()),
        ("deleted", pa.bool_()),
    ]
)
"""Columns of a listing's rows; ``place``: the row's number in the whole listing."""

_KNOWN: Final = pa.schema(
    [
        ("h", pa.uint64()),
        ("source", pa.string()),
        ("document", pa.string()),
        ("version", pa.string()),
        ("revision", pa.int64()),
        ("fingerprint", pa.string()),
        ("operation", pa.string()),
        ("wave", pa.int64()),
        ("due", pa.int64()),
        ("forced", pa.bool_()),
        ("held", pa.string()),
        ("again", pa.int64()),
        ("is_given", pa.bool_()),
        ("file", pa.int64()),
        ("row", pa.int64()),
        ("size", pa.int64()),
    ]
)
"""Columns of ``documents`` without the wide ones, which take ``size`` bytes and are read later, by ``file`` and
``row``."""

_NARROW: Final = (
    *("document", "version", "revision", "fingerprint", "operation", "wave", "due", "forced", "held", "again"),
)

_CONFLICTING: Final = pa.schema([("h", pa.uint64()), ("id", pa.string())])

_CHANGE: Final = pa.schema(
    [
        ("place", pa.int64()),
        ("id", pa.string()),
        ("reason", pa.string()),
        ("clash", pa.bool_()),
        ("file", pa.int64()),
        ("row", pa.int64()),
        ("size", pa.int64()),
        ("unconfirmed", pa.string()),
        ("unsure", pa.bool_()),
    ]
)
"""Columns of a document that is processed, or that was deleted at the source (``place`` is null)."""

_DEPTH: Final = 24
"""Number of times that a part is halved; rows still together after that have the same hash."""

_PartTables = dict[str, pa.Table]


class KnownDocuments(NamedTuple):
    """Documents that a state knows, and their rows that wait to be sent."""

    documents: Table
    files: list[str]
    """Paths of the files of ``documents``, in order, as tasks can read them."""
    outbox: Table
    overwriting: Mapping[str, Collection[str]] = {}
    """Source -> destinations at which a late delete of a conflicting source would remove a document of this one."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.documents.files.values())


class WantedDocuments(NamedTuple):
    """Documents that are processed although they have not changed."""

    due: str
    """SQL condition that a failed step of row ``k`` is due; see ``due_now``."""
    now_us: int
    """The current time, µs since 1970; documents that a step asked to have read again by then are processed."""
    only_pending: bool
    """Whether no others are processed."""


class SourceComparison:
    """Compares one source's listing with `documents`, in three steps, each in bounded memory.

    1. Find candidates by hash: the ids for which listing and ``documents`` may differ. If the whole source is new, this
       is the only step.
    2. Compare the candidates exactly, one partition of the ids (by hash) at a time.
    3. When the rows to process are split into tasks, restore the source's order, one range of places at a time.

    Attributes:
        duplicates, examples: number of superfluous rows of ids that are listed several times, of which the last row is
            kept; some of these ids.
        known: number of documents that existed when the source was last listed.
        missing_count: number of those that are no longer listed, or of which the source says that they were deleted.
        unlisted_count: number of those that are no longer listed.
        finds_missing: whether a document that is not listed counts as deleted.

    Args:
        folder: for data that does not fit into memory; used by nothing else.
        conflicting_sources: name of each source that may send the same ids to the same destination -> its comparison,
            if it is listed before this one.
    """

    def __init__(
        self,
        db: duckdb.DuckDBPyConnection,
        folder: Path,
        listing: Listing,
        known: KnownDocuments,
        wanted: WantedDocuments,
        conflicting_sources: Mapping[str, SourceComparison | None],
    ) -> None:
        self._db = db
        self._folder = folder
        self._source = listing.source.source
        self.name = listing.source.name
        self.max_deleted = self._source.max_deleted
        self._documents = known
        self._wanted = wanted
        self._within = [] if listing.is_complete else listing.complete_within
        self.finds_missing = bool(listing.is_complete or self._within) and not wanted.only_pending
        self._others = conflicting_sources
        parts = [p for p in listing.parts if p.rows and not (p.is_complete is None and listing.is_complete)]
        self.paths = [p.path for p in parts]
        self._kept = {p.path for p in parts if p.is_complete is None}
        """Files of documents that were listed earlier: of those, one that would have been listed again is gone."""
        self._starts = np.cumsum([0, *(p.rows for p in parts)])
        self._rows = int(self._starts[-1])
        self.duplicates = 0
        self.examples: list[str] = []
        self.missing_count = self.unlisted_count = 0
        why = (
            f"its id is taken: source {' or '.join(conflicting_sources)} sends a document of this id to the same "
            "destination, or has not deleted it there yet: give each source a prefix="
        )
        self._order = SourceOrder(self.paths, self._starts, known.files, why)
        self._candidates = find_candidates(
            self._hashes(),
            folder,
            self._rows + known.rows,
            only_waiting=wanted.only_pending,
            find_deleted=self.finds_missing,
        )
        self.known = self._candidates.known
        self._is_all_new = not self._candidates.any_known and not self._candidates.special and not listing.deleted
        if not self._is_all_new:
            self._range = max(limits.SORTED_ROWS, -(-2 * self._rows // 256))
            self._to_process = PartitionFiles(folder, "to-process", _CHANGE, 2 * self._rows // self._range + 1)
            self._deleted_parts = min(len(known.files), 256) or 1
            self._deleted_files = PartitionFiles(folder, "missing", _CHANGE, self._deleted_parts)
            if self._candidates.rows:
                self._compare()
            self._to_process.close()
            self._deleted_files.close()

    def split_changed(self, splitter: Splitter) -> None:
        """Split the listed documents that must be read or processed, in the source's order."""
        if not self._is_all_new:
            for part in range(2 * self._rows // self._range + 1):
                for rows in self._order.rows_to_process(self._to_process.read(part)):
                    splitter.add_compared(self.name, rows)
        elif not self._wanted.only_pending:
            for path in self.paths:
                splitter.add_listed(self.name, path)

    def missing(self) -> Iterator[pa.RecordBatch]:
        """Yield the documents that were known and are no longer listed."""
        if self.missing_count:
            for part in range(self._deleted_parts):  # in file order: each row group of ``documents`` is read once
                rows = self._deleted_files.read(part)
                yield from rows.sort_by([("file", "ascending"), ("row", "ascending")]).combine_chunks().to_batches()

    def rows_to_process(self, reason: str) -> Iterator[pa.RecordBatch]:
        """Yield the listed documents that are processed for this reason, unordered."""
        if not self._is_all_new:
            for part in range(2 * self._rows // self._range + 1):
                for batch in self._to_process.batches(part):
                    yield batch.filter(pc.equal(batch.column("reason"), reason))

    def split_deleted(self, splitter: Splitter, allowed_rows: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        """Split the missing documents that count as deleted."""
        for batch in map(allowed_rows, self.missing()):
            if batch.num_rows:
                splitter.add_compared(self.name, self._order.missing_rows(pa.Table.from_batches([batch])))

    # -- 1: by hashes ------------------------------------------------------------------------------

    def _hashes(self) -> HashQueries:
        listed_print, known_print = "0::UBIGINT", "1::UBIGINT"
        if self._source.detect == "fingerprint":
            listed_print = "CASE WHEN fingerprint <> '' AND refused IS NULL THEN fingerprint END"
            known_print = "fingerprint"
        settled = (
            f"operation = 'upsert' AND NOT forced AND due IS NULL AND (again > {self._wanted.now_us}) IS NOT FALSE"
        )
        if self._source.detect == "none":
            settled = "false"
        exists = f"operation = 'upsert' AND {self._is_within('document')}"
        flags = (
            f"CASE WHEN {settled} THEN {SETTLED} ELSE 0 END + CASE WHEN {exists} THEN {LIVE} ELSE 0 END + "
            f"CASE WHEN forced OR due IS NOT NULL THEN {WAITING} ELSE 0 END"
        )
        conflicting = None
        if self._others:
            names = quote_list(self._others)
            given = f"source IN (SELECT unnest({names})) AND operation = 'upsert' AND given <> ''"
            theirs = [f"SELECT document AS h FROM documents WHERE {given}"]
            theirs += [f"SELECT id AS h FROM {_rows_of(r.paths)}" for r in self._others.values() if r and r.paths]
            theirs += [f"SELECT origin AS h FROM ({query})" for query in self._late_deletes()]
            conflicting = " UNION ALL ".join(theirs)
        listed = "SELECT 0::UBIGINT AS h, h AS v, h AS f WHERE false"
        if self.paths:
            columns = f"id AS h, version AS v, {listed_print} AS f"
            listed = " UNION ALL ".join(f"SELECT {columns} FROM {rows}" for rows in self._listed_rows(self.paths))
        known = (
            f"SELECT document AS h, version AS v, {known_print} AS f, wave, {flags} AS flags "
            f"FROM documents WHERE source = {quote(self.name)}"
        )
        return HashQueries(self._db, listed, known, conflicting, self._rows, self._documents.rows)

    # -- 2: by the whole rules ---------------------------------------------------------------------

    def _compare(self) -> None:
        """Compare all candidates exactly, one partition of their hashes at a time."""
        rows = self._rows + self._documents.rows
        share = min(1.0, self._candidates.rows / max(1, rows))
        of_known = sum(uncompressed_bytes(f, _NARROW) for f in self._documents.files)
        size = share * (sum(map(uncompressed_bytes, self.paths)) + of_known)
        parts = partitions_for(self._candidates.rows, int(size), limits.JOINED_ROWS, limits.JOINED_BYTES)
        streams = {
            "listed": (_LISTED, self._listed()),
            "known": (_KNOWN, self._known()),
            "unconfirmed": (UNCONFIRMED, unconfirmed(self._db, self._documents.outbox, self.name)),
            "conflicting": (_CONFLICTING, self._conflicting_ids()),
        }
        files_by_name = {
            name: self._distribute(name, schema, batches, parts) for name, (schema, batches) in streams.items()
        }
        for part in range(parts):
            self._compare_part({name: files.read(part) for name, files in files_by_name.items()}, 0)
        self.examples = sorted(self.examples)[:3]

    def _distribute(
        self, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], parts: int
    ) -> PartitionFiles:
        partitions = PartitionFiles(self._folder, name, schema, parts)
        for batch in batches:
            is_candidate = self._candidates.hashes.contains(batch.column(0).to_numpy())
            rows = batch.take(number_array(np.flatnonzero(is_candidate)))
            partitions.add(rows, partition_of(rows.column(0).to_numpy(), parts))
        partitions.close()
        return partitions

    def _listed(self) -> Iterator[pa.RecordBatch]:
        for path, start in zip(self.paths, self._starts.tolist(), strict=False):
            columns = f"id, row + {start}, id, version, fingerprint, refused IS NOT NULL, deleted"
            [rows] = self._listed_rows([path])
            query = f"SELECT {columns} FROM {rows}"
            yield from stream(self._db, query, _LISTED, self._rows)

    def _known(self) -> Iterator[pa.RecordBatch]:
        sources = quote_list([self.name, *self._others])
        is_given = "given <> ''" if self._others else "false"
        size = "strlen(given) + coalesce(strlen(failed), 0)"
        columns = f"document, source, {', '.join(_NARROW)}, {is_given}, file, file_row_number, {size}"
        where = f"source IN (SELECT unnest({sources}))"
        return read_rows(self._db, self._documents.files, columns, _KNOWN, where, most_rows=self._documents.rows)

    def _conflicting_ids(self) -> Iterator[pa.RecordBatch]:
        for other in self._others.values():
            if other is not None and other.paths:
                yield from stream(self._db, f"SELECT id, id FROM {_rows_of(other.paths)}", _CONFLICTING)
        for query in self._late_deletes():
            yield from stream(self._db, f"SELECT origin, origin FROM ({query})", _CONFLICTING)

    def _late_deletes(self) -> list[str]:
        """Return queries for the unconfirmed deletes of conflicting sources that would remove what this one sends."""
        names = self._documents.overwriting.get(self.name, ()) if self._others else ()
        outbox = self._documents.outbox
        paths = [path for path, file in outbox.files.items() if file.partition["destination"] in names]
        if not paths:
            return []
        rows = f"read_parquet({quote_list(map(str, outbox.paths(paths)))})"
        theirs = f"source IN (SELECT unnest({quote_list(self._others)})) AND operation = 'delete'"
        return [f"SELECT origin FROM {rows} WHERE {theirs}"]

    def _compare_part(self, part: _PartTables, depth: int) -> None:
        """Compare a part of the ids; halve it if it is too large, or if the query engine runs out of memory."""
        rows, size = (sum(getattr(t, of) for t in part.values()) for of in ("num_rows", "nbytes"))
        if depth < _DEPTH and (rows > 2 * limits.JOINED_ROWS or size > 2 * limits.JOINED_BYTES):
            self._compare_halves(part, depth)
            return
        try:
            joined = self._join_changes(part)
        except duckdb.OutOfMemoryException:
            if depth >= _DEPTH:
                raise
            self._compare_halves(part, depth)
            return
        self._store(joined)

    def _compare_halves(self, part: _PartTables, depth: int) -> None:
        for half in range(2):
            self._compare_part({name: select_half(table, depth, half) for name, table in part.items()}, depth + 1)

    def _join_changes(self, part: _PartTables) -> pa.Table:
        """Return the documents of a part that are processed or missing, in the columns of ``_CHANGE``."""
        for name, table in part.items():
            self._db.register(name, table)
        try:
            query = self._comparison(*(_is_unique(part[name]["h"].to_numpy()) for name in ("listed", "known")))
            changes = self._db.sql(query).to_arrow_table()
            waiting = unconfirmed_columns(self._db, changes) if part["unconfirmed"].num_rows else None
            if self._candidates.special:
                self._count_duplicates(part["listed"])
        finally:
            for name in part:
                self._db.unregister(name)
        columns = {name: changes[name] for name in ("place", "id", "reason", "clash", "file", "row")}
        if waiting is None:
            return table_of(_CHANGE, changes.num_rows, size=changes["size"], unsure=False, **columns)
        deletes, unsure = waiting
        texts = pa.array(deletes, pa.string())
        size = pc.add(pc.fill_null(changes["size"], 0), pc.cast(pc.fill_null(pc.binary_length(texts), 0), pa.int64()))
        return table_of(_CHANGE, changes.num_rows, size=size, unconfirmed=texts, unsure=unsure, **columns)

    def _count_duplicates(self, listed: pa.Table) -> None:
        if not self._source.lists_all:
            return  # it lists changes: a document may have changed several times
        twice = self._db.execute("SELECT id, count(*) FROM listed GROUP BY id HAVING count(*) > 1").fetchall()
        self.duplicates += sum(count - 1 for _, count in twice)
        self.examples = sorted([*self.examples, *(id for id, _ in twice)])[:3]

    def _comparison(self, listed_once: bool, known_once: bool) -> str:
        """Return the query for the documents that are processed or missing.

        Args:
            listed_once, known_once: no id has two rows in the relation, so the last one need not be searched.

        An id is refused if a conflicting source has published it or lists it before this source, unless this source
        published it first. Each scan checks it again: once the other source's document is deleted, it is processed.
        """
        join = "FULL JOIN" if self.finds_missing else "LEFT JOIN"
        clash = "false"
        if self._others:
            given = "operation = 'upsert' AND is_given"
            theirs = f"SELECT document FROM last WHERE source <> {quote(self.name)} AND {given}"
            clash = (
                f"id IN ({theirs} UNION ALL SELECT id FROM conflicting) AND "
                f"id NOT IN (SELECT document FROM last WHERE source = {quote(self.name)} AND {given})"
            )
        last = "QUALIFY row_number() OVER (PARTITION BY source, document ORDER BY wave DESC, row DESC) = 1"
        last_listed = "QUALIFY row_number() OVER (PARTITION BY id ORDER BY place DESC) = 1"
        return f"""
            WITH last AS (
                SELECT * FROM known {"" if known_once else last}
            ), each AS (
                SELECT *, {clash} AS clash FROM listed {"" if listed_once else last_listed}
            ), l AS (
                SELECT place, id, fingerprint, clash, refused OR clash AS refused, deleted,
                    CASE WHEN NOT clash THEN version END AS version
                FROM each
            )
            SELECT l.place, coalesce(l.id, k.document) AS id, coalesce(l.clash, false) AS clash,
                {self._reason()} AS reason, k.file, k.row, k.size, k.revision
            FROM l {join} (SELECT * FROM last WHERE source = {quote(self.name)}) k ON l.id = k.document
            WHERE reason IS NOT NULL
        """

    def _reason(self) -> str:
        """Return SQL for the reason why a document is processed; NULL: it is not."""
        due = f"WHEN {self._wanted.due} THEN '{Reason.RETRY}'"
        if self._wanted.only_pending:
            return f"CASE WHEN k.forced THEN '{Reason.FORCED}' {due} END"
        always = f"WHEN k.operation = 'upsert' THEN '{Reason.AGAIN}'" if self._source.detect == "none" else ""
        same_print = "l.fingerprint <> '' AND l.fingerprint = k.fingerprint AND NOT l.refused"
        trusted = f"WHEN {same_print} THEN NULL" if self._source.detect == "fingerprint" else ""
        return (
            f"CASE WHEN k.document IS NULL THEN CASE WHEN NOT l.deleted THEN '{Reason.NEW}' END "
            f"WHEN l.id IS NULL AND NOT {self._is_within('k.document')} THEN NULL "
            f"WHEN l.id IS NULL OR l.deleted THEN CASE WHEN k.operation = 'upsert' THEN '{Reason.DELETED}' END "
            f"WHEN k.forced OR k.again <= {self._wanted.now_us} THEN '{Reason.FORCED}' {due} {always} "
            f"WHEN k.operation = 'delete' THEN '{Reason.NEW}' "
            "WHEN l.version = k.version THEN NULL "
            f"WHEN l.version IS NOT NULL THEN '{Reason.CHANGED}' {trusted} "
            f"ELSE '{Reason.LOOK}' END"
        )

    def _listed_rows(self, paths: list[str]) -> list[str]:
        """Return relations, as SQL, of the rows of these files that count as listed."""
        if not self._within or not self._kept.intersection(paths):
            return [_rows_of(paths)]
        kept = [path for path in paths if path in self._kept]
        rows = [f"{_rows_of(kept)} WHERE NOT {self._is_within('id')}"]
        others = [path for path in paths if path not in self._kept]
        return [*rows, _rows_of(others)] if others else rows

    def _is_within(self, column: str) -> str:
        """Return SQL that tests whether a document would have been listed if it existed."""
        if not self._within:
            return "true"
        return f"({' OR '.join(f'starts_with({column}, {quote(each)})' for each in self._within)})"

    def _store(self, joined: pa.Table) -> None:
        """Store the rows to process by their place in the listing, and those refused for a conflict after all
        others."""
        is_missing = pc.equal(joined["reason"], Reason.DELETED)
        missing = joined.filter(is_missing).combine_chunks()
        self.missing_count += missing.num_rows
        self.unlisted_count += missing["place"].null_count
        for batch in missing.to_batches():
            files = batch.column("file").to_numpy(zero_copy_only=False).astype(np.int64)
            self._deleted_files.add(batch, files * self._deleted_parts // len(self._documents.files))
        for batch in joined.filter(pc.invert(is_missing)).combine_chunks().to_batches():
            place, clash = (batch.column(name).to_numpy(zero_copy_only=False) for name in ("place", "clash"))
            self._to_process.add(batch, (place.astype(np.int64) + self._rows * clash) // self._range)


def _is_unique(hashes: np.ndarray[Any, Any]) -> bool:
    hashes = np.sort(hashes)
    return bool((hashes[1:] != hashes[:-1]).all())


def due_now(now_us: int, longest_s: float, waiting: Collection[str]) -> str:
    """Return SQL that tests whether a failed step of ``k``, a row of ``documents``, is due.

    Args:
        longest_s: the longest back-off.
        waiting: values of ``held`` whose documents must not be tried now.
    """
    held = f" AND (k.held IS NULL OR k.held NOT IN ({', '.join(map(quote, sorted(waiting)))}))" if waiting else ""
    return f"{is_due_sql('k.due', now_us, longest_s)}{held}"


def _rows_of(paths: list[str]) -> str:
    return f"read_parquet({quote_list(map(local_path, paths))})"


# First step: find the ids whose listing and row of ``documents`` may differ.
#
# Only hashes are compared, 24 bytes per row, one partition at a time, so memory is bounded regardless of the size of
# the tables and of the query engine. Candidates are compared again by their full id, so a collision of two ids is
# harmless.

_LISTED_HASHES: Final = pa.schema([("h", pa.uint64()), ("v", pa.uint64()), ("f", pa.uint64())])
_KNOWN_HASHES: Final = pa.schema([*_LISTED_HASHES, ("wave", pa.int64()), ("flags", pa.uint8())])
_CONFLICTING_HASHES: Final = pa.schema([("h", pa.uint64())])

SETTLED: Final = 1
"""Flag: the row is not processed if its version is unchanged."""
LIVE: Final = 2
"""Flag: the document exists at the source, as far as is known."""
WAITING: Final = 4
"""Flag: a failed step or an operator's request is pending for it."""


_Array = np.ndarray[Any, Any]


class Candidates:
    """Ids whose listing and stored row may differ, which are then compared exactly. False positives are possible.

    Attributes:
        hashes: hashes of these ids.
        known: number of documents that existed when the source was last listed.
        any_known: whether ``documents`` has any row of the source.
        special: number of rows whose id is listed twice or is used by a conflicting source, judged by hash.
        rows: approximate number of candidate rows in listing and ``documents``.
    """

    def __init__(self) -> None:
        self.hashes = HashFilter()
        self.known = 0
        self.any_known = False
        self.special = 0
        self.rows = 0


class HashQueries:
    """Queries, on one connection, for the rows to compare by hash.

    Args:
        listed: SQL for the listed rows: ``h`` (id), ``v`` (version), ``f`` (fingerprint).
        known: SQL for the rows of ``documents``, with the same columns, ``wave`` and ``flags``.
        conflicting: SQL for the ids (``h``) of conflicting sources; None: there are none.
        listed_rows, known_rows: upper bounds of the numbers of rows; None: unknown.
    """

    def __init__(
        self,
        db: duckdb.DuckDBPyConnection,
        listed: str,
        known: str,
        conflicting: str | None,
        listed_rows: int | None = None,
        known_rows: int | None = None,
    ) -> None:
        self.listed = (f"SELECT h, v, f FROM ({listed})", _LISTED_HASHES, listed_rows)
        self.known = (f"SELECT h, v, f, wave, flags FROM ({known})", _KNOWN_HASHES, known_rows)
        self.conflicting = None
        if conflicting is not None:
            self.conflicting = (f"SELECT h FROM ({conflicting})", _CONFLICTING_HASHES, None)
        self._db = db

    def stream(self, query: str, schema: pa.Schema, most_rows: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query in these columns, few at a time; runs no query for no rows."""
        return iter(()) if most_rows == 0 else stream(self._db, query, schema, most_rows)


def find_candidates(
    queries: HashQueries, folder: Path, rows: int, *, only_waiting: bool, find_deleted: bool
) -> Candidates:
    """Find ids whose listing and stored row may differ, by hash.

    Args:
        rows: approximate number of rows of listing and ``documents``.
        only_waiting: find only ids that are WAITING.
        find_deleted: also find ids that are LIVE and not listed.
    """
    parts = partitions_for(rows, 0, limits.COMPARED_ROWS, 1)
    partitions = [
        None if of is None else _partition_rows(queries, of, folder / f"compared-{name}", parts)
        for name, of in (("listed", queries.listed), ("known", queries.known), ("conflicting", queries.conflicting))
    ]
    candidates = Candidates()
    for part in range(parts):
        listed, known, conflicting = ({} if s is None else _columns(s.read(part)) for s in partitions)
        _compare(candidates, listed, known, conflicting.get("h"), only_waiting, find_deleted)
    return candidates


def _partition_rows(
    queries: HashQueries, of: tuple[str, pa.Schema, int | None], path: Path, parts: int
) -> PartitionFiles:
    partitions = PartitionFiles(path.parent, path.name, of[1], parts)
    for batch in queries.stream(*of):
        partitions.add(batch, partition_of(batch.column(0).to_numpy(), parts))
    partitions.close()
    return partitions


def _columns(table: pa.Table) -> dict[str, _Array]:
    return {name: table[name].to_numpy() for name in table.column_names}


def _compare(
    found: Candidates,
    listed: dict[str, _Array],
    known: dict[str, _Array],
    conflicting: _Array | None,
    only_waiting: bool,
    find_deleted: bool,
) -> None:
    """Compare one partition: the last known row of each id with its listed row."""
    # ``documents`` has a row for each wave that processed the document: the last one counts
    order = np.lexsort((known["wave"], known["h"]))
    ids = known["h"][order]
    last = np.append(ids[1:] != ids[:-1], True)[: len(ids)]
    known = {name: column[order[last]] for name, column in known.items()}
    ids, flags = known["h"], known["flags"]
    live = (flags & LIVE) != 0
    found.known += int(live.sum())
    found.any_known |= bool(len(ids))
    order = np.argsort(listed["h"])  # groups rows of one id
    listed = {name: column[order] for name, column in listed.items()}
    hashes = listed["h"]
    at, is_known = look_up(ids, hashes)
    twice = _is_duplicate(hashes)
    clash = np.isin(hashes, conflicting) if conflicting is not None else np.zeros(len(hashes), bool)
    found.special += int((twice | clash).sum())
    if only_waiting:
        is_candidate = is_known.copy()
        is_candidate[is_known] = (flags[at[is_known]] & WAITING) != 0
        _add_candidates(found, hashes[is_candidate | clash], ids[:0])
        return
    same = is_known.copy()
    pairs = at[is_known]
    equal = (listed["v"][is_known] == known["v"][pairs]) | (listed["f"][is_known] == known["f"][pairs])
    same[is_known] = equal & ((flags[pairs] & SETTLED) != 0)
    is_listed = np.zeros(len(ids), bool)
    is_listed[at[is_known]] = True
    missing = ids[live & ~is_listed] if find_deleted else ids[:0]
    _add_candidates(found, hashes[~same | twice | clash], missing)


def _is_duplicate(hashes: _Array) -> _Array:
    """Return a mask of the hashes (ascending) that occur more than once."""
    equal = np.append(hashes[1:] == hashes[:-1], False)[: len(hashes)]
    found: _Array = equal | np.append(False, equal[:-1])[: len(hashes)]
    return found


def _add_candidates(candidates: Candidates, listed: _Array, missing: _Array) -> None:
    candidates.hashes.add(listed)
    candidates.hashes.add(missing)
    candidates.rows += 2 * len(listed) + len(missing)


# Third step: put the rows to process back into the order of their source, in which tasks read documents.


class SourceOrder:
    """Builds rows of a wave batch from compared rows, in the order of the source.

    Args:
        paths: paths of the listing's files.
        starts: place of each file's first row, and at the end the total number of rows.
        files: paths of the files of ``documents``, by number.
        clash: reason for refusing a document whose id belongs to another source.
    """

    def __init__(self, paths: list[str], starts: np.ndarray[Any, Any], files: list[str], clash: str) -> None:
        self._paths = paths
        self._starts = starts
        self._files = pa.array(files, pa.string())
        self._clash = clash

    def rows_to_process(self, compared: pa.Table) -> Iterator[pa.Table]:
        """Yield the listed rows by place, with those refused for a conflict after all others."""
        if not compared.num_rows:
            return
        columns = (compared[name].to_numpy() for name in ("place", "clash"))
        order = np.lexsort(tuple(columns))
        compared = compared.combine_chunks().take(number_array(order))
        place, clash = compared["place"].to_numpy(), compared["clash"].to_numpy()
        number = np.searchsorted(self._starts, place, side="right") - 1
        ends = np.flatnonzero(np.append((np.diff(number) != 0) | (clash[1:] != clash[:-1]), True)) + 1
        start = 0
        for end in ends.tolist():
            path, first = self._paths[number[start]], self._starts[number[start]]
            with RowGroups(path, LISTED) as file:
                for listed in file.rows_at(place[start:end] - first):
                    rows = compared.slice(start, listed.num_rows)
                    yield self._batch_rows(path, listed, rows, clashing=bool(clash[start]))
                    start += listed.num_rows

    def missing_rows(self, compared: pa.Table) -> pa.Table:
        """Return rows for documents that are no longer listed."""
        nothing = {"size": 0, "fingerprint": "", "location": ""}
        return table_of(BATCH_FILE, compared.num_rows, id=compared["id"], **nothing, **self._compared_columns(compared))

    def _batch_rows(self, path: str, listed: pa.Table, rows: pa.Table, *, clashing: bool) -> pa.Table:
        columns: dict[str, Any] = {name: listed[name] for name in LISTED} | {"part": path}
        if clashing:
            columns |= {"part": None, "version": None, "refused": self._clash}
        return table_of(BATCH_FILE, rows.num_rows, **columns, **self._compared_columns(rows))

    def _compared_columns(self, rows: pa.Table) -> dict[str, Any]:
        """Return the columns that come from the comparison."""
        return {
            "reason": rows["reason"],
            "known_file": self._files.take(rows["file"].combine_chunks()),
            "known_row": rows["row"],
            "known_size": pc.fill_null(rows["size"], 0),
            "unconfirmed": rows["unconfirmed"],
            "unsure": rows["unsure"],
        }


# Unconfirmed rows: they wait in the outbox, or are held there for review.
#
# A delete is removed from ``given`` when it is committed, although the document exists at the destination until the
# delete is confirmed. So a newer version of the document, or another deletion, takes an unconfirmed delete into account
# again. Otherwise a delete that ends as DEAD would be forgotten together with the revision it belongs to.
#
# An upsert is added to ``given`` when it is committed, with a hash of its content if a step asked for that. Until it is
# confirmed, it is unknown what the destination has, so the hashes of the whole family are ignored and all of it is sent
# again.

UNCONFIRMED: Final = pa.schema(
    [
        ("h", pa.uint64()),
        ("destination", pa.string()),
        ("origin", pa.string()),
        ("document", pa.string()),
        ("route", pa.string()),
        ("revision", pa.int64()),
        ("waits", pa.bool_()),
    ]
)
"""Columns of an outbox row that is pending or held for review. ``document`` is null for an upsert. ``h``: hash of the
origin."""

_COLUMNS: Final = pa.schema([f for f in OUTBOX if f.name not in (*OUTBOX_PARTITION, *OUTBOX_CONTENT)])

_UNCONFIRMED_OF_COMPARED: Final = """
    SELECT u.origin, u.document, u.route, u.destination
    FROM unconfirmed u JOIN compared v ON u.origin = v.id
    WHERE u.waits OR u.revision = v.revision  -- what is held for an older revision was processed when that ended
    ORDER BY ALL
"""


def unconfirmed(db: duckdb.DuckDBPyConnection, outbox: Table, source: str) -> Iterator[pa.RecordBatch]:
    """Yield the unconfirmed outbox rows of a source."""
    by_destination: dict[str, list[str]] = defaultdict(list)
    for file in outbox.files.values():
        by_destination[file.partition["destination"]].append(file.path)
    for destination, paths in by_destination.items():
        db.register("outbox", parquet.scan(outbox.paths(paths), _COLUMNS))
        yield from stream(
            db,
            f"""
            SELECT origin, {quote(destination)}, origin, CASE operation WHEN 'delete' THEN document END,
                route, revision, due IS NOT NULL
            FROM outbox WHERE source = {quote(source)}
            """,
            UNCONFIRMED,
        )
        db.unregister("outbox")


def unconfirmed_columns(db: duckdb.DuckDBPyConnection, compared: pa.Table) -> tuple[list[str | None], list[bool]]:
    """Return two columns for compared rows (``id``, ``revision``), computed from the relation ``unconfirmed``: the
    unconfirmed deletes, in the form of ``given``, to be treated as published; and whether an upsert of the family is
    unconfirmed."""
    deletes: dict[str, list[Published]] = defaultdict(list)
    unsure: set[str] = set()
    db.register("compared", compared)
    for origin, document, route, destination in db.execute(_UNCONFIRMED_OF_COMPARED).fetchall():
        if document is None:
            unsure.add(origin)
        else:
            deletes[origin].append(Published(document[len(origin) :], route, destination))
    db.unregister("compared")
    ids = compared["id"].to_pylist()
    return [encode_published(deletes[id]) if id in deletes else None for id in ids], [id in unsure for id in ids]
