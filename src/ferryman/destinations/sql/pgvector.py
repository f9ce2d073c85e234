"""Vectors of one PostgreSQL table: a column ``vector(n)`` or ``halfvec(n)`` of the extension pgvector for each field.

A vector is written and replaced with its row. An index "hnsw" is built once the first load is over, which takes a
fraction of the time that keeping it up to date row by row takes. A question sorts by the index; if a filter leaves
fewer rows than were asked for, it is asked again without the index, which misses none.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import UserDefinedType

from ferryman.destinations.base import Hit, without_nul
from ferryman.destinations.sql.layout import Layout
from ferryman.destinations.vectors import Filter, Metric, VectorField, check_remembered, hit_of
from ferryman.errors import Misconfigured

MOST_INDEXED: Final = {"float32": 2_000, "float16": 4_000}
"""Dimensions that an index "hnsw" takes."""

SAFE_VERSION: Final = (0, 8, 4)
"""First version whose vacuum cannot damage an index "hnsw", and none of whose inserts fails meanwhile."""

LEAST_EXAMINED: Final = 100
"""Candidates that a question keeps while it walks an index "hnsw" (``hnsw.ef_search``; pgvector's default is 40)."""

MOST_EXAMINED: Final = 1_000
"""Highest value of ``hnsw.ef_search``."""

DEAD_ROWS: Final = 50
DEAD_SHARE: Final = 0.2
"""Rows that may be dead before a table is vacuumed, and share of the live ones: PostgreSQL's own limits."""

_TYPES: Final = {"float32": "vector", "float16": "halfvec"}
_OPERATORS: Final[dict[Metric, str]] = {"cosine": "<=>", "l2": "<->", "dot": "<#>"}
_CLASSES: Final[dict[Metric, str]] = {"cosine": "cosine_ops", "l2": "l2_ops", "dot": "ip_ops"}

_log = logging.getLogger("ferryman")


class VectorColumn(UserDefinedType[Any]):
    """Type of a column for vectors.

    Attributes:
        schema: of the extension; ``locate`` sets it, for a session may not have it on its path.
    """

    cache_ok = True

    def __init__(self, field: VectorField) -> None:
        self.field = field
        self.schema = ""

    def get_col_spec(self, **_: Any) -> str:
        return f"{self.schema}{'.' if self.schema else ''}{_TYPES[self.field.type]}({self.field.dimensions})"


def declaration_findings(vectors: Mapping[str, VectorField], table: str, name_bytes: int) -> Iterator[str]:
    """Yield a text for each declared field that PostgreSQL cannot hold."""
    for name, field in vectors.items():
        if not isinstance(name, str) or field.type not in MOST_INDEXED:
            continue  # reported for all stores
        most = MOST_INDEXED[field.type]
        if field.index == "hnsw" and isinstance(field.dimensions, int) and field.dimensions > most:
            half = MOST_INDEXED["float16"]
            way = "leave index= out (each question then compares with every row), or use a model with fewer dimensions"
            if field.dimensions <= half:
                way = f"give type='float16', which takes {half}, or {way}"
            yield (
                f"vectors: {name!r}: an index 'hnsw' takes {most} dimensions of {field.type}, not {field.dimensions}: "
                f"{way}"
            )
        if len(index_name(table, name).encode(errors="replace")) > name_bytes:
            yield f"vectors: {name!r}: <table>_{name}_hnsw is a longer name than PostgreSQL takes ({name_bytes} bytes)"


def index_name(table: str, field: str) -> str:
    """Return the name of the index that is made for a field."""
    return f"{table.rpartition('.')[2]}_{field}_hnsw"


def number_text(vector: bytes) -> str:
    """Return float32 bytes as the text that PostgreSQL reads and prints."""
    import numpy as np

    return "[" + ",".join(map(repr, np.frombuffer(vector, "<f4").tolist())) + "]"


def number_bytes(text: str | None) -> bytes | None:
    """Return a vector that PostgreSQL has printed as float32 bytes."""
    import numpy as np

    return None if text is None else np.array(text.strip("[]").split(","), "<f4").tobytes()


# The extension, the columns and the index.


def locate(connection: sa.Connection, layout: Layout, where: str, *, create: bool = False) -> str:
    """Return the quoted schema of the extension, and tell the layout's columns; create the extension if asked to.

    Raises:
        Misconfigured: the database does not have it, and does not let us create it.
    """
    query = sa.text(
        "SELECT quote_ident(nspname), extversion FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace "
        "WHERE extname = 'vector'"
    )
    there = connection.execute(query).first()
    if there is None and create:
        _create_extension(connection, where)
        there = connection.execute(query).first()
    if there is None:
        raise Misconfigured(
            f"{where}: the database has no extension pgvector, which vectors= needs. {_AS_ADMINISTRATOR}"
        )
    schema, version = there
    for name in layout.vector_columns:
        kind = layout.documents.columns[name].type
        assert isinstance(kind, VectorColumn)
        kind.schema = schema
    if create and _version(version) < SAFE_VERSION:
        _log.warning(
            "%s: pgvector %s may damage an index 'hnsw' when the table is vacuumed, or refuse rows meanwhile. Install "
            "%s or later, then: ALTER EXTENSION vector UPDATE; REINDEX the index",
            where, version, ".".join(map(str, SAFE_VERSION)),
        )  # fmt: skip
    return str(schema)


_AS_ADMINISTRATOR: Final = (
    "Install pgvector on the server, have an administrator run CREATE EXTENSION vector in the database, then run again."
)


def _create_extension(connection: sa.Connection, where: str) -> None:
    try:
        with connection.begin_nested():
            connection.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
    except DBAPIError as e:
        why = " ".join(str(e.orig).split())
        raise Misconfigured(f"{where}: the extension pgvector cannot be made: {why}. {_AS_ADMINISTRATOR}") from e


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def check_columns(connection: sa.Connection, layout: Layout, where: str) -> None:
    """Check that the columns of an existing table are of the declared types, and an index counts as declared.

    Raises:
        Misconfigured: they are not; the message says what to do.
    """
    types = sa.text(
        "SELECT attname, typname, atttypmod FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid "
        "WHERE attrelid = to_regclass(:table) AND attnum > 0 AND NOT attisdropped"
    )
    there = {name: (kind, size) for name, kind, size in connection.execute(types, {"table": _table(layout)})}
    for name, field in layout.vectors.items():
        kind, size = there[name]
        if kind in _TYPES.values():
            check_remembered(where, name, field, {"dimensions": max(size, 0)}, "table")
        if kind != _TYPES[field.type]:
            raise Misconfigured(
                f"{where}: column {name} is of the type {kind}, the plan says {_TYPES[field.type]} "
                f"(type={field.type!r}). Correct type=, or give the plan a higher version and this destination another "
                "table=, and run it with --from-version."
            )
        for index in _indexes(connection, layout, name):
            if index.metric != field.metric:
                raise Misconfigured(
                    f"{where}: the index {index.name} counts distances as {index.metric!r}, the plan says "
                    f"metric={field.metric!r}, for which it is of no use. Correct metric=, or DROP INDEX {index.name}: "
                    "the next run makes it again."
                )


class _Index(NamedTuple):
    name: str
    metric: str


def _indexes(connection: sa.Connection, layout: Layout, column: str) -> list[_Index]:
    """Return the usable indexes "hnsw" of a column."""
    rows = connection.execute(
        sa.text(
            """
            SELECT c.oid::regclass::text, o.opcname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
            JOIN pg_am m ON m.oid = c.relam JOIN pg_opclass o ON o.oid = i.indclass[0]
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
            WHERE i.indrelid = to_regclass(:table) AND a.attname = :column AND m.amname = 'hnsw' AND i.indisvalid
            """
        ),
        {"table": _table(layout), "column": column},
    )
    metrics = {suffix: metric for metric, suffix in _CLASSES.items()}
    return [_Index(name, metrics.get(kind.partition("_")[2], kind)) for name, kind in rows]


def build_indexes(connection: sa.Connection, layout: Layout, where: str) -> list[str]:
    """Build the declared indexes that are missing, if there are rows; return a line about each.

    The table can be read meanwhile, and not written.
    """
    built: list[str] = []
    if not sa.inspect(connection).has_table(layout.documents.name, layout.documents.schema):
        return built
    for name, field in layout.vectors.items():
        if field.index is None or _indexes(connection, layout, name):
            continue
        column, table = _quote(name), _table(layout)
        rows = connection.exec_driver_sql(
            _escape_percent(f"SELECT 1 FROM {table} WHERE {column} IS NOT NULL LIMIT 1")
        ).first()
        if rows is None:
            continue
        schema = locate(connection, layout, where)
        kind = f"{schema}.{_TYPES[field.type]}_{_CLASSES[field.metric]}"
        made = _quote(index_name(layout.table, name))
        connection.exec_driver_sql(_escape_percent(f"CREATE INDEX {made} ON {table} USING hnsw ({column} {kind})"))
        built.append(f"built the index {index_name(layout.table, name)}")
    return built


def reclaim_space(connection: sa.Connection, layout: Layout) -> list[str]:
    """Vacuum the table if a fifth of it is rows that were replaced or deleted; return a line about it.

    Those rows lie in an index "hnsw", too, where questions walk past them. The server's own vacuum may be busy or off.

    Args:
        connection: one that commits each statement by itself.
    """
    query = sa.text("SELECT n_dead_tup, n_live_tup FROM pg_stat_all_tables WHERE relid = to_regclass(:table)")
    dead, live = connection.execute(query, {"table": _table(layout)}).first() or (0, 0)
    if dead <= DEAD_ROWS + DEAD_SHARE * live:
        return []
    connection.exec_driver_sql(_escape_percent(f"VACUUM {_table(layout)}"))
    return [f"vacuumed {layout.table}: the space of {dead} replaced or deleted rows can be used again"]


# Questions.


def find(
    connection: sa.Connection, layout: Layout, field: str, question: Any, limit: int, wanted: Filter, title: str
) -> list[Hit]:
    """Return the rows with the nearest vectors, best first.

    Args:
        title: SQL of the title.
    """
    declared = layout.vectors[field]
    schema = locate(connection, layout, layout.table)
    condition, values = filter_sql(wanted)
    distance = (
        f"{_in_text(_quote(field))} OPERATOR({schema}.{_OPERATORS[declared.metric]}) "
        f"CAST(:question AS {schema}.{_TYPES[declared.type]})"
    )
    statement = sa.text(
        f"SELECT id, {title}, text, CAST(fields AS text), {distance} FROM {_in_text(_table(layout))} AS d "
        f"WHERE {_in_text(_quote(field))} IS NOT NULL AND {condition} ORDER BY {distance} LIMIT :limit"
    )
    parameters = {"question": number_text(question.tobytes()), "limit": limit, **values}
    examined = min(MOST_EXAMINED, max(LEAST_EXAMINED, 2 * limit))
    for setting in (f"hnsw.ef_search = {examined}", "hnsw.iterative_scan = strict_order"):
        connection.exec_driver_sql(f"SET LOCAL {setting}")
    rows = connection.execute(statement, parameters).fetchall()
    if len(rows) < limit and _indexes(connection, layout, field):
        connection.exec_driver_sql("SET LOCAL enable_indexscan = off")
        rows = connection.execute(statement, parameters).fetchall()
    hits = [hit_of(*row, metric=declared.metric) for row in rows]
    return sorted(hits, key=lambda hit: (hit.rank, hit.id))


def filter_sql(wanted: Filter) -> tuple[str, dict[str, str]]:
    """Return SQL that is true of a row ``d`` that fits a filter, and its parameters. A GIN index over ``fields`` serves
    it."""
    conditions, parameters = ["TRUE"], dict[str, str]()
    for name, values in wanted.items():
        alternatives = []
        for value in values:
            for content in (value, [value]):
                parameter = f"wanted_{len(parameters)}"
                parameters[parameter] = msgspec.json.encode(without_nul({name: content})).decode()
                alternatives.append(f"d.fields @> CAST(:{parameter} AS jsonb)")
        conditions.append(f"({' OR '.join(alternatives)})")
    return " AND ".join(conditions), parameters


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _table(layout: Layout) -> str:
    return ".".join(map(_quote, layout.table.split(".")))


def _escape_percent(statement: str) -> str:
    """Return SQL for a driver to which a percent sign begins a parameter."""
    return statement.replace("%", "%%")


def _in_text(name: str) -> str:
    """Return a quoted name for ``sa.text``, where a colon begins a parameter."""
    return name.replace(":", r"\:")
