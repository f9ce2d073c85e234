"""Which document comes to which key, and as what.

A document of a log comes to its key. One that may change comes with what its key was given of it before; if that was
another key, that one is told first that the document is gone, and in the next pass it comes to its new key: so a row
of the outbox is never at work at two keys at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ferryman.document import Document, decode_fields
from ferryman.engine.keyed.runs import RUN, KeyTask
from ferryman.errors import describe, unless_interrupt
from ferryman.plan import KeyedNode, Plan, errors_node, sources_of
from ferryman.records.contributions import Contribution, contributions_of
from ferryman.records.events import table_of
from ferryman.records.keyed import bucket_of
from ferryman.sources import Log
from ferryman.storage.groups import values


class _OutboxRow(NamedTuple):
    """A row of the outbox."""

    source: str
    document: str
    operation: str
    fields: bytes | None
    raw: bytes | None


class _Keyed(NamedTuple):
    """What is to be done with it."""

    key: str
    task: KeyTask
    previous: bytes | None = None
    fault: str | None = None


class Keying:
    """Of the documents of one node.

    Args:
        contributions: files of what keys were given before.
        folder: for what does not fit into memory.
    """

    def __init__(self, node: KeyedNode, plan: Plan, contributions: Sequence[str], folder: Path) -> None:
        sources = sources_of(plan.nodes)
        self._node = node
        self._numbers = {source.name: number for number, source in enumerate(sources)}
        self._logs = {each.name: each.source for each in sources if isinstance(each.source, Log)}
        stops = errors_node(plan.nodes) is None
        self._holding = [name for name, log in self._logs.items() if stops and log.ordered and log.on_error == "stop"]
        """Where a document that failed for good holds the later ones of its key."""
        self._contributions = contributions
        self._folder = folder

    def keyed(self, rows: pa.Table, first: int, held: Sequence[int], fault: str | None = None) -> pa.Table:
        """Rows of an outbox file in the columns of ``RUN``: those that are pending, and those that hold others.

        Args:
            fault: why they have come without content, and so have no key.
        """
        holds = pc.is_in(rows["source"], value_set=pa.array(self._holding, pa.string()))
        wanted = pc.or_(pc.is_valid(rows["due"]), holds)
        wanted = pc.and_(wanted, pc.invert(pc.is_in(rows["row"], value_set=pa.array(held, pa.int64()))))
        rows, holds = rows.filter(wanted), holds.filter(wanted)
        sources, ids = rows["source"].to_pylist(), rows["document"].to_pylist()
        found = list(self._all(rows)) if fault is None else [_Keyed("", KeyTask.COUNT, fault=fault) for _ in sources]
        columns: dict[str, Any] = {name: rows[name] for name in RUN.names if name in rows.column_names}
        return table_of(
            RUN,
            rows.num_rows,
            bucket=[bucket_of(each.key) for each in found],
            key=[each.key for each in found],
            source_number=[self._numbers.get(source, len(self._numbers)) for source in sources],
            place=["" if source in self._logs else id for source, id in zip(sources, ids, strict=True)],
            sequence=pc.add(rows["row"], first),
            file=first,
            fault=[each.fault for each in found],
            holds=holds,
            task=[each.task.value for each in found],
            kept=[source not in self._logs for source in sources],
            previous=[each.previous for each in found],
            **columns,
        )

    def _all(self, rows: pa.Table) -> Iterator[_Keyed]:
        changeable = pc.invert(pc.is_in(rows["source"], value_set=pa.array(list(self._logs), pa.string())))
        mine = contributions_of(
            self._contributions, rows.filter(changeable).select(["source", "document"]), self._folder
        )
        for each in map(_OutboxRow._make, zip(*(values(rows[name]) for name in _OutboxRow._fields), strict=True)):
            had = mine.get((each.source, each.document), [])
            yield self._removed(had) if each.operation == "delete" else self._added(each, had)

    def _removed(self, had: Sequence[Contribution]) -> _Keyed:
        """A document that is gone."""
        if not had:
            return _Keyed("", KeyTask.NOTHING)
        task = KeyTask.COUNT if len(had) == 1 else KeyTask.WITHDRAW
        return _Keyed(had[0].key, task, had[0].fields)

    def _added(self, row: _OutboxRow, had: Sequence[Contribution]) -> _Keyed:
        try:
            key = self._node.key_of(Document.of(row.document, decode_fields(row.fields or b"{}"), row.raw))
        except BaseException as e:  # it had one before the commit
            return _Keyed("", KeyTask.COUNT, fault=f"key of {self._node.name}: {describe(unless_interrupt(e))}")
        for other in had:
            if other.key != key:
                return _Keyed(other.key, KeyTask.WITHDRAW, other.fields)
        return _Keyed(key, KeyTask.COUNT, had[0].fields if had else None)
