"""Writing to MySQL and MariaDB: chunks as transactions of InnoDB, any number of writers.

Two concurrent writers (a late worker and its successor, or two lanes) must have the same effect as one after the other:

1. Each transaction on an upsert table locks the table's row in ``ferryman_tables``: shared if it only upserts,
   exclusive if it deletes. So no tombstone appears while somebody upserts.
2. The chunk's rows are read and locked, and ``compare`` determines which of its deliveries are newer. Rows that are not
   there are inserted, others are replaced by ``INSERT … ON DUPLICATE KEY UPDATE``, which compares the sequences once
   more. It works through its assignments from left to right, and later ones see what earlier ones have set: so the
   sequence, with which all others compare, is assigned last.
3. A writer that loses a race (the row that it inserts is there now), or that the server aborts for a deadlock, begins
   again. All writers lock rows in the order of their ids.
4. A lost connection, even in the middle of the commit, is reported as an unavailable server. The next ``write``
   connects again, and when the chunk comes again, the hashes tell which rows are stored.

An id is VARBINARY: text columns fold case, accents or blanks at the end, by collations that a server chooses. A session
sets all that its writes depend on: strict mode, the isolation level, time-outs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import pymysql
import sqlalchemy as sa
from pymysql.constants import CLIENT
from pymysql.converters import escape_string
from pymysql.cursors import Cursor, SSCursor
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeDecorator

from ferryman.destinations.base import Delivery, LastDelivery, Outcome, StoredColumns, compare, slices
from ferryman.destinations.sql import dialect
from ferryman.destinations.sql.dialect import Dialect
from ferryman.destinations.sql.layout import TOMBSTONES, ColumnTypes, Layout
from ferryman.destinations.vectors import VectorField
from ferryman.errors import DeliveryError, Misconfigured, PermanentError, Unavailable
from ferryman.limits import MIB, format_count
from ferryman.net import databases
from ferryman.net.faults import database_fault

ID_BYTES: Final = 3072
"""Longest id: what an index of InnoDB holds."""

NAME_CHARACTERS: Final = 64
"""Longest name of a table or a column."""

STATEMENT_BYTES: Final = MIB
"""Size at which an INSERT of many rows is sent; the server takes at least 1 MiB (``max_allowed_packet``)."""

IDS_PER_STATEMENT: Final = 2_000
"""Ids in one statement: MySQL reads the whole table instead if a list takes more than 8 MiB of its memory."""

TRIES: Final = 5
"""Attempts to write a chunk in conflict with other writers, each of which lets one of them succeed."""

_DUPLICATE: Final = 1062
_DEADLOCK: Final = 1213
_CHANGED: Final = 1020
"""MariaDB's number for a row that another session has changed since it was read."""
_NO_TABLE: Final = 1146

_log = logging.getLogger("ferryman")


class KeyText(TypeDecorator[str]):
    """Type of a column whose text is compared byte by byte."""

    impl = sa.VARBINARY
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> bytes | None:
        return None if value is None else value.encode()

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else bytes(value).decode(errors="replace")


class MySqlWriter(dialect.Writer):
    """Writes chunks into a table that ``prepare`` has checked."""

    def __init__(self, url: sa.URL, layout: Layout, name: str) -> None:
        self._url = url
        self._layout = layout
        self._name = name
        self._sql = MySqlStatements(layout)
        self._connect()

    def _connect(self) -> None:
        self._connection = connect(self._url)
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            self._packet_bytes: int = (cursor.fetchone() or (MIB,))[0]

    def close(self) -> None:
        if self._connection.open:
            self._connection.close()

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        if not self._connection.open:
            self._connect()
        duplicate = False
        for _ in range(TRIES):
            try:
                return self._write(chunk)
            except pymysql.MySQLError as e:
                number = _number_of(e)
                if number not in (_DUPLICATE, _DEADLOCK, _CHANGED) or (number == _DUPLICATE and duplicate):
                    raise  # twice a duplicate: of a constraint that is not ours
                duplicate = duplicate or number == _DUPLICATE
        raise Unavailable(f"other writers changed the same ids, {TRIES} times in a row; it is tried again.")

    def _write(self, chunk: list[Delivery]) -> list[Outcome]:
        with self._transaction() as cursor:
            outcomes = self._append(cursor, chunk) if self._layout.appends else self._merge(cursor, chunk)
            # Last: other lanes wait from here until this transaction has ended.
            highest = max(delivery.sequence for delivery in chunk)
            cursor.execute(self._sql.record_sequence(self._layout.documents.name, self._name, highest))
            return outcomes

    @contextmanager
    def _transaction(self) -> Iterator[Cursor]:
        connection = self._connection
        try:
            connection.begin()
            with connection.cursor() as cursor:
                yield cursor
            connection.commit()
        except BaseException:
            with suppress(pymysql.MySQLError, OSError):
                if connection.open:
                    connection.rollback()
            raise

    def _append(self, cursor: Cursor, chunk: list[Delivery]) -> list[Outcome]:
        """Insert the deliveries whose hashes are not stored yet."""
        wanted = {d.hash: d for d in chunk}
        known = self._known(cursor, self._sql.known, sorted(wanted))
        self._put(cursor, self._sql.insert, "", [d for digest, d in sorted(wanted.items()) if digest not in known])
        return [Outcome.ok()] * len(chunk)

    def _merge(self, cursor: Cursor, chunk: list[Delivery]) -> list[Outcome]:
        """Compare the chunk with the stored rows, and bring each id to the state of its last delivery."""
        self._lock(cursor, alone=any(d.operation == "delete" for d in chunk))
        ids = sorted({d.id for d in chunk})
        known = self._known(cursor, self._sql.known, ids)
        tombstones: dict[str, LastDelivery] = {}
        if cursor.execute(self._sql.any_tombstone):
            tombstones = self._known(cursor, self._sql.tombstones_of_ids, ids)
        outcomes, winners = compare(chunk, tombstones | known)
        in_order = [winners[id] for id in sorted(winners)]
        upserts = [d for d in in_order if d.operation == "upsert"]
        deletes = [d for d in in_order if d.operation == "delete"]
        self._put(cursor, self._sql.insert, "", [d for d in upserts if d.id not in known])
        self._put(cursor, self._sql.insert, self._sql.replace, [d for d in upserts if d.id in known])
        if deletes:
            rows = (f"({_key(d.id)},{d.sequence},{_text(d.hash)})".encode() for d in deletes)
            self._execute_joined(cursor, self._sql.put_tombstones, rows, self._sql.replace_tombstones)
            self._execute_ids(cursor, self._sql.delete, [d.id for d in deletes])
        self._execute_ids(cursor, self._sql.remove_tombstones, [d.id for d in upserts if d.id in tombstones])
        return outcomes

    def _lock(self, cursor: Cursor, *, alone: bool) -> None:
        """Wait until no other writer deletes; if ``alone``, until no other one writes."""
        name = self._layout.documents.name
        if not cursor.execute(f"{self._sql.lock} {_key(name)} {'FOR UPDATE' if alone else 'LOCK IN SHARE MODE'}"):
            raise Unavailable(f"the row of {name} in {self._sql.identities} is missing; the next wave makes it again.")

    def _known(self, cursor: Cursor, query: tuple[str, str], ids: Sequence[str]) -> dict[str, LastDelivery]:
        found = {}
        for some in slices(ids, IDS_PER_STATEMENT):
            cursor.execute(f"{query[0]} ({','.join(map(_key, some))}) {query[1]}")
            for id, sequence, digest in cursor.fetchall():
                found[bytes(id).decode()] = LastDelivery(sequence, _as_text(digest))
        return found

    def _execute_ids(self, cursor: Cursor, statement: str, ids: Sequence[str]) -> None:
        for some in slices(ids, IDS_PER_STATEMENT):
            cursor.execute(f"{statement} ({','.join(map(_key, some))})")

    def _put(self, cursor: Cursor, statement: str, end: str, deliveries: list[Delivery]) -> None:
        names = self._layout.names
        rows = (row_text(row, names).encode() for row in self._layout.rows(deliveries))
        self._execute_joined(cursor, statement, rows, end)

    def _execute_joined(self, cursor: Cursor, statement: str, rows: Iterable[bytes], end: str) -> None:
        """Execute a statement for many rows, as often as their size needs it."""
        waiting: list[bytes] = []
        size = 0
        for row in rows:
            if waiting and size + len(row) > STATEMENT_BYTES:
                self._send(cursor, statement, waiting, end)
                waiting, size = [], 0
            waiting.append(row)
            size += len(row) + 1
        if waiting:
            self._send(cursor, statement, waiting, end)

    def _send(self, cursor: Cursor, statement: str, rows: list[bytes], end: str) -> None:
        text = b"".join((statement.encode(), b",".join(rows), end.encode()))
        if len(text) >= self._packet_bytes:
            if len(rows) == 1:
                raise PermanentError(
                    f"a row of {format_count(len(text))} bytes is larger than what the server takes "
                    f"(max_allowed_packet={self._packet_bytes}). Shorten it in a step, or raise max_allowed_packet."
                )
            middle = len(rows) // 2
            self._send(cursor, statement, rows[:middle], end)
            self._send(cursor, statement, rows[middle:], end)
            return
        cursor.execute(text)


def row_text(values: Sequence[Any], names: Sequence[str]) -> str:
    """Return the values of a row for an INSERT.

    Raises:
        UnicodeEncodeError: an id has a lone surrogate.
    """
    return f"({','.join(_literal(value, name) for value, name in zip(values, names, strict=True))})"


def _literal(value: Any, name: str) -> str:
    if value is None:
        return "NULL"
    if name in ("id", "delivery_hash"):
        return _key(value)
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int):
        return str(value)
    return _text(value if isinstance(value, str) else repr(value))


def _text(text: str) -> str:
    return f"'{escape_string(text)}'"


def _key(text: str) -> str:
    """Return a literal of bytes, to which no character set and no collation applies.

    Raises:
        UnicodeEncodeError: the text has a lone surrogate.
    """
    return f"x'{text.encode().hex()}'"


def _as_text(value: Any) -> Any:
    """Return bytes as text, and anything else as it is."""
    return value.decode(errors="replace") if isinstance(value, bytes | bytearray) else value


class MySqlStatements:
    """SQL statements for one table, with its names filled in."""

    def __init__(self, layout: Layout) -> None:
        documents, tombstones = quoted_table(layout.table), quoted_table(layout.table + TOMBSTONES)
        writers = quoted_table(".".join(filter(None, (layout.writers.schema, layout.writers.name))))
        self.identities = ".".join(filter(None, (layout.identities.schema, layout.identities.name)))
        key = quoted(layout.key)
        names = ",".join(map(quoted, layout.names))
        found = f"SELECT {key}, sequence, delivery_hash FROM"
        self.lock = f"SELECT id FROM {quoted_table(self.identities)} WHERE name ="
        self.known = (f"{found} {documents} WHERE {key} IN", f"ORDER BY {key} FOR UPDATE")
        if layout.appends:
            self.known = (f"{found} {documents} WHERE {key} IN", "")
        self.any_tombstone = f"SELECT 1 FROM {tombstones} LIMIT 1"
        self.tombstones_of_ids = (f"SELECT id, sequence, delivery_hash FROM {tombstones} WHERE id IN", "")
        self.insert = f"INSERT INTO {documents} ({names}) VALUES "
        self.replace = f" ON DUPLICATE KEY UPDATE {newer([n for n in layout.names if n != layout.key])}"
        self.put_tombstones = f"INSERT INTO {tombstones} (id, sequence, delivery_hash) VALUES "
        self.replace_tombstones = f" ON DUPLICATE KEY UPDATE {newer(['sequence', 'delivery_hash'])}"
        self.delete = f"DELETE FROM {documents} WHERE id IN"
        self.remove_tombstones = f"DELETE FROM {tombstones} WHERE id IN"
        self._record = f"INSERT INTO {writers} (name, writer, sequence) VALUES "

    def record_sequence(self, table: str, writer: str, sequence: int) -> str:
        return f"{self._record} ({_key(table)},{_key(writer)},{sequence}) ON DUPLICATE KEY UPDATE {newer(['sequence'])}"


def newer(names: Sequence[str]) -> str:
    """Return assignments that replace these columns by those of a row that is not older; the sequence comes last, for
    the others compare with the one that is there."""
    others = [quoted(name) for name in names if name != "sequence"]
    changes = [f"{name}=IF(VALUES(sequence)>=sequence,VALUES({name}),{name})" for name in others]
    return ",".join([*changes, "sequence=GREATEST(sequence,VALUES(sequence))"])


def quoted(name: str) -> str:
    """Return a name between backticks."""
    return "`" + name.replace("`", "``") + "`"


def quoted_table(table: str) -> str:
    """Return a table's name, with that of its database before a dot if it has one, between backticks."""
    return ".".join(map(quoted, table.split(".")))


# The MySQL dialect of ``Sql``.

_ROWS: Final = 2_000
"""Rows that an inventory fetches at a time."""

_KEEP_TEXT: Final = ("varchar", "tinytext", "text", "mediumtext", "longtext")
"""Types of columns that keep text as it was written."""

_ROUNDED: Final = ("float",)
"""Types whose values are printed with fewer digits than they have: they are not compared."""

_COLUMNS_OF_TABLE: Final = """
SELECT COLUMN_NAME, DATA_TYPE, COLLATION_NAME, ENGINE FROM information_schema.COLUMNS c
JOIN information_schema.TABLES t USING (TABLE_SCHEMA, TABLE_NAME)
WHERE TABLE_SCHEMA = COALESCE(%s, DATABASE()) AND TABLE_NAME = %s
"""

_LOCK_NAME_BYTES: Final = 16

_long_text: Final = partial(mysql.LONGTEXT, charset="utf8mb4")


class MySQL(Dialect):
    """Dialect of MySQL and MariaDB: any number of writers, no index for full text or vectors."""

    single_writer = False
    reserved = ()
    column_types = ColumnTypes(
        field=_long_text,
        key=lambda: KeyText(ID_BYTES),
        json=_long_text,
        text=_long_text,
        name=lambda: KeyText(1024),
    )

    def url_findings(self, url: sa.URL) -> Iterator[str]:
        if url.drivername != databases.MYSQL_DRIVER:
            yield f"{url.drivername} is not supported: write mysql:// or mariadb://, which use PyMySQL"
        if not url.database:
            yield "the url names no database: write mysql://user@host/database"

    def argument_findings(self, table: str, full_text: tuple[str, ...], columns: Collection[str]) -> Iterator[str]:
        if "." in table and (table.count(".") > 1 or not all(table.split("."))):
            yield "give the table as table or as database.table"
        if len(table.rpartition(".")[2] + TOMBSTONES) > NAME_CHARACTERS:
            yield f"the table's name is too long: MySQL takes {NAME_CHARACTERS} characters, with _tombstones at its end"
        for name in columns:
            if len(name) > NAME_CHARACTERS:
                yield f"columns: {name[:20]!r}… has {len(name)} characters: MySQL takes {NAME_CHARACTERS}"
            if name.endswith(" "):
                yield f"columns: {name!r}: MySQL takes no name with a blank at its end"
        if full_text:
            yield (
                "full_text: MySQL's index leaves out short and frequent words, so that a search would miss documents. "
                "Use SQLite, PostgreSQL, OpenSearch or Solr to search, or make a FULLTEXT index of your own"
            )

    def vector_findings(self, vectors: Mapping[str, VectorField], table: str) -> Iterator[str]:
        if vectors:
            yield "vectors: not on MySQL. Use SQLite, PostgreSQL, OpenSearch, Qdrant, LanceDB or Milvus"

    def place(self, url: sa.URL) -> str:
        return sa.URL.create("mysql", host=url.host, port=url.port, database=url.database).render_as_string()

    def prepare(self, url: str, layout: Layout, columns: tuple[str, ...], where: str) -> None:
        parsed = sa.make_url(url)
        server = engine(parsed)
        name = blake2b(f"{parsed.database}/{layout.table}".encode(), digest_size=_LOCK_NAME_BYTES).hexdigest()
        with server.connect() as connection:
            _check_durability(connection, where)
            # The first of several drivers makes everything, the others wait and find it.
            lock = {"name": f"ferryman-{name}", "seconds": LOCK_TIMEOUT_S}
            if connection.scalar(sa.text("SELECT GET_LOCK(:name, :seconds)"), lock) != 1:
                raise Unavailable(f"{where}: another driver prepares the table; it is tried again.")
            try:
                _check_keys(connection, layout, where)
                layout.create(connection, where)
                connection.commit()
            finally:
                with suppress(DBAPIError):
                    connection.execute(sa.text("SELECT RELEASE_LOCK(:name)"), lock)

    def writer(self, url: str, layout: Layout, name: str) -> MySqlWriter:
        return MySqlWriter(sa.make_url(url), layout, name)

    def durability_risk(self, connection: sa.Connection) -> str:
        flush = connection.exec_driver_sql("SELECT @@innodb_flush_log_at_trx_commit").scalar_one()
        if flush == 1:
            return ""
        name = "innodb_flush_log_at_trx_commit"
        return f"{name} is {flush}: a crash of its machine loses the last commits. SET GLOBAL {name} = 1"

    def inventory(self, url: str, layout: Layout, ids: Collection[str] | None) -> Iterator[StoredColumns]:
        connection = connect(sa.make_url(url), read_only=True)
        try:
            with connection.cursor() as cursor:
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
                cursor.execute(_COLUMNS_OF_TABLE, (layout.documents.schema, layout.documents.name))
                types = {column.lower(): kind.lower() for column, kind, _, _ in cursor.fetchall()}
            if not types:
                return
            there = layout.columns_to_read(types)
            names = ", ".join(quoted(name) if name in there else "NULL" for name in layout.names)
            kinds = [types[name.lower()] for name in layout.field_columns]
            keep_text = [kind in _KEEP_TEXT for kind in kinds]
            believed = [True if kind in _ROUNDED else None for kind in kinds]
            query = f"SELECT {names} FROM {quoted_table(layout.table)}"
            for some in ((),) if ids is None else slices(sorted(ids), IDS_PER_STATEMENT):
                where = f" WHERE id IN ({','.join(map(_key, some))})" if some else ""
                with connection.cursor(SSCursor) as cursor:
                    cursor.execute(query + where)
                    while fetched := cursor.fetchmany(_ROWS):
                        columns = zip(*fetched, strict=True)
                        texts = (map(_as_text, each) if bytes in set(map(type, each)) else each for each in columns)
                        rows = list(zip(*texts, strict=True))
                        if not layout.field_columns:
                            yield layout.stored_columns(rows, (), ())
                            continue
                        stored = (layout.stored([*each, *believed], keep_text) for each in rows)
                        yield StoredColumns(*zip(*stored, strict=True))
        finally:
            connection.close()

    def _explain(self, cause: BaseException, where: str) -> DeliveryError | None:
        if isinstance(cause, RuntimeError) and "cryptography" in str(cause):
            return Misconfigured(f"{where}: {cause}: pip install 'ferryman[mysql]', then run again.")
        if not isinstance(cause, pymysql.MySQLError):
            return None
        if _number_of(cause) == _NO_TABLE:
            return Unavailable(f"{where}: {_message_of(cause)}: it was dropped in use; the next wave makes it again.")
        if isinstance(cause, pymysql.InterfaceError):
            return Unavailable(f"{where}: the connection was lost; it is tried again.")
        fault = database_fault(cause)
        return fault and fault.kind(f"{where}: {_message_of(cause)}: {fault.remedy}.")

    def open_reader(self, url: sa.URL) -> sa.Engine:
        return engine(url, read_only=True)


def _check_durability(connection: sa.Connection, where: str) -> None:
    """Warn of a server that confirms commits before they are on the disk."""
    flushed = connection.exec_driver_sql("SELECT @@innodb_flush_log_at_trx_commit").scalar_one()
    if int(flushed) != 1:
        _log.warning(
            "%s: the server has innodb_flush_log_at_trx_commit=%s: if its machine loses power, it may lose what it has "
            "confirmed. Set it to 1, or run `ferryman verify PLAN --repair` after such a crash",
            where, flushed,
        )  # fmt: skip


def _check_keys(connection: sa.Connection, layout: Layout, where: str) -> None:
    """Check that existing tables have transactions, and compare ids byte by byte.

    Raises:
        Misconfigured: they do not; with the statement that changes it.
    """
    for table in (layout.documents, layout.tombstones):
        rows = connection.exec_driver_sql(_COLUMNS_OF_TABLE, (table.schema, table.name)).fetchall()
        full_name = quoted_table(".".join(filter(None, (table.schema, table.name))))
        for column, kind, collation, made_by in rows:
            if (made_by or "").lower() != "innodb":
                raise Misconfigured(
                    f"{where}: {table.name} is a table of {made_by or 'a view'}, which has no transactions. "
                    f"ALTER TABLE {full_name} ENGINE=InnoDB, or give another table=, then run again."
                )
            if column.lower() == "id" and not layout.appends and not _compares_bytes(kind, collation):
                raise Misconfigured(
                    f"{where}: {table.name}.id is a {kind}{f' with the collation {collation}' if collation else ''}, "
                    "for which some different ids are equal: those that differ in case, accents or blanks at the end. "
                    f"ALTER TABLE {full_name} MODIFY {column} VARBINARY({ID_BYTES}) NOT NULL, or give another table=, "
                    "then run again."
                )


def _compares_bytes(kind: str, collation: str | None) -> bool:
    """Return whether a column of this type tells all texts apart: ``utf8mb4_bin`` ignores blanks at the end."""
    if kind.lower() == "varchar" and collation:
        return collation.lower().startswith("utf8mb4_") and collation.lower().endswith(("_0900_bin", "_nopad_bin"))
    return kind.lower() == "varbinary"


# Connections, and how a session is set up.

CONNECT_TIMEOUT_S: Final = 10
"""Time for connecting: a host that drops packets would otherwise take two minutes."""

ANSWER_TIMEOUT_S: Final = 55
"""Time for an answer: less than what a ``write`` may take."""

LOCK_TIMEOUT_S: Final = 30
"""Time to wait for rows or a table that others have locked: half of what a ``write`` may take."""

IDLE_TIMEOUT_S: Final = 600
"""Time for which the server keeps the session of a reader that does something else meanwhile."""

_ISOLATION: Final = "SET SESSION TRANSACTION ISOLATION LEVEL"


def connect(url: sa.URL, *, read_only: bool = False) -> pymysql.Connection[Any]:
    """Open a session with explicit transactions. A reader sees all of a transaction at one instant; a writer always
    the last that was committed."""
    _, options = url.get_dialect()().create_connect_args(url)
    options = {"connect_timeout": CONNECT_TIMEOUT_S, "program_name": "ferryman", **options}
    # Rows that were found but not changed must not be counted.
    options["client_flag"] = options.get("client_flag", 0) & ~CLIENT.FOUND_ROWS
    answer_s = IDLE_TIMEOUT_S if read_only else ANSWER_TIMEOUT_S
    for name in ("read_timeout", "write_timeout"):
        options[name] = int(options.get(name, answer_s))
    options["connect_timeout"] = int(options["connect_timeout"])
    connection = pymysql.connect(**{**options, "charset": "utf8mb4", "autocommit": False})
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SET SESSION sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone='+00:00', "
                f"innodb_lock_wait_timeout={LOCK_TIMEOUT_S}, lock_wait_timeout={LOCK_TIMEOUT_S}, "
                f"net_write_timeout={IDLE_TIMEOUT_S}, wait_timeout={IDLE_TIMEOUT_S}"
            )
            cursor.execute(f"{_ISOLATION} {'REPEATABLE READ, READ ONLY' if read_only else 'READ COMMITTED'}")
    except BaseException:
        connection.close()
        raise
    return connection


def engine(url: sa.URL, *, read_only: bool = False) -> sa.Engine:
    """Return an engine without a pool."""
    return sa.create_engine(url, poolclass=sa.NullPool, creator=lambda: connect(url, read_only=read_only))


# Meaning of the server's errors: whether they concern a delivery or the database, and what to do.


def _number_of(error: BaseException) -> int | None:
    number = error.args[0] if error.args else None
    return number if isinstance(number, int) else None


def _message_of(error: BaseException) -> str:
    """Return the server's message in one line."""
    return " ".join(str(error.args[1] if len(error.args) > 1 else error).split())
