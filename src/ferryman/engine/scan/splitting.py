"""Scan, third part: the rows to process are split into tasks and waves.

Rows that were compared individually are written to new files. If a whole source is new, tasks read the listing's files
directly.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ferryman import limits
from ferryman.engine.tasks import BATCH_FILE, RowRange, TaskSplit, WaveBatch
from ferryman.storage.files import StatePath, path_to_write, upload
from ferryman.storage.parquet import RowGroups

_Numbers = np.ndarray[Any, Any]


class Splitter:
    """Splits rows into tasks and waves, in the order in which they are added.

    Args:
        folder: folder for the files of compared rows.
        slots: number of tasks that run at once; a small scan is split so that all of them have work and end at about
            the same time.
        rows, size: upper bounds of the total number of rows and of bytes.
        wave_bytes: maximum bytes per wave; waves are smaller with few slots or little data.
    """

    def __init__(self, folder: StatePath, slots: int, rows: int, size: int, wave_bytes: int) -> None:
        self._folder = folder
        self._task_rows = int(np.clip(rows // (2 * slots), 256, limits.TASK_DOCUMENTS))
        enough = np.clip(size // (2 * slots), limits.MIB, limits.EVEN_TASK_BYTES)
        share = int(np.clip(size // (limits.SCAN_WAVES * slots), limits.WAVE_SLOT_MIN_BYTES, limits.WAVE_SLOT_BYTES))
        self._wave_bytes = min(wave_bytes, slots * share)
        most = np.clip(wave_bytes // (2 * slots), limits.EVEN_TASK_BYTES, share // 2)  # each slot has two tasks a wave
        self._task_bytes = min(wave_bytes, int(np.clip(size // (8 * slots), enough, most)))
        self._batches: list[WaveBatch] = []
        self._tasks: list[TaskSplit] = []
        self._bytes = 0
        self._known: Counter[str] = Counter()
        self._writer: pq.ParquetWriter | None = None
        self._file = folder
        self._written = 0
        self._source = ""
        self._pending: list[Any] = []
        """Pieces of the next task: ranges of listing files, or tables of compared rows."""
        self._pending_rows = self._pending_bytes = self._pending_known = 0

    def add_compared(self, source: str, rows: pa.Table) -> None:
        """Add rows in BATCH_FILE's columns."""
        self._add(
            source, rows["size"].to_numpy(), rows["known_size"].to_numpy(), lambda *at: rows.slice(at[0], at[1] - at[0])
        )

    def add_listed(self, source: str, path: str) -> None:
        """Add all rows of a listing file, all of them new."""
        with RowGroups(path, ["size"]) as file:
            sizes = np.concatenate([rows["size"].to_numpy() for rows in file.all_rows()])
        self._add(source, sizes, np.zeros_like(sizes), lambda start, end: RowRange(path, start, end))

    def finish(self) -> list[WaveBatch]:
        """Return all waves."""
        self._end_task()
        self._end_wave()
        return self._batches

    def _add(self, source: str, sizes: _Numbers, known: _Numbers, pick: Callable[[int, int], Any]) -> None:
        """Add rows of these sizes. ``known``: bytes of their rows in ``documents``, which a task holds in memory
        too."""
        if source != self._source:
            self._end_task()
            self._source = source
        ends, known_ends = np.cumsum(sizes), np.cumsum(known)
        start = 0
        while start < len(sizes):
            before, known_before = (int(sums[start - 1]) if start else 0 for sums in (ends, known_ends))
            end = min(
                int(np.searchsorted(ends, before + self._task_bytes - self._pending_bytes, side="right")),
                int(np.searchsorted(known_ends, known_before + limits.TASK_BYTES - self._pending_known, side="right")),
            )
            end = max(end, start + (not self._pending_rows))  # a task has at least one row
            end = min(end, start + self._task_rows - self._pending_rows, len(sizes))
            if end > start:
                self._pending.append(pick(start, end))
                self._pending_rows += end - start
                self._pending_bytes += int(ends[end - 1]) - before
                self._pending_known += int(known_ends[end - 1]) - known_before
            if end < len(sizes) or self._pending_rows >= self._task_rows:
                self._end_task()
            start = end

    def _end_task(self) -> None:
        """End the current task; end the wave first if the task does not fit into it."""
        if not self._pending:
            return
        if self._tasks and self._bytes + self._pending_bytes > self._wave_bytes:
            self._end_wave()
        compared = not isinstance(self._pending[0], RowRange)
        pieces = [self._write(self._pending)] if compared else self._pending
        self._tasks.append(TaskSplit(self._source, pieces, compared, len(self._tasks)))
        self._bytes += self._pending_bytes
        self._pending = []
        self._pending_rows = self._pending_bytes = self._pending_known = 0

    def _write(self, tables: list[pa.Table]) -> RowRange:
        if self._writer is None:
            self._file = self._folder / f"slice-{uuid.uuid4().hex}.parquet"  # executors may keep copies of others
            constant = ["part", "reason", "known_file"]  # nearly
            self._writer = pq.ParquetWriter(
                str(path_to_write(self._file)), BATCH_FILE, compression="lz4", use_dictionary=constant
            )
            self._written = 0
        table = pa.concat_tables(tables)
        for file in pc.value_counts(table["known_file"].drop_null()).to_pylist():
            self._known[file["values"].rpartition("/")[2]] += file["counts"]
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._written += table.num_rows
        return RowRange(str(self._file), self._written - table.num_rows, self._written)

    def _end_wave(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            upload(self._file)
        if self._tasks:
            self._batches.append(WaveBatch(self._tasks, self._bytes, dict(self._known)))
            self._tasks, self._bytes, self._known = [], 0, Counter()
