"""Rows on their way to the outbox: those that share destination, route, branches and operation, as columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ferryman.document import Operation
from ferryman.engine.transform.block import Block
from ferryman.records.delivery_hash import DeliveryHash
from ferryman.records.events import table_of
from ferryman.records.family import Owed, Published, parent_of
from ferryman.records.schemas import OUTBOX_FILE


class OutboxBuffer:
    """Gathers rows of one block.

    Args:
        end: (destination, whole route).
    """

    def __init__(self, end: tuple[str, str], branches: str, operation: Operation, delivery_hash: DeliveryHash) -> None:
        self.end = end
        self.branches = branches
        self.operation = operation
        self.given = Published("", end[1], end[0])
        """What an origin's row gives."""
        self._delivery_hash = delivery_hash
        self.clear()

    def clear(self) -> None:
        """Forget the rows."""
        self.rows: list[int] = []
        """Their origins' rows in the block."""
        self.places: list[int] = []
        """Where they stand among all rows of their destination, if that is to get them in this order."""
        self._children: list[str | None] | None = None
        """Their ids, None of an origin's row; None: all are origins."""
        self._fields: list[bytes] = []
        self._raws: list[bytes | None] = []
        self._before: dict[int, Owed] = {}
        """Place -> what it has had, where there were attempts."""

    def add(self, i: int, id: str, *, child: bool, before: Owed | None = None) -> None:
        """A row whose origin is row ``i`` of the block."""
        if before is not None and before.attempt:
            self._before[len(self.rows)] = before
        if child and self._children is None:
            self._children = [None] * len(self.rows)
        if self._children is not None:
            self._children.append(id if child else None)
        self.rows.append(i)

    def fill(self, fields: bytes, raw: bytes | None) -> None:
        """The content of the row that was added last."""
        self._fields.append(fields)
        self._raws.append(raw)

    def add_origin(self, i: int, fields: bytes, raw: bytes | None) -> None:
        """Row ``i`` of the block itself, with its content, for the first time."""
        if self._children is not None:
            self._children.append(None)
        self.rows.append(i)
        self._fields.append(fields)
        self._raws.append(raw)

    def table(self, block: Block, source: str, first_row: int) -> pa.Table:
        """The rows in OUTBOX_FILE's columns, numbered from ``first_row``."""
        n = len(self.rows)
        origins, children = picked(block.ids, self.rows), self._children
        ids = origins if children is None else [c or o for c, o in zip(children, origins, strict=True)]
        documents = pa.array(ids, pa.string())
        versions = picked(block.versions, self.rows)
        revisions = block.revisions(self.rows)
        had = [self._before.get(at) for at in range(n)] if self._before else None
        content: dict[str, Any] = {"fields": self._fields, "raw": self._raws} if self._fields else {}
        if block.provenances is not None:
            content["provenance"] = picked(block.provenances, self.rows)
        if block.key_hashes:
            content["key_hash"] = picked(block.key_hashes, self.rows)
        return table_of(
            OUTBOX_FILE,
            n,
            row=pa.array(range(first_row, first_row + n), pa.int64()),
            source=source,
            document=documents,
            parent=None if children is None else [c and parent_of(c) for c in children],
            origin=documents if children is None else origins,
            version=versions,
            revision=revisions,
            operation=self.operation,
            route=self.end[1],
            branches=self.branches,
            delivery_hash=list(map(self._delivery_hash, ids, versions, revisions)),
            attempt=[each.attempt if each else 0 for each in had] if had else 0,
            due=0,
            since=[each and each.since for each in had] if had else None,
            transient=[each and each.transient for each in had] if had else None,
            **content,
        )


def picked(column: list[Any], rows: list[int]) -> list[Any]:
    """Values of these rows: some of them, and of a family's origin the same one several times."""
    whole = len(rows) == len(column) and rows == list(range(len(rows)))
    return column if whole else [column[i] for i in rows]
