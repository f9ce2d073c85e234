"""Keeping a state small, between waves: small files are merged, logs are folded, files that no table names are removed.

Each operation is a single commit that does not change what the tables mean, so a crash before or after it is harmless.
A file that was written but not committed is removed later.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import crash, limits
from ferryman.errors import describe
from ferryman.records.keys import CONTRIBUTIONS, FORGOTTEN, KEY_STATE, PUBLISHED, file_stats, first_needed_wave, lanes
from ferryman.state.keyed import MERGED, KeyedTables
from ferryman.state.logs import LogPositions, lowest_places
from ferryman.state.outbox import OutboxWriter, due_stats, first_sequence, row_groups, split_family
from ferryman.state.state import DOCUMENT_COUNT, State
from ferryman.storage.delta import DataFile
from ferryman.storage.files import cached_listing, fsync_folder, remove_temporary
from ferryman.storage.parquet import (
    Part,
    PartWriter,
    RowGroups,
    combine_small_tables,
    content_size,
    number_array,
    numbers_of,
    read_part,
)
from ferryman.storage.query import (
    HashFilter,
    PartitionFiles,
    connect,
    partition_of,
    partitions_for,
    quote_list,
    read_rows,
    register,
    stream,
    verify,
)
from ferryman.storage.tables import Table

_NO_NUMBERS: Final[Mapping[str, int]] = MappingProxyType({})


class Merged(NamedTuple):
    """Files that replace others, and the transactions of the commit that does it."""

    parts: Sequence[Part]
    transactions: Mapping[str, int] = _NO_NUMBERS

    @classmethod
    def of(cls, part: Part | None) -> Self:
        """Return a single file; None: no row is left."""
        return cls([] if part is None else [part])


def maintain(state: State, *, sweeps: bool = True) -> list[str]:
    """Merge small files, fold long logs, sweep. Cheap when there is nothing to do.

    Returns a message for each merge that failed.

    Args:
        sweeps: set False while tasks are staging files that nothing names yet.
    """
    notes: list[str] = []
    changed = _drop_outdated(state, notes)
    for table in (state.ledger, state.documents):
        for batch in small_batches(table, list(table.files.values())):
            changed |= _merge(state, table, batch, f"small files of {table.name}", notes, write_merged)
    for batch in outbox_merges(state):
        what = f"small outbox files of {batch[0].partition['destination']}"
        changed |= _merge(state, state.outbox, batch, what, notes, merge_outbox_files)
    for name, tables in state.keyed.items():
        changed |= _maintain_keyed(state, name, tables, notes)
    for table in state.tables:
        if table.log.commits_since_checkpoint >= limits.CHECKPOINT_COMMITS:
            table.checkpoint()
            changed = True
    if changed and sweeps:
        sweep(state)
    return notes


def sweep(state: State) -> int:
    """Remove every data file of this driver or an earlier one that no table names; return how many. Call it only if
    every wave is settled and no task is staging files of the next.

    Raises:
        StateLost: another driver has taken over, so this driver's view of the tables is outdated; nothing was removed.
    """
    state.check_ownership()
    removed = 0
    with state.removal_cutoff() as before, cached_listing(state.root):
        for table in state.tables:
            removed += table.sweep(before=before)
            crash.point("sweep.table")
    if isinstance(state.root, Path):  # in an object store, no file is ever half written
        half_written_before = state.readers.filesystem_time() - limits.TEMPORARY_S
        for folder in (state.root, state.commands, state.journal.folder):
            remove_temporary(folder, half_written_before)
        for table in state.tables:
            table.log.remove_temporary(half_written_before)
    return removed


def _drop_outdated(state: State, notes: list[str]) -> bool:
    """Drop outdated rows of ``documents`` if they are a large share of all rows; return whether anything changed.

    1. find the outdated rows, and the files with the most of them
    2. rewrite these files without them, a group of files at a time
    3. commit each group in place of its files, with the number of documents, which decides when to look next
    """
    if not has_outdated(state):
        return False
    table, what = state.documents, "outdated rows of documents"
    found: Outdated | None = None
    with note_failure(what, notes, "dropped"):
        found = find_outdated(state)  # 1
    if found is not None and not found.groups:
        table.commit("outdated", transactions={DOCUMENT_COUNT: found.kept}, data_change=False)
    for group in found.groups if found is not None else ():
        staying: list[DataFile] | None = None
        with note_failure(what, notes, "dropped"):
            part = write_staying(state, group)  # 2
            staying = [] if part is None else [table.data_file(part)]
        if staying is not None:
            crash.point("outdated.staged")
            fsync_folder(table.folder)
            old = [file.path for file, _ in group]
            numbers = {DOCUMENT_COUNT: found.kept}
            table.commit("outdated", adds=staying, removes=old, transactions=numbers, data_change=False)  # 3
            state.retire(table, old)
    return found is not None


def _merge(
    state: State,
    table: Table,
    files: list[DataFile],
    what: str,
    notes: list[str],
    write: Callable[[State, Table, list[DataFile]], Merged],
) -> bool:
    """Replace files by what ``write`` merges them into; return False, and add a note, if that fails."""
    merged: Merged | None = None
    with note_failure(what, notes):
        merged = write(state, table, files)
    if merged is not None:
        new = [table.data_file(part, files[0].partition) for part in merged.parts]
        _replace(state, table, files, new, merged.transactions)
    return merged is not None


def _maintain_keyed(state: State, name: str, tables: KeyedTables, notes: list[str]) -> bool:
    """Remove exports that the plan has processed, and merge files of states and contributions."""
    changed = False
    if carried := consumed_exports(state, name, tables):
        _replace(state, tables.exports, carried, [])
        changed = True
    for table in (tables.state, tables.contributions):
        for files in key_merges(table):
            changed |= _merge(state, table, files, f"the states of {name}", notes, write_merged_keys)
    return changed


@contextlib.contextmanager
def note_failure(what: str, notes: list[str], done: str = "merged") -> Iterator[None]:
    """Record a failing merge as a note and continue, since it changes nothing and must not prevent a state from
    starting.

    Damage, and the loss of the state to another driver, are still raised.
    """
    try:
        yield
    except (pa.ArrowException, duckdb.Error, MemoryError, OSError) as e:
        notes.append(f"{what} could not be {done}: {describe(e)}. They stay as they are; the next wave tries again.")


def _replace(
    state: State, table: Table, old: list[DataFile], new: list[DataFile], numbers: Mapping[str, int] = _NO_NUMBERS
) -> None:
    crash.point("compact.staged")
    fsync_folder(table.folder)
    removes = [f.path for f in old]
    table.commit("compact", adds=new, removes=removes, transactions=numbers, data_change=False)
    state.retire(table, removes)
    crash.point("compact.removed")


# --- the last row of each document in ``documents``, found by hash, a partition of the documents at a time ---
#
# Memory is bounded however many documents there are and however long their ids; wide columns are not read here, but
# later by file and row.

DOCUMENT: Final = "source || chr(0) || document"
"""SQL expression that identifies a document; its hash is ``h``."""

HASHES: Final = pa.schema([("h", pa.uint64())])

Columns = dict[str, np.ndarray[Any, Any]]

Rows = np.ndarray[Any, Any]
"""Row numbers, ascending in a file."""

_PLACE: Final = (("h", pa.uint64()), ("wave", pa.int64()), ("file", pa.int32()), ("row", pa.int64()))


def rows_by_document(
    db: duckdb.DuckDBPyConnection,
    paths: Sequence[Path],
    rows: int,
    folder: Path,
    more: Mapping[str, tuple[str, pa.DataType]],
    any_row: str = "",
    marked: HashFilter | None = None,
    document: str = DOCUMENT,
    parts: int = 0,
) -> Iterator[Columns]:
    """Yield all rows of some documents at a time, in the order of the files: each document's hash ``h``, the index
    ``file`` of the file's path, and the ``row`` there. ``last_rows`` then selects the last row of each document.

    Args:
        paths: data files whose checksums have been verified.
        rows: number of rows of all the files.
        folder: for data that does not fit into memory.
        more: further columns, not nullable: name -> (SQL expression on a ``documents`` row, type).
        any_row: SQL condition; only documents with a row that meets it are yielded, and possibly some others.
        marked: documents to yield as well.
        document: SQL for the hash of a document, or for a text that is hashed when it is read.
        parts: number of partitions, a power of two; 0: so many that each has ``limits.COMPARED_ROWS``.
    """
    schema = pa.schema([*_PLACE, *((name, kind) for name, (_, kind) in more.items())])
    parts = parts or partitions_for(rows, 0, limits.COMPARED_ROWS, 1)
    partitions = PartitionFiles(folder, "latest", schema, parts)
    if any_row and paths:
        marked = marked or HashFilter()
        files = f"read_parquet({quote_list(map(str, paths))})"
        for batch in stream(db, f"SELECT {document} FROM {files} WHERE {any_row}", HASHES):
            marked.add(batch.column(0).to_numpy())
    columns = ", ".join([document, "wave", "file", "file_row_number", *(sql for sql, _ in more.values())])
    for batch in read_rows(db, paths, columns, schema, most_rows=rows):
        if marked is not None:
            batch = batch.filter(pa.array(marked.contains(batch.column(0).to_numpy())))
        partitions.add(batch, partition_of(batch.column(0).to_numpy(), parts))
    partitions.close()
    for part in range(parts):
        yield to_columns(partitions.read(part))


def chosen_rows_by_file(rows: Columns, chosen: np.ndarray[Any, Any]) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """Yield (file, chosen rows in it), file by file."""
    files, places = rows["file"][chosen], rows["row"][chosen]
    order = np.argsort(files, kind="stable")
    files, places = files[order], places[order]
    start = 0
    for end in [*(np.flatnonzero(files[1:] != files[:-1]) + 1).tolist(), len(files)] if len(files) else []:
        yield int(files[start]), places[start:end]
        start = end


def to_columns(table: pa.Table) -> Columns:
    """Return a table's columns as arrays."""
    return {name: table[name].to_numpy() for name in table.column_names}


def last_rows(rows: Columns) -> Columns:
    """Return, of the rows with the same ``h``, the one of the highest wave."""
    last = _last_positions(rows, "h")
    return {name: column[last] for name, column in rows.items()}


def _last_positions(rows: Columns, *same: str) -> Rows:
    """Return the positions of the rows of the highest wave among those that are the same in these columns."""
    order = np.lexsort((rows["wave"], *(rows[name] for name in reversed(same))))
    last = np.zeros(len(order), bool)
    last[-1:] = True
    for name in same:
        column = rows[name][order]
        last[:-1] |= column[1:] != column[:-1]
    found: Rows = order[last]
    return found


# --- merging files of ``documents`` and the ledger, without outdated rows: those whose document has a newer row ---
#
# Files are read and written a row group at a time. Finding outdated rows takes the same memory however many there are:
# it compares hashes, a partition of the documents at a time.

_CHECK = {"check": (f"md5_number_lower({DOCUMENT})", pa.uint64())}
"""Second hash of a document: dropped rows cannot be recovered, so two documents must not be taken for one."""


class Outdated(NamedTuple):
    """Plan for dropping outdated rows of ``documents``.

    Attributes:
        kept: number of documents; each keeps one row.
        groups: groups of files to be merged into one, each file with the numbers of the rows to keep.
    """

    kept: int
    groups: list[list[tuple[DataFile, Rows]]]


def has_outdated(state: State) -> bool:
    """Return whether enough rows of ``documents`` may be outdated to be worth a search; reads nothing."""
    files = state.documents.files.values()
    if len(files) < limits.COMPACT_FILES and sum(f.size for f in files) < limits.PART_BYTES:
        return False
    rows = sum(f.rows for f in files)
    return rows - state.documents.transactions[DOCUMENT_COUNT] >= limits.OUTDATED_SHARE * rows


def find_outdated(state: State) -> Outdated:
    """Choose the files to rewrite without outdated rows.

    Chooses the files with the most outdated rows, up to ``OUTDATED_BYTES``; files with few are left alone.
    """
    files = list(state.documents.files.values())
    masks = _last_documents(state, files)
    least = limits.OUTDATED_SHARE / 2
    candidates = [
        (float(mask.mean()), file, mask)
        for file, mask in zip(files, masks, strict=True)
        if not mask.all() and mask.mean() <= 1 - least
    ]
    staying: dict[str, Rows] = {}
    sizes: list[tuple[int, DataFile]] = []
    total = 0
    for share, file, mask in sorted(candidates, key=lambda each: each[0]):
        size = content_size(state.documents.path(file.path)) if share else 0  # otherwise it is not read
        if sizes and total + size > limits.OUTDATED_BYTES:
            break
        total += size
        staying[file.path] = np.flatnonzero(mask)
        sizes.append((int(size * share), file))
    kept = sum(int(mask.sum()) for mask in masks)
    return Outdated(kept, [[(file, staying[file.path]) for file in batch] for batch in fit_into_files(sizes)])


def write_staying(state: State, group: list[tuple[DataFile, Rows]]) -> Part | None:
    """Write one file with the remaining rows of a group of files; return None if none remain.

    Raises:
        StateDamaged: a file is missing, or not what was written.
    """
    table = state.documents
    remaining = (rows for file, staying in group if len(staying) for rows in _read_rows(table, file, staying))
    return _write_file(table, remaining, state.epoch)


def write_merged(state: State, table: Table, files: list[DataFile]) -> Merged:
    """Write one file with all rows of several; the ledger's by wave and ordinal.

    Raises:
        StateDamaged: a file is missing, or not what was written.
    """
    if table is state.ledger:
        return Merged.of(_write_file(table, _events_in_order(table, files), state.epoch))
    every_row = (rows for file in files for rows in _read_rows(table, file, None))
    return Merged.of(_write_file(table, every_row, state.epoch))


def _events_in_order(ledger: Table, files: list[DataFile]) -> Iterator[pa.Table]:
    """Yield the events of files by wave and ordinal, some thousand at a time. Each row group is read once, and is in
    memory from its first event to its last: mostly one or two are."""
    groups: list[tuple[DataFile, int]] = []
    keys: list[Rows] = []
    for file in files:
        with RowGroups(str(ledger.path(file.path)), ["wave", "ordinal"], verified=True) as found:
            groups += [(file, number) for number in range(found.count)]
            keys += [_order_of_events(found, number) for number in range(found.count)]
    left = [len(each) for each in keys]
    starts = np.concatenate(([0], np.cumsum(left, dtype=np.int64)))
    order = np.argsort(np.concatenate([np.zeros(0, np.int64), *keys]), kind="stable")
    held: dict[int, pa.Table] = {}
    for start in range(0, len(order), limits.MERGED_EVENTS):
        wanted = order[start : start + limits.MERGED_EVENTS]
        places = np.sort(wanted)
        parts: list[pa.Table] = []
        bounds = np.searchsorted(places, starts)
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            rows = places[bounds[number] : bounds[number + 1]] - starts[number]
            if number not in held:
                file, group = groups[number]
                with RowGroups(str(ledger.path(file.path)), ledger.schema.names, verified=True) as found:
                    held[number] = found.group(group)
            parts.append(_take_rows(held[number], rows))
            left[number] -= len(rows)
            if not left[number]:
                del held[number]
        events = pa.concat_tables(parts)
        yield events if np.array_equal(places, wanted) else events.take(number_array(np.searchsorted(places, wanted)))


def _order_of_events(file: RowGroups, group: int) -> Rows:
    """Return the numbers that order the events of a row group, see ``EVENT_ORDER``; the file's columns are wave and
    ordinal."""
    if (same := file.single_values(group)) is not None:
        return np.full(file.size(group), same[0] * 4 + same[1], np.int64)
    events = file.group(group)
    order: Rows = numbers_of(events["wave"]) * 4 + numbers_of(events["ordinal"])
    return order


def _take_rows(table: pa.Table, rows: Rows) -> pa.Table:
    """Return the rows of these ascending numbers; neighbours are not copied."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return table.slice(int(rows[0]), len(rows))
    return table.take(number_array(rows))


def _last_documents(state: State, files: list[DataFile]) -> list[Rows]:
    """Return, for each file, a mask of the rows that are the last of their documents."""
    masks = [np.zeros(file.rows, bool) for file in files]
    paths = state.documents.paths(file.path for file in files)
    verify(paths)
    with tempfile.TemporaryDirectory(dir=state.local_scratch) as folder, connect(Path(folder)) as db:
        for rows in rows_by_document(db, paths, sum(file.rows for file in files), Path(folder), _CHECK):
            for number, places in chosen_rows_by_file(rows, _last_positions(rows, "h", "check")):
                masks[number][places] = True
    return masks


def _read_rows(table: Table, file: DataFile, rows: Rows | None) -> Iterator[pa.Table]:
    with RowGroups(str(table.path(file.path)), table.schema.names, verified=True) as groups:
        yield from groups.all_rows() if rows is None else groups.rows_at(rows)


def _write_file(table: Table, rows: Iterable[pa.Table], epoch: int) -> Part | None:
    """Write a file of the table, which is deleted after an error."""
    writer: PartWriter | None = None
    dues: list[pa.ChunkedArray] = []
    try:
        for group in combine_small_tables(rows):
            writer = writer or PartWriter(table.folder, table.schema, epoch=epoch)
            writer.write(group)
            if "forced" in table.schema.names:  # it waits for an operator, so it is due
                dues.append(pc.if_else(group["forced"], pc.fill_null(group["due"], 0), group["due"]))
        if writer is None:
            return None
        return writer.finish(due_stats(pa.chunked_array(dues).to_pylist()) if dues else None)
    except BaseException:
        if writer is not None:
            writer.abandon()
        raise


# --- keyed nodes: dropping outdated states, and exports that the plan has processed ---


def consumed_exports(state: State, name: str, tables: KeyedTables) -> list[DataFile]:
    """Return files of exports that the plan has processed completely, if there are enough to be worth a commit. Exports
    on which a step failed are kept, since they are read again."""
    reached = LogPositions(state, name).places({"": ""}, {"": lanes()})
    found = [
        file
        for file in tables.exports.files.values()
        if int(file.partition["first_place"]) + file.rows <= reached.get(file.partition["lane"], 0)
    ]
    if _are_worth_a_commit(found) and (kept := lowest_places(state, name)):
        found = [
            f
            for f in found
            if int(f.partition["first_place"]) + f.rows <= kept.get(f.partition["lane"], _PAST_ALL_PLACES)
        ]
    return found if _are_worth_a_commit(found) else []


def _are_worth_a_commit(files: Collection[DataFile]) -> bool:
    return len(files) >= limits.COMPACT_FILES or sum(file.size for file in files) >= limits.PART_BYTES


_PAST_ALL_PLACES: Final = 1 << 62
"""Number above every place."""


class KeyedTable(NamedTuple):
    """Description of a table in which only the last row of each identity counts.

    Attributes:
        identity: columns that identify a row.
        value: the column that is null in a row that records a removal.
    """

    schema: pa.Schema
    identity: str
    value: str


KEYED_TABLES: Final = {
    "state": KeyedTable(KEY_STATE, "bucket, key", "value"),
    "contributions": KeyedTable(CONTRIBUTIONS, "bucket, key, source, document", "fields"),
}
"""Folder -> its table."""


def key_merges(table: Table) -> Iterator[list[DataFile]]:
    """Yield lists of files with states, or with contributions, to be merged: all files if most rows may be outdated,
    otherwise the small ones."""
    files = list(table.files.values())
    rows = sum(file.rows for file in files)
    outdated = rows - table.transactions[MERGED]
    if len(files) >= limits.COMPACT_FILES and outdated >= limits.OUTDATED_SHARE * rows:
        yield files
    else:
        yield from small_batches(table, files)


def write_merged_keys(state: State, table: Table, files: list[DataFile]) -> Merged:
    """Write the last rows of files.

    Raises:
        StateDamaged: a file is missing, or not what was written.
    """
    paths = table.paths(file.path for file in files)
    verify(paths)
    if len(files) < len(table.files):
        return Merged(list(_write_last_rows(state, table, paths, forget=0)))
    needed = first_needed_wave(state.root, table.name) if table.folder.parent.name == "state" else None
    forget_before = 1 + table.transactions[PUBLISHED] if needed is None else needed
    parts = list(_write_last_rows(state, table, paths, forget=forget_before))
    numbers = {MERGED: sum(part.rows for part in parts)}
    if table.folder.parent.name == "state" and (last := _last_removal_wave(state, paths, forget_before)):
        numbers[FORGOTTEN] = max(last, table.transactions[FORGOTTEN])
    return Merged(parts, numbers)


def _last_removal_wave(state: State, paths: list[Path], before: int) -> int:
    """Return the last wave before this one in which states were removed; 0 if there is none."""
    query = f"SELECT max(wave) FROM read_parquet({quote_list(map(str, paths))}) WHERE value IS NULL AND wave < {before}"
    with connect(state.local_scratch) as db:
        found = db.execute(query).fetchone()
    return 0 if found is None or found[0] is None else int(found[0])


def _write_last_rows(state: State, table: Table, paths: list[Path], *, forget: int) -> Iterator[Part]:
    """Write the last row of each identity, by bucket and key. Removals before wave ``forget`` are dropped, since no
    older row remains."""
    schema, identity, value = KEYED_TABLES[table.folder.parent.name]
    query = f"""
        SELECT {", ".join(schema.names)} FROM read_parquet({quote_list(map(str, paths))})
        QUALIFY row_number() OVER (PARTITION BY {identity} ORDER BY wave DESC) = 1
        AND ({value} IS NOT NULL OR wave >= {forget})
        ORDER BY {identity}
    """
    with connect(state.local_scratch) as db:
        batches = stream(db, query, schema)
        while (first := next(batches, None)) is not None:
            yield _write_key_file(table, state.epoch, chain([first], batches))


def _write_key_file(table: Table, epoch: int, batches: Iterator[pa.RecordBatch]) -> Part:
    """Write a file with as many of these rows as one file may hold."""
    writer = PartWriter(table.folder, KEYED_TABLES[table.folder.parent.name].schema, epoch=epoch)
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


# --- merging small outbox files, whose rows wait, or are held for review, for long ---
#
# Content is copied a row group at a time, and a file is merged with others of its size class: so a row is copied a few
# times, however many waves it waits, in bounded memory. Sequences do not change.


def outbox_merges(state: State) -> list[list[DataFile]]:
    """Return lists of outbox files, each to be merged into one: they have the same destination, and are in outbox
    order."""
    if any(state.journal.claims(number) for number in state.journal.passes()):
        return []  # a late worker may still report results by file
    by_destination: dict[str, list[DataFile]] = defaultdict(list)
    for file in sorted(state.outbox.files.values(), key=first_sequence):
        by_destination[file.partition["destination"]].append(file)
    return [
        batch
        for files in by_destination.values()
        for batch in small_batches(state.outbox, list(_without_split_families(files)))
    ]


def merge_outbox_files(state: State, table: Table, files: list[DataFile]) -> Merged:
    """Write one outbox file with the rows of several, without those that are held for review for an outdated
    revision."""
    key, outdated = first_sequence(files[0]), _outdated_deliveries(state, files)
    with OutboxWriter(table.folder, epoch=state.epoch) as writer:
        for rows in combine_small_tables(_renumber(state, files, key)):
            writer.write(rows.filter(pc.invert(pc.is_in(rows["delivery_hash"], value_set=outdated))))
        return Merged.of(writer.finish())


def _without_split_families(files: list[DataFile]) -> Iterator[DataFile]:
    """Yield the files except those that a large family is split over, which one lane must send in order."""
    for before, file, after in zip([None, *files[:-1]], files, [*files[1:], None], strict=True):
        if not (before and split_family(before, file)) and not (after and split_family(file, after)):
            yield file


def _renumber(state: State, files: list[DataFile], key: int) -> Iterator[pa.Table]:
    """Yield the files' rows, renumbered relative to the first file so that their sequences stay the same."""
    for file in files:
        for rows in row_groups(state.outbox.path(file.path)):
            shifted = pc.add(rows["row"], first_sequence(file) - key)
            yield rows.set_column(rows.schema.get_field_index("row"), "row", shifted)


def _outdated_deliveries(state: State, files: list[DataFile]) -> pa.Array:
    """Return the delivery hashes of rows held for review whose document has a newer revision; these are never sent
    again."""
    kept = pa.concat_tables([_rows_for_review(state, file) for file in files])
    if not kept.num_rows or not state.documents.files:
        return pa.array([], pa.string())
    with connect(state.local_scratch) as db:
        db.register("kept", kept)
        register(db, "documents", state.documents.paths(), state.documents.schema)
        found = db.execute("""
            SELECT DISTINCT k.delivery_hash FROM kept k
            JOIN documents d ON k.source = d.source AND k.origin = d.document AND d.revision > k.revision
        """).fetchall()
    return pa.array([digest for (digest,) in found], pa.string())


def _rows_for_review(state: State, file: DataFile) -> pa.Table:
    names = ["source", "origin", "revision", "delivery_hash"]
    rows = read_part(state.outbox.path(file.path), [*names, "due"])
    return rows.filter(pc.is_null(rows["due"])).select(names)


# --- choosing small files to merge: bounded by their bytes, so that each row is copied a few times only ---

_SMALL: Final = 4
"""Divisor of ``PART_BYTES``: a file with less content is small."""
_TINY: Final = 8
"""Divisor of that size: a file with less content is tiny."""
TINY_PER_SMALL: Final = 8
"""Factor by which more small files than tiny ones may accumulate. A large first run writes many, and a query opens
hundreds in a moment, while copying their rows would cost more."""


def small_batches(table: Table, files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Yield lists of neighbouring small files of a table, each to become one file.

    Tiny files are merged with tiny ones and small files with small ones, only when there are many. So each row is
    copied about twice, however many waves it stays.
    """
    if len(files) < limits.COMPACT_FILES:
        return
    small = limits.PART_BYTES // _SMALL
    tiny: list[tuple[int, DataFile]] = []
    others: list[tuple[int, DataFile]] = []
    for file in files:
        if (size := content_size(table.path(file.path))) < small:
            (tiny if size < small // _TINY else others).append((size, file))
    for each, most in ((tiny, limits.COMPACT_FILES), (others, TINY_PER_SMALL * limits.COMPACT_FILES)):
        if len(each) >= most:
            yield from (batch for batch in fit_into_files(each) if len(batch) > 1)


def fit_into_files(files: Iterable[tuple[int, DataFile]]) -> Iterator[list[DataFile]]:
    """Group neighbouring (bytes, file) pairs whose content fits into one file."""
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
