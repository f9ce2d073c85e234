"""Recognition of errors that concern the connection, not the document, by class names: no library is imported for it.

An error is of the *connection kind* if it, or one that led to it, is a builtin ``ConnectionError``, ``TimeoutError`` or
``socket.gaierror``, carries HTTP status 429, 502, 503 or 504, is the connection or time-out error of a known client
library, or one for which the tables of databases below have ``Unavailable``. In a source's ``read`` also an ``OSError``
of the device or the network, but not of the file.

There is one table for each kind of database, for steps, sources and destinations alike. A destination raises what the
table has. A source reads a whole query, not a document: every ``TransientError`` of the table makes it unavailable, and
everything else is for its user to correct. An error of a step is of the connection kind only if it is ``Unavailable``.
"""

from __future__ import annotations

import errno
import re
import socket
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ferryman.errors import DeliveryError, Misconfigured, PermanentError, TransientError, Unavailable
from ferryman.net import urls

_CLIENT_ERRORS: Final = {
    "requests": {"ConnectionError", "Timeout", "ChunkedEncodingError"},
    "urllib3": {"TimeoutError", "ConnectTimeoutError", "NewConnectionError", "ProtocolError", "ProxyError"},
    "httpx": {"NetworkError", "TimeoutException", "RemoteProtocolError", "ProxyError"},
    "httpcore": {"NetworkError", "TimeoutException", "RemoteProtocolError", "ProxyError"},
    "aiohttp": {"ClientConnectionError", "ServerTimeoutError"},
    "botocore": {"ConnectionError", "HTTPClientError"},
    "redis": {"ConnectionError", "TimeoutError"},
    "opensearchpy": {"ConnectionError", "ConnectionTimeout"},
    "elasticsearch": {"ConnectionError", "ConnectionTimeout"},
    "elastic_transport": {"ConnectionError", "ConnectionTimeout"},
}
"""Top package -> names of its error classes that concern the connection, as do classes derived from them."""

_NOT_CONNECTION: Final = {"redis": {"AuthenticationError", "AuthorizationError"}}
"""Classes derived from those above that do not concern the connection: a wrong password stays wrong."""

_DEVICE_NAMES: Final = (
    *("EIO", "ENODEV", "ENXIO", "ENOMEDIUM", "ESTALE", "EREMOTEIO", "ENOLINK", "ECOMM", "EPIPE", "ESHUTDOWN"),
    *("ENOTCONN", "EHOSTUNREACH", "EHOSTDOWN", "ENETUNREACH", "ENETDOWN", "ENETRESET", "ETIMEDOUT"),
    *("ECONNRESET", "ECONNREFUSED", "ECONNABORTED"),
)
_DEVICE: Final = frozenset(getattr(errno, name) for name in _DEVICE_NAMES if hasattr(errno, name))


def is_connection_error(error: BaseException, *, reading: bool = False) -> bool:
    """Return whether the error concerns the connection.

    Args:
        reading: a source's ``read`` raised it, so errors of the device count too.
    """
    try:
        return any(_concerns_connection(each) or (reading and _concerns_device(each)) for each in causes(error))
    except Exception:  # its class looks attributes up itself, and raises
        return False


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and all errors that led to it, as a traceback shows them, each once; also wrapped errors (in
    ``orig`` or ``reason``)."""
    seen: set[int] = set()
    waiting: list[Any] = [error]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, BaseException) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        context = None if each.__suppress_context__ else each.__context__
        waiting += [each.__cause__, context, _attribute(each, "orig"), _attribute(each, "reason")]


def _concerns_connection(error: BaseException) -> bool:
    if isinstance(error, (ConnectionError, TimeoutError, socket.gaierror)):
        return True
    return _has_unavailable_status(error) or _is_client_error(error) or _is_database_outage(error)


def _concerns_device(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in _DEVICE


def _has_unavailable_status(error: BaseException) -> bool:
    if isinstance(error, SystemExit):
        return False
    response = _attribute(error, "response")
    statuses = [_attribute(error, name) for name in ("status", "code", "status_code")]
    statuses += [_attribute(response, "status_code"), _attribute(response, "status")]
    return any(isinstance(status, int) and status in urls.UNAVAILABLE for status in statuses)


def _names_of_bases(of: type) -> tuple[tuple[str, str], ...]:
    """Return (top package, name) of a class and its bases."""
    return tuple((base.__module__.partition(".")[0], base.__name__) for base in of.__mro__)


_classes_of: Callable[[type], tuple[tuple[str, str], ...]] = lru_cache(maxsize=1024)(_names_of_bases)
"""``_names_of_bases``, remembered, since each document may raise an error."""


def _is_client_error(error: BaseException) -> bool:
    classes = _classes_of(type(error))
    if any(name in _NOT_CONNECTION.get(package, ()) for package, name in classes):
        return False
    return any(name in _CLIENT_ERRORS.get(package, ()) for package, name in classes)


# Faults of databases.


class Fault(NamedTuple):
    """Meaning of a database's error: the class to raise, and what to do."""

    kind: type[DeliveryError]
    remedy: str


_AGAIN: Final = "it is tried again"

POSTGRESQL: Final[dict[str, Fault]] = {
    # SQLSTATE, or its first two characters for all states that are not listed
    "08": Fault(Unavailable, f"the connection was lost; {_AGAIN}"),
    "22": Fault(PermanentError, "change the document in a step, or the table's column"),
    "23": Fault(PermanentError, "change the document in a step, or the table's constraint"),
    "25": Fault(Misconfigured, "correct the trigger or the pooler that disturbs the transaction, then run again"),
    "25006": Fault(Unavailable, f"the server only reads (a standby?): give the URL of the primary; {_AGAIN}"),
    "25P02": Fault(Unavailable, f"an earlier statement of the transaction failed; {_AGAIN}"),
    "25P03": Fault(Unavailable, f"the session was ended in the middle of a transaction; {_AGAIN}"),
    "25P04": Fault(Unavailable, f"the session was ended in the middle of a transaction; {_AGAIN}"),
    "28": Fault(Misconfigured, "correct user and password, or pg_hba.conf, then run again"),
    "3D": Fault(Misconfigured, "create the database, or correct the URL, then run again"),
    "3F": Fault(Misconfigured, "create the schema, or correct the search_path, then run again"),
    "40": Fault(Unavailable, f"other writers changed the same rows, again and again; {_AGAIN}"),
    "42": Fault(Misconfigured, "the table is not as Ferryman made it: restore it, or drop it, then run again"),
    "42501": Fault(Misconfigured, "grant this user the right, then run again"),
    "44": Fault(PermanentError, "change the document in a step, or the view's condition"),
    "53": Fault(Unavailable, f"the server lacks a resource (disk, memory, connections); {_AGAIN}"),
    "54": Fault(PermanentError, "shorten it, or split it, in a step"),
    "55": Fault(Misconfigured, "bring the object into the state that the statement needs, then run again"),
    "55006": Fault(Unavailable, f"another session uses the object; {_AGAIN}"),
    "55P03": Fault(Unavailable, f"another session holds a lock; {_AGAIN}"),
    "57": Fault(Unavailable, f"the server ended the session; {_AGAIN}"),
    "57014": Fault(TransientError, f"the statement took longer than the server allows; {_AGAIN} with fewer rows"),
    "57P04": Fault(Misconfigured, "the database was dropped: create it, then run again"),
    "58": Fault(Unavailable, f"the server's disk reports an error; {_AGAIN}"),
    "P0": Fault(PermanentError, "a trigger refuses it: change the document in a step, or the trigger"),
    "XX": Fault(TransientError, f"an internal error of the server, see its log; {_AGAIN}"),
    "XX001": Fault(Misconfigured, "restore the database from a copy, then run again"),
    "XX002": Fault(Misconfigured, "REINDEX the table, then run again"),
}

SQLITE: Final[dict[int, Fault]] = {
    # primary result code
    sqlite3.SQLITE_BUSY: Fault(Unavailable, "another program holds its write lock; it is tried again"),
    sqlite3.SQLITE_LOCKED: Fault(Unavailable, "another connection holds its lock; it is tried again"),
    sqlite3.SQLITE_FULL: Fault(Unavailable, "make room on the disk; it is tried again"),
    sqlite3.SQLITE_IOERR: Fault(Unavailable, "the disk reports an error; it is tried again"),
    sqlite3.SQLITE_NOMEM: Fault(TransientError, "the sender has too little memory for it; it is tried again"),
    sqlite3.SQLITE_PROTOCOL: Fault(Unavailable, "other processes compete for its locks; it is tried again"),
    sqlite3.SQLITE_INTERRUPT: Fault(TransientError, "the statement was interrupted; it is tried again"),
    sqlite3.SQLITE_CANTOPEN: Fault(Misconfigured, "make its folder, or correct the URL, then run again"),
    sqlite3.SQLITE_READONLY: Fault(Misconfigured, "make the file and its folder writable, then run again"),
    sqlite3.SQLITE_PERM: Fault(Misconfigured, "make the file readable and writable, then run again"),
    sqlite3.SQLITE_AUTH: Fault(Misconfigured, "make the file readable and writable, then run again"),
    sqlite3.SQLITE_NOTADB: Fault(Misconfigured, "give the path of an SQLite database or of no file, then run again"),
    sqlite3.SQLITE_CORRUPT: Fault(
        Misconfigured, "restore the file from a copy, or delete it and run `ferryman retry PLAN --force`"
    ),
    sqlite3.SQLITE_TOOBIG: Fault(PermanentError, "shorten it in a step"),
    sqlite3.SQLITE_CONSTRAINT: Fault(PermanentError, "change the document in a step, or the table's constraint"),
    sqlite3.SQLITE_MISMATCH: Fault(PermanentError, "change the document in a step, or the table's column"),
}

MYSQL: Final[dict[int, Fault]] = {
    # number of the server's error or of the client library's
    **dict.fromkeys((1040, 1203, 1226), Fault(Unavailable, f"the server has too many connections; {_AGAIN}")),
    **dict.fromkeys((1053, 1152, 1184, 1927, 4031), Fault(Unavailable, f"the server ended the session; {_AGAIN}")),
    **dict.fromkeys((1020, 1205, 1206, 1213), Fault(Unavailable, f"another session holds a lock; {_AGAIN}")),
    **dict.fromkeys(
        (1317, 1969, 3024), Fault(TransientError, f"the statement took longer than the server allows; {_AGAIN}")
    ),
    **dict.fromkeys(
        (1042, 1047, 1158, 1159, 1160, 1161, 2002, 2003, 2006, 2013, 2014, 2055),
        Fault(Unavailable, f"the connection was lost; {_AGAIN}"),
    ),
    **dict.fromkeys((1021, 1114), Fault(Unavailable, f"the server's disk or tablespace is full; {_AGAIN}")),
    **dict.fromkeys((1037, 1038, 1041), Fault(Unavailable, f"the server lacks memory; {_AGAIN}")),
    **dict.fromkeys((1290, 1792, 1836), Fault(Unavailable, f"the server only reads: is it a replica? {_AGAIN}")),
    **dict.fromkeys((1044, 1045, 1698, 1862), Fault(Misconfigured, "correct user and password, then run again")),
    **dict.fromkeys((1142, 1143, 1227, 1370), Fault(Misconfigured, "grant this user the right, then run again")),
    **dict.fromkeys((1129, 1130), Fault(Misconfigured, "let this host in at the server, then run again")),
    **dict.fromkeys((1251, 2026, 2059, 3159), Fault(Misconfigured, "correct the URL's ssl_ options, then run again")),
    1049: Fault(Misconfigured, "create the database, or correct the URL, then run again"),
    **dict.fromkeys(
        (1054, 1072, 1136, 1356), Fault(Misconfigured, "restore the table's columns, or drop the table, then run again")
    ),
    **dict.fromkeys((1153, 1162, 1301), Fault(PermanentError, "shorten it in a step, or raise max_allowed_packet")),
    **dict.fromkeys((1118, 1406, 1074), Fault(PermanentError, "shorten it in a step, or widen the column")),
    **dict.fromkeys(
        (1048, 1062, 1169, 1216, 1217, 1364, 1451, 1452, 1557, 1586, 3819, 4025),
        Fault(PermanentError, "change the document in a step, or the table's constraint"),
    ),
    **dict.fromkeys(
        (1264, 1265, 1292, 1366, 1367, 1411, 1416, 1525, 1690, 3140, 3141, 3144, 3156, 4038),
        Fault(PermanentError, "change the document in a step, or the table's column"),
    ),
    1644: Fault(PermanentError, "a trigger refuses it: change the document in a step, or the trigger"),
}

ODBC: Final[dict[str, Fault]] = {
    # SQLSTATE of an ODBC driver, or its beginning
    "08": Fault(Unavailable, f"the connection was lost; {_AGAIN}"),
    "40": Fault(Unavailable, f"other sessions changed the same rows; {_AGAIN}"),
    "HYT0": Fault(Unavailable, f"no answer in time; {_AGAIN}"),
}

_PACKAGES: Final = {
    "sqlite3": "sqlite",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "mysql": "mysql",
    "pyodbc": "odbc",
    "psycopg": "",
    "psycopg2": "",
    "asyncpg": "",
    "oracledb": "",
}
"""Top package of a driver -> what its errors have a number of; "": an SQLSTATE, or none."""

_REFUSALS: Final = {
    "authentication": "28",
    "no password supplied": "28",
    "no pg_hba.conf entry": "28",
    "is not permitted to log in": "28",
    "access denied": "28",
    "certificate verify failed": "28",
    "does not support ssl": "28",
    "permission denied": "42501",
    'role ".*" does not exist': "28",
    'database ".*" does not exist': "3D",
}
"""Patterns in the errors of a server that refuses its user, which often have no code, unlike a server that cannot be
reached -> the row of ``POSTGRESQL``."""


def database_fault(error: BaseException) -> Fault | None:
    """Return the meaning of an error of a database's driver, or of SQLAlchemy for one; None: it is not such an error,
    or its code has no meaning here."""
    classes = _classes_of(type(error))
    wrapped = ("sqlalchemy", "DBAPIError") in classes
    cause = _attribute(error, "orig") if wrapped else error
    package = next((each for each, _ in _classes_of(type(cause)) if each in _PACKAGES), None)
    if cause is None or not (wrapped or package):
        return None
    first = next(iter(_attribute(cause, "args") or ()), None)
    match _PACKAGES.get(package or ""):
        case "sqlite":
            code = _attribute(cause, "sqlite_errorcode")
            return None if not isinstance(code, int) else SQLITE.get(_primary_code(code))
        case "mysql" if isinstance(number := _attribute(cause, "errno") or first, int):
            return MYSQL.get(number)
        case "odbc":
            return None if not isinstance(first, str) else _by_state(ODBC, first)
    state = _attribute(cause, "sqlstate") or _attribute(cause, "pgcode")
    if isinstance(state, str) and state:
        return _by_state(POSTGRESQL, state)
    if not any(name in ("OperationalError", "InterfaceError") for _, name in classes):
        return None
    text = _text_of(cause).lower()
    refusals = (row for pattern, row in _REFUSALS.items() if re.search(pattern, text))
    return POSTGRESQL[next(refusals, "08")]


def _by_state(table: Mapping[str, Fault], state: str) -> Fault | None:
    return next((table[state[:length]] for length in (5, 4, 2) if state[:length] in table), None)


def _primary_code(code: int) -> int:
    """Return the primary result code of SQLite: the rest is detail, but for memory that ran out while reading."""
    return sqlite3.SQLITE_NOMEM if code == sqlite3.SQLITE_IOERR_NOMEM else code & 0xFF


def _is_database_outage(error: BaseException) -> bool:
    """Return whether an error of SQLAlchemy or of a driver concerns the connection or the whole database."""
    if any(package == "sqlalchemy" for package, _ in _classes_of(type(error))) and (
        type(error).__name__ == "TimeoutError" or _attribute(error, "connection_invalidated") is True
    ):
        return True
    fault = database_fault(error)
    return fault is not None and issubclass(fault.kind, Unavailable)


def _text_of(error: Any) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def _attribute(subject: Any, name: str) -> Any:
    """Return an attribute of a foreign object, which may be a property that raises; None if there is none."""
    try:
        return getattr(subject, name, None)
    except Exception:
        return None
