"""Ledger events as Arrow tables: made from outbox rows that were sent, or from single facts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman.records.row_results import UNTOUCHED, RowResult
from ferryman.records.schemas import LEDGER
from ferryman.records.statuses import Status

ORDINAL_COMMAND: Final = 0
ORDINAL_STEPS: Final = 1
ORDINAL_SENT: Final = 2
"""Events of one wave in their order: operator commands, what the steps made of it, what sending it came to."""

_MOST_BYTES: Final = (1 << 31) - 1
"""Of all values of a binary array, which has offsets of 32 bits."""

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
"""Columns that an event has from its outbox row."""


def table_of(schema: pa.Schema, rows: int, **columns: Any) -> pa.Table:
    """A table from columns, each a sequence or one value for all rows; missing ones are null."""
    assert columns.keys() <= set(schema.names), columns.keys() - set(schema.names)
    arrays = []
    for field in schema:
        value = columns.get(field.name)
        if value is None:
            arrays.append(pa.nulls(rows, field.type))
        elif isinstance(value, (pa.Array, pa.ChunkedArray)):
            arrays.append(value)
        elif isinstance(value, (str, int, dt.datetime)):
            arrays.append(pa.repeat(pa.scalar(value, field.type), rows))
        elif field.type == pa.binary():
            arrays.append(binary_array(value))
        else:
            arrays.append(pa.array(value, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def binary_array(values: Sequence[bytes | None]) -> pa.Array:
    """What ``pa.array`` makes of them, in a tenth of the time where all are there and have some hundred bytes."""
    if None not in values:
        contents = cast("Sequence[bytes]", values)
        ends = np.cumsum(np.fromiter(map(len, contents), np.int64, len(values)))
        if len(values) and ends[-1] <= _MOST_BYTES:
            offsets = np.zeros(len(values) + 1, np.int32)
            offsets[1:] = ends
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(contents))]
            return pa.Array.from_buffers(pa.binary(), len(values), buffers)
    elif values.count(None) == len(values):
        return pa.nulls(len(values), pa.binary())
    return pa.array(values, pa.binary())


def events(rows: list[dict[str, Any]], **constant: Any) -> pa.Table:
    """Ledger rows from dicts that all have the same keys, and values that all rows share."""
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    columns = {"route": "", "branches": "", "created": dt.datetime.now(dt.UTC), **constant, **columns}
    return table_of(LEDGER, len(rows), **columns)


def sent_events(outbox_rows: pa.Table, noted: Iterable[RowResult], destination: str, wave: int) -> pa.Table:
    """What became of outbox rows that were sent: INDEXED but for those noted; untouched ones have no event."""
    n = outbox_rows.num_rows
    columns: dict[str, Any] = {name: outbox_rows[name] for name in EVENT_OF_ROW}
    columns["status"] = Status.INDEXED.value
    columns["attempt"] = pc.add(outbox_rows["attempt"], 1)
    exceptions = {r.row: r for r in noted}
    if exceptions:
        rows = outbox_rows["row"].to_pylist()
        found = [exceptions.get(r) for r in rows]
        columns["status"] = [Status.INDEXED.value if f is None else f.status for f in found]
        columns["message"] = [None if f is None else f.message for f in found]
        columns["attempt"] = [
            a + 1 if f is None else f.attempt for a, f in zip(outbox_rows["attempt"].to_pylist(), found, strict=True)
        ]
        for name in ("due", "since", "transient"):
            columns[name] = [None if f is None else getattr(f, name) for f in found]
    table = table_of(
        LEDGER, n, **columns, destination=destination, wave=wave, ordinal=ORDINAL_SENT, created=dt.datetime.now(dt.UTC)
    )
    return table.filter(pc.not_equal(table["status"], UNTOUCHED)) if exceptions else table
