"""Tables of PostgreSQL: a first copy, then each change, by a logical replication slot.

What happens when:

    1. begin_scan, driver      the publication and the slot are made if they are missing, and compared with the
                               bookmarks; the slot is advanced to the last position that was committed
    2. listing, worker         tables that must be copied are copied in the snapshot of a temporary slot; then the
                               changes of all others are read from the slot, which does not move
    3. the engine              commits documents and bookmarks
    4. end_scan, driver        the slot is advanced to the position that was committed

A position is the place in the server's log up to which changes were read. A transaction belongs to the changes before a
position if its commit record begins before it: that is also how the server picks what a slot yields. The snapshot of a
slot that is being made contains exactly the transactions before the position of that slot. So each table has the
position of its copy, and of the changes of a table those before it are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import msgspec

from ferryman import crash, limits
from ferryman.document import Document
from ferryman.errors import Misconfigured, UsageError
from ferryman.net import databases
from ferryman.sources.base import Bookmark, Complete, Detect, Listed, Note, Retained, Source
from ferryman.sources.pgoutput import OMITTED, RowChange, TableShape, TransactionBegin, Truncation, Value, decode
from ferryman.sources.postgres_server import (
    FETCHED,
    FollowedTable,
    RowsOfTable,
    Session,
    SlotOfServer,
    lsn_text,
    text_of,
)

if TYPE_CHECKING:
    import sqlalchemy as sa

OnSlotLost = Literal["stop", "copy"]

SLOT: Final = "slot"
"""Bookmark with the identity of the slot and the position."""

_TABLE: Final = "table "
"""Beginning of the names of the tables' bookmarks."""

SEGMENT_BYTES: Final = 16 * limits.MIB
"""The server removes its log in files of this size, so a position that nothing of ours lies behind moves no sooner."""

MAX_HELD_BYTES: Final = 10 * limits.GIB

COPY_BYTES: Final = limits.GIB
"""Bytes of tables that one scan copies, or one table: what was copied need not be copied again after a kill."""

_PENDING_BYTES: Final = 8 * limits.MIB
"""Bytes of changes that are held back until rows with unchanged values were read."""


class SlotPosition(msgspec.Struct, frozen=True):
    """Bookmark ``SLOT``."""

    system: str
    """Identifies the server's data, and the database in it."""
    slot: str
    position: int


class CopiedTable(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bookmark of a table."""

    oid: int
    key: tuple[str, ...]
    position: int
    """Position of the copy: changes before it are in the copy."""
    number: int = 0
    """Number of ``copy=`` when it was copied."""
    stale: str = ""
    """Why it must be copied again."""
    member: int = 0
    """Number of its membership in the publication: what changed while it was not published is not in the log."""


class TableCopies(NamedTuple):
    """Partition: tables to copy, all in one snapshot."""

    tables: tuple[FollowedTable, ...]
    slot: str
    """Beginning of the name of the temporary slot."""


class ChangeRange(NamedTuple):
    """Partition: changes of tables between two positions, and what the bookmark says about the slot."""

    tables: tuple[tuple[FollowedTable, CopiedTable], ...]
    system: str
    slot: str
    publication: str
    start: int
    end: int
    moves: bool
    """Whether the bookmark is written although nothing was read."""


class Leftovers(NamedTuple):
    """Partition: tables that the plan does not name any more, and bookmarks that do not count any more."""

    removed: tuple[str, ...]
    reset: tuple[str, ...]


class PostgresChanges(Source):
    """Changes of PostgreSQL's tables (docs/how-to/follow-a-table.md): ``PostgresChanges(url, "articles")``.

    Each row is a document, each column a field; an insert or update sends it, a delete deletes it. A new plan copies
    the tables first. Then the server's log is read through a logical replication slot, which the source makes, and
    advances after each commit. The server must have ``wal_level = logical``, and each table an identity.

    Values become what JSON has, as in ``sources.Sql``: decimals text, times ISO 8601, binary base64. Arrays and JSON
    stay what they are. What JSON has nothing for (ranges, geometries) is the server's text.

    The id is the primary key, or the columns of the index that is the replica identity: the values' texts, joined with
    ``/``, in which ``/`` and ``%`` are percent-encoded if there are several columns. Where ``tables`` is a list, the
    name of the table as it is written there stands before it: ``articles/17``. A row whose key changes is deleted under
    its old id.

    A large value that an update has not changed is not in the server's log. It is taken from the old row if the table
    has REPLICA IDENTITY FULL; otherwise the row is read again as it is now.

    A table is copied (again) when the plan names it for the first time, its number in ``copy`` changes, it was
    truncated, its key changed, or it was dropped and made again. The others are followed meanwhile. Rows that the copy
    does not have are deleted, under ``max_deleted``.

    Args:
        url: of the database, as for ``Sql``. Its user needs the attribute REPLICATION and SELECT on the tables; to make
            a publication, it must own them.
        tables: name of a table, or several, each with its schema if that is not on the search path.
        publication: an existing publication of these tables; None: the source makes one, with the slot's name.
        slot: name of the slot; None: made of the plan's, the source's and the state's.
        copy: table -> number. A number that changes has the table copied again.
        on_lost: what to do if changes are lost, because the slot was dropped, was used by somebody else, or fell too
            far behind. "stop": the source stops, and says why; "copy": it makes a new slot and copies all tables again.
        max_held_bytes: bytes of the server's log that the slot may hold; beyond that, run and status warn.
        prefix, detect, max_deleted: see ``Source``.

    Raises:
        UsageError: an argument that cannot be meant.
    """

    lists_all = False
    keeps_content = True
    comes_again = "Give its table another number in copy= to have all of its rows read again."

    def __init__(
        self,
        url: str,
        tables: str | Iterable[str],
        *,
        publication: str | None = None,
        slot: str | None = None,
        copy: Mapping[str, int] | None = None,
        on_lost: OnSlotLost = "stop",
        max_held_bytes: int = MAX_HELD_BYTES,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float = limits.MAX_DELETED,
    ) -> None:
        super().__init__(prefix=prefix, detect=detect, max_deleted=max_deleted)
        try:
            parsed = databases.parse_url(url)
        except UsageError as e:
            raise UsageError(f"PostgresChanges: {e}.") from None
        if parsed.drivername != databases.POSTGRESQL_DRIVER:
            raise UsageError(f"PostgresChanges({databases.redact(url)!r}): give a URL of PostgreSQL: postgresql://…")
        self.tables = (tables,) if isinstance(tables, str) else tuple(tables)
        self._is_single = isinstance(tables, str)
        self.copy = dict(copy or {})
        if not self.tables or not all(isinstance(name, str) and name.strip() for name in self.tables):
            raise UsageError(f"PostgresChanges(tables={tables!r}): give the name of a table, or several.")
        if len(set(self.tables)) < len(self.tables):
            raise UsageError(f"PostgresChanges(tables={tables!r}): a table is named twice.")
        if unknown := self.copy.keys() - set(self.tables):
            raise UsageError(f"PostgresChanges(copy=…): {', '.join(sorted(unknown))}: not one of its tables.")
        if on_lost not in get_args(OnSlotLost):
            raise UsageError(f"on_lost={on_lost!r}: choose one of {', '.join(get_args(OnSlotLost))}.")
        self.url = databases.with_password(parsed)
        self.publication = publication
        self.slot = slot
        self.on_lost = on_lost
        self.max_held_bytes = max_held_bytes
        self._prepared: _Prepared | None = None
        self._tried: set[str] = set()
        """Tables that scans of this run have copied, whether or not their bookmarks count."""
        self._waiting: set[str] = set()
        """Tables that had to be copied when the last scan began."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prepared": None, "_tried": set()}

    def __repr__(self) -> str:
        return f"PostgresChanges({self._url.render_as_string()!r}, {', '.join(self.tables)})"

    def place(self) -> str | None:
        return f"{databases.redact(self.url)}#{','.join(self.tables)}"

    def check(self) -> None:
        """Raises:
        Misconfigured: the server does not keep what is needed, or a table has no identity; says what to do.
        Unavailable: the server does not answer.
        """
        with self._session() as session:
            session.tables(self._wanted(), self.publication)

    # --- the port, in the driver --------------------------------------------------------------------------------------

    def begin_scan(self, reader: str, bookmarks: Mapping[str, Any]) -> Iterable[str]:
        """Make what is missing on the server, compare the slot with the bookmarks, and advance it to the position.

        Raises:
            Misconfigured: changes are lost, or the server refuses something.
            Unavailable: the server does not answer, or somebody reads from the slot.
        """
        self._prepared = None
        notes: list[str] = []
        known = _slot_position(bookmarks)
        name = self._slot_name(reader, known)
        with self._session() as session:
            tables = session.tables(self._wanted(), self.publication)
            lost = find_loss(session, known, session.slot(name))
            if lost and self.on_lost == "stop":
                raise Misconfigured(f"{lost}. {_WAY_ON}")
            if lost:
                notes.append(f"{lost}; all tables are copied again")
                known = None
            session.publish(self.publication or name, tables, own=self.publication is None)
            crash.point("changes.published")
            found = session.slot(name)
            if found is not None and found.lost:
                session.drop_slot(name)
                found = None
            if found is None:
                session.make_slot(name)
                crash.point("changes.slot")
                found = session.slot(name)
            assert found is not None
            position = found.position if known is None else known.position
            session.advance(name, found, position)
            crash.point("changes.advanced")
            notes += filter(None, [self._describe_held(found)])
        self._prepared = _Prepared(name, position, is_new=known is None, is_reset=bool(lost))
        return notes

    def partitions(self) -> list[Any]:
        return self.partitions_after({})

    def partitions_after(self, bookmarks: Mapping[str, Any]) -> list[Any]:
        known, prepared = _slot_position(bookmarks), self._prepared
        name = prepared.slot if prepared else known.slot if known else ""
        publication = self.publication or name or None
        with self._session() as session:
            tables, system = session.tables(self._wanted(), publication), session.system()
            start = prepared.position if prepared else known.position if known else 0
            end = max(start, session.flushed()) if name else 0
        reset = {} if prepared and prepared.is_reset else bookmarks
        copied = {t.name: _copied_table(reset.get(f"{_TABLE}{t.name}")) for t in tables}
        to_copy = [t for t in tables if _must_copy(t, copied[t.name])]
        chosen = self._choose(to_copy)
        self._waiting = {t.name for t in to_copy}
        followed = tuple((t, at) for t in tables if t not in to_copy and (at := copied[t.name]) is not None)
        removed = tuple(sorted(f"{_TABLE}{name}" for name in self._names_in(bookmarks) - set(self.tables)))
        outdated = tuple(f"{_TABLE}{t.name}" for t in to_copy if reset is not bookmarks)
        found: list[Any] = []
        if removed or outdated:
            found.append(Leftovers(removed, outdated))
        if chosen:
            found.append(TableCopies(tuple(chosen), name or "ferryman"))
        if name:
            is_new = prepared is not None and prepared.is_new
            found.append(ChangeRange(followed, system, name, str(publication), start, end, is_new))
        return found

    def end_scan(self, bookmarks: Mapping[str, Any]) -> bool:
        known = _slot_position(bookmarks)
        if known is not None:
            with self._session() as session:
                if (found := session.slot(known.slot)) is not None:
                    session.advance(known.slot, found, known.position)
                    crash.point("changes.released")
        copied = {name: _copied_table(bookmarks.get(f"{_TABLE}{name}")) for name in self.tables}
        left = (self._waiting | {name for name, at in copied.items() if at is None or at.stale}) - self._tried
        if not left:
            self._tried.clear()
        return bool(left)

    def retained(self, reader: str, bookmarks: Mapping[str, Any]) -> list[Retained]:
        name = self._slot_name(reader, _slot_position(bookmarks))
        with self._session() as session:
            found = session.slot(name)
            made = self.publication is None and session.publication_exists(name)
        where = databases.redact(self.url)
        publication = f"publication {name}" if made else ""
        if found is None:
            return [Retained(f"{publication} at {where}", 0)] if made else []
        place = f"replication slot {name}{' and ' if made else ''}{publication} at {where}"
        return [Retained(place, found.held_bytes, self._describe_held(found))]

    def remove_retained(self, reader: str, bookmarks: Mapping[str, Any]) -> None:
        name = self._slot_name(reader, _slot_position(bookmarks))
        with self._session() as session:
            if session.slot(name) is not None:
                session.drop_slot(name)
                crash.point("changes.dropped")
            if self.publication is None:
                session.drop_publication(name)

    # --- the port, in a worker ----------------------------------------------------------------------------------------

    def listing(
        self, partition: TableCopies | ChangeRange | Leftovers
    ) -> Iterator[Listed | Document | Bookmark | Complete | Note]:
        match partition:
            case Leftovers():
                yield from (Bookmark(name, None) for name in partition.reset)
                for name in partition.removed:
                    yield Complete(f"{name.removeprefix(_TABLE)}/", Bookmark(name, None))
            case TableCopies():
                yield from self._copies(partition)
            case ChangeRange():
                yield from self._changes(partition)

    def _copies(self, copies: TableCopies) -> Iterator[Listed | Document | Complete]:
        with self._session() as session:
            position = session.enter_snapshot(copies.slot)
            for table in copies.tables:
                rows = RowsOfTable(table, session.loaders)
                for values in session.copy(table, table.where):
                    yield rows.document([None if v is None else v.encode() for v in values])
                copied = CopiedTable(table.oid, table.key, position, table.number, member=table.member)
                crash.point("changes.copied")
                yield Complete(table.within, Bookmark(f"{_TABLE}{table.name}", msgspec.to_builtins(copied)))

    def _changes(self, changes: ChangeRange) -> Iterator[Listed | Document | Bookmark | Note]:
        has_moved = changes.moves or changes.end - changes.start >= SEGMENT_BYTES
        if changes.tables and changes.end > changes.start:
            with self._session() as session:
                reader = ChangeReader(session, changes)
                for entry in reader.read():
                    has_moved = True
                    yield entry
            for at, why in reader.stale.values():
                has_moved = True
                yield Bookmark(f"{_TABLE}{at[0].name}", msgspec.to_builtins(msgspec.structs.replace(at[1], stale=why)))
                yield Note(f"table {at[0].name} {why}: it is copied again")
        if has_moved:
            slot = SlotPosition(changes.system, changes.slot, changes.end)
            yield Bookmark(SLOT, msgspec.to_builtins(slot))

    # --- helpers ------------------------------------------------------------------------------------------------------

    @property
    def _url(self) -> sa.URL:
        return databases.parse_url(self.url)

    @contextmanager
    def _session(self) -> Iterator[Session]:
        with Session(self._url) as session, session.translated_errors():
            yield session

    def _wanted(self) -> dict[str, tuple[str, int]]:
        """Return table -> beginning of the ids of its rows, and its number."""
        return {name: ("" if self._is_single else f"{name}/", self.copy.get(name, 0)) for name in self.tables}

    def _slot_name(self, reader: str, known: SlotPosition | None) -> str:
        """Return the slot's name: the one that was read so far, or one that only this reader has."""
        if known is not None:
            return known.slot
        return self.slot or slot_name(reader)

    def _names_in(self, bookmarks: Mapping[str, Any]) -> set[str]:
        return {name.removeprefix(_TABLE) for name in bookmarks if name.startswith(_TABLE)}

    def _choose(self, tables: Sequence[FollowedTable]) -> list[FollowedTable]:
        """Return the tables that this scan copies: those first that this run has not yet copied."""
        chosen: list[FollowedTable] = []
        room = COPY_BYTES
        for table in sorted(tables, key=lambda t: t.name in self._tried):
            if chosen and table.size > room:
                continue
            chosen.append(table)
            room -= table.size
        self._tried |= {t.name for t in chosen}
        return chosen

    def _describe_held(self, slot: SlotOfServer) -> str:
        if slot.held_bytes <= self.max_held_bytes:
            return ""
        return (
            f"replication slot {slot.name} holds {slot.held_bytes // limits.MIB} MiB of the server's log, more than "
            f"{self.max_held_bytes // limits.MIB} MiB (max_held_bytes). Run the plan more often, or drop what "
            "nobody reads: `ferryman plan remove PLAN`"
        )


class _Prepared(NamedTuple):
    """Result of ``begin_scan``."""

    slot: str
    position: int
    is_new: bool
    """Whether no bookmark names this slot yet."""
    is_reset: bool
    """Whether the tables' bookmarks do not count any more."""


_WAY_ON: Final = (
    "What changed since then would be missing. To go on, give the source on_lost='copy': it copies all tables again, "
    "and deletes the documents of rows that are gone"
)


def slot_name(reader: str) -> str:
    """Return the name of the slot of a reader: at most 63 of the characters that PostgreSQL allows."""
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in reader.lower())
    return f"ferryman_{plain[:41]}_{blake2b(reader.encode(), digest_size=6).hexdigest()}"


def _slot_position(bookmarks: Mapping[str, Any]) -> SlotPosition | None:
    found = bookmarks.get(SLOT)
    return None if found is None else msgspec.convert(found, SlotPosition)


def _copied_table(bookmark: Any) -> CopiedTable | None:
    return None if bookmark is None else msgspec.convert(bookmark, CopiedTable)


def _must_copy(table: FollowedTable, copied: CopiedTable | None) -> bool:
    if copied is None or copied.stale:
        return True
    before = (copied.oid, copied.key, copied.number, copied.member)
    return before != (table.oid, table.key, table.number, table.member)


def find_loss(session: Session, known: SlotPosition | None, found: SlotOfServer | None) -> str:
    """Return why changes since the last scan are lost; "": they are not."""
    if known is None:
        return ""
    what = f"{session.where}: replication slot {known.slot}"
    if session.system() != known.system:
        return f"{what} was read up to {lsn_text(known.position)} on another server or database"
    if found is None:
        return f"{what} was dropped; it was read up to {lsn_text(known.position)}"
    if found.lost:
        return f"{what} is lost: {found.lost}; it was read up to {lsn_text(known.position)}"
    if found.position > known.position:
        return (
            f"{what} was made again, or somebody else reads it: it begins at {lsn_text(found.position)}, and was "
            f"read up to {lsn_text(known.position)}"
        )
    if (end := session.flushed()) < known.position:
        return (
            f"{what} was read up to {lsn_text(known.position)}, and the server's log ends at {lsn_text(end)}: the "
            "server was put back to an older copy"
        )
    return ""


# Changes from the slot.


class PendingRow(NamedTuple):
    """Row that is to be read again, since a change of it does not have all values."""

    rows: RowsOfTable
    key: tuple[str, ...]


class ChangeReader:
    """Reads the changes of a range.

    Attributes:
        stale: table -> why it must be copied again; its changes after that are not read.
    """

    def __init__(self, session: Session, changes: ChangeRange) -> None:
        self._session = session
        self._changes = changes
        self._copied = {table.oid: copied for table, copied in changes.tables}
        self._rows = {table.oid: RowsOfTable(table, session.loaders) for table, _ in changes.tables}
        self._commit = 0
        self._written: set[str] = set()
        self._pending: list[Listed | Document | PendingRow] = []
        self._pending_bytes = 0
        self._must_read = False
        self.stale: dict[int, tuple[tuple[FollowedTable, CopiedTable], str]] = {}

    def read(self) -> Iterator[Listed | Document]:
        """Yield the changes in the order of their commits."""
        for data in self._session.peek(self._changes.slot, self._changes.publication, self._changes.end):
            match decode(data):
                case TransactionBegin(commit_lsn):
                    self._commit = commit_lsn
                    self._written.clear()
                case TableShape() as relation:
                    self._use(relation)
                case Truncation(relations):
                    for oid in relations:
                        if self._counts(oid):
                            self._mark_stale(oid, "was truncated")
                case RowChange() as change if self._counts(change.relation):
                    self._pending += self._entries(change)
                    self._pending_bytes += len(data)
            if self._pending and (
                not self._must_read or len(self._pending) >= FETCHED or self._pending_bytes >= _PENDING_BYTES
            ):
                yield from self._flush()
        yield from self._flush()

    def _counts(self, oid: int) -> bool:
        """Return whether a change of this table belongs to the range and is not in its copy."""
        copied = self._copied.get(oid)
        if copied is None or oid in self.stale:
            return False
        return max(self._changes.start, copied.position) <= self._commit < self._changes.end

    def _use(self, relation: TableShape) -> None:
        if (rows := self._rows.get(relation.oid)) is None or relation.oid in self.stale:
            return
        names = {column.name for column in relation.columns}
        identity = {column.name for column in relation.columns if column.is_identity}
        key = set(rows.table.key)
        if (relation.identity == "f" and key <= names) or key == identity:
            rows.set_columns([(column.name, column.type_oid) for column in relation.columns])
        elif self._counts(relation.oid):
            self._mark_stale(relation.oid, "has another key")

    def _mark_stale(self, oid: int, why: str) -> None:
        self.stale[oid] = ((self._rows[oid].table, self._copied[oid]), why)

    def _entries(self, change: RowChange) -> Iterator[Listed | Document | PendingRow]:
        rows = self._rows[change.relation]
        old, new = change.old, change.new
        if new is None:
            assert old is not None
            yield from self._without(rows, old)
            return
        if old is not None and change.old_is_whole:
            new = tuple(before if value is OMITTED else value for value, before in zip(new, old, strict=True))
        id = rows.id(new)
        if old is not None and rows.id(old) != id:
            yield from self._without(rows, old)
        if rows.table.is_deferred:
            self._written.add(id)
        if OMITTED in new:
            yield self._pending_row(rows, new)
        else:
            yield rows.document(new)

    def _without(self, rows: RowsOfTable, old: Sequence[Value]) -> Iterator[Document | PendingRow]:
        """Yield the delete of a row that has left its key. If another row may have taken that key before, in the same
        transaction, it is read again."""
        id = rows.id(old)
        yield Document.deleted(id)
        if id in self._written:
            yield self._pending_row(rows, old)

    def _pending_row(self, rows: RowsOfTable, values: Sequence[Value]) -> PendingRow:
        self._must_read = True
        return PendingRow(rows, tuple(text_of(values[at]) for at in rows.key))

    def _flush(self) -> Iterator[Listed | Document]:
        """Yield the entries that were held back, with the rows as they are now where values were missing.

        A row that is not there any more was deleted later on: that change is still to come.
        """
        entries, self._pending, self._pending_bytes, self._must_read = self._pending, [], 0, False
        wanted: dict[str, dict[tuple[str, ...], Listed | Document]] = {}
        tables = {e.rows.table.name: e.rows.table for e in entries if isinstance(e, PendingRow)}
        for name, table in tables.items():
            keys = [e.key for e in entries if isinstance(e, PendingRow) and e.rows.table.name == name]
            wanted[name] = self._session.rows_by_key(table, dict.fromkeys(keys))
        for entry in entries:
            if not isinstance(entry, PendingRow):
                yield entry
            elif (found := wanted[entry.rows.table.name].get(entry.key)) is not None:
                yield found
