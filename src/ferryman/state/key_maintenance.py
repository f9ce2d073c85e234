"""Keeping the files of keyed nodes few: outdated states are dropped, and exports that the plan has carried on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ferryman import limits
from ferryman.records.change_readers import FORGOTTEN, needed_from
from ferryman.records.keyed import CONTRIBUTIONS, KEY_STATE, PUBLISHED, file_stats, lanes
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
    "contributions": _Kind(CONTRIBUTIONS, "bucket, key, source, document", "fields"),
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
        yield from small_batches(table, files)


def write_merged_keys(state: State, table: Table, files: list[DataFile]) -> tuple[list[Part], dict[str, int]]:
    """Write the last rows of files; and the numbers that their commit carries.

    Raises:
        StateDamaged: a file is missing, or not what was written.
    """
    paths = table.paths(file.path for file in files)
    verify(paths)
    if len(files) < len(table.files):
        return list(_last_rows(state, table, paths, forget=0)), {}
    needed = needed_from(state.root, table.name) if table.folder.parent.name == "state" else None
    upto = 1 + table.transactions[PUBLISHED] if needed is None else needed
    parts = list(_last_rows(state, table, paths, forget=upto))
    numbers = {MERGED: sum(part.rows for part in parts)}
    if table.folder.parent.name == "state" and (last := _last_gone(state, paths, upto)):
        numbers[FORGOTTEN] = max(last, table.transactions[FORGOTTEN])
    return parts, numbers


def _last_gone(state: State, paths: list[Path], before: int) -> int:
    """The last wave before this one that has removed states; 0: none has."""
    query = (
        f"SELECT max(wave) FROM read_parquet({quoted_list(map(str, paths))}) WHERE value IS NULL AND wave < {before}"
    )
    with connect(state.spill) as db:
        found = db.execute(query).fetchone()
    return 0 if found is None or found[0] is None else int(found[0])


def _last_rows(state: State, table: Table, paths: list[Path], *, forget: int) -> Iterator[Part]:
    """The last rows, by bucket and key. What was gone before wave ``forget`` is forgotten: no older row is left."""
    schema, whose, gone = _KINDS[table.folder.parent.name]
    query = f"""
        SELECT {", ".join(schema.names)} FROM read_parquet({quoted_list(map(str, paths))})
        QUALIFY row_number() OVER (PARTITION BY {whose} ORDER BY wave DESC) = 1
        AND ({gone} IS NOT NULL OR wave >= {forget})
        ORDER BY {whose}
    """
    with connect(state.spill) as db:
        batches = stream(db, query, schema)
        while (first := next(batches, None)) is not None:
            yield _part(table, state.epoch, chain([first], batches))


def _part(table: Table, epoch: int, batches: Iterator[pa.RecordBatch]) -> Part:
    """A file of as many of these rows as belong into one."""
    writer = PartWriter(table.folder, _KINDS[table.folder.parent.name].schema, epoch=epoch)
    buckets: list[int] = []
    waves: list[int] = []
    size = 0
    try:
        for batch in batches:
            writer.write(pa.Table.from_batches([batch]))
            buckets += [batch["bucket"][0].as_py(), batch["bucket"][-1].as_py()]
            waves += pc.min_max(batch["wave"]).as_py().values()
            size += batch.nbytes
            if size >= limits.PART_BYTES:
                break
        return writer.finish(file_stats((buckets[0], buckets[-1]), (min(waves), max(waves))))
    except BaseException:
        writer.abandon()
        raise
