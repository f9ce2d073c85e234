"""The table that ``Sql`` writes: its columns, how a delivery becomes a row, and the statements for rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.types import UserDefinedType

from ferryman.destinations import sqlite_fts
from ferryman.destinations.base import Delivery
from ferryman.document import encode_fields
from ferryman.errors import PermanentError

Mode = Literal["upsert", "append"]

TOMBSTONES: Final = "_tombstones"
"""Suffix of the table that remembers deletes."""

STANDARD: Final[tuple[tuple[str, sa.types.TypeEngine[Any], bool], ...]] = (
    # column, type, nullable
    ("id", sa.Text(), False),
    ("parent_id", sa.Text(), True),
    ("origin_id", sa.Text(), False),
    ("source", sa.Text(), False),
    ("version", sa.Text(), False),
    ("sequence", sa.BigInteger(), False),
    ("delivery_hash", sa.Text(), False),
    ("route", sa.JSON(), False),
    ("text", sa.Text(), True),
    ("fields", sa.JSON(), True),
)
RESERVED: Final = (*(name for name, _, _ in STANDARD), "operation", sqlite_fts.ROW)
"""Names that ``columns=`` may not give to a column."""

_json = msgspec.json.Encoder(order="sorted").encode


class Untyped(UserDefinedType[Any]):
    """A column of no type, as SQLite allows: it keeps numbers as numbers and text as text, whatever comes."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return ""


class Layout:
    """Table, rows and statements of one ``Sql``. ``numbered``: the table has a full-text index.

    Attributes:
        key: the column that is unique: ``id`` (upsert: a row an id), ``delivery_hash`` (append: a row a delivery).
    """

    def __init__(self, table: str, mode: Mode, columns: Mapping[str, str], numbered: bool = False) -> None:
        self.key = "id" if mode == "upsert" else "delivery_hash"
        self._append = mode == "append"
        self._numbered = numbered
        self._extra = tuple(columns.values())
        metadata = sa.MetaData()
        self.documents = sa.Table(
            table,
            metadata,
            *(sa.Column(n, t, nullable=null, primary_key=n == self.key) for n, t, null in STANDARD),
            *((sa.Column("operation", sa.Text(), nullable=False),) if self._append else ()),
            *(sa.Column(name, Untyped()) for name in columns),
        )
        self.tombstones = sa.Table(
            table + TOMBSTONES,
            metadata,
            sa.Column("id", sa.Text(), primary_key=True, nullable=False),
            sa.Column("sequence", sa.BigInteger(), nullable=False),
            sa.Column("delivery_hash", sa.Text(), nullable=False),
        )
        names = [column.name for column in self.documents.columns]
        if numbered:
            self.documents.append_column(sa.Column(sqlite_fts.ROW, sa.Integer()))
        self.insert, self.upsert = self._statements(names)
        self.bury = _compiled(_upsert(self.tombstones, ["sequence", "delivery_hash"]))

    def _statements(self, names: list[str]) -> tuple[str, str]:
        """SQL for lists of ``rows``: insert what is new, and insert or replace."""
        insert = sqlite.insert(self.documents).on_conflict_do_nothing(index_elements=[self.key])
        upsert = _upsert(self.documents, [name for name in names if name != self.key])
        return _compiled(insert), _compiled(upsert)

    def rows(self, chunk: list[Delivery], first: int = 0) -> Iterator[tuple[Any, ...]]:
        """Values of the chunk's deliveries in the order of the statements' parameters, numbered from ``first``.

        One at a time: thousands of rows at once would be searched for garbage again and again.

        Raises:
            BadDocument: fields that JSON cannot hold.
        """
        rows: Iterator[tuple[Any, ...]] = (
            (
                d.id,
                d.parent_id,
                d.origin_id,
                d.source,
                d.version,
                d.sequence,
                d.hash,
                _json(d.route).decode() if d.route else "[]",
                None if d.raw is None else d.text(),
                (d._fields_json or encode_fields(d.fields)).decode(),
            )
            for d in chunk
        )
        if self._append:
            rows = map(_with_operation, rows, chunk)
        if self._extra:
            rows = ((*row, *self._copied(d)) for row, d in zip(rows, chunk, strict=True))
        if self._numbered:
            rows = ((*row, number) for number, row in enumerate(rows, first))
        return rows

    def _copied(self, delivery: Delivery) -> Iterable[Any]:
        """Fields for columns of their own: lists and dicts as JSON text, missing ones as NULL."""
        if delivery.operation == "delete":
            return (None,) * len(self._extra)
        fields = delivery.fields
        return (
            _json(value).decode() if isinstance(value, list | dict | tuple) else value
            for value in map(fields.get, self._extra)
        )

    def check(self, connection: sa.Connection, where: str) -> None:
        """Is the table that is there one that this layout can write?

        Raises:
            PermanentError: (universal) a column is missing, or the key is not unique.
        """
        inspector = sa.inspect(connection)
        name = self.documents.name
        there = {column["name"].lower() for column in inspector.get_columns(name)}
        wanted = [column.name for column in self.documents.columns if column.name != sqlite_fts.ROW]
        if missing := [column for column in wanted if column.lower() not in there]:
            add = "; ".join(f"ALTER TABLE {name} ADD COLUMN {column}" for column in missing)
            raise PermanentError(
                f"{where}: the table is there, but has no column {', '.join(missing)}. Give another table=, "
                f"drop this one, or add what is missing ({add}), then run again.",
                universal=True,
            )
        unique: set[tuple[str | None, ...]] = {tuple(inspector.get_pk_constraint(name)["constrained_columns"])}
        unique |= {tuple(c["column_names"]) for c in inspector.get_unique_constraints(name)}
        unique |= {tuple(i["column_names"]) for i in inspector.get_indexes(name) if i["unique"]}
        wrong = ("id",) in unique if self._append else (self.key,) not in unique
        if wrong or (self.key,) not in unique:
            kept = "a row an id" if self._append else "a row a delivery, or is not Ferryman's"
            raise PermanentError(
                f"{where}: the table keeps {kept}: mode={'append' if self._append else 'upsert'!r} needs {self.key} "
                f"to be its unique key. Give another table= or mode=, then run again.",
                universal=True,
            )


def _with_operation(row: tuple[Any, ...], delivery: Delivery) -> tuple[Any, ...]:
    """The row of append mode: without text and fields if it is a delete."""
    return (*row, "upsert") if delivery.operation == "upsert" else (*row[:-2], None, None, "delete")


def _upsert(table: sa.Table, replaced: list[str]) -> sqlite.Insert:
    insert = sqlite.insert(table)
    changes: dict[str, Any] = {name: insert.excluded[name] for name in replaced}
    if sqlite_fts.ROW in table.columns:  # a row keeps its number
        changes[sqlite_fts.ROW] = sa.func.coalesce(table.c[sqlite_fts.ROW], insert.excluded[sqlite_fts.ROW])
    return insert.on_conflict_do_update(index_elements=[column.name for column in table.primary_key], set_=changes)


def _compiled(statement: sqlite.Insert) -> str:
    """SQL with a ``?`` for each column, in their order: what the driver's ``executemany`` takes without detours."""
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="qmark")))
