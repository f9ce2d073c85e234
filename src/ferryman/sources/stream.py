"""Rows of a Spark Structured Streaming query as documents.

Spark's checkpoint says what a batch is, and the plan's state what was processed:

1. Spark plans a batch: its number and the offsets of its sources are in the checkpoint.
2. ``foreachBatch`` hands the batch over, and waits.
3. Executors write the batch's rows into the state, and a record of it, with the query's id, the batch's number and its
   offsets, gives the rows their places. From then on it is a piece of a log.
4. Waves process the rows. The position after them is in the commit of each wave.
5. Once all are behind the position, ``foreachBatch`` returns, and Spark notes the batch as done.

After a kill Spark begins again with the batch that it has not noted as done. If the record of it says that its rows are
behind the position, nothing is done (4 was reached). If there is a record, its rows are read from the state (3 was
reached), so they are those of before, whatever the source gives now. A batch of the same query and number with other
offsets, or one that is not the next, means that checkpoint and state do not belong together: the stream stops.
"""

from __future__ import annotations

import contextlib
import queue
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from ferryman import crash, limits
from ferryman.document import Document, content_version, decode_fields, size_problem, storable_id
from ferryman.errors import (
    BadDocument,
    FerrymanError,
    Misconfigured,
    Unavailable,
    UsageError,
    describe,
    shortened,
)
from ferryman.sources.base import Listed
from ferryman.sources.dataframe import DataFrame
from ferryman.sources.log import Entry, Log, OnError, Piece, Positions, SparkAccess
from ferryman.storage import files
from ferryman.storage.files import StatePath, local_copy, path_of

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS: Final = "rows"
"""Name of the only partition."""

_NO_END: Final = 1 << 62
"""End of a stream: there may be more at any time."""

_CHECKPOINT: Final = "checkpoint"
_BATCHES: Final = "batches"
_RECORD: Final = re.compile(r"(\d{19})-(\d{19})-([0-9a-f]{16})-(\d+)\.json")
_LOOK_S: Final = 0.1
"""Time between two looks whether the query has ended."""

_HADOOP: Final = (
    "Spark itself writes the checkpoint of a stream, which lies inside the state. In an object store it needs Hadoop's "
    "jars for that: --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:3.4.2 for s3, and its settings "
    "(spark.hadoop.fs.s3a.…); or keep the state in a folder"
)


class BatchRecord(msgspec.Struct, frozen=True):
    """A batch whose rows are in the state.

    Attributes:
        query: id of the query, which stays the same as long as its checkpoint.
        batch: number of the batch.
        offsets: hash of the offsets up to which it goes.
        first, end: places of its rows, as a range.
        parts: names of the files of its rows, in order, with the number of rows.
    """

    query: str
    batch: int
    offsets: str
    first: int
    end: int
    parts: list[tuple[str, int]]


class _Handover(NamedTuple):
    """A batch that ``foreachBatch`` waits with."""

    frame: Any
    batch: int
    done: threading.Event


class Stream(Log):
    """Rows of any Structured Streaming query: ``Stream(lambda spark: spark.readStream.format("rate").load())``.

    Each column is a field, as with ``DataFrame``. The query runs in the driver, with a checkpoint in the plan's state:
    ``streams/<node>/checkpoint``. A run reads what there is (``availableNow``) and ends; with ``--watch`` the query
    goes on. What is processed is what the state says: a batch that Spark repeats after a kill changes nothing.

    Give the query no ``writeStream`` and no checkpoint of its own. Its options (``startingOffsets``,
    ``maxFilesPerTrigger``) say where a new stream begins and how large its batches are. If the checkpoint is removed,
    the query is a new stream, which begins where these options say.

    Args:
        read: a function of the SparkSession that returns a streaming DataFrame. It stays in the driver.
        id: None: each row is a document of its own, and its place in the stream is the id. Or the name of a column: a
            row is a newer version of the document of its id. What a step drops now, routes to another destination or
            makes no child of any more is deleted where an earlier row of the id has delivered it. In a wave, one task
            processes the rows.
        kept_batches: number of batches of which rows are kept after they were processed, for retries of single rows.
        ordered, on_error: see ``Log``.
        prefix: put before every id.

    Raises:
        UsageError: an argument that cannot be meant.
    """

    runs_queries = True

    def __init__(
        self,
        read: Callable[[Any], Any],
        id: str | None = None,
        *,
        kept_batches: int = 10,
        ordered: bool = True,
        on_error: OnError = "stop",
        prefix: str = "",
    ) -> None:
        super().__init__(prefix=prefix, ordered=ordered, on_error=on_error)
        if not callable(read):
            raise UsageError(
                f"Stream({read!r}): give a function of the SparkSession: Stream(lambda spark: spark.readStream…)."
            )
        if not isinstance(kept_batches, int) or kept_batches < 0:
            raise UsageError(f"Stream(kept_batches={kept_batches!r}): give a number of batches, from 0.")
        self.id = id
        self.kept_batches = kept_batches
        self.repeats_ids = self.many_versions = id is not None
        self._frame = DataFrame(read, id="" if id is None else id)
        self._folder: StatePath | None = None
        self._reader: StreamReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def __repr__(self) -> str:
        return "Stream(…)" if self.id is None else f"Stream(…, id={self.id!r})"

    # -- the driver --------------------------------------------------------------------------------

    def open(self, folder: StatePath, spark: SparkAccess) -> None:
        self._folder = folder
        self._reader = StreamReader(self._frame, self.id, folder, spark, self.kept_batches)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def place_of(self, name: str) -> str:
        return "the stream"

    def identity(self) -> str:
        return "" if self._reader is None else self._reader.id()

    def begin(self) -> Positions:
        return {_ROWS: 0 if self._reader is None else self._reader.begin()}

    def end(self) -> Positions:
        if self._reader is None:
            return {}  # only a run reads it
        self._reader.look_again()
        return {_ROWS: _NO_END}

    def has_grown(self, end: Positions) -> bool:
        return self._reader is not None and self._reader.has_batch()

    def lag(self, positions: Positions, end: Positions) -> int:
        position = positions.get(_ROWS, _NO_END)
        return 0 if self._reader is None or position == _NO_END else max(1, self._reader.batches.end - position)

    def pieces(self, start: Positions, end: Positions, limit: int) -> Iterator[Piece]:
        """Yield the rows of the next batch that are behind the position; wait for it, unless the query goes on.

        Raises:
            Unavailable: the query has failed.
            Misconfigured: checkpoint and state do not belong together, or there can be no such query.
        """
        if self._reader is None or (batch := self._reader.next_batch(start[_ROWS])) is None:
            return
        for first in range(max(start[_ROWS], batch.first), batch.end, limit):
            yield Piece(_ROWS, first, min(first + limit, batch.end))

    def note(self, reader: str, positions: Positions, moved: str = "") -> None:
        if self._reader is not None and _ROWS in positions:
            self._reader.note(positions[_ROWS])

    # -- a worker ----------------------------------------------------------------------------------

    def rows(self, piece: Piece) -> Iterator[pa.Table]:
        for place, table in self._read_stored(piece.start, piece.end):
            yield self._entries(place, table["id"].to_pylist(), table["fields"].to_pylist())

    def read_piece(self, piece: Piece) -> Iterator[Entry]:
        for first, table in self._read_stored(piece.start, piece.end):
            rows = zip(table["id"].to_pylist(), table["fields"].to_pylist(), strict=True)
            for place, (id, fields) in enumerate(rows, first):
                refused = "" if id or self.id is None else self._without_id()
                yield Entry(place, Document.of(id or str(place), decode_fields(fields)), refused=refused)

    def read(self, listed: Listed) -> Document:
        if self.id is not None:
            return self._last_of(listed.id)
        if listed.id.isdecimal():
            place = int(listed.id)
            with contextlib.suppress(Unavailable):
                for entry in self.read_piece(Piece(_ROWS, place, place + 1)):
                    return entry.document
        raise BadDocument(f"{listed.id}: the rows of this batch are not kept any more (see kept_batches)")

    def _last_of(self, id: str) -> Document:
        for record in reversed(self._records()):
            found = None
            with contextlib.suppress(Unavailable):  # its rows are not kept
                for entry in self.read_piece(Piece(_ROWS, record.first, record.end)):
                    found = entry.document if entry.document.id == id else found
            if found is not None:
                return found
        raise BadDocument(f"{id}: no batch that is kept has a row of this id (see kept_batches)")

    def _records(self) -> list[BatchRecord]:
        if self._folder is None:
            raise Unavailable("a stream is read by a run only")
        folder = self._folder / _BATCHES
        return [read_record(folder, name) for name in record_names(folder)]

    def _read_stored(self, start: int, end: int) -> Iterator[tuple[int, pa.Table]]:
        """Yield the stored rows of these places, with the place of the first.

        Raises:
            Unavailable: some are not there: they are not kept any more, or this machine does not see the state.
        """
        from ferryman.storage.parquet import RowGroups

        if self._folder is None:
            raise Unavailable("a stream is read by a run only")
        folder, at = self._folder / _BATCHES, start
        for name in record_names(folder):
            if not covers(name, at, end):
                continue
            record = read_record(folder, name)
            first = record.first
            for part, count in record.parts:
                if first < end and at < first + count:
                    path = folder / part
                    if not files.exists(path):
                        raise Unavailable(f"the rows of batch {record.batch} are not kept any more (see kept_batches)")
                    with RowGroups(str(local_copy(path)), ["id", "fields"]) as stored:
                        for table in stored.rows_between(max(0, at - first), min(count, end - first)):
                            yield at, table
                            at += table.num_rows
                first += count
        if at < end:
            raise Unavailable(f"rows {at} to {end - 1} of the stream are not there in {folder}")

    def _entries(self, first: int, ids: list[str | None], fields: list[bytes]) -> pa.Table:
        import pyarrow as pa

        from ferryman.sources.log_rows import ROWS

        n = len(ids)
        refused: list[str | None] = [size_problem(text, None) or None for text in fields]
        if self.id is None:
            names = [str(place) for place in range(first, first + n)]
        else:
            names = [id or str(place) for place, id in enumerate(ids, first)]
            refused = [why or (None if id else self._without_id()) for why, id in zip(refused, ids, strict=True)]
        columns = {
            "place": list(range(first, first + n)),
            "id": [storable_id(id) for id in self.full_ids(names)],
            "fields": [None if why else text for why, text in zip(refused, fields, strict=True)],
            "version": [content_version(text, None) for text in fields],
            "refused": refused,
        }
        arrays = [pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(n, f.type) for f in ROWS]
        table = pa.table(arrays, schema=ROWS)
        if self.id is None:
            return table
        revisions = pa.array(range(first + 1, first + n + 1), pa.int64())
        return table.append_column("revision", revisions).append_column("deletes", pa.array([False] * n))

    def _without_id(self) -> str:
        return f"the row has no {self.id!r} (null or empty), which is to be its id"


class StreamReader:
    """Reads a stream in the driver: runs its query, and takes the batches that it hands over.

    Attributes:
        batches: those that are in the state.
    """

    def __init__(self, frame: DataFrame, id: str | None, folder: StatePath, spark: SparkAccess, kept: int) -> None:
        self._frame = frame
        self._id = id
        self._checkpoint = folder / _CHECKPOINT
        self._spark = spark
        self.batches = StoredBatches(folder, spark, StoreRows(str(folder / _BATCHES), id), kept)
        self._position = -1
        self._handed_over: queue.Queue[_Handover] = queue.Queue()
        self._closed = threading.Event()
        self._running: Any = None
        self._goes_on = False
        self._has_ended = False
        self._waiting: _Handover | None = None
        self._current: BatchRecord | None = None

    def id(self) -> str:
        """Return the query's id; start it if it has none yet."""
        metadata = self._checkpoint / "metadata"
        if self._running is None and not files.exists(metadata):
            self._start(goes_on=False)
        if self._running is not None:
            return str(self._running.id)
        return str(msgspec.json.decode(files.read(metadata))["id"])

    def begin(self) -> int:
        """Return the place of the query's first row: places go on over all queries."""
        mine = self.batches.of(self.id())
        return mine[0].first if mine else self.batches.end

    def note(self, position: int) -> None:
        """Take the plan's position: what lies before it was committed."""
        self._position = position
        if self._current is not None and position >= self._current.end:
            self._finish_batch()

    def look_again(self) -> None:
        """Look for batches again although there were no more."""
        self._has_ended = False

    def has_batch(self) -> bool:
        """Return whether a batch waits, or the query has failed; start the query so that it goes on."""
        if self._running is None:
            self._start(goes_on=True)
        return not self._handed_over.empty() or self._waiting is not None or not self._running.isActive

    def next_batch(self, position: int) -> BatchRecord | None:
        """Return the batch that has rows behind this position, once they are in the state; None: there are no more
        now.

        Raises:
            Unavailable, Misconfigured: see ``Stream.pieces``.
        """
        while True:
            if self._current is not None:
                if position < self._current.end:
                    return self._current
                if self._position < self._current.end:
                    return None  # the commit was not noted yet
                self._finish_batch()
            self._waiting = self._waiting or self._next_handover()
            if self._waiting is None:
                return None
            query, number = str(self._running.id), self._waiting.batch
            offsets = offsets_of(self._checkpoint, number)
            self._current = self.batches.find(query, number, offsets) or self.batches.store(
                query, number, offsets, self._waiting.frame
            )

    def close(self) -> None:
        """Stop the query. Spark does not note the batch that waits as done."""
        self._closed.set()
        if self._waiting is not None:
            self._waiting.done.set()
        while not self._handed_over.empty():
            self._handed_over.get().done.set()
        if self._running is not None:
            with contextlib.suppress(Exception):  # its JVM may have ended
                self._running.stop()
        self._running = None

    def _finish_batch(self) -> None:
        """Let Spark note the current batch as done."""
        crash.point("stream.noted")
        self._current = None
        if self._waiting is not None:
            self._waiting.done.set()
            self._waiting = None
        self.batches.remove_old(self._position)

    def _next_handover(self) -> _Handover | None:
        """Wait for the next batch; None: there is none any more, or the query goes on and has none now.

        Raises:
            Unavailable: the query has failed.
        """
        while not self._has_ended:
            if self._running is None:
                self._start(goes_on=False)
            ended = not self._running.isActive  # before looking: it hands over nothing after its end
            with contextlib.suppress(queue.Empty):
                return self._handed_over.get(block=not (ended or self._goes_on), timeout=_LOOK_S)
            if ended:
                failed, self._running = self._running.exception(), None
                if failed is not None:
                    raise Unavailable(f"the query has failed: {shortened(describe(failed), limits.MESSAGE_CHARACTERS)}")
                self._has_ended = True
            elif self._goes_on:
                return None
        return None

    def _start(self, *, goes_on: bool) -> None:
        """
        Raises:
            Misconfigured: there can be no such query here.
            Unavailable: it does not start now.
        """
        self._goes_on = goes_on
        self.batches.prepare()
        try:
            self._running = self._spark.use_session(self._start_on)
        except FerrymanError:
            raise
        except Exception as e:
            text = describe(e)
            if not isinstance(self._checkpoint, Path) and re.search("FileSystem|ClassNotFound|s3a", text):
                raise Misconfigured(f"{_HADOOP}. ({shortened(text, 300)})") from e
            raise Unavailable(f"the query did not start: {shortened(text, limits.MESSAGE_CHARACTERS)}") from e

    def _start_on(self, spark: Any) -> Any:
        if type(spark).__module__.startswith("pyspark.sql.connect"):
            raise Misconfigured(
                "Spark Connect calls foreachBatch in its server, not in this program, so a Stream cannot be read "
                "through it: use a session of this program"
            )
        frame = self._frame.function(spark)
        if not getattr(frame, "isStreaming", False):
            raise Misconfigured(
                f"its function returned a {type(frame).__name__} that is not a stream: build it from spark.readStream"
            )
        if self._id is not None and self._id not in frame.columns:
            there = ", ".join(frame.columns)
            raise Misconfigured(f"Stream(id={self._id!r}): there is no such column. There are: {there}")
        writer = frame.writeStream.foreachBatch(self._hand_over).option("checkpointLocation", self._checkpoint_url())
        return (writer if self._goes_on else writer.trigger(availableNow=True)).start()

    def _checkpoint_url(self) -> str:
        if isinstance(self._checkpoint, Path):
            return self._checkpoint.absolute().as_uri()
        return re.sub("^s3://", "s3a://", str(self._checkpoint))

    def _hand_over(self, frame: Any, batch: int) -> None:
        """Hand a batch over to the run, and wait until it is committed. Called by Spark, in a thread of its own."""
        handover = _Handover(frame, batch, threading.Event())
        if not self._closed.is_set():
            self._handed_over.put(handover)
            while not handover.done.wait(1.0) and not self._closed.is_set():
                pass
        if self._closed.is_set():
            raise RuntimeError("the run has ended, and the batch comes again")


class StoredBatches:
    """Batches of a stream that are in the state, of which this process is the driver.

    Attributes:
        end: place after the last row.
    """

    def __init__(self, folder: StatePath, spark: SparkAccess, task: StoreRows, kept: int) -> None:
        self._stream = folder
        self._folder = folder / _BATCHES
        self._spark = spark
        self._task = task
        self._kept = kept
        self._records = [read_record(self._folder, name) for name in record_names(self._folder)]
        self.end = self._records[-1].end if self._records else 0

    def of(self, query: str) -> list[BatchRecord]:
        """Return the records of a query, in the order of its batches."""
        return [record for record in self._records if record.query == query]

    def find(self, query: str, batch: int, offsets: str) -> BatchRecord | None:
        """Return the record of a batch; None: it is the next one.

        Raises:
            Misconfigured: it is neither known nor the next one: checkpoint and state do not belong together.
        """
        mine = self.of(query)
        if (known := next((record for record in mine if record.batch == batch), None)) is not None:
            if known.offsets != offsets:
                raise Misconfigured(
                    f"batch {batch} of the stream has other offsets than the batch of this number that was processed: "
                    f"its checkpoint is an older copy, which has planned the batch again. {self._remedy()}"
                )
            return known
        last = mine[-1].batch if mine else -1
        if batch != last + 1:
            raise Misconfigured(
                f"the stream goes on with batch {batch}, and the state has its batches up to {last}: its checkpoint "
                f"is {'newer' if batch > last else 'older'} than the state. {self._remedy()}"
            )
        return None

    def store(self, query: str, batch: int, offsets: str, frame: Any) -> BatchRecord:
        """Write the rows of a batch into the state, and the record of it."""
        parts = [part for part in self._spark.run_frame(lambda _: frame, self._task) if part[1]]
        files.fsync_folder(self._folder)
        crash.point("stream.rows")
        end = self.end + sum(count for _, count in parts)
        record = BatchRecord(query, batch, offsets, self.end, end, parts)
        files.replace(self._folder / name_of_record(record), files.seal(msgspec.to_builtins(record)))
        crash.point("stream.record")
        self._records.append(record)
        self.end = end
        return record

    def prepare(self) -> None:
        """Make the folders, and remove rows that no record names: of a batch that was killed while it was written."""
        for folder in (self._stream.parent, self._stream, self._folder):
            files.make_folder(folder)
        named = {part for record in self._records for part, _ in record.parts}
        names = [name for name in files.list_names(self._folder) if not _RECORD.fullmatch(name)]
        files.remove_all(self._folder / name for name in names if name not in named)

    def remove_old(self, position: int) -> None:
        """Remove the rows of batches that are not kept any more. Their records stay for some time, so that they are
        recognized; a batch before these is known as older by its number."""
        done = [record for record in self._records if record.end <= position]
        for record in done[: max(0, len(done) - self._kept)][-2:]:  # the others are removed already
            files.remove_all(self._folder / part for part, _ in record.parts if files.exists(self._folder / part))
        if (old := len(done) - max(self._kept, limits.STREAM_RECORDS)) > 0:
            files.remove_all(self._folder / name_of_record(record) for record in done[:old])
            self._records = self._records[old:]

    def _remedy(self) -> str:
        return (
            f"Put back the checkpoint that belongs to the state; or remove {self._stream / _CHECKPOINT}, and the query "
            "starts again where its options say (startingOffsets)"
        )


class StoreRows:
    """Task: write one partition of a batch into the state; returns the file's name, and the number of rows."""

    def __init__(self, folder: str, id: str | None) -> None:
        self._folder = folder
        self._id = id

    def __call__(self, partition: int, batches: Iterable[pa.RecordBatch]) -> tuple[str, int]:
        import pyarrow as pa

        from ferryman.sources.arrow import encode_batches
        from ferryman.storage.parquet import PartWriter

        schema = pa.schema([("id", pa.string()), ("fields", pa.binary())])
        writer = PartWriter(path_of(self._folder), schema, epoch=0)
        try:
            for ids, fields in encode_batches(batches, self._id, "Stream"):
                if ids:
                    writer.write(pa.table([pa.array(ids, pa.string()), pa.array(fields, pa.binary())], schema=schema))
            if not writer.rows:
                writer.abandon()
                return "", 0
            part = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        return part.path, part.rows


def name_of_record(record: BatchRecord) -> str:
    """Return the name of a record's file, which sorts by places."""
    query = blake2b(record.query.encode(), digest_size=8).hexdigest()
    return f"{record.first:019}-{record.end:019}-{query}-{record.batch}.json"


def record_names(folder: StatePath) -> list[str]:
    """Return the names of the records in a folder, in the order of their places, and of their numbers."""
    found = [(match, name) for name in files.list_names(folder) if (match := _RECORD.fullmatch(name))]
    return [name for match, name in sorted(found, key=lambda each: (each[0][1], each[0][2], int(each[0][4])))]


def covers(name: str, start: int, end: int) -> bool:
    """Return whether the record of this name has any of these places."""
    match = _RECORD.fullmatch(name)
    return match is not None and int(match[1]) < end and start < int(match[2])


def read_record(folder: StatePath, name: str) -> BatchRecord:
    """
    Raises:
        StateDamaged: the record is damaged.
    """
    return msgspec.convert(files.unseal(folder / name), BatchRecord)


def offsets_of(checkpoint: StatePath, batch: int) -> str:
    """Return a hash of the offsets of a batch, as Spark has logged them before it began the batch.

    The offset of a source of files is only the number of an entry of a log of its own, which has the files' names.
    """
    lines = files.read(checkpoint / "offsets" / str(batch)).decode().split("\n")[2:]  # before: format, and the time
    found = list(lines)
    for number, line in enumerate(lines):
        with contextlib.suppress(msgspec.DecodeError, AttributeError):
            entry = msgspec.json.decode(line).get("logOffset")
            if isinstance(entry, int):
                found += _listed_files(checkpoint / "sources" / str(number), entry)
    return blake2b("\n".join(found).encode(), digest_size=16).hexdigest()


def _listed_files(folder: StatePath, entry: int) -> list[str]:
    """Return the files that an entry of the log of a source of files names, as lines of JSON."""
    for name in (str(entry), f"{entry}.compact"):
        if files.exists(folder / name):
            lines = files.read(folder / name).decode().split("\n")[1:]
            return sorted(line for line in lines if line and msgspec.json.decode(line).get("batchId") == entry)
    return []
