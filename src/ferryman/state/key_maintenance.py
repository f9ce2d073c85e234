"""Keeping the files of keyed nodes few: outdated states are dropped, and exports that the plan has carried on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from ferryman import limits
from ferryman.records.keyed import CONTRIBUTIONS, KEY_STATE, bucket_stats, lanes
from ferryman.state.held_exports import lowest_places
from ferryman.state.keyed import MERGED, KeyedTables
from ferryman.state.log_positions import LogPositions
from ferryman.state.small_files import small_batches
from ferryman.state.state import State
from ferryman.storage.handles import DataFile
from ferryman.storage.parquet import Part, PartWriter
from ferryman.storage.query import connect, quoted_list, stream, verify
from ferryman.storage.tables import Table


def carried_on(state: State, name: str, tables: KeyedTables) -> list[DataFile]:
    """Files of exports that the plan has carried on whole, once they are worth a commit. What a step could not take is
    read again."""
    reached = LogPositions(state, name).of({"": ""}, {"": lanes()})
    found = [
        file
        for file in tables.exports.files.values()
        if int(file.partition["first_place"]) + file.rows <= reached.get(file.partition["lane"], 0)
    ]
    if found and (kept := lowest_places(state, name)):
        found = [f for f in found if int(f.partition["first_place"]) + f.rows <= kept.get(f.partition["lane"], _NEVER)]
    many = len(found) >= limits.COMPACT_FILES or sum(file.size for file in found) >= limits.PART_BYTES
    return found if many else []


_NEVER: Final = 1 << 62
"""No place is as high."""


class _Kind(NamedTuple):
    """A table of which the last row of each counts.

    Attributes:
        whose: columns that tell one from another.
        gone: the column that is null in a row that says so.
    """

    schema: pa.Schema
    whose: str
    gone: str


_KINDS: Final = {
    "state": _Kind(KEY_STATE, "bucket, key", "value"),
    "contributions": _Kind(CONTRIBUTIONS, "bucket, key, source, document, route", "fields"),
}
"""By folder."""


def key_merges(table: Table) -> Iterator[list[DataFile]]:
    """Files of states, or of contributions, to be merged: all, if most rows may be outdated, or the small ones."""
    files = list(table.files.values())
    rows = sum(file.rows for file in files)
    outdated = rows - table.transactions[MERGED]
    if len(files) >= limits.COMPACT_FILES and outdated >= limits.OUTDATED_SHARE * rows:
        yield files
    else:
        yield from small_batches(table.folder, files)


def write_merged_keys(state: State, table: Table, files: list[DataFile]) -> tuple[list[Part], dict[str, int]]:
    """Write the last rows of files; and the numbers that their commit carries.

    Raises:
        StateDamaged: a file is missing, or not what was written.
    """
    paths = [table.folder / file.path for file in files]
    verify(paths)
    whole = len(files) == len(table.files)
    parts = list(_last_rows(state, table, paths, whole=whole))
    return parts, {MERGED: sum(part.rows for part in parts)} if whole else {}


def _last_rows(state: State, table: Table, paths: list[Path], *, whole: bool) -> Iterator[Part]:
    """The last rows, by bucket and key. What is gone is forgotten where no older row of it is left."""
    schema, whose, gone = _KINDS[table.folder.parent.name]
    query = f"""
        SELECT {", ".join(schema.names)} FROM read_parquet({quoted_list(map(str, paths))})
        QUALIFY row_number() OVER (PARTITION BY {whose} ORDER BY wave DESC) = 1
        {f"AND {gone} IS NOT NULL" if whole else ""}
        ORDER BY {whose}
    """
    with connect(state.staging) as db:
        batches = stream(db, query, schema)
        while (first := next(batches, None)) is not None:
            yield _part(table, state.epoch, chain([first], batches))


def _part(table: Table, epoch: int, batches: Iterator[pa.RecordBatch]) -> Part:
    """A file of as many of these rows as belong into one."""
    writer = PartWriter(table.folder, _KINDS[table.folder.parent.name].schema, epoch=epoch)
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
