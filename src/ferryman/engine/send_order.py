"""Order of deliveries: the exports of a key are sent in order, and so are several pending rows of one document.

An export that is not delivered holds back the later exports of its key. A chunk has at most one export of each key,
unless the destination itself skips those after one that it refuses (``Destination.holds_keys``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import limits
from ferryman.destinations.base import Outcome
from ferryman.records.rows import DELETE, RowResult, Status, wait_of_file_s, wait_s
from ferryman.state.outbox import first_sequence, has_exports, has_other_rows, lane_numbers, pending_rows
from ferryman.state.state import State
from ferryman.storage.delta import DataFile
from ferryman.storage.parquet import read_part
from ferryman.storage.query import connect
from ferryman.storage.tables import Table

Numbers = np.ndarray[Any, Any]

_Key = tuple[str, int | str]
"""Source, and hash of the key of an export, or id of a document."""


class HeldKeys:
    """Keys with an export that was not delivered, during a lane's pass.

    Args:
        ended_holds: whether a row that is held for review holds back the later exports of its key.
    """

    def __init__(self, *, ended_holds: bool) -> None:
        self.ended_holds = ended_holds
        self._from: dict[_Key, int] = {}
        self._not_due: dict[_Key, int] = {}
        """Revisions of exports that are not due, which every attempt of the pass finds."""

    def __bool__(self) -> bool:
        return bool(self._from)

    def hold(self, key: _Key, revision: int, *, due: bool = True) -> None:
        """Record that this export was not delivered, so that later exports of its key wait."""
        for found in (self._from,) if due else (self._from, self._not_due):
            found[key] = min(revision, found.get(key, revision))

    def waits(self, key: _Key, revision: int) -> bool:
        """Return whether an earlier export of this key was not delivered."""
        return self._from.get(key, revision) < revision

    def waits_in_each_attempt(self, key: _Key, revision: int) -> bool:
        """Return whether an earlier export of this key is not due."""
        return self._not_due.get(key, revision) < revision


class _OrderedRow(NamedTuple):
    """An outbox row with an export, or with a version of a document."""

    key: _Key
    revision: int

    @property
    def is_export(self) -> bool:
        return isinstance(self.key[1], int)


class KeyOrder:
    """Order of the exports of one outbox file, and of versions of documents.

    Args:
        rows: the file's columns ``source``, ``document``, ``key_hash``, ``revision`` and ``due``.
        due: mask of the rows that are due.
        versions: sources that may have several versions of a document in one wave, if the destination does not refuse
            older ones.
    """

    def __init__(self, held: HeldKeys, rows: pa.Table, due: Numbers, versions: Collection[str] = ()) -> None:
        self._held = held
        self.eligible = due
        """Mask of the rows that may be sent: they are due, and wait for none that is not."""
        self._rows: list[_OrderedRow | None] = []
        self._before: Numbers | None = None
        """For each eligible row, the index of its key's previous export, or -1; None: no key has two exports."""
        versions = versions and set(versions).intersection(rows["source"].unique().to_pylist())
        if rows["key_hash"].null_count == rows.num_rows and not versions:
            return
        every = list(_rows(rows, versions))
        self.eligible = self._mark_waiting(every, due, pc.is_valid(rows["due"]).to_numpy())
        self._rows = [row for row, eligible in zip(every, self.eligible, strict=True) if eligible]
        self._before = _previous_places(self._rows)

    @property
    def has_exports(self) -> bool:
        """Return whether some of the eligible rows have an order."""
        return bool(self._rows)

    def chunk_end(self, start: int, end: int) -> int:
        """Return where a chunk that begins at an eligible row must end, so that it has at most one export of each
        key."""
        if self._before is None:
            return end
        again = np.flatnonzero(self._before[start:end] >= start)
        return end if not len(again) else start + int(again[0])

    def waiting(self, start: int, end: int) -> list[int]:
        """Return which eligible rows of a chunk must wait now, as indexes within the chunk."""
        if not self._held or not self._rows:
            return []
        rows = self._rows[start:end]
        return [at for at, row in enumerate(rows) if row is not None and self._held.waits(*row)]

    def note_outcomes(self, start: int, outcomes: Sequence[Outcome] | None) -> None:
        """Record the outcomes of the eligible rows from ``start`` on."""
        if self._rows:
            for at, outcome in enumerate(outcomes or ()):
                row = self._rows[start + at]
                has_ended = outcome.kind in ("ok", "stale") or (
                    outcome.kind == "permanent" and row and not row.is_export
                )
                if not has_ended:
                    self.hold(start + at, start + at + 1)

    def hold(self, start: int, end: int) -> None:
        """Record that these eligible rows were not delivered, or may not have been."""
        for row in self._rows[start:end]:
            if row is not None:
                self._held.hold(*row)

    def note_earlier_results(self, rows: Numbers, noted: Iterable[RowResult]) -> None:
        """Record the results of an earlier attempt of this task; ``rows``: numbers of the eligible rows."""
        for each in noted if self._rows else ():
            at = int(np.searchsorted(rows, each.row))
            if at < len(rows) and rows[at] == each.row and each.status not in (Status.INDEXED, Status.DROPPED):
                self.hold(at, at + 1)

    def _mark_waiting(self, rows: Sequence[_OrderedRow | None], due: Numbers, pending: Numbers) -> Numbers:
        """Return the mask of the rows that may be sent.

        What became of the exports before does not count here: two attempts may see different outcomes, and they must
        have the same chunks, of which each is sent and counted once. ``waiting`` leaves those rows out of their chunk.
        """
        if due.all() and not self._held:
            return due
        eligible = due.copy()
        for at, row in enumerate(rows):
            if row is None:
                continue
            if self._held.waits_in_each_attempt(*row):
                eligible[at] = False
            elif not due[at] and (pending[at] or (self._held.ended_holds and row.is_export)):
                self._held.hold(*row, due=False)
        return eligible


def _rows(rows: pa.Table, versions: Collection[str]) -> Iterator[_OrderedRow | None]:
    columns = (rows[name].to_pylist() for name in ("source", "key_hash", "document", "revision"))
    for source, key, document, revision in zip(*columns, strict=True):
        if key is not None or source in versions:
            yield _OrderedRow((source, document if key is None else key), revision)
        else:
            yield None


def _previous_places(rows: Sequence[_OrderedRow | None]) -> Numbers | None:
    """Return, for each row, the index of the last earlier export of its key, or -1; None: no key has two exports."""
    found = np.full(len(rows), -1)
    last: dict[_Key, tuple[int, int, int]] = {}
    for at, row in enumerate(rows):
        if row is None:
            continue
        revision, place, before = last.get(row.key, (row.revision, -1, -1))
        if revision != row.revision:
            before = place
        found[at] = before
        last[row.key] = (row.revision, at, before)
    return found if (found >= 0).any() else None


# In the driver: which exports of a key are sent next.
#
# The earliest export of a key is its head. Later ones wait for it as long as it is in the outbox: pending, or held for
# review because it failed, was rejected, or is in doubt. Rows of the same export (its children) do not wait for each
# other.


class WaitingRows(NamedTuple):
    """Summary of the exports in an outbox file that wait for earlier ones of their keys."""

    due: int | None
    """When the first pending head is due, µs since 1970; None: the file has no pending head."""
    behind: int
    """Number of pending rows that wait for a row that is held for review."""


class KeyHeads:
    """Heads of the keys with waiting exports, by destination; cached until a destination's files change.

    Args:
        ended_holds: whether a row that is held for review holds back the later exports of its key.
    """

    def __init__(self, state: State, *, ended_holds: bool) -> None:
        self._state = state
        self._ended_holds = ended_holds
        self._known: dict[str, tuple[frozenset[str], dict[str, WaitingRows]]] = {}

    def wait_s(self, file: DataFile, now_us: int) -> float | None:
        """Return the seconds until a row of an outbox file can be sent; None: all its rows wait for others."""
        longest_s = self._state.plan.longest_backoff_s
        if not pending_rows(file):
            return None
        if has_other_rows(file):
            return wait_of_file_s(file, now_us, longest_s)
        due = self._waiting_of(file.partition["destination"])[file.path].due
        return None if due is None else wait_s(due, now_us, longest_s)

    def behind(self, destination: str) -> int:
        """Return how many exports wait for an earlier one of their key that is held for review."""
        return sum(each.behind for each in self._waiting_of(destination).values())

    def _waiting_of(self, destination: str) -> dict[str, WaitingRows]:
        files = [f for f in self._state.outbox.files.values() if f.partition["destination"] == destination]
        files = [f for f in files if has_exports(f)]
        now = frozenset(f.path for f in files)
        if destination not in self._known or self._known[destination][0] != now:
            self._known[destination] = now, self._compute_waiting(files)
        return self._known[destination][1]

    def _compute_waiting(self, files: Sequence[DataFile]) -> dict[str, WaitingRows]:
        if all(pending_rows(f) == f.rows and not int(f.stats["maxValues"]["due"]) for f in files):
            return {f.path: WaitingRows(0, 0) for f in files}  # untried: the first rows of each key are sent
        return waiting_rows(self._state.outbox, files, ended_holds=self._ended_holds)


class _Rows(NamedTuple):
    """Exports in the outbox, one array per column."""

    file: Numbers
    row: Numbers
    source: Numbers
    key: Numbers
    revision: Numbers
    due: Numbers


_ENDED = -1
"""Due time of a row that is held for review."""


def waiting_rows(outbox: Table, files: Sequence[DataFile], *, ended_holds: bool) -> dict[str, WaitingRows]:
    """Return path -> the waiting exports in that file; all files are of one destination.

    Reads ``limits.COMPARED_PENDING_ROWS`` rows at a time.
    """
    shares = max(1, -(-sum(f.rows for f in files) // limits.COMPARED_PENDING_ROWS))
    due: dict[str, int] = {}
    behind = dict.fromkeys((f.path for f in files), 0)
    for share in range(shares):
        rows = _Rows(*map(np.concatenate, zip(*_read_rows(outbox, files, share, shares), strict=True)))
        rows = rows if ended_holds else _Rows(*(column[rows.due != _ENDED] for column in rows))
        for at, first, held in _summarize_heads(rows, len(files)):
            path = files[at].path
            if first is not None:
                due[path] = min(first, due.get(path, first))
            behind[path] += held
    return {f.path: WaitingRows(due.get(f.path), behind[f.path]) for f in files}


def _read_rows(outbox: Table, files: Sequence[DataFile], share: int, shares: int) -> Iterator[_Rows]:
    names: dict[str, int] = {}
    for at, file in enumerate(files):
        rows = read_part(outbox.path(file.path), ["row", "source", "key_hash", "revision", "due"])
        rows = rows.filter(pc.is_valid(rows["key_hash"]))
        mine = rows["key_hash"].to_numpy() % shares == share
        rows = rows.filter(pa.array(mine))
        numbers = [names.setdefault(name, len(names)) for name in rows["source"].to_pylist()]
        dues = pc.fill_null(rows["due"], _ENDED).to_numpy()
        places, keys, revisions = (rows[name].to_numpy() for name in ("row", "key_hash", "revision"))
        yield _Rows(np.full(len(keys), at), places, np.array(numbers, np.int64), keys, revisions, dues)


def rows_behind(outbox: Table, files: Sequence[DataFile]) -> dict[str, list[int]]:
    """Return path -> pending rows of exports that wait for an earlier one of their key which is held for review."""
    if not any(pending_rows(f) < f.rows for f in files):
        return {}
    found: dict[str, list[int]] = {}
    shares = max(1, -(-sum(f.rows for f in files) // limits.COMPARED_PENDING_ROWS))
    for share in range(shares):
        read = zip(*_read_rows(outbox, files, share, shares), strict=True)
        rows, is_head, stuck = _sort_by_key(_Rows(*map(np.concatenate, read)))
        behind = stuck & ~is_head & (rows.due != _ENDED)
        for at, file in enumerate(files):
            found.setdefault(file.path, []).extend(rows.row[behind & (rows.file == at)].tolist())
    return found


def _sort_by_key(rows: _Rows) -> tuple[_Rows, Numbers, Numbers]:
    """Sort the rows by key; return them, a mask of the heads, and a mask of rows whose key has a head that is held for
    review."""
    order = np.lexsort((rows.revision, rows.key, rows.source))
    rows = _Rows(*(column[order] for column in rows))
    begins = np.ones(len(order), bool)
    begins[1:] = (rows.key[1:] != rows.key[:-1]) | (rows.source[1:] != rows.source[:-1])
    group = np.cumsum(begins) - 1
    is_head = rows.revision == rows.revision[begins][group]
    stuck = np.zeros(int(begins.sum()), bool)
    stuck[group[is_head & (rows.due == _ENDED)]] = True
    return rows, is_head, stuck[group]


def _summarize_heads(rows: _Rows, files: int) -> Iterator[tuple[int, int | None, int]]:
    """Yield for each file: its number, when its first head is due (None: never), and how many rows wait behind one held
    for review."""
    rows, is_head, stuck = _sort_by_key(rows)
    pending = rows.due != _ENDED
    for at in range(files):
        mine = rows.file == at
        dues = rows.due[mine & is_head & pending]
        yield at, int(dues.min()) if len(dues) else None, int((mine & ~is_head & pending & stuck).sum())


def group_by_lanes(files: Collection[DataFile]) -> list[list[DataFile]]:
    """Group files that may have exports of the same keys; one sender must take a whole group, oldest file first."""
    groups: list[tuple[set[int], list[DataFile]]] = []
    for file in sorted(files, key=first_sequence):
        lanes, mine = set(lane_numbers(file)), [file]
        for other in [each for each in groups if each[0] & lanes]:
            lanes, mine = lanes | other[0], [*other[1], *mine]
            groups.remove(other)
        groups.append((lanes, sorted(mine, key=first_sequence)))
    return [mine for _, mine in groups]


# In the driver: of several pending rows of one document, the oldest is sent first and the others are held.
#
# A newer revision waits for all rows of older ones. Within a revision (a retry may add rows) a row waits for earlier
# rows of the same route; copies by different routes are unordered. Exports of keyed nodes are ordered differently, see
# ``KeyHeads``.


class SendOrder(NamedTuple):
    """Order of rows in one outbox file; rows are given by ``row``."""

    first: Numbers
    """Rows that others wait for; they are sent now, even if they are not due."""
    held: Numbers
    """Rows that wait for another row of their document."""


class _PendingRows(NamedTuple):
    """Pending rows, one array per column. Documents and routes are hashes; a collision only delays a row by one
    pass."""

    file: Numbers
    row: Numbers
    document: Numbers
    route: Numbers
    revision: Numbers
    sequence: Numbers

    def take(self, at: Numbers) -> _PendingRows:
        return _PendingRows(*(column[at] for column in self))


def send_orders(
    files: Mapping[int, Path], pending: int, spill: Path, share_rows: int = limits.COMPARED_PENDING_ROWS
) -> dict[int, SendOrder]:
    """Return key of an outbox file -> the order of those of its rows whose document has several pending rows.

    Args:
        files: key (first sequence) -> file, all of one destination.
        pending: approximate number of their pending rows.
        spill: a folder of this process, see ``query.connect``.
        share_rows: rows that are compared at once; more are split into shares by a hash of their document.
    """
    shares = max(1, -(-pending // share_rows))
    orders_by_key: dict[int, list[SendOrder]] = {}
    with connect(spill) as db:
        for share in range(shares):
            documents = _of_several_rows(_pending_documents(db, files, share, shares))
            if len(documents):
                columns = zip(*_read_pending(db, files, documents), strict=True)
                for key, order in _compare(_PendingRows(*map(np.concatenate, columns))):
                    orders_by_key.setdefault(key, []).append(order)
    return {key: SendOrder(*map(np.concatenate, zip(*orders, strict=True))) for key, orders in orders_by_key.items()}


def _pending_documents(
    db: duckdb.DuckDBPyConnection, files: Mapping[int, Path], share: int, shares: int
) -> Iterator[Numbers]:
    """Yield, for each file, the hashes of its pending rows' documents that are in this share."""
    for path in files.values():
        db.register("rows", read_part(path, ["source", "document", "due", "key_hash"]))
        found = db.execute(f"""
            SELECT hash(source, document) AS document FROM rows
            WHERE due IS NOT NULL AND key_hash IS NULL AND hash(source, document) % {shares} = {share}
        """)
        yield np.asarray(found.fetchnumpy()["document"])


def _of_several_rows(documents: Iterable[Numbers]) -> Numbers:
    """Return the hashes that are there more than once, sorted: mostly none, so that no more of any row is read."""
    hashes = np.concatenate([np.zeros(0, np.uint64), *documents])
    hashes.sort()
    return np.unique(hashes[1:][hashes[1:] == hashes[:-1]])


def _read_pending(
    db: duckdb.DuckDBPyConnection, files: Mapping[int, Path], documents: Numbers
) -> Iterator[_PendingRows]:
    """Yield, for each file, its pending rows of these documents, sorted hashes."""
    for key, path in files.items():
        table = read_part(path, ["row", "source", "document", "route", "revision", "due", "key_hash"])
        db.register("rows", table.set_column(0, "row", table["row"].cast(pa.int64())))
        columns = db.execute("""
            SELECT "row", hash(source, document) AS document, hash(route) AS route, revision FROM rows
            WHERE due IS NOT NULL AND key_hash IS NULL
        """).fetchnumpy()
        row, document, route, revision = (np.asarray(columns[c]) for c in ("row", "document", "route", "revision"))
        rows = _PendingRows(np.full(len(row), key), row, document, route, revision, row + key)
        at = np.searchsorted(documents, document)
        yield rows.take(np.flatnonzero(documents[np.minimum(at, len(documents) - 1)] == document))


def _compare(rows: _PendingRows) -> Iterator[tuple[int, SendOrder]]:
    rows = rows.take(np.lexsort((rows.sequence, rows.revision, rows.document)))
    document = _number_groups(rows.document)
    # sorted by document and revision: the first row of each document has its oldest revision
    oldest = rows.revision[np.searchsorted(document, document)]
    held = rows.revision > oldest
    oldest_rows = np.flatnonzero(~held)
    oldest_rows = oldest_rows[np.lexsort((rows.sequence[oldest_rows], rows.route[oldest_rows], document[oldest_rows]))]
    route_group = _number_groups(document[oldest_rows], rows.route[oldest_rows])
    held[oldest_rows[1:][route_group[1:] == route_group[:-1]]] = True
    contested = np.zeros(len(document), bool)
    contested[document[held]] = True  # indexed by the number of the group
    first = contested[document] & ~held
    for key in np.unique(rows.file[first | held]):
        of_file = rows.file == key
        yield int(key), SendOrder(rows.row[of_file & first], rows.row[of_file & held])


def _number_groups(*sorted_columns: Numbers) -> Numbers:
    """Number groups of adjacent rows that are equal in all columns, from 0; return each row's group number."""
    changes = np.zeros(len(sorted_columns[0]), bool)
    for column in sorted_columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.cumsum(changes)


# A family's deletes wait for its upserts: what a new version no longer makes is deleted once all that it makes at this
# destination has been delivered. If an upsert has failed for good, they are held with it; otherwise the documents of
# both versions could be missing.

_Family = tuple[str, str, int]
"""Source, origin and revision."""


class UndeliveredUpsert(NamedTuple):
    """Upsert for which deletes of its family wait.

    Attributes:
        due: when it is tried again, µs since 1970; None: it is held for review.
        tried: whether it has an outcome; False: it waits for its destination or for an earlier version, or another
            worker has claimed it.
    """

    document: str
    due: int | None
    tried: bool = True


class UndeliveredFamilies:
    """Families with an upsert that was not delivered, in the files of a lane's pass."""

    def __init__(self) -> None:
        self._upserts: dict[_Family, UndeliveredUpsert] = {}

    def __bool__(self) -> bool:
        return bool(self._upserts)

    def add(self, family: _Family, upsert: UndeliveredUpsert) -> None:
        """Record an upsert that was not delivered. Of several, one that is held for review counts, else the latest."""
        before = self._upserts.get(family)
        if before is None or (before.due is not None and (upsert.due is None or upsert.due > before.due)):
            self._upserts[family] = upsert

    def get(self, family: _Family, document: str) -> UndeliveredUpsert | None:
        """Return an undelivered upsert of another document of the family; None: there is none."""
        upsert = self._upserts.get(family)
        return None if upsert is None or upsert.document == document else upsert


class FamilyOrder:
    """Order of the deletes and upserts of the families in one outbox file.

    Args:
        rows: the file's columns ``source``, ``origin``, ``revision``, ``document``, ``operation``, ``key_hash``,
            ``row`` and ``due``.
        due: mask of the rows that are sent in this pass.
        eligible: mask of those that are sent now.
        elsewhere: row -> an upsert of its family in another file.
    """

    def __init__(
        self,
        undelivered: UndeliveredFamilies,
        rows: pa.Table,
        due: Numbers,
        eligible: Numbers,
        elsewhere: Mapping[int, UndeliveredUpsert],
    ) -> None:
        self._undelivered = undelivered
        self._rows: list[tuple[_Family, str] | None] | None = None
        """Family and document of each eligible row that belongs to a family with a delete; None: there is none."""
        self._is_delete: list[bool] = []
        self._after: list[int] = []
        """For each eligible delete, the index of its family's last eligible upsert before it, or -1."""
        self._elsewhere: dict[int, UndeliveredUpsert] = {}
        """Index of an eligible delete -> an upsert of its family in another file."""
        is_delete = mask_of_deletes(rows)
        if is_delete is None:
            return
        families = _families(rows)
        concerned = {family for (family, _), d in zip(families, is_delete, strict=True) if d}
        named = [each if each[0] in concerned else None for each in families]
        dues = rows["due"].to_pylist()
        for at, each in enumerate(named):
            if each is not None and not is_delete[at] and not due[at]:
                undelivered.add(each[0], UndeliveredUpsert(each[1], dues[at], tried=dues[at] != 0))
        indexes = np.flatnonzero(eligible).tolist()
        numbers = rows["row"].to_pylist()
        self._rows = [named[at] for at in indexes]
        self._is_delete = [bool(is_delete[at]) for at in indexes]
        self._elsewhere = {n: elsewhere[numbers[at]] for n, at in enumerate(indexes) if numbers[at] in elsewhere}
        last: dict[_Family, int] = {}
        for n, (each, deletes_it) in enumerate(zip(self._rows, self._is_delete, strict=True)):
            self._after.append(last.get(each[0], -1) if each is not None and deletes_it else -1)
            if each is not None and not deletes_it:
                last[each[0]] = n

    def chunk_end(self, start: int, end: int) -> int:
        """Return where a chunk must end, so that no delete is in it together with an upsert of its family."""
        return next((n for n in range(start, min(end, len(self._after))) if self._after[n] >= start), end)

    def waiting(self, start: int, end: int) -> dict[int, UndeliveredUpsert]:
        """Return which eligible rows of a chunk wait for an upsert, as indexes within the chunk, with that upsert."""
        if self._rows is None or not (self._undelivered or self._elsewhere):
            return {}
        found = {}
        for n in range(start, end):
            each = self._rows[n]
            if each is not None and self._is_delete[n]:
                upsert = self._elsewhere.get(n) or self._undelivered.get(*each)
                if upsert is not None:
                    found[n - start] = upsert
        return found


def mask_of_deletes(rows: pa.Table) -> Numbers | None:
    """Return a mask of the rows that are deletes; None: there is none."""
    deletes = pc.equal(rows["operation"], DELETE)
    return np.array(deletes.to_pylist(), bool) if pc.any(deletes).as_py() else None


def _families(rows: pa.Table) -> list[tuple[_Family, str]]:
    """Return the family and the document of each row; an export of a keyed node is a family of its own."""
    names = ("source", "origin", "revision", "document", "key_hash", "row")
    return [
        ((source, origin, revision), document) if key is None else ((source, origin, -1 - row), document)
        for source, origin, revision, document, key, row in zip(*(rows[n].to_pylist() for n in names), strict=True)
    ]


_FAMILY_COLUMNS: Final = ["source", "origin", "revision", "document", "operation", "key_hash", "row", "due"]


def waits_elsewhere(
    outbox: Table, pending: Sequence[DataFile], every: Sequence[DataFile]
) -> dict[str, dict[int, UndeliveredUpsert]]:
    """Return path -> row of each pending delete -> an upsert of its family that is still in another outbox file.

    Args:
        pending: files with pending rows of one destination.
        every: all files of that destination.
    """
    deletes: dict[_Family, list[tuple[str, int, str]]] = defaultdict(list)
    for file in pending:
        kinds = read_part(outbox.path(file.path), ["operation", "due"])
        is_pending_delete = pc.and_(pc.equal(kinds["operation"], DELETE), pc.is_valid(kinds["due"]))
        if pc.any(is_pending_delete).as_py():
            rows = read_part(outbox.path(file.path), _FAMILY_COLUMNS).filter(is_pending_delete)
            for (family, document), row in zip(_families(rows), rows["row"].to_pylist(), strict=True):
                deletes[family].append((file.path, row, document))
    found: dict[str, dict[int, UndeliveredUpsert]] = defaultdict(dict)
    origins = pa.array(sorted({origin for _, origin, revision in deletes if revision >= 0}), pa.string())
    for file in every if len(origins) else ():
        rows = read_part(outbox.path(file.path), _FAMILY_COLUMNS)
        rows = rows.filter(pc.and_(pc.is_in(rows["origin"], value_set=origins), pc.equal(rows["operation"], "upsert")))
        for (family, document), due in zip(_families(rows), rows["due"].to_pylist(), strict=True):
            for path, row, deleted in deletes.get(family, ()):
                before = found[path].get(row)
                if path != file.path and document != deleted and (before is None or before.due is not None):
                    found[path][row] = UndeliveredUpsert(document, due)
    return found


class OutboxFile(NamedTuple):
    """An outbox file with pending rows."""

    path: str
    key: int
    """First sequence in the file."""
    order: SendOrder | None = None
    """Order of rows whose document has several pending rows."""
    elsewhere: Mapping[int, UndeliveredUpsert] = {}
    """Row of a delete -> an upsert of its family in another file."""
