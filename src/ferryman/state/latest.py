"""The last row of each document in ``documents``, found by hashes, a part of the documents at a time.

However many there are, and however long their ids, this takes the same memory; what is wide of a row is left where it
lies, and is read from there by file and row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from ferryman import limits
from ferryman.storage.query import quoted_list, read_rows, stream
from ferryman.storage.spread import Marks, Spread, part_of, partitions_for

DOCUMENT: Final = "source || chr(0) || document"
"""A document, as SQL; its hash is ``h``."""

HASHES: Final = pa.schema([("h", pa.uint64())])

Columns = dict[str, np.ndarray[Any, Any]]

_PLACE: Final = (("h", pa.uint64()), ("wave", pa.int64()), ("file", pa.int32()), ("row", pa.int64()))


def every(
    db: duckdb.DuckDBPyConnection,
    paths: Sequence[Path],
    rows: int,
    folder: Path,
    more: Mapping[str, tuple[str, pa.DataType]],
    any_row: str = "",
    marked: Marks | None = None,
) -> Iterator[Columns]:
    """All rows of some documents at a time, in the order of the files: each document's hash ``h``; the number of its
    file's path, ``file``, and its ``row`` there. ``last_of`` leaves the last row of each document.

    Args:
        paths: data files that have been compared with their checksums.
        rows: of all the files.
        folder: for what does not fit into memory.
        more: name -> SQL of a ``documents`` row, and its type: further columns, none of them nullable.
        any_row: only documents of which a row meets this condition, in SQL, and perhaps some others.
        marked: these, too.
    """
    schema = pa.schema([*_PLACE, *((name, kind) for name, (_, kind) in more.items())])
    parts = partitions_for(rows, 0, limits.COMPARED_ROWS, 1)
    spread = Spread(folder, "latest", schema, parts)
    if any_row and paths:
        marked = marked or Marks()
        files = f"read_parquet({quoted_list(map(str, paths))})"
        for batch in stream(db, f"SELECT {DOCUMENT} FROM {files} WHERE {any_row}", HASHES):
            marked.add(batch.column(0).to_numpy())
    columns = ", ".join([DOCUMENT, "wave", "file", "file_row_number", *(sql for sql, _ in more.values())])
    for batch in read_rows(db, paths, columns, schema):
        if marked is not None:
            batch = batch.filter(pa.array(marked.among(batch.column(0).to_numpy())))
        spread.add(batch, part_of(batch.column(0).to_numpy(), parts))
    spread.close()
    for part in range(parts):
        yield columns_of(spread.read(part))


def chosen_by_file(rows: Columns, chosen: np.ndarray[Any, Any]) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """(file, the chosen rows in it), file by file."""
    files, places = rows["file"][chosen], rows["row"][chosen]
    order = np.argsort(files, kind="stable")
    files, places = files[order], places[order]
    start = 0
    for end in [*(np.flatnonzero(files[1:] != files[:-1]) + 1).tolist(), len(files)] if len(files) else []:
        yield int(files[start]), places[start:end]
        start = end


def columns_of(table: pa.Table) -> Columns:
    """As arrays."""
    return {name: table[name].to_numpy() for name in table.column_names}


def last_of(rows: Columns, by: str = "wave") -> Columns:
    """Of rows of the same ``h`` the last by this column."""
    order = np.lexsort((rows[by], rows["h"]))
    hashes = rows["h"][order]
    last = np.append(hashes[1:] != hashes[:-1], True)[: len(hashes)]
    return {name: column[order[last]] for name, column in rows.items()}
