"""SQL of SQLite for lists of rows, as its own driver takes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from ferryman.destinations.base import Delivery
from ferryman.destinations.sql.layout import Layout
from ferryman.destinations.sql.sqlite import full_text


class Statements:
    """What is run for each row, and the rows. ``numbered``: the table has a full-text index.

    Attributes:
        insert: what is new; what is there is passed over.
        upsert: insert or replace.
        bury: insert or replace a tombstone (id, sequence, hash).
    """

    def __init__(self, layout: Layout, numbered: bool) -> None:
        self._layout = layout
        self._numbered = numbered
        documents = layout.documents
        if numbered:
            documents = documents.to_metadata(sa.MetaData())
            documents.append_column(sa.Column(full_text.ROW, sa.Integer()))
        insert = sqlite.insert(documents).on_conflict_do_nothing(index_elements=[layout.key])
        self.insert = _compiled(insert)
        self.upsert = _compiled(_upsert(documents, [name for name in layout.names if name != layout.key]))
        self.bury = _compiled(_upsert(layout.tombstones, ["sequence", "delivery_hash"]))

    def rows(self, chunk: list[Delivery], first: int = 0) -> Iterator[tuple[Any, ...]]:
        """Parameters of ``insert`` and ``upsert``, numbered from ``first``; one at a time.

        Raises:
            BadDocument: fields that JSON cannot hold.
        """
        rows = self._layout.rows(chunk)
        return ((*row, number) for number, row in enumerate(rows, first)) if self._numbered else rows


def _upsert(table: sa.Table, replaced: list[str]) -> sqlite.Insert:
    insert = sqlite.insert(table)
    changes: dict[str, Any] = {name: insert.excluded[name] for name in replaced}
    if full_text.ROW in table.columns:  # a row keeps its number
        changes[full_text.ROW] = sa.func.coalesce(table.c[full_text.ROW], insert.excluded[full_text.ROW])
    return insert.on_conflict_do_update(index_elements=[column.name for column in table.primary_key], set_=changes)


def _compiled(statement: sqlite.Insert) -> str:
    """SQL with a ``?`` for each column, in their order: what the driver's ``executemany`` takes without detours."""
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="qmark")))
