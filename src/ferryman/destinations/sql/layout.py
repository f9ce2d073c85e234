"""The table that ``Sql`` writes: its columns, and the conversion of deliveries to rows."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
import sqlalchemy as sa

from ferryman.destinations.base import Delivery
from ferryman.destinations.stored import Stored, canonical_fields, canonical_json, content_hash, is_same_value
from ferryman.errors import Misconfigured
from ferryman.net import databases

Mode = Literal["upsert", "append"]

TOMBSTONES: Final = "_tombstones"
"""Suffix of the table that remembers deletes."""

IDENTITIES: Final = "ferryman_tables"
"""Table with an identity of each table of this database or schema that ``Sql`` writes."""

WRITERS: Final = "ferryman_writers"
"""Table with the highest sequence that each state and node has written to each table of this database or schema."""

_Kind = Literal["key", "text", "number", "json"]
STANDARD: Final[tuple[tuple[str, _Kind, bool], ...]] = (
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
    ("content_hash", "text", True),
)
"""(column, its type, whether it may be NULL)."""

CONTENT_HASH: Final = "content_hash"
"""Column with a hash over the others: shows ``ferryman verify`` whether somebody has changed the row. Tables that were
made before it get it with the next run."""


class ColumnTypes(NamedTuple):
    """Types of a database's columns, as its dialect has them.

    Attributes:
        field: of columns that fields are copied to.
        key: of ids and hashes: text that is compared byte by byte.
        json: of ``route`` and ``fields``.
        keeps_text: whether text and JSON are stored as they are written; False: JSON is parsed and printed again, and
            there are no NULs.
    """

    field: sa.types.TypeEngine[Any]
    key: sa.types.TypeEngine[Any]
    json: sa.types.TypeEngine[Any]
    keeps_text: bool


RESERVED: Final = (*(name for name, _, _ in STANDARD), "operation")
"""Names that ``columns=`` may not give to a column; a dialect has more."""

_json = msgspec.json.Encoder(order="sorted").encode
_decode_json = msgspec.json.Decoder().decode


class Layout:
    """Tables and rows of one ``Sql``.

    Attributes:
        table: name of the table, with its schema before a dot if the plan gives one.
        key: the column that is unique: ``id`` (upsert: a row an id), ``delivery_hash`` (append: a row per delivery).
        appends: a row per delivery.
        names: the columns that are written, in the order of ``rows``.
        field_columns: the last of them, which fields are copied to.
    """

    def __init__(self, table: str, mode: Mode, columns: Mapping[str, str], types: ColumnTypes) -> None:
        self.appends = mode == "append"
        self.key = "delivery_hash" if self.appends else "id"
        self._keeps_text = types.keeps_text
        self.field_columns = tuple(columns)
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
        self.identities = sa.Table(
            IDENTITIES,
            metadata,
            sa.Column("name", sa.Text(), primary_key=True, nullable=False),
            sa.Column("id", sa.Text(), nullable=False),
        )
        self.writers = sa.Table(
            WRITERS,
            metadata,
            sa.Column("name", sa.Text(), primary_key=True, nullable=False),
            sa.Column("writer", sa.Text(), primary_key=True, nullable=False),
            sa.Column("sequence", sa.BigInteger(), nullable=False),
        )
        self.names = tuple(column.name for column in self.documents.columns)

    def create(self, connection: sa.Connection, where: str) -> None:
        """Create the tables that do not exist.

        Raises:
            Misconfigured: an existing table does not fit.
        """
        is_new = not sa.inspect(connection).has_table(self.documents.name, self.documents.schema)
        if is_new:
            self.documents.create(connection)
        if not self.appends:
            self.tombstones.create(connection, checkfirst=True)
        with databases.without_warnings():
            self._check(connection, where)
        self._identify(connection, is_new=is_new)

    def _identify(self, connection: sa.Connection, *, is_new: bool) -> None:
        """Give the table an identity, if it is new or has none."""
        self.identities.create(connection, checkfirst=True)
        self.writers.create(connection, checkfirst=True)
        name = self.identities.c.name == self.documents.name
        if is_new:
            connection.execute(sa.delete(self.identities).where(name))
            connection.execute(sa.delete(self.writers).where(self.writers.c.name == self.documents.name))
        if is_new or connection.execute(sa.select(self.identities.c.id).where(name)).first() is None:
            connection.execute(sa.insert(self.identities).values(name=self.documents.name, id=uuid.uuid4().hex))

    def identity(self, connection: sa.Connection) -> str:
        """Return the identity of the table; "" if there is no such table, or it has none yet."""
        inspector, schema = sa.inspect(connection), self.documents.schema
        if not all(inspector.has_table(table.name, schema) for table in (self.documents, self.identities)):
            return ""
        query = sa.select(self.identities.c.id).where(self.identities.c.name == self.documents.name)
        return connection.scalar(query) or ""

    def highest_of(self, connection: sa.Connection, writer: str) -> int | None:
        """Return the highest sequence that a writer has written to the table; None: it has written nothing."""
        writers = self.writers
        if not sa.inspect(connection).has_table(writers.name, writers.schema):
            return None
        own = (writers.c.name == self.documents.name) & (writers.c.writer == writer)
        highest: int | None = connection.scalar(sa.select(writers.c.sequence).where(own))
        return highest

    def rows(self, chunk: list[Delivery]) -> Iterator[tuple[Any, ...]]:
        """Yield the values of the chunk's deliveries in the order of ``names``: text, numbers, JSON as text, None.

        One row at a time: the garbage collector would traverse a list of thousands of rows again and again.

        Raises:
            BadDocument: fields that JSON cannot hold.
        """
        rows: Iterator[tuple[Any, ...]] = map(self._row, chunk)
        if self._extra:
            rows = ((*row, *self._field_values(d)) for row, d in zip(rows, chunk, strict=True))
        return rows

    def _row(self, d: Delivery) -> tuple[Any, ...]:
        """Return the values of the standard columns."""
        fields, text = d._fields_json, None if d.raw is None else d.text()
        if self.appends and d.operation == "delete":
            fields, text = b"", None
        route = _json(d.route).decode() if d.route else "[]"
        names = (d.id, d.parent_id, d.origin_id, d.source, d.version, d.sequence, d.hash, route)
        row = (*names, text, fields.decode() or None, self._content_hash(names, d.operation, text, fields))
        return (*row, d.operation) if self.appends else row

    def _content_hash(self, names: tuple[Any, ...], operation: str, text: str | None, fields: bytes) -> str:
        """Return the value of the column ``content_hash``.

        Args:
            names: values of the columns before ``text``; ``route`` as JSON without blanks.
            fields: JSON with sorted keys; b"" for NULL.
        """
        if self._keeps_text:
            return content_hash(*names, operation, text, fields)
        if text is not None and "\0" in text:
            text = text.replace("\0", "\ufffd")
        return content_hash(*names, operation, text, canonical_fields(fields))

    def columns_to_read(self, there: Collection[str]) -> tuple[str, ...]:
        """Return the columns that can be read: all, or without ``content_hash`` of a table that is older than it.

        Raises:
            Misconfigured: another column is missing.
        """
        known = {name.lower() for name in there}
        missing = [name for name in self.names if name.lower() not in known]
        if others := [name for name in missing if name != CONTENT_HASH]:
            raise Misconfigured(f"{self.table}: the table has no column {', '.join(others)}: was it made by Ferryman?")
        return tuple(name for name in self.names if name not in missing)

    def stored(self, row: Sequence[Any], types: Sequence[bool]) -> Stored:
        """Return what a row holds.

        Args:
            row: values of the columns ``names``, JSON as text; then, if the database can tell it, of each column of
                ``columns=`` whether it has its field's value, converted to the column's type; None: unknown.
            types: of each column of ``columns=``, whether it has text as it was written.
        """
        *names, text, fields, written_hash = row[: len(STANDARD)]
        operation = row[len(STANDARD)] if self.appends else "upsert"
        id, _, _, source, version, _, delivery_hash, route = names
        try:
            branches = () if route == "[]" else tuple(map(_as_text, _decode_json(route)))
            if not self._keeps_text:
                names[-1] = _json(branches).decode()
            intact = None if written_hash is None else self._is_intact(names, operation, text, fields, written_hash)
            if intact and self._extra:
                start, end = len(self.names) - len(self._extra), len(self.names)
                intact = self._has_same_columns(fields, row[start:end], types, row[end:])
        except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):  # not what we wrote
            branches, intact = (), False
        if not intact:
            id, delivery_hash, source, version = map(_as_text, (id, delivery_hash, source, version))
        return Stored(id, delivery_hash, intact, source, version, branches)

    def _is_intact(self, names: list[Any], operation: str, text: str | None, fields: str | None, written: str) -> bool:
        json = b"" if fields is None else fields.encode() if self._keeps_text else canonical_json(fields.encode())
        return content_hash(*names, operation, text, json) == written

    def _has_same_columns(
        self, fields: str | None, values: Sequence[Any], types: Sequence[bool], by_database: Sequence[bool | None]
    ) -> bool:
        """Return whether the columns of ``columns=`` have the values of their fields."""
        if by_database and all(by_database):
            return True
        content = {} if fields is None else _decode_json(fields)
        written = map(content.get, self._extra)
        known = by_database or (None,) * len(self._extra)
        return all(
            is_same_value(value, wanted, is_text) if same is None else same
            for same, value, wanted, is_text in zip(known, values, written, types, strict=True)
        )

    @property
    def fields_of_columns(self) -> tuple[str, ...]:
        """Return the field of each column of ``field_columns``."""
        return self._extra

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
        """Check that the existing table is one that this layout can write; add ``content_hash`` to one that an older
        Ferryman made."""
        inspector = sa.inspect(connection)
        name, schema = self.documents.name, self.documents.schema
        there = {column["name"].lower() for column in inspector.get_columns(name, schema)}
        if CONTENT_HASH not in there and there.issuperset(map(str.lower, set(self.names) - {CONTENT_HASH})):
            quoted = connection.dialect.identifier_preparer.format_table(self.documents)
            connection.exec_driver_sql(f"ALTER TABLE {quoted} ADD COLUMN {CONTENT_HASH} TEXT".replace("%", "%%"))
            there.add(CONTENT_HASH)
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


def _as_text(value: Any) -> str:
    """Return a value that somebody may have made something else than text as text."""
    return value if isinstance(value, str) else str(value)
