"""PostgreSQL as a source of changes: its tables, its replication slots, and rows as documents."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ferryman.document import Document
from ferryman.errors import Misconfigured, TransientError, Unavailable
from ferryman.net import databases
from ferryman.net.faults import database_fault
from ferryman.sources.base import Listed, id_of_columns
from ferryman.sources.pgoutput import Value
from ferryman.sources.sql import json_value, load_json

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy as sa

WAIT_S: Final = 60
"""Time to wait for transactions that are open while a slot is made."""

FETCHED: Final = 200
"""Changes that are fetched at a time."""

_OLDEST_SERVER: Final = 140_000

_SESSION: Final = (
    "SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET timezone = 'UTC'; SET extra_float_digits = 1; "
    "SET bytea_output = 'hex'; SET client_encoding = 'UTF8'; SET synchronous_commit = on; SET row_security = off"
)
"""Settings by which copies and changes have the same texts for the same values."""

_TYPED: Final = (
    *("bool", "int2", "int4", "int8", "oid", "float4", "float8", "numeric", "bytea", "date", "time", "timetz"),
    *("timestamp", "timestamptz", "interval", "json", "jsonb"),
)
"""Types whose values become JSON values, also in arrays; those of all others are the server's text."""


_TEXTS: Final = ("text", "varchar", "bpchar", "name", "uuid", "inet", "cidr")
"""Types whose values are text in JSON, too; arrays of them become arrays."""


class FollowedTable(NamedTuple):
    """Table of the plan, as the server has it now."""

    name: str
    """Name that the plan gives."""
    within: str
    """Beginning of the ids of its rows."""
    oid: int
    schema: str
    table: str
    columns: tuple[tuple[str, int], ...]
    """Names and types of the columns that are published."""
    key: tuple[str, ...]
    """Columns of the primary key, or of the index that is the replica identity."""
    size: int
    """Bytes on the server's disk."""
    number: int
    where: str = ""
    """Row filter of the publication."""
    member: int = 0
    """Number of its membership, see ``PublishedTable``; 0: it is not in a publication yet."""
    is_deferred: bool = False
    """Whether two rows may have one key within a transaction: the server compares them when it ends."""


class PublishedTable(NamedTuple):
    """Table as a publication has it."""

    columns: list[str] | None
    """Columns that are published; None: all of them."""
    where: str | None
    """Row filter."""
    member: int
    """Identifies the table's membership: a table that was taken out and put in again has another."""


class SlotOfServer(NamedTuple):
    """Replication slot as the server has it."""

    name: str
    plugin: str
    database: str
    position: int
    held_bytes: int
    lost: str
    """Why it cannot be read any more; "": it can."""


def lsn_text(position: int) -> str:
    """Return a place in the server's log as PostgreSQL writes it: ``0/16B3748``."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


# Rows as documents.


class RowsOfTable:
    """Makes documents of a table's rows.

    Args:
        loaders: type -> function that converts the server's text to a Python value; see ``Session.loaders``.
    """

    def __init__(self, table: FollowedTable, loaders: Callable[[int], Callable[[bytes], Any] | None]) -> None:
        self.table = table
        self._loaders = loaders
        self.set_columns(table.columns)

    def set_columns(self, columns: Sequence[tuple[str, int]]) -> None:
        """Set the names and types of the values that follow."""
        self.names = [name for name, _ in columns]
        self._load = [self._loaders(oid) for _, oid in columns]
        self.key = [self.names.index(name) for name in self.table.key]

    def id(self, values: Sequence[Value]) -> str:
        """Return the id of a row, of which at least the key is given."""
        return self.table.within + id_of_columns([text_of(values[at]) for at in self.key])

    def document(self, values: Sequence[Value]) -> Listed | Document:
        """Return the document of a row; refused if a value has no form in JSON."""
        id = self.id(values)
        fields = {}
        for name, load, value in zip(self.names, self._load, values, strict=True):
            try:
                fields[name] = _field_value(load, value)
            except (TypeError, RecursionError) as e:
                return Listed(id, 0, refused=f"{id}: column {name!r} holds {e}, which JSON cannot hold")
        return Document.of(id, fields)


def text_of(value: Value) -> str:
    """Return the server's text of a value of a key."""
    if not isinstance(value, bytes):
        raise Misconfigured("a change comes without its key: the table's replica identity has changed")
    return value.decode()


def _field_value(load: Callable[[bytes], Any] | None, value: Value) -> Any:
    if value is None:
        return None
    assert isinstance(value, bytes)
    if load is None:
        return value.decode()
    try:
        found = load(value)
    except Exception:  # such as 'infinity', for which Python has no date
        return value.decode()
    return json_value(found)


# The server.


class Session:
    """Connection to the server, for the queries of a source and the positions that it confirms; opened on first use."""

    def __init__(self, url: sa.URL) -> None:
        self._url = url
        self._connection: psycopg.Connection[Any] | None = None
        self._loaders: dict[int, Callable[[bytes], Any]] = {}

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """The connection, which is opened when it is first needed."""
        if self._connection is None:
            self._connection = self._open()
            self._connection.execute(_SESSION)
        return self._connection

    def _open(self, **more: Any) -> psycopg.Connection[Any]:
        import psycopg

        _, options = self._url.get_dialect()().create_connect_args(self._url)
        options.pop("context", None)
        options = {"application_name": "ferryman", "connect_timeout": 30, **options, **more}
        return psycopg.connect(**options, autocommit=True)

    def _rows(self, query: Any, *values: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(query, values or None).fetchall()

    @property
    def where(self) -> str:
        """Source and database, for messages."""
        return f"PostgresChanges({self._url.render_as_string()})"

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Convert errors of the driver to ours, on one line without secrets."""
        import psycopg

        try:
            yield
        except psycopg.Error as e:
            text = " ".join(databases.redact_text(str(e), self._url).split())
            fault = database_fault(e)
            if fault is not None and issubclass(fault.kind, TransientError):
                raise Unavailable(f"{self.where}: {text}: it is tried again") from e
            remedy = "correct the URL, the tables or the rights, then run again"
            if fault is not None and (e.sqlstate or "").startswith(("28", "3D", "42501")):
                remedy = fault.remedy
            raise Misconfigured(f"{self.where}: {text}: {remedy}") from e

    # what there is

    def system(self) -> str:
        """Return what identifies the server's data and the database."""
        [(system, database)] = self._rows(
            "SELECT system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database()) "
            "FROM pg_control_system()"
        )
        return f"{system}/{database}"

    def flushed(self) -> int:
        """Return the end of the server's log, with all that was committed before this call in it."""
        [(written, flushed)] = self._rows("SELECT pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text")
        if lsn_number(written) > lsn_number(flushed):  # sessions with synchronous_commit = off do not wait for it
            self._rows("SELECT pg_logical_emit_message(true, 'ferryman', '')")  # its commit waits, and for all before
            [(flushed,)] = self._rows("SELECT pg_current_wal_flush_lsn()::text")
        return lsn_number(flushed)

    def slot(self, name: str) -> SlotOfServer | None:
        rows = self._rows(
            "SELECT plugin, database, coalesce(confirmed_flush_lsn, '0/0')::text, wal_status, "
            "pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint FROM pg_replication_slots WHERE slot_name = %s",
            name,
        )
        for plugin, database, position, status, held in rows:
            lost = ""
            if status == "lost" or held is None:
                lost = "the server has removed its log (max_slot_wal_keep_size, or an upgrade)"
            return SlotOfServer(name, plugin or "", database or "", lsn_number(position), held or 0, lost)
        return None

    def check(self) -> None:
        """Raises:
        Misconfigured: the server does not log what is needed.
        """
        [(level,)] = self._rows("SELECT current_setting('wal_level')")
        if self.connection.info.server_version < _OLDEST_SERVER:
            raise Misconfigured(f"{self.where}: the server is older than PostgreSQL {_OLDEST_SERVER // 10_000}")
        if level != "logical":
            raise Misconfigured(
                f"{self.where}: the server has wal_level = {level}: ALTER SYSTEM SET wal_level = 'logical', and restart"
                " it"
            )

    def tables(self, wanted: Mapping[str, tuple[str, int]], publication: str | None) -> list[FollowedTable]:
        """Return these tables.

        Args:
            wanted: name -> beginning of the ids of its rows, and its number.
            publication: None: there is none yet.

        Raises:
            Misconfigured: a table is missing, has no identity, or is not in the publication.
        """
        self.check()
        published = None if publication is None else self._published(publication)
        return [self._table(name, *more, publication, published) for name, more in wanted.items()]

    def _published(self, publication: str) -> dict[tuple[str, str], PublishedTable]:
        """Return (schema, table) -> what a publication says about it.

        Raises:
            Misconfigured: there is no such publication, or it leaves changes out.
        """
        rows = self._rows(
            "SELECT oid::int8, pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication "
            "WHERE pubname = %s",
            publication,
        )
        if not rows:
            raise Misconfigured(
                f"{self.where}: there is no publication {publication}: make it, or leave publication= out"
            )
        [(oid, is_whole)] = rows
        if not is_whole:
            raise Misconfigured(
                f"{self.where}: publication {publication} leaves out some kinds of changes: ALTER PUBLICATION "
                f"{publication} SET (publish = 'insert, update, delete, truncate')"
            )
        columns = "p.attnames, p.rowfilter" if self.connection.info.server_version >= 150_000 else "NULL, NULL"
        found = self._rows(
            f"SELECT p.schemaname, p.tablename, {columns}, coalesce(r.oid::int8, %s) FROM pg_publication_tables p "
            "JOIN pg_class c ON c.relname = p.tablename JOIN pg_namespace n ON n.oid = c.relnamespace AND "
            "n.nspname = p.schemaname LEFT JOIN pg_publication_rel r ON r.prrelid = c.oid AND r.prpubid = %s "
            "WHERE p.pubname = %s",
            oid,
            oid,
            publication,
        )
        return {(schema, table): PublishedTable(*more) for schema, table, *more in found}

    def _table(
        self,
        name: str,
        within: str,
        number: int,
        publication: str | None,
        published: Mapping[tuple[str, str], PublishedTable] | None,
    ) -> FollowedTable:
        rows = self._rows(
            "SELECT c.oid::int8, n.nspname, c.relname, c.relkind, c.relreplident, pg_total_relation_size(c.oid) "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)",
            name,
        )
        if not rows:
            raise Misconfigured(f"{self.where}: there is no table {name}, or this user may not see it")
        [(oid, schema, table, kind, identity, size)] = rows
        if kind not in ("r", "p"):
            raise Misconfigured(f"{self.where}: {name} is not a table: only tables have changes")
        if kind == "r" and (children := [child for (child,) in self._rows(_CHILDREN, oid)]):
            raise Misconfigured(
                f"{self.where}: table {name} has tables that inherit from it ({', '.join(children)}): their rows may "
                "have the same keys, and change under their own names. Read it by Sql, which compares all rows"
            )
        columns, where, member = self._rows(_COLUMNS, oid), "", 0
        found = self._rows(_KEY, {"d": "p", "f": "p", "i": "i"}.get(identity, ""), oid)
        key, is_deferred = [column for column, _ in found], any(not is_immediate for _, is_immediate in found)
        if not key:
            raise Misconfigured(
                f"{self.where}: table {name} has no identity, by which its rows could be told apart. Give it a primary "
                f"key, or: ALTER TABLE {name} REPLICA IDENTITY USING INDEX an_index (unique, of NOT NULL columns)"
            )
        if published is not None:
            if (schema, table) not in published:
                raise Misconfigured(
                    f"{self.where}: publication {publication} does not have table {name}: ALTER PUBLICATION "
                    f"{publication} ADD TABLE {name}"
                )
            names, filtered, member = published[schema, table]
            where = filtered or ""
            columns = [(each, type_oid) for each, type_oid in columns if names is None or each in names]
        return FollowedTable(
            name, within, oid, schema, table, tuple(columns), tuple(key), size, number, where, member, is_deferred
        )

    # what is made and removed

    def publication_exists(self, name: str) -> bool:
        return bool(self._rows("SELECT 1 FROM pg_publication WHERE pubname = %s", name))

    def publish(self, name: str, tables: Sequence[FollowedTable], *, own: bool) -> None:
        """Make the publication, or have it contain just these tables, if it is ours."""
        from psycopg import sql

        if not own:
            return
        names = sql.SQL(", ").join(sql.Identifier(t.schema, t.table) for t in tables)
        exists = self.publication_exists(name)
        rows = self._rows("SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", name)
        if exists and set(rows) == {(t.schema, t.table) for t in tables}:
            return
        statement = "ALTER PUBLICATION {} SET TABLE {}" if exists else "CREATE PUBLICATION {} FOR TABLE {}"
        options = "" if exists else " WITH (publish_via_partition_root = true)"
        self.connection.execute(sql.SQL(statement + options).format(sql.Identifier(name), names))

    def drop_publication(self, name: str) -> None:
        from psycopg import sql

        self.connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))

    def make_slot(self, name: str) -> None:
        """Make the slot; the server waits until the transactions that are open now have ended."""
        self.connection.execute(f"SET statement_timeout = '{WAIT_S}s'")
        with self._open_transactions_named():
            self._rows("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", name)
        self.connection.execute("RESET statement_timeout")

    def drop_slot(self, name: str) -> None:
        self._rows("SELECT pg_drop_replication_slot(%s)", name)

    def advance(self, name: str, found: SlotOfServer, position: int) -> None:
        """Have the slot begin at this position, if it begins before it."""
        if found.position < position:
            self._rows("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", name, lsn_text(position))

    @contextmanager
    def _open_transactions_named(self) -> Iterator[None]:
        """Name the transactions that are waited for if the server gives up waiting."""
        import psycopg

        try:
            yield
        except psycopg.errors.QueryCanceled:
            with Session(self._url) as other:
                rows = other._rows(
                    "SELECT pid, coalesce(application_name, ''), now() - xact_start FROM pg_stat_activity "
                    "WHERE backend_xid IS NOT NULL ORDER BY xact_start LIMIT 3"
                )
            waits = "; ".join(f"process {pid} {name}, for {str(age).partition('.')[0]}" for pid, name, age in rows)
            raise Unavailable(
                f"{self.where}: before it can begin, the server waits for transactions that are open: "
                f"{waits or 'unknown'}"
            ) from None

    # what is read

    def enter_snapshot(self, slot: str) -> int:
        """Begin a transaction that sees exactly what was committed before the position that is returned."""
        import psycopg

        temporary = f"{slot[:46]}_{threading.get_ident() % 10**6}_{id(self) % 10**8}"
        with closing(self._open(replication="database")) as maker:
            timer = threading.Timer(WAIT_S, _cancel, [maker])
            timer.start()
            try:
                with self._open_transactions_named():
                    row = maker.execute(  # the words that also older servers know
                        f'CREATE_REPLICATION_SLOT "{temporary}" TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT'
                    ).fetchone()
            finally:
                timer.cancel()
            assert row is not None
            connection = self.connection
            connection.autocommit = False
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute(f"SET TRANSACTION SNAPSHOT '{row[2]}'")
        return lsn_number(row[1])

    def copy(self, table: FollowedTable, where: str = "") -> Iterator[tuple[str | None, ...]]:
        """Yield the rows of a table, as the server's texts.

        Args:
            where: condition as SQL.
        """
        from psycopg import sql

        columns = sql.SQL(", ").join(sql.Identifier(name) for name, _ in table.columns)
        query = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(table.schema, table.table))
        if where:
            query += sql.SQL(" WHERE ") + sql.SQL(where)
        with self.connection.cursor() as cursor, cursor.copy(sql.SQL("COPY ({}) TO STDOUT").format(query)) as copy:
            yield from copy.rows()

    def rows_by_key(
        self, table: FollowedTable, keys: Iterable[tuple[str, ...]]
    ) -> dict[tuple[str, ...], Listed | Document]:
        """Return the documents of these rows as they are now, by their keys."""
        from psycopg import sql

        types = dict(table.columns)
        names = sql.SQL(", ").join(map(sql.Identifier, table.key))
        rows = [
            sql.SQL("({})").format(
                sql.SQL(", ").join(
                    sql.SQL("CAST({} AS {})").format(text, sql.SQL(self._type_name(types[name])))
                    for name, text in zip(table.key, key, strict=True)
                )
            )
            for key in keys
        ]
        condition = sql.SQL("({}) IN ({})").format(names, sql.SQL(", ").join(rows)).as_string(self.connection)
        if table.where:
            condition = f"{condition} AND {table.where}"
        found = {}
        reader = RowsOfTable(table, self.loaders)
        for texts in self.copy(table, condition):
            values = [None if text is None else text.encode() for text in texts]
            found[tuple(texts[at] or "" for at in reader.key)] = reader.document(values)
        return found

    def _type_name(self, oid: int) -> str:
        """Return the name of a type of any length: ``character`` would be one of a single character."""
        return str(self._rows("SELECT format_type(%s, -1)", oid)[0][0])

    def peek(self, slot: str, publication: str, end: int) -> Iterator[bytes]:
        """Yield the messages of a slot before a position, and perhaps some behind it; the slot does not move."""
        query = (
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, NULL, 'proto_version', '1', "
            "'publication_names', %s)"
        )
        connection = self.connection
        connection.autocommit = False
        quoted = '"' + publication.replace('"', '""') + '"'
        with connection.cursor(name="ferryman_changes") as cursor:
            cursor.itersize = FETCHED
            cursor.execute(query, (slot, lsn_text(end), quoted))
            for (data,) in cursor:
                yield bytes(data)

    def loaders(self, oid: int) -> Callable[[bytes], Any] | None:
        """Return the function that converts the server's texts of a type; None: they stay text."""
        if not self._loaders:
            self._make_loaders()
        return self._loaders.get(oid)

    def _make_loaders(self) -> None:
        from psycopg import pq
        from psycopg.adapt import Transformer
        from psycopg.types.json import set_json_loads

        connection = self.connection
        set_json_loads(load_json, connection)
        transformer = Transformer(connection)
        types = connection.adapters.types
        for name in _TYPED:
            info = types[name]
            for oid in (info.oid, info.array_oid):
                self._loaders[oid] = transformer.get_loader(oid, pq.Format.TEXT).load
        for name in _TEXTS:
            oid = types[name].array_oid
            self._loaders[oid] = transformer.get_loader(oid, pq.Format.TEXT).load


def _cancel(connection: psycopg.Connection[Any]) -> None:
    with suppress(Exception):  # it has ended meanwhile
        connection.cancel_safe(timeout=10)


_COLUMNS: Final = (
    "SELECT attname, atttypid::int8 FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped "
    "AND attgenerated = '' ORDER BY attnum"
)
"""Columns of a table that are in its changes."""

_KEY: Final = (
    "SELECT a.attname, i.indimmediate FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k (number, at) "
    "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number "
    "WHERE CASE %s WHEN 'p' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END "
    "AND i.indrelid = %s AND k.at <= i.indnkeyatts ORDER BY k.at"
)
"""Columns of the primary key, or of the index that is the replica identity, and whether it is compared at once."""

_CHILDREN: Final = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s ORDER BY 1"
"""Tables that inherit from one."""
