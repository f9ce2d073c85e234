"""Rows of ``documents`` and of the ledger in fewer files, without the outdated: those whose document has a newer row.

Files are read and written a row group at a time. What is looked at to find outdated rows takes the same memory
however many there are: hashes, a part of the documents at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import limits
from ferryman.state.latest import DOCUMENT, Columns, chosen_by_file, every
from ferryman.state.outbox import due_stats
from ferryman.state.small_files import fitting, gathered
from ferryman.state.state import KEPT, State
from ferryman.storage.groups import RowGroups
from ferryman.storage.handles import DataFile
from ferryman.storage.parquet import Part, PartWriter, content_size
from ferryman.storage.query import connect, verify
from ferryman.storage.tables import Table

_CHECK = {"check": (f"md5_number_lower({DOCUMENT})", pa.uint64())}
"""A second hash: what is dropped is gone, so two documents must not be taken for one."""

Rows = np.ndarray[Any, Any]
"""Numbers of rows of a file, ascending."""


class Outdated(NamedTuple):
    """What is to be dropped of ``documents``.

    Attributes:
        kept: documents; each has one row that counts.
        groups: of files that are to become one: each with its rows that stay.
    """

    kept: int
    groups: list[list[tuple[DataFile, Rows]]]


def has_outdated(state: State) -> bool:
    """Are so many rows of ``documents`` outdated, perhaps, that it is worth a look? Costs nothing."""
    files = state.documents.files.values()
    if len(files) < limits.COMPACT_FILES and sum(f.size for f in files) < limits.PART_BYTES:
        return False
    rows = sum(f.rows for f in files)
    return rows - state.documents.transactions[KEPT] >= limits.OUTDATED_SHARE * rows


def find_outdated(state: State) -> Outdated:
    """Which files are to be freed of outdated rows.

    Those that have the most of them, up to ``OUTDATED_BYTES``; those that have few are left alone.
    """
    files = list(state.documents.files.values())
    stays = _last_rows(state, files)
    least = limits.OUTDATED_SHARE / 2
    worth = [
        (float(mask.mean()), file, mask)
        for file, mask in zip(files, stays, strict=True)
        if not mask.all() and mask.mean() <= 1 - least
    ]
    staying: dict[str, Rows] = {}
    sizes: list[tuple[int, DataFile]] = []
    total = 0
    for share, file, mask in sorted(worth, key=lambda each: each[0]):
        size = content_size(state.documents.path(file.path)) if share else 0  # or else it is not read
        if sizes and total + size > limits.OUTDATED_BYTES:
            break
        total += size
        staying[file.path] = np.flatnonzero(mask)
        sizes.append((int(size * share), file))
    kept = sum(int(mask.sum()) for mask in stays)
    return Outdated(kept, [[(file, staying[file.path]) for file in batch] for batch in fitting(sizes)])


def write_staying(state: State, group: list[tuple[DataFile, Rows]]) -> Part | None:
    """Write one file with what stays of a group; None: nothing does.

    Raises:
        StateDamaged: a file is missing, or not what was written.
    """
    table = state.documents
    picked = (rows for file, staying in group if len(staying) for rows in _picked(table, file, staying))
    return _written(table, picked, state.epoch)


def write_merged(state: State, table: Table, files: list[DataFile]) -> Part | None:
    """Write one file with all rows of several; the ledger's in their order.

    Raises:
        StateDamaged: a file is missing, or not what was written.
    """
    every_row: Iterable[pa.Table] = (rows for file in files for rows in _picked(table, file, None))
    if table is state.ledger:
        every_row = [pa.concat_tables(every_row).sort_by([("wave", "ascending"), ("ordinal", "ascending")])]
    return _written(table, every_row, state.epoch)


def _last_rows(state: State, files: list[DataFile]) -> list[Rows]:
    """Of each file, which rows are the last ones of their documents."""
    stays = [np.zeros(file.rows, bool) for file in files]
    paths = state.documents.paths(file.path for file in files)
    verify(paths)
    with tempfile.TemporaryDirectory(dir=state.spill) as folder, connect(Path(folder)) as db:
        for rows in every(db, paths, sum(file.rows for file in files), Path(folder), _CHECK):
            for number, places in chosen_by_file(rows, _last(rows)):
                stays[number][places] = True
    return stays


def _last(rows: Columns) -> Rows:
    """Positions of the last rows of their documents, by wave."""
    order = np.lexsort((rows["wave"], rows["check"], rows["h"]))
    h, check = rows["h"][order], rows["check"][order]
    last = np.append((h[1:] != h[:-1]) | (check[1:] != check[:-1]), True)[: len(h)]
    found: Rows = order[last]
    return found


def _picked(table: Table, file: DataFile, rows: Rows | None) -> Iterator[pa.Table]:
    with RowGroups(str(table.path(file.path)), table.schema.names, verified=True) as groups:
        yield from groups.all() if rows is None else groups.pick(rows)


def _written(table: Table, rows: Iterable[pa.Table], epoch: int) -> Part | None:
    """A file of the table; nothing is left of it after an error."""
    writer: PartWriter | None = None
    dues: list[pa.ChunkedArray] = []
    try:
        for group in gathered(rows):
            writer = writer or PartWriter(table.folder, table.schema, epoch=epoch)
            writer.write(group)
            if "forced" in table.schema.names:  # an operator waits for it: it is due
                dues.append(pc.if_else(group["forced"], pc.fill_null(group["due"], 0), group["due"]))
        if writer is None:
            return None
        return writer.finish(due_stats(pa.chunked_array(dues).to_pylist()) if dues else None)
    except BaseException:
        if writer is not None:
            writer.abandon()
        raise
