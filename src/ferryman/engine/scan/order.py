"""What is processed, back in its source's order: tasks read documents one after another, as the source has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman.engine.scan.batches import LISTED, SLICE
from ferryman.records.events import table_of
from ferryman.storage.groups import RowGroups


class SourceOrder:
    """Makes rows of a wave batch out of compared rows.

    Args:
        paths: of the listing's files.
        starts: place of the first row of each, and the number of all.
        files: of ``documents``, by their numbers.
        clash: why a document is refused whose id is another source's.
    """

    def __init__(self, paths: list[str], starts: np.ndarray[Any, Any], files: list[str], clash: str) -> None:
        self._paths = paths
        self._starts = starts
        self._files = pa.array(files, pa.string())
        self._clash = clash

    def taken_up(self, compared: pa.Table) -> Iterator[pa.Table]:
        """Rows that are listed: by place, but those that clash come after all others."""
        if not compared.num_rows:
            return
        columns = (compared[name].to_numpy() for name in ("place", "clash"))
        order = np.lexsort(tuple(columns))
        compared = compared.combine_chunks().take(pa.array(order))
        place, clash = compared["place"].to_numpy(), compared["clash"].to_numpy()
        number = np.searchsorted(self._starts, place, side="right") - 1
        ends = np.flatnonzero(np.append((np.diff(number) != 0) | (clash[1:] != clash[:-1]), True)) + 1
        start = 0
        for end in ends.tolist():
            path, first = self._paths[number[start]], self._starts[number[start]]
            with RowGroups(path, LISTED) as file:
                for listed in file.pick(place[start:end] - first):
                    rows = compared.slice(start, listed.num_rows)
                    yield self._slice_rows(path, listed, rows, clashing=bool(clash[start]))
                    start += listed.num_rows

    def gone(self, compared: pa.Table) -> pa.Table:
        """Rows that are not listed."""
        nothing = {"size": 0, "fingerprint": "", "location": ""}
        return table_of(SLICE, compared.num_rows, id=compared["id"], **nothing, **self._said(compared))

    def _slice_rows(self, path: str, listed: pa.Table, rows: pa.Table, *, clashing: bool) -> pa.Table:
        columns: dict[str, Any] = {name: listed[name] for name in LISTED} | {"part": path}
        if clashing:
            columns |= {"part": None, "version": None, "refused": self._clash}
        return table_of(SLICE, rows.num_rows, **columns, **self._said(rows))

    def _said(self, rows: pa.Table) -> dict[str, Any]:
        """Columns that the compared says."""
        return {
            "reason": rows["reason"],
            "known_file": self._files.take(rows["file"].combine_chunks()),
            "known_row": rows["row"],
            "known_size": pc.fill_null(rows["size"], 0),
            "unconfirmed": rows["unconfirmed"],
            "unsure": rows["unsure"],
        }
