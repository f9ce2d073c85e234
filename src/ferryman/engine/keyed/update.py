"""Update keys, in the workers: the sorted runs of one range of keys are merged, and each key's state is brought up to
date.

A task's files are durable before it publishes, once, which they are: two tasks of one range cannot both count.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ferryman import crash, limits
from ferryman.engine.deliver.outcomes import Tries
from ferryman.engine.keyed.callers import ChildCaller, DirectCaller, UpdateCaller
from ferryman.engine.keyed.calls import KeyCalls, NodeTrouble, Row
from ferryman.engine.keyed.group import range_starts
from ferryman.engine.keyed.output import Output
from ferryman.engine.keyed.runs import merged
from ferryman.engine.runner.base import PickledPlan
from ferryman.engine.runner.child import end_copy_of
from ferryman.engine.transform.time_limit import signals_noticed
from ferryman.plan import KeyedNode, successors
from ferryman.records.due import latest_us
from ferryman.records.key_values import KeyFile, KeyRow, KeyValues
from ferryman.state.journal import Journal
from ferryman.storage.files import path_of
from ferryman.storage.groups import values


class KeyRange(NamedTuple):
    """What one task takes: the runs of a range of keys, and what is known of its keys."""

    number: int
    runs: list[str]
    known: list[KeyFile]


class KeyReport(NamedTuple):
    """What a task has seen of a keyed node."""

    well: bool
    """A call has succeeded, or none was made."""
    trouble: str = ""
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class Updating:
    """Task: update a range of keys."""

    shipped: PickledPlan
    root: str
    node: str
    ranges: int
    wave: int
    now_us: int
    epoch: int
    isolated: bool = False
    """A worker died over it: ``update`` is called in a child process."""

    @signals_noticed()
    def __call__(self, keys: KeyRange) -> KeyReport:
        plan = self.shipped.unused() if self.isolated else self.shipped.plan()
        node = next(n for n in plan.nodes if n.name == self.node)
        assert isinstance(node, KeyedNode)
        first = range_starts(self.ranges)[keys.number]
        followed = bool(successors(plan.nodes)[node.name])
        output = Output(path_of(self.root), self.node, self.wave, self.epoch, first, followed=followed)
        known = KeyValues(keys.known)
        caller: UpdateCaller = ChildCaller(node) if self.isolated else DirectCaller(node)
        calls = KeyCalls(node, output, caller, self.now_us)
        try:
            process = os.getpid()
            work = _RangeUpdate(calls, output, known, self.now_us, latest_us(self.now_us, plan.longest_backoff_s))
            report = work.go(merged(keys.runs))
            end_copy_of(process)
            result = output.finish(keys.number)
        except BaseException:
            output.abandon()
            raise
        finally:
            known.close()
            caller.end()
        if result.sent or result.withdrawn:
            crash.point("update.staged")
            if not Journal(path_of(self.root) / "journal").publish_update(self.wave, result):
                output.remove(result)
            crash.point("update.result")
        return report


_COLUMNS: Final = (
    *("key", "document", "operation", "fields", "raw", "sequence", "fault", "holds"),
    *("source", "route", "revision", "task", "kept", "previous"),
    *("due", "attempt", "since", "transient"),
)


class _RangeUpdate:
    """One task's work."""

    def __init__(self, calls: KeyCalls, output: Output, known: KeyValues, now_us: int, latest: int) -> None:
        self._output = output
        self._known = known
        self._calls = calls
        self._states: dict[str, KeyRow] = {}
        self._now_us = now_us
        self._latest = latest

    def go(self, tables: Iterator[pa.Table]) -> KeyReport:
        trouble: NodeTrouble | None = None
        for table in self._parts(tables):
            trouble = self._table(table)
            if trouble is not None:
                break
        self._calls.close()
        if trouble is None:
            return KeyReport(True)
        return KeyReport(False, str(trouble), trouble.permanent)

    def _parts(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The same rows, as many at a time as are held as Python objects; the states of more are looked up at once."""
        for table in tables:
            whole = table.combine_chunks()
            self._states = self._known_of(whole)
            for at in range(0, whole.num_rows, limits.KEY_RUN_ROWS):
                yield whole.slice(at, limits.KEY_RUN_ROWS)

    def _table(self, table: pa.Table) -> NodeTrouble | None:
        """Some rows in order; what keeps the rest from being tried."""
        known, sequences = self._states, table["sequence"].to_pylist()
        self._calls.begin(sequences)
        trouble = None
        try:
            for key, rows in groupby(self._rows(table), key=lambda each: each[0]):
                mine = [row for _, row in rows]
                if not self._calls.is_open(key):
                    bucket = table["bucket"][mine[0].at].as_py()
                    self._calls.open(key, bucket, known.get(key))
                self._calls.take(mine, self._now_us)
        except NodeTrouble as e:
            trouble = e
            if e.blameless:
                self._calls.begin(sequences)
        self._output.events(table, self._calls.results)
        return trouble

    def _known_of(self, table: pa.Table) -> dict[str, KeyRow]:
        buckets = table["bucket"]
        keys = pc.unique(table["key"])
        return self._known.of(keys, buckets[0].as_py(), buckets[table.num_rows - 1].as_py())

    def _rows(self, table: pa.Table) -> Iterator[tuple[str, Row]]:
        """Key and row, in order; a clock that was ahead once puts nothing off for years."""
        columns: Sequence[list[Any]] = [values(table[name]) for name in _COLUMNS]
        for at, (key, *row, due, attempt, since, transient) in enumerate(zip(*columns, strict=True)):
            due = 0 if due is not None and due > self._latest else due
            yield key, Row._make((at, *row, due, Tries(attempt, since, transient)))
