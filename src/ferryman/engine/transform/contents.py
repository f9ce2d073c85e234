"""Content that was staged while listing, on its way back: fields and raw bytes of rows that were processed."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ferryman.engine.scan.listing import content_path
from ferryman.storage.groups import ArrowBatches, values

_COLUMNS = ["fields", "raw"]


class Contents:
    """Reads the listing's files back. What is processed comes in their order, so every batch is read once."""

    def __init__(self) -> None:
        self._file: ArrowBatches | None = None

    def of(self, compared: pa.Table) -> tuple[list[bytes | None], list[bytes | None]]:
        """Fields and raw bytes of each compared row; None where they were not staged."""
        nothing: list[bytes | None] = [None] * compared.num_rows
        if compared["version"].null_count == compared.num_rows:
            return nothing, nothing
        fields: list[bytes | None] = []
        raws: list[bytes | None] = []
        for run in pc.value_counts(compared["part"]).to_pylist():  # rows of one file lie together
            rows = compared["row"].slice(len(fields), run["counts"])
            if run["values"] is None:
                fields += nothing[: len(rows)]
                raws += nothing[: len(rows)]
                continue
            for content in self._open(run["values"]).pick(rows.to_numpy()):
                fields += values(content["fields"])
                raws += values(content["raw"])
        return fields, raws

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, path: str) -> ArrowBatches:
        if self._file is None or self._file.path != content_path(path):
            self.close()
            self._file = ArrowBatches(content_path(path), _COLUMNS)
        return self._file
