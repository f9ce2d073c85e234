"""Keeping files few: small ones are merged, logs folded, what nobody names is removed. Only between waves.

Each piece is one commit that changes no row's meaning, so a crash before or after it changes nothing; a file that was
written and not committed is swept with the rest.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ferryman import settings
from ferryman.ledger.settle import due_stats
from ferryman.ledger.state import State
from ferryman.storage.files import fsync_folder, remove_temporary
from ferryman.storage.parquet import Part, read_part, write_part
from ferryman.storage.query import connect, register
from ferryman.storage.tables import DataFile, Table
from ferryman.testing import crash


def maintain(state: State) -> None:
    """Merge what has become many, fold long logs, sweep. Cheap when there is nothing to do."""
    changed = False
    for table in (state.ledger, state.documents):
        changed |= _merge_small(table)
    changed |= _merge_outbox(state)
    for table in state.tables:
        if len(table.log.versions()) > settings.CHECKPOINT_COMMITS:
            table.checkpoint()
            changed = True
    if changed:
        sweep(state)


def sweep(state: State) -> int:
    """Remove every data file that no table names; how many there were. Only when no wave is unsettled.

    Raises:
        StateLost: another driver has taken over; what we know of the tables is old, nothing was removed.
    """
    state.check_ours()
    gone = 0
    for table in state.tables:
        gone += table.sweep()
        crash.point("sweep.table")
    for folder in (state.root, state.commands, state.journal.folder):
        remove_temporary(folder)
    return gone


def _merge_small(table: Table) -> bool:
    """Merge the small files of the ledger or of ``documents`` (there only each document's last row is kept)."""
    small = [f for f in table.files.values() if f.size < settings.PART_BYTES // 4]
    if len(small) < settings.COMPACT_FILES:
        return False
    merged = pa.concat_tables([read_part(table.folder / f.path) for f in small])
    if "delivery_hash" in table.schema.names:
        merged = merged.sort_by([("wave", "ascending"), ("ordinal", "ascending")])
    else:
        merged = last_rows(merged)
    stats = due_stats if "given" in table.schema.names else lambda _: None
    parts = [
        write_part(table.folder, p, stats=stats(p["due"].to_pylist()))
        for p in _pieces(merged, sum(f.size for f in small))
    ]
    _replace(table, small, [table.data_file(p) for p in parts])
    return True


def last_rows(documents: pa.Table) -> pa.Table:
    """Each document's last row, by wave."""
    rows = documents.append_column("at", pa.array(range(documents.num_rows), pa.int64()))
    rows = rows.sort_by([("wave", "ascending"), ("at", "ascending")])
    last = rows.group_by(["source", "document"], use_threads=False).aggregate([("at", "last")])
    return documents.take(last["at_last"].sort())


def _merge_outbox(state: State) -> bool:
    """Merge a destination's small files: rows that wait or are parked for long. Sequences stay what they are."""
    table = state.outbox
    if state.journal.passes() and any(state.journal.claims(p) for p in state.journal.passes()):
        return False  # a late worker may still answer for rows by their file
    changed = False
    by_destination: dict[str, list[DataFile]] = {}
    for file in sorted(table.files.values(), key=lambda f: int(f.partition["first_sequence"])):
        if file.size < settings.PART_BYTES // 4:
            by_destination.setdefault(file.partition["destination"], []).append(file)
    for files in by_destination.values():
        if len(files) >= settings.COMPACT_FILES:
            part = _merged_outbox(state, files)
            _replace(table, files, [] if part is None else [table.data_file(part, files[0].partition)])
            changed = True
    return changed


def _merged_outbox(state: State, files: list[DataFile]) -> Part | None:
    """One file in place of several, without what is parked for a version that is not the document's any more."""
    folder = state.outbox.folder
    key = int(files[0].partition["first_sequence"])
    tables = []
    for file in files:
        rows = read_part(folder / file.path)
        shifted = pc.add(rows["row"], int(file.partition["first_sequence"]) - key)
        tables.append(rows.set_column(rows.schema.get_field_index("row"), "row", shifted))
    merged = pa.concat_tables(tables)
    merged = merged.filter(pc.invert(pc.is_in(merged["delivery_hash"], value_set=_outdated(state, merged))))
    return write_part(folder, merged, stats=due_stats(merged["due"].to_pylist())) if merged.num_rows else None


def _outdated(state: State, rows: pa.Table) -> pa.Array:
    """Delivery hashes of parked rows whose document has had a newer revision since: nobody will send them again."""
    parked = rows.filter(pc.is_null(rows["due"])).select(["source", "origin", "revision", "delivery_hash"])
    if not parked.num_rows or not state.documents.files:
        return pa.array([], pa.string())
    with connect(state.staging) as db:
        db.register("parked", parked)
        register(db, "documents", state.documents.paths(), state.documents.schema)
        found = db.execute("""
            SELECT DISTINCT p.delivery_hash FROM parked p
            JOIN documents d ON p.source = d.source AND p.origin = d.document AND d.revision > p.revision
        """).fetchall()
    return pa.array([digest for (digest,) in found], pa.string())


def _replace(table: Table, old: list[DataFile], new: list[DataFile]) -> None:
    crash.point("compact.written")
    fsync_folder(table.folder)
    table.commit("compact", adds=new, removes=[f.path for f in old], data_change=False)
    for file in old:
        (table.folder / file.path).unlink(missing_ok=True)
    crash.point("compact.removed")


def _pieces(rows: pa.Table, size: int) -> list[pa.Table]:
    """Cut rows that came from ``size`` bytes of files so that each piece stays below ``PART_BYTES``."""
    count = 1 + size // settings.PART_BYTES
    step = -(-rows.num_rows // count)
    return [rows.slice(at, step) for at in range(0, rows.num_rows, step)]
