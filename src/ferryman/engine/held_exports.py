"""Exports that a step could not take, and those of their keys that came later: what is tried again, and when.

They are rows of ``documents``, named by their places (``records.keyed.export_name``), their keys as fingerprints. The
earliest of a key is its head. Once it is due, it and what is behind it go their way again, in their order; a head that
failed for good holds its key until an operator retries it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ferryman.engine.scan.log_batches import HeldEntry, LogSplit
from ferryman.records.due import wait_s
from ferryman.records.keyed import lane_number, place_of
from ferryman.sources.log import Log
from ferryman.state.held_exports import held_rows
from ferryman.state.state import State

_ENDED: Final = -1
"""Due time of what has failed for good."""
_MOST: Final = 50_000
"""Entries that go their way again in one wave: 1 KB each."""

Numbers = np.ndarray[Any, Any]


class _HeldRows(NamedTuple):
    """Entries in the order of their revisions, an array a column."""

    revision: Numbers
    key: Numbers
    due: Numbers


class HeldExports:
    """Of one keyed node, as of the last commit.

    Args:
        ended_holds: does what has failed for good hold the later ones of its key?
    """

    def __init__(self, state: State, node: str, *, ended_holds: bool) -> None:
        self._state = state
        self._node = node
        self._ended_holds = ended_holds
        self._files: frozenset[str] | None = None
        none = np.array([], np.int64)
        self._found, self._heads = _HeldRows(none, none, none), none

    def __len__(self) -> int:
        return len(self._now().key)

    @property
    def behind(self) -> int:
        """How many wait for one that has failed for good."""
        found = self._now()
        stuck = found.due[self._heads] == _ENDED
        return int((stuck & (found.due != _ENDED)).sum())

    def held(self) -> dict[str, frozenset[int]]:
        """Keys of which later exports wait, by their lanes."""
        found: dict[str, set[int]] = defaultdict(set)
        for key in np.unique(self._now().key).tolist():
            found[f"lane{lane_number(key)}"].add(key)
        return {lane: frozenset(keys) for lane, keys in found.items()}

    def wait_s(self, now_us: int) -> float | None:
        """Seconds until a head is due; None: none will be."""
        dues = self._head_dues()
        longest_s = self._state.plan.longest_backoff_s
        return wait_s(int(dues.min()), now_us, longest_s) if len(dues) else None

    def splits(self, log: Log, ready: set[str], now_us: int) -> Iterator[LogSplit]:
        """What is due and what is behind it, in its order.

        Args:
            ready: lanes that may be read now.
        """
        found = self._now()
        longest_s = self._state.plan.longest_backoff_s
        dues = found.due[self._heads]
        due = np.array([each != _ENDED and not wait_s(each, now_us, longest_s) for each in dues.tolist()], bool)
        chosen = found.revision[due][:_MOST].tolist()
        by_lane: dict[str, list[int]] = {}
        for revision in chosen:
            lane, place = place_of(revision)
            if lane in ready:
                by_lane.setdefault(lane, []).append(place)
        known = self._details(chosen)
        for lane, places in by_lane.items():
            yield from self._of_lane(log, lane, places, known)

    def _of_lane(
        self, log: Log, lane: str, places: Sequence[int], known: dict[tuple[str, int], tuple[Any, ...]]
    ) -> Iterator[LogSplit]:
        for piece in log.pieces({lane: places[0]}, {lane: places[-1] + 1}, places[-1] + 1):
            mine = [HeldEntry(at, known[lane, at]) for at in places if piece.start <= at < piece.end]
            if mine:
                yield LogSplit(self._node, piece, held_back=tuple(mine))

    def _head_dues(self) -> Numbers:
        found = self._now()
        dues = found.due[np.unique(self._heads)]
        waiting: Numbers = dues[dues != _ENDED]
        return waiting

    def _now(self) -> _HeldRows:
        files = frozenset(self._state.documents.files)
        if files != self._files:
            self._files, self._found = files, self._read()
            self._heads = _heads(self._found)
        return self._found

    def _read(self) -> _HeldRows:
        rows = held_rows(self._state, self._node, "revision, fingerprint::BIGINT, coalesce(due, -1)")
        found = _HeldRows(*(np.array(column, np.int64) for column in zip(*rows, strict=True))) if rows else None
        if found is None:
            return _HeldRows(*(np.array([], np.int64) for _ in _HeldRows._fields))
        found = _HeldRows(*(column[np.argsort(found.revision)] for column in found))
        return found if self._ended_holds else _HeldRows(*(column[found.due != _ENDED] for column in found))

    def _details(self, revisions: Sequence[int]) -> dict[tuple[str, int], tuple[Any, ...]]:
        if not revisions:
            return {}
        names = "version, revision, fingerprint, operation, given, due, failed, held, again"
        among = f"revision IN ({', '.join(map(str, revisions))})"
        return {place_of(row[1]): row for row in held_rows(self._state, self._node, names, among)}


def _heads(rows: _HeldRows) -> Numbers:
    """Of each row, where the first of its key is; rows are in the order of their revisions within each lane."""
    order = np.lexsort((rows.revision, rows.key))
    begins = np.ones(len(order), bool)
    begins[1:] = rows.key[order][1:] != rows.key[order][:-1]
    found = np.empty(len(order), np.int64)
    found[order] = order[begins][np.cumsum(begins) - 1] if len(order) else 0
    return found
