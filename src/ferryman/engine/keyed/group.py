"""Group by key, in the workers: an outbox file of a keyed node becomes sorted runs, one for each range of keys."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import crash
from ferryman.document import Document, decode_fields
from ferryman.engine.keyed.runs import ORDER, RUN, write_run
from ferryman.engine.runner.base import PickledPlan
from ferryman.errors import describe, unless_interrupt
from ferryman.plan import KeyedNode, Plan, sources_of
from ferryman.records.events import table_of
from ferryman.records.keyed import BUCKETS, bucket_of
from ferryman.sources import Log
from ferryman.state.outbox import row_groups
from ferryman.storage.groups import values


class SortedRun(NamedTuple):
    """A sorted run of one range of keys."""

    range: int
    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Grouping:
    """Task: read the pending rows of an outbox file, (path, first sequence), and write a run for each range of keys."""

    shipped: PickledPlan
    node: str
    outbox: str
    folder: str
    ranges: int
    """So many, of equal width."""

    def __call__(self, item: tuple[str, int]) -> list[SortedRun]:
        path, first = item
        plan = self.shipped.plan()
        node = next(n for n in plan.nodes if n.name == self.node)
        assert isinstance(node, KeyedNode)
        places = _Sources(plan)
        tables = [_keyed(rows, first, node, places) for rows in row_groups(Path(self.outbox) / path)]
        found = [run for run in self._runs(pa.concat_tables(tables)) if run.rows]
        crash.point("update.grouped")
        return found

    def _runs(self, rows: pa.Table) -> Iterator[SortedRun]:
        rows = rows.sort_by([(name, "ascending") for name in ORDER])
        edges = np.searchsorted(rows["bucket"].to_numpy(), range_starts(self.ranges))
        for number, (first, end) in enumerate(zip(edges, [*edges[1:], rows.num_rows], strict=True)):
            mine = rows.slice(first, end - first)
            path = Path(self.folder) / f"{number}-{uuid.uuid4().hex}.arrow"
            if mine.num_rows:
                write_run(path, mine)
            yield SortedRun(number, str(path), mine.num_rows, mine.nbytes)


def range_starts(ranges: int) -> list[int]:
    """The first bucket of each range."""
    return [number * BUCKETS // ranges for number in range(ranges)]


class _Sources:
    """In which order documents of several sources stand."""

    def __init__(self, plan: Plan) -> None:
        sources = sources_of(plan.nodes)
        self._numbers = {source.name: number for number, source in enumerate(sources)}
        self._logs = {s.name: s.source for s in sources if isinstance(s.source, Log)}
        self.holding = [n for n, log in self._logs.items() if log.ordered and log.on_error == "stop"]
        """Where a document that failed for good holds the later ones of its key."""

    def numbers(self, sources: Sequence[str]) -> list[int]:
        return [self._numbers.get(source, len(self._numbers)) for source in sources]

    def places(self, sources: Sequence[str], ids: Sequence[str]) -> list[str]:
        return ["" if source in self._logs else id for source, id in zip(sources, ids, strict=True)]


def _keyed(rows: pa.Table, first: int, node: KeyedNode, sources: _Sources) -> pa.Table:
    """Rows of the outbox with their keys: those that are pending, and those that hold others."""
    holds = pc.is_in(rows["source"], value_set=pa.array(sources.holding, pa.string()))
    pending = pc.or_(pc.is_valid(rows["due"]), holds)
    rows, holds = rows.filter(pending), holds.filter(pending)
    names, ids = rows["source"].to_pylist(), rows["document"].to_pylist()
    keys, faults = _keys(node, ids, values(rows["fields"]), values(rows["raw"]))
    columns: dict[str, Any] = {name: rows[name] for name in RUN.names if name in rows.column_names}
    return table_of(
        RUN,
        rows.num_rows,
        bucket=[bucket_of(key) for key in keys],
        key=keys,
        source_number=sources.numbers(names),
        place=sources.places(names, ids),
        sequence=pc.add(rows["row"], first),
        file=first,
        fault=faults,
        holds=holds,
        **columns,
    )


def _keys(
    node: KeyedNode, ids: Sequence[str], fields: Sequence[bytes | None], raws: Sequence[bytes | None]
) -> tuple[list[str], list[str | None]]:
    """The key of each document, and why it has none."""
    keys: list[str] = []
    faults: list[str | None] = []
    for id, content, raw in zip(ids, fields, raws, strict=True):
        try:
            keys.append(node.key_of(Document.of(id, decode_fields(content or b"{}"), raw)))
            faults.append(None)
        except BaseException as e:  # it had one before the commit
            keys.append("")
            faults.append(f"key of {node.name}: {describe(unless_interrupt(e))}")
    return keys, faults
