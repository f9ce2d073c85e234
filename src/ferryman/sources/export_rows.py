"""Exports of a keyed node as Arrow tables; not in ``sources.exports``, because pyarrow takes long to load."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman.records.keys import EXPORTS_FILE, export_revision, key_hash, lanes
from ferryman.records.rows import table_of
from ferryman.sources.log import Piece
from ferryman.sources.log_rows import ROWS
from ferryman.storage.parquet import RowGroups


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
