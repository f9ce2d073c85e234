"""Vectors of one SQLite table, in a table beside it: ``<table>_vectors`` has a column of float32 bytes for each field.

It is an ordinary table, not one of sqlite-vec's own kind ``vec0``: both compare a question with each vector, equally
fast (50 000 vectors of 256 dimensions in 0.03 s); but ``vec0`` never gives back the space of rows that were replaced,
and takes neither ``INSERT OR REPLACE`` nor text as a key of any length. So only questions need sqlite-vec, and a writer
deletes and inserts vectors in the transaction of their rows.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

from ferryman.destinations.base import Delivery, Hit, slices
from ferryman.destinations.sql.layout import Layout, made_without_vectors
from ferryman.destinations.vectors import Filter, Scalar, VectorField, hit_of
from ferryman.errors import Misconfigured
from ferryman.net.databases import sqlalchemy as sa

VECTORS: Final = "_vectors"
"""Suffix of the table."""

INSTALL: Final = "pip install 'ferryman[vectors]'"

_DISTANCES: Final = {"cosine": "vec_distance_cosine", "l2": "vec_distance_L2"}

_IDS: Final = 10_000
"""Ids in a statement."""


def declaration_findings(vectors: Mapping[str, VectorField]) -> Iterator[str]:
    """Yield a text for each declared field that SQLite cannot hold."""
    for name, field in vectors.items():
        if field.metric not in _DISTANCES:
            yield (
                f"vectors: {name!r}: sqlite-vec has no metric={field.metric!r}: use 'cosine', which finds the same "
                "where all vectors have length 1"
            )
        if field.index is not None:
            yield f"vectors: {name!r}: sqlite-vec compares with each vector: leave index= out, or use PostgreSQL"
        if field.type != "float32":
            yield f"vectors: {name!r}: sqlite-vec has no type={field.type!r}: leave it out, or use PostgreSQL"


class VectorTable:
    """Table with the vectors of a documents table; its methods are used only inside a write transaction."""

    def __init__(self, layout: Layout, columns: Sequence[str]) -> None:
        self._layout = layout
        self._table = _quote(layout.table + VECTORS)
        self._fields = [name for name in columns if name in layout.vectors]
        names = ", ".join(["id", *map(_quote, self._fields)])
        self._insert = f"INSERT INTO {self._table} ({names}) VALUES ({', '.join('?' * (len(self._fields) + 1))})"

    @classmethod
    def of(cls, connection: sqlite3.Connection, layout: Layout) -> VectorTable | None:
        """Return the table of vectors beside the layout's; None if there is none."""
        columns = columns_of(connection.execute, layout.table)
        return cls(layout, columns) if columns else None

    def insert(self, connection: sqlite3.Connection, deliveries: Iterable[Delivery]) -> None:
        """Insert the vectors of deliveries whose ids have none."""
        if self._fields:
            connection.executemany(self._insert, self._rows(deliveries))

    def _rows(self, deliveries: Iterable[Delivery]) -> Iterator[tuple[str | bytes | None, ...]]:
        for delivery in deliveries:
            vectors = self._layout.vectors_of(delivery)
            if vectors:
                yield (delivery.id, *map(vectors.get, self._fields))

    def delete(self, connection: sqlite3.Connection, ids: Iterable[str]) -> None:
        """Delete the vectors of these ids."""
        for some in slices(ids, _IDS):
            connection.execute(f"DELETE FROM {self._table} WHERE id IN ({', '.join('?' * len(some))})", tuple(some))


def columns_of(execute: Callable[[str], Iterable[Any]], table: str) -> list[str]:
    """Return the fields whose vectors are stored beside a table; []: none.

    Args:
        execute: runs a statement, and returns the rows.
    """
    return [row[1] for row in execute(f"PRAGMA table_info({_quote(table + VECTORS)})")][1:]


def prepare(connection: sa.Connection, layout: Layout, is_new: bool, where: str) -> None:
    """Create the table, or check an existing one.

    Raises:
        Misconfigured: the documents were written without these vectors.
    """
    if is_new:  # an older table of vectors may be left, if somebody has dropped the documents
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {_quote(layout.table + VECTORS)}")
        columns = ", ".join(f"{_quote(name)} BLOB" for name in layout.vectors)
        connection.exec_driver_sql(
            f"CREATE TABLE {_quote(layout.table + VECTORS)} (id TEXT NOT NULL PRIMARY KEY, {columns})"
        )
        return
    there = columns_of(connection.exec_driver_sql, layout.table)
    if missing := [name for name in layout.vectors if name not in there]:
        raise made_without_vectors(where, missing)


def find(
    connection: sa.Connection,
    layout: Layout,
    field: str,
    question: Any,
    limit: int,
    wanted: Filter,
) -> list[Hit]:
    """Return the rows with the nearest vectors, best first."""
    metric = layout.vectors[field].metric
    vectors, documents, column = _quote(layout.table + VECTORS), _quote(layout.table), _quote(field)
    condition, values = filter_sql(wanted)
    chosen = f"AND v.id IN (SELECT d.id FROM {documents} AS d WHERE {condition})" if wanted else ""
    known = {row[1] for row in connection.exec_driver_sql(f"PRAGMA table_info({documents})")}
    title = "d.title" if "title" in known else "NULL"
    rows = connection.exec_driver_sql(
        f"""
        WITH best AS (
            SELECT v.id, {_DISTANCES[metric]}(v.{column}, ?) AS distance FROM {vectors} AS v
            WHERE v.{column} IS NOT NULL {chosen} ORDER BY distance, v.id LIMIT ?
        )
        SELECT d.id, {title}, d.text, d.fields, distance FROM best JOIN {documents} AS d ON d.id = best.id
        ORDER BY distance, d.id
        """,
        (question.tobytes(), *values, limit),
    )
    return [hit_of(*row, metric=metric) for row in rows]


def filter_sql(wanted: Filter) -> tuple[str, list[Any]]:
    """Return SQL that is true of a row ``d`` that fits a filter, and its parameters.

    Fields are looked up by comparing their names, not by a JSON path: a name may have any character.
    """
    conditions, parameters = ["TRUE"], []
    for name, values in wanted.items():
        alone, alone_values = _value_sql("f", values)
        inside, inside_values = _value_sql("e", values)
        conditions.append(
            f"EXISTS (SELECT 1 FROM json_each(d.fields) AS f WHERE f.key = ? AND CASE f.type WHEN 'array' THEN "
            f"EXISTS (SELECT 1 FROM json_each(f.value) AS e WHERE {inside}) ELSE {alone} END)"
        )
        parameters += [name, *inside_values, *alone_values]
    return " AND ".join(conditions), parameters


def _value_sql(row: str, values: Sequence[Scalar]) -> tuple[str, list[Any]]:
    """Return SQL that is true of a row of ``json_each`` with one of these values, and its parameters."""
    alternatives, parameters = [], []
    for value in values:
        if isinstance(value, bool):
            alternatives.append(f"{row}.type = '{'true' if value else 'false'}'")
        else:
            kinds = "('text')" if isinstance(value, str) else "('integer', 'real')"
            alternatives.append(f"({row}.type IN {kinds} AND {row}.atom = ?)")
            parameters.append(value)
    return f"({' OR '.join(alternatives)})", parameters


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# Loading sqlite-vec.

_loading = threading.Lock()


def not_installed() -> str:
    """Return what is missing for questions, with the command that installs it; "": nothing is."""
    return "" if find_spec("sqlite_vec") else f"searching vectors in SQLite needs sqlite-vec: {INSTALL}"


def connect(database: str, **options: Any) -> sqlite3.Connection:
    """Open a database with sqlite-vec's functions.

    Many Pythons are built without ``Connection.enable_load_extension``. For them the extension is announced to the
    SQLite library itself while the connection is opened. Another copy of SQLite, as other packages bring one, would not
    do: two copies in one process release each other's locks.

    Raises:
        Misconfigured: sqlite-vec is not installed, or this Python's SQLite takes no extensions.
    """
    if missing := not_installed():
        raise Misconfigured(missing)
    import sqlite_vec

    if hasattr(sqlite3.Connection, "enable_load_extension"):
        connection: sqlite3.Connection = sqlite3.connect(database, **options)
        connection.enable_load_extension(True)
        sqlite_vec.load(connection)
        connection.enable_load_extension(False)
        return connection
    library, start = _library(sqlite_vec.loadable_path())
    with _loading:
        library.sqlite3_auto_extension(start)
        try:
            opened: sqlite3.Connection = sqlite3.connect(database, **options)
        finally:
            library.sqlite3_cancel_auto_extension(start)
    return opened


@cache
def _library(path: str) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """Return the SQLite library that Python uses, and the entry point of the extension."""
    import _sqlite3

    with sqlite3.connect(":memory:") as connection:
        options = {row[0] for row in connection.execute("PRAGMA compile_options")}
    connection.close()
    library = ctypes.CDLL(_sqlite3.__file__)
    if "OMIT_LOAD_EXTENSION" in options or not hasattr(library, "sqlite3_auto_extension"):
        raise Misconfigured(
            "this Python's SQLite takes no extensions, which sqlite-vec is: use a Python built with "
            "--enable-loadable-sqlite-extensions, such as python.org's container images or uv's."
        )
    library.sqlite3_auto_extension.argtypes = [ctypes.c_void_p]
    library.sqlite3_cancel_auto_extension.argtypes = [ctypes.c_void_p]
    suffixed = next((p for p in (path, f"{path}.so", f"{path}.dylib") if os.path.isfile(p)), path)
    return library, ctypes.cast(ctypes.CDLL(suffixed).sqlite3_vec_init, ctypes.c_void_p)
