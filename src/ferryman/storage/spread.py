"""Rows dealt out to files by number, so that each file can be looked at by itself in a bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

_MOST: Final = 256
"""Files that one spread has open at most: processes may have 1024."""

_BITS: Final = 24
"""Of a hash that ``Marks`` tells apart: 16 MB, and of a million hashes one in sixteen others is mistaken."""


def partitions_for(rows: int, size: int, most_rows: int, most_bytes: int) -> int:
    """Into how many parts so many rows of so many bytes are dealt by their hashes: a power of two."""
    wanted = max(-(-rows // most_rows), -(-size // most_bytes), 1)
    return int(min(_MOST, 1 << (wanted - 1).bit_length()))


def hashed(texts: pa.Array) -> np.ndarray[Any, Any]:
    """Texts as hashes of 64 bits that are the same in this process only.

    Python's own: the query engine's has a thousand pairs of the same hash among 400 000 names of files, and nobody can
    choose names so that this one has.
    """
    return np.fromiter(map(hash, texts.to_pylist()), np.int64, len(texts)).view(np.uint64)


def part_of(hashes: np.ndarray[Any, Any], parts: int) -> np.ndarray[Any, Any]:
    """The part of each hash, by its highest bits."""
    if parts == 1:
        return np.zeros(len(hashes), np.int64)
    return (hashes >> np.uint64(64 - (parts.bit_length() - 1))).astype(np.int64)


def look_up(hashes: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Where each wanted one is among hashes that ascend, and whether it is there at all. To look up what ascends, too,
    takes a sixth of the time."""
    at = np.minimum(np.searchsorted(hashes, wanted), max(0, len(hashes) - 1))
    return at, hashes[at] == wanted if len(hashes) else np.zeros(len(wanted), bool)


class Marks:
    """Which hashes have been marked; of some others, too, it says that they are."""

    def __init__(self) -> None:
        self._marked = np.zeros(1 << _BITS, bool)

    def add(self, hashes: np.ndarray[Any, Any]) -> None:
        """Mark these."""
        self._marked[self._places(hashes)] = True

    def among(self, hashes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Of each of these, is it marked?"""
        found: np.ndarray[Any, Any] = self._marked[self._places(hashes)]
        return found

    @staticmethod
    def _places(hashes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return hashes & np.uint64((1 << _BITS) - 1)


class Spread:
    """Rows in ``parts`` files; first all are added, then they are read.

    Args:
        name: of its files in ``folder``; no other spread there has it.
    """

    def __init__(self, folder: Path, name: str, schema: pa.Schema, parts: int = 1) -> None:
        self._folder = folder
        self._name = name
        self._schema = schema
        self._parts = parts
        self._writers: dict[int, pa.RecordBatchFileWriter] = {}
        self._written: set[int] = set()
        self.rows = 0

    def add(self, rows: pa.RecordBatch, parts: np.ndarray[Any, Any]) -> None:
        """Append rows, each to its part."""
        if not rows.num_rows:
            return
        self.rows += rows.num_rows
        if self._parts == 1:
            self._writer(0).write_batch(rows)
            return
        order = np.argsort(parts, kind="stable")
        rows, parts = rows.take(pa.array(order)), parts[order]
        found = np.unique(parts)
        ends = np.searchsorted(parts, found, side="right")
        start = 0
        for part, end in zip(found.tolist(), ends.tolist(), strict=True):
            self._writer(part).write_batch(rows.slice(start, end - start))
            start = end

    def close(self) -> None:
        """All are added."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def read(self, part: int = 0) -> pa.Table:
        """All rows of a part, in the order in which they were added."""
        return pa.Table.from_batches(self.batches(part), schema=self._schema)

    def batches(self, part: int = 0) -> Iterator[pa.RecordBatch]:
        """The same, as they were written: few in memory at a time."""
        if part in self._written:
            with pa.OSFile(str(self._path(part))) as file, pa.ipc.open_file(file) as reader:
                for i in range(reader.num_record_batches):
                    yield reader.get_batch(i)

    def _writer(self, part: int) -> Any:
        if part not in self._writers:
            self._written.add(part)
            self._writers[part] = pa.ipc.new_file(str(self._path(part)), self._schema)
        return self._writers[part]

    def _path(self, part: int) -> Path:
        return self._folder / f"{self._name}-{part:04d}.arrow"


def half_of(rows: pa.Table, depth: int, half: int) -> pa.Table:
    """Rows whose hash has this bit, counted from its lowest."""
    bits = (rows["h"].to_numpy() >> np.uint64(depth)) & np.uint64(1)
    return rows.filter(pa.array(bits == half)).combine_chunks()
