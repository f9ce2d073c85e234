"""A Parquet file read by row numbers: one row group in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ferryman.storage.parquet import check_footer, damaged


def values(column: pa.ChunkedArray) -> list[Any]:
    """The column as Python values; one that is all null takes no time."""
    found: list[Any] = [None] * len(column) if column.null_count == len(column) else column.to_pylist()
    return found


class RowGroups:
    """Some columns of a file. Who asks for rows in their order has each row group read once.

    Args:
        verified: a data file of the state, of which every page is compared with its checksum.

    Raises:
        StateDamaged: a data file is missing, or not what was written; later, from any read, too.
    """

    def __init__(self, path: str, columns: list[str], *, verified: bool = False) -> None:
        self.path = path
        self._columns = columns
        if verified:
            check_footer(Path(path))
        self._file = pq.ParquetFile(path, page_checksum_verification=verified, memory_map=not verified)
        metadata = self._file.metadata
        groups = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
        self._starts = np.concatenate(([0], np.cumsum(groups, dtype=np.int64)))
        self._group = -1
        self._table: pa.Table | None = None

    def between(self, first: int, end: int) -> Iterator[pa.Table]:
        """Rows ``first`` ≤ n < ``end``, a table a row group."""
        while first < end:
            group = self._group_of(first)
            start, upto = int(self._starts[group]), min(end, int(self._starts[group + 1]))
            yield self._read(group).slice(first - start, upto - first)
            first = upto

    def pick(self, rows: np.ndarray[Any, Any]) -> Iterator[pa.Table]:
        """These rows, which ascend, a table a row group."""
        if rows[-1] - rows[0] + 1 == len(rows):
            yield from self.between(int(rows[0]), int(rows[-1]) + 1)
            return
        at = 0
        while at < len(rows):
            group = self._group_of(rows[at])
            upto = int(np.searchsorted(rows, self._starts[group + 1]))
            yield self._read(group).take(pa.array(rows[at:upto] - self._starts[group]))
            at = upto

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _group_of(self, row: int) -> int:
        return int(np.searchsorted(self._starts, row, side="right")) - 1

    def _read(self, group: int) -> pa.Table:
        if self._table is None or group != self._group:
            self._table = None  # before the next one is read
            try:
                self._table = self._file.read_row_group(group, columns=self._columns, use_threads=False)
            except (OSError, pa.ArrowException) as e:
                raise damaged(Path(self.path), e) from e
            self._group = group
        return self._table
