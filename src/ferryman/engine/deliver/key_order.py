"""Deliver, in the workers: the exports of a key are sent in their order, and one that does not arrive holds the later.

A chunk has one export of a key, unless the destination itself leaves out what comes behind one that it refuses
(``Destination.holds_keys``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman.destinations.base import Outcome
from ferryman.records.row_results import RowResult
from ferryman.records.statuses import Status

Numbers = np.ndarray[Any, Any]

_Key = tuple[str, int]
"""Source, and hash of the key."""


class HeldKeys:
    """Keys of which an export has not arrived, for the time of a lane's turn.

    Args:
        ended_holds: does a row that is held for review hold the later ones of its key?
    """

    def __init__(self, *, ended_holds: bool) -> None:
        self.ended_holds = ended_holds
        self._from: dict[_Key, int] = {}

    def __bool__(self) -> bool:
        return bool(self._from)

    def hold(self, key: _Key, revision: int) -> None:
        """This export has not arrived."""
        self._from[key] = min(revision, self._from.get(key, revision))

    def waits(self, key: _Key, revision: int) -> bool:
        """Is it a later one of such a key?"""
        first = self._from.get(key)
        return first is not None and first < revision


class _ExportRow(NamedTuple):
    """A row of an export."""

    key: _Key
    revision: int


class KeyOrder:
    """The exports of one outbox file on their way.

    Args:
        rows: of the file: ``source``, ``key_hash``, ``revision``, ``due``.
        due: which of them are.
    """

    def __init__(self, held: HeldKeys, rows: pa.Table, due: Numbers) -> None:
        self._held = held
        self.eligible = due
        """Which may be sent: those that are due, and do not wait for another."""
        self._rows: list[_ExportRow | None] = []
        self._before: Numbers | None = None
        """Of each eligible row, where the one before of its key is; None: no key has two."""
        if rows["key_hash"].null_count == rows.num_rows:
            return
        every = list(_rows(rows))
        self.eligible = self._pass_over(every, due, pc.is_valid(rows["due"]).to_numpy())
        self._rows = [row for row, goes in zip(every, self.eligible, strict=True) if goes]
        self._before = _places_before(self._rows)

    @property
    def has_exports(self) -> bool:
        """Are some of the eligible rows exports?"""
        return bool(self._rows)

    def end_of(self, start: int, end: int) -> int:
        """Where a chunk ends that begins at an eligible row, so that it has one export of each key."""
        if self._before is None:
            return end
        again = np.flatnonzero(self._before[start:end] >= start)
        return end if not len(again) else start + int(again[0])

    def waiting(self, start: int, end: int) -> list[int]:
        """Of the eligible rows of a chunk, counted from 0: those that wait now."""
        if not self._held or not self._rows:
            return []
        rows = self._rows[start:end]
        return [at for at, row in enumerate(rows) if row is not None and self._held.waits(*row)]

    def note(self, start: int, outcomes: Sequence[Outcome] | None) -> None:
        """What the destination said of the eligible rows from there on."""
        if self._rows:
            for at, outcome in enumerate(outcomes or ()):
                if outcome.kind not in ("ok", "stale"):
                    self.hold(start + at, start + at + 1)

    def hold(self, start: int, end: int) -> None:
        """These eligible rows have not arrived, or nobody knows."""
        for row in self._rows[start:end]:
            if row is not None:
                self._held.hold(*row)

    def learn(self, rows: Numbers, noted: Iterable[RowResult]) -> None:
        """What an earlier attempt of this task has noted; ``rows``: numbers of the eligible rows."""
        for each in noted if self._rows else ():
            at = int(np.searchsorted(rows, each.row))
            if at < len(rows) and rows[at] == each.row and each.status not in (Status.INDEXED, Status.DROPPED):
                self.hold(at, at + 1)

    def _pass_over(self, rows: Sequence[_ExportRow | None], due: Numbers, pending: Numbers) -> Numbers:
        if due.all() and not self._held:
            return due
        goes = due.copy()
        for at, row in enumerate(rows):
            if row is None:
                continue
            if self._held.waits(*row):
                goes[at] = False
            elif not due[at] and (pending[at] or self._held.ended_holds):
                self._held.hold(*row)
        return goes


def _rows(rows: pa.Table) -> Iterator[_ExportRow | None]:
    columns = (rows[name].to_pylist() for name in ("source", "key_hash", "revision"))
    for source, key, revision in zip(*columns, strict=True):
        yield None if key is None else _ExportRow((source, key), revision)


def _places_before(rows: Sequence[_ExportRow | None]) -> Numbers | None:
    """Of each row, where the last one of an earlier export of its key is; -1: there is none."""
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
