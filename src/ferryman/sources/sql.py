"""Rows of a query, from any database that SQLAlchemy knows."""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import re
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from decimal import Decimal
from enum import Enum
from functools import partial
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import BadDocument, TransientError, Unavailable, UsageError
from ferryman.net import databases
from ferryman.net.faults import database_fault
from ferryman.sources.base import Detect, Listed, Source

FETCH_ROWS: Final = 200
"""Rows fetched at a time, which a worker holds in memory, also if each has a megabyte of content."""

SHOWN_CHARACTERS: Final = 200
"""Longest text shown of a row without an id, in characters: enough to find it."""

BUSY_TIMEOUT_S: Final = 30.0
"""Time that a reader of SQLite waits for a writer."""


_WITHOUT_SECONDS: Final = re.compile(r"[0-9-]{8,10}[T ]?[0-9]{2}:?[0-9]{2}(?:Z|[+-][0-9]{2}:?[0-9]{2})?")
"""Time of which a text says no seconds."""

_ZONE_STEP_S: Final = 900
_MOST_ZONE_S: Final = 14 * 3600
"""Time zones are quarters of an hour apart from UTC, and at most so much."""

_MOST_NUMBER: Final = 1e20
"""Numbers from here on are not times, not even in nanoseconds since 1970."""

MYSQL_IDLE_S: Final = 3600
"""Time for which MySQL keeps a reader's session; its own default for one that does not fetch is a minute."""


class Range(NamedTuple):
    """A piece of the query: ``lower`` ≤ split column < ``upper``; None: unbounded. NULLs belong to the first piece."""

    lower: Any = None
    upper: Any = None


class Sql(Source):
    """Rows of a query: ``Sql("postgresql://me@host/shop", "SELECT id, name, body FROM articles", id="id")``.

    Each row is a document, each column a field, the id's too; ``content`` names one whose value becomes the raw bytes
    instead. Values become what JSON has: NULL, NaN and the infinite numbers null; dates and times text as in ISO 8601
    (an instant in UTC, ``2024-05-01T10:00:00Z``, whatever the session's time zone; one without time zone as it is);
    intervals ISO 8601 durations; decimals text, exact to the last digit; binary base64; UUIDs and network addresses
    text; arrays and JSON as they are. MySQL sends JSON as text, and a TIMESTAMP in UTC without its zone. A row with a
    value of another type is refused by its id; cast it in the query.

    The query is asked in each scan, through a cursor on the server: a worker holds some hundred rows of it. What it
    does not bring any more is deleted. A row whose id is NULL or empty cannot be named. All other rows are listed, but
    the listing counts as incomplete, and says so: nothing is deleted while there are such rows. Of rows with one id the
    last is kept, and the run tells of them (add ORDER BY, so that it is always the same one).

    **Large tables.** ``split`` has several workers read at once, a range of that column's values each. Choose one that
    does not change (a number or a date), with an index; a row that moves from range to range during the scan may be
    missed, and is deleted until the next one.

    **Only what has changed.** ``changed`` names a column whose value changes with the row: a time of the last change, a
    version number, ``xmin::text`` on PostgreSQL. A scan then asks only for ids and this column, and reads a row only
    where it is another than last time (``detect="fingerprint"``). The listing is complete, so deletes are seen, and no
    high-water mark has to be kept, which late commits could slip under. A time of the last two seconds (also as text in
    ISO 8601, or as seconds or milliseconds since 1970), a date of today or yesterday, and NULL are not trusted: the row
    is read. Rows are read one by one: an index on the id is needed.

    Args:
        url: an SQLAlchemy URL; its driver must be installed. ``postgresql://`` means psycopg 3 (``pip install
            'ferryman[postgres]'``), ``mysql://`` or ``mariadb://`` PyMySQL (``'ferryman[mysql]'``). A relative path of
            an SQLite file is relative to the plan file's folder; in a program, to the current folder.
        query: a SELECT, or WITH … SELECT. Where only a part is asked for, it stands in ``SELECT … FROM (query) q``.
        id: the column of the id: text or a number.
        content: the column of the content: text (as UTF-8) or binary; NULL means no content.
        changed, split: see above.
        pieces: ranges to cut ``split`` into.
        prefix, detect, max_deleted: see ``Source``.

    Raises:
        UsageError: no such URL, or a driver that is not installed.
    """

    def __init__(
        self,
        url: str,
        query: str,
        *,
        id: str,
        content: str | None = None,
        changed: str | None = None,
        split: str | None = None,
        pieces: int = 8,
        prefix: str = "",
        detect: Detect | None = None,
        max_deleted: float = limits.MAX_DELETED,
    ) -> None:
        super().__init__(
            prefix=prefix, detect=detect or ("fingerprint" if changed else "content"), max_deleted=max_deleted
        )
        try:
            parsed = databases.parse_url(url)
        except UsageError as e:
            raise UsageError(f"Sql: {e}.") from None
        if parsed.get_backend_name() == "sqlite" and databases.is_in_memory(parsed):
            raise UsageError("Sql: a database in memory is private to one process. Give a file: sqlite:///shop.db.")
        if pieces < 1:
            raise UsageError(f"Sql(pieces={pieces}): give at least 1.")
        self.url = databases.with_password(parsed)
        self.query = query.strip().rstrip(";").rstrip()
        self.id, self.content, self.changed, self.split, self.pieces = id, content, changed, split, pieces
        self._reader: sa.Connection | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def place(self) -> str | None:
        return databases.redact(self.url)

    def not_installed(self) -> str:
        try:
            self._url.get_dialect().import_dbapi()
        except ModuleNotFoundError as e:
            return f"{self._where}: the driver {e.name} is not installed: pip install {e.name}"
        except (sa.exc.ArgumentError, NotImplementedError):  # reported by the run
            return ""
        return ""

    def __repr__(self) -> str:
        return f"Sql({self._url.render_as_string()!r}, {self.query!r}, id={self.id!r})"

    # --- the port -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Query the columns, without any rows, and check that those of the arguments are there.

        Raises:
            UsageError: no such database, no right to it, no such column, or the query is not one; says which.
            TransientError: the server does not answer.
        """
        with self._connect() as connection:
            names = list(connection.execute(self._statement("q.*", "1 = 0")).keys())
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(f"{self._where}: two columns are called {', '.join(duplicates)}: give them names with AS.")
        asked = {"id": self.id, "content": self.content, "changed": self.changed, "split": self.split}
        for argument, name in asked.items():
            if name is not None and name not in names:
                raise UsageError(
                    f"{self._where}: {argument}={name!r}: the query has no such column. It has: {', '.join(names)}."
                )

    def partitions(self) -> list[Range]:
        """One piece, or ranges of ``split``'s values that leave nothing out.

        Raises:
            UsageError: ``split`` is a column of text.
        """
        if self.split is None or self.pieces == 1:
            return [Range()]
        with self._connect() as connection:
            column = self._quote(self.split)
            least, most = connection.execute(self._statement(f"min({column}), max({column})")).one()
        if least is None or least == most:
            return [Range()]
        try:
            ends = [_interpolate(least, most, i, self.pieces) for i in range(1, self.pieces)]
        except (TypeError, ValueError):
            kind = type(least if isinstance(least, str | bytes) else most).__name__
            raise UsageError(
                f"{self._where}: split={self.split!r} holds a {kind}, which cannot be cut into ranges. "
                "Give a column of numbers or dates, or leave split= out."
            ) from None
        ends = list(dict.fromkeys(end for end in ends if end == end))  # between infinities there is only NaN
        return [Range(lower, upper) for lower, upper in zip([None, *ends], [*ends, None], strict=True)]

    def listing(self, partition: Range) -> Iterator[Listed | Document]:
        """The rows of this piece, whole; with ``changed`` only their ids and fingerprints.

        Raises:
            BadDocument: some rows have no id; raised after the last row.
            TransientError, UsageError: see ``check``.
        """
        rows = without_id = 0
        example = ""
        with self._connect() as connection:
            for row in self._rows(connection, partition):
                rows += 1
                value = row[self.id]
                try:
                    id = id_text(value)
                except TypeError as e:
                    raise UsageError(
                        f"{self._where}: id={self.id!r} holds {e}; an id is text or a number. Cast it in the query."
                    ) from None
                if not id:
                    without_id += 1
                    example = example or _short_row(row)
                elif self.changed is None:
                    yield self._document(id, row)
                else:
                    yield Listed(id, 0, _fingerprint(row[self.changed]), location=_encode_id(value))
        if without_id:
            raise BadDocument(
                f"{without_id} of {rows} rows have no {self.id!r} (NULL or empty) and cannot be documents. The first "
                f"is {example}. Give them an id, or leave them out of the query: WHERE {self.id} IS NOT NULL."
            )

    def read(self, listed: Listed) -> Document:
        """The row of this id as it is now.

        Raises:
            BadDocument: a value that JSON has not.
            TransientError: there is no such row any more (the next scan sees that), or the server does not answer.
        """
        statement = self._statement("q.*", f"q.{self._quote(self.id)} = :id")
        with self._translated_errors():
            try:
                if self._reader is None:
                    self._reader = self._open()
                row = self._reader.execute(statement, {"id": msgspec.json.decode(listed.location)}).mappings().first()
                self._reader.rollback()  # so that the next read sees what has been committed since
            except Exception:
                reader, self._reader = self._reader, None
                if reader is not None:
                    reader.close()
                raise
        if row is None:
            raise TransientError(f"{listed.id}: the row was deleted after it was listed; the next scan handles it.")
        document = self._document(listed.id, row)
        if isinstance(document, Listed):
            raise BadDocument(document.refused)
        return document

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _rows(self, connection: sa.Connection, piece: Range) -> Iterator[Any]:
        column = "" if self.split is None else f"q.{self._quote(self.split)}"
        first = "" if piece.lower is not None else f" OR {column} IS NULL"
        conditions = [] if piece.lower is None else [f"{column} >= :lower"]
        conditions += [] if piece.upper is None else [f"({column} < :upper{first})"]
        columns = "q.*" if self.changed is None else ", ".join(f"q.{self._quote(n)}" for n in (self.id, self.changed))
        statement = self._statement(columns, " AND ".join(conditions))
        if self.changed is None and not conditions:
            statement = self._text(self.query)  # not as a subquery, which would not keep its ORDER BY
        values = {name: value for name, value in piece._asdict().items() if value is not None}
        with connection.execution_options(yield_per=FETCH_ROWS).execute(statement, values) as result:
            yield from result.mappings()

    def _document(self, id: str, row: Any) -> Listed | Document:
        fields: dict[str, Any] = {}
        raw: bytes | None = None
        for name, value in row.items():
            try:
                if name == self.content:
                    raw = _bytes(value)
                else:
                    fields[name] = json_value(value)
            except RecursionError:
                return Listed(id, 0, refused=f"{id}: column {name!r} holds JSON that is nested too deep.")
            except TypeError as e:
                what = "content is text or binary" if name == self.content else "JSON cannot hold it"
                return Listed(id, 0, refused=f"{id}: column {name!r} holds {e}: {what}. Cast it in the query.")
        return Document.of(id, fields, raw)

    # --- the database -------------------------------------------------------------------------------------------------

    @property
    def _url(self) -> sa.URL:
        return sa.make_url(self.url)

    @property
    def _where(self) -> str:
        return f"Sql({self._url.render_as_string()})"

    def _text(self, query: str) -> sa.TextClause:
        return sa.text(query.replace(":", r"\:"))  # a colon in the query is not a parameter of SQLAlchemy

    def _statement(self, columns: str, condition: str = "") -> sa.TextClause:
        query = self.query.replace(":", r"\:")
        return sa.text(f"SELECT {columns} FROM (\n{query}\n) q" + (f" WHERE {condition}" if condition else ""))

    def _quote(self, name: str) -> str:
        return str(self._url.get_dialect()().identifier_preparer.quote(name)).replace(":", r"\:")

    @contextmanager
    def _connect(self) -> Iterator[sa.Connection]:
        with self._translated_errors(), closing(self._open()) as connection:
            yield connection

    def _open(self) -> sa.Connection:
        url = self._url
        if url.get_backend_name() == "sqlite":
            return _open_sqlite(url)
        try:
            own: dict[str, Any] = {"json_deserializer": load_json} if url.get_backend_name() == "postgresql" else {}
            engine = sa.create_engine(url, poolclass=sa.NullPool, **own)
            if url.drivername == databases.MYSQL_DRIVER:
                sa.event.listen(engine, "connect", _set_up_mysql)
            return engine.connect()
        except (ModuleNotFoundError, sa.exc.NoSuchModuleError) as e:
            missing = getattr(e, "name", None) or url.drivername
            raise UsageError(f"{self._where}: the driver {missing} is not installed: pip install {missing}.") from None

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Convert errors of the database to one line without secrets."""
        try:
            yield
        except sa.exc.DBAPIError as e:
            text = " ".join(databases.redact_text(str(e.orig), self._url).split())
            fault = database_fault(e)
            if fault is not None and issubclass(fault.kind, TransientError):
                raise Unavailable(f"{self._where}: {text}: it is tried again.") from None
            raise UsageError(f"{self._where}: {text}: correct the URL, the query or the rights.") from None


def _open_sqlite(url: sa.URL) -> sa.Connection:
    path = str(url.database)
    if not path.startswith("file:") and not os.path.isfile(path):
        raise UsageError(f"{path}: there is no such file. Give an SQLite database that is there.")
    options = {} if "timeout" in url.query else {"timeout": BUSY_TIMEOUT_S}  # what the URL says wins
    engine = sa.create_engine(url, poolclass=sa.NullPool, connect_args=options)

    def set_up(connection: sqlite3.Connection, _record: Any) -> None:
        connection.execute("PRAGMA query_only = ON")
        # Text that is not UTF-8 must affect only its own row: it is decoded with surrogates, which JSON refuses later.
        connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")

    sa.event.listen(engine, "connect", set_up)
    return engine.connect()


def _set_up_mysql(connection: Any, _record: Any) -> None:
    """Have the server print instants in UTC, and keep the session of a reader that does something else meanwhile."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION time_zone='+00:00', net_write_timeout={MYSQL_IDLE_S}, wait_timeout={MYSQL_IDLE_S}")


def _interpolate(least: Any, most: Any, part: int, parts: int) -> Any:
    """Return the value at ``part``/``parts`` of the distance from ``least`` to ``most``."""
    if isinstance(least, bool | str | bytes):
        raise TypeError
    if isinstance(least, int):
        return least + (int(most) - least) * part // parts
    return least + (most - least) * part / parts


def _bytes(value: Any) -> bytes | None:
    match value:
        case None:
            return None
        case str():
            return value.encode("utf-8", "surrogateescape")
        case bytes() | bytearray() | memoryview():
            return bytes(value)
    raise TypeError(f"a {type(value).__name__}")


def _fingerprint(value: Any) -> str:
    """Return the text of a value of the column ``changed``; "" if it cannot be trusted."""
    if value is None or _is_just_now(value):
        return ""
    return " ".join(str(json_value(value)).split())


def _is_just_now(value: Any) -> bool:
    """Return whether a value is a time so near to now that another change of the row may leave it as it is: a time, a
    date, ISO 8601 as text, or a number of seconds, or parts of them, since 1970."""
    now, window_s = dt.datetime.now(dt.UTC), limits.FINGERPRINT_TRUST_S
    if isinstance(value, str):
        text = value.strip()
        if _WITHOUT_SECONDS.fullmatch(text):
            window_s += 60
        try:
            if text.isdecimal() and len(text) != len("20240501"):
                value = int(text)
            else:
                value = (dt.date if len(text) <= len("2024-05-01") else dt.datetime).fromisoformat(text)
        except ValueError:
            return False
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            return abs((now - value).total_seconds()) < window_s
        apart_s = (value.replace(tzinfo=dt.UTC) - now).total_seconds()
        of_zone_s = round(apart_s / _ZONE_STEP_S) * _ZONE_STEP_S  # its zone is not known, if not UTC
        return abs(of_zone_s) <= _MOST_ZONE_S and abs(apart_s - of_zone_s) < window_s
    if isinstance(value, dt.date):
        return abs((now.date() - value).days) <= 1
    if isinstance(value, Decimal):
        value = float(value) if value.is_finite() else 0
    if isinstance(value, int | float) and 0 < value < _MOST_NUMBER:
        return any(abs(value / unit - now.timestamp()) < window_s for unit in (1, 1e3, 1e6, 1e9))
    return False


def _encode_id(value: Any) -> str:
    """Encode an id's value as JSON, for the query of ``read``: a number stays a number."""
    return msgspec.json.encode(value if isinstance(value, str | int | float) else str(value)).decode()


def _short_row(row: Any) -> str:
    text = ", ".join(f"{name}={value!r}" for name, value in row.items())
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


# Values of a database's rows as JSON values.

_AS_TEXT: Final = (
    uuid.UUID,
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)

_JSON_TYPES: Final = frozenset({str, int, bool, type(None)})


def json_value(value: Any) -> Any:
    """Convert a database value to a JSON value, see ``sources.Sql``.

    Raises:
        TypeError: a value of an unsupported type; names the type.
    """
    kind = type(value)
    if kind in _JSON_TYPES:
        return value
    if kind is float:
        return value if abs(value) != float("inf") and value == value else None
    match value:
        case dt.datetime():
            return iso_moment(value)
        case dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return msgspec.to_builtins(value)
        case Decimal():
            return format(value, "f") if value.is_finite() else None
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case Enum():
            return json_value(value.value)
        case Mapping():
            return {str(name): json_value(each) for name, each in value.items()}
        case list() | tuple():
            return [json_value(each) for each in value]
        case set() | frozenset():
            return sorted(map(json_value, value), key=str)
        case str():
            return str(value)
        case int():
            return int(value)
    if isinstance(value, _AS_TEXT):
        return str(value)
    if kind is NestedTooDeep:
        raise TypeError("JSON that is nested too deep")
    raise TypeError(f"a {kind.__name__}")


class NestedTooDeep:
    """Marker for a JSON value of the database that is nested too deep to be parsed."""


def load_json(text: str | bytes) -> Any:
    """Parse a JSON value for the driver. One that is nested too deep becomes a marker, so that it does not end the
    query."""
    try:
        return json.loads(text)
    except RecursionError:
        return NestedTooDeep()


def iso_moment(value: dt.datetime) -> str:
    """Format a time as ISO 8601: an instant in UTC, so that the text does not depend on the session's time zone; a time
    without time zone as it is."""
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(dt.UTC).replace(tzinfo=None).isoformat() + "Z"


def id_text(value: Any) -> str:
    """Return the text of an id; "" for NULL and NaN.

    Raises:
        TypeError: neither text nor a number.
    """
    match value:
        case None:
            return ""
        case bool():
            pass
        case str():
            return value
        case int() | uuid.UUID():
            return str(value)
        case Decimal():
            return format(value, "f") if value.is_finite() else ""
        case float():
            return "" if value != value else str(value)
    raise TypeError(f"a {type(value).__name__}")
