"""Keeping files few: small ones are merged, logs folded, what nobody names is removed. Only between waves.

Each piece is one commit that changes no row's meaning, so a crash before or after it changes nothing; a file that was
written and not committed is swept with the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import duckdb
import pyarrow as pa

from ferryman import crash, limits
from ferryman.errors import describe
from ferryman.state.compaction import Outdated, find_outdated, has_outdated, write_merged, write_staying
from ferryman.state.key_maintenance import carried_on, key_merges, write_merged_keys
from ferryman.state.keyed import KeyedTables
from ferryman.state.merging import merge_outbox_files, outbox_merges
from ferryman.state.small_files import small_batches
from ferryman.state.state import KEPT, State
from ferryman.storage.files import fsync_folder, listed, remove_temporary
from ferryman.storage.handles import DataFile
from ferryman.storage.tables import Table

_NO_NUMBERS: Final[Mapping[str, int]] = MappingProxyType({})


def maintain(state: State, *, sweeps: bool = True) -> list[str]:
    """Merge what has become many, fold long logs, sweep. Cheap when there is nothing to do.

    Returns what could not be merged, a line each.

    Args:
        sweeps: False: tasks are staging files that nothing names yet.
    """
    notes: list[str] = []
    changed = _drop_outdated(state, notes)
    for table in (state.ledger, state.documents):
        changed |= _merge_small(state, table, notes)
    changed |= _merge_outbox(state, notes)
    for name, tables in state.keyed.items():
        changed |= _maintain_keyed(state, name, tables, notes)
    for table in state.tables:
        if len(table.log.versions()) > limits.CHECKPOINT_COMMITS:
            table.checkpoint()
            changed = True
    if changed and sweeps:
        sweep(state)
    return notes


def sweep(state: State) -> int:
    """Remove every data file of ours, or of a driver before us, that no table names; how many there were. Only when no
    wave is unsettled, and no task is staging files of the next.

    Raises:
        StateLost: another driver has taken over; what we know of the tables is old, nothing was removed.
    """
    state.check_ours()
    gone = 0
    with state.removable() as before, listed(state.root):
        for table in state.tables:
            gone += table.sweep(before=before)
            crash.point("sweep.table")
    if isinstance(state.root, Path):  # in an object store nothing is half written
        half_written_before = state.readers.now() - limits.TEMPORARY_S
        for folder in (state.root, state.commands, state.journal.folder):
            remove_temporary(folder, half_written_before)
        for table in state.tables:
            table.log.remove_half_written(half_written_before)
    return gone


def _drop_outdated(state: State, notes: list[str]) -> bool:
    """Drop outdated rows of ``documents``, once they are a good part of all.

    1. find them, and which files have the most
    2. write such files again, a group at a time, without them
    3. commit each group in place of its files; the number of documents, by which the next look is timed, goes with it
    """
    if not has_outdated(state):
        return False
    table, what = state.documents, "outdated rows of documents"
    found: Outdated | None = None
    with skipping(what, notes, "dropped"):
        found = find_outdated(state)  # 1
    if found is not None and not found.groups:
        table.commit("outdated", transactions={KEPT: found.kept}, data_change=False)
    for group in found.groups if found is not None else ():
        staying: list[DataFile] | None = None
        with skipping(what, notes, "dropped"):
            part = write_staying(state, group)  # 2
            staying = [] if part is None else [table.data_file(part)]
        if staying is not None:
            crash.point("outdated.written")
            fsync_folder(table.folder)
            old = [file.path for file, _ in group]
            numbers = {KEPT: found.kept}
            table.commit("outdated", adds=staying, removes=old, transactions=numbers, data_change=False)  # 3
            state.retire(table, old)
    return found is not None


def _merge_small(state: State, table: Table, notes: list[str]) -> bool:
    """Merge the small files of the ledger or of ``documents``; what could not be merged is noted."""
    changed = False
    for files in small_batches(table, list(table.files.values())):
        merged: list[DataFile] | None = None
        with skipping(f"small files of {table.name}", notes):
            part = write_merged(state, table, files)
            merged = [] if part is None else [table.data_file(part)]
        if merged is not None:
            _replace(state, table, files, merged)
            changed = True
    return changed


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


def _maintain_keyed(state: State, name: str, tables: KeyedTables, notes: list[str]) -> bool:
    """Remove exports that the plan has carried on, and merge files of states and of what keys were given."""
    changed = False
    if carried := carried_on(state, name, tables):
        _replace(state, tables.exports, carried, [])
        changed = True
    for table in (tables.state, tables.contributions):
        for files in key_merges(table):
            merged: list[DataFile] | None = None
            numbers: dict[str, int] = {}
            with skipping(f"the states of {name}", notes):
                parts, numbers = write_merged_keys(state, table, files)
                merged = [table.data_file(part) for part in parts]
            if merged is not None:
                _replace(state, table, files, merged, numbers)
                changed = True
    return changed


@contextlib.contextmanager
def skipping(what: str, notes: list[str], done: str = "merged") -> Iterator[None]:
    """A merge that fails changes nothing, and must not keep a state from starting: it is noted.

    What is damaged, or not ours any more, is an error all the same.
    """
    try:
        yield
    except (pa.ArrowException, duckdb.Error, MemoryError, OSError) as e:
        notes.append(f"{what} could not be {done}: {describe(e)}. They stay as they are; the next wave tries again.")


def _replace(
    state: State, table: Table, old: list[DataFile], new: list[DataFile], numbers: Mapping[str, int] = _NO_NUMBERS
) -> None:
    crash.point("compact.written")
    fsync_folder(table.folder)
    removes = [f.path for f in old]
    table.commit("compact", adds=new, removes=removes, transactions=numbers, data_change=False)
    state.retire(table, removes)
    crash.point("compact.removed")
