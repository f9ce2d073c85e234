"""Merging small outbox files: of rows that wait, or are kept for review, for long.

Content is copied a row group at a time, and a file is merged with others of its class of size: so a row is copied a few
times, however many waves it waits, and nothing of its size is in memory. Sequences stay what they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from ferryman.state.outbox import OutboxWriter, row_groups, split_family
from ferryman.state.small_files import gathered, small_batches
from ferryman.state.state import State
from ferryman.storage.handles import DataFile
from ferryman.storage.parquet import Part, read_part
from ferryman.storage.query import connect, register


def outbox_merges(state: State) -> list[list[DataFile]]:
    """Files of the outbox of which each list is to become one file: their destination is one, their order that of the
    outbox."""
    if any(state.journal.claims(number) for number in state.journal.passes()):
        return []  # a late worker may still answer for rows by their file
    by_destination: dict[str, list[DataFile]] = defaultdict(list)
    for file in sorted(state.outbox.files.values(), key=_key):
        by_destination[file.partition["destination"]].append(file)
    return [batch for files in by_destination.values() for batch in small_batches(state.outbox, list(_alone(files)))]


def merge_outbox_files(state: State, files: list[DataFile]) -> Part | None:
    """Write one file in place of several, without what is kept for a version that is not the document's any more.

    None: nothing stays.
    """
    folder, key = state.outbox.folder, _key(files[0])
    outdated = _outdated(state, files)
    with OutboxWriter(folder, epoch=state.epoch) as writer:
        for rows in gathered(_shifted(state, files, key)):
            writer.write(rows.filter(pc.invert(pc.is_in(rows["delivery_hash"], value_set=outdated))))
        return writer.finish()


def _alone(files: list[DataFile]) -> Iterator[DataFile]:
    """But for those of split families: one lane sends them, in their order, and they stay neighbours."""
    for before, file, after in zip([None, *files[:-1]], files, [*files[1:], None], strict=True):
        if not (before and split_family(before, file)) and not (after and split_family(file, after)):
            yield file


def _shifted(state: State, files: list[DataFile], key: int) -> Iterator[pa.Table]:
    """The files' rows, numbered so that their sequences stay under the first one's key."""
    for file in files:
        for rows in row_groups(state.outbox.path(file.path)):
            shifted = pc.add(rows["row"], _key(file) - key)
            yield rows.set_column(rows.schema.get_field_index("row"), "row", shifted)


def _outdated(state: State, files: list[DataFile]) -> pa.Array:
    """Delivery hashes of rows kept for review whose document has a newer revision: nobody sends them again."""
    kept = pa.concat_tables([_kept(state, file) for file in files])
    if not kept.num_rows or not state.documents.files:
        return pa.array([], pa.string())
    with connect(state.spill) as db:
        db.register("kept", kept)
        register(db, "documents", state.documents.paths(), state.documents.schema)
        found = db.execute("""
            SELECT DISTINCT k.delivery_hash FROM kept k
            JOIN documents d ON k.source = d.source AND k.origin = d.document AND d.revision > k.revision
        """).fetchall()
    return pa.array([digest for (digest,) in found], pa.string())


def _kept(state: State, file: DataFile) -> pa.Table:
    names = ["source", "origin", "revision", "delivery_hash"]
    rows = read_part(state.outbox.path(file.path), [*names, "due"])
    return rows.filter(pc.is_null(rows["due"])).select(names)


def _key(file: DataFile) -> int:
    return int(file.partition["first_sequence"])
