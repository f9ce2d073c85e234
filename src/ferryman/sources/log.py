"""The port for logs: sources whose entries are known by their place, and never change.

A log has partitions, most often one, and in each of them every entry has a place: a whole number that is higher than
that of the entry before (``shares_places``: or the same). Places may be missing. A plan remembers for each partition
the place that comes next, in the commit of the wave that processed what lies before it. So nothing is listed or
compared, and what has gone through leaves no row behind.

    check(), identity()         driver: is it there, and is it the same log as before?
    begin(), end()              driver: where a plan that never ran begins; the place after the last entry
    pieces(start, end, limit)   driver: work for the executors, in order
    read_piece(piece)           worker: the entries of a piece, in order
    read(listed)                worker, for a retry: one entry again
    announce(reader)            driver, before the first look of who has had nothing yet
    note(reader, positions)     driver, after a commit: where the plan stands
    forget(reader)              driver: an older version of the plan does not read it any more

The promises of a log are tests in ``ferryman.testing.logs``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from ferryman import limits
from ferryman.document import (
    Document,
    check_size,
    check_source_id,
    content_version,
    encode_fields,
    raw_bytes,
    storable_id,
)
from ferryman.errors import BadDocument, UsageError, plain_text
from ferryman.sources.base import Listed, Source

if TYPE_CHECKING:
    import pyarrow as pa

Positions = Mapping[str, int]
"""Partition -> the place that comes next, from 0."""

OnError = Literal["stop", "continue"]

_BATCH: Final = 4096
_BATCH_BYTES: Final = 16 * limits.MIB


def feed_name(plan: str, node: str) -> str:
    """By which name a ``Flow`` knows the changes of a keyed node's state; see ``Source.reads``.

    Args:
        plan: with its version.
    """
    return f"state:{plan}/{node}"


class Piece(NamedTuple):
    """Entries of ``start`` ≤ place < ``end``."""

    partition: str
    start: int
    end: int
    bytes: int = 0
    """About; what a wave processes is measured by it. 0: not known, an entry is taken for 1 KiB."""
    identity: str = ""
    """Of the log, as the driver saw it; see ``Log.pinned``."""
    inputs: tuple[tuple[str, int, int], ...] = ()
    """Of a join: the entries of each input, (name, first place, end)."""
    identities: tuple[str, ...] = ()
    """Of a join: that of each input."""


class Entry(NamedTuple):
    """An entry of a log, where a document alone does not say all of it."""

    place: int
    document: Document
    dropped: str = ""
    """Why it is passed over; "": it is not."""
    provenance: str | None = None
    """Where it came from, as JSON: kept with all that becomes of it, see ``Delivery.provenance``."""
    refused: str = ""
    """Why it cannot be a document (it cannot be parsed): it ends as ERROR_DOC with this message, or the plan stops
    there; of the document only the id counts. "": it can."""


class Moved(NamedTuple):
    """Where a reader was moved."""

    positions: Positions
    token: str
    """Tells this move from all others."""


class Log(Source):
    """Base of all logs.

    Args:
        prefix: put before every id.
        ordered: where an entry has to wait (a transient error), do the later ones of its partition wait, too?
        on_error: "stop": a step or router that failed for good holds the plan before that entry; "continue": the entry
            has failed, and the plan goes on. A plan with an error queue goes on in any case.
    """

    lists_all = False

    filters = False
    """Does it pass over entries (``Entry.dropped``)?"""

    shares_places = False
    """May several entries have one place, as the changes of one version? Then they are processed together: a position
    is never between them."""

    repeats_ids = False
    """May several entries have one id, each a newer version of the same, and may some be deletions of it? ``rows``
    then has two more columns: ``revision`` (higher with each version of an id) and ``deletes``. They go on in their
    order."""

    def __init__(self, *, prefix: str = "", ordered: bool = True, on_error: OnError = "stop") -> None:
        super().__init__(prefix=prefix)
        if on_error not in get_args(OnError):
            raise UsageError(f"on_error={on_error!r}: choose one of {', '.join(get_args(OnError))}.")
        self.ordered = ordered
        self.on_error: OnError = on_error

    def identity(self) -> str:
        """Tells it from any other log: one that another plan reads by this name, or that is made later at the same
        place. Where it differs from what a plan knew, the plan begins again. "": there is nothing to tell it by."""
        return ""

    def identities(self) -> Mapping[str, str]:
        """Of a log that reads several: the identity of each, by its name."""
        return {"": self.identity()}

    def partitions_of(self, name: str, positions: Positions) -> list[str]:
        """Of these partitions, those of a log that ``identities`` names."""
        return list(positions)

    def place_of(self, name: str) -> str | None:
        """See ``place``; of a log that ``identities`` names."""
        return self.place()

    def nothing(self) -> str:
        """Why there is nothing to read yet, for people; "" if there is something, or may be at any time."""
        return ""

    def begin(self) -> Positions:
        """Where a plan that never ran begins, of each partition that ``end`` names."""
        raise NotImplementedError

    def end(self) -> Positions:
        """The place after the last entry that there is now, of each partition.

        Raises:
            Unavailable, Misconfigured: it cannot be asked now, or somebody has to repair it.
        """
        raise NotImplementedError

    def lag(self, positions: Positions, end: Positions) -> int:
        """Entries that lie between, about."""
        return sum(max(0, last - positions.get(partition, last)) for partition, last in end.items())

    def pieces(self, start: Positions, end: Positions, limit: int) -> Iterable[Piece]:
        """What lies between, in order, in pieces of ``limit`` entries at most, or of one place. Together they cover all
        of it. Entries that are not kept any more are left out: the first piece of a partition then begins behind
        ``start``."""
        for partition, last in end.items():
            for first in range(start.get(partition, last), last, limit):
                yield Piece(partition, first, min(first + limit, last))

    def pinned(self, piece: Piece, identities: Mapping[str, str]) -> Piece:
        """A piece that is read only of the log that the driver saw.

        Args:
            identities: see ``identities``, as of then.
        """
        return piece._replace(identity=identities.get("", ""))

    def read_piece(self, piece: Piece) -> Iterator[Document | Entry]:
        """The entries of a piece, in order; ids without prefix. A plain document is at the place after the one before,
        the first at the piece's start."""
        raise NotImplementedError

    def rows(self, piece: Piece) -> Iterator[pa.Table]:
        """The same in the columns of ``log_rows.ROWS``, some at a time. What was read before an error comes first."""
        return self._tables(self.entries(piece))

    def reached(self, piece: Piece) -> Positions:
        """Where it stands when ``rows`` has read this piece to its end; asked by the worker that did."""
        return {piece.partition: piece.end}

    def behind(self, piece: Piece) -> Positions:
        """The same, known before it is read; asked by the driver of an at-most-once plan."""
        return {piece.partition: piece.end}

    def range_id(self, piece: Piece) -> str:
        """What the ledger calls the entries of a piece together."""
        return self.full_id(f"{piece.partition}/{piece.start}..{piece.end - 1}")

    def entries(self, piece: Piece) -> Iterator[Entry]:
        """What ``read_piece`` gives, each with its place."""
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
        """One entry again, by its id.

        Raises:
            BadDocument: it is not kept any more.
        """
        raise NotImplementedError

    def entry(self, listed: Listed) -> Entry:
        """The same, with where it came from. Its place does not matter."""
        return Entry(0, self.read(listed))

    def entries_of(self, hashes: Collection[str]) -> list[str]:
        """Full ids of the entries that these deliveries of another plan have made."""
        return []

    def moved(self, reader: str) -> Moved | None:
        """Where an operator wants a reader to go on, instead of where it stands; None: nowhere else. The engine follows
        each move once."""
        return None

    def announce(self, reader: str) -> None:
        """This reader has had nothing yet, and is about to look at the log: what it may come to need is not removed
        from now on. Called before ``end``; it may be called again."""

    def note(self, reader: str, positions: Positions, moved: str = "") -> None:
        """All before these positions has been processed, durably: a log that removes what its readers have read may
        now do so. Called before anything is read, and after each commit; it may be called again.

        Args:
            moved: the last move that was followed.
        """

    def forget(self, reader: str) -> None:
        """This reader (an older version of a plan) does not come again: nothing has to be kept for it. It may be one
        that is not known."""

    def partitions(self) -> list[Any]:
        """Nothing: what is new is asked for by place."""
        return []

    def listing(self, partition: Any) -> Iterator[Listed]:
        """Entries that are to be read again, by their ids."""
        for id in partition:
            yield Listed(id, 0)

    def _row(self, entry: Entry) -> tuple[Any, ...]:
        doc = entry.document
        id, raw = storable_id(self.full_id(doc.id)), doc.raw
        try:
            if entry.refused:
                raise BadDocument(entry.refused)
            check_source_id(self.full_id(doc.id))
            fields, raw = encode_fields(doc.fields), raw_bytes(raw)
            check_size(fields, raw)
        except BadDocument as e:
            why = plain_text(e)
            return entry.place, id, None, None, content_version(why.encode(), None), why, None, entry.provenance
        dropped = plain_text(entry.dropped) or None
        return entry.place, id, fields, raw, content_version(fields, raw), None, dropped, entry.provenance
