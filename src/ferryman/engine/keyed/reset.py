"""``run --reset-state``: empties states by key, in one wave, so that the logs that feed them are read again.

A single commit both removes the state of every key and resets the logs' positions. For each key that had a state, a
deletion is exported, so that readers do not keep keys which the rebuilt states lack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ferryman import crash
from ferryman.document import content_version
from ferryman.engine.commit import commit_wave
from ferryman.engine.settle import in_process, settle
from ferryman.errors import Unavailable, UsageError, message_of
from ferryman.limits import plural
from ferryman.plan import Node, SourceNode, keyed_nodes, successors
from ferryman.plan.keyed import upstream_keyed_nodes, upstream_sources
from ferryman.records.keys import EXPORTS_FILE, file_stats, lane_of, lanes
from ferryman.records.rows import table_of
from ferryman.sources import Log
from ferryman.state.logs import LogPositions, failed_entries, reader_name, unfinished_work
from ferryman.state.maintenance import KEYED_TABLES
from ferryman.state.state import State
from ferryman.storage.parquet import Part, PartWriter
from ferryman.storage.query import connect, quote_list, stream, verify
from ferryman.storage.tables import Table


class _Rewind(NamedTuple):
    """New positions of a log that is to be read again.

    Attributes:
        positions: partition -> place of the next entry to read.
        transactions: application transactions that record the positions.
        moved: token of the operator's move that these positions follow; "": the log is read from its beginning.
        replaced: whether the log has been replaced since it was last read.
    """

    log: Log
    positions: dict[str, int]
    transactions: dict[str, int]
    moved: str
    replaced: bool


def reset_states(state: State, names: Collection[str]) -> str:
    """Empty the states of these keyed nodes and of those downstream of them, and rewind the logs upstream; return a
    message about it.

    Each log is read from the place that an operator has moved it to, otherwise from its beginning. At least one must
    have been moved or replaced since it was last read.

    Raises:
        UsageError: the counts could become wrong; nothing was done.
        StateLost: another driver took over.
    """
    nodes = state.plan.nodes
    chosen = _add_nodes_below(nodes, names)
    sources = _feeding_logs(nodes, chosen)
    _refuse_unfinished(state, chosen, sources)
    rewinds = {node.name: _plan_rewind(state, node) for node in sources}
    _refuse_unmoved(rewinds)
    number, keys = state.wave + 1, 0
    files: dict[str, Any] = {}
    for name in sorted(chosen):
        files[name], had = _empty_tables(state, name, number, followed=bool(successors(nodes)[name]))
        keys += had
    crash.point("reset.staged")
    transactions = {key: number for each in rewinds.values() for key, number in each.transactions.items()}
    commit_wave(state, number, positions=transactions, keyed=files)
    settle(state, number, in_process)
    for name, each in rewinds.items():
        each.log.note(reader_name(state, name), each.positions, each.moved)
    places = {name: ", ".join(f"{p} {at}" for p, at in each.positions.items()) for name, each in rewinds.items()}
    where = "; ".join(f"{name} at {place}" for name, place in places.items())
    removed = plural(keys, "state was", "states were")
    return f"{', '.join(sorted(chosen))}: {removed} removed; what fed them is read again: {where}"


def _refuse_unfinished(state: State, chosen: Collection[str], sources: Sequence[SourceNode]) -> None:
    listed = [node.name for node in sources]
    unfinished = [
        *unfinished_work(state, chosen, state.recorded_structure(), ended=True),
        *failed_entries(state, listed),
    ]
    if unfinished:
        raise UsageError(
            "--reset-state: something is not done with what it was given:\n  "
            + "\n  ".join(unfinished)
            + "\nRun without "
            "--reset-state first (also if a run with it was killed); retry what has failed, or give it up with "
            "`ferryman resolve PLAN --as dropped`. Nothing was changed."
        )


def _refuse_unmoved(rewinds: Mapping[str, _Rewind]) -> None:
    """Refuse if no log was moved or replaced: if the same option were given again, it would discard what the first run
    counted."""
    if not any(each.moved or each.replaced for each in rewinds.values()):
        raise UsageError(
            f"--reset-state: none of {', '.join(rewinds)} was moved since, so there is nothing to count again: "
            "`ferryman queue rewind QUEUE READER` moves a reader. If a run with --reset-state was killed, "
            "it was done: run without it. Nothing was changed."
        )


def _add_nodes_below(nodes: Sequence[Node], names: Collection[str]) -> set[str]:
    """Return these nodes and all keyed nodes downstream of them."""
    keyed = {node.name: node for node in keyed_nodes(nodes)}
    if unknown := sorted({*names} - keyed.keys()):
        raise UsageError(
            f"--reset-state: {', '.join(unknown)} is not a keyed node of this plan. It has: "
            f"{', '.join(keyed) or 'none'}."
        )
    chosen, before = set(names), set[str]()
    while chosen != before:
        before = set(chosen)
        chosen |= {node.name for node in keyed.values() if upstream_keyed_nodes(node, nodes) & chosen}
    return chosen


def _feeding_logs(nodes: Sequence[Node], chosen: Collection[str]) -> list[SourceNode]:
    """Return the logs that feed these nodes.

    Raises:
        UsageError: a source that is not a log feeds them, a keyed node that is not reset feeds them, or one of the logs
            also feeds a node that is not reset.
    """
    above: dict[str, SourceNode] = {}
    for node in keyed_nodes(nodes):
        feeding = {each.name: each for each in upstream_sources(node, nodes)}
        if node.name in chosen:
            above |= feeding
            if others := sorted(upstream_keyed_nodes(node, nodes) - {*chosen}):
                raise UsageError(
                    f"--reset-state: {', '.join(others)} also feeds {node.name}, and would not be counted again: name "
                    "it, too. Nothing was changed."
                )
    if changeable := [name for name, each in above.items() if not isinstance(each.source, Log)]:
        raise UsageError(
            f"--reset-state: documents of {', '.join(changeable)} come to {' or '.join(sorted(chosen))}, too, and "
            "would have to be read again: give the plan a higher version instead, without --from-version. Nothing was "
            "changed."
        )
    for node in keyed_nodes(nodes):
        if node.name not in chosen and (shared := {s.name for s in upstream_sources(node, nodes)} & above.keys()):
            raise UsageError(
                f"--reset-state: {', '.join(sorted(shared))} also feeds {node.name}, which would count it twice: give "
                f"--reset-state {node.name}, too. Nothing was changed."
            )
    return list(above.values())


def _plan_rewind(state: State, node: SourceNode) -> _Rewind:
    log, stored = node.source, LogPositions(state, node.name)
    assert isinstance(log, Log)
    try:
        log.check()
        identities, positions = log.identities(), dict(log.begin())
        moved = log.moved(reader_name(state, node.name))
    except Unavailable as e:
        raise UsageError(f"--reset-state: source {node.name}: {message_of(e)}. Nothing was changed.") from e
    token = ""
    if moved is not None and not stored.has_followed_move(moved.token):
        positions |= moved.positions
        token = moved.token
    partitions = {name: log.partitions_of(name, positions) for name in identities}
    transactions = stored.transactions(
        identities, partitions, positions, stored.entries_read, stored.next_replay(log), token
    )
    return _Rewind(log, positions, transactions, token, bool(stored.replaced_logs(identities)))


def _empty_tables(state: State, name: str, wave: int, *, followed: bool) -> tuple[dict[str, Any], int]:
    """Write files that empty a node's tables; return them for the commit, see ``settle.keyed_files``, with the number
    of keys that had a state."""
    tables = state.keyed[name]
    states, contributions = _RemovalFile(tables.state, wave), _RemovalFile(tables.contributions, wave)
    exports = {lane: _RemovalFile(tables.exports, wave) for lane in lanes()}
    for batch in _removal_rows(state, tables.state, wave):
        states.write(batch)
        for lane, rows in _export_deletions(batch) if followed else ():
            exports[lane].write(rows)
    for batch in _removal_rows(state, tables.contributions, wave):
        contributions.write(batch)
    parts = {"state": states.finish(), "contributions": contributions.finish()}
    export_parts = [(lane, part) for lane, rows in exports.items() for part in rows.finish()]
    return {**parts, "exports": export_parts}, states.rows


class _RemovalFile:
    """Writes rows that remove keys to a new data file of a table."""

    def __init__(self, table: Table, wave: int) -> None:
        self._table = table
        self._wave = wave
        self._file: PartWriter | None = None
        self._buckets: list[int] = []
        self.rows = 0

    def write(self, rows: pa.Table) -> None:
        if self._file is None:
            self._file = PartWriter(self._table.folder, rows.schema, epoch=self._table.epoch)
        self._file.write(rows)
        self.rows += rows.num_rows
        if "bucket" in rows.column_names:
            first, last = pc.min_max(rows["bucket"]).as_py().values()
            self._buckets = [min([first, *self._buckets]), max([last, *self._buckets])]

    def finish(self) -> list[Part]:
        """Return the file in a list, which is empty if no row was written."""
        if self._file is None:
            return []
        stats = None
        if self._buckets:
            stats = file_stats((self._buckets[0], self._buckets[1]), (self._wave, self._wave))
        return [self._file.finish(stats)]


def _removal_rows(state: State, table: Table, wave: int) -> Iterator[pa.Table]:
    """Yield rows that remove, in this wave, each key that has a value now, in the order of the file."""
    paths = table.paths()
    if not paths:
        return
    verify(paths)
    schema, identity, value = KEYED_TABLES[table.folder.parent.name]
    columns = ", ".join({value: f"NULL AS {value}", "wave": f"{wave} AS wave"}.get(n, n) for n in schema.names)
    query = f"""
        SELECT {columns} FROM (
            SELECT * FROM read_parquet({quote_list(map(str, paths))})
            QUALIFY row_number() OVER (PARTITION BY {identity} ORDER BY wave DESC) = 1
        ) last WHERE last.{value} IS NOT NULL ORDER BY {identity}
    """
    with connect(state.local_scratch) as db:
        for batch in stream(db, query, schema):
            yield pa.Table.from_batches([batch])


def _export_deletions(states: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield (lane, rows of exports) that delete each key's document, whose id is the key; an empty key is skipped,
    since it cannot be an id."""
    by_lane: dict[str, list[str]] = defaultdict(list)
    for key, bucket in zip(states["key"].to_pylist(), states["bucket"].to_pylist(), strict=True):
        if key:
            by_lane[lane_of(bucket)].append(key)
    nothing = content_version(b"", None)
    for lane, keys in by_lane.items():
        columns = {"key": keys, "document": keys, "operation": "delete", "version": nothing}
        yield lane, table_of(EXPORTS_FILE, len(keys), fields=None, raw=None, **columns)
