"""Writing to PostgreSQL: chunks as transactions, COPY for the rows, any number of writers.

Two concurrent writers (a late worker and its successor, or two lanes) must have the same effect as one after the other:

1. Each transaction on an upsert table takes an advisory lock: shared if it only upserts, exclusive if it deletes. So no
   tombstone appears while somebody upserts, and an id that is neither in the table nor among the tombstones can be
   inserted.
2. New rows are copied directly. If the server reports that a key exists, the transaction is rolled back, and the rows
   are merged: known ones are read and locked, ``compare`` determines which are newer, and these are inserted through a
   temporary table with ON CONFLICT, which compares the sequences once more: another writer may have inserted the id
   since. The writer that loses this race begins again.
3. All writers lock rows in the order of their ids, so they cannot deadlock. If a deadlock arises nevertheless (with a
   foreign program), the server aborts one writer, which begins again.
4. A lost connection, even in the middle of the commit, is reported as an unavailable server. The next ``write``
   connects again, and when the chunk comes again, the hashes tell which rows are stored.
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psycopg
import sqlalchemy as sa
from psycopg.errors import CharacterNotInRepertoire, UndefinedTable, UniqueViolation, UntranslatableCharacter
from sqlalchemy.dialects.postgresql import JSONB

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
    without_nul,
)
from ferryman.destinations.sql import dialect, pgvector
from ferryman.destinations.sql.dialect import Dialect, index_mismatch
from ferryman.destinations.sql.layout import CONTENT_HASH, HASH_DIGITS, TOMBSTONES, ColumnTypes, Layout, intact_columns
from ferryman.destinations.vectors import Filter, VectorField
from ferryman.errors import DeliveryError, Misconfigured, PermanentError, Unavailable
from ferryman.net import databases
from ferryman.net.faults import database_fault

if TYPE_CHECKING:
    import numpy as np

TRIES: Final = 5
"""Attempts to write a chunk in conflict with other writers, each of which lets one of them succeed."""

LOCKS: Final = 0x0FE227A1
"""First half of the key of our advisory locks; the second is the table's number."""


class _LostRace(Exception):
    """Another writer has inserted an id since it was found missing."""


class PostgresWriter(dialect.Writer):
    """Writes chunks into a table that ``prepare`` has checked."""

    def __init__(self, url: sa.URL, layout: Layout, name: str) -> None:
        self._url = url
        self._layout = layout
        self._name = name
        self._sql = _Statements(layout)
        self._expects_new = True
        """Whether the next chunk is expected to be all new, like the one before."""
        self._replaces_nul = False
        """Whether NULs are replaced: only for the second attempt at a chunk, since searching every row for one takes
        longer than sending it."""
        self._connection = connect(url)

    def close(self) -> None:
        self._connection.close()

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        if self._connection.closed:
            self._connection = connect(self._url)
        self._replaces_nul = False
        for _ in range(TRIES):
            try:
                return self._write(chunk)
            except _LostRace:
                continue
            except psycopg.Error as e:
                if may_be_nul(e) and not self._replaces_nul:
                    self._replaces_nul = True
                elif not is_conflict(e):
                    raise
        raise Unavailable(f"other writers changed the same ids, {TRIES} times in a row; it is tried again.")

    def _write(self, chunk: list[Delivery]) -> list[Outcome]:
        appends = self._layout.appends
        if self._expects_new and self._can_be_new(chunk):
            try:
                with self._transaction() as cursor:
                    if appends or not self._tombstones(cursor, chunk):
                        self._copy(cursor, self._sql.copy, sorted(chunk, key=self._key))
                        self._record_sequence(cursor, chunk)
                        return [Outcome.ok()] * len(chunk)
            except UniqueViolation:  # of our key; a constraint of the user's own raises again below
                pass
            self._expects_new = False
        with self._transaction(alone=any(d.operation == "delete" for d in chunk)) as cursor:
            outcomes = self._append(cursor, chunk) if appends else self._merge(cursor, chunk)
            self._record_sequence(cursor, chunk)
            return outcomes

    def _record_sequence(self, cursor: psycopg.Cursor[Any], chunk: list[Delivery]) -> None:
        """Record the highest sequence of a chunk. Call it last: other lanes wait until this transaction has ended."""
        highest = max(delivery.sequence for delivery in chunk)
        cursor.execute(self._sql.record_sequence, [self._layout.documents.name, self._name, highest])

    def _key(self, delivery: Delivery) -> str:
        return delivery.hash if self._layout.appends else delivery.id

    def _can_be_new(self, chunk: list[Delivery]) -> bool:
        if len(set(map(self._key, chunk))) < len(chunk):
            return False
        return self._layout.appends or all(d.operation == "upsert" for d in chunk)

    @contextmanager
    def _transaction(self, alone: bool = False) -> Iterator[psycopg.Cursor[Any]]:
        with self._connection.transaction(), self._connection.cursor() as cursor:
            if not self._layout.appends:
                cursor.execute(self._sql.lock_exclusive if alone else self._sql.lock_shared)
            yield cursor

    def _append(self, cursor: psycopg.Cursor[Any], chunk: list[Delivery]) -> list[Outcome]:
        """Insert the deliveries whose hashes are not stored yet."""
        inserted = self._put_through_stage(cursor, self._sql.insert, list({d.hash: d for d in chunk}.values()))
        self._expects_new = inserted == len(chunk)
        return [Outcome.ok()] * len(chunk)

    def _merge(self, cursor: psycopg.Cursor[Any], chunk: list[Delivery]) -> list[Outcome]:
        """Compare the chunk with the stored rows, and bring each id to the state of its last delivery."""
        ids = sorted({d.id for d in chunk})
        known = self._known(cursor, self._sql.known, ids)
        tombstones = self._tombstones(cursor, chunk)
        outcomes, winners = compare(chunk, tombstones | known)
        upserts = [d for d in winners.values() if d.operation == "upsert"]
        deletes = [d for d in winners.values() if d.operation == "delete"]
        if upserts and self._put_through_stage(cursor, self._sql.upsert, upserts) < len(upserts):
            raise _LostRace
        if deletes:
            values = [d.id for d in deletes], [d.sequence for d in deletes], [d.hash for d in deletes]
            cursor.execute(self._sql.put_tombstones, values)
            cursor.execute(self._sql.delete, [values[0]])
        if restored := [d.id for d in upserts if d.id in tombstones]:
            cursor.execute(self._sql.remove_tombstones, [restored])
        self._expects_new = not known
        return outcomes

    def _tombstones(self, cursor: psycopg.Cursor[Any], chunk: list[Delivery]) -> dict[str, LastDelivery]:
        """Return the tombstones of these ids. There are often none at all: one look."""
        if cursor.execute(self._sql.any_tombstone).fetchone() is None:
            return {}
        return self._known(cursor, self._sql.tombstones_of_ids, [d.id for d in chunk])

    def _known(self, cursor: psycopg.Cursor[Any], query: bytes, ids: Collection[str]) -> dict[str, LastDelivery]:
        return {id: LastDelivery(sequence, digest) for id, sequence, digest in cursor.execute(query, [list(ids)])}

    def _put_through_stage(self, cursor: psycopg.Cursor[Any], statement: bytes, chunk: list[Delivery]) -> int:
        """Write rows through a temporary table; return the number of rows inserted or replaced."""
        cursor.execute(self._sql.make_stage)
        self._copy(cursor, self._sql.copy_to_stage, chunk)
        written = cursor.execute(statement).rowcount
        cursor.execute(self._sql.drop_stage)
        return written

    def _copy(self, cursor: psycopg.Cursor[Any], statement: bytes, chunk: list[Delivery]) -> None:
        rows = self._layout.rows(chunk)
        if self._replaces_nul:
            rows = (replace_nul(row, self._layout.names) for row in rows)
        with cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)


class _Statements:
    """SQL statements for one table, with its names filled in."""

    def __init__(self, layout: Layout) -> None:
        columns = [name for name in layout.names if name != layout.key]
        names = {
            "documents": quoted_table(layout.table),
            "tombstones": quoted_table(layout.table + TOMBSTONES),
            "stage": quoted("ferryman_stage"),
            "writers": quoted_table(".".join(filter(None, (layout.writers.schema, layout.writers.name)))),
            "columns": ", ".join(map(quoted, layout.names)),
            "key": quoted(layout.key),
            "changes": ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in columns),
            "number": f"{_literal(quoted_table(layout.table))}::regclass::oid::int",
            "locks": str(LOCKS),
        }

        def fill(template: str) -> bytes:
            if "%s" in template:  # then a percent sign in a name is psycopg's too
                return template.format_map({key: name.replace("%", "%%") for key, name in names.items()}).encode()
            return template.format_map(names).encode()

        self.lock_shared = fill("SELECT pg_advisory_xact_lock_shared({locks}, {number})")
        self.lock_exclusive = fill("SELECT pg_advisory_xact_lock({locks}, {number})")
        self.copy = fill("COPY {documents} ({columns}) FROM STDIN")
        self.make_stage = fill(
            "CREATE TEMPORARY TABLE {stage} ON COMMIT DROP AS SELECT {columns} FROM {documents} WITH NO DATA"
        )
        self.copy_to_stage = fill("COPY {stage} ({columns}) FROM STDIN")
        self.drop_stage = fill("DROP TABLE {stage}")
        put = 'INSERT INTO {documents} AS there ({columns}) SELECT {columns} FROM {stage} ORDER BY {key} COLLATE "C" '
        self.insert = fill(put + "ON CONFLICT ({key}) DO NOTHING")
        self.upsert = fill(
            put + "ON CONFLICT ({key}) DO UPDATE SET {changes} WHERE there.sequence <= excluded.sequence"
        )
        self.known = fill(
            'SELECT id, sequence, delivery_hash FROM {documents} WHERE id = ANY(%s) ORDER BY id COLLATE "C" FOR UPDATE'
        )
        self.any_tombstone = fill("SELECT 1 FROM {tombstones} LIMIT 1")
        self.tombstones_of_ids = fill("SELECT id, sequence, delivery_hash FROM {tombstones} WHERE id = ANY(%s)")
        self.put_tombstones = fill(
            "INSERT INTO {tombstones} (id, sequence, delivery_hash) SELECT * FROM unnest(%s::text[], %s::bigint[], "
            "%s::text[]) ON CONFLICT (id) DO UPDATE SET sequence = excluded.sequence, "
            "delivery_hash = excluded.delivery_hash"
        )
        self.delete = fill("DELETE FROM {documents} WHERE id = ANY(%s)")
        self.remove_tombstones = fill("DELETE FROM {tombstones} WHERE id = ANY(%s)")
        self.record_sequence = fill(
            "INSERT INTO {writers} AS there (name, writer, sequence) VALUES (%s, %s, %s) ON CONFLICT (name, writer) "
            "DO UPDATE SET sequence = excluded.sequence WHERE there.sequence < excluded.sequence"
        )


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# The full-text index of one PostgreSQL table: a generated column with its words, and a GIN index over it.
#
# ``fts`` is made by the server from the columns that are searched, whoever writes the row. Its words are as FTS5 cuts
# them: letters and digits of any script, without case (as far as the database's locale knows it) or accents; every
# other sign parts words, also those that PostgreSQL's parser would keep together (paths, hosts, hyphens). A comment on
# the column names what it was made of.

COLUMN: Final = "fts"

SUFFIX: Final = "_fts"
"""Suffix of the index's name."""

_COMMENT_START: Final = "ferryman full text: "
"""The comment's beginning; a JSON list of columns follows."""

_JOINING_CHARACTERS: Final = "./@_:-&=?<>+~#"
"""Characters that PostgreSQL's parser treats as parts of words, hosts, paths, tags or numbers."""

_SNIPPET_CHARACTERS: Final = 1_000_000
"""Characters of a document searched for a snippet: ten hits are shown at once."""

_MARKS: Final = ("\x02", "\x03")
"""Control characters around found words, replaced by the requested marks in Python, so that nothing needs escaping."""


def columns_of(connection: sa.Connection, table: str) -> tuple[str, ...] | None:
    """Return the columns of this table's full-text index; None if it has none."""
    comment = connection.execute(
        sa.text(
            "SELECT col_description(attrelid, attnum) FROM pg_attribute "
            "WHERE attrelid = to_regclass(:table) AND attname = :name AND NOT attisdropped"
        ),
        {"table": quoted_table(table), "name": COLUMN},
    ).scalar()
    if comment is None or not comment.startswith(_COMMENT_START):
        return None
    return tuple(json.loads(comment.removeprefix(_COMMENT_START)))


def create(connection: sa.Connection, table: str, columns: Sequence[str]) -> None:
    """Create column and index, with all existing rows; the table is locked meanwhile."""
    text = " || ' ' || ".join(f"coalesce({quoted(name)}::text, '')" for name in columns)
    name = quoted_table(table)
    comment = (_COMMENT_START + json.dumps(list(columns), ensure_ascii=False)).replace("'", "''")
    words = f"to_tsvector('pg_catalog.simple', {_folded_sql(text)})"
    for statement in (
        f"ALTER TABLE {name} ADD COLUMN {COLUMN} tsvector GENERATED ALWAYS AS ({words}) STORED",
        f"CREATE INDEX {quoted(table.rpartition('.')[2] + SUFFIX)} ON {name} USING gin ({COLUMN})",
        f"COMMENT ON COLUMN {name}.{COLUMN} IS '{comment}'",
    ):
        connection.exec_driver_sql(statement.replace("%", "%%"))


def find(
    connection: sa.Connection, table: str, asked: Query, limit: int, mark: tuple[str, str], wanted: Filter
) -> list[Hit]:
    """Return the rows that match the query and fit the filter, best first."""
    snippet_columns = ", ".join(f"{_in_text(quoted(name))}::text" for name in columns_of(connection, table) or ())
    title = _title_sql(connection, table)
    query, values = _query(asked)
    condition, filter_values = pgvector.filter_sql(wanted)
    rows = connection.execute(
        sa.text(
            f"""
            WITH asked AS (SELECT {query} AS query, {query.replace("folded_", "typed_")} AS typed),
            found AS (
                SELECT id, {title} AS title, left(concat_ws(' … ', {snippet_columns}), {_SNIPPET_CHARACTERS}) AS text,
                    ts_rank({COLUMN}, query) AS rank
                FROM {_in_text(quoted_table(table))} AS d, asked WHERE {COLUMN} @@ query AND {condition}
                ORDER BY rank DESC, id LIMIT :limit
            )
            SELECT id, title, ts_headline('simple', text, query || typed, :options), rank FROM found, asked
            ORDER BY rank DESC, id
            """
        ),
        values | filter_values | {"limit": limit, "options": _options()},
    )
    return [Hit(id, title, _apply_marks(snippet, mark), -rank) for id, title, snippet, rank in rows]


def _title_sql(connection: sa.Connection, table: str) -> str:
    """Return SQL of a table's title: of its column of that name, if it has one."""
    schema, _, name = table.rpartition(".")
    with databases.without_warnings():
        there = {column["name"] for column in sa.inspect(connection).get_columns(name, schema or None)}
    return quoted("title") + "::text" if "title" in there else "NULL"


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(table: str) -> str:
    """Quote the name of a table, which may have its schema before a dot."""
    return ".".join(map(quoted, table.split(".")))


def _in_text(name: str) -> str:
    """Return a quoted name for ``sa.text``, where a colon begins a parameter."""
    return name.replace(":", r"\:")


def _folded_sql(text: str) -> str:
    """Return SQL that removes accents and joining characters from an SQL expression. Accents are not searched in text
    that is all ASCII, as most is."""
    plain = f"CASE WHEN octet_length({text}) = char_length({text}) THEN {text} ELSE {_without_accents_sql(text)} END"
    return f"translate({plain}, '{_JOINING_CHARACTERS}', '{' ' * len(_JOINING_CHARACTERS)}')"


def _without_accents_sql(text: str) -> str:
    return rf"regexp_replace(normalize({text}, NFD), '[\u0300-\u036F]', '', 'g')"


def _query(asked: Query) -> tuple[str, dict[str, Any]]:
    """Return SQL of a tsquery and its parameters: ``folded_…`` without accents, ``typed_…`` as the user typed them."""
    values: dict[str, Any] = {}
    numbers = itertools.count()

    def term_sql(term: Term) -> str:
        return f"({' || '.join(phrase_sql(phrase, term.is_prefix) for phrase in term.spellings())})"

    def phrase_sql(phrase: str, is_prefix: bool) -> str:
        nonlocal values
        number, head, last = next(numbers), phrase, ""
        if is_prefix:
            head, last = " ".join(phrase.split()[:-1]), re.sub(r"['\\\0]", " ", phrase.split()[-1])
        part = f"phraseto_tsquery('simple', :folded_{number})"
        values |= _parameters(number, head)
        if is_prefix:
            part += f" <-> to_tsquery('simple', '''' || :folded_{number}_last || ''':*')"
            values |= _parameters(f"{number}_last", last)
        return f"({part})"

    alternatives = [f"({' && '.join(map(term_sql, terms))})" for terms in asked]
    return " || ".join(alternatives), values


def _parameters(name: int | str, text: str) -> dict[str, str]:
    text = text.replace("\0", " ").translate(dict.fromkeys(map(ord, _JOINING_CHARACTERS), " "))
    decomposed = unicodedata.normalize("NFD", text)
    return {f"folded_{name}": re.sub("[\u0300-\u036f]", "", decomposed), f"typed_{name}": text}


def _options() -> str:
    start, stop = _MARKS
    return f"StartSel={start}, StopSel={stop}, MaxWords={SNIPPET_WORDS}, MinWords={SNIPPET_WORDS // 2}"


def _apply_marks(snippet: str, mark: tuple[str, str]) -> str:
    for sign, text in zip(_MARKS, mark, strict=True):
        snippet = snippet.replace(sign, text)
    return snippet


# JSON as PostgreSQL prints it.


def printed_json(text: bytes) -> bytes:
    """Return JSON as the type ``jsonb`` prints it: shorter keys first, numbers without exponents, U+FFFD for NUL."""
    value = _decode_exact(text)
    if rb"\u0000" in text:
        value = without_nul(value)
    return msgspec.json.format(_encode_in_order(_with_keys_in_order(value)), indent=0)


def _with_keys_in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _with_keys_in_order(value[name]) if isinstance(value[name], dict | list) else value[name]
            for name in _in_order(tuple(value))
        }
    return list(map(_with_keys_in_order, value)) if isinstance(value, list) else value


@lru_cache(1024)
def _in_order(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return keys in the order of ``jsonb``; most documents have the same."""
    return tuple(sorted(names, key=lambda name: (len(encoded := name.encode()), encoded)))


def _number(literal: str) -> msgspec.Raw:
    number = Decimal(literal)
    return msgspec.Raw(f"{number or number.copy_abs():f}".encode())  # there is no -0.0


_decode_exact = msgspec.json.Decoder(float_hook=_number).decode
_encode_in_order = msgspec.json.Encoder().encode


# The PostgreSQL dialect of ``Sql``.

_ROWS: Final = 2_000
"""Rows that an inventory fetches at a time."""

_COLUMNS_OF_TABLE: Final = (
    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid "
    "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
)

_KEEP_TEXT: Final = ("text", "character varying")
"""Types of columns that keep text as it was written."""

_TELLS_VALID_INPUT: Final = 160000
"""Version of the first server that tells whether a text can be converted to a type."""


_HASHES: Final = 110000
"""Version of the first server that has ``sha256``."""


def _is_intact(layout: Layout, types: Mapping[str, str], version: int) -> str:
    """Return SQL for whether a row is as it was written: its ``content_hash`` is ``printed_hash`` of what it holds, and
    columns have the values of their fields.

    It is true only if ``Layout.stored`` would say so, too. False and NULL say nothing: a table may be older, or have
    columns of other types.
    """
    others = {"text", "fields", CONTENT_HASH, *layout.field_columns}
    texts = [f"{quoted(name)}::text" for name in (*(each for each in layout.names if each not in others), "text")]
    sizes = " || ".join(f"coalesce(octet_length({text})::text, '') || ','" for text in texts)
    values = " || ".join(f"coalesce({text}, '')" for text in (*texts, "fields::text"))
    digest = f"left(encode(sha256(convert_to({sizes} || {values}, 'UTF8')), 'hex'), {HASH_DIGITS})"
    conditions = [f"{CONTENT_HASH}::text = {digest}"]
    for name, field in zip(layout.field_columns, layout.fields_of_columns, strict=True):
        if types[name] in _KEEP_TEXT or version < _TELLS_VALID_INPUT:
            conditions.append(f"{quoted(name)}::text IS NOT DISTINCT FROM (fields ->> {_literal(field)})")
        else:
            conditions.append(_has_written_value(name, types[name], field))
    return " AND ".join(conditions)


def _has_written_value(column: str, kind: str, field: str) -> str:
    """Return SQL for whether a column has the value of a field, rounded, cut or padded as its type does it; NULL if the
    field has become what the type does not take.

    A column that keeps text is not asked: then a number and its text would be the same.
    """
    if kind in _KEEP_TEXT:
        return "NULL"
    written = f"(fields ->> {_literal(field)})"
    valid = f"coalesce(pg_input_is_valid({written}, {_literal(kind)}), true)"
    same = f"{written}::{kind} IS NOT DISTINCT FROM {quoted(column)}"
    if kind.startswith("json"):  # json has no equality
        same = f"{written}::jsonb IS NOT DISTINCT FROM {quoted(column)}::jsonb"
    return f"CASE WHEN {valid} THEN {same} END"


NAME_BYTES = 63
"""Longest name in PostgreSQL, which shortens longer ones, so that two could become one."""


class PostgreSQL(Dialect):
    """Dialect of PostgreSQL: any number of writers; a generated column and a GIN index for full text."""

    single_writer = False
    column_types = ColumnTypes(
        field=sa.Text,
        key=lambda: sa.Text(collation="C"),
        json=JSONB,
        printed_json=printed_json,
        vector=pgvector.VectorColumn,
        vector_text=pgvector.number_text,
    )
    reserved = (COLUMN,)

    def url_findings(self, url: sa.URL) -> Iterator[str]:
        if url.drivername != databases.POSTGRESQL_DRIVER:
            yield f"{url.drivername} is not supported: write postgresql://, which uses psycopg 3"

    def argument_findings(self, table: str, full_text: tuple[str, ...], columns: Collection[str]) -> Iterator[str]:
        if "." in table and (table.count(".") > 1 or not all(table.split("."))):
            yield "give the table as table or as schema.table"
        if _bytes(table.rpartition(".")[2] + TOMBSTONES) > NAME_BYTES or _bytes(table.partition(".")[0]) > NAME_BYTES:
            yield f"the table's name is too long: PostgreSQL takes {NAME_BYTES} bytes, with _tombstones at its end"
        for name in columns:
            if _bytes(name) > NAME_BYTES:
                yield f"columns: {name[:20]!r}… has {_bytes(name)} bytes: PostgreSQL would cut it after {NAME_BYTES}"

    def place(self, url: sa.URL) -> str:
        hosts = url.query.get("host", "")
        host = url.host or (hosts if isinstance(hosts, str) else ",".join(hosts))
        return sa.URL.create("postgresql", host=host or None, port=url.port, database=url.database).render_as_string()

    def prepare(self, url: str, layout: Layout, columns: tuple[str, ...], where: str) -> None:
        with engine(sa.make_url(url)).connect() as connection, connection.begin():
            encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
            if encoding != "UTF8":
                raise Misconfigured(
                    f"{where}: the database's encoding is {encoding}, which lacks some characters. Create one with "
                    "ENCODING 'UTF8', then run again."
                )
            # The first of several drivers makes everything, the others wait and find it.
            lock = sa.text("SELECT pg_advisory_xact_lock(:locks, hashtext(:table))")
            connection.execute(lock, {"locks": LOCKS, "table": layout.table})
            if layout.vectors:
                pgvector.locate(connection, layout, where, create=True)
            is_new = layout.create(connection, where)
            if not layout.appends:
                _check_collations(connection, layout, where)
            if not is_new and layout.vectors:
                pgvector.check_columns(connection, layout, where)
            if columns:
                self._index(connection, layout.table, columns, where)

    def _index(self, connection: sa.Connection, table: str, columns: tuple[str, ...], where: str) -> None:
        indexed = columns_of(connection, table)
        if indexed is None:
            create(connection, table, columns)
        elif indexed != columns:
            raise index_mismatch(where, indexed, columns, f"ALTER TABLE {table} DROP COLUMN {COLUMN}")

    def writer(self, url: str, layout: Layout, name: str) -> PostgresWriter:
        return PostgresWriter(sa.make_url(url), layout, name)

    def inventory(self, url: str, layout: Layout, ids: Collection[str] | None) -> Iterator[StoredColumns]:
        table = quoted_table(layout.table)
        with connect(sa.make_url(url)) as connection, connection.transaction():
            # The rows that are read a second time are those that were read first.
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            types = dict(connection.execute(_COLUMNS_OF_TABLE, [table]).fetchall())
            if not types:
                return
            there = layout.columns_to_read(types)
            if ids is not None:
                yield from _rows(connection, layout, types, "id", list(ids))
            elif layout.vector_columns or CONTENT_HASH not in there or connection.info.server_version < _HASHES:
                yield from _rows(connection, layout, types)
            else:
                yield from _hashed_rows(connection, layout, types)

    def _explain(self, cause: BaseException, where: str) -> DeliveryError | None:
        if not isinstance(cause, psycopg.Error):
            return None
        if cause.sqlstate is None and isinstance(cause, psycopg.DataError):  # psycopg's own: it was never sent
            return PermanentError(f"{where}: {_message_of(cause)}: change the document in a step.")
        if isinstance(cause, UndefinedTable):
            return Unavailable(
                f"{where}: {_message_of(cause)}: the table was dropped in use; the next wave makes it again."
            )
        fault = database_fault(cause)
        return fault and fault.kind(f"{where}: {_message_of(cause)}: {fault.remedy}.")

    def open_reader(self, url: sa.URL) -> sa.Engine:
        return engine(url, read_only=True)

    def is_indexed(self, connection: sa.Connection, table: str) -> bool:
        return columns_of(connection, table) is not None

    def find(
        self,
        connection: sa.Connection,
        table: str,
        query: Query,
        limit: int,
        mark: tuple[str, str],
        wanted: Filter | None = None,
    ) -> list[Hit]:
        return find(connection, table, query, limit, mark, wanted or {})

    def vector_findings(self, vectors: Mapping[str, VectorField], table: str) -> Iterator[str]:
        return pgvector.declaration_findings(vectors, table, NAME_BYTES)

    def nearest(
        self,
        connection: sa.Connection,
        layout: Layout,
        field: str,
        question: np.ndarray[Any, Any],
        limit: int,
        wanted: Filter,
    ) -> list[Hit]:
        return pgvector.find(connection, layout, field, question, limit, wanted, _title_sql(connection, layout.table))

    def durability_risk(self, connection: sa.Connection) -> str:
        risks = {"fsync": "may destroy the database", "synchronous_commit": "loses the last commits"}
        off = [name for name in risks if connection.exec_driver_sql(f"SHOW {name}").scalar_one() == "off"]
        return "; ".join(f"{name} is off: a crash of its machine {risks[name]}. Set it on" for name in off)

    def maintain(self, url: str, layout: Layout, where: str) -> list[str]:
        if all(field.index is None for field in layout.vectors.values()):
            return []
        server = engine(sa.make_url(url))
        with server.connect() as connection, connection.begin():
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'")
            built = pgvector.build_indexes(connection, layout, where)
        with server.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            return built + pgvector.reclaim_space(connection, layout)


def _hashed_rows(
    connection: psycopg.Connection[Any], layout: Layout, types: Mapping[str, str]
) -> Iterator[StoredColumns]:
    """Yield the rows of a table. The server compares them with their hashes; only those that differ are fetched as a
    whole, for ``Layout.stored`` to tell what that means."""
    intact = _is_intact(layout, types, connection.info.server_version)
    query = f"SELECT id, delivery_hash, source, version, route::text, {intact} FROM {quoted_table(layout.table)}"
    key = 1 if layout.appends else 0
    for rows in _fetched(connection, query):
        if others := [row[key] for row in rows if not row[5]]:
            yield from _rows(connection, layout, types, layout.key, others)
            rows = [row for row in rows if row[5]]
        if rows:
            *columns, _ = zip(*rows, strict=True)
            yield intact_columns(*columns)


def _rows(
    connection: psycopg.Connection[Any],
    layout: Layout,
    types: Mapping[str, str],
    key: str = "",
    keys: Sequence[str] | None = None,
) -> Iterator[StoredColumns]:
    """Yield the rows of a table, or those with these keys, all their columns."""
    there = layout.columns_to_read(types)
    printed = {"route", "fields", *layout.field_columns, *layout.vector_columns}
    names = ", ".join(
        f"{quoted(name)}{'::text' if name in printed else ''}" if name in there else "NULL" for name in layout.names
    )
    if connection.info.server_version >= _TELLS_VALID_INPUT:
        names += "".join(
            f", {_has_written_value(name, types[name], field)}"
            for name, field in zip(layout.field_columns, layout.fields_of_columns, strict=True)
        )
    query = f"SELECT {names} FROM {quoted_table(layout.table)}"
    keep_text = [types[name] in _KEEP_TEXT for name in layout.field_columns]
    vectors = slice(len(layout.names) - len(layout.vector_columns), len(layout.names))
    for rows in _fetched(connection, query, key, keys):
        numbers = (map(pgvector.number_bytes, row[vectors]) for row in rows)
        named = (dict(zip(layout.vector_columns, each, strict=True)) for each in numbers)
        stored = (layout.stored(row, keep_text, of_row) for row, of_row in zip(rows, named, strict=True))
        yield StoredColumns(*zip(*stored, strict=True))


def _fetched(
    connection: psycopg.Connection[Any], query: str, key: str = "", keys: Sequence[str] | None = None
) -> Iterator[list[tuple[Any, ...]]]:
    with connection.cursor(f"ferryman_inventory{'_by_key' if key else ''}") as cursor:
        if keys is None:
            cursor.execute(query.encode())
        else:
            cursor.execute(f"{query.replace('%', '%%')} WHERE {quoted(key)} = ANY(%s)".encode(), [list(keys)])
        while rows := cursor.fetchmany(_ROWS):
            yield rows


_EQUAL_IDS: Final = """
SELECT collname FROM pg_attribute JOIN pg_collation ON pg_collation.oid = attcollation
WHERE attrelid = to_regclass(:table) AND attname = 'id'
    AND to_jsonb(pg_collation) ->> 'collisdeterministic' = 'false'
"""
"""SQL for the collation of a table's ids if different ids are equal in it. Servers before 12 have no such ones."""


def _check_collations(connection: sa.Connection, layout: Layout, where: str) -> None:
    """Check that existing tables tell all ids apart.

    Raises:
        Misconfigured: one does not; with the statement that changes it.
    """
    for suffix in ("", TOMBSTONES):
        name = quoted_table(table := layout.table + suffix)
        if collation := connection.scalar(sa.text(_EQUAL_IDS), {"table": name}):
            raise Misconfigured(
                f"{where}: {table}.id has the collation {collation}, for which some different ids are equal: those "
                f'that differ in case or accents. ALTER TABLE {name} ALTER COLUMN id TYPE text COLLATE "C", or give '
                "another table=, then run again."
            )


def _bytes(name: str) -> int:
    return len(name.encode(errors="replace"))


# Connections to PostgreSQL, and how a session is set up.

CONNECT_TIMEOUT_S: Final = 10
"""Time for connecting: a host that drops packets would otherwise take two minutes."""

LOCK_TIMEOUT_S: Final = 30
"""Time to wait for rows that another writer has locked: half of what a ``write`` may take."""

IDLE_TIMEOUT_S: Final = 60
"""Time after which the server ends the session of a writer that stalls in the middle of a transaction (stopped, swapped
out, disconnected), and so releases its rows."""

_SETTINGS: Final = (
    f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'",
    f"SET idle_in_transaction_session_timeout = '{IDLE_TIMEOUT_S}s'",
    # Every commit waits for the disk: our own "delivered" must not survive a power cut that the rows do not.
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
)


def connect(url: sa.URL) -> psycopg.Connection[Any]:
    """Open a session for a writer, with explicit transactions and durable commits.

    It uses no prepared statements: behind a pooler (PgBouncer) the next transaction may run in another server process.
    """
    _, options = url.get_dialect()().create_connect_args(url)
    connection = psycopg.connect(**_with_defaults(dict(options)), autocommit=True, prepare_threshold=None)
    try:
        for statement in _SETTINGS:
            connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


def engine(url: sa.URL, *, read_only: bool = False) -> sa.Engine:
    """Return an engine without a pool."""
    options = {"options": f"{url.query.get('options', '')} -c default_transaction_read_only=on"} if read_only else {}
    return sa.create_engine(url, poolclass=sa.NullPool, connect_args=_with_defaults(dict(url.query)) | options)


def _with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    return {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "ferryman"} | options


# Meaning of PostgreSQL's errors: whether they concern a delivery or the database, and what to do.


def is_conflict(error: psycopg.Error) -> bool:
    """Return whether an error is a deadlock or serialisation failure, after which the transaction can be repeated at
    once."""
    return error.sqlstate in ("40001", "40P01")


def _message_of(error: psycopg.Error) -> str:
    """Return the server's message in one line, with the column or constraint that it names. Values of a row are not
    shown."""
    text = error.diag.message_primary or str(error).strip() or type(error).__name__
    if error.diag.column_name:
        text = f"{text} (column {error.diag.column_name})"
    elif error.diag.constraint_name and error.diag.constraint_name not in text:
        text = f"{text} ({error.diag.constraint_name})"
    return " ".join(text.split())


# NUL, which PostgreSQL cannot store, neither as a character of text nor as ``\u0000`` in JSON.
#
# In text and fields it is replaced by U+FFFD, like bytes that are not text. An id must not be changed.

_NAMES_OF: Final = ("id", "parent_id", "origin_id")
"""Columns that name documents."""

_encode = msgspec.json.Encoder(order="sorted").encode

Row = tuple[Any, ...]


def may_be_nul(error: psycopg.Error) -> bool:
    """Return whether the error may be due to a NUL. psycopg detects it in text, the server in JSON."""
    own = isinstance(error, psycopg.DataError) and error.sqlstate is None
    return own or isinstance(error, UntranslatableCharacter | CharacterNotInRepertoire)


def replace_nul(row: Row, names: tuple[str, ...]) -> Row:
    """Replace the NULs in a row.

    Raises:
        PermanentError: an id has one.
    """
    for name, value in zip(names, row, strict=True):
        if name in _NAMES_OF and value is not None and "\0" in value:
            raise PermanentError(
                f"{value.replace(chr(0), '␀')}: PostgreSQL has no NUL characters, and this {name} has one. Give the "
                "document another id: with another character in its place it could equal another document's id."
            )
    return tuple(
        _replace_nul_in_json(value)
        if name == "fields"
        else value.replace("\0", "\ufffd")
        if type(value) is str
        else value
        for name, value in zip(names, row, strict=True)
    )


def _replace_nul_in_json(fields: str | None) -> str | None:
    """Replace NULs in JSON. It is decoded for that, because ``\\u0000`` may be a NUL, or an escaped backslash and five
    characters."""
    if fields is None or r"\u0000" not in fields:
        return fields
    return _encode(without_nul(msgspec.json.decode(fields))).decode()
