"""Group by key, in the workers: an outbox file of a keyed node becomes sorted runs, one for each range of keys."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ferryman import crash, limits
from ferryman.engine.keyed.keying import Keying
from ferryman.engine.keyed.runs import ORDER, write_run
from ferryman.engine.runner.base import PickledPlan
from ferryman.engine.transform.time_limit import signals_noticed
from ferryman.memory import lacks_memory, why_no_memory
from ferryman.plan import KeyedNode
from ferryman.records.keyed import BUCKETS
from ferryman.state.outbox import row_groups
from ferryman.storage.files import path_of, share, to_write, workplace
from ferryman.storage.parquet import data_files


class SortedRun(NamedTuple):
    """A sorted run of one range of keys."""

    range: int
    path: str
    rows: int
    bytes: int


class GroupFile(NamedTuple):
    """An outbox file of a keyed node.

    Attributes:
        first: its first sequence.
        held: rows of documents of which an older row is pending, perhaps in another file.
    """

    path: str
    first: int
    held: list[int]


@dataclass(frozen=True, slots=True)
class Grouping:
    """Task: read the pending rows of an outbox file, and write a run for each range of keys."""

    shipped: PickledPlan
    node: str
    outbox: str
    folder: str
    ranges: int
    """So many, of equal width."""
    contributions: tuple[str, ...] = ()
    """Files of what keys were given of documents that may change."""
    files: int = 1
    """So many outbox files are read."""
    isolated: bool = False
    """There was too little memory for it: documents for which there is none have no key, and fail."""

    @signals_noticed()
    def __call__(self, file: GroupFile) -> list[SortedRun]:
        plan = self.shipped.plan()
        node = next(n for n in plan.nodes if n.name == self.node)
        assert isinstance(node, KeyedNode)
        keying = Keying(node, plan, self.contributions, workplace(path_of(self.folder)))
        [path] = data_files([path_of(self.outbox) / file.path])
        refused: dict[int, str] = {}
        while True:
            try:
                return self._grouped(keying, path, file, refused)
            except Exception as e:
                if not self.isolated or not lacks_memory(e) or not _refuse_largest(path, refused, e):
                    raise
            gc.collect()  # what was read

    def _grouped(self, keying: Keying, path: Path, file: GroupFile, refused: dict[int, str]) -> list[SortedRun]:
        """``refused``: row groups that are not read -> why."""
        tables = [
            keying.keyed(rows, file.first, file.held, refused.get(number))
            for number, rows in enumerate(row_groups(path, refused))
        ]
        found = [run for run in self._runs(pa.concat_tables(tables)) if run.rows]
        crash.point("update.grouped")
        return found

    def _runs(self, rows: pa.Table) -> Iterator[SortedRun]:
        rows = rows.sort_by([(name, "ascending") for name in ORDER])
        edges = np.searchsorted(rows["bucket"].to_numpy(), range_starts(self.ranges))
        for number, (first, end) in enumerate(zip(edges, [*edges[1:], rows.num_rows], strict=True)):
            mine = rows.slice(first, end - first)
            path = path_of(self.folder) / f"{number}-{uuid.uuid4().hex}.arrow"
            if mine.num_rows:
                write_run(to_write(path), mine, self.files)
                share(path)
            yield SortedRun(number, str(path), mine.num_rows, mine.nbytes)


def _refuse_largest(path: Path, refused: dict[int, str], error: Exception) -> bool:
    """Do without the largest document that has a row group of its own; False: there is none, or it is small."""
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = {n: g.total_byte_size for n, g in enumerate(groups) if g.num_rows == 1 and n not in refused}
    largest = max(sizes, key=sizes.__getitem__, default=-1)
    if sizes.get(largest, 0) < limits.BLAMED_BYTES:
        return False
    refused[largest] = why_no_memory(error, sizes[largest])
    return True


def range_starts(ranges: int) -> list[int]:
    """The first bucket of each range."""
    return [number * BUCKETS // ranges for number in range(ranges)]
