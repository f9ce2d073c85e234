"""Count deliveries by status, and documents by source: by 64-bit hashes, one partition of the families at a time.

Memory is some 100 MB whatever the size of the tables. Two deliveries, or two documents, with the same hash are counted
as one: among ten million that happens in one state of 300 000.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import duckdb
import msgspec
import numpy as np
import pyarrow as pa

from ferryman import crash, limits
from ferryman.account.snapshot import (
    EVENTS,
    NO_EVENT,
    ROWS,
    EndedRow,
    Snapshot,
    SnapshotWriter,
    WaveCounts,
    check_families,
    concatenate,
    family_hash_sql,
    marker_rows,
)
from ferryman.errors import StateDamaged
from ferryman.records.families import was_published_sql
from ferryman.records.rows import EVENT_ORDER, NOT_READ, ORDINAL_COMMAND, TERMINAL, Status
from ferryman.state.maintenance import DOCUMENT, HASHES, Columns, last_rows, rows_by_document, to_columns
from ferryman.state.state import COUNTED, State
from ferryman.storage import files
from ferryman.storage.files import StatePath
from ferryman.storage.query import HashFilter, PartitionFiles, look_up, partition_of, partitions_for, quote_list, stream

_STATUSES: Final = list(Status)
_ENDED: Final = [_STATUSES.index(each) for each in TERMINAL]
_BEGUN_AGAIN: Final = [_STATUSES.index(Status.RESTART), _STATUSES.index(Status.FORCE)]
_DROPPED: Final = _STATUSES.index(Status.DROPPED)
_INDEXED: Final = _STATUSES.index(Status.INDEXED)

_FAMILY: Final = "source || chr(0) || origin"
_HASH: Final = "coalesce(try_cast('0x' || left(delivery_hash, 16) AS UBIGINT), md5_number_lower(delivery_hash))"
"""SQL for the first 64 bits of a delivery hash, which is hexadecimal text; hashing the text again would take six times
as long."""

_WAITING: Final = pa.schema([*EVENTS, ("waits", pa.bool_())])

_SOURCES: Final = """
    SELECT source, bool_or(operation = 'delete'), bool_or(again IS NOT NULL)
    FROM documents GROUP BY source ORDER BY source
"""
"""SQL for each source, and whether a row of its documents is a delete, or says when a step wants it again."""

_BITS: Final = 60
"""Number of destinations whose flags fit into one column."""


class Counts(NamedTuple):
    """Counts of everything in the tables."""

    ends: Counter[tuple[str, str, str]]
    """(destination, status, operation) -> deliveries of current revisions."""
    older: dict[str, int]
    """Destination -> rows still to be sent although their document has a newer revision."""
    documents: dict[str, tuple[int, int]]
    """Source -> (current documents, deleted documents)."""
    pending_in_steps: int
    """Deliveries that failed steps still have to produce."""
    ended_twice: int
    """Deliveries that ended more often than they were begun (an operator command begins one again)."""
    missing: int
    """Pairs of a current document and a destination it must reach, without a delivery."""
    entries: Counter[tuple[str, str]]
    """(log, destination) -> entries with a delivery."""
    again: bool
    """Whether a row of a document says when a step wants it again."""
    unread: bool
    """Whether something was not read of a delivery's document; False if there is neither snapshot nor writer."""
    destinations: list[str]
    """The destinations that were counted."""


class Tables(NamedTuple):
    """The tables to count: relations ``ledger`` and ``waiting``, and files of ``documents``.

    Attributes:
        rows: number of rows of the largest table.
        folder: for data that does not fit into memory.
        waits: whether ``waiting`` has rows.
        root: the state's folder.
        snapshot: has the events that ``ledger`` lacks; None: it has all.
        writer: of the next snapshot; None: none is due.
    """

    db: duckdb.DuckDBPyConnection
    documents: Sequence[Path]
    destinations: Collection[str]
    rows: int
    folder: Path
    waits: bool = True
    root: StatePath = Path()
    snapshot: Snapshot | None = None
    writer: SnapshotWriter | None = None


def count(
    tables: Tables, reached: Mapping[str, Collection[str]], among: Collection[str] = (), logs: Sequence[str] = ()
) -> Counts:
    """Count deliveries and documents.

    Args:
        reached: source -> destinations that each of its documents must have a delivery for.
        among: count only families with a delivery that ever had one of these statuses, and those that wait for failed
            steps; nothing that waits in the outbox.
        logs: sources that are logs: they have no rows in ``documents``.

    Raises:
        SnapshotUnusable: count without the snapshot.
    """
    return _PartitionedCount(tables, reached, among, logs).run()


class _PartitionedCount:
    """Counts the families one partition at a time, and adds up the results."""

    def __init__(
        self, tables: Tables, reached: Mapping[str, Collection[str]], among: Collection[str], logs: Sequence[str]
    ) -> None:
        self._tables = tables
        self._db = tables.db
        self._reached = reached
        self._among = among
        self._logs = logs
        self._entries: Counter[int] = Counter()
        self._destinations = sorted({*tables.destinations, *(name for names in reached.values() for name in names)})
        self._parts = partitions_for(tables.rows, 0, limits.COUNTED_ROWS, 1)
        self._marked: HashFilter | None = None
        self._ends: Counter[tuple[int, int, bool]] = Counter()
        self._older: Counter[int] = Counter()
        self._live: Counter[int] = Counter()
        self._deleted: Counter[int] = Counter()
        self._pending = self._ended_twice = self._missing = 0
        self._unread = False
        self._salt = ""
        """Text hashed before the names of families; empty: they are hashed for this process only."""
        if tables.snapshot is not None:
            self._salt = tables.snapshot.salt
            self._ended_twice = tables.snapshot.ended_twice
        elif tables.writer is not None:
            self._salt = tables.writer.salt

    def run(self) -> Counts:
        sources = self._db.execute(_SOURCES).fetchall()
        self._sources = [source for source, _, _ in sources]
        deletes, again = (any(row[column] for row in sources) for column in (1, 2))
        if self._among:
            self._mark()
        events = self._spread("ledger", EVENTS, self._events(), self._tables.rows)
        waiting = self._spread("waiting", _WAITING, self._waiting() if self._tables.waits and not self._among else "")
        deleted, flags = self._deleted_query()
        removed = self._spread("deleted", flags, deleted if deletes and not self._among else "", self._tables.rows)
        earlier = self._spread_snapshot()
        for part, documents in enumerate(self._documents()):
            read = [to_columns(spread.read(part)) for spread in (events, waiting, removed, earlier)]
            self._count(documents, read[0], read[1], last_rows(read[2]), read[3])
        names = self._destinations
        return Counts(
            Counter(
                {
                    (names[d], _STATUSES[s].value, "delete" if deletes else "upsert"): n
                    for (d, s, deletes), n in self._ends.items()
                }
            ),
            {names[d]: number for d, number in self._older.items()},
            {name: (self._live[i], self._deleted[i]) for i, name in enumerate(self._sources)},
            self._pending,
            self._ended_twice,
            self._missing,
            Counter({(self._logs[n // len(names)], names[n % len(names)]): k for n, k in self._entries.items()}),
            again,
            self._unread,
            names,
        )

    # --- reading and partitioning ---

    def _mark(self) -> None:
        self._marked = HashFilter()
        unsuccessful = f"SELECT {_FAMILY} FROM ledger WHERE destination <> '' AND status IN {quote_list(self._among)}"
        for batch in stream(self._db, unsuccessful, HASHES):
            self._marked.add(batch.column(0).to_numpy())

    def _spread(self, name: str, schema: pa.Schema, query: str, most_rows: int | None = None) -> PartitionFiles:
        spread = PartitionFiles(self._tables.folder, name, schema, self._parts)
        for batch in stream(self._db, query, schema, most_rows) if query else ():
            if self._marked is not None:
                batch = batch.filter(pa.array(self._marked.contains(batch.column(0).to_numpy())))
            spread.add(batch, partition_of(batch.column(0).to_numpy(), self._parts))
        spread.close()
        return spread

    def _spread_snapshot(self) -> PartitionFiles:
        spread = PartitionFiles(self._tables.folder, "snapshot", ROWS, self._parts)
        if (snapshot := self._tables.snapshot) is not None:
            for batch in snapshot.read(self._tables.root, self._destinations):
                spread.add(batch, partition_of(batch.column(0).to_numpy(), self._parts))
        spread.close()
        return spread

    def _hashed(self, family: str) -> str:
        """Return SQL for a family's hash, or for the text that is hashed when it is read."""
        return family_hash_sql(self._salt, family) if self._salt else family

    def _events(self) -> str:
        status = _position(_STATUSES, "status")
        unread = f"coalesce(starts_with(message, '{NOT_READ}'), false)" if self._salt else "false"
        return (
            f"SELECT {self._hashed(_FAMILY)}, {_HASH}, revision, {EVENT_ORDER}, {status}, operation = 'delete', "
            f"{_position(self._destinations, 'destination')}, {self._log_number()}, {unread} "
            "FROM ledger WHERE destination <> ''"
        )

    def _waiting(self) -> str:
        return (
            f"SELECT {self._hashed(_FAMILY)}, {_HASH}, revision, 0, {_STATUSES.index(Status.BATCHED)}, "
            f"operation = 'delete', {_position(self._destinations, 'destination')}, {self._log_number()}, false, "
            "due IS NOT NULL FROM waiting"
        )

    def _log_number(self) -> str:
        return f"coalesce({_position(self._logs, 'source')}, -1)" if self._logs else "-1"

    def _documents(self) -> Iterator[Columns]:
        more = {
            "source": (_position(self._sources, "source"), pa.int16()),
            "revision": ("revision", pa.int64()),
            "live": ("operation = 'upsert'", pa.bool_()),
            "pending": ("CASE WHEN operation = 'upsert' AND due IS NOT NULL THEN owed ELSE 0 END", pa.int64()),
        }
        tables = self._tables
        waits = "due IS NOT NULL" if self._among else ""
        document = self._hashed(DOCUMENT)
        rows = rows_by_document(
            self._db, tables.documents, tables.rows, tables.folder, more, waits, self._marked, document, self._parts
        )
        return map(last_rows, rows)

    def _deleted_query(self) -> tuple[str, pa.Schema]:
        """Return SQL for deleted documents, with a bit for each destination that had them.

        Names need no escape in JSON.
        """
        flags = []
        for first in range(0, len(self._destinations), _BITS):
            bits = [
                f"CASE WHEN {was_published_sql(name)} THEN {1 << bit} ELSE 0 END"
                for bit, name in enumerate(self._destinations[first : first + _BITS])
            ]
            flags.append(f"{' + '.join(bits)}::BIGINT")
        schema = [("h", pa.uint64()), ("wave", pa.int64()), *((f"f{i}", pa.int64()) for i in range(len(flags)))]
        columns = ", ".join([self._hashed(DOCUMENT), "wave", *flags])
        return f"SELECT {columns} FROM documents WHERE operation = 'delete'", pa.schema(schema)

    # --- counting one partition ---

    def _count(
        self, documents: Columns, events: Columns, waiting: Columns, deleted: Columns, snapshot: Columns
    ) -> None:
        self._pending += int(documents["pending"].sum())
        for live, counts in ((True, self._live), (False, self._deleted)):
            counts.update(_tally(documents["source"][documents["live"] == live]))
        deliveries = self._deliveries(events, snapshot, documents)
        twice = deliveries["ended"] > 1 + deliveries["begun"]
        self._ended_twice += int(twice.sum())
        _, known = _look_up_unsorted(deliveries["h"], waiting["h"])
        unsent = {name: column[~known] for name, column in waiting.items()}
        ends = concatenate(deliveries, unsent, EVENTS.names)
        at, present = _look_up_unsorted(documents["h"], ends["o"])
        current = ~present
        current[present] = ends["revision"][present] >= documents["revision"][at[present]]
        self._count_ends({name: column[current] for name, column in ends.items()})
        self._unread |= bool((ends["unread"] & (ends["status"] == _INDEXED) & current).any())
        if self._logs:
            self._count_entries({name: column[current & (ends["log"] >= 0)] for name, column in ends.items()})
        self._count_older(documents, deliveries, waiting)
        if not self._among:
            self._count_missing(documents, ends["destination"][current & present], at[current & present], deleted)
        if (writer := self._tables.writer) is not None:
            number = len(twice)
            _, waits = look_up(np.sort(waiting["h"]), deliveries["h"])
            stays = current[:number] | waits
            deliveries["listed"] = present[:number]
            rows = {name: column[stays] for name, column in deliveries.items()}
            markers = [
                marker_rows(*_families_without(documents, at[:number][stays & present[:number]]), listed=True),
                marker_rows(unsent["o"], unsent["revision"], unsent["h"], listed=False),
            ]
            for more in markers:
                rows = concatenate(rows, more, ROWS.names)
            writer.add(rows, int((twice & ~stays).sum()))

    def _deliveries(self, events: Columns, snapshot: Columns, documents: Columns) -> Columns:
        """Return each delivery once: its last event, and what is in ``snapshot.ROWS`` of all its events."""
        events = _add_ends(events)
        if not len(snapshot["h"]):
            return _last_events(events)
        is_delivery = snapshot["destination"] != NO_EVENT
        earlier = {name: snapshot[name][is_delivery] for name in events}
        found = _last_events(concatenate(earlier, events, events.keys()))
        _, is_known = look_up(np.sort(snapshot["h"]), found["h"])
        check_families(snapshot, documents, {name: found[name][~is_known] for name in ("o", "revision")})
        return found

    def _count_ends(self, ends: Columns) -> None:
        codes = (ends["destination"].astype(np.int64) * len(_STATUSES) + ends["status"]) * 2 + ends["deletes"]
        for code, number in _tally(codes).items():
            rest, deletes = divmod(code, 2)
            destination, status = divmod(rest, len(_STATUSES))
            self._ends[destination, status, bool(deletes)] += number

    def _count_entries(self, ends: Columns) -> None:
        """Count each entry once at each destination, however often an operator had it processed again."""
        where = ends["log"].astype(np.int64) * len(self._destinations) + ends["destination"]
        order = np.lexsort((ends["revision"], ends["o"], where))
        columns = [column[order] for column in (where, ends["o"], ends["revision"])]
        new = np.ones(len(order), bool)
        new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
        self._entries.update(_tally(columns[0][new]))

    def _count_older(self, documents: Columns, deliveries: Columns, waiting: Columns) -> None:
        at, present = _look_up_unsorted(documents["h"], waiting["o"])
        older = present & waiting["waits"]
        older[present] &= waiting["revision"][present] < documents["revision"][at[present]]
        if older.any():
            older &= ~np.isin(waiting["h"], deliveries["h"][deliveries["indexed"]])
        self._older.update(_tally(waiting["destination"][older]))

    def _count_missing(self, documents: Columns, destinations: Any, at: Any, deleted: Columns) -> None:
        """Count missing deliveries. A deleted document needs a delivery only at destinations to which its family was
        published."""
        where, present = _look_up_unsorted(deleted["h"], documents["h"])
        for source, names in self._reached.items():
            if source not in self._sources:
                continue
            of_source = documents["source"] == self._sources.index(source)
            for name in names:
                number = self._destinations.index(name)
                wanted = documents["live"].copy()
                flags = deleted[f"f{number // _BITS}"][where[present]] >> (number % _BITS)
                wanted[present] |= ~documents["live"][present] & ((flags & 1) != 0)
                wanted &= of_source
                wanted[at[destinations == number]] = False
                self._missing += int(wanted.sum())


def _add_ends(events: Columns) -> Columns:
    """Return the events with the columns ``ended``, ``begun`` and ``indexed``."""
    status = events["status"]
    given_up = (status == _DROPPED) & (events["at"] % 4 == ORDINAL_COMMAND)  # by an operator, after it had ended
    return {
        **events,
        "ended": (np.isin(status, _ENDED) & ~given_up).astype(np.int32),
        "begun": np.isin(status, _BEGUN_AGAIN).astype(np.int32),
        "indexed": status == _INDEXED,
    }


def _last_events(events: Columns) -> Columns:
    """Return the last event of each delivery, with the sums of the columns of ``_add_ends``."""
    at = events["at"]
    in_order = bool((at[1:] >= at[:-1]).all())
    order = np.argsort(events["h"], kind="stable") if in_order else np.lexsort((at, events["h"]))
    hashes = events["h"][order]
    last = np.append(hashes[1:] != hashes[:-1], True)[: len(hashes)]
    found = {name: column[order[last]] for name, column in events.items()}
    if len(hashes) > (deliveries := int(last.sum())):
        starts = np.append(0, np.flatnonzero(last)[: deliveries - 1] + 1)
        for name, add in (("ended", np.add), ("begun", np.add), ("indexed", np.logical_or)):
            found[name] = add.reduceat(events[name][order], starts)
    return found


def _families_without(documents: Columns, positions: Any) -> tuple[Any, Any, Any]:
    """Return hashes and revisions of the documents that are at none of these positions, and 0 for each."""
    without = np.ones(len(documents["h"]), bool)
    without[positions] = False
    return documents["h"][without], documents["revision"][without], np.zeros(int(without.sum()), np.uint64)


def _look_up_unsorted(hashes: Any, wanted: Any) -> tuple[Any, Any]:
    """Call ``look_up`` for hashes in any order."""
    order = np.argsort(wanted)
    at, present = np.empty(len(wanted), np.int64), np.empty(len(wanted), bool)
    at[order], present[order] = look_up(hashes, wanted[order])
    return at, present


def _tally(codes: Any) -> dict[int, int]:
    values, counts = np.unique(codes, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _position(names: Sequence[str], column: str) -> str:
    """Return SQL for the index of a column's value in this list of names."""
    return f"list_position({quote_list(names)}, {column}) - 1"


# --- counts of a large state, cached in a file beside its tables: counting ten million takes a minute ---
#
# The file records the wave it belongs to. After a kill or another wave it is outdated, and everything is counted again.
# Only queries depend on it, and ``fsck`` counts again and compares.

_FORMAT: Final = 1

WAVES: Final = 20
"""Number of last waves whose counts are cached."""


class CachedCounts(msgspec.Struct):
    """Counts as stored in the file.

    Attributes:
        of: the ``version_key`` of the tables that were counted.
        reached: source -> destinations, as they were when it was counted.
        status: the result of ``account.status``.
        waves: the result of ``account.waves``.
        has_not_read: the result of ``account.has_not_read``; None: another version of Ferryman did not count it.
        held: the result of ``account.held_deletes``; None: likewise.
        ended: the result of ``queries.ended``; None: likewise.
        snapshot: of the deliveries that were counted; None: there is none.
    """

    of: tuple[int, int, int]
    reached: dict[str, list[str]]
    status: dict[str, Any]
    waves: list[WaveCounts]
    has_not_read: bool | None = None
    held: int | None = None
    ended: list[EndedRow] | None = None
    snapshot: Snapshot | None = None


def version_key(state: State) -> tuple[int, int, int]:
    """Return a key that changes with the tables of a loaded state: (format of the file, wave, number of events)."""
    return _FORMAT, state.wave, sum(f.rows for f in state.ledger.files.values())


def load_cached(state: State, reached: Mapping[str, Any] | None = None) -> CachedCounts | None:
    """Return the cached counts if they match the tables of a loaded state; None if they must be counted.

    Args:
        reached: return them only if they were counted with this mapping; None: with any.

    Raises:
        StateDamaged: the file is damaged.
    """
    if state.settled < state.wave or (cached := _read_cached(state.root)) is None:
        return None
    if cached.of != version_key(state) or (reached is not None and cached.reached != _comparable(reached)):
        return None
    return cached


def load_snapshot(root: StatePath) -> Snapshot | None:
    """Return the last snapshot, which need not be valid; None: there is none, or its description cannot be read."""
    with contextlib.suppress(StateDamaged):  # ``fsck`` names it
        return None if (cached := _read_cached(root)) is None else cached.snapshot
    return None


def _read_cached(root: StatePath) -> CachedCounts | None:
    try:
        return msgspec.convert(files.unseal(root / COUNTED), CachedCounts) if files.exists(root / COUNTED) else None
    except msgspec.ValidationError:  # written by another version of Ferryman
        return None


def save_cached(
    state: State,
    reached: Mapping[str, Any],
    status: dict[str, Any],
    waves: list[WaveCounts],
    *,
    has_not_read: bool,
    held: int,
    ended: list[EndedRow],
    snapshot: Snapshot | None,
) -> None:
    """Keep what was counted, durably."""
    cached = CachedCounts(version_key(state), _comparable(reached), status, waves, has_not_read, held, ended, snapshot)
    files.replace(state.root / COUNTED, files.seal(cached))
    crash.point("counted.kept")


def _comparable(reached: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the mapping as it is stored: source -> sorted destinations."""
    return {source: sorted(names) for source, names in reached.items()}
