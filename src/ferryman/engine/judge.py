"""Scan, second half: the driver judges a finished listing once, then cuts it into waves.

What is new, changed, owed (a failed step is due) or gone is decided by one join of the listing with the ``documents``
table, in DuckDB: it streams, and spills to disk where memory ends. Contents are not touched; documents whose content
was not read while listing are marked ``look``: the worker that reads them decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ferryman import settings
from ferryman.engine.listing import Listing
from ferryman.errors import TooManyDeletes
from ferryman.ledger.schemas import DOCUMENTS
from ferryman.storage import parquet
from ferryman.storage.query import connect
from ferryman.storage.tables import Table

JUDGED: Final = pa.schema(
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
        pa.field("attempt", pa.int64()),
    ]
)
"""One row a document that a wave takes up; ``part`` and ``row`` say where its listing row is (null for ``gone``)."""

_LISTED = "id, size, fingerprint, location, refused, version"
_KNOWN = (
    "k.version AS known_version, k.revision AS known_revision, k.fingerprint AS known_fingerprint, "
    "k.operation AS known_operation, k.given, k.due, k.attempt"
)


class TaskCut(NamedTuple):
    """What one transform task takes: a row group of a slice's file."""

    source: str
    path: str
    group: int
    rows: int


class Slice(NamedTuple):
    """What one wave takes up."""

    tasks: list[TaskCut]
    bytes: int

    @property
    def rows(self) -> int:
        return sum(t.rows for t in self.tasks)


class Verdict(NamedTuple):
    """A judged listing."""

    slices: list[Slice]
    notes: list[str]
    """What a person should know: duplicates, incomplete listings."""
    complete: bool


def judge(
    listings: list[Listing],
    documents: Table,
    folder: Path,
    *,
    now_us: int,
    only_owed: bool = False,
    allow_deletes: bool = False,
    slots: int = 2,
    wave_bytes: int = settings.WAVE_BYTES,
) -> Verdict:
    """Judge the listings of all sources, then cut.

    Args:
        only_owed: take up only what a failed step or a person is waiting for; nothing is judged as gone.
        slots: tasks that run at once; a small scan is cut so that all have work.

    Raises:
        TooManyDeletes: before anything is cut.
    """
    notes = [
        f"source {x.source.name}: incomplete listing, nothing of it is deleted: {f}"
        for x in listings
        for f in x.failures
    ]
    with connect(folder) as db:
        judges = [_SourceJudge(db, x, documents, now_us, only_owed) for x in listings]
        for j in judges:
            if j.duplicates:
                notes.append(
                    f"source {j.name}: {j.duplicates} duplicate ids, of each the last is kept: {', '.join(j.examples)}"
                )
            j.guard_deletes(allow_deletes)
        cutter = _Cutter(folder, slots, sum(x.rows for x in listings), sum(x.bytes for x in listings), wave_bytes)
        for j in judges:
            for batch in j.taken_up():
                cutter.add(j.name, batch)
        for j in judges:  # in the last slice: what replaces them elsewhere is delivered first
            for batch in j.gone():
                cutter.add(j.name, batch)
        return Verdict(cutter.finish(), notes, not any(x.failures for x in listings))


class _SourceJudge:
    """The verdict on one source."""

    def __init__(
        self, db: duckdb.DuckDBPyConnection, listing: Listing, documents: Table, now_us: int, only_owed: bool
    ) -> None:
        self._db = db
        self._source = listing.source.source
        self.name = listing.source.name
        self._now_us = now_us
        self._only_owed = only_owed
        self._complete = not listing.failures
        paths = [p.path for p in listing.parts if p.rows]
        self._order = {path: i for i, path in enumerate(paths)}
        self._listed = paths
        self._listed_rows = listing.rows
        self._known = f"known_{self.name}".replace(".", "_").replace("-", "_")
        self._remember(documents)
        self.duplicates, self.examples = self._find_duplicates()

    def _remember(self, documents: Table) -> None:
        """The last row of each known document, as a table of this connection."""
        self.known_rows = 0
        if not documents.files:
            return
        dataset = parquet.scan(documents.paths(), DOCUMENTS)
        self._db.register("documents_files", dataset)
        self._db.execute(
            f'CREATE OR REPLACE TEMP TABLE "{self._known}" AS '
            "SELECT document, unnest(arg_max({version: version, revision: revision, fingerprint: fingerprint, operation: operation, "
            "given: given, due: due, attempt: attempt, forced: forced}, wave)) FROM documents_files WHERE source = ? GROUP BY document",
            [self.name],
        )
        self._db.unregister("documents_files")
        self.known_rows = self._one(f'SELECT count(*) FROM "{self._known}"')

    def _find_duplicates(self) -> tuple[int, list[str]]:
        if not self._listed:
            return 0, []
        twice = self._listed_rows - self._one(f"SELECT count(DISTINCT id) FROM {self._files()}")
        if not twice:
            return 0, []
        rows = self._db.execute(
            f"SELECT id FROM {self._files()} GROUP BY id HAVING count(*) > 1 ORDER BY id LIMIT 3"
        ).fetchall()
        return twice, [r[0] for r in rows]

    def guard_deletes(self, allowed: bool) -> None:
        """Raise if too much of the source is gone."""
        if allowed or self._only_owed or not self._complete or not self.known_rows:
            return
        known = self._one(f"SELECT count(*) FROM \"{self._known}\" WHERE operation = 'upsert'")
        gone = self._one(f"SELECT count(*) FROM ({self._gone_query('1')})")
        if known and gone > self._source.max_deleted * known:
            raise TooManyDeletes(self.name, gone, known, self._source.max_deleted)

    def taken_up(self) -> Iterator[pa.RecordBatch]:
        """What is listed and must be read or fed, in the source's order."""
        if not self._listed or (self._only_owed and not self.known_rows):
            return
        if not self.known_rows and not self.duplicates:
            yield from self._all_new()
            return
        distinct = f"SELECT part, row, {_LISTED} FROM {self._files()}"
        if self.duplicates:
            distinct += " QUALIFY row_number() OVER (PARTITION BY id ORDER BY part DESC, row DESC) = 1"
        if not self.known_rows:
            nothing = ", ".join(f"NULL AS {f.name}" for f in list(JUDGED)[9:])
            query = f"SELECT *, 'new' AS reason, {nothing} FROM ({distinct})"
        else:
            query = (
                f"SELECT l.*, {self._reason()} AS reason, {_KNOWN} FROM ({distinct}) l "
                f'LEFT JOIN "{self._known}" k ON l.id = k.document WHERE reason IS NOT NULL'
            )
        yield from self._batches(f"{query} ORDER BY part, row")

    def gone(self) -> Iterator[pa.RecordBatch]:
        """What was known and is not listed any more."""
        if self._only_owed or not self._complete or not self.known_rows:
            return
        yield from self._batches(
            self._gone_query(
                "NULL AS part, NULL AS row, k.document AS id, 0 AS size, '' AS fingerprint, '' AS location, "
                f"NULL AS refused, NULL AS version, 'gone' AS reason, {_KNOWN}"
            )
        )

    def _reason(self) -> str:
        """Why a listed document is taken up, as SQL; NULL: it is not."""
        due = f"WHEN k.due <= {self._now_us} THEN 'retry'"
        if self._only_owed:
            return f"CASE WHEN k.forced THEN 'forced' {due} END"
        always = "WHEN k.operation = 'upsert' THEN 'again'" if self._source.detect == "none" else ""
        trusted = (
            "WHEN l.fingerprint <> '' AND l.fingerprint = k.fingerprint AND l.refused IS NULL THEN NULL"
            if self._source.detect == "fingerprint"
            else ""
        )
        return (
            f"CASE WHEN k.document IS NULL THEN 'new' WHEN k.forced THEN 'forced' {due} {always} "
            "WHEN k.operation = 'delete' THEN 'new' "
            f"WHEN l.version IS NOT NULL AND l.version = k.version THEN NULL WHEN l.version IS NOT NULL THEN 'changed' {trusted} "
            "ELSE 'look' END"
        )

    def _gone_query(self, columns: str) -> str:
        listed = f"ANTI JOIN (SELECT id FROM {self._files()}) l ON l.id = k.document" if self._listed else ""
        return f"SELECT {columns} FROM \"{self._known}\" k {listed} WHERE k.operation = 'upsert'"

    def _files(self) -> str:
        """The listing's files as a relation; ``part`` numbers them in the source's order."""
        names = ", ".join(_quoted(p) for p in self._listed)
        numbers = ", ".join(f"{_quoted(p)}: {i}" for p, i in self._order.items())
        return f"(SELECT MAP {{{numbers}}}[filename] AS part, * EXCLUDE (filename, fields, raw) FROM read_parquet([{names}], filename = true))"

    def _batches(self, query: str) -> Iterator[pa.RecordBatch]:
        """Rows of a query in JUDGED's columns; part numbers become paths again."""
        for batch in self._db.sql(query).to_arrow_reader(65_536):
            if not batch.num_rows:
                continue
            columns = {name: batch.column(name) for name in batch.schema.names}
            columns["part"] = _paths(columns["part"], self._listed)
            yield pa.RecordBatch.from_arrays([columns[f.name].cast(f.type) for f in JUDGED], schema=JUDGED)

    def _all_new(self) -> Iterator[pa.RecordBatch]:
        """A first scan: nothing to join with, so the listing is passed on as it is."""
        columns = ["row", *_LISTED.split(", ")]
        for path in self._listed:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(columns=columns, use_threads=False):
                    n = batch.num_rows
                    constant = {"part": pa.repeat(path, n), "reason": pa.repeat("new", n)}
                    yield pa.RecordBatch.from_arrays(
                        [
                            constant.get(f.name) if f.name in constant
                            else batch.column(f.name) if f.name in columns
                            else pa.nulls(n, f.type)
                            for f in JUDGED
                        ],
                        schema=JUDGED,
                    )  # fmt: skip

    def _one(self, query: str) -> int:
        [(value,)] = self._db.execute(query).fetchall()
        return int(value)


class _Cutter:
    """Cuts judged rows into tasks (row groups) and waves (files)."""

    def __init__(self, folder: Path, slots: int, rows: int, size: int, wave_bytes: int) -> None:
        self._folder = folder
        self._task_rows = int(np.clip(rows // (2 * slots), 256, settings.TASK_DOCUMENTS))
        self._task_bytes = int(np.clip(size // (2 * slots), settings.MIB, settings.TASK_BYTES))
        self._wave_bytes = wave_bytes
        self._slices: list[Slice] = []
        self._writer: pq.ParquetWriter | None = None
        self._path = ""
        self._tasks: list[TaskCut] = []
        self._bytes = 0
        self._source = ""
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0

    def add(self, source: str, batch: pa.RecordBatch) -> None:
        if source != self._source:
            self._flush()
            self._source = source
        sizes = np.cumsum(batch.column("size").to_numpy(zero_copy_only=False))
        start = 0
        while start < batch.num_rows:
            before = int(sizes[start - 1]) if start else 0
            room = self._task_bytes - self._pending_bytes
            by_bytes = int(np.searchsorted(sizes, before + room, side="right"))
            end = min(
                max(by_bytes, start + (not self._pending_rows)),
                start + self._task_rows - self._pending_rows,
                batch.num_rows,
            )
            if end > start:
                self._pending.append(batch.slice(start, end - start))
                self._pending_rows += end - start
                self._pending_bytes += int(sizes[end - 1]) - before
            if end < batch.num_rows or self._pending_rows >= self._task_rows:
                self._flush()
            start = end

    def finish(self) -> list[Slice]:
        self._flush()
        self._close()
        return self._slices

    def _flush(self) -> None:
        """End a task; end the wave first if the task does not fit into it any more."""
        if not self._pending:
            return
        if self._tasks and self._bytes + self._pending_bytes > self._wave_bytes:
            self._close()
        if self._writer is None:
            self._path = str(self._folder / f"slice-{len(self._slices):06d}.parquet")
            self._writer = pq.ParquetWriter(
                self._path, JUDGED, compression="lz4", use_dictionary=["part", "reason", "given"]
            )
        table = pa.Table.from_batches(self._pending)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._tasks.append(TaskCut(self._source, self._path, len(self._tasks), table.num_rows))
        self._bytes += self._pending_bytes
        self._pending = []
        self._pending_rows = self._pending_bytes = 0

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._slices.append(Slice(self._tasks, self._bytes))
            self._writer, self._tasks, self._bytes = None, [], 0


def _paths(numbers: pa.Array, paths: list[str]) -> pa.Array:
    if numbers.null_count == len(numbers):
        return pa.nulls(len(numbers), pa.string())
    return pa.array(paths, pa.string()).take(numbers.cast(pa.int64()))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
