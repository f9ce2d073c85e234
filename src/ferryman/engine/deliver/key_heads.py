"""Deliver, in the driver: of the exports of a key that wait for a destination, which go next.

The earliest of a key is its head; the later ones wait for it, as long as it is in the outbox: pending, or held for
review because it failed, was rejected, or is in doubt. Rows of one export (its children) do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import limits
from ferryman.records.due import wait_of_file_s, wait_s
from ferryman.state.outbox import first_sequence, has_exports, has_others, lane_numbers, pending_rows
from ferryman.state.state import State
from ferryman.storage.handles import DataFile
from ferryman.storage.parquet import read_part
from ferryman.storage.tables import Table

Numbers = np.ndarray[Any, Any]


class Waiting(NamedTuple):
    """What the rows of an outbox file wait for."""

    due: int | None
    """When the first head is due, µs since 1970; None: the file has none that is pending."""
    behind: int
    """Pending rows behind one that is held for review."""


class KeyHeads:
    """Of the destinations of one run; what was found of a destination's files is known until they change.

    Args:
        ended_holds: does a row that is held for review hold the later ones of its key?
    """

    def __init__(self, state: State, *, ended_holds: bool) -> None:
        self._state = state
        self._ended_holds = ended_holds
        self._known: dict[str, tuple[frozenset[str], dict[str, Waiting]]] = {}

    def wait_s(self, file: DataFile, now_us: int) -> float | None:
        """Seconds until a row of an outbox file can be sent; None: all wait for others."""
        longest_s = self._state.plan.longest_backoff_s
        if not pending_rows(file):
            return None
        if has_others(file):
            return wait_of_file_s(file, now_us, longest_s)
        due = self._of(file.partition["destination"])[file.path].due
        return None if due is None else wait_s(due, now_us, longest_s)

    def behind(self, destination: str) -> int:
        """Exports that wait for earlier ones of their keys which are held for review."""
        return sum(each.behind for each in self._of(destination).values())

    def _of(self, destination: str) -> dict[str, Waiting]:
        files = [f for f in self._state.outbox.files.values() if f.partition["destination"] == destination]
        files = [f for f in files if has_exports(f)]
        now = frozenset(f.path for f in files)
        if destination not in self._known or self._known[destination][0] != now:
            self._known[destination] = now, self._found(files)
        return self._known[destination][1]

    def _found(self, files: Sequence[DataFile]) -> dict[str, Waiting]:
        if all(pending_rows(f) == f.rows and not int(f.stats["maxValues"]["due"]) for f in files):
            return {f.path: Waiting(0, 0) for f in files}  # nothing of them was tried: the first rows of each key go
        return waiting_rows(self._state.outbox, files, ended_holds=self._ended_holds)


class _Rows(NamedTuple):
    """Exports in the outbox, an array a column."""

    file: Numbers
    row: Numbers
    source: Numbers
    key: Numbers
    revision: Numbers
    due: Numbers


_ENDED = -1
"""Due time of a row that is held for review."""


def waiting_rows(outbox: Table, files: Sequence[DataFile], *, ended_holds: bool) -> dict[str, Waiting]:
    """What the exports in these files of one destination wait for, by path; those of ``CONTEST_ROWS`` at a time."""
    shares = max(1, -(-sum(f.rows for f in files) // limits.CONTEST_ROWS))
    due: dict[str, int] = {}
    behind = dict.fromkeys((f.path for f in files), 0)
    for share in range(shares):
        rows = _Rows(*map(np.concatenate, zip(*_read(outbox, files, share, shares), strict=True)))
        rows = rows if ended_holds else _Rows(*(column[rows.due != _ENDED] for column in rows))
        for at, first, held in _heads(rows, len(files)):
            path = files[at].path
            if first is not None:
                due[path] = min(first, due.get(path, first))
            behind[path] += held
    return {f.path: Waiting(due.get(f.path), behind[f.path]) for f in files}


def _read(outbox: Table, files: Sequence[DataFile], share: int, shares: int) -> Iterator[_Rows]:
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
    """By path: pending rows of exports behind one of their key that is held for review."""
    if not any(pending_rows(f) < f.rows for f in files):
        return {}
    found: dict[str, list[int]] = {}
    shares = max(1, -(-sum(f.rows for f in files) // limits.CONTEST_ROWS))
    for share in range(shares):
        read = zip(*_read(outbox, files, share, shares), strict=True)
        rows, is_head, stuck = _in_order(_Rows(*map(np.concatenate, read)))
        behind = stuck & ~is_head & (rows.due != _ENDED)
        for at, file in enumerate(files):
            found.setdefault(file.path, []).extend(rows.row[behind & (rows.file == at)].tolist())
    return found


def _in_order(rows: _Rows) -> tuple[_Rows, Numbers, Numbers]:
    """The rows key by key; which are heads; which are of keys of which a head is held for review."""
    order = np.lexsort((rows.revision, rows.key, rows.source))
    rows = _Rows(*(column[order] for column in rows))
    begins = np.ones(len(order), bool)
    begins[1:] = (rows.key[1:] != rows.key[:-1]) | (rows.source[1:] != rows.source[:-1])
    group = np.cumsum(begins) - 1
    is_head = rows.revision == rows.revision[begins][group]
    stuck = np.zeros(int(begins.sum()), bool)
    stuck[group[is_head & (rows.due == _ENDED)]] = True
    return rows, is_head, stuck[group]


def _heads(rows: _Rows, files: int) -> Iterator[tuple[int, int | None, int]]:
    """Of each file its number, when the first of its heads is due, how many rows are behind one held for review."""
    rows, is_head, stuck = _in_order(rows)
    pending = rows.due != _ENDED
    for at in range(files):
        mine = rows.file == at
        dues = rows.due[mine & is_head & pending]
        yield at, int(dues.min()) if len(dues) else None, int((mine & ~is_head & pending & stuck).sum())


def lanes_together(files: Collection[DataFile]) -> list[list[DataFile]]:
    """Files with exports that one sender must take, oldest first: a key's are in one of them."""
    found: list[tuple[set[int], list[DataFile]]] = []
    for file in sorted(files, key=first_sequence):
        lanes, mine = set(lane_numbers(file)), [file]
        for other in [each for each in found if each[0] & lanes]:
            lanes, mine = lanes | other[0], [*other[1], *mine]
            found.remove(other)
        found.append((lanes, sorted(mine, key=first_sequence)))
    return [mine for _, mine in found]
