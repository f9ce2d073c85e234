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
_TINY: Final = 8
"""And tiny if it has less than this part of what is small."""
OFTEN: Final = 8
"""So many times as many small files are left as they are as tiny ones. A large first run makes them, and a query opens
hundreds in a moment: to copy its rows would cost more."""


def small_batches(table: Table, files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Of the small ones among these files of a table: neighbours of which each list is to become one file.

    A file is merged with others of its class of size, tiny or not, and only where they have become many: so a row is
    copied twice or so, however many waves it stays.
    """
    if len(files) < limits.COMPACT_FILES:
        return
    small = limits.PART_BYTES // _SMALL
    tiny: list[tuple[int, DataFile]] = []
    others: list[tuple[int, DataFile]] = []
    for file in files:
        if (size := content_size(table.path(file.path))) < small:
            (tiny if size < small // _TINY else others).append((size, file))
    for each, most in ((tiny, limits.COMPACT_FILES), (others, OFTEN * limits.COMPACT_FILES)):
        if len(each) >= most:
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
