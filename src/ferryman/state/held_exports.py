"""Rows of ``documents`` of exports that a step could not take, or that wait for such a one: they are named by their
places, and their keys are their fingerprints."""

from __future__ import annotations

from typing import Any

from ferryman.records.keyed import place_of
from ferryman.records.schemas import DOCUMENTS
from ferryman.state.state import State
from ferryman.storage import parquet
from ferryman.storage.query import connect, quoted


def held_rows(state: State, node: str, columns: str, where: str = "true") -> list[tuple[Any, ...]]:
    """Columns of the last rows of those of a node that have not gone through.

    Args:
        where: a condition on all rows of one export, as SQL.

    Raises:
        StateDamaged: a file is missing, or not what was written.
    """
    paths = state.documents.paths()
    if not paths:
        return []
    with connect(state.spill) as db:
        db.register("documents", parquet.scan(paths, DOCUMENTS))  # of other sources only this column is read
        return db.execute(f"""
            SELECT {columns} FROM (
                SELECT * FROM documents WHERE source = {quoted(node)} AND {where}
                QUALIFY row_number() OVER (PARTITION BY document ORDER BY wave DESC) = 1
            ) WHERE failed IS NOT NULL
        """).fetchall()


def lowest_places(state: State, node: str) -> dict[str, int]:
    """Of each lane with such exports the lowest place."""
    found: dict[str, int] = {}
    for (revision,) in held_rows(state, node, "revision"):
        lane, place = place_of(revision)
        found[lane] = min(place, found.get(lane, place))
    return found
