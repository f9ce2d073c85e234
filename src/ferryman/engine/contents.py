"""Content that was staged while listing, on its way back: fields and raw bytes of rows that were taken up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_COLUMNS = ["fields", "raw"]


class Contents:
    """Reads listing files row group by row group. Judged rows come in the files' order, so each group is read once."""

    def __init__(self) -> None:
        self._path = ""
        self._file: pq.ParquetFile | None = None
        self._ends: np.ndarray[Any, Any] = np.empty(0)
        self._group = -1
        self._table: pa.Table | None = None

    def of(self, judged: pa.Table) -> tuple[list[bytes | None], list[bytes | None]]:
        """Fields and raw bytes of each row; None where they were not staged."""
        nothing: list[bytes | None] = [None] * judged.num_rows
        if judged["version"].null_count == judged.num_rows:
            return nothing, nothing
        fields: list[bytes | None] = []
        raws: list[bytes | None] = []
        for run in pc.value_counts(judged["part"]).to_pylist():  # rows of one file lie together
            rows = judged["row"].slice(len(fields), run["counts"])
            if run["values"] is None:
                fields += nothing[: len(rows)]
                raws += nothing[: len(rows)]
                continue
            for piece in self._rows(run["values"], rows.to_numpy()):
                fields += piece["fields"].to_pylist()
                raws += piece["raw"].to_pylist()
        return fields, raws

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rows(self, path: str, rows: np.ndarray[Any, Any]) -> list[pa.Table]:
        if path != self._path:
            self.close()
            self._path, self._group = path, -1
            self._file = pq.ParquetFile(path)
            groups = range(self._file.num_row_groups)
            self._ends = np.cumsum([self._file.metadata.row_group(g).num_rows for g in groups])
        pieces = []
        at = 0
        while at < len(rows):
            group = int(np.searchsorted(self._ends, rows[at], side="right"))
            upto = int(np.searchsorted(rows, self._ends[group]))
            pieces.append(_picked(self._read(group), rows[at:upto] - (self._ends[group - 1] if group else 0)))
            at = upto
        return pieces

    def _read(self, group: int) -> pa.Table:
        if group != self._group:
            assert self._file is not None
            self._table = self._file.read_row_group(group, columns=_COLUMNS, use_threads=False)
            self._group = group
        assert self._table is not None
        return self._table


def _picked(table: pa.Table, rows: np.ndarray[Any, Any]) -> pa.Table:
    """These rows, ascending; a slice where they lie together."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return table.slice(int(rows[0]), len(rows))
    return table.take(pa.array(rows))
