"""The table that ``Sql`` writes: its columns, and the conversion of deliveries to rows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import repeat
from typing import Any, Final, Literal, NamedTuple

import msgspec

from ferryman.destinations.base import (
    Delivery,
    Stored,
    StoredColumns,
    canonical_json,
    content_hash,
    content_hashes,
    is_same_value,
)
from ferryman.destinations.vectors import VectorField, check_remembered, read_vector
from ferryman.document import encode_fields
from ferryman.errors import Misconfigured, UsageError
from ferryman.net import databases
from ferryman.net.databases import sqlalchemy as sa

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


HASH_DIGITS: Final = 32
"""Hexadecimal digits of ``printed_hash``: 128 bits."""

_MakeType = Callable[[], "sa.types.TypeEngine[Any]"]


def text_type() -> sa.Text:
    """Return the type of text of any length, of most databases."""
    return sa.Text()


class ColumnTypes(NamedTuple):
    """Types of a database's columns, as its dialect has them: functions that make them, since only who writes needs
    them.

    Attributes:
        field: of columns that fields are copied to.
        key: of ids and hashes: text that is compared byte by byte.
        json: of ``route`` and ``fields``.
        printed_json: JSON as the database prints it after parsing; None: text and JSON are stored as they are written.
            With it, there are no NULs, and the hash of a row is one that the database can compute: ``printed_hash``.
        vector: type of a column for vectors; None: they are in a table of their own.
        vector_text: the text of a vector's float32 bytes that such a column is written as.
        text: of texts of any length.
        name: of names of tables and writers, which are keys of Ferryman's own tables.
    """

    field: _MakeType
    key: _MakeType
    json: _MakeType
    printed_json: Callable[[bytes], bytes] | None = None
    vector: Callable[[VectorField], sa.types.TypeEngine[Any]] | None = None
    vector_text: Callable[[bytes], str] = bytes.hex
    text: _MakeType = text_type
    name: _MakeType = text_type


_ON_MYSQL: Final[dict[str, Any]] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
"""Options of tables that MySQL needs: transactions, and all characters."""

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
        field_columns: those of them that fields are copied to.
        vectors: fields that hold a vector, which is not in ``fields``, and in a column only if the dialect has a type
            for it: then these are the last of ``names``.
    """

    def __init__(
        self,
        table: str,
        mode: Mode,
        columns: Mapping[str, str],
        types: ColumnTypes,
        vectors: Mapping[str, VectorField] | None = None,
    ) -> None:
        self.vectors = dict(vectors or {})
        self.vector_columns = tuple(self.vectors) if types.vector else ()
        self._vector_text = types.vector_text
        self.appends = mode == "append"
        self.key = "delivery_hash" if self.appends else "id"
        self._printed_json = types.printed_json
        self.field_columns = tuple(columns)
        self._extra = tuple(columns.values())
        self.table = table
        self._schema, _, self._name = table.rpartition(".")
        self._types = types
        own = ("operation",) if self.appends else ()
        self.names = (*(n for n, _, _ in STANDARD), *own, *columns, *self.vector_columns)

    @cached_property
    def documents(self) -> sa.Table:
        """Table with a row an id, or a row per delivery."""
        types = self._types
        standard: dict[_Kind, _MakeType] = {
            "key": types.key,
            "text": types.text,
            "number": sa.BigInteger,
            "json": types.json,
        }
        return self._table(
            self._name,
            *(sa.Column(n, standard[kind](), nullable=null, primary_key=n == self.key) for n, kind, null in STANDARD),
            *((sa.Column("operation", types.text(), nullable=False),) if self.appends else ()),
            *(sa.Column(name, types.field()) for name in self.field_columns),
            *(sa.Column(name, types.vector(self.vectors[name])) for name in self.vector_columns if types.vector),
        )

    @cached_property
    def tombstones(self) -> sa.Table:
        """Table of ids that were deleted."""
        return self._table(
            self._name + TOMBSTONES,
            sa.Column("id", self._types.key(), primary_key=True, nullable=False),
            sa.Column("sequence", sa.BigInteger(), nullable=False),
            sa.Column("delivery_hash", self._types.text(), nullable=False),
        )

    @cached_property
    def identities(self) -> sa.Table:
        """Table of the identities of tables."""
        return self._table(
            IDENTITIES,
            sa.Column("name", self._types.name(), primary_key=True, nullable=False),
            sa.Column("id", self._types.text(), nullable=False),
        )

    @cached_property
    def writers(self) -> sa.Table:
        """Table of the highest sequences that were written."""
        return self._table(
            WRITERS,
            sa.Column("name", self._types.name(), primary_key=True, nullable=False),
            sa.Column("writer", self._types.name(), primary_key=True, nullable=False),
            sa.Column("sequence", sa.BigInteger(), nullable=False),
        )

    def _table(self, name: str, *columns: sa.Column[Any]) -> sa.Table:
        return sa.Table(name, sa.MetaData(schema=self._schema or None), *columns, **_ON_MYSQL)

    def create(self, connection: sa.Connection, where: str) -> bool:
        """Create the tables that do not exist; return whether the one for documents is new.

        Raises:
            Misconfigured: an existing table does not fit.
        """
        is_new = not sa.inspect(connection).has_table(self.documents.name, self.documents.schema)
        self.identities.create(connection, checkfirst=True)
        self.writers.create(connection, checkfirst=True)
        if is_new:
            self._forget(connection)
            self.documents.create(connection)
        if not self.appends:
            self.tombstones.create(connection, checkfirst=True)
        with databases.without_warnings():
            self._check(connection, where)
        self._identify(connection)
        self._remember_vectors(connection, where)
        return is_new

    def _remember_vectors(self, connection: sa.Connection, where: str) -> None:
        """Note for which vectors the table was made, or compare with the note."""
        notes = self.identities
        for name in self.vectors:
            key = f"{self.documents.name}#{name}"
            there = connection.scalar(sa.select(notes.c.id).where(notes.c.name == key))
            text = self.vector_note(name, there, where)
            if there is None:
                connection.execute(sa.insert(notes).values(name=key, id=text))
            elif text != there:
                connection.execute(sa.update(notes).where(notes.c.name == key).values(id=text))

    def vector_note(self, name: str, there: str | None, where: str) -> str:
        """Return what is to be noted of a vector, given the note that is there.

        Raises:
            Misconfigured: the table was made for another number of dimensions, or another model.
        """
        field = self.vectors[name]
        note = field.remembered()
        if there is not None:
            note = check_remembered(where, name, field, _decode_json(there), "table")
        return _json(note).decode()

    def check_vectors(self, connection: sa.Connection, where: str) -> None:
        """Compare the vectors with those that the table was made for, before a question; nothing is changed.

        Raises:
            UsageError: there is no such table.
            Misconfigured: they have another number of dimensions, or are another model's.
        """
        inspector, schema = sa.inspect(connection), self.documents.schema
        if not inspector.has_table(self.documents.name, schema):
            raise UsageError(f"{where}: there is no such table. Run the plan first.")
        if not inspector.has_table(self.identities.name, schema):
            return
        notes = self.identities
        for name, field in self.vectors.items():
            key = f"{self.documents.name}#{name}"
            there = connection.scalar(sa.select(notes.c.id).where(notes.c.name == key))
            if there is not None:
                check_remembered(where, name, field, _decode_json(there), "table")

    def _forget(self, connection: sa.Connection) -> None:
        """Remove what is remembered of a table that was dropped. On MySQL, where creating a table commits, this must
        come before the new one."""
        names = sa.type_coerce(self.identities.c.name, sa.Text())
        notes = names.startswith(f"{self.documents.name}#", autoescape=True)
        connection.execute(sa.delete(self.identities).where((self.identities.c.name == self.documents.name) | notes))
        connection.execute(sa.delete(self.writers).where(self.writers.c.name == self.documents.name))

    def _identify(self, connection: sa.Connection) -> None:
        """Give the table an identity, if it has none."""
        name = self.identities.c.name == self.documents.name
        if connection.execute(sa.select(self.identities.c.id).where(name)).first() is None:
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
        if self.vector_columns:
            rows = ((*row, *self._vector_texts(d)) for row, d in zip(rows, chunk, strict=True))
        return rows

    def _vector_texts(self, delivery: Delivery) -> Iterator[str | None]:
        vectors = self.vectors_of(delivery)
        return (self._vector_text(vectors[name]) if name in vectors else None for name in self.vector_columns)

    def vectors_of(self, delivery: Delivery) -> dict[str, bytes]:
        """Return field -> vector as float32 bytes; fields without one are left out.

        Raises:
            BadDocument: a value is not such a vector.
        """
        if delivery.operation == "delete":
            return {}
        vectors = {name: read_vector(delivery.fields.get(name), name, field) for name, field in self.vectors.items()}
        return {name: vector.tobytes() for name, vector in vectors.items() if vector is not None}

    def _row(self, d: Delivery) -> tuple[Any, ...]:
        """Return the values of the standard columns."""
        text = None if d.raw is None else d.text()
        vectors: dict[str, bytes] = {}
        if self.appends and d.operation == "delete":
            fields, text = b"", None
        elif self.vectors:
            fields = encode_fields({name: value for name, value in d.fields.items() if name not in self.vectors})
            vectors = self.vectors_of(d)
        else:
            fields = d._fields_json
        route = _json(d.route).decode() if d.route else "[]"
        names = (d.id, d.parent_id, d.origin_id, d.source, d.version, d.sequence, d.hash, route)
        row = (*names, text, fields.decode() or None, self._content_hash(names, d.operation, text, fields, vectors))
        return (*row, d.operation) if self.appends else row

    def _content_hash(
        self, names: tuple[Any, ...], operation: str, text: str | None, fields: bytes, vectors: Mapping[str, bytes]
    ) -> str:
        """Return the value of the column ``content_hash``.

        Args:
            names: values of the columns before ``text``.
            fields: JSON; b"" for NULL.
            vectors: those that there are, so that a row without has the hash that it had before there were any.
        """
        numbers = [part for name in sorted(vectors) for part in (name, vectors[name])]
        if self._printed_json is None:
            return content_hash(*names, operation, text, fields, *numbers)
        if text is not None and "\0" in text:
            text = text.replace("\0", "\ufffd")
        return self._printed_hash(names, operation, text, fields, numbers)

    def _printed_hash(
        self, names: Sequence[Any], operation: str, text: str | None, fields: bytes, numbers: Sequence[str | bytes]
    ) -> str:
        assert self._printed_json is not None
        route = "[]" if names[-1] == "[]" else self._printed_json(names[-1].encode()).decode()
        own = (operation,) if self.appends else ()
        texts = (*names[:5], str(names[5]), names[6], route, *own, text, *numbers)
        return printed_hash(texts, self._printed_json(fields) if fields else b"")

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

    def stored_columns(
        self, rows: Sequence[tuple[Any, ...]], types: Sequence[bool], vectors: Sequence[str]
    ) -> StoredColumns:
        """Return what rows hold, see ``base.Stored``; each has the numbers of these vectors at its end.

        Most rows have no vectors or columns of their own, and are as they were written: together these take a fourth of
        the time.
        """
        if not (self.appends or self._extra or vectors) and (page := self._intact(rows)):
            return page
        end = len(self.names)
        stored = (self.stored(row[:end], types, dict(zip(vectors, row[end:], strict=True))) for row in rows)
        return StoredColumns(*zip(*stored, strict=True))

    def _intact(self, rows: Sequence[tuple[Any, ...]]) -> StoredColumns | None:
        """Return what rows of the standard columns hold; None: some of them are not as they were written."""
        ids, parents, origins, sources, versions, sequences, hashes, routes, texts, fields, written = zip(
            *rows, strict=True
        )
        try:
            names = (ids, parents, origins, sources, versions, sequences, hashes, routes)
            values = zip(*names, repeat("upsert"), texts, map(str.encode, fields), strict=False)
            if tuple(content_hashes(values)) != written:
                return None
            return intact_columns(ids, hashes, sources, versions, routes)
        except (ValueError, TypeError, ArithmeticError, RecursionError):  # not what we wrote
            return None

    def stored(
        self, row: Sequence[Any], types: Sequence[bool], vectors: Mapping[str, bytes | None] | None = None
    ) -> Stored:
        """Return what a row holds.

        Args:
            row: values of the columns ``names``, JSON as text; then, if the database can tell it, of each column of
                ``columns=`` whether it has its field's value, converted to the column's type; None: unknown.
            types: of each column of ``columns=``, whether it has text as it was written.
            vectors: of each field that holds a vector, the bytes as float32; None: it has none.
        """
        *names, text, fields, written_hash = row[: len(STANDARD)]
        operation = row[len(STANDARD)] if self.appends else "upsert"
        id, _, _, source, version, _, delivery_hash, route = names
        try:
            branches = () if route == "[]" else tuple(map(_as_text, _decode_json(route)))
            intact = None
            numbers = [x for name, v in sorted((vectors or {}).items()) if v is not None for x in (name, v)]
            if written_hash is not None:
                intact = self._has_hash(written_hash, names, operation, text, fields, numbers)
            if intact and self._extra:
                end = len(self.names) - len(self.vector_columns)
                intact = self._has_same_columns(
                    fields, row[end - len(self._extra) : end], types, row[len(self.names) :]
                )
        except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):  # not what we wrote
            branches, intact = (), False
        if not intact:
            id, delivery_hash, source, version = map(_as_text, (id, delivery_hash, source, version))
        return Stored(id, delivery_hash, intact, source, version, branches)

    def _has_hash(
        self,
        written: str,
        names: list[Any],
        operation: str,
        text: str | None,
        fields: str | None,
        numbers: list[str | bytes],
    ) -> bool:
        json = b"" if fields is None else fields.encode()
        if self._printed_json is None:
            return content_hash(*names, operation, text, json, *numbers) == written
        if self._printed_hash(names, operation, text, json, numbers) == written:
            return True
        names[-1] = _json(_decode_json(names[-1])).decode()  # of a row from before there was ``printed_hash``
        return content_hash(*names, operation, text, json and canonical_json(json), *numbers) == written

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
        missing = [column for column in self.names if column.lower() not in there]
        if vectors := [name for name in missing if name in self.vector_columns]:
            raise made_without_vectors(where, vectors)
        if missing:
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


def printed_hash(texts: Sequence[str | bytes | None], json: bytes) -> str:
    """Return a hash over these texts and JSON as the database prints it, which the database can compute, too: the first
    half of the SHA-256 of the numbers of bytes of the texts, each followed by a comma, and of all of them; without a
    number for NULL."""
    values = [each.encode() if isinstance(each, str) else each for each in texts]
    sizes = "%s," * len(values) % tuple(["" if each is None else len(each) for each in values])
    return sha256(b"".join([sizes.encode(), *filter(None, values), json])).hexdigest()[:HASH_DIGITS]


def intact_columns(
    ids: Sequence[str], hashes: Sequence[str], sources: Sequence[str], versions: Sequence[str], routes: Sequence[str]
) -> StoredColumns:
    """Return rows that are as they were written, whose routes are JSON."""
    branches: Sequence[tuple[str, ...]] = ((),) * len(ids)
    if routes.count("[]") < len(ids):
        branches = [tuple(map(_as_text, _decode_json(route))) for route in routes]
    return StoredColumns(ids, hashes, (True,) * len(ids), sources, versions, branches)


def made_without_vectors(where: str, names: Sequence[str]) -> Misconfigured:
    """Return the error for a table whose documents were written without these vectors."""
    return Misconfigured(
        f"{where}: the table is there, and was made without vectors of {', '.join(names)}. Give the plan a higher "
        "version and this destination another table=, and run it with --from-version: all documents are written there, "
        "and the table that is there can be searched meanwhile."
    )


def _as_text(value: Any) -> str:
    """Return a value that somebody may have made something else than text as text."""
    return value if isinstance(value, str) else str(value)
