"""How many deliveries and documents have come to what: counted by hashes, a part of the families at a time.

Whatever the size of the tables this takes the same memory, some 100 MB. Two deliveries, or two documents, whose hashes
of 64 bits are the same are counted as one: among ten million that happens in one state of 300 000.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import duckdb
import msgspec
import numpy as np
import pyarrow as pa

from ferryman import crash, limits
from ferryman.records.families import had_sql
from ferryman.records.rows import ORDINAL_COMMAND, TERMINAL, Status
from ferryman.state.maintenance import DOCUMENT, HASHES, Columns, last_rows, rows_by_document, to_columns
from ferryman.state.state import COUNTED, State
from ferryman.storage import files
from ferryman.storage import files as seals
from ferryman.storage.query import HashFilter, PartitionFiles, look_up, partition_of, partitions_for, quote_list, stream

_STATUSES: Final = list(Status)
_ENDED: Final = [_STATUSES.index(each) for each in TERMINAL]
_BEGUN_AGAIN: Final = [_STATUSES.index(Status.RESTART), _STATUSES.index(Status.FORCE)]
_DROPPED: Final = _STATUSES.index(Status.DROPPED)
_INDEXED: Final = _STATUSES.index(Status.INDEXED)

_FAMILY: Final = "source || chr(0) || origin"
_HASH: Final = "coalesce(try_cast('0x' || left(delivery_hash, 16) AS UBIGINT), md5_number_lower(delivery_hash))"
"""Half of a delivery hash, which is hexadecimal; to hash it again would take six times as long."""
_EVENTS: Final = pa.schema(
    [
        ("o", pa.uint64()),
        ("h", pa.uint64()),
        ("revision", pa.int64()),
        ("at", pa.int64()),
        ("status", pa.int8()),
        ("deletes", pa.bool_()),
        ("destination", pa.int16()),
        ("log", pa.int16()),
    ]
)
"""``o``: the hash of the family, ``h`` of the delivery; ``at`` orders the events of a delivery; ``log``: the number of
its source among the logs, else -1."""

_WAITING: Final = pa.schema([*_EVENTS, ("waits", pa.bool_())])

_BITS: Final = 60
"""Destinations that fit into one column of flags."""


class Counts(NamedTuple):
    """What the tables come to."""

    ends: Counter[tuple[str, str, str]]
    """(destination, status, operation) -> deliveries of current revisions."""
    older: dict[str, int]
    """Destination -> rows still to be sent although their document has a newer revision."""
    documents: dict[str, tuple[int, int]]
    """Source -> documents that are there, and that were deleted."""
    pending_in_steps: int
    """Deliveries that failed steps have not made yet."""
    two_ends: int
    """Deliveries that ended more often than they were begun (an operator command begins one again)."""
    missing: int
    """Current documents of which no delivery to a destination is known that they can reach."""
    entries: Counter[tuple[str, str]]
    """(log, destination) -> entries of which a delivery is known."""


class Tables(NamedTuple):
    """What is counted: relations ``ledger``, ``waiting`` and files of ``documents``.

    Attributes:
        rows: of the largest of them.
        folder: for what does not fit into memory.
        waits: has ``waiting`` rows?
    """

    db: duckdb.DuckDBPyConnection
    documents: Sequence[Path]
    destinations: Collection[str]
    rows: int
    folder: Path
    waits: bool = True


def count(
    tables: Tables, reached: Mapping[str, Collection[str]], among: Collection[str] = (), logs: Sequence[str] = ()
) -> Counts:
    """Count everything.

    Args:
        reached: source -> destinations of which each of its documents must have a delivery.
        among: only families that a delivery of such a status was in, and those that wait for failed steps; nothing
            that waits in the outbox.
        logs: sources of which nothing is remembered but deliveries.
    """
    return _Counting(tables, reached, among, logs).all()


class _Counting:
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
        self._parts = partitions_for(tables.rows, 0, limits.COMPARED_ROWS, 1)
        self._marked: HashFilter | None = None
        self._ends: Counter[tuple[int, int, bool]] = Counter()
        self._older: Counter[int] = Counter()
        self._here: Counter[int] = Counter()
        self._deleted: Counter[int] = Counter()
        self._pending = self._two_ends = self._missing = 0

    def all(self) -> Counts:
        self._sources = [
            s for (s,) in self._db.execute("SELECT DISTINCT source FROM documents ORDER BY ALL").fetchall()
        ]
        if self._among:
            self._mark()
        events = self._spread("ledger", _EVENTS, self._events())
        waiting = self._spread("waiting", _WAITING, self._waiting() if self._tables.waits and not self._among else "")
        deleted, flags = self._deleted_query()
        gone = self._spread("deleted", flags, "" if self._among else deleted)
        for part, documents in enumerate(self._documents()):
            read = [to_columns(spread.read(part)) for spread in (events, waiting, gone)]
            self._count(documents, read[0], read[1], last_rows(read[2]))
        names = self._destinations
        return Counts(
            Counter(
                {
                    (names[d], _STATUSES[s].value, "delete" if deletes else "upsert"): n
                    for (d, s, deletes), n in self._ends.items()
                }
            ),
            {names[d]: number for d, number in self._older.items()},
            {name: (self._here[i], self._deleted[i]) for i, name in enumerate(self._sources)},
            self._pending,
            self._two_ends,
            self._missing,
            Counter({(self._logs[n // len(names)], names[n % len(names)]): k for n, k in self._entries.items()}),
        )

    # -- what is read ------------------------------------------------------------------------------

    def _mark(self) -> None:
        self._marked = HashFilter()
        bad = f"SELECT {_FAMILY} FROM ledger WHERE destination <> '' AND status IN {quote_list(self._among)}"
        for batch in stream(self._db, bad, HASHES):
            self._marked.add(batch.column(0).to_numpy())

    def _spread(self, name: str, schema: pa.Schema, query: str) -> PartitionFiles:
        spread = PartitionFiles(self._tables.folder, name, schema, self._parts)
        for batch in stream(self._db, query, schema) if query else ():
            if self._marked is not None:
                batch = batch.filter(pa.array(self._marked.contains(batch.column(0).to_numpy())))
            spread.add(batch, partition_of(batch.column(0).to_numpy(), self._parts))
        spread.close()
        return spread

    def _events(self) -> str:
        status = _position(_STATUSES, "status")
        return (
            f"SELECT {_FAMILY}, {_HASH}, revision, wave * 4 + ordinal, {status}, operation = 'delete', "
            f"{_position(self._destinations, 'destination')}, {self._log_number()} "
            "FROM ledger WHERE destination <> ''"
        )

    def _waiting(self) -> str:
        return (
            f"SELECT {_FAMILY}, {_HASH}, revision, 0, {_STATUSES.index(Status.BATCHED)}, "
            f"operation = 'delete', {_position(self._destinations, 'destination')}, {self._log_number()}, "
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
        rows = rows_by_document(self._db, tables.documents, tables.rows, tables.folder, more, waits, self._marked)
        return map(last_rows, rows)

    def _deleted_query(self) -> tuple[str, pa.Schema]:
        """Of documents that were deleted, which destinations had them, as bits. Names need no escape in JSON."""
        flags = []
        for first in range(0, len(self._destinations), _BITS):
            bits = [
                f"CASE WHEN {had_sql(name)} THEN {1 << bit} ELSE 0 END"
                for bit, name in enumerate(self._destinations[first : first + _BITS])
            ]
            flags.append(f"{' + '.join(bits)}::BIGINT")
        schema = [("h", pa.uint64()), ("wave", pa.int64()), *((f"f{i}", pa.int64()) for i in range(len(flags)))]
        columns = ", ".join([DOCUMENT, "wave", *flags])
        return f"SELECT {columns} FROM documents WHERE operation = 'delete'", pa.schema(schema)

    # -- a part ------------------------------------------------------------------------------------

    def _count(self, documents: Columns, events: Columns, waiting: Columns, deleted: Columns) -> None:
        self._pending += int(documents["pending"].sum())
        for live, counts in ((True, self._here), (False, self._deleted)):
            counts.update(_tally(documents["source"][documents["live"] == live]))
        ends = self._ends_of(events)
        _, known = _found(ends["h"], waiting["h"])
        unsent = {name: waiting[name][~known] for name in ends}
        ends = {name: np.concatenate([ends[name], unsent[name]]) for name in ends}
        at, there = _found(documents["h"], ends["o"])
        current = ~there
        current[there] = ends["revision"][there] >= documents["revision"][at[there]]
        self._count_ends({name: column[current] for name, column in ends.items()})
        if self._logs:
            self._count_entries({name: column[current & (ends["log"] >= 0)] for name, column in ends.items()})
        self._count_older(documents, events, waiting)
        if not self._among:
            self._count_missing(documents, ends["destination"][current & there], at[current & there], deleted)

    def _ends_of(self, events: Columns) -> Columns:
        """Each delivery's last event."""
        at = events["at"]
        in_order = bool((at[1:] >= at[:-1]).all())
        order = np.argsort(events["h"], kind="stable") if in_order else np.lexsort((at, events["h"]))
        hashes = events["h"][order]
        last = np.append(hashes[1:] != hashes[:-1], True)[: len(hashes)]
        if len(hashes) > (deliveries := int(last.sum())):
            status = events["status"][order]
            starts = np.append(0, np.flatnonzero(last)[: deliveries - 1] + 1)
            given_up = (status == _DROPPED) & (at[order] % 4 == ORDINAL_COMMAND)  # by an operator, after it had ended
            ended = np.add.reduceat((np.isin(status, _ENDED) & ~given_up).astype(np.int64), starts)
            begun = np.add.reduceat(np.isin(status, _BEGUN_AGAIN).astype(np.int64), starts)
            self._two_ends += int((ended > 1 + begun).sum())
        return {name: column[order[last]] for name, column in events.items()}

    def _count_ends(self, ends: Columns) -> None:
        codes = (ends["destination"].astype(np.int64) * len(_STATUSES) + ends["status"]) * 2 + ends["deletes"]
        for code, number in _tally(codes).items():
            rest, deletes = divmod(code, 2)
            destination, status = divmod(rest, len(_STATUSES))
            self._ends[destination, status, bool(deletes)] += number

    def _count_entries(self, ends: Columns) -> None:
        """Each entry once, at each destination, however often it was processed again by an operator."""
        where = ends["log"].astype(np.int64) * len(self._destinations) + ends["destination"]
        order = np.lexsort((ends["revision"], ends["o"], where))
        columns = [column[order] for column in (where, ends["o"], ends["revision"])]
        new = np.ones(len(order), bool)
        new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
        self._entries.update(_tally(columns[0][new]))

    def _count_older(self, documents: Columns, events: Columns, waiting: Columns) -> None:
        at, there = _found(documents["h"], waiting["o"])
        older = there & waiting["waits"]
        older[there] &= waiting["revision"][there] < documents["revision"][at[there]]
        if older.any():
            older &= ~np.isin(waiting["h"], events["h"][events["status"] == _INDEXED])
        self._older.update(_tally(waiting["destination"][older]))

    def _count_missing(self, documents: Columns, destinations: Any, at: Any, deleted: Columns) -> None:
        """A deleted document has deliveries only where its family was given."""
        where, there = _found(deleted["h"], documents["h"])
        for source, names in self._reached.items():
            if source not in self._sources:
                continue
            mine = documents["source"] == self._sources.index(source)
            for name in names:
                number = self._destinations.index(name)
                wanted = documents["live"].copy()
                flags = deleted[f"f{number // _BITS}"][where[there]] >> (number % _BITS)
                wanted[there] |= ~documents["live"][there] & ((flags & 1) != 0)
                wanted &= mine
                wanted[at[destinations == number]] = False
                self._missing += int(wanted.sum())


def _found(hashes: Any, wanted: Any) -> tuple[Any, Any]:
    """The same as ``look_up``, of hashes in any order."""
    order = np.argsort(wanted)
    at, there = np.empty(len(wanted), np.int64), np.empty(len(wanted), bool)
    at[order], there[order] = look_up(hashes, wanted[order])
    return at, there


def _tally(codes: Any) -> dict[int, int]:
    values, counts = np.unique(codes, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _position(names: Sequence[str], column: str) -> str:
    """A name's number, as SQL."""
    return f"list_position({quote_list(names)}, {column}) - 1"


# What ``status`` says of a large state, kept in a file beside its tables: counting ten million takes a minute.
#
# The file says of which wave it is. A kill, or a wave after it, leaves it behind: then everything is counted again.
# Only questions depend on it, and ``fsck`` counts again and compares.

_FORMAT: Final = 1

WAVES: Final = 20
"""Of so many last waves it is kept what they did."""


class Counted(msgspec.Struct):
    """What everything has come to.

    Attributes:
        of: wave and number of events; see ``moment``.
        reached: source -> destinations, by which it was counted.
        status: see ``account.status``.
        waves: see ``account.waves``.
    """

    of: tuple[int, int, int]
    reached: dict[str, list[str]]
    status: dict[str, Any]
    waves: list[dict[str, Any]]


def moment(state: State) -> tuple[int, int, int]:
    """Tells the contents of a loaded state's tables from all earlier ones: (format of the file, wave, events)."""
    return _FORMAT, state.wave, sum(f.rows for f in state.ledger.files.values())


def kept(state: State, reached: Mapping[str, Any] | None = None) -> Counted | None:
    """What was kept, if it is of this very moment of a loaded state; None: it must be counted.

    Args:
        reached: only if it was counted by this; None: by whatever.

    Raises:
        StateDamaged: the file is not what was written.
    """
    path = state.root / COUNTED
    if not files.exists(path) or state.settled < state.wave:
        return None
    try:
        found = msgspec.convert(seals.unseal(path), Counted)
    except msgspec.ValidationError:  # of another version of Ferryman
        return None
    if found.of != moment(state) or (reached is not None and found.reached != _comparable(reached)):
        return None
    return found


def keep(state: State, reached: Mapping[str, Any], status: dict[str, Any], waves: list[dict[str, Any]]) -> None:
    """Keep what was counted, durably."""
    found = Counted(moment(state), _comparable(reached), status, waves)
    files.replace(state.root / COUNTED, seals.seal(found))
    crash.point("counted.kept")


def _comparable(reached: Mapping[str, Any]) -> dict[str, list[str]]:
    """Source -> destinations, as it is kept."""
    return {source: sorted(names) for source, names in reached.items()}
