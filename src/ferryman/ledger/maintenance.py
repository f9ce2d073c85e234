"""Keeping files few: small ones are merged, logs folded, what nobody names is removed. Only between waves.

Each piece is one commit that changes no row's meaning, so a crash before or after it changes nothing; a file that was
written and not committed is swept with the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import duckdb
import pyarrow as pa

from ferryman import settings
from ferryman.errors import named
from ferryman.ledger.merging import merge_outbox_files, outbox_merges
from ferryman.ledger.settle import due_stats
from ferryman.ledger.state import State
from ferryman.storage.files import fsync_folder, remove_temporary
from ferryman.storage.parquet import read_part, write_part
from ferryman.storage.tables import DataFile, Table
from ferryman.testing import crash


def maintain(state: State) -> list[str]:
    """Merge what has become many, fold long logs, sweep. Cheap when there is nothing to do.

    Returns what could not be merged, a line each.
    """
    changed = False
    notes: list[str] = []
    for table in (state.ledger, state.documents):
        changed |= _merge_small(state, table)
    changed |= _merge_outbox(state, notes)
    for table in state.tables:
        if len(table.log.versions()) > settings.CHECKPOINT_COMMITS:
            table.checkpoint()
            changed = True
    if changed:
        sweep(state)
    return notes


def sweep(state: State) -> int:
    """Remove every data file of ours, or of a driver before us, that no table names; how many there were. Only when no
    wave is unsettled.

    Raises:
        StateLost: another driver has taken over; what we know of the tables is old, nothing was removed.
    """
    state.check_ours()
    gone = 0
    with state.removable() as before:
        for table in state.tables:
            gone += table.sweep(before=before)
            crash.point("sweep.table")
    half_written_before = state.readers.now() - settings.TEMPORARY_S
    for folder in (state.root, state.commands, state.journal.folder):
        remove_temporary(folder, half_written_before)
    return gone


def _merge_small(state: State, table: Table) -> bool:
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
        write_part(table.folder, p, epoch=state.epoch, stats=stats(p["due"].to_pylist()))
        for p in _pieces(merged, sum(f.size for f in small))
    ]
    _replace(state, table, small, [table.data_file(p) for p in parts])
    return True


def last_rows(documents: pa.Table) -> pa.Table:
    """Each document's last row, by wave."""
    rows = documents.append_column("at", pa.array(range(documents.num_rows), pa.int64()))
    rows = rows.sort_by([("wave", "ascending"), ("at", "ascending")])
    last = rows.group_by(["source", "document"], use_threads=False).aggregate([("at", "last")])
    return documents.take(last["at_last"].sort())


def _merge_outbox(state: State, notes: list[str]) -> bool:
    """Merge small outbox files; what could not be merged is noted."""
    changed = False
    for files in outbox_merges(state):
        merged: list[DataFile] | None = None
        with skipping(f"small outbox files of {files[0].partition['destination']}", notes):
            part = merge_outbox_files(state, files)
            merged = [] if part is None else [state.outbox.data_file(part, files[0].partition)]
        if merged is not None:
            _replace(state, state.outbox, files, merged)
            changed = True
    return changed


@contextlib.contextmanager
def skipping(what: str, notes: list[str]) -> Iterator[None]:
    """A merge that fails changes nothing, and must not keep a state from starting: it is noted.

    What is damaged, or not ours any more, is an error all the same.
    """
    try:
        yield
    except (pa.ArrowException, duckdb.Error, MemoryError, OSError) as e:
        notes.append(f"{what} could not be merged: {named(e)}. They stay as they are; the next wave tries again.")


def _replace(state: State, table: Table, old: list[DataFile], new: list[DataFile]) -> None:
    crash.point("compact.written")
    fsync_folder(table.folder)
    table.commit("compact", adds=new, removes=[f.path for f in old], data_change=False)
    state.retire(table, [f.path for f in old])
    crash.point("compact.removed")


def _pieces(rows: pa.Table, size: int) -> list[pa.Table]:
    """Cut rows that came from ``size`` bytes of files so that each piece stays below ``PART_BYTES``."""
    count = 1 + size // settings.PART_BYTES
    step = -(-rows.num_rows // count)
    return [rows.slice(at, step) for at in range(0, rows.num_rows, step)]
