"""What waits at keyed nodes or below them: as long as something does, their states are not all that they were given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from ferryman.plan.structure import Structure
from ferryman.records.family import had_sql
from ferryman.records.keyed import lanes, place_id
from ferryman.records.schemas import DOCUMENTS
from ferryman.state.held_exports import held_rows
from ferryman.state.log_positions import LogPositions
from ferryman.state.outbox import has_exports, pending_rows
from ferryman.state.state import State
from ferryman.storage import parquet
from ferryman.storage.parquet import read_part
from ferryman.storage.query import connect, quoted_list


def unfinished(state: State, nodes: Collection[str], plan: Structure, *, ended: bool = False) -> Iterator[str]:
    """A line for each place at which something waits, or is held for review, at one of these nodes or below it.

    Args:
        plan: the structure of the plan that ran last.
        ended: also what ``update`` has refused for good of a source's documents, which can be retried at any time.

    Raises:
        StateDamaged: a file is missing, or not what was written.
    """
    yield from _inputs(state, nodes, ended=ended)
    yield from _below(state, nodes)
    for name in sorted(nodes):
        if any(name in node.after for node in plan.values()) and (unread := _unread(state, name)):
            yield f"{name}: {unread} exports were not carried on"
        if held := held_rows(state, name, "document"):
            yield f"{name}: {len(held)} exports wait at a step or router, or failed there (one of them: {held[0][0]})"


def counted_and_failed(state: State, logs: Collection[str], nodes: Collection[str]) -> Iterator[str]:
    """A line for each of these logs that has entries which a keyed node was given, and of which a step on another
    branch failed: read again, they would be counted twice."""
    counted = " OR ".join(map(had_sql, nodes)) or "false"
    for source, number, example in _failed(state, logs, counted):
        yield f"{source}: {number} entries were counted, and failed on another branch (one of them: {example})"


def failed_entries(state: State, logs: Collection[str]) -> Iterator[str]:
    """A line for each of these logs that has entries which a step or router could not take, for now or for good."""
    for source, number, example in _failed(state, logs, "true"):
        yield f"{source}: {number} entries wait at a step or router, or failed there (one of them: {example})"


def _failed(state: State, logs: Collection[str], where: str) -> list[tuple[str, int, str]]:
    paths = state.documents.paths()
    if not paths or not logs:
        return []
    with connect(state.spill) as db:
        db.register("documents", parquet.scan(paths, DOCUMENTS))
        return db.execute(f"""
            SELECT source, count(*), min(document) FROM (
                SELECT * FROM documents WHERE source IN (SELECT unnest({quoted_list(logs)}))
                QUALIFY row_number() OVER (PARTITION BY source, document ORDER BY wave DESC) = 1
            ) WHERE failed IS NOT NULL AND ({where}) GROUP BY source ORDER BY source
        """).fetchall()


def _inputs(state: State, nodes: Collection[str], *, ended: bool) -> Iterator[str]:
    waiting: Counter[str] = Counter()
    for file in state.outbox.files.values():
        if file.partition["destination"] in nodes:
            waiting[file.partition["destination"]] += file.rows if ended else pending_rows(file)
    for name, number in sorted((+waiting).items()):
        refused = ", or held for review" if ended else ""
        yield f"{name}: {number} documents are committed, and not counted yet{refused}"


def _below(state: State, nodes: Collection[str]) -> Iterator[str]:
    found: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for file in filter(has_exports, state.outbox.files.values()):
        rows = read_part(state.outbox.path(file.path), ["source", "document"])
        for source, document in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            if source in nodes:
                place = (file.partition["destination"], source)
                found[place] += 1
                examples[place] = document
    for (destination, source), number in sorted(found.items()):
        example = examples[destination, source]
        yield f"{destination}: {number} exports of {source} wait, or are held for review (one of them: {example})"


def _unread(state: State, name: str) -> int:
    reached = LogPositions(state, name).of({"": ""}, {"": lanes()})
    table = state.keyed[name].exports
    return sum(max(0, table.number(place_id(lane)) - reached.get(lane, 0)) for lane in lanes())
