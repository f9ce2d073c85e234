"""A destination in a relational database: a row per document, or a row per delivery."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, get_args

from ferryman.destinations.base import (
    Delivery,
    DestinationContext,
    Effect,
    Facts,
    Hit,
    Outcome,
    Stored,
    StoredColumns,
    StoredPages,
    parse_query,
    writer_name,
)
from ferryman.destinations.sql.backends import BACKENDS, dialect_of
from ferryman.destinations.sql.dialect import Dialect, Writer
from ferryman.destinations.sql.layout import RESERVED, STANDARD, Layout, Mode
from ferryman.destinations.vectors import (
    FUSED,
    Declaration,
    Filter,
    VectorDestination,
    Where,
    declaration_findings,
    fuse_ranks,
    read_filter,
    read_question,
    read_vectors,
    vector_fields,
)
from ferryman.document import decode_json
from ferryman.errors import Misconfigured, PlanError, UsageError
from ferryman.net import databases
from ferryman.net.databases import sqlalchemy as sa

if TYPE_CHECKING:
    import numpy as np

REFUSED: Final = "the database refuses it"
"""Beginning of the reasons of refused deliveries: without the id, so that equal faults have equal texts."""


class Sql(VectorDestination):
    """Writes documents into a table, which is made if it is not there. SQLite, PostgreSQL, MySQL and MariaDB.

    ``Sql("sqlite:///index.db", columns={"title": "title"}, full_text=["title", "text"])`` keeps one row per id, the
    title in a column of its own, and an index to search both with (``ferryman search index.db "henry"``).
    ``Sql("postgresql://me@host/db", …)`` does the same on a server (``pip install 'ferryman[postgres]'``).
    ``Sql("mysql://me@host/db", …)`` (or ``mariadb://``) keeps the rows, without ``full_text`` and ``vectors`` (``pip
    install 'ferryman[mysql]'``).

    The columns: ``id``, ``parent_id``, ``origin_id``, ``source``, ``version``, ``sequence``, ``delivery_hash``,
    ``route`` (a JSON list), ``text`` (the raw bytes decoded as UTF-8; NULL without raw), ``fields`` (JSON) and
    ``content_hash``, by which ``ferryman verify`` sees whether somebody has changed the row.

    After a kill any chunk may be written again, also by two workers at once: a chunk is one transaction, and holds
    hashes, tombstones, rows and index. So a delivery is there once, whole, or not at all; and once ``write`` has
    returned, a power cut does not undo it. A connection that is lost while it commits leaves the chunk in doubt: it is
    written again, and the hashes tell what is there.

    SQLite takes one writer at a time. On the others any number write at once; only chunks with deletes wait for the
    others. Of two writers of an id the higher sequence wins.

    Args:
        url: an SQLAlchemy URL. A relative path of a file is relative to the plan file's folder; in a program, to the
            current folder. PostgreSQL: ``postgresql://`` (psycopg 3); leave the password to ``PGPASSWORD`` or
            ``~/.pgpass`` where the workers have them. MySQL and MariaDB: ``mysql://`` or ``mariadb://`` (PyMySQL);
            leave the password to an option file: ``?read_default_file=~/.my.cnf``.
        table: its name; on PostgreSQL also ``schema.table``, of a schema that is there; on MySQL ``database.table``.
            ``<table>_tombstones`` remembers deletes, ``<table>_fts`` is the full-text index.
        mode: "upsert": one row per id. An older sequence never overwrites a newer one (stale), a repeated hash changes
            nothing, a delete removes the row and is remembered, so that an older upsert cannot bring it back. "append":
            one row per delivery, deletes too (column ``operation``; their text and fields are NULL); ``delivery_hash``
            is the key, so each delivery is there once.
        columns: column name -> field to copy into it: numbers and text as they are, lists and dicts as JSON text.
            PostgreSQL makes them ``text``, MySQL ``longtext``; give one another type (``ALTER TABLE … ALTER COLUMN …
            TYPE integer``, ``ALTER TABLE … MODIFY … INT``), and values are read as that.
        vectors: field -> dimensions, or a ``VectorField``, of fields that hold a vector; ``nearest`` and ``hybrid`` ask
            for them. PostgreSQL needs its extension pgvector: a column of the field's name. SQLite keeps them in
            ``<table>_vectors``, and compares a question with each of them (``pip install 'ferryman[vectors]'``).
        full_text: columns to search (FTS5 on SQLite, a GIN index over a generated column ``fts`` on PostgreSQL). An
            index that another Sql made for the table is kept right in any case.

    A value that the database cannot hold (a lone surrogate, an integer beyond 64 bit in a column of SQLite, text that
    its column's type does not take, more than SQLite's or PostgreSQL's 1 GB, or than MySQL's ``max_allowed_packet``) is
    a permanent outcome of its delivery; the others of the chunk are written. PostgreSQL has no NUL characters: in text
    and fields U+FFFD stands for them, as it does for bytes that are no text; an id that has one is refused.
    """

    facts: ClassVar[Facts] = Facts(
        stored="a row an id, and a tombstone an id that was deleted (append: a row a delivery), with hash and "
        "sequence; vectors as numbers of 32 or 16 bit, which are not in `fields` then",
        limits=(
            "SQLite: 1 GB a value, integers of 64 bit",
            "PostgreSQL: 1 GB a value, ids of some 2700 bytes, 1 MB of different words to search, no NUL",
            "MySQL and MariaDB: ids of 3072 bytes, a row of `max_allowed_packet`",
            "vectors of 16 000 dimensions; PostgreSQL's index `hnsw`: 2 000, or 4 000 of 16 bit",
        ),
        tested=(
            "the SQLite that Python has",
            "PostgreSQL 18",
            "MariaDB 10.11",
            "MySQL 8.0",
            "pgvector 0.8.5",
            "sqlite-vec 0.1.9",
        ),
    )
    effect = Effect.IDEMPOTENT
    transactional = True
    compares_sequences = True
    preferred_batch: ClassVar[int | None] = 10_000
    """A transaction's fixed cost (an fsync, a segment of the full-text index) is shared by so many: half as dear
    a document as with 500, and still below what ``batch_bytes`` allows for short documents."""

    def __init__(
        self,
        url: str,
        table: str = "documents",
        mode: Mode = "upsert",
        columns: Mapping[str, str] | None = None,
        full_text: Sequence[str] | None = None,
        vectors: Declaration | None = None,
    ) -> None:
        """Raises ``PlanError`` with everything that is wrong with the arguments."""
        self.columns = dict(columns or {})
        self.full_text = tuple([full_text] if isinstance(full_text, str) else full_text or ())
        self.table = table
        self.mode: Mode = mode
        self.vectors = vector_fields(vectors) if isinstance(vectors, Mapping) else {}
        if findings := [*declaration_findings(vectors), *self._findings(url)]:
            raise PlanError([f"Sql(table={table!r}): {finding}" for finding in findings])
        self.url = databases.absolute_url(url)
        self._writer: Writer | None = None

    def _findings(self, url: str) -> Iterator[str]:
        reserved = set(RESERVED)
        try:
            parsed = None if databases.file_of(url) else databases.parse_url(url)
        except UsageError as e:
            yield str(e)
        else:
            backend = "sqlite" if parsed is None else parsed.get_backend_name()
            if backend not in BACKENDS:
                yield f"{backend} is not supported. Use sqlite:///index.db, postgresql://host/db or mysql://host/db"
            else:
                dialect = dialect_of(backend)
                reserved |= set(dialect.reserved)
                if parsed is not None:
                    yield from dialect.url_findings(parsed)
                yield from dialect.argument_findings(self.table, self.full_text, self.columns)
                yield from dialect.vector_findings(self.vectors, self.table)
        if self.mode not in get_args(Mode):
            yield f"mode={self.mode!r}: use 'upsert' or 'append'"
        if not self.table:
            yield "a table needs a name"
        for name in self.columns:
            if not name or name.lower() in reserved:
                yield f"columns: {name!r} is the name of one of Sql's own columns; give the field another column name"
        lower: dict[str, str] = {}
        for name in self.columns:
            if (other := lower.setdefault(name.lower(), name)) != name:
                yield f"columns: {other} and {name} differ only in case, which SQL does not see: rename one of them"
        if self.vectors and self.mode == "append":
            yield "vectors: mode='append' keeps old versions of documents, which a question would find: use 'upsert'"
        taken = reserved | set(map(str.lower, self.columns)) | {"id"}
        for name in self.vectors:
            if isinstance(name, str) and name.lower() in taken:
                yield f"vectors: {name!r} is the name of another column; give the field another name in a step"
        known = {*(name for name, _, _ in STANDARD), *self.columns}
        for name in self.full_text:
            if name not in known:
                yield f"full_text: there is no column {name!r}; copy the field into one: columns={{{name!r}: {name!r}}}"
        if len(set(self.full_text)) < len(self.full_text):
            yield "full_text: a column is named twice"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_writer": None}

    @property
    def keyed_by_id(self) -> bool:  # type: ignore[override]
        """One row an id, unless it appends."""
        return self.mode == "upsert"

    @property
    def single_writer(self) -> bool:  # type: ignore[override]
        """On SQLite."""
        return self._dialect.single_writer

    @property
    def _url(self) -> sa.URL:
        return sa.make_url(self.url)

    @property
    def _dialect(self) -> Dialect:
        return dialect_of(databases.backend_of(self.url))

    @property
    def _layout(self) -> Layout:
        return Layout(self.table, self.mode, self.columns, self._dialect.column_types, self.vectors)

    def target(self) -> str:
        place = self.url if databases.file_of(self.url) else self._dialect.place(self._url)
        return f"{place}#{self.table}"

    def known_fields(self) -> dict[str, str]:
        types = {name: kind for name, kind, _ in STANDARD}
        return {str(name): types.get(name, "") for name in self._layout.names}

    def local_paths(self) -> tuple[str, ...]:
        """Return the folder of SQLite's file."""
        if databases.backend_of(self.url) != "sqlite":
            return ()
        path = databases.file_of(self.url) or self._url.database
        return (os.path.dirname(path),) if path else ()

    def check(self) -> None:
        """Make database (SQLite), tables and index, if they are not there; any number of drivers may do so at once.

        Raises:
            TransientError: locked by another program for too long, the disk is full, or the server is down.
            PermanentError: no such folder or database, no right to write, a table that is not Ferryman's.
        """
        where = self.target()
        with self._dialect.translated_errors(where):
            self._dialect.prepare(self._url, self._layout, self.full_text, where)

    def durability_risk(self) -> str:
        with self._dialect.translated_errors(self.target()):
            return str(self._dialect.ask(self.url, self._dialect.durability_risk))

    def identity(self) -> str | None:
        """Return the identity that the table got when it was made, or first used."""
        with self._dialect.translated_errors(self.target()):
            try:
                return self._dialect.identity(self.url, self._layout)
            except UsageError:
                return ""  # there is no such file

    def highest_sequence(self) -> int | None:
        """Return the highest sequence of rows and tombstones."""
        layout = self._layout
        tables = [layout.documents] if layout.appends else [layout.documents, layout.tombstones]

        def ask(connection: sa.Connection) -> list[int | None]:
            return [connection.scalar(sa.select(sa.func.max(t.c.sequence))) for t in tables]

        with self._dialect.translated_errors(self.target()):
            return max((n for n in self._dialect.ask(self.url, ask) if n is not None), default=None)

    def highest_of(self, context: DestinationContext) -> int | None:
        """Return the highest sequence of the state's deliveries, by the table ``ferryman_writers``."""
        with self._dialect.translated_errors(self.target()):
            try:
                return self._dialect.highest_of(self.url, self._layout, writer_name(context))
            except UsageError:
                return None  # there is no such file

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        """Yield the rows, see ``Destination.inventory``.

        Raises:
            Unavailable: the database cannot be read now.
            Misconfigured: the table lacks a column.
        """
        return StoredPages(self._pages(ids))

    def _pages(self, ids: Collection[str] | None) -> Iterator[StoredColumns]:
        with self._dialect.translated_errors(self.target()):
            yield from self._dialect.inventory(self.url, self._layout, ids)

    def lookup(self, id: str) -> Hit | None:
        """Return the row of this id, of several the newest, see ``Destination.lookup``.

        Raises:
            Unavailable: the database cannot be read now.
            Misconfigured: it is not there, or lacks a column.
        """
        rows = self._layout.documents.c
        query = sa.select(rows.text, rows.fields).where(rows.id == id).order_by(rows.sequence.desc()).limit(1)
        with self._dialect.translated_errors(self.target()):
            engine = self._dialect.open_reader(self._url)
            try:
                with engine.connect() as connection:
                    found = connection.execute(query).first()
            except Exception as e:
                if not self._dialect.is_row_error(e):
                    raise
                return None  # an id that the database cannot hold
            finally:
                engine.dispose()
        if found is None or found.fields is None:  # fields are null in a delete that was appended
            return None
        fields = found.fields if isinstance(found.fields, dict) else decode_json(found.fields)
        kept = {name: value for name, value in fields.items() if name not in self.vectors}
        return Hit(id, None, "", 0.0, fields=kept, text=found.text)

    def maintain(self) -> list[str]:
        """Build indexes over vectors, if they are not there and there are rows."""
        if not self.vectors:
            return []
        with self._dialect.translated_errors(self.target()):
            return self._dialect.maintain(self.url, self._layout, self.target())

    def open(self, context: DestinationContext) -> None:
        with self._dialect.translated_errors(self.target()):
            self._writer = self._dialect.writer(self._url, self._layout, writer_name(context))

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """One transaction per chunk; more only if the database does not take some value of it.

        Raises:
            Unavailable: locked for too long, the disk is full, or the connection was lost.
            Misconfigured: the database or its table is not fit any more.
        """
        if self._writer is None:
            raise Misconfigured(f"{self.target()}: write before open")
        dialect = self._dialect
        with dialect.translated_errors(self.target()):
            if not self.vectors:
                return _write_or_split(self._writer, chunk, dialect)
            outcomes: list[Outcome | None] = [None] * len(chunk)
            rows = read_vectors(chunk, self.vectors, outcomes)
            written = _write_or_split(self._writer, rows.deliveries, dialect)
        for position, outcome in zip(rows.positions, written, strict=True):
            outcomes[position] = outcome
        return [outcome for outcome in outcomes if outcome is not None]

    @property
    def has_full_text(self) -> bool:
        """Return whether it has a full-text index."""
        return bool(self.full_text)

    def nearest(self, field: str, vector: Sequence[float], limit: int = 10, where: Where | None = None) -> list[Hit]:
        with self._open_question(field, vector, where) as (dialect, connection, question, wanted):
            return dialect.nearest(connection, self._layout, field, question, limit, wanted) if limit > 0 else []

    def hybrid(
        self, text: str, field: str, vector: Sequence[float], limit: int = 10, where: Where | None = None
    ) -> list[Hit]:
        """Fuse the ranks of words and of vectors, see ``VectorDestination.hybrid``.

        Raises:
            UsageError: also if the table has no full-text index.
        """
        query, depth = parse_query(text), max(limit, FUSED)
        with self._open_question(field, vector, where) as (dialect, connection, question, wanted):
            if not dialect.is_indexed(connection, self.table):
                raise UsageError(
                    f"{self.target()}: the table has no full-text index: give the plan full_text=['text']."
                )
            near = dialect.nearest(connection, self._layout, field, question, depth, wanted)
            found = dialect.find(connection, self.table, query, depth, ("", ""), wanted) if query else []
        return fuse_ranks(near, found, limit=max(limit, 0))

    @contextmanager
    def _open_question(
        self, field: str, vector: Any, where: Where | None
    ) -> Iterator[tuple[Dialect, sa.Connection, np.ndarray[Any, Any], Filter]]:
        """Open a reader for a question, and read the question itself."""
        question, wanted, dialect = read_question(self.vectors, field, vector), read_filter(where), self._dialect
        with dialect.translated_errors(self.target()):
            engine = dialect.open_vector_reader(self._url)
            try:
                with engine.connect() as connection:
                    self._layout.check_vectors(connection, self.target())
                    yield dialect, connection, question, wanted
            finally:
                engine.dispose()

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _write_or_split(writer: Writer, chunk: list[Delivery], dialect: Dialect) -> list[Outcome]:
    """Write a chunk; if the database refuses one of its deliveries, write it in halves, so that the others succeed."""
    if not chunk:
        return []
    try:
        return writer.write(chunk)
    except Exception as e:
        if not dialect.is_row_error(e):
            raise
        if len(chunk) == 1:
            return [Outcome.permanent(str(dialect.explain(e, REFUSED)))]
    middle = len(chunk) // 2
    return _write_or_split(writer, chunk[:middle], dialect) + _write_or_split(writer, chunk[middle:], dialect)
