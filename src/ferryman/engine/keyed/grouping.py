"""Grouping by key, in the workers: the rows of a keyed node's outbox file are sorted and split into runs, one per range
of keys."""

from __future__ import annotations

import enum
import gc
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
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
from ferryman.plan.nodes import SHORT_KEY
from ferryman.records.keys import BUCKETS, Contribution, bucket_of, contributions_of
from ferryman.records.rows import EVENT_OF_ROW, OUTBOX_FILE, table_of
from ferryman.sources import Log
from ferryman.state.outbox import row_groups
from ferryman.storage.files import local_folder, local_path, path_of, path_to_write, upload
from ferryman.storage.parquet import column_values, data_files


class SortedRun(NamedTuple):
    """Sorted file of documents whose keys are in one range."""

    range: int
    path: str
    rows: int
    bytes: int


class GroupFile(NamedTuple):
    """An outbox file whose rows are to be grouped.

    Attributes:
        first: first sequence in the file.
        held: rows that must wait: an older row of their document is pending, perhaps in another file, or an earlier
            export of their key holds them back.
    """

    path: str
    first: int
    held: list[int]


@dataclass(frozen=True, slots=True)
class GroupByKey:
    """Task: read the pending rows of an outbox file, and write a sorted run for each range of keys."""

    pickled_plan: PickledPlan
    node: str
    outbox: str
    folder: str
    ranges: int
    """Number of key ranges, which are of equal width."""
    contributions: tuple[str, ...] = ()
    """Files with the earlier contributions of documents that may change."""
    files: int = 1
    """Number of outbox files that are grouped in this pass."""
    isolated: bool = False
    """Whether the task ran out of memory before: then documents too large for memory get no key, and fail."""

    @signals_interrupt()
    def __call__(self, file: GroupFile) -> list[SortedRun]:
        plan = self.pickled_plan.plan()
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
            gc.collect()  # memory of the tables that were read

    def _group(self, assigner: KeyAssigner, path: Path, file: GroupFile, refused: dict[int, str]) -> list[SortedRun]:
        """Return the file's sorted runs; ``refused``: number of a row group that must not be read -> reason."""
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
    """Refuse the largest document that has a row group of its own; return False if there is none, or if it is small."""
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
# A log's document is counted at its key. A document that may change is assigned together with its earlier contribution.
# If that was to another key, it is first withdrawn there, and counted at its new key in the next pass, so that an
# outbox row is never processed at two keys at once.


class _OutboxRow(NamedTuple):
    """A row of the outbox."""

    source: str
    document: str
    operation: str
    fields: bytes | None
    raw: bytes | None


class _AssignedKey(NamedTuple):
    """Key that a document is assigned to, and what to do with the document there."""

    key: str
    task: KeyTask
    previous: bytes | None = None
    fault: str | None = None


def key_decoder(field: str) -> Callable[[bytes], Any] | None:
    """Return a function that decodes only this field of a document's fields, a text, as the attribute ``key``; None:
    it has to be decoded with the others."""
    try:
        return msgspec.json.Decoder(msgspec.defstruct("Keyed", [("key", str)], rename={"key": field})).decode
    except ValueError:  # JSON would escape a character of its name
        return None


class KeyAssigner:
    """Assigns the documents of one node to keys.

    Args:
        contributions: files with the earlier contributions of documents to keys.
        folder: for data that does not fit into memory.
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
        """Sources where a document that failed permanently holds back later documents of its key."""
        self._contributions = contributions
        self._folder = folder
        self._decode_key = None if callable(node.key) else key_decoder(node.key)

    def assign_keys(self, rows: pa.Table, first: int, held: Sequence[int], fault: str | None = None) -> pa.Table:
        """Return an outbox file's rows in the columns of ``RUN``: the pending ones, and those that hold back others.

        Args:
            fault: why the rows' content, and so their key, could not be read; None: it was read.
        """
        holds = pc.is_in(rows["source"], value_set=pa.array(self._holding_sources, pa.string()))
        wanted = pc.or_(pc.is_valid(rows["due"]), holds)
        wanted = pc.and_(wanted, pc.invert(pc.is_in(rows["row"], value_set=pa.array(held, pa.int64()))))
        rows, holds = rows.filter(wanted), holds.filter(wanted)
        sources, ids = rows["source"].to_pylist(), rows["document"].to_pylist()
        columns: dict[str, Any] = {name: rows[name] for name in RUN.names if name in rows.column_names}
        keys = self._log_keys(rows) if fault is None else [""] * rows.num_rows
        if keys is not None:
            columns |= {"task": KeyTask.COUNT.value, "fault": fault}
        else:
            assigned = list(self._assign_each(rows))
            keys = [each.key for each in assigned]
            columns |= {name: [getattr(each, name) for each in assigned] for name in ("fault", "previous")}
            columns["task"] = [each.task.value for each in assigned]
        return table_of(
            RUN,
            rows.num_rows,
            bucket=list(map(bucket_of, keys)),
            key=keys,
            source_number=[self._numbers.get(source, len(self._numbers)) for source in sources],
            place=["" if source in self._logs else id for source, id in zip(sources, ids, strict=True)],
            sequence=pc.add(rows["row"], first),
            file=first,
            holds=holds,
            kept=[source not in self._logs for source in sources],
            **columns,
        )

    def _log_keys(self, rows: pa.Table) -> list[str] | None:
        """Return the keys of documents that all come from logs and have a valid key in a field; None: each has to be
        looked at."""
        if self._decode_key is None or pc.any(pc.equal(rows["operation"], "delete")).as_py():
            return None
        if not pc.all(pc.is_in(rows["source"], value_set=pa.array(list(self._logs), pa.string()))).as_py():
            return None
        try:
            keys = [self._decode_key(each).key for each in rows["fields"].to_pylist()]
        except (msgspec.DecodeError, TypeError):
            return None
        return keys if max(map(len, keys), default=0) <= SHORT_KEY else None

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
        """Return the assignment of a deleted document: to the key that it contributed to."""
        if not earlier:
            return _AssignedKey("", KeyTask.NOTHING)
        task = KeyTask.COUNT if len(earlier) == 1 else KeyTask.WITHDRAW
        return _AssignedKey(earlier[0].key, task, earlier[0].fields)

    def _assign_upsert(self, row: _OutboxRow, earlier: Sequence[Contribution]) -> _AssignedKey:
        try:
            key = self._node.key_of(Document.of(row.document, decode_fields(row.fields or b"{}"), row.raw))
        except BaseException as e:  # it had a key at the commit
            return _AssignedKey("", KeyTask.COUNT, fault=f"key of {self._node.name}: {describe(unless_interrupt(e))}")
        for other in earlier:
            if other.key != key:
                return _AssignedKey(other.key, KeyTask.WITHDRAW, other.fields)
        return _AssignedKey(key, KeyTask.COUNT, earlier[0].fields if earlier else None)


# Sorted runs: a keyed node's due documents in files, each sorted by bucket, key and document.
#
# Runs are merged with only a part of each in memory, however many documents a key has.

RUN_ORDER: Final = ("bucket", "key", "source_number", "place", "sequence")
"""Sort order of runs: documents of a key are ordered by source; within a log by sequence, within other sources by id
(``place``)."""

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
"""``file``: first sequence of the outbox file. ``fault``: why the document has no key; null: it has one. ``holds``:
whether its permanent failure holds back later documents of its key. ``task``: see ``KeyTask``. ``kept``: whether the
document may change, so that its contribution is stored. ``previous``: its earlier contribution to the key, as JSON."""


class KeyTask(enum.StrEnum):
    """Ways to process a document at a key."""

    COUNT = "count"
    """Count it in the key's state; if it is a delete, remove it from the state."""
    WITHDRAW = "withdraw"
    """Remove it from this key's state, since it has another key now; the next pass counts it there."""
    NOTHING = "nothing"
    """Do nothing: a deleted document that has contributed to no key."""


def write_run(path: Path, rows: pa.Table, runs: int = 1) -> None:
    """Write rows that are already sorted.

    Args:
        runs: number of runs that will be merged together; their row groups share ``limits.KEY_MERGE_BYTES``.
    """
    share = min(limits.KEY_MERGE_INPUT_BYTES, limits.KEY_MERGE_BYTES // max(1, runs))
    most = max(1, min(limits.KEY_MERGE_INPUT_ROWS, share * rows.num_rows // max(1, rows.nbytes)))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, RUN) as writer:
        writer.write_table(rows.combine_chunks(), max_chunksize=most)


class _RunReader:
    """Reads one sorted run; holds some of its rows in memory."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._reader = pa.ipc.open_file(file)
        self._next = 0
        self._rows = RUN.empty_table()

    def has_rows(self) -> bool:
        """Read the next rows if none are in memory; return False at the end of the run."""
        while not self._rows.num_rows and self._next < self._reader.num_record_batches:
            self._rows = pa.Table.from_batches([self._reader.get_batch(self._next)])
            self._next += 1
        return bool(self._rows.num_rows)

    def last_place(self) -> tuple[Any, ...]:
        """Return the sort key of the last row in memory."""
        return self._place_of(self._rows.num_rows - 1)

    def take(self, upto: tuple[Any, ...] | None) -> pa.Table:
        """Return and remove the rows in memory up to this sort key; all rows if it is None."""
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
    """Yield the rows of all runs in sort order, some at a time."""
    with ExitStack() as files:
        runs = [_RunReader(files.enter_context(pa.OSFile(local_path(path)))) for path in paths]
        while runs := [run for run in runs if run.has_rows()]:
            if len(runs) == 1:
                yield runs[0].take(None)
                continue
            upto = min(run.last_place() for run in runs)
            parts = [run.take(upto) for run in runs]
            yield pa.concat_tables(parts).sort_by([(name, "ascending") for name in RUN_ORDER])
