"""Entries of a log, and exports of a keyed node, as Arrow tables; apart from logs, for pyarrow takes long to load."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman.document import content_version, decode_fields, encode_fields, size_problem
from ferryman.errors import BadDocument
from ferryman.records.keys import EXPORTS_FILE, export_revision, key_hash, lanes
from ferryman.records.provenance import merge_provenances
from ferryman.records.rows import table_of
from ferryman.sources.log import Piece, joined_id
from ferryman.storage.parquet import RowGroups, column_values, number_array

ROWS: Final = pa.schema(
    [
        pa.field("place", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("fields", pa.binary()),
        pa.field("raw", pa.binary()),
        pa.field("version", pa.string()),
        pa.field("refused", pa.string()),
        pa.field("dropped", pa.string()),
        pa.field("provenance", pa.string()),
    ]
)
"""Columns of ``Log.rows``; in each row either ``fields`` or ``refused`` is not null."""


def table_of_entries(rows: list[tuple[Any, ...]]) -> pa.Table:
    """Convert rows, with values in the order of ``ROWS``, to a table."""
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, ROWS, strict=True)], schema=ROWS)


def join_tables(number: int, inputs: Mapping[str, pa.Table]) -> pa.Table | None:
    """Join the n-th entries of all inputs, which have equally many, and drop none.

    Args:
        number: number of the first joined document.

    Returns:
        Documents in the columns of ``ROWS``; None: an entry is refused, has raw bytes, or cannot be joined.
    """
    rows = next(iter(inputs.values())).num_rows
    if any(table[name].null_count < rows for table in inputs.values() for name in ("raw", "refused")):
        return None
    ids = [table["id"].to_pylist() for table in inputs.values()]
    parts = [
        [{"id": id, "fields": decode_fields(each)} for id, each in zip(own, table["fields"].to_pylist(), strict=True)]
        for own, table in zip(ids, inputs.values(), strict=True)
    ]
    try:
        fields = [encode_fields(dict(zip(inputs, each, strict=True))) for each in zip(*parts, strict=True)]
    except BadDocument:
        return None
    if any(size_problem(each, None) for each in fields):
        return None
    return table_of(
        ROWS,
        rows,
        place=number_array(np.arange(number, number + rows)),
        id=list(map(joined_id, zip(*ids, strict=True))),
        fields=fields,
        version=[content_version(each, None) for each in fields],
        provenance=_merge(inputs.values(), rows),
    )


def _merge(inputs: Collection[pa.Table], rows: int) -> list[str | None] | None:
    if all(table["provenance"].null_count == rows for table in inputs):
        return None
    return list(map(merge_provenances, zip(*(column_values(table["provenance"]) for table in inputs), strict=True)))


# --- exports of a keyed node ---


def rows_of(piece: Piece) -> Iterator[pa.Table]:
    """Yield the exports of a piece in the columns of ``ROWS`` and three more: ``revision``, ``deletes`` (whether it is
    a deletion), ``key_hash``.

    Raises:
        StateDamaged: the file is missing, or not what was written.
    """
    first, _, path = piece.identity.partition(":")
    place = piece.start
    with RowGroups(path, EXPORTS_FILE.names, verified=True) as groups:
        for rows in groups.rows_between(piece.start - int(first), piece.end - int(first)):
            yield _in_order(rows, place, lanes().index(piece.partition))
            place += rows.num_rows


def _in_order(rows: pa.Table, place: int, lane: int) -> pa.Table:
    places = pa.array(np.arange(place, place + rows.num_rows), pa.int64())
    columns = {name: rows[name] for name in ("fields", "raw", "version")}
    table = table_of(ROWS, rows.num_rows, place=places, id=rows["document"], **columns)
    table = table.append_column("revision", pa.array(export_revision(lane, np.asarray(places))))
    table = table.append_column("deletes", pc.equal(rows["operation"], "delete"))
    return table.append_column("key_hash", pa.array(map(key_hash, rows["key"].to_pylist()), pa.int64()))
