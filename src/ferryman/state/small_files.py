"""Which small files of a table become one: bounded by their bytes, and each row is copied a few times only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from ferryman import limits
from ferryman.storage.handles import DataFile
from ferryman.storage.parquet import content_size
from ferryman.storage.tables import Table

_SMALL: Final = 4
"""A file is small if its content is less than this part of ``PART_BYTES``."""
_CLASS: Final = 8
"""And in another class of size than one that has so many times its content."""


def small_batches(table: Table, files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Of the small ones among these files of a table: neighbours of which each list is to become one file.

    A file is merged with others of its class of size, and only where they have become many: so a row is copied a few
    times, however many waves it stays.
    """
    if len(files) < limits.COMPACT_FILES:
        return
    small = limits.PART_BYTES // _SMALL
    classes: dict[bool, list[tuple[int, DataFile]]] = {True: [], False: []}
    for file in files:
        if (size := content_size(table.path(file.path))) < small:
            classes[size < small // _CLASS].append((size, file))
    for each in classes.values():
        if len(each) >= limits.COMPACT_FILES:
            yield from (batch for batch in fitting(each) if len(batch) > 1)


def fitting(files: Iterable[tuple[int, DataFile]]) -> Iterator[list[DataFile]]:
    """(bytes, file): neighbours whose content fits into one file."""
    batch: list[DataFile] = []
    total = 0
    for size, file in files:
        if batch and total + size > limits.PART_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(file)
        total += size
    if batch:
        yield batch


def gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Small tables as larger ones, so that a merged file has few row groups."""
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        if held and size + table.nbytes > limits.GROUP_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
        held.append(table)
        size += table.nbytes
    if held:
        yield pa.concat_tables(held)
