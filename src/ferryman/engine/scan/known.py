"""What ``documents`` says of a document that is processed: read where it lies, by file and row, by the task itself.

A family of many members has a long row there. The driver comparisons without it, and nothing of it is written twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman.records.family import Published, decode_published, encode_published
from ferryman.storage.groups import RowGroups
from ferryman.storage.tables import Table

KNOWN: Final = {
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
"""Columns that a compared row has from its document's last row in ``documents``, and what they are called there."""


def kept(table: Table, folder: Path) -> list[str]:
    """The table's files under names of their own in ``folder``, where they stay whatever becomes of the table between
    waves. In an object store they stay until the next scan.

    Where there are no links across (a preview in another file system) they are read where they are.
    """
    if not isinstance(table.folder, Path):
        return [str(table.folder / name) for name in table.files]
    folder.mkdir(exist_ok=True)
    found = []
    for path in table.paths():
        link = folder / path.name
        if not link.exists():
            try:
                os.link(path, link)
            except FileNotFoundError:
                raise
            except OSError:
                link = path
        found.append(str(link))
    return found


def joined(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows of a slice with what is known of each, in the columns of ``schema``.

    Raises:
        StateDamaged: a file of ``documents`` is missing, or not what was written.
    """
    known = _known(rows["known_file"], rows["known_row"].to_numpy())
    columns = {name: known[name] if name in KNOWN else rows[name] for name in schema.names}
    columns["given"] = _amended(columns["given"], rows["unconfirmed"], rows["unsure"])
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _known(files: pa.ChunkedArray, rows: np.ndarray[Any, Any]) -> pa.Table:
    """The columns of ``KNOWN`` for these rows of these files; null where there is no file."""
    names = list(KNOWN.values())
    encoded = files.combine_chunks().dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    places, tables = [], []
    for code, path in enumerate(encoded.dictionary.to_pylist()):
        mine = np.flatnonzero(codes == code)
        mine = mine[np.argsort(rows[mine], kind="stable")]
        with RowGroups(path, names, verified=True) as file:
            tables += [table.select(names) for table in file.pick(rows[mine].astype(np.int64))]
        places.append(mine)
    if not tables:
        return pa.table({name: pa.nulls(len(files)) for name in KNOWN})
    found = np.full(len(files), -1, np.int64)
    order = np.concatenate(places)
    found[order] = np.arange(len(order))
    every = pa.concat_tables(tables).combine_chunks()
    every = every.take(pa.array(found, mask=found < 0))
    there = pc.equal(every["operation"], "upsert")
    every = every.set_column(names.index("given"), "given", pc.if_else(there, every["given"], ""))  # a deleted one
    return every.rename_columns(list(KNOWN))


def _amended(given: pa.ChunkedArray, unconfirmed: pa.ChunkedArray, unsure: pa.ChunkedArray) -> Any:
    """What was given, with what ``unconfirmed`` has found out of it."""
    found = pc.or_(pc.is_valid(unconfirmed), unsure)
    if not pc.any(found).as_py():
        return given
    columns = (column.to_pylist() for column in (given, unconfirmed, unsure))
    return pa.array([_with(*row) for row in zip(*columns, strict=True)], pa.string())


def _with(given: str | None, unconfirmed: str | None, unsure: bool) -> str | None:
    if unconfirmed is None and not unsure:
        return given
    every: Iterable[Published] = decode_published(given or "")
    if unconfirmed is not None:
        every = {each.place: each for each in (*every, *decode_published(unconfirmed))}.values()
    return encode_published((Published(*each.place) for each in every) if unsure else every)
