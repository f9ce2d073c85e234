"""Scan, first half: executors list the sources into scratch files, which a crash makes worthless."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ferryman import limits
from ferryman.document import (
    Document,
    check_size,
    check_source_id,
    content_version,
    decode_json,
    encode_fields,
    encode_value,
    is_text,
    raw_bytes,
    size_problem,
    storable_id,
)
from ferryman.engine.live import ProgressWriter
from ferryman.engine.results import NO_IDS, ListedPart, Listing, Look, Outage, WantedIds, most_serious, outage_of
from ferryman.engine.runner.base import PickledPlan, QueryFailed, Runner, run_frame_again, run_isolating
from ferryman.engine.tasks import CONTENT, LISTING, content_path
from ferryman.errors import (
    BadDocument,
    EngineError,
    Misconfigured,
    UsageError,
    WorkerDied,
    as_exception,
    message_of,
    plain_text,
    safe_repr,
    shortened,
    unless_interrupt,
)
from ferryman.observe import format_size
from ferryman.plan import Plan, SourceNode, find_source, sources_of
from ferryman.plan.calls import pickling_error
from ferryman.records.rows import table_of
from ferryman.sources import Bookmark, Complete, DataFrame, Doubt, Fetched, Listed, Log, Note, Source
from ferryman.sources.base import BytesRead, TouchedFiles
from ferryman.state.source_memory import NOTHING_REMEMBERED, SourceMemory
from ferryman.storage.files import StatePath, is_disk_full, path_of, path_to_write, upload
from ferryman.storage.parquet import RowGroups

_TASKS_A_SLOT: Final = 4
"""Listing tasks per task slot: enough to balance folders of different sizes."""

_FEW_FILES: Final = 100
"""Changed files that the driver lists itself."""

_ENTRIES: Final = 10_000
"""Log entries that one partition lists, given by their ids."""

_NAMED_DOUBTS: Final = 3  # examples in a message; an unmounted share may have thousands of folders
_MOUNT_HINT: Final = "Every machine must see the same there: mount it on all of them."

_COUNTED_ROWS: Final = 256
"""Documents between two progress reports, since listing is fast."""

_GROUP_ROWS: Final = 16_384
_GROUP_BYTES: Final = 16 * limits.MIB


def list_sources(
    plan: Plan,
    pickled_plan: PickledPlan,
    folder: StatePath,
    runner: Runner,
    only: WantedIds | None = None,
    live: str = "",
    entries: WantedIds = NO_IDS,
    memories: Mapping[str, SourceMemory] = MappingProxyType({}),
    kept: Sequence[ListedPart] = (),
    unprepared: Mapping[str, Exception] = MappingProxyType({}),
    look: Look | None = None,
) -> list[Listing]:
    """List every source of the plan, or only certain documents, into files in ``folder``.

    Args:
        live: folder for live progress; see ``engine.live``.
        entries: documents to read again, by source, in a full listing of the others. New entries of logs are not
            listed; they are read by place.
        memories: source -> what its earlier listings want to be given.
        kept: documents that cannot be listed again, which are listed before all others.
        unprepared: source -> why it cannot be listed in this scan.
        look: list only this; None: everything.
    """
    names = look if only is None else only
    sources = [n for n in sources_of(plan.nodes) if names is None or n.name in names]
    changes = look or {}
    partitions: list[tuple[str, Any]] = []
    parts = list(kept)
    refused: list[UsageError] = []

    def fail(node: SourceNode, raised: BaseException) -> None:
        """Record an error as this source's, so that the others are still listed."""
        if isinstance(raised, KeyboardInterrupt):
            raise raised  # this is the driver's own process: somebody wants the run to end
        error = as_exception(unless_interrupt(raised))
        if is_disk_full(error):
            raise error  # our own disk
        if isinstance(error, UsageError):
            refused.append(error)
        parts.append(ListedPart(node.name, "", 0, 0, message_of(error), outage=outage_of(error)))

    for node in sources:
        try:
            if node.name in unprepared:
                raise unprepared[node.name]
            wanted = (entries if only is None else only).get(node.name)
            memory = memories.get(node.name, NOTHING_REMEMBERED)
            if wanted is not None and node.source.keeps_content:
                partitions += _partitions_of_others(node, wanted, memory, kept)
            else:
                partitions += _partitions_of(node, wanted, memory, changes.get(node.name))
        except BaseException as e:  # whatever a user's source raises
            fail(node, e)
    per_task = -(-len(partitions) // (_TASKS_A_SLOT * runner.slots))  # a task costs more than a small folder
    tasks = [partitions[at : at + per_task] for at in range(0, len(partitions), per_task)] if partitions else []
    task = ListPartitions(pickled_plan, str(folder), only, live)
    found = map(task, tasks) if _is_small(look) else run_isolating(runner.early or runner, task, tasks)
    listed = chain.from_iterable(found)
    by_name = {node.name: node.source for node in sources}
    parts += [_check_doubts(by_name[part.source], part) for part in listed]
    for node in sources:
        if isinstance(node.source, DataFrame) and all(p.source != node.name for p in parts):
            read = partial(_read_frame, node.source, None if only is None else only[node.name])
            try:
                parts += run_frame_again(runner, read, ListFrame(pickled_plan, str(folder), node.name))
            except BaseException as e:  # also what its function raises
                if isinstance(e, EngineError) and not isinstance(e, QueryFailed | WorkerDied):
                    raise  # Spark's fault
                fail(node, e)
    if refused and len(refused) == len(sources_of(plan.nodes)):
        raise refused[0]
    return [
        Listing(node, [p for p in parts if p.source == node.name], changes.get(node.name) is not None)
        for node in sources
    ]


def _is_small(look: Look | None) -> bool:
    """Return whether the driver lists it itself: a few files, of which its own kernel has just told. A job takes longer
    than that."""
    named = [] if look is None else list(look.values())
    return bool(named) and all(each and not each.folders and len(each.files) <= _FEW_FILES for each in named)


def _partitions_of(
    node: SourceNode, wanted: Collection[str] | None, memory: SourceMemory, changes: TouchedFiles | None
) -> list[tuple[str, Any]]:
    """Return the source's partitions, each with the source's name; none for a DataFrame, and only the wanted ids for a
    log.

    Args:
        changes: list only this; None: everything.
    """
    source = node.source
    if changes is not None:
        return [(node.name, partition) for partition in source.changed_partitions(changes) or ()]
    source.check()
    if isinstance(source, Log):
        ids = sorted(map(source.own_id, wanted or ()))
        return [(node.name, ids[at : at + _ENTRIES]) for at in range(0, len(ids), _ENTRIES)]
    if isinstance(source, DataFrame):
        return []
    named = _partitions_of_ids(source, wanted, memory) if wanted else None
    partitions = list(source.partitions_after(memory.bookmarks)) if named is None else named
    if not type(source).__module__.startswith("ferryman.") and (why := pickling_error(partitions)) is not None:
        raise Misconfigured(f"what its partitions() returns cannot be sent to the workers: {why}")
    return [(node.name, partition) for partition in partitions]


def _partitions_of_others(
    node: SourceNode, wanted: Collection[str], memory: SourceMemory, kept: Sequence[ListedPart]
) -> list[tuple[str, Any]]:
    """Return the partitions of the wanted ids whose content was not kept: an operator asks for them, not a step."""
    source, left = node.source, set(wanted)
    for part in kept:
        if part.source == node.name and part.rows:
            with RowGroups(part.path, ["id"]) as rows:
                for group in rows.all_rows():
                    left.difference_update(group["id"].to_pylist())
    if not left:
        return []
    source.check()
    return [(node.name, partition) for partition in _partitions_of_ids(source, left, memory) or ()]


def lists_by_ids(source: Source) -> bool:
    """Return whether a source is given the ids of documents that wait, however many they are: its listing may not have
    them."""
    return source.keeps_content or type(source).partitions_of_ids is not Source.partitions_of_ids


def _partitions_of_ids(source: Source, ids: Collection[str], memory: SourceMemory) -> list[Any] | None:
    """Return the source's partitions for these ids, each for so many as travel with a task; see
    ``Source.partitions_of_ids``."""
    own = [source.own_id(id) for id in ids]
    found = [
        source.partitions_of_ids(own[at : at + limits.NAMED_DOCUMENTS], memory.bookmarks)
        for at in range(0, len(own), limits.NAMED_DOCUMENTS)
    ]
    return None if None in found else [partition for each in found for partition in each or ()]


def _read_frame(source: DataFrame, wanted: frozenset[str] | None, spark: Any) -> Any:
    """Return the DataFrame, or its rows for these documents only, so that the others do not leave the JVM.

    Raises:
        QueryFailed: the source's function raises an error that would be taken for one of Spark.
    """
    try:
        frame = source.read(spark)
    except EngineError as e:
        raise QueryFailed(message_of(e)) from e
    if wanted is None or dict(frame.dtypes)[source.id] != "string":
        return frame  # workers convert numbers to ids; detection picks what is pending
    ids = spark.createDataFrame([(source.own_id(id),) for id in wanted], "ferryman_wanted string").hint("broadcast")
    return frame.join(ids, frame[source.id] == ids["ferryman_wanted"], "left_semi")


@dataclass(frozen=True, slots=True)
class ListPartitions:
    """Task: list some partitions, given as (source, partition); returns one part for each source among them."""

    pickled_plan: PickledPlan
    folder: str
    only: WantedIds | None = None
    live: str = ""

    def __call__(self, partitions: list[tuple[str, Any]]) -> list[ListedPart]:
        return [
            self._list(name, [partition for _, partition in of_one])
            for name, of_one in groupby(partitions, itemgetter(0))
        ]

    def _list(self, name: str, partitions: list[Any]) -> ListedPart:
        source = _source(self.pickled_plan, name)
        wanted = None if self.only is None else self.only[name]
        failures: list[str] = []
        outages: list[Outage] = []
        doubts: list[Doubt] = []
        bookmarks: dict[str, Bookmark] = {}
        notes: list[str] = []
        complete: list[Complete] = []
        live, listed = ProgressWriter(self.live), 0
        with ListingFile(self.folder, name, source) as out:
            for partition in partitions:
                try:
                    for entry in source.listing(partition):
                        if isinstance(entry, Doubt):
                            doubts.append(entry)
                            continue
                        if isinstance(entry, Bookmark):
                            bookmarks[entry.partition] = _check_bookmark(entry)
                            continue
                        if isinstance(entry, Complete):
                            complete.append(_check_complete(source, entry))
                            continue
                        if isinstance(entry, Note):
                            notes.append(shortened(plain_text(entry.text), limits.MESSAGE_CHARACTERS))
                            continue
                        if isinstance(entry, BytesRead):
                            live.note_read(entry.done, entry.total)
                            continue
                        listed += 1
                        if not listed % _COUNTED_ROWS:
                            live.add(_COUNTED_ROWS)
                        fingerprint = ""
                        if isinstance(entry, Fetched):
                            entry, fingerprint = entry
                        id = source.full_id(_check_entry(entry).id)
                        if wanted is None or id in wanted:
                            out.add(id, entry, fingerprint)
                except BaseException as e:  # whatever a user's source raises
                    error = as_exception(unless_interrupt(e))
                    if isinstance(error, OSError) and is_disk_full(error):
                        raise  # our own disk, not the source
                    failures.append(message_of(error))
                    if (outage := outage_of(error)) is not None:
                        outages.append(outage)
            live.add(listed % _COUNTED_ROWS)
            live.flush()
            part = out.finish(shortened("; ".join(failures), limits.MESSAGE_CHARACTERS) or None)
            return part._replace(
                host=socket.gethostname(),
                doubts=tuple(doubts),
                outage=most_serious(outages),
                bookmarks=tuple(bookmarks.values()),
                is_complete=sum(each.within is None for each in complete) == len(partitions),
                complete_within=tuple(each for each in complete if each.within is not None),
                notes=tuple(notes),
            )


@dataclass(frozen=True, slots=True)
class ListFrame:
    """Task: list one partition of a DataFrame, whose rows are the documents."""

    pickled_plan: PickledPlan
    folder: str
    source: str

    def __call__(self, partition: int, batches: Iterator[pa.RecordBatch]) -> ListedPart:
        source = _source(self.pickled_plan, self.source)
        assert isinstance(source, DataFrame)
        with ListingFile(self.folder, self.source, source) as out:
            try:
                for ids, fields in source.columns(batches):
                    out.add_columns(source.full_ids(ids), fields)
            except Exception as e:
                if isinstance(e, OSError) and is_disk_full(e):
                    raise  # our own disk, not the source
                for _ in batches:  # Spark wants its input read to the end
                    pass
                return out.finish(message_of(e))._replace(outage=outage_of(e))
            return out.finish()


def _check_doubts(source: Source, part: ListedPart) -> ListedPart:
    """Check the doubtful places of a part with the driver's own view; if the driver sees any differently, the part is
    incomplete."""
    try:
        contradicted = [(each, contradiction) for each in part.doubts if (contradiction := source.contradiction(each))]
    except Exception as e:
        return part._replace(doubts=(), failure=message_of(e), outage=outage_of(e))
    if not contradicted:
        return part._replace(doubts=())
    contradictions = [
        f"{contradiction}, but {each.seen} on {part.host}" for each, contradiction in contradicted[:_NAMED_DOUBTS]
    ]
    more = f"; and {len(contradicted) - _NAMED_DOUBTS} more" if len(contradicted) > _NAMED_DOUBTS else ""
    why = f"{'; '.join(contradictions)}{more}. {_MOUNT_HINT}"
    return part._replace(doubts=(), failure="; ".join(filter(None, (part.failure, why))))


def _source(pickled_plan: PickledPlan, name: str) -> Any:
    return find_source(pickled_plan.plan().nodes, name).source


class ListingFile:
    """A listing file that is being written: rows are gathered into row groups."""

    def __init__(self, folder: str, name: str, source: Source) -> None:
        self._name = name
        self._source = source
        self._file = path_of(folder) / f"{name}-{uuid.uuid4().hex}.parquet"
        self._writer: pq.ParquetWriter | None = None
        self._content: pa.RecordBatchFileWriter | None = None
        self._rows: list[tuple[Any, ...]] = []
        self._pending = 0
        self._written = 0
        self._bytes = 0
        self._deleted = 0

    def __enter__(self) -> ListingFile:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in (self._writer, self._content):
            if writer is not None:
                writer.close()
        self._writer = self._content = None

    def add(self, id: str, entry: Listed | Document, fingerprint: str = "") -> None:
        if isinstance(entry, Listed):
            size = entry.size
            row = (id, size, entry.fingerprint, entry.location, entry.refused or None, None, False, None, None)
        elif entry.operation == "delete":
            row, size = (id, 0, "", "", None, None, True, None, None), 0
            self._deleted += 1
        else:
            row, size = _document_row(self._source, id, entry, fingerprint)
        self._bytes += size
        self._pending += size
        self._rows.append(row)
        if len(self._rows) >= _GROUP_ROWS or self._pending >= _GROUP_BYTES:
            self._flush_rows()

    def add_columns(self, ids: list[str], fields: list[bytes]) -> None:
        """Add rows without raw bytes, whole columns at a time."""
        if not ids:
            return
        columns: dict[str, Any] = {
            "id": ids,
            "size": list(map(len, fields)),
            "version": [content_version(each, None) for each in fields],
            "fields": fields,
        }
        if max(columns["size"]) > limits.MAX_CONTENT_BYTES:
            columns["refused"] = [size_problem(each, None) or None for each in fields]
            columns["fields"] = [None if why else each for why, each in zip(columns["refused"], fields, strict=True)]
        size = sum(columns["size"])
        self._bytes += size
        groups = max(1, size // _GROUP_BYTES, -(-len(ids) // _GROUP_ROWS))
        self._write(columns, -(-len(ids) // groups), fingerprint="", location="", deleted=False)

    def add_rows(self, rows: pa.Table) -> None:
        """Add rows that another listing has written, in the columns of ``LISTING`` and ``CONTENT``."""
        self._bytes += pc.sum(rows["size"]).as_py() or 0
        self._write({name: rows[name] for name in rows.column_names}, rows.num_rows)

    def finish(self, failure: str | None = None) -> ListedPart:
        self._flush_rows()
        self.__exit__()
        if self._written:
            upload(self._file)
            upload(self._file.parent / content_path(self._file.name))
        part = ListedPart(self._name, str(self._file), self._written, self._bytes, failure)
        return part._replace(deleted=self._deleted)

    def _flush_rows(self) -> None:
        rows, self._rows, self._pending = self._rows, [], 0
        if rows:
            try:
                self._write(_columns(rows), len(rows))
            except (TypeError, ValueError, OverflowError, pa.ArrowException):  # one of them cannot be stored
                self._write(_columns([_storable_row(*row) for row in rows]), len(rows))

    def _write(self, columns: dict[str, Any], group_rows: int, **constant: Any) -> None:
        n = len(columns["id"])
        columns["row"] = range(self._written, self._written + n)
        if self._writer is None:  # uncompressed: it is read only once, and soon, and lz4 takes longer than all the rest
            self._writer = pq.ParquetWriter(
                str(path_to_write(self._file)),
                LISTING,
                compression="none",
                use_dictionary=False,
                write_statistics=False,
            )
            self._content = pa.ipc.new_file(content_path(str(path_to_write(self._file))), CONTENT)
        assert self._content is not None
        columns |= constant
        listed, content = (
            table_of(schema, n, **{name: columns[name] for name in schema.names if name in columns})
            for schema in (LISTING, CONTENT)
        )
        self._writer.write_table(listed, row_group_size=group_rows)
        self._content.write_table(content, max_chunksize=group_rows)
        self._written += n


def _columns(rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    names = [*LISTING.names[1:], *CONTENT.names[1:]]
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def _storable_row(
    id: str,
    size: int,
    fingerprint: str,
    location: str,
    refused: str | None,
    version: str | None,
    deleted: bool,
    *content: Any,
) -> tuple[Any, ...]:
    """Return a row that may contain values which cannot be stored: unchanged if it can be, otherwise refused with the
    reason."""
    why = None if refused is None else plain_text(refused)
    try:
        check_source_id(id)
        for what, text in (("fingerprint", fingerprint), ("location", location)):
            if not isinstance(text, str) or not is_text(text):
                raise BadDocument(
                    f"its source gave it the {what} {safe_repr(text)}, which is not text that can be stored"
                )
        if not isinstance(size, int) or not 0 <= size < 1 << 62:
            raise BadDocument(f"its source gave it the size {safe_repr(size)}: a size is a number of bytes")
    except BadDocument as e:
        return storable_id(id), 0, "", "", why or plain_text(e), None, False, None, None
    return id, size, fingerprint, location, why, version, deleted, *content


def _check_entry(entry: Any) -> Listed | Document:
    """Check what a listing yields.

    Raises:
        TypeError: it is neither a Listed nor a Document.
    """
    if isinstance(entry, Listed | Document):
        return entry
    raise TypeError(
        f"its listing yields {safe_repr(entry)}: yield a Document, or a Listed with an id, a size in bytes and a "
        "fingerprint that is text"
    )


def _check_complete(source: Source, complete: Complete) -> Complete:
    """Return what was listed completely, with the beginning of full ids."""
    within = complete.within if complete.within is None else source.full_id(complete.within)
    return Complete(within, complete.bookmark and _check_bookmark(complete.bookmark))


def _check_bookmark(bookmark: Bookmark) -> Bookmark:
    """Return a bookmark with its value as it comes back from JSON.

    Raises:
        Misconfigured: it cannot be stored, or it is too large.
    """
    what = f"the bookmark of {bookmark.partition or 'what it reads'}"
    return Bookmark(bookmark.partition, _as_stored(bookmark.value, what), _as_stored(bookmark.meanwhile, what))


def _as_stored(value: Any, what: str) -> Any:
    if value is None:
        return None
    try:
        text = encode_value(value, what)
    except BadDocument as e:
        raise Misconfigured(f"{what} cannot be stored: {e}") from e
    if len(text) > limits.BOOKMARK_BYTES:
        raise Misconfigured(
            f"{what} has {format_size(len(text))}, more than {format_size(limits.BOOKMARK_BYTES)}. It should say how "
            f"far the source was read, not what was read. It begins with {shortened(text.decode(), 200)}"
        )
    return decode_json(text)


def _document_row(source: Source, id: str, doc: Document, fingerprint: str) -> tuple[tuple[Any, ...], int]:
    """Return the listing row of a whole document; refused if JSON cannot hold its fields, or if it is too large."""
    try:
        check_source_id(id)
        fields, raw = encode_fields(doc.fields), raw_bytes(doc.raw)
        check_size(fields, raw)
    except BadDocument as e:
        why = plain_text(e)
        return (storable_id(id), 0, "", "", why, content_version(repr(e).encode(), None), False, None, None), 0
    size = len(fields) + len(raw or b"")
    counted = encode_fields(source.counted(doc.fields)) if source.uncounted else fields
    version = content_version(counted, raw if source.counts_raw else None)
    return (id, size, fingerprint, "", None, version, False, fields, raw), size
