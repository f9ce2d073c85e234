"""Writing to SQLite: chunks as transactions that take the write lock."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ferryman.destinations.base import (
    SNIPPET_WORDS,
    Delivery,
    Hit,
    LastDelivery,
    Outcome,
    Query,
    StoredColumns,
    Term,
    compare,
    slices,
)
from ferryman.destinations.sql import dialect, sqlite_vectors
from ferryman.destinations.sql.dialect import Dialect, index_mismatch
from ferryman.destinations.sql.layout import IDENTITIES, TOMBSTONES, WRITERS, ColumnTypes, Layout, text_type
from ferryman.destinations.vectors import Filter, VectorField
from ferryman.errors import DeliveryError, Misconfigured, PermanentError, Unavailable, UsageError
from ferryman.limits import KIB, MIB
from ferryman.net import databases
from ferryman.net.databases import sqlalchemy as sa
from ferryman.net.faults import database_fault

if TYPE_CHECKING:
    import numpy as np


class _NotNew(Exception):
    """Some of the chunk's ids are stored or have tombstones, so the fast path for new ids fails."""


class SqliteWriter(dialect.Writer):
    """Writes chunks into a table that ``prepare`` has checked.

    Every transaction takes the write lock before it reads, so the hashes and sequences that it has read are still valid
    when it commits, whoever else writes.
    """

    def __init__(self, url: str, layout: Layout, name: str) -> None:
        self._layout = layout
        self._name = name
        self._statements = Statements(layout, numbered=False)
        self._full_text: FullText | None = None
        self._vectors: sqlite_vectors.VectorTable | None = None
        self._schema: int | None = None
        self._connection = open_to_write(url)

    def close(self) -> None:
        self._connection.close()

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        if self._layout.appends:
            with self._transaction(chunk) as connection:
                self._insert(connection, chunk)  # rows whose hash is stored are skipped
            return [Outcome.ok()] * len(chunk)
        if len({d.id for d in chunk}) == len(chunk) and all(d.operation == "upsert" for d in chunk):
            try:
                with self._transaction(chunk) as connection:
                    self._insert_new(connection, chunk)
                return [Outcome.ok()] * len(chunk)
            except _NotNew:
                pass
        with self._transaction(chunk) as connection:
            return self._merge(connection, chunk)

    @contextmanager
    def _transaction(self, chunk: list[Delivery]) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            schema = read_schema(connection)
            if schema != self._schema:  # the first transaction, or the table got an index meanwhile
                self._full_text = FullText.of(connection, self._layout.table)
                self._vectors = sqlite_vectors.VectorTable.of(connection, self._layout)
                self._statements = Statements(self._layout, numbered=self._full_text is not None)
                self._schema = schema
            yield connection
            record_sequence(connection.execute, WRITERS, self._layout.table, self._name, chunk)
            connection.commit()
        except BaseException:
            with suppress(sqlite3.Error):  # the first error is the one to report
                connection.rollback()
            raise

    def _insert_new(self, connection: sqlite3.Connection, chunk: list[Delivery]) -> None:
        """Insert new ids, which are most, without looking them up: the insert itself detects existing ones.

        Raises:
            _NotNew: an id is stored, or has a tombstone; the transaction must be rolled back.
        """
        if self._tombstones(connection, [d.id for d in chunk], at_most=1) or self._insert(connection, chunk) < len(
            chunk
        ):
            raise _NotNew
        if self._vectors is not None:
            self._vectors.insert(connection, chunk)

    def _insert(self, connection: sqlite3.Connection, chunk: list[Delivery]) -> int:
        """Insert and index the rows that are not stored; return their number."""
        statements, full_text = self._statements, self._full_text
        if full_text is None:
            return connection.executemany(statements.insert, statements.rows(chunk)).rowcount
        rowid = full_text.last_rowid(connection)
        rows = statements.rows(chunk, full_text.next_row(connection))
        inserted = connection.executemany(statements.insert, rows).rowcount
        full_text.add_newer(connection, rowid)
        return inserted

    def _merge(self, connection: sqlite3.Connection, chunk: list[Delivery]) -> list[Outcome]:
        """Compare the chunk with the stored rows, and bring each id to the state of its last delivery."""
        layout, statements, full_text = self._layout, self._statements, self._full_text
        ids = {d.id for d in chunk}
        rows = self._known(connection, layout.table, ids)
        tombstones = self._tombstones(connection, ids)
        outcomes, winners = compare(chunk, tombstones | rows)
        upserts = [d for d in winners.values() if d.operation == "upsert"]
        deletes = [d for d in winners.values() if d.operation == "delete"]
        if full_text is not None:
            full_text.remove(connection, winners.keys() & rows.keys())
        if upserts:
            first = 0 if full_text is None else full_text.next_row(connection)
            connection.executemany(statements.upsert, statements.rows(upserts, first))
        connection.executemany(statements.put_tombstones, ((d.id, d.sequence, d.hash) for d in deletes))
        self._delete(connection, layout.table, [d.id for d in deletes if d.id in rows])
        self._delete(connection, layout.table + TOMBSTONES, [d.id for d in upserts if d.id in tombstones])
        if full_text is not None:
            full_text.add(connection, [d.id for d in upserts])
        if self._vectors is not None:
            self._vectors.delete(connection, winners)
            self._vectors.insert(connection, upserts)
        return outcomes

    def _tombstones(
        self, connection: sqlite3.Connection, ids: Collection[str], at_most: int = -1
    ) -> dict[str, LastDelivery]:
        """Return the tombstones of these ids. There are often none at all: one look."""
        tombstones = self._layout.table + TOMBSTONES
        if connection.execute(f"SELECT id FROM {quoted(tombstones)} LIMIT 1").fetchone() is None:
            return {}
        return self._known(connection, tombstones, ids, at_most)

    def _known(
        self, connection: sqlite3.Connection, table: str, ids: Collection[str], at_most: int = -1
    ) -> dict[str, LastDelivery]:
        stored: dict[str, LastDelivery] = {}
        query = f"SELECT id, sequence, delivery_hash FROM {quoted(table)} WHERE id IN "
        for some in slices(ids, IDS_PER_STATEMENT):
            for id, sequence, digest in connection.execute(f"{query}{marks(some)} LIMIT {at_most}", tuple(some)):
                stored[id] = LastDelivery(sequence, digest)
        return stored

    def _delete(self, connection: sqlite3.Connection, table: str, ids: Collection[str]) -> None:
        for some in slices(ids, IDS_PER_STATEMENT):
            connection.execute(f"DELETE FROM {quoted(table)} WHERE id IN {marks(some)}", tuple(some))


def record_sequence(
    execute: Callable[[str, tuple[Any, ...]], object], writers: str, table: str, writer: str, chunk: list[Delivery]
) -> None:
    """Record the highest sequence of a chunk in the table of writers, unless it has a higher one of this writer."""
    execute(
        f"INSERT INTO {writers} (name, writer, sequence) VALUES (?, ?, ?) "
        "ON CONFLICT (name, writer) DO UPDATE SET sequence = max(sequence, excluded.sequence)",
        (table, writer, max(delivery.sequence for delivery in chunk)),
    )


# The full-text index of one SQLite table: FTS5 over the table's own text, without a second copy of it.
#
# The index ``<table>_fts`` is an external-content table: it keeps tokens and reads the text from ``<table>`` where it
# is asked for. Entries are found by ``fts_row``, a number of each row that neither VACUUM nor a dump changes (SQLite's
# own rowid may change). Whoever writes the table must take an entry out *before* its row changes, with the same
# values: ``remove``, change the rows, ``add``. Somebody else's changes are not seen; ``INSERT INTO
# documents_fts(documents_fts) VALUES('rebuild')`` repairs the index after them.

ROW: Final = "fts_row"
"""Column with the number of a row in the index; made when the table gets an index."""

SUFFIX: Final = "_fts"

TOKENIZER: Final = "unicode61 remove_diacritics 2"
"""Tokenizer for words of any script, without case or accents ("Bronte" finds "Brontë"; 2: also stacked accents)."""

HASH_BYTES: Final = 8 * MIB
"""Memory in which FTS5 collects a transaction's words: enough for one segment for a chunk of 5 MiB of text."""

SEGMENTS: Final = 64
"""Segments of one size (the most that FTS5 allows) before it merges them, a little with each chunk; FTS5's own 4 makes
it rewrite the index five times in a million documents, this once. Each segment costs a search about 0.05 ms."""

PAGE_OVERHEAD_BYTES: Final = 46
"""Bytes of a page that SQLite needs beside a leaf of the index: FTS5's default is 4050 of 4096."""

PAGE_ROWS: Final = 64
"""Rows read at a time: so few that they are gone before the garbage collector looks at them, and before a processor's
cache of the second level is full."""

IDS_PER_STATEMENT: Final = 10_000
"""Bound values a statement: SQLite allows 32766 by default."""


class FullText:
    """Full-text index of a table; its methods are used only inside a write transaction."""

    def __init__(self, table: str, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        names = ", ".join(map(quoted, self.columns))
        self._table, self._index = quoted(table), quoted(table + SUFFIX)
        self._row_index = quoted(f"{table}{SUFFIX}_row")
        source = f"SELECT {quoted(ROW)}, {names} FROM {self._table}"
        self._insert_new = f"INSERT INTO {self._index}(rowid, {names}) {source} WHERE rowid > ?"
        self._insert = f"INSERT INTO {self._index}(rowid, {names}) {source} WHERE id IN "
        self._delete = (
            f"INSERT INTO {self._index}({self._index}, rowid, {names}) SELECT 'delete', {quoted(ROW)}, {names} "
            f"FROM {self._table} WHERE {quoted(ROW)} IS NOT NULL AND id IN "
        )

    @classmethod
    def of(cls, connection: sqlite3.Connection, table: str) -> FullText | None:
        """Return the index of this table; None if it has none."""
        columns = connection.execute(f"PRAGMA table_info({quoted(table + SUFFIX)})").fetchall()
        return cls(table, [column[1] for column in columns]) if columns else None

    def create(self, connection: sqlite3.Connection) -> None:
        """Create the index, with all existing rows."""
        known = {column[1] for column in connection.execute(f"PRAGMA table_info({self._table})")}
        if ROW not in known:
            connection.execute(f"ALTER TABLE {self._table} ADD COLUMN {quoted(ROW)} INTEGER")
        connection.execute(
            f"UPDATE {self._table} SET {quoted(ROW)} = rowid + (SELECT coalesce(max({quoted(ROW)}), 0) "
            f"FROM {self._table}) WHERE {quoted(ROW)} IS NULL"
        )
        connection.execute(f"CREATE UNIQUE INDEX IF NOT EXISTS {self._row_index} ON {self._table}({quoted(ROW)})")
        names = ", ".join(map(quoted, self.columns))
        connection.execute(
            f"CREATE VIRTUAL TABLE {self._index} USING fts5({names}, content={self._table}, "
            f'content_rowid={quoted(ROW)}, tokenize="{TOKENIZER}")'
        )
        page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
        for option, value in (
            ("automerge", SEGMENTS),
            ("crisismerge", 2 * SEGMENTS),
            ("hashsize", HASH_BYTES),
            ("pgsz", page_bytes - PAGE_OVERHEAD_BYTES),
        ):
            connection.execute(f"INSERT INTO {self._index}({self._index}, rank) VALUES(?, ?)", (option, value))
        self._command(connection, "rebuild")

    def last_rowid(self, connection: sqlite3.Connection) -> int:
        """Return the table's highest rowid: rows inserted from now on get higher ones."""
        return int(connection.execute(f"SELECT coalesce(max(rowid), 0) FROM {self._table}").fetchone()[0])

    def next_row(self, connection: sqlite3.Connection) -> int:
        """Return the next free number of a row."""
        query = f"SELECT coalesce(max({quoted(ROW)}), 0) + 1 FROM {self._table}"
        return int(connection.execute(query).fetchone()[0])

    def add_newer(self, connection: sqlite3.Connection, rowid: int) -> None:
        """Index the rows that were inserted after this rowid was the table's highest."""
        connection.execute(self._insert_new, (rowid,))

    def add(self, connection: sqlite3.Connection, ids: Iterable[str]) -> None:
        """Index the rows of these ids, as they are now."""
        for some in slices(ids, IDS_PER_STATEMENT):
            connection.execute(self._insert + marks(some), tuple(some))

    def remove(self, connection: sqlite3.Connection, ids: Iterable[str]) -> None:
        """Remove the rows of these ids from the index; call it before they are changed."""
        for some in slices(ids, IDS_PER_STATEMENT):
            connection.execute(self._delete + marks(some), tuple(some))

    def verify(self, connection: sqlite3.Connection) -> None:
        """Compare the whole index with the table; FTS5 raises an error of a damaged database if they differ."""
        self._command(connection, "integrity-check", 1)

    def _command(self, connection: sqlite3.Connection, command: str, rank: int = 0) -> None:
        connection.execute(f"INSERT INTO {self._index}({self._index}, rank) VALUES(?, ?)", (command, rank))


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


def marks(values: Sequence[object]) -> str:
    """Return the marks of these values in a statement, for ``IN``."""
    return f"({', '.join('?' * len(values))})"


# The SQLite dialect of ``Sql``.

_FTS_WORDS: Final = ("rank", "rowid")
"""Column names that FTS5 uses itself."""


def _untyped() -> sa.types.TypeEngine[Any]:
    class Untyped(sa.types.UserDefinedType[Any]):
        """A column without type, which SQLite allows: it keeps numbers as numbers and text as text."""

        cache_ok = True

        def get_col_spec(self, **_: Any) -> str:
            return ""

    return Untyped()


def _json_type() -> sa.JSON:
    return sa.JSON()


class SQLite(Dialect):
    """Dialect of SQLite: a file, one writer at a time, FTS5 for full text."""

    single_writer = True
    column_types = ColumnTypes(field=_untyped, key=text_type, json=_json_type)
    reserved = (ROW,)

    def url_findings(self, url: sa.URL) -> Iterator[str]:
        if databases.is_in_memory(url):
            yield f"{url}: a database in memory is private to one process. Give a file: sqlite:///index.db"

    def argument_findings(self, table: str, full_text: tuple[str, ...], columns: Collection[str]) -> Iterator[str]:
        if table.lower().startswith("sqlite_"):
            yield "SQLite keeps names with sqlite_ for itself: give the table another one"
        if "." in table:
            yield "SQLite has no schemas, as the dot in the table's name would mean: leave it out, or use another file"
        for name in full_text:
            if name.lower() in _FTS_WORDS:
                yield f"full_text: FTS5 has a meaning of its own for {name!r}; copy the field into another column"

    def place(self, url: sa.URL) -> str:
        return url.set(drivername="sqlite", password=None, query={}).render_as_string()

    def prepare(self, url: str, layout: Layout, full_text: tuple[str, ...], where: str) -> None:
        if self._is_prepared(url, layout, full_text, where):
            return
        engine = make_engine(sa.make_url(url))
        prepare(engine)
        with engine.connect() as connection, connection.begin():
            is_new = layout.create(connection, where)
            if layout.vectors:
                sqlite_vectors.prepare(connection, layout, is_new, where)
            if not full_text:
                return
            driver = driver_of(connection)
            index = FullText.of(driver, layout.table)
            if index is None:
                FullText(layout.table, full_text).create(driver)
            elif index.columns != full_text:
                raise index_mismatch(where, index.columns, full_text, f"DROP TABLE {layout.table}{SUFFIX}")

    def _is_prepared(self, url: str, layout: Layout, full_text: tuple[str, ...], where: str) -> bool:
        """Return whether all that ``prepare`` makes is there, and can be written, as it is in most runs: SQLAlchemy
        takes longer to load than all else of a small run.

        Raises:
            Misconfigured: see ``Layout.vector_note``.
        """
        path, table = databases.file_of(url), layout.table
        if path is None or not os.path.isfile(path) or layout.appends:
            return False
        with closing(open_to_write(url)) as database:
            if database.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                return False
            database.execute("BEGIN IMMEDIATE")
            there = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            columns = database.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
            names, key = {column[1].lower() for column in columns}, [column[1] for column in columns if column[5]]
            if not there >= {table, table + TOMBSTONES, IDENTITIES, WRITERS} or key != [layout.key]:
                return False
            notes = dict(database.execute(f"SELECT name, id FROM {IDENTITIES}"))
            noted = {name: notes.get(f"{table}#{name}") for name in layout.vectors}
            index = FullText.of(database, table)
            return (
                table in notes
                and names.issuperset(map(str.lower, layout.names))
                and {*layout.vectors} <= {*sqlite_vectors.columns_of(database.execute, table)}
                and all(note == layout.vector_note(name, note, where) for name, note in noted.items())
                and (not full_text or (index is not None and index.columns == full_text))
            )

    def writer(self, url: str, layout: Layout, name: str) -> SqliteWriter:
        return SqliteWriter(url, layout, name)

    def inventory(self, url: str, layout: Layout, ids: Collection[str] | None) -> Iterator[StoredColumns]:
        if not os.path.isfile(str(databases.file_of(url) or sa.make_url(url).database)):
            return
        with self._open_to_read(url) as database:
            database.execute("BEGIN")  # a second reading of the rows finds what the first one found
            declared = database.execute(f"PRAGMA table_info({quoted(layout.table)})").fetchall()
            if not declared:
                return
            types = {column[1].lower(): column[2].upper() for column in declared}
            there = layout.columns_to_read(types)
            names = ", ".join(f"d.{quoted(name)}" if name in there else "NULL" for name in layout.names)
            vectors = [n for n in sqlite_vectors.columns_of(database.execute, layout.table) if n in layout.vectors]
            more = "".join(f", v.{quoted(name)}" for name in vectors)
            query = f"SELECT {names}{more} FROM {quoted(layout.table)} AS d"
            if vectors:
                query += f" LEFT JOIN {quoted(layout.table + sqlite_vectors.VECTORS)} AS v ON v.id = d.id"
            keep_text = [types[name.lower()] in ("", "TEXT") for name in layout.field_columns]
            for some in ((),) if ids is None else slices(ids, IDS_PER_STATEMENT):
                where = f" WHERE d.id IN ({', '.join('?' * len(some))})" if some else ""
                for rows in _pages(database, query + where, tuple(some)):
                    yield layout.stored_columns(rows, keep_text, vectors)

    def identity(self, url: str, layout: Layout) -> str:
        query = f"SELECT id FROM {IDENTITIES} WHERE name = ? AND EXISTS (SELECT * FROM pragma_table_info(?))"
        return self._first(url, IDENTITIES, query, layout.table, layout.table) or ""

    def highest_of(self, url: str, layout: Layout, writer: str) -> int | None:
        query = f"SELECT sequence FROM {WRITERS} WHERE name = ? AND writer = ?"
        highest: int | None = self._first(url, WRITERS, query, layout.table, writer)
        return highest

    def _first(self, url: str, table: str, query: str, *values: str) -> Any:
        """Return the value that a query of a table finds; None: there is none, or no such table."""
        with self._open_to_read(url) as database:
            if not database.execute(f"PRAGMA table_info({table})").fetchall():
                return None
            row = database.execute(query, values).fetchone()
            return None if row is None else row[0]

    @contextmanager
    def _open_to_read(self, url: str) -> Iterator[sqlite3.Connection]:
        """Open the database to read it, without SQLAlchemy if that is not needed to understand its URL.

        Raises:
            UsageError: see ``open_reader``.
        """
        path = databases.file_of(url)
        if path is not None and os.path.isfile(path) and not os.statvfs(path).f_flag & os.ST_RDONLY:
            with closing(sqlite3.connect(path, BUSY_TIMEOUT_S, check_same_thread=False)) as database:
                database.execute("PRAGMA query_only = ON")
                yield database
            return
        with self.open_reader(sa.make_url(url)).connect() as connection:
            yield driver_of(connection)

    def _explain(self, cause: BaseException, where: str) -> DeliveryError | None:
        if isinstance(cause, OverflowError):
            return PermanentError(f"{where}: {cause} (64 bit). Store the number as text in a step.")
        if isinstance(cause, sqlite3.ProgrammingError) and "binding parameter" in str(cause):
            return PermanentError(f"{where}: {cause}. Make it text or a number in a step.")
        if not isinstance(cause, sqlite3.Error):
            return None
        if fault := database_fault(cause):
            return fault.kind(f"{where}: {cause}: {fault.remedy}.")
        if "no such table" in str(cause):
            return Unavailable(f"{where}: {cause}: it was dropped in use; the next wave makes it again.")
        if "no such module: fts5" in str(cause):
            return Misconfigured(f"{where}: this Python's SQLite has no FTS5: leave full_text= out, or use another.")
        if "no such column" in str(cause) or "has no column" in str(cause):
            return Misconfigured(f"{where}: {cause}: the table was changed; restore the column, or drop the table.")
        return None

    def vector_findings(self, vectors: Mapping[str, VectorField], table: str) -> Iterator[str]:
        return sqlite_vectors.declaration_findings(vectors)

    def open_vector_reader(self, url: sa.URL) -> sa.Engine:
        return self._open(url, sqlite_vectors.connect)

    def nearest(
        self,
        connection: sa.Connection,
        layout: Layout,
        field: str,
        question: np.ndarray[Any, Any],
        limit: int,
        wanted: Filter,
    ) -> list[Hit]:
        return sqlite_vectors.find(connection, layout, field, question, limit, wanted)

    def open_reader(self, url: sa.URL) -> sa.Engine:
        return self._open(url, sqlite3.connect)

    def _open(self, url: sa.URL, connect: Callable[..., sqlite3.Connection]) -> sa.Engine:
        path = str(url.database)
        if not path.startswith("file:") and not os.path.isfile(path):
            raise UsageError(
                f"{path}: there is no such file. Give the database that the plan's Sql destination writes."
            )
        return reader(url if path.startswith("file:") else _readable_url(url, path), connect)

    def is_indexed(self, connection: sa.Connection, table: str) -> bool:
        return FullText.of(driver_of(connection), table) is not None

    def find(
        self,
        connection: sa.Connection,
        table: str,
        query: Query,
        limit: int,
        mark: tuple[str, str],
        wanted: Filter | None = None,
    ) -> list[Hit]:
        known = {column[1] for column in connection.exec_driver_sql(f"PRAGMA table_info({quoted(table)})")}
        title = "d.title" if "title" in known else "NULL"
        index, documents, row = quoted(table + SUFFIX), quoted(table), quoted(ROW)
        condition, values = sqlite_vectors.filter_sql(wanted or {})
        statement = (
            f"SELECT d.id, {title}, snippet({index}, -1, ?, ?, '…', {SNIPPET_WORDS}), {index}.rank FROM {index} "
            f"JOIN {documents} AS d ON d.{row} = {index}.rowid WHERE {index} MATCH ? AND {condition} "
            f"ORDER BY {index}.rank LIMIT ?"
        )
        rows = connection.exec_driver_sql(statement, (*mark, _match(query), *values, limit))
        return [
            Hit(id, None if title is None else str(title), snippet or "", rank) for id, title, snippet, rank in rows
        ]


def _match(query: Query) -> str:
    """Return a query in FTS5's syntax: quoted strings, so that no character has a meaning but ``"`` and a final
    ``*``."""
    return " OR ".join(f"({' AND '.join(map(_match_term, terms))})" for terms in query)


def _match_term(term: Term) -> str:
    star = "*" if term.is_prefix else ""
    return "(" + " OR ".join(f'"{phrase}"{star}' for phrase in term.spellings()) + ")"


# SQLite's files, locks and settings.

BUSY_TIMEOUT_S: Final = 30.0
"""Time to wait for another writer's transaction: half of what a ``write`` may take."""

PAGE_BYTES: Final = 16 * KIB
"""Page size of a new database: saves 1 to 2 µs a document compared to SQLite's 4 KiB with a full-text index."""

CACHE_BYTES: Final = 64 * MIB
"""Pages kept in memory by a writer: holds the upper parts of the indexes, and the segments that FTS5 merges."""

WAL_BYTES: Final = 64 * MIB
"""Size at which the log is copied into the database: pages that many chunks change are then copied only once."""


def driver_of(connection: sa.Connection) -> sqlite3.Connection:
    """Return the driver's own connection."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def open_to_write(url: str) -> sqlite3.Connection:
    """Open a database to write it, without SQLAlchemy if that is not needed to understand its URL: it takes longer to
    load than to write a few rows."""
    path = databases.file_of(url)
    of_url: Mapping[str, Any] = {}
    if path is None:
        parsed = sa.make_url(url)
        [path], of_url = parsed.get_dialect()().create_connect_args(parsed)
    options: dict[str, Any] = {"timeout": BUSY_TIMEOUT_S, **of_url, "isolation_level": None, "check_same_thread": False}
    connection: sqlite3.Connection = sqlite3.connect(path, **options)
    try:
        _set_up_session(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def make_engine(url: sa.URL) -> sa.Engine:
    """Return an engine without a pool whose transactions take the write lock at their start.

    A transaction that reads first and writes later would fail at its first write if another process wrote in between;
    with BEGIN IMMEDIATE the hashes and sequences that were read are still valid at the write.
    """
    engine = sa.create_engine(
        url,
        poolclass=sa.NullPool,
        connect_args={"isolation_level": None, "check_same_thread": False, **_timeout_options(url)},
    )
    sa.event.listen(engine, "connect", _set_up_session)
    sa.event.listen(engine, "begin", _begin)
    return engine


def reader(url: sa.URL, connect: Callable[..., sqlite3.Connection] = sqlite3.connect) -> sa.Engine:
    """Return an engine that changes nothing, and creates no file."""
    arguments, options = url.get_dialect()().create_connect_args(url)
    engine = sa.create_engine(
        url, poolclass=sa.NullPool, creator=lambda: connect(*arguments, **{**options, **_timeout_options(url)})
    )
    sa.event.listen(engine, "connect", lambda connection, _record: connection.execute("PRAGMA query_only = ON"))
    return engine


def _readable_url(url: sa.URL, path: str) -> sa.URL:
    """Return the URL by which a file can be read where it is.

    SQLite makes two files beside a database in WAL mode, also to read it. On a read-only disk it opens such a database
    only if it is told that nobody changes it.

    Raises:
        UsageError: a writer's last changes are in the WAL still, which is not read then.
    """
    if not os.statvfs(path).f_flag & os.ST_RDONLY or os.path.exists(f"{path}-shm"):
        return url
    wal = f"{path}-wal"
    if os.path.exists(wal) and os.path.getsize(wal):
        raise UsageError(
            f"{path}: its last changes are in {wal}, which cannot be read on a read-only disk. Copy both files to a "
            "disk that can be written, and search there."
        )
    return sa.URL.create("sqlite", database=f"file:{quote(path)}", query={"immutable": "1", "uri": "true"})


def _timeout_options(url: sa.URL) -> dict[str, float]:
    """Return the option for how long to wait for a lock; the URL's own takes precedence."""
    return {} if "timeout" in url.query else {"timeout": BUSY_TIMEOUT_S}


def _set_up_session(connection: sqlite3.Connection, _record: object = None) -> None:
    for pragma in (
        # Every commit waits for the disk: our own "delivered" must not survive a power cut that the rows do not.
        "synchronous = FULL",
        f"cache_size = -{CACHE_BYTES // KIB}",
        # Debian's SQLite overwrites freed pages with zeros through the log: FAST does it only where it costs no write.
        "secure_delete = FAST",
    ):
        connection.execute(f"PRAGMA {pragma}")
    page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_BYTES // page_bytes}")


def _begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def read_schema(connection: sqlite3.Connection) -> int:
    """Return a number that changes whenever anybody creates, changes or drops a table or an index."""
    return int(connection.execute("PRAGMA schema_version").fetchone()[0])


def prepare(engine: sa.Engine) -> None:
    """Create the file if it is missing, and enable WAL, so that readers do not block the writer. Several processes may
    do so at once."""
    path = engine.url.database or ""
    folder = os.path.dirname(path)
    if not path.startswith("file:") and not os.path.isdir(folder):
        raise Misconfigured(f"{path}: there is no folder {folder}. Make it, or correct the URL, then run again.")
    with engine.connect() as connection:
        driver = driver_of(connection)
        _retry_while_locked(lambda: _enable_wal(driver))


def _enable_wal(driver: sqlite3.Connection) -> None:
    if driver.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        return
    if driver.execute("PRAGMA page_count").fetchone()[0] == 0:
        driver.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    mode = driver.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise Misconfigured(
            f"this file system or build of SQLite keeps journal_mode={mode}; Ferryman writes in WAL mode. "
            "Put the database on a local disk, then run again."
        )


def _pages(database: sqlite3.Connection, query: str, values: tuple[str, ...]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield a query's rows, some at a time; what is not UTF-8 in a text is replaced by U+FFFD.

    A function that decodes each text takes as long as all the rest, so it is set where a text needs it.
    """
    seen = 0
    try:
        for rows in _fetched(database.execute(query, values)):
            yield rows
            seen += len(rows)
        return
    except sqlite3.OperationalError as e:
        if "decode" not in str(e):
            raise
    database.text_factory = partial(str, encoding="utf-8", errors="replace")
    cursor = database.execute(query, values)
    deque(islice(cursor, seen), maxlen=0)
    yield from _fetched(cursor)


def _fetched(cursor: sqlite3.Cursor) -> Iterator[list[tuple[Any, ...]]]:
    while rows := cursor.fetchmany(PAGE_ROWS):
        yield rows


def _retry_while_locked(action: Callable[[], None]) -> None:
    """Repeat an action while the database is locked: SQLite itself does not wait when it changes the journal mode."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            return action()
        except sqlite3.OperationalError as e:
            if e.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


# SQL for ``executemany`` of SQLite's driver.


class Statements:
    """Statements executed for each row, and their parameters. ``numbered``: the table has a full-text index.

    Attributes:
        insert: insert a new row; existing rows are skipped.
        upsert: insert or replace a row.
        bury: insert or replace a tombstone (id, sequence, hash).
    """

    def __init__(self, layout: Layout, numbered: bool) -> None:
        self._layout = layout
        self._numbered = numbered
        names = [*layout.names, ROW] if numbered else layout.names
        self.insert = f"{_insert(layout.table, names)} ON CONFLICT ({layout.key}) DO NOTHING"
        self.upsert = _upsert(layout.table, names, layout.key)
        self.put_tombstones = _upsert(layout.table + TOMBSTONES, ("id", "sequence", "delivery_hash"), "id")

    def rows(self, chunk: list[Delivery], first: int = 0) -> Iterator[tuple[Any, ...]]:
        """Yield the parameters of ``insert`` and ``upsert``, numbered from ``first``.

        Raises:
            BadDocument: fields that JSON cannot hold.
        """
        rows = self._layout.rows(chunk)
        return ((*row, number) for number, row in enumerate(rows, first)) if self._numbered else rows


def _insert(table: str, names: Sequence[str]) -> str:
    return f"INSERT INTO {quoted(table)} ({', '.join(map(quoted, names))}) VALUES {marks(names)}"


def _upsert(table: str, names: Sequence[str], key: str) -> str:
    changes = [f"{quoted(name)} = excluded.{quoted(name)}" for name in names if name not in (key, ROW)]
    if ROW in names:  # a row keeps its number
        changes.append(f"{ROW} = coalesce({quoted(table)}.{ROW}, excluded.{ROW})")
    return f"{_insert(table, names)} ON CONFLICT ({key}) DO UPDATE SET {', '.join(changes)}"
