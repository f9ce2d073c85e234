"""Keeping the files of keyed nodes few: outdated states are dropped, and exports that the plan has carried on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa

from ferryman import limits
from ferryman.records.keyed import KEY_STATE, bucket_stats, lanes
from ferryman.state.keyed import MERGED, KeyedTables
from ferryman.state.log_positions import LogPositions
from ferryman.state.small_files import small_batches
from ferryman.state.state import State
from ferryman.storage.handles import DataFile
from ferryman.storage.parquet import Part, PartWriter
from ferryman.storage.query import connect, quoted_list, stream, verify


def carried_on(state: State, name: str, tables: KeyedTables) -> list[DataFile]:
    """Files of exports that the plan has carried on whole, once they are worth a commit."""
    reached = LogPositions(state, name).of({"": ""}, {"": lanes()})
    found = [
        file
        for file in tables.exports.files.values()
        if int(file.partition["first_place"]) + file.rows <= reached.get(file.partition["lane"], 0)
    ]
    many = len(found) >= limits.COMPACT_FILES or sum(file.size for file in found) >= limits.PART_BYTES
    return found if many else []


def state_merges(tables: KeyedTables) -> Iterator[list[DataFile]]:
    """Files of a node's state that are to be merged: all, if most of their rows may be outdated, or the small ones."""
    files = list(tables.state.files.values())
    rows = sum(file.rows for file in files)
    outdated = rows - tables.state.transactions[MERGED]
    if len(files) >= limits.COMPACT_FILES and outdated >= limits.OUTDATED_SHARE * rows:
        yield files
    else:
        yield from small_batches(tables.state.folder, files)


def write_merged_state(state: State, tables: KeyedTables, files: list[DataFile]) -> tuple[list[Part], dict[str, int]]:
    """Write files with the last row of each key; and the numbers that their commit carries.

    Raises:
        StateDamaged: a file is missing, or not what was written.
    """
    paths = [tables.state.folder / file.path for file in files]
    verify(paths)
    whole = len(files) == len(tables.state.files)
    parts = list(_last_rows(state, tables, paths, whole=whole))
    return parts, {MERGED: sum(part.rows for part in parts)} if whole else {}


def _last_rows(state: State, tables: KeyedTables, paths: list[Path], *, whole: bool) -> Iterator[Part]:
    """Of each key its last row, by bucket and key. A removed key is forgotten where no older row of it is left."""
    query = f"""
        SELECT key, value, sequence, wave, bucket FROM read_parquet({quoted_list(map(str, paths))})
        QUALIFY row_number() OVER (PARTITION BY bucket, key ORDER BY wave DESC) = 1
        {"AND value IS NOT NULL" if whole else ""}
        ORDER BY bucket, key
    """
    with connect(state.staging) as db:
        batches = stream(db, query, KEY_STATE)
        while (first := next(batches, None)) is not None:
            yield _part(tables, state.epoch, chain([first], batches))


def _part(tables: KeyedTables, epoch: int, batches: Iterator[pa.RecordBatch]) -> Part:
    """A file of as many of these rows as belong into one."""
    writer = PartWriter(tables.state.folder, KEY_STATE, epoch=epoch)
    buckets: list[int] = []
    size = 0
    try:
        for batch in batches:
            writer.write(pa.Table.from_batches([batch]))
            buckets += [batch["bucket"][0].as_py(), batch["bucket"][-1].as_py()]
            size += batch.nbytes
            if size >= limits.PART_BYTES:
                break
        return writer.finish(bucket_stats(buckets[0], buckets[-1]))
    except BaseException:
        writer.abandon()
        raise
