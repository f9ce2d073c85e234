"""Grouping by key, in the workers: an outbox file of a keyed node becomes sorted runs, one for each range of keys."""

from __future__ import annotations

import enum
import gc
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ferryman import crash, limits
from ferryman.document import Document, decode_fields
from ferryman.engine.runner.base import PickledPlan
from ferryman.engine.transform.calls import signals_interrupt
from ferryman.errors import describe, unless_interrupt
from ferryman.memory import describe_memory_error, lacks_memory
from ferryman.plan import KeyedNode, Plan, errors_node, sources_of
from ferryman.records.keys import BUCKETS, Contribution, bucket_of, contributions_of
from ferryman.records.rows import EVENT_OF_ROW, OUTBOX_FILE, table_of
from ferryman.sources import Log
from ferryman.state.outbox import row_groups
from ferryman.storage.files import local_folder, local_path, path_of, path_to_write, upload
from ferryman.storage.parquet import column_values, data_files


class SortedRun(NamedTuple):
    """A sorted run of one range of keys."""

    range: int
    path: str
    rows: int
    bytes: int


class GroupFile(NamedTuple):
    """An outbox file of a keyed node.

    Attributes:
        first: its first sequence.
        held: rows of documents of which an older row is pending, perhaps in another file.
    """

    path: str
    first: int
    held: list[int]


@dataclass(frozen=True, slots=True)
class GroupByKey:
    """Task: read the pending rows of an outbox file, and write a run for each range of keys."""

    shipped: PickledPlan
    node: str
    outbox: str
    folder: str
    ranges: int
    """Number of key ranges, of equal width."""
    contributions: tuple[str, ...] = ()
    """Files of what documents that may change have contributed to keys."""
    files: int = 1
    """Number of outbox files that are read."""
    isolated: bool = False
    """There was too little memory for it: documents for which there is none have no key, and fail."""

    @signals_interrupt()
    def __call__(self, file: GroupFile) -> list[SortedRun]:
        plan = self.shipped.plan()
        node = next(n for n in plan.nodes if n.name == self.node)
        assert isinstance(node, KeyedNode)
        assigner = KeyAssigner(node, plan, self.contributions, local_folder(path_of(self.folder)))
        [path] = data_files([path_of(self.outbox) / file.path])
        refused: dict[int, str] = {}
        while True:
            try:
                return self._group(assigner, path, file, refused)
            except Exception as e:
                if not self.isolated or not lacks_memory(e) or not _refuse_largest(path, refused, e):
                    raise
            gc.collect()  # what was read

    def _group(self, assigner: KeyAssigner, path: Path, file: GroupFile, refused: dict[int, str]) -> list[SortedRun]:
        """Return the runs of the file; ``refused``: row groups that are not read -> why."""
        tables = [
            assigner.assign_keys(rows, file.first, file.held, refused.get(number))
            for number, rows in enumerate(row_groups(path, refused))
        ]
        found = [run for run in self._runs(pa.concat_tables(tables)) if run.rows]
        crash.point("update.grouped")
        return found

    def _runs(self, rows: pa.Table) -> Iterator[SortedRun]:
        rows = rows.sort_by([(name, "ascending") for name in RUN_ORDER])
        edges = np.searchsorted(rows["bucket"].to_numpy(), range_starts(self.ranges))
        for number, (first, end) in enumerate(zip(edges, [*edges[1:], rows.num_rows], strict=True)):
            mine = rows.slice(first, end - first)
            path = path_of(self.folder) / f"{number}-{uuid.uuid4().hex}.arrow"
            if mine.num_rows:
                write_run(path_to_write(path), mine, self.files)
                upload(path)
            yield SortedRun(number, str(path), mine.num_rows, mine.nbytes)


def _refuse_largest(path: Path, refused: dict[int, str], error: Exception) -> bool:
    """Refuse the largest document that has a row group of its own; False: there is none, or it is small."""
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = {n: g.total_byte_size for n, g in enumerate(groups) if g.num_rows == 1 and n not in refused}
    largest = max(sizes, key=sizes.__getitem__, default=-1)
    if sizes.get(largest, 0) < limits.BLAMED_BYTES:
        return False
    refused[largest] = describe_memory_error(error, sizes[largest])
    return True


def range_starts(ranges: int) -> list[int]:
    """Return the first bucket of each range."""
    return [number * BUCKETS // ranges for number in range(ranges)]


# Assignment of documents to keys.
#
# A document of a log is counted at its key. One that may change comes with its earlier contribution; if that was to
# another key, it is withdrawn there first, and counted at its new key in the next pass: so a row of the outbox is never
# processed at two keys at once.


class _OutboxRow(NamedTuple):
    """A row of the outbox."""

    source: str
    document: str
    operation: str
    fields: bytes | None
    raw: bytes | None


class _AssignedKey(NamedTuple):
    """A key to which a document is assigned, and its task there."""

    key: str
    task: KeyTask
    previous: bytes | None = None
    fault: str | None = None


class KeyAssigner:
    """Assigns the documents of one node to keys.

    Args:
        contributions: files of what documents contributed to keys before.
        folder: for what does not fit into memory.
    """

    def __init__(self, node: KeyedNode, plan: Plan, contributions: Sequence[str], folder: Path) -> None:
        sources = sources_of(plan.nodes)
        self._node = node
        self._numbers = {source.name: number for number, source in enumerate(sources)}
        self._logs = {each.name: each.source for each in sources if isinstance(each.source, Log)}
        stops = errors_node(plan.nodes) is None
        self._holding_sources = [
            name for name, log in self._logs.items() if stops and log.ordered and log.on_error == "stop"
        ]
        """Sources of which a document that failed for good holds the later ones of its key."""
        self._contributions = contributions
        self._folder = folder

    def assign_keys(self, rows: pa.Table, first: int, held: Sequence[int], fault: str | None = None) -> pa.Table:
        """Return rows of an outbox file in the columns of ``RUN``: those that are pending, and those that hold others.

        Args:
            fault: why they have come without content, and so have no key.
        """
        holds = pc.is_in(rows["source"], value_set=pa.array(self._holding_sources, pa.string()))
        wanted = pc.or_(pc.is_valid(rows["due"]), holds)
        wanted = pc.and_(wanted, pc.invert(pc.is_in(rows["row"], value_set=pa.array(held, pa.int64()))))
        rows, holds = rows.filter(wanted), holds.filter(wanted)
        sources, ids = rows["source"].to_pylist(), rows["document"].to_pylist()
        keys = (
            list(self._assign_each(rows))
            if fault is None
            else [_AssignedKey("", KeyTask.COUNT, fault=fault) for _ in sources]
        )
        columns: dict[str, Any] = {name: rows[name] for name in RUN.names if name in rows.column_names}
        return table_of(
            RUN,
            rows.num_rows,
            bucket=[bucket_of(each.key) for each in keys],
            key=[each.key for each in keys],
            source_number=[self._numbers.get(source, len(self._numbers)) for source in sources],
            place=["" if source in self._logs else id for source, id in zip(sources, ids, strict=True)],
            sequence=pc.add(rows["row"], first),
            file=first,
            fault=[each.fault for each in keys],
            holds=holds,
            task=[each.task.value for each in keys],
            kept=[source not in self._logs for source in sources],
            previous=[each.previous for each in keys],
            **columns,
        )

    def _assign_each(self, rows: pa.Table) -> Iterator[_AssignedKey]:
        changeable = pc.invert(pc.is_in(rows["source"], value_set=pa.array(list(self._logs), pa.string())))
        mine = contributions_of(
            self._contributions, rows.filter(changeable).select(["source", "document"]), self._folder
        )
        for each in map(
            _OutboxRow._make, zip(*(column_values(rows[name]) for name in _OutboxRow._fields), strict=True)
        ):
            earlier = mine.get((each.source, each.document), [])
            yield self._assign_deleted(earlier) if each.operation == "delete" else self._assign_upsert(each, earlier)

    def _assign_deleted(self, earlier: Sequence[Contribution]) -> _AssignedKey:
        """Return the key of a deleted document: the one to which it contributed."""
        if not earlier:
            return _AssignedKey("", KeyTask.NOTHING)
        task = KeyTask.COUNT if len(earlier) == 1 else KeyTask.WITHDRAW
        return _AssignedKey(earlier[0].key, task, earlier[0].fields)

    def _assign_upsert(self, row: _OutboxRow, earlier: Sequence[Contribution]) -> _AssignedKey:
        try:
            key = self._node.key_of(Document.of(row.document, decode_fields(row.fields or b"{}"), row.raw))
        except BaseException as e:  # it had one before the commit
            return _AssignedKey("", KeyTask.COUNT, fault=f"key of {self._node.name}: {describe(unless_interrupt(e))}")
        for other in earlier:
            if other.key != key:
                return _AssignedKey(other.key, KeyTask.WITHDRAW, other.fields)
        return _AssignedKey(key, KeyTask.COUNT, earlier[0].fields if earlier else None)


# Sorted runs: the due documents of a keyed node in files, each in the order of buckets, keys and documents.
#
# Several are merged with a bounded part of each in memory, however many documents one key has.

RUN_ORDER: Final = ("bucket", "key", "source_number", "place", "sequence")
"""Documents of a key stand by source, then of a log by sequence, of another source by id (``place``)."""

_OUTBOX: Final = (*EVENT_OF_ROW, "attempt", "due", "since", "transient", "fields", "raw")

RUN: Final = pa.schema(
    [
        pa.field("bucket", pa.int64()),
        pa.field("key", pa.string()),
        pa.field("source_number", pa.int64()),
        pa.field("place", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("file", pa.int64()),
        pa.field("fault", pa.string()),
        pa.field("holds", pa.bool_()),
        pa.field("task", pa.string()),
        pa.field("kept", pa.bool_()),
        pa.field("previous", pa.binary()),
        *(OUTBOX_FILE.field(name) for name in _OUTBOX),
    ]
)
"""``file``: first sequence of the outbox file. ``fault``: why the document has no key; null: it has one. ``holds``: if
it fails for good, do later documents of its key wait? ``task``: see ``KeyTask``. ``kept``: may the document change?
``previous``: what the key was given of it before, as JSON."""


class KeyTask(enum.StrEnum):
    """Kinds of work for a document at a key."""

    COUNT = "count"
    """Counted in the state of the key; as a delete, removed from it."""
    WITHDRAW = "withdraw"
    """It has another key now, so this one removes it; in the next pass it is counted at its new key."""
    NOTHING = "nothing"
    """Contributed to no key."""


def write_run(path: Path, rows: pa.Table, runs: int = 1) -> None:
    """Write rows that are in order.

    Args:
        runs: number of runs that are merged with this one: of all together ``KEY_MERGE_BYTES`` are in memory.
    """
    share = min(limits.KEY_MERGE_INPUT_BYTES, limits.KEY_MERGE_BYTES // max(1, runs))
    most = max(1, min(limits.KEY_MERGE_INPUT_ROWS, share * rows.num_rows // max(1, rows.nbytes)))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, RUN) as writer:
        writer.write_table(rows.combine_chunks(), max_chunksize=most)


class _RunReader:
    """Reader of one sorted run: some of its rows are in memory."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._reader = pa.ipc.open_file(file)
        self._next = 0
        self._rows = RUN.empty_table()

    def has_rows(self) -> bool:
        """Read the next rows if none are in memory; False: there are no more."""
        while not self._rows.num_rows and self._next < self._reader.num_record_batches:
            self._rows = pa.Table.from_batches([self._reader.get_batch(self._next)])
            self._next += 1
        return bool(self._rows.num_rows)

    def last_place(self) -> tuple[Any, ...]:
        """Return the place of the last row in memory."""
        return self._place_of(self._rows.num_rows - 1)

    def take(self, upto: tuple[Any, ...] | None) -> pa.Table:
        """Return the rows in memory up to this place, all if None."""
        end = self._rows.num_rows if upto is None else self._end(upto)
        rows, self._rows = self._rows.slice(0, end), self._rows.slice(end)
        return rows

    def _end(self, upto: tuple[Any, ...]) -> int:
        first, end = 0, self._rows.num_rows
        while first < end:
            middle = (first + end) // 2
            if self._place_of(middle) <= upto:
                first = middle + 1
            else:
                end = middle
        return first

    def _place_of(self, row: int) -> tuple[Any, ...]:
        return tuple(self._rows[name][row].as_py() for name in RUN_ORDER)


def merge_runs(paths: Sequence[str]) -> Iterator[pa.Table]:
    """Yield all rows in order, some at a time."""
    with ExitStack() as files:
        runs = [_RunReader(files.enter_context(pa.OSFile(local_path(path)))) for path in paths]
        while runs := [run for run in runs if run.has_rows()]:
            if len(runs) == 1:
                yield runs[0].take(None)
                continue
            upto = min(run.last_place() for run in runs)
            parts = [run.take(upto) for run in runs]
            yield pa.concat_tables(parts).sort_by([(name, "ascending") for name in RUN_ORDER])
