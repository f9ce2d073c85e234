"""The port for logs: sources whose entries are identified by their place and never change.

A log has partitions, usually one. Within a partition every entry has a place: an integer that is higher than that of
the previous entry (or equal, with ``shares_places``). Places may be missing. For each partition a plan stores the next
place to read, in the commit of the wave that processed the entries before it. So nothing has to be listed or compared,
and processed entries leave no row behind, unless they are versions of documents (``repeats_ids``).

    open(folder, spark)         driver, once a run: a folder in the state, and Spark; close() at its end
    check(), identity()         driver: whether it exists, and whether it is the same log as before
    begin(), end()              driver: where a new plan begins; the place after the last entry
    pieces(start, end, limit)   driver: work for the executors, in order
    read_piece(piece)           worker: the entries of a piece, in order
    read(listed)                worker, for a retry: a single entry
    announce(reader)            driver, before a new reader's first ``end``
    note(reader, positions)     driver, after a commit: the plan's positions
    forget(reader)              driver: an older version of the plan will not read it again

The promises of a log are tests in ``ferryman.testing.logs``.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, Self, get_args
from urllib.parse import quote, unquote

from ferryman import limits
from ferryman.document import (
    Document,
    check_size,
    check_source_id,
    content_version,
    decode_fields,
    encode_fields,
    raw_bytes,
    storable_id,
)
from ferryman.errors import BadDocument, Misconfigured, UsageError, plain_text
from ferryman.records.provenance import merge_provenances
from ferryman.sources.base import Listed, Source

if TYPE_CHECKING:
    import pyarrow as pa

    from ferryman.storage.files import StatePath


Positions = Mapping[str, int]
"""Partition -> the next place to read, from 0."""

OnError = Literal["stop", "continue"]

_BATCH: Final = 4096
_BATCH_BYTES: Final = 16 * limits.MIB


def feed_name(plan: str, node: str) -> str:
    """Return the name by which a ``Flow`` identifies the changes of a keyed node's state; see ``Source.reads``.

    Args:
        plan: name of the plan with its version.
    """
    return f"state:{plan}/{node}"


class Piece(NamedTuple):
    """Entries of ``start`` ≤ place < ``end``."""

    partition: str
    start: int
    end: int
    bytes: int = 0
    """Approximate size in bytes, by which waves are limited; 0: unknown, and each entry is taken for 1 KiB."""
    identity: str = ""
    """Identity of the log as the driver saw it, see ``Log.pinned``."""
    inputs: tuple[tuple[str, int, int], ...] = ()
    """Entries of each input of a join: (name, first place, end)."""
    identities: tuple[str, ...] = ()
    """Identities of a join's inputs."""


class Entry(NamedTuple):
    """An entry of a log, for cases where a document alone is not enough."""

    place: int
    document: Document
    dropped: str = ""
    """Reason why it is dropped; "": it is not."""
    provenance: str | None = None
    """Where it came from, as JSON, which is stored with every delivery made from it; see ``Delivery.provenance``."""
    refused: str = ""
    """Reason why it cannot be a document (such as unparsable content): it ends as ERROR_DOC with this message, or the
    plan stops there; only the document's id is used. "": it can be one."""


class ReaderMove(NamedTuple):
    """An operator's request to move a reader to other positions."""

    positions: Positions
    token: str
    """Identifies this move among all others."""


class SparkAccess(Protocol):
    """Spark as a log may use it, in the driver."""

    def use_session(self, use: Callable[[Any], Any]) -> Any:
        """Call a function with the SparkSession, which is started if need be, and return its result."""

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Any]) -> list[Any]:
        """Run ``task(partition number, iterator of Arrow record batches)`` for each partition of a DataFrame, which
        ``read`` returns for the SparkSession."""


class Log(Source):
    """Base of all logs.

    Args:
        prefix: put before every id.
        ordered: whether later entries of a partition wait, too, if an entry has to wait (because of a transient error).
        on_error: "stop": if a step or router fails permanently, the plan stops before that entry; "continue": the entry
            counts as failed, and the plan continues. A plan with an error queue always continues.
    """

    lists_all = False

    filters = False
    """Whether it may drop entries (``Entry.dropped``)."""

    shares_places = False
    """Whether several entries may have the same place, such as the changes of one version. They are then processed
    together, since positions are only between places."""

    repeats_ids = False
    """Whether several entries may have the same id, each a newer version of the same document or its deletion. ``rows``
    then has two more columns: ``revision`` (higher for each version of an id) and ``deletes``. Entries of an id are
    processed in order, each partition of a wave by one task, and the state has a row for each document."""

    ask_again_s = limits.WATCH_TICK_S
    """Seconds after which a run that watches asks again where it ends."""

    many_versions = False
    """With ``repeats_ids``, whether one wave may have several entries of an id: then one lane sends all that a wave has
    for a destination, in order."""

    def __init__(self, *, prefix: str = "", ordered: bool = True, on_error: OnError = "stop") -> None:
        super().__init__(prefix=prefix)
        if on_error not in get_args(OnError):
            raise UsageError(f"on_error={on_error!r}: choose one of {', '.join(get_args(OnError))}.")
        self.ordered = ordered
        self.on_error: OnError = on_error

    def open(self, folder: StatePath, spark: SparkAccess) -> None:
        """Prepare for a run, in its driver, before anything else is asked.

        Args:
            folder: folder in the plan's state for what the log itself has to keep there; it need not exist.
        """

    def close(self) -> None:
        """End what ``open`` has begun: the run has ended."""

    def has_grown(self, end: Positions) -> bool:
        """Return whether the log ends elsewhere now than ``end`` said."""
        return dict(self.end()) != dict(end)

    def identity(self) -> str:
        """Return a text that distinguishes this log from all others, including one that another plan reads by the same
        name, or one created later at the same place. If it differs from the one a plan stored, the plan starts from the
        beginning. "": there is nothing to distinguish it by."""
        return ""

    def identities(self) -> Mapping[str, str]:
        """Return the identity of each log by name, for a log that reads several."""
        return {"": self.identity()}

    def partitions_of(self, name: str, positions: Positions) -> list[str]:
        """Return the partitions of one of the logs that ``identities`` names."""
        return list(positions)

    def place_of(self, name: str) -> str | None:
        """Return the place of one of the logs that ``identities`` names, see ``place``."""
        return self.place()

    def nothing(self) -> str:
        """Return why there is nothing to read yet, for people; "" if there is something, or may be at any time."""
        return ""

    def begin(self) -> Positions:
        """Return the place where a plan that never ran begins, for each partition named by ``end``."""
        raise NotImplementedError

    def end(self) -> Positions:
        """Return, for each partition, the place after the last present entry.

        Raises:
            Unavailable, Misconfigured: the log cannot be read now, or somebody has to fix it.
        """
        raise NotImplementedError

    def lag(self, positions: Positions, end: Positions) -> int:
        """Return the approximate number of entries between these positions."""
        return sum(max(0, last - positions.get(partition, last)) for partition, last in end.items())

    def apart(self) -> Self:
        """Return this log with connections of its own, so that another thread may ask it."""
        return copy.copy(self)

    def written_at(self, positions: Positions) -> float | None:
        """Return when the first entry at these positions was written, in seconds since 1970; None: the log does not
        say. For metrics."""
        return None

    def pieces(self, start: Positions, end: Positions, limit: int) -> Iterable[Piece]:
        """Yield the entries between these positions, in order, in pieces of at most ``limit`` entries, or of a single
        place. Together the pieces cover the whole range, except entries that are no longer kept: the first piece of a
        partition then begins after ``start``.

        Raises:
            Unavailable, Misconfigured: the log cannot be read on now, or somebody has to fix it.
        """
        for partition, last in end.items():
            for first in range(start.get(partition, last), last, limit):
                yield Piece(partition, first, min(first + limit, last))

    def pinned(self, piece: Piece, identities: Mapping[str, str]) -> Piece:
        """Return the piece bound to the log that the driver saw, so that it is read from no other log.

        Args:
            identities: see ``identities``, as of then.
        """
        return piece._replace(identity=identities.get("", ""))

    def read_piece(self, piece: Piece) -> Iterator[Document | Entry]:
        """Yield the entries of a piece, in order; ids have no prefix. A plain ``Document`` is at the place after the
        previous entry, the first one at the start of the piece."""
        raise NotImplementedError

    def rows(self, piece: Piece) -> Iterator[pa.Table]:
        """Yield the piece's entries in the columns of ``log_rows.ROWS``, some at a time. Entries read before an error
        are yielded first."""
        return self._tables(self.entries(piece))

    def reached(self, piece: Piece) -> Positions:
        """Return the positions after ``rows`` has read this piece to its end; called by the worker that read it."""
        return {piece.partition: piece.end}

    def behind(self, piece: Piece) -> Positions:
        """Return the positions after a piece that has not been read yet; used by the driver of an at-most-once plan."""
        return {piece.partition: piece.end}

    def range_id(self, piece: Piece) -> str:
        """Return the ledger's name for the entries of a piece together, which is not that of an entry."""
        return self.full_id(f"{piece.partition}/{piece.start}..{piece.end - 1}")

    def cut(self, piece: Piece, start: int, end: int) -> Piece | None:
        """Return the part of a piece with ``start`` ≤ place < ``end``; None: which entries that are is unknown."""
        if self.shares_places:
            return None
        size = piece.bytes * (end - start) // max(1, piece.end - piece.start)
        return piece._replace(start=start, end=end, bytes=size)

    def entries(self, piece: Piece) -> Iterator[Entry]:
        """Yield the entries of ``read_piece`` with their places."""
        place = piece.start
        for each in self.read_piece(piece):
            entry = each if isinstance(each, Entry) else Entry(place, each)
            place = entry.place + 1
            yield entry

    def _tables(self, entries: Iterable[Entry]) -> Iterator[pa.Table]:
        from ferryman.sources.log_rows import table_of_entries

        rows: list[tuple[Any, ...]] = []
        size = 0
        try:
            for entry in entries:
                rows.append(row := self._row(entry))
                size += len(row[2] or b"") + len(row[3] or b"")
                if len(rows) >= _BATCH or size >= _BATCH_BYTES:
                    yield table_of_entries(rows)
                    rows, size = [], 0
        except Exception:
            if rows:
                yield table_of_entries(rows)
            raise
        if rows:
            yield table_of_entries(rows)

    def read(self, listed: Listed) -> Document:
        """Return a single entry by its id.

        Raises:
            BadDocument: it is not kept any more.
        """
        raise NotImplementedError

    def entry(self, listed: Listed) -> Entry:
        """Read one entry by its listing, with its provenance. Its place does not matter."""
        return Entry(0, self.read(listed))

    def entries_of(self, hashes: Collection[str]) -> list[str]:
        """Return the full ids of the entries that these deliveries of another plan have created."""
        return []

    def moved(self, reader: str) -> ReaderMove | None:
        """Return the positions to which an operator has moved a reader; None: it was not moved. The engine follows each
        move once."""
        return None

    def announce(self, reader: str) -> None:
        """Register a new reader that is about to read the log, so that from now on nothing it may need is removed.
        Called before ``end``, possibly several times."""

    def note(self, reader: str, positions: Positions, moved: str = "") -> None:
        """Record that everything before these positions has been processed durably, so that a log which removes entries
        after they were read may do so. Called before the first read and after each commit, possibly several times.

        Args:
            moved: token of the last move that was followed.
        """

    def forget(self, reader: str) -> None:
        """Forget a reader (an older version of the plan), so that nothing is kept for it any more. It may be
        unknown."""

    def partitions(self) -> list[Any]:
        """Return no partitions, since new entries are read by place."""
        return []

    def listing(self, partition: Any) -> Iterator[Listed]:
        """Yield the entries of these ids, to be read again."""
        for id in partition:
            yield Listed(id, 0)

    def _row(self, entry: Entry) -> tuple[Any, ...]:
        place, doc, dropped, provenance, refused = entry
        id = self.full_id(doc.id)
        try:
            if refused:
                raise BadDocument(refused)
            check_source_id(id)
            fields, raw = encode_fields(doc.fields), raw_bytes(doc.raw)
            check_size(fields, raw)
        except BadDocument as e:
            why = plain_text(e)
            return place, storable_id(id), None, None, content_version(why.encode(), None), why, None, provenance
        dropped_why = plain_text(dropped) if dropped else None
        return place, id, fields, raw, content_version(fields, raw), None, dropped_why, provenance


# Several logs read as one: for ``Plan.join`` and ``Plan.alts``.

_ID_SEPARATOR: Final = "&"
"""Separates the ids of the entries that are joined to one document."""

_COUNT_PARTITION: Final = "#"
"""Partition whose position is the number of the next joined document."""

_NO_END: Final = 1 << 62
"""End of a join's own count: the number of joined documents is known only when they are read."""


class CombinedLog(Log):
    """Base of the logs that read several others.

    Args:
        inputs: name -> log.
    """

    def __init__(self, inputs: Mapping[str, Log]) -> None:
        logs = [log for log in inputs.values() if isinstance(log, Log)]  # others are refused by check
        ordered, stops = all(log.ordered for log in logs), any(log.on_error == "stop" for log in logs)
        super().__init__(ordered=ordered, on_error="stop" if stops else "continue")
        self.inputs = dict(inputs)
        self.ask_again_s = max((log.ask_again_s for log in logs), default=limits.WATCH_TICK_S)

    def apart(self) -> Self:
        other = copy.copy(self)
        other.inputs = {name: log.apart() for name, log in self.inputs.items()}
        return other

    def check(self) -> None:
        for log in self.inputs.values():
            log.check()

    def place(self) -> str | None:
        return ", ".join(place for log in self.inputs.values() if (place := log.place()))

    def local_paths(self) -> tuple[str, ...]:
        return tuple(path for log in self.inputs.values() for path in log.local_paths())

    def identities(self) -> dict[str, str]:
        return {name: log.identity() for name, log in self.inputs.items()}

    def open(self, folder: StatePath, spark: SparkAccess) -> None:
        for name, log in self.inputs.items():
            log.open(folder / name, spark)

    def close(self) -> None:
        for log in self.inputs.values():
            log.close()

    def nothing(self) -> str:
        return "; ".join(filter(None, (log.nothing() for log in self.inputs.values())))

    def positions_of(self, name: str, positions: Positions) -> dict[str, int]:
        """Return the positions of one input under its own partitions."""
        raise NotImplementedError

    def place_of(self, name: str) -> str | None:
        return self.inputs[name].place()

    def forget(self, reader: str) -> None:
        for name, log in self.inputs.items():
            log.forget(self._input_reader(reader, name))

    def moved(self, reader: str) -> ReaderMove | None:
        moves = {name: log.moved(self._input_reader(reader, name)) for name, log in self.inputs.items()}
        moves_made = {name: move for name, move in moves.items() if move is not None}
        positions = {
            p: at
            for name, move in moves_made.items()
            for p, at in self._to_own_partitions(name, move.positions).items()
        }
        return (
            ReaderMove(positions, json.dumps({name: move.token for name, move in moves_made.items()}))
            if moves_made
            else None
        )

    def note(self, reader: str, positions: Positions, moved: str = "") -> None:
        tokens = json.loads(moved) if moved else {}
        for name, log in self.inputs.items():
            if own_positions := self.positions_of(name, positions):
                log.note(self._input_reader(reader, name), own_positions, tokens.get(name, ""))

    def _input_reader(self, reader: str, name: str) -> str:
        """Return the name of the reader of an input: if two inputs read the same log, each has a reader of its own."""
        places = [log.place() for log in self.inputs.values()]
        if places.count(self.inputs[name].place()) == 1:
            return reader
        name_part, _, state = reader.rpartition("-")
        return f"{name_part[: limits.READER_CHARACTERS - len(name)]}.{name}-{state}"

    def _to_own_partitions(self, name: str, positions: Positions) -> Positions:
        """Convert an input's positions to those under the partitions of the combined log."""
        raise NotImplementedError


class Alternating(CombinedLog):
    """Entries of several logs, a piece of each in turns."""

    def begin(self) -> Positions:
        return self._collect(lambda log: log.begin())

    def end(self) -> Positions:
        return self._collect(lambda log: log.end())

    def pieces(self, start: Positions, end: Positions, limit: int) -> Iterator[Piece]:
        each = [
            [piece._replace(partition=f"{name}/{piece.partition}") for piece in log.pieces(*places, limit)]
            for name, log in self.inputs.items()
            if all(places := (self.positions_of(name, start), self.positions_of(name, end)))
        ]
        for turn in zip_longest(*each):
            yield from (piece for piece in turn if piece is not None)

    def pinned(self, piece: Piece, identities: Mapping[str, str]) -> Piece:
        return piece._replace(identity=identities[piece.partition.partition("/")[0]])

    def read_piece(self, piece: Piece) -> Iterator[Document | Entry]:
        log, own = self._input_piece(piece)
        return log.read_piece(own)

    def rows(self, piece: Piece) -> Iterator[pa.Table]:
        log, own = self._input_piece(piece)
        return log.rows(own)

    def range_id(self, piece: Piece) -> str:
        log, own = self._input_piece(piece)
        return log.range_id(own)

    def read(self, listed: Listed) -> Document:
        return self.entry(listed).document

    def entry(self, listed: Listed) -> Entry:
        errors = []
        for log in self.inputs.values():
            if listed.id.startswith(log.prefix):
                try:
                    return log.entry(listed._replace(id=log.own_id(listed.id)))
                except BadDocument as e:
                    errors.append(str(e))
        raise BadDocument("; ".join(errors) or f"{listed.id}: not an entry of any input")

    def full_id(self, id: str) -> str:
        return id  # the input has added its prefix already

    def own_id(self, full_id: str) -> str:
        return full_id

    def positions_of(self, name: str, positions: Positions) -> dict[str, int]:
        start = f"{name}/"
        return {p.removeprefix(start): at for p, at in positions.items() if p.startswith(start)}

    def partitions_of(self, name: str, positions: Positions) -> list[str]:
        return [partition for partition in positions if partition.startswith(f"{name}/")]

    def _to_own_partitions(self, name: str, positions: Positions) -> Positions:
        return {f"{name}/{partition}": at for partition, at in positions.items()}

    def _collect(self, ask: Any) -> Positions:
        return {p: at for name, log in self.inputs.items() for p, at in self._to_own_partitions(name, ask(log)).items()}

    def _input_piece(self, piece: Piece) -> tuple[Log, Piece]:
        name, _, partition = piece.partition.partition("/")
        log = self.inputs[name]
        return log, piece._replace(partition=partition)


class Joined(CombinedLog):
    """The first entry of each log together, then the second of each, and so on: those that their filters let pass.

    Positions are those of the inputs, by their names, and the number of the document that comes next.
    """

    shares_places = True
    """Whether filtered entries share the number of the document after them."""

    def begin(self) -> Positions:
        return {**{name: _single_position(name, log.begin()) for name, log in self.inputs.items()}, _COUNT_PARTITION: 1}

    def end(self) -> Positions:
        ends = {name: _single_position(name, log.end()) for name, log in self.inputs.items()}
        return {**ends, _COUNT_PARTITION: _NO_END}

    def lag(self, positions: Positions, end: Positions) -> int:
        return min(max(0, end[name] - positions[name]) for name in self.inputs)

    def pieces(self, start: Positions, end: Positions, limit: int) -> Iterator[Piece]:
        if start[_COUNT_PARTITION] >= end[_COUNT_PARTITION]:
            return
        start = {**start, **{name: self._first_kept(name, start[name], end[name]) for name in self.inputs}}
        if not (rows := self.lag(start, end)):
            return
        ends = {name: end[name] for name in self.inputs}
        if any(log.filters for log in self.inputs.values()):  # how many pass shows only when they are read
            yield self._join_piece(start, ends, start[_COUNT_PARTITION], start[_COUNT_PARTITION] + rows)
            return
        for done in range(0, rows, limit):
            count = min(limit, rows - done)
            first = {name: start[name] + done for name in self.inputs}
            last = {name: at + count for name, at in first.items()}
            number = start[_COUNT_PARTITION] + done
            yield self._join_piece(first, last, number, number + count)

    def pinned(self, piece: Piece, identities: Mapping[str, str]) -> Piece:
        return piece._replace(identities=tuple(identities[name] for name, *_ in piece.inputs))

    def read_piece(self, piece: Piece) -> Iterator[Entry]:
        return self._joined_entries(piece)

    def rows(self, piece: Piece) -> Iterator[pa.Table]:
        self._reached: dict[str, int] = {}
        return self._joined_tables(piece, self._reached)

    def reached(self, piece: Piece) -> Positions:
        return self._reached

    def behind(self, piece: Piece) -> Positions:
        return {name: last for name, _, last in piece.inputs} | {_COUNT_PARTITION: piece.end}

    def cut(self, piece: Piece, start: int, end: int) -> Piece | None:
        if any(log.filters for log in self.inputs.values()):
            return None
        inputs = tuple((name, at + start - piece.start, at + end - piece.start) for name, at, _ in piece.inputs)
        return piece._replace(start=start, end=end, inputs=inputs)

    def range_id(self, piece: Piece) -> str:
        pieces = (
            (self.inputs[name], Piece(next(iter(self.inputs[name].begin())), first, last))
            for name, first, last in piece.inputs
        )
        return _ID_SEPARATOR.join(log.range_id(each) for log, each in pieces)

    def read(self, listed: Listed) -> Document:
        return self.entry(listed).document

    def entry(self, listed: Listed) -> Entry:
        parts: dict[str, Entry] = {}
        for (name, log), id in zip(self.inputs.items(), listed.id.split(_ID_SEPARATOR), strict=True):
            parts[name] = log.entry(listed._replace(id=log.own_id(unquote(id))))
        return self._join_entries(0, parts)

    def full_id(self, id: str) -> str:
        return id

    def own_id(self, full_id: str) -> str:
        return full_id

    def positions_of(self, name: str, positions: Positions) -> dict[str, int]:
        return {partition: positions[name] for partition in self.inputs[name].begin() if name in positions}

    def identities(self) -> dict[str, str]:
        return {**super().identities(), _COUNT_PARTITION: _COUNT_PARTITION}

    def partitions_of(self, name: str, positions: Positions) -> list[str]:
        return [name]

    def _to_own_partitions(self, name: str, positions: Positions) -> Positions:
        return {name: next(iter(positions.values()))}

    def _first_kept(self, name: str, start: int, end: int) -> int:
        """Return the first entry of an input in the range that is still kept."""
        [partition] = self.inputs[name].begin()
        pieces = self.inputs[name].pieces({partition: start}, {partition: end}, max(1, end - start))
        return next((piece.start for piece in pieces), max(start, end))

    def _join_piece(self, first: Positions, last: Positions, number: int, end: int) -> Piece:
        inputs = tuple((name, first[name], last[name]) for name in self.inputs)
        return Piece(_COUNT_PARTITION, number, end, 0, "", inputs)

    def _joined_tables(self, piece: Piece, reached: dict[str, int]) -> Iterator[pa.Table]:
        """Yield joined entries in the columns of ``log_rows.ROWS``, some at a time, and keep the positions of the
        inputs in ``reached`` up to date."""
        from ferryman.sources.log_rows import join_tables, table_of_entries

        readers = self._read_inputs(piece, reached)
        ahead = {name: next(reader, None) for name, reader in readers.items()}
        while (number := reached[_COUNT_PARTITION]) < piece.end:
            for name, reader in readers.items():
                while (rows := ahead[name]) is not None and not rows.num_rows:
                    ahead[name] = next(reader, None)
            found = {name: rows for name, rows in ahead.items() if rows is not None}
            if any(rows["dropped"].null_count < rows.num_rows for rows in found.values()):
                entries = {
                    name: _entries_of(self.inputs[name], chain(filter(None, [ahead[name]]), reader))
                    for name, reader in readers.items()
                }
                yield from self._tables(self._join_one_by_one(entries, piece.end, reached))
                return
            if len(found) < len(readers):
                return
            count = min(piece.end - number, _BATCH, *(rows.num_rows for rows in found.values()))
            size = sum(rows.slice(0, count).nbytes for rows in found.values())
            count = max(1, count * _BATCH_BYTES // max(size, _BATCH_BYTES))
            some = {name: rows.slice(0, count) for name, rows in found.items()}
            joined = join_tables(number, some)
            if joined is None:
                entries = {name: _entries_of(self.inputs[name], [rows]) for name, rows in some.items()}
                each = (dict(zip(entries, parts, strict=True)) for parts in zip(*entries.values(), strict=True))
                joined = table_of_entries([self._row(self._join_entries(number + at, p)) for at, p in enumerate(each)])
            reached |= {name: rows["place"][-1].as_py() + 1 for name, rows in some.items()}
            reached[_COUNT_PARTITION] = number + count
            ahead |= {name: rows.slice(count) for name, rows in found.items()}
            yield joined

    def _read_inputs(self, piece: Piece, reached: dict[str, int]) -> dict[str, Iterator[pa.Table]]:
        """Return the entries of each input in tables, and set ``reached`` to where the piece begins."""
        reached |= {name: first for name, first, _ in piece.inputs} | {_COUNT_PARTITION: piece.start}
        identities = piece.identities or ("",) * len(piece.inputs)
        return {
            name: _read_input(self.inputs[name], first, last, identity)
            for (name, first, last), identity in zip(piece.inputs, identities, strict=True)
        }

    def _joined_entries(self, piece: Piece) -> Iterator[Entry]:
        reached: dict[str, int] = {}
        readers = self._read_inputs(piece, reached)
        entries = {name: _entries_of(self.inputs[name], reader) for name, reader in readers.items()}
        return self._join_one_by_one(entries, piece.end, reached)

    def _join_one_by_one(
        self, readers: Mapping[str, Iterator[Entry]], end: int, reached: dict[str, int]
    ) -> Iterator[Entry]:
        """Yield joined entries one by one, and keep the positions of the inputs in ``reached`` up to date.

        An entry that an input's filter drops is yielded by itself, under the number of the next joined document.
        """
        ready: dict[str, Entry] = {}
        while reached[_COUNT_PARTITION] < end:
            for name, reader in readers.items():
                while name not in ready and (entry := next(reader, None)) is not None:
                    if entry.dropped:
                        reached[name] = entry.place + 1
                        entry.document.id = self.inputs[name].full_id(entry.document.id)
                        yield entry._replace(place=reached[_COUNT_PARTITION])
                    else:
                        ready[name] = entry
            if len(ready) < len(readers):
                return
            number = reached[_COUNT_PARTITION]
            reached |= {name: entry.place + 1 for name, entry in ready.items()} | {_COUNT_PARTITION: number + 1}
            yield self._join_entries(number, ready)
            ready = {}

    def _join_entries(self, number: int, parts: Mapping[str, Entry]) -> Entry:
        fields: dict[str, Any] = {}
        ids = []
        refused: list[str] = []
        for name, entry in parts.items():
            doc = entry.document
            id = self.inputs[name].full_id(doc.id)
            ids.append(id)
            fields[name] = {"id": id, "fields": doc.fields}
            if doc.raw is not None:
                fields[name]["raw"] = base64.b64encode(doc.raw).decode()
            if entry.refused:
                refused.append(f"{id}: {entry.refused}")
        provenance = merge_provenances(entry.provenance for entry in parts.values())
        return Entry(number, Document.of(joined_id(ids), fields), "", provenance, "; ".join(refused))


def joined_id(ids: Iterable[str]) -> str:
    """Return the id of the document that entries with these ids are joined to."""
    return _ID_SEPARATOR.join([quote(id, safe="/:") if "&" in id or "%" in id else id for id in ids])


def split_joined(doc: Document) -> dict[str, Document]:
    """Return the documents that a join combined to one, by the names of its inputs."""
    documents = {}
    for name, part in doc.fields.items():
        raw = part.get("raw")
        documents[name] = Document.of(part["id"], part["fields"], None if raw is None else base64.b64decode(raw))
    return documents


def _read_input(log: Log, first: int, last: int, identity: str) -> Iterator[pa.Table]:
    [partition] = log.begin()
    return log.rows(Piece(partition, first, last, 0, identity))


def _entries_of(log: Log, tables: Iterable[pa.Table]) -> Iterator[Entry]:
    """Yield the entries of tables in the columns of ``log_rows.ROWS``."""
    from ferryman.storage.parquet import column_values

    for rows in tables:
        columns = (
            column_values(rows[name]) for name in ("place", "id", "fields", "raw", "refused", "dropped", "provenance")
        )
        for place, id, fields, raw, refused, dropped, provenance in zip(*columns, strict=True):
            doc = Document.of(log.own_id(id), {} if refused is not None else decode_fields(fields), raw)
            yield Entry(place, doc, dropped or "", provenance, refused or "")


def _single_position(name: str, positions: Positions) -> int:
    """Return the position in a log of one partition.

    Raises:
        Misconfigured: the log has several partitions, so its entries have no order.
    """
    if len(positions) != 1:
        raise Misconfigured(
            f"input {name} has {len(positions)} partitions, so its entries have no order: a join takes logs of one."
        )
    return next(iter(positions.values()))
