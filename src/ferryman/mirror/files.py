"""The two tables in files: a SQLite database, or a folder of Parquet files.

A file has no keyspaces. So each table begins with the column ``keyspace``, and a third one, ``jj_keyspaces``, says
which source, plan, version and destination a keyspace is for. The other columns are the same.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ferryman import limits
from ferryman.account.queries import open_view, retry_read
from ferryman.account.relations import View
from ferryman.errors import UsageError
from ferryman.mirror.mirror import pairs_of
from ferryman.mirror.tables import (
    ALGORITHM,
    DOC_HASH,
    STATUS,
    hash_rows,
    keyspace_of,
    latest_time,
    microseconds,
    status_rows,
    waiting_rows,
)
from ferryman.plan import Plan
from ferryman.storage.files import StatePath

KEYSPACES: Final = "jj_keyspaces"

_INT, _TEXT, _TIME = pa.int32(), pa.string(), pa.timestamp("ms", tz="UTC")

SCHEMAS: Final = {
    STATUS.name: pa.schema(
        [
            *(("keyspace", _TEXT), ("docId", _TEXT), ("docHash", _TEXT), ("parentId", _TEXT), ("origParentId", _TEXT)),
            *(("outputStepName", _TEXT), ("status", _TEXT), ("message", _TEXT), ("antiCollision", _INT)),
            *(("created", _TIME), ("createdNanos", _INT)),
        ]
    ),
    DOC_HASH.name: pa.schema(
        [
            *(("keyspace", _TEXT), ("docId", _TEXT), ("created", _TIME), ("createdNanos", _INT)),
            *(("antiCollision", _INT), ("hashAlg", _TEXT), ("docHash", _TEXT)),
        ]
    ),
    KEYSPACES: pa.schema(
        [*(("keyspace", _TEXT), ("scanner", _TEXT), ("plan", _TEXT), ("version", _INT), ("outputStepName", _TEXT))]
    ),
}
"""Table -> its columns."""

_KEYS: Final = {
    STATUS.name: "keyspace, docId, created DESC, createdNanos DESC, outputStepName, antiCollision",
    DOC_HASH.name: "keyspace, docId, created DESC, createdNanos DESC, antiCollision",
    KEYSPACES: "keyspace",
}


class Exported(NamedTuple):
    """Numbers of rows that were written."""

    events: int
    documents: int


def export(root: StatePath, plan: Plan, to: Path) -> Exported:
    """Write the ledger of a state into a new file, ``….db`` or ``….sqlite``, or a new folder of Parquet files.

    It is complete, or not there: what is being written has another name.

    Raises:
        UsageError: there is something of this name, or no state.
    """
    if to.exists():
        raise UsageError(f"{to}: it is there already. Nothing was changed: give another name, or remove it.")
    to.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{to.name}-", dir=to.parent))
    try:
        with contextlib.ExitStack() as stack:
            view = retry_read(root, lambda: stack.enter_context(open_view(root, plan)))
            if to.suffix in (".db", ".sqlite", ".sqlite3"):
                exported = _write_sqlite(view, plan, scratch / to.name)
                os.link(scratch / to.name, to)
            else:
                exported = _write_parquet(view, plan, scratch / to.name)
                os.rename(scratch / to.name, to)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return exported


Rows = Iterator[tuple[Any, ...]]


def _rows_of_tables(view: View, plan: Plan) -> Iterator[tuple[str, Rows]]:
    """Yield each table with its rows; those of one must be read before the next table is asked for."""
    pairs = sorted(pairs_of(view, plan))
    spaces = {(scanner, step): keyspace_of(scanner, plan.name, plan.version, step) for scanner, step in pairs}
    yield KEYSPACES, ((spaces[pair], pair[0], plan.name, plan.version, pair[1]) for pair in pairs)
    at = max(latest_time(view, view.settled), microseconds(view.created)) + 1

    def statuses() -> Rows:
        for rows in (status_rows(view, 0, view.settled), waiting_rows(view, 0, view.settled, at)):
            for row in rows:
                yield (
                    *(spaces[row.scanner, row.output_step], row.id, row.hash, row.parent, row.origin),
                    *(row.output_step, row.status, row.message, row.anti_collision, row.created, row.nanos),
                )

    yield STATUS.name, statuses()

    def hashes() -> Rows:
        for row in hash_rows(view, 0, view.settled, microseconds(view.created)):
            keyspace = spaces[row.scanner, ""]
            yield (keyspace, row.id, row.created, row.nanos, row.anti_collision, ALGORITHM, row.hash)

    yield DOC_HASH.name, hashes()


def _write_all(view: View, plan: Plan, write: Callable[[str, Iterable[Sequence[Any]]], None]) -> Exported:
    """Write the rows of each table, some at a time; return their numbers."""
    numbers = dict.fromkeys(SCHEMAS, 0)
    for table, rows in _rows_of_tables(view, plan):
        while some := list(islice(rows, limits.MIRROR_ROWS)):
            write(table, some)
            numbers[table] += len(some)
    return Exported(numbers[STATUS.name], numbers[DOC_HASH.name])


def _write_sqlite(view: View, plan: Plan, path: Path) -> Exported:
    with contextlib.closing(sqlite3.connect(path)) as db:
        times = {}
        for table, schema in SCHEMAS.items():
            kinds = ", ".join(f'"{f.name}" {"INTEGER" if f.type == _INT else "TEXT"}' for f in schema)
            db.execute(f"CREATE TABLE {table} ({kinds}, PRIMARY KEY ({_KEYS[table]})) WITHOUT ROWID")
            times[table] = schema.get_field_index("created")
        db.execute(f"CREATE INDEX jj_ft_idx_step_status ON {STATUS.name} (keyspace, status)")

        def write(table: str, rows: Iterable[Sequence[Any]]) -> None:
            marks = ", ".join("?" * len(SCHEMAS[table]))
            at = times[table]
            shown = rows if at < 0 else ((*row[:at], time_text(row[at]), *row[at + 1 :]) for row in rows)
            db.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", shown)

        exported = _write_all(view, plan, write)
        db.commit()
    return exported


def time_text(milliseconds: int) -> str:
    """Return a time in ms since 1970 as ISO 8601 in UTC, which sorts by time."""
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _write_parquet(view: View, plan: Plan, folder: Path) -> Exported:
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        writers = {
            table: stack.enter_context(pq.ParquetWriter(folder / f"{table}.parquet", schema))
            for table, schema in SCHEMAS.items()
        }

        def write(table: str, rows: Iterable[Sequence[Any]]) -> None:
            schema = SCHEMAS[table]
            columns = [
                pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)
            ]
            writers[table].write_batch(pa.record_batch(columns, schema=schema))

        return _write_all(view, plan, write)
