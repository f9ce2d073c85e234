"""Documents that a function of the plan reads: all rows there are (``Rows``), or what is new since a cursor
(``Cursor``)."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import Misconfigured, TransientError, UsageError, safe_repr
from ferryman.sources.base import Bookmark, Complete, Detect, Listed, Note, Source

Row = Document | Mapping[str, Any]
"""Document that a function yields: a ``Document``, or a dict with its id, optionally "raw" (bytes), and fields."""

MAX_DELETED: Final = 0.1
"""Share of the known documents that may be missing at once: a login that has expired shows less, not nothing."""

_WHOLE: Final = ""
"""Bookmark of a reader without partitions."""

LOOP_ROWS: Final = 10_000
"""Rows in a row that were all seen before, after which a reader is taken to read the same pages without end; fewer if
that is everything it has read."""

_FEWEST_ROWS: Final = 100

_SEEN_BYTES: Final = 1 << 24
"""Size of the table in which rows are marked as seen; two rows may share a place, but not thousands in a row."""

_MILLISECONDS_FROM: Final = 1e11
"""Numbers from here on are taken for milliseconds since 1970: as seconds they would be the year 5138."""


class CursorExpired(Exception):
    """Raised by the function of a ``Cursor``: what it was given is too old to be continued from (HTTP 410), or a token
    has expired. Everything is then read again from ``start``."""


class Rows(Source):
    """Everything that a function reads: ``Rows(read, id="key")``.

    ``read()`` yields a dict for each row, or a ``Document``: all there are, since what it does not yield any more is
    deleted. It runs in a worker and is read as a stream. An exception that it raises makes the listing incomplete:
    what came before is processed, and nothing is deleted. So a reader should raise whenever it has not seen everything:
    an answer with an error in it, fewer rows than the server has announced, a page that fails.

    Nothing is deleted, either, if no row comes where some were known, or if the same rows come again and again, as from
    an API that ignores the number of the page. A row without an id is not processed, and the listing is incomplete.

    Args:
        read: see above; with ``partitions``, ``read(partition)``.
        id: name of the field with the id: text or a whole number. Every other field is one of the document; "raw"
            (bytes) is its content.
        partitions: list of what is read independently, such as the names of accounts, or a function that returns it.
        may_be_empty: whether no rows at all are normal, and delete every document.
        prefix, detect, max_deleted: see ``Source``.
    """

    def __init__(
        self,
        read: Callable[..., Iterable[Row]],
        *,
        id: str = "id",
        partitions: Sequence[Any] | Callable[[], Sequence[Any]] | None = None,
        may_be_empty: bool = False,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float = MAX_DELETED,
    ) -> None:
        super().__init__(prefix=prefix, detect=detect, max_deleted=max_deleted)
        self._read = _callable("Rows", read)
        self.id = id
        self.may_be_empty = may_be_empty
        self._partitions = partitions

    def __repr__(self) -> str:
        return f"Rows({getattr(self._read, '__name__', '…')}, id={self.id!r})"

    def partitions_after(self, bookmarks: Mapping[str, Any]) -> list[Any]:
        given = self._partitions() if callable(self._partitions) else self._partitions
        names = [_WHOLE] if given is None else [_partition_name(partition) for partition in given]
        arguments = [()] if given is None else [(partition,) for partition in given]
        if len(set(names)) < len(names):
            raise UsageError(f"{self!r}: its partitions must differ from each other.")
        return [(name, argument, bookmarks.get(name)) for name, argument in zip(names, arguments, strict=True)]

    def listing(self, partition: tuple[str, tuple[Any, ...], int | None]) -> Iterator[Listed | Document | Bookmark]:
        name, argument, known = partition
        reader = RowReader(self.id)
        yield from reader.documents(self._read(*argument))
        reader.raise_if_unnamed()
        check_not_empty(reader.count, known, name, may_be_empty=self.may_be_empty)
        yield Bookmark(name, reader.count)


def check_not_empty(count: int, known: int | None, name: str, *, may_be_empty: bool) -> None:
    """
    Raises:
        TransientError: no rows came, where some were known.
    """
    if not count and known and not may_be_empty:
        raise TransientError(
            f"no rows{f' of {name}' if name else ''}, where {known} were known: a reader that sees nothing may "
            "have lost its rights. If that is right, say may_be_empty=True"
        )


class Cursor(Source):
    """Changes since a cursor: ``Cursor(read)``, for an API that lists what is new.

    ``read(cursor)`` yields pairs ``(document, cursor)``: a dict or a ``Document``, and any JSON value from which the
    next scan goes on: a time, a number, a token. ``Document.deleted(id)`` deletes a document; ``None`` in its place
    only moves the cursor. It runs in a worker and is read as a stream.

    The cursor moves when all that came before it is committed: after a kill, ``read`` is called with the last committed
    one, and what comes again unchanged is dropped. An exception makes the scan incomplete; documents that came before
    it are processed. With ``ordered=True``, pairs come in the order of their cursors, so the cursor moves to the last
    pair also then. Otherwise it moves only after a reader has come to its end, to the largest cursor of those that can
    be compared, else to the last.

    A document that waits for a retry, or has failed, is kept in the state with its content, since it cannot be asked
    for again.

    Args:
        read: see above; for the first scan, and for each complete one, it is called with ``start``.
        start: cursor of the first scan.
        id: name of the field with the id: text or a whole number.
        ordered: see above. Say it of tokens, too: only the last one counts.
        lag: how long after its time a change may still appear ("5m"): each scan begins that much before the cursor,
            which must be an ISO 8601 time, or seconds or milliseconds since 1970.
        relist: how often everything is read from ``start`` ("7d"), so that documents that are gone without a word are
            deleted; None: never. Only ``Document.deleted`` deletes then.
        prefix, detect, max_deleted: see ``Source``.
    """

    lists_all = False
    keeps_content = True
    may_not_see_deletes = True
    comes_again = "A Cursor is not asked again for what it has read: it comes again when it changes."

    def __init__(
        self,
        read: Callable[[Any], Iterable[tuple[Row | None, Any]]],
        *,
        start: Any = None,
        id: str = "id",
        ordered: bool = False,
        lag: str | float | None = None,
        relist: str | float | None = None,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float = MAX_DELETED,
    ) -> None:
        super().__init__(prefix=prefix, detect=detect, max_deleted=max_deleted)
        self._read = _callable("Cursor", read)
        self.start = start
        self.id = id
        self.ordered = ordered
        self.lag_s = _duration("lag", lag)
        self.relist_s = _duration("relist", relist)

    def __repr__(self) -> str:
        return f"Cursor({getattr(self._read, '__name__', '…')})"

    def unseen_deletes(self, bookmarks: Mapping[str, Any]) -> str:
        if self.relist_s is not None:
            return ""
        return "only Document.deleted() deletes; relist= finds what is gone without it."

    def partitions_after(self, bookmarks: Mapping[str, Any]) -> list[Any]:
        return [bookmarks.get(_WHOLE)]

    def listing(self, partition: dict[str, Any] | None) -> Iterator[Listed | Document | Bookmark | Complete | Note]:
        if partition is None or self._must_relist(partition):
            yield from self._read_all()
            return
        cursor = partition["cursor"]
        try:
            yield from self._read_from(self._before(cursor), partition)
        except CursorExpired as e:
            why = f" ({e})" if str(e) else ""
            yield Note(f"the cursor {safe_repr(cursor)} has expired{why}: everything is read from the start")
            yield from self._read_all()

    def _must_relist(self, bookmark: dict[str, Any]) -> bool:
        return self.relist_s is not None and not 0 <= time.time() - bookmark["listed"] < self.relist_s

    def _read_all(self) -> Iterator[Listed | Document | Bookmark | Complete | Note]:
        listed = int(time.time())
        yield from self._read_from(self.start, {"cursor": self.start, "listed": listed})
        if self.relist_s is not None:
            yield Complete()

    def _read_from(self, cursor: Any, bookmark: dict[str, Any]) -> Iterator[Listed | Document | Bookmark]:
        reader = RowReader(self.id)
        position = _Position(bookmark["cursor"], is_last=self.ordered)
        try:
            yield from reader.documents(self._documents(cursor, position, reader))
        except Exception:
            if self.ordered and position.moved:
                yield Bookmark(_WHOLE, {**bookmark, "cursor": position.value})
            raise
        reader.raise_if_unnamed()
        yield Bookmark(_WHOLE, {**bookmark, "cursor": position.value})

    def _documents(self, cursor: Any, position: _Position, reader: RowReader) -> Iterator[Row]:
        """Yield the documents of the pairs; the position moves past a pair when the next one is asked for."""
        for pair in self._read(cursor):
            try:
                document, after = pair
            except (TypeError, ValueError):
                raise Misconfigured(
                    f"{self!r}: its function yields {safe_repr(pair)}: yield a pair (document, cursor)"
                ) from None
            if document is not None:
                reader.cursor = after
                yield document
            position.move(after)

    def _before(self, cursor: Any) -> Any:
        """Return the cursor moved back by the lag."""
        if not self.lag_s or cursor is None:
            return cursor
        if isinstance(cursor, int | float) and not isinstance(cursor, bool):
            return cursor - self.lag_s * (1000 if cursor >= _MILLISECONDS_FROM else 1)
        try:
            return (dt.datetime.fromisoformat(cursor) - dt.timedelta(seconds=self.lag_s)).isoformat()
        except (TypeError, ValueError):
            raise Misconfigured(
                f"{self!r}: lag= needs a cursor that is a time: ISO 8601, or seconds or milliseconds since 1970. Its "
                f"function gave {safe_repr(cursor)}"
            ) from None


class _Position:
    """Cursor that a reader has come to."""

    def __init__(self, value: Any, *, is_last: bool) -> None:
        self.value = value
        self.moved = False
        self._is_last = is_last

    def move(self, cursor: Any) -> None:
        if self._is_last or not _is_smaller(cursor, self.value):
            self.value = cursor
            self.moved = True


def _is_smaller(one: Any, other: Any) -> bool:
    kinds = ((int, float), str)
    return any(isinstance(one, kind) and isinstance(other, kind) for kind in kinds) and one < other


class RowReader:
    """Makes documents of what a function yields.

    Attributes:
        count: number of documents so far.
        cursor: cursor of the row that is being read, if rows have cursors: a document may then come again under another
            one.
    """

    def __init__(self, id: str) -> None:
        self.count = 0
        self._id = id
        self._unnamed = 0
        self._example = ""
        self.cursor: Any = None
        self._seen = bytearray()
        self._distinct = 0
        self._repeated = 0

    def documents(self, rows: Iterable[Row]) -> Generator[Document | Listed]:
        """Yield a document for each row that has an id.

        Raises:
            Misconfigured: it yields something other than rows, or the same rows again and again.
        """
        for row in rows:
            document = row if isinstance(row, Document) else self._document(row)
            if document is None:
                continue
            self.count += 1
            self._stop_loop(document.id)
            yield document

    def raise_if_unnamed(self) -> None:
        """
        Raises:
            TransientError: rows had no id, so that not everything is listed.
        """
        if self._unnamed:
            raise TransientError(
                f"{self._unnamed} rows have no id in {self._id!r} and cannot be named, such as {self._example}"
            )

    def _document(self, row: Any) -> Document | None:
        if not isinstance(row, Mapping):
            raise Misconfigured(f"the function yields {safe_repr(row)}: yield a dict or a Document")
        id = row.get(self._id)
        if isinstance(id, int) and not isinstance(id, bool):
            id = str(id)
        if not isinstance(id, str) or not id:
            self._unnamed += 1
            self._example = self._example or safe_repr(row)
            return None
        raw = row.get("raw")
        if raw is not None and not isinstance(raw, bytes):
            raise Misconfigured(f"{id}: raw is a {type(raw).__name__}: give bytes, as from text.encode()")
        return Document.of(id, {str(name): value for name, value in row.items() if name != "raw"}, raw)

    def _stop_loop(self, id: str) -> None:
        self._seen = self._seen or bytearray(_SEEN_BYTES)
        place = hash((id, None if self.cursor is None else repr(self.cursor))) % _SEEN_BYTES
        if not self._seen[place]:
            self._seen[place] = 1
            self._distinct += 1
            self._repeated = 0
            return
        self._repeated += 1
        if self._repeated >= max(_FEWEST_ROWS, min(self._distinct, LOOP_ROWS)):
            raise Misconfigured(
                f"the last {self._repeated} rows have all come before, such as {safe_repr(id)}: the function reads the "
                "same pages again and again. It should end after the last one"
            )


def _callable(what: str, read: Any) -> Callable[..., Any]:
    if not callable(read):
        raise UsageError(f"{what}({safe_repr(read)}): give a function that reads, not what it has read.")
    return read  # type: ignore[no-any-return]


def _partition_name(partition: Any) -> str:
    return partition if isinstance(partition, str) else safe_repr(partition)


def _duration(option: str, value: str | float | None) -> float | None:
    if value is None:
        return None
    try:
        seconds = limits.seconds(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"Cursor({option}={value!r}): give a duration such as '5m', '2h' or '7d', or seconds.")
    return seconds
