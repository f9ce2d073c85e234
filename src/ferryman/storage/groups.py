"""Files read by row numbers, a group of rows in memory at a time: Parquet's row groups, Arrow's record batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ferryman.storage.files import here
from ferryman.storage.parquet import check_footer, damaged


def values(column: pa.ChunkedArray) -> list[Any]:
    """The column as Python values; one that is all null takes no time."""
    found: list[Any] = [None] * len(column) if column.null_count == len(column) else column.to_pylist()
    return found


class Groups(ABC):
    """Some columns of a file. Who asks for rows in their order has each group read once.

    Args:
        rows: of each group.
    """

    def __init__(self, path: str, rows: list[int]) -> None:
        self.path = path
        self._starts = np.concatenate(([0], np.cumsum(rows, dtype=np.int64)))
        self._group = -1
        self._table: pa.Table | None = None

    def between(self, first: int, end: int) -> Iterator[pa.Table]:
        """Rows ``first`` ≤ n < ``end``, a table a group."""
        while first < end:
            group = self._group_of(first)
            start, upto = int(self._starts[group]), min(end, int(self._starts[group + 1]))
            yield self._of(group).slice(first - start, upto - first)
            first = upto

    def group(self, number: int) -> pa.Table:
        """The rows of this group."""
        return self._of(number)

    @property
    def count(self) -> int:
        """How many groups there are."""
        return len(self._starts) - 1

    def all(self) -> Iterator[pa.Table]:
        """All rows, a table a group."""
        return self.between(0, int(self._starts[-1]))

    def pick(self, rows: np.ndarray[Any, Any]) -> Iterator[pa.Table]:
        """These rows, which ascend, a table a group."""
        if rows[-1] - rows[0] + 1 == len(rows):
            yield from self.between(int(rows[0]), int(rows[-1]) + 1)
            return
        at = 0
        while at < len(rows):
            group = self._group_of(rows[at])
            upto = int(np.searchsorted(rows, self._starts[group + 1]))
            yield self._of(group).take(pa.array(rows[at:upto] - self._starts[group]))
            at = upto

    def first_behind(self, row: int) -> int:
        """The first row of the group behind that of this row."""
        return int(self._starts[self._group_of(row) + 1])

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _read(self, group: int) -> pa.Table: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _group_of(self, row: int) -> int:
        return int(np.searchsorted(self._starts, row, side="right")) - 1

    def _of(self, group: int) -> pa.Table:
        if self._table is None or group != self._group:
            self._table = None  # before the next one is read
            self._table = self._read(group)
            self._group = group
        return self._table


class RowGroups(Groups):
    """Of a Parquet file.

    Args:
        verified: a data file of the state, of which every page is compared with its checksum.

    Raises:
        StateDamaged: a data file is missing, or not what was written; later, from any read, too.
    """

    def __init__(self, path: str, columns: list[str], *, verified: bool = False) -> None:
        self._columns = columns
        path = here(path)
        if verified:
            check_footer(Path(path))
        self._file = pq.ParquetFile(path, page_checksum_verification=verified, memory_map=False)
        metadata = self._file.metadata
        super().__init__(path, [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)])

    def close(self) -> None:
        self._file.close()

    def _read(self, group: int) -> pa.Table:
        try:
            return self._file.read_row_group(group, columns=self._columns, use_threads=False)
        except (OSError, pa.ArrowException) as e:
            raise damaged(Path(self.path), e) from e


class ArrowBatches(Groups):
    """Of an Arrow IPC file: there is nothing to encode and decode. Its first column is small: it tells the rows."""

    def __init__(self, path: str, columns: list[str]) -> None:
        self._file = pa.OSFile(here(path))
        schema = pa.ipc.open_file(self._file).schema
        first = self._reader([0])
        super().__init__(path, [first.get_batch(n).num_rows for n in range(first.num_record_batches)])
        self._batches = self._reader([schema.get_field_index(name) for name in columns])

    def close(self) -> None:
        self._file.close()

    def _reader(self, fields: list[int]) -> pa.RecordBatchFileReader:
        return pa.ipc.open_file(self._file, options=pa.ipc.IpcReadOptions(included_fields=fields))

    def _read(self, group: int) -> pa.Table:
        return pa.Table.from_batches([self._batches.get_batch(group)])
