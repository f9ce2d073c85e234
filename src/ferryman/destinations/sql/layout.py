"""The table that ``Sql`` writes: its columns, and the conversion of deliveries to rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec
import sqlalchemy as sa

from ferryman.destinations.base import Delivery
from ferryman.errors import Misconfigured
from ferryman.net import databases

Mode = Literal["upsert", "append"]

TOMBSTONES: Final = "_tombstones"
"""Suffix of the table that remembers deletes."""

_Kind = Literal["key", "text", "number", "json"]
STANDARD: Final[tuple[tuple[str, _Kind, bool], ...]] = (
    # column, type, nullable
    ("id", "key", False),
    ("parent_id", "text", True),
    ("origin_id", "text", False),
    ("source", "text", False),
    ("version", "text", False),
    ("sequence", "number", False),
    ("delivery_hash", "key", False),
    ("route", "json", False),
    ("text", "text", True),
    ("fields", "json", True),
)


class ColumnTypes(NamedTuple):
    """Types of a database's columns, as its dialect has them.

    Attributes:
        field: of columns that fields are copied to.
        key: of ids and hashes: text that is compared byte by byte.
        json: of ``route`` and ``fields``.
    """

    field: sa.types.TypeEngine[Any]
    key: sa.types.TypeEngine[Any]
    json: sa.types.TypeEngine[Any]


RESERVED: Final = (*(name for name, _, _ in STANDARD), "operation")
"""Names that ``columns=`` may not give to a column; a dialect has more."""

_json = msgspec.json.Encoder(order="sorted").encode


class Layout:
    """Tables and rows of one ``Sql``.

    Attributes:
        table: name of the table, with its schema before a dot if the plan gives one.
        key: the column that is unique: ``id`` (upsert: a row an id), ``delivery_hash`` (append: a row per delivery).
        appends: a row per delivery.
        names: the columns that are written, in the order of ``rows``.
    """

    def __init__(self, table: str, mode: Mode, columns: Mapping[str, str], types: ColumnTypes) -> None:
        self.appends = mode == "append"
        self.key = "delivery_hash" if self.appends else "id"
        self._extra = tuple(columns.values())
        schema, _, name = table.rpartition(".")
        self.table = table
        metadata = sa.MetaData(schema=schema or None)
        standard: dict[_Kind, sa.types.TypeEngine[Any]] = {
            "key": types.key,
            "text": sa.Text(),
            "number": sa.BigInteger(),
            "json": types.json,
        }
        self.documents = sa.Table(
            name,
            metadata,
            *(sa.Column(n, standard[kind], nullable=null, primary_key=n == self.key) for n, kind, null in STANDARD),
            *((sa.Column("operation", sa.Text(), nullable=False),) if self.appends else ()),
            *(sa.Column(name, types.field) for name in columns),
        )
        self.tombstones = sa.Table(
            name + TOMBSTONES,
            metadata,
            sa.Column("id", types.key, primary_key=True, nullable=False),
            sa.Column("sequence", sa.BigInteger(), nullable=False),
            sa.Column("delivery_hash", sa.Text(), nullable=False),
        )
        self.names = tuple(column.name for column in self.documents.columns)

    def create(self, connection: sa.Connection, where: str) -> None:
        """Create the tables that do not exist.

        Raises:
            Misconfigured: an existing table does not fit.
        """
        self.documents.create(connection, checkfirst=True)
        if not self.appends:
            self.tombstones.create(connection, checkfirst=True)
        with databases.without_warnings():
            self._check(connection, where)

    def rows(self, chunk: list[Delivery]) -> Iterator[tuple[Any, ...]]:
        """Yield the values of the chunk's deliveries in the order of ``names``: text, numbers, JSON as text, None.

        One row at a time: the garbage collector would traverse a list of thousands of rows again and again.

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
                d._fields_json.decode(),
            )
            for d in chunk
        )
        if self.appends:
            rows = map(_with_operation, rows, chunk)
        if self._extra:
            rows = ((*row, *self._field_values(d)) for row, d in zip(rows, chunk, strict=True))
        return rows

    def _field_values(self, delivery: Delivery) -> Iterable[Any]:
        """Return the values of fields with columns of their own: lists and dicts as JSON text, None for missing
        ones."""
        if delivery.operation == "delete":
            return (None,) * len(self._extra)
        fields = delivery.fields
        return (
            _json(value).decode() if isinstance(value, list | dict | tuple) else value
            for value in map(fields.get, self._extra)
        )

    def _check(self, connection: sa.Connection, where: str) -> None:
        """Check that the existing table is one that this layout can write."""
        inspector = sa.inspect(connection)
        name, schema = self.documents.name, self.documents.schema
        there = {column["name"].lower() for column in inspector.get_columns(name, schema)}
        if missing := [column for column in self.names if column.lower() not in there]:
            add = "; ".join(f"ALTER TABLE {self.table} ADD COLUMN {self._column_ddl(c, connection)}" for c in missing)
            raise Misconfigured(
                f"{where}: the table is there, but has no column {', '.join(missing)}. Give another table=, "
                f"drop this one, or add what is missing ({add}), then run again.",
            )
        unique: set[tuple[str | None, ...]] = {tuple(inspector.get_pk_constraint(name, schema)["constrained_columns"])}
        unique |= {tuple(c["column_names"]) for c in inspector.get_unique_constraints(name, schema)}
        unique |= {tuple(i["column_names"]) for i in inspector.get_indexes(name, schema) if i["unique"]}
        wrong = ("id",) in unique if self.appends else (self.key,) not in unique
        if wrong or (self.key,) not in unique:
            kept = "a row an id" if self.appends else "a row a delivery, or was not made by Ferryman"
            raise Misconfigured(
                f"{where}: the table keeps {kept}: mode={'append' if self.appends else 'upsert'!r} needs {self.key} "
                f"to be its unique key. Give another table= or mode=, then run again.",
            )

    def _column_ddl(self, name: str, connection: sa.Connection) -> str:
        """Return the definition of a column for ALTER TABLE."""
        return f"{name} {self.documents.columns[name].type.compile(connection.dialect)}".rstrip()


def _with_operation(row: tuple[Any, ...], delivery: Delivery) -> tuple[Any, ...]:
    """Return the row of append mode: with the operation, and without text and fields for a delete."""
    return (*row, "upsert") if delivery.operation == "upsert" else (*row[:-2], None, None, "delete")
