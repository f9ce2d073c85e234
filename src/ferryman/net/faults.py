"""Recognition of errors that concern the connection, not the document, by class names: no library is imported for it.

An error is of the *connection kind* if it, or one that led to it, is a builtin ``ConnectionError``, ``TimeoutError`` or
``socket.gaierror``, carries HTTP status 429, 502, 503 or 504, or is the connection or time-out error of a known client
library. In a source's ``read`` also an ``OSError`` of the device or the network, but not of the file.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from typing import Any, Final

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

_DATABASE_PACKAGES: Final = {
    "psycopg",
    "psycopg2",
    "asyncpg",
    "pymysql",
    "MySQLdb",
    "mysql",
    "sqlite3",
    "oracledb",
    "pyodbc",
}

_DEVICE_NAMES: Final = (
    *("EIO", "ENODEV", "ENXIO", "ENOMEDIUM", "ESTALE", "EREMOTEIO", "ENOLINK", "ECOMM", "EPIPE", "ESHUTDOWN"),
    *("ENOTCONN", "EHOSTUNREACH", "EHOSTDOWN", "ENETUNREACH", "ENETDOWN", "ENETRESET", "ETIMEDOUT"),
    *("ECONNRESET", "ECONNREFUSED", "ECONNABORTED"),
)
_DEVICE: Final = frozenset(getattr(errno, name) for name in _DEVICE_NAMES if hasattr(errno, name))

_TRANSIENT_SQLSTATES: Final = ("08", "57P", "53300", "HYT", "40003")
"""Connection exceptions, a server that starts or stops, too many connections, time-outs of ODBC."""

_TRANSIENT_MYSQL: Final = frozenset({1040, 1053, 2002, 2003, 2006, 2013, 2055})
"""Too many connections, shutting down, cannot connect, gone away, lost."""

_SQLITE_BUSY: Final = frozenset({5, 6, 15})
"""SQLITE_BUSY, SQLITE_LOCKED, SQLITE_PROTOCOL: another process has it for now."""

_REFUSALS: Final = ("authentication", "password", "pg_hba.conf", "does not exist", "access denied", "permission denied")
"""Words in the errors of a server that refuses its user, often the only difference to one that cannot be reached."""


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
    return _has_unavailable_status(error) or _is_client_error(error) or _is_database_error(error)


def _concerns_device(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in _DEVICE


def _has_unavailable_status(error: BaseException) -> bool:
    if isinstance(error, SystemExit):
        return False
    response = _attribute(error, "response")
    statuses = [_attribute(error, name) for name in ("status", "code", "status_code")]
    statuses += [_attribute(response, "status_code"), _attribute(response, "status")]
    return any(isinstance(status, int) and status in urls.UNAVAILABLE for status in statuses)


def _is_client_error(error: BaseException) -> bool:
    classes = [(base.__module__.partition(".")[0], base.__name__) for base in type(error).__mro__]
    if any(name in _NOT_CONNECTION.get(package, ()) for package, name in classes):
        return False
    return any(name in _CLIENT_ERRORS.get(package, ()) for package, name in classes)


def _is_database_error(error: BaseException) -> bool:
    """Return whether an error of SQLAlchemy or of a driver concerns the connection; an operational error may also
    concern the statement."""
    for base in type(error).__mro__:
        package = base.__module__.partition(".")[0]
        if package == "sqlalchemy":
            if base.__name__ == "TimeoutError" or _attribute(error, "connection_invalidated") is True:
                return True
            if base.__name__ in ("OperationalError", "InterfaceError"):
                return _is_transient(_attribute(error, "orig"))
        if package in _DATABASE_PACKAGES and base.__name__ in ("OperationalError", "InterfaceError"):
            return _is_transient(error)
    return False


def _is_transient(driver_error: Any) -> bool:
    sqlite = _attribute(driver_error, "sqlite_errorcode")
    if isinstance(sqlite, int):
        return sqlite & 0xFF in _SQLITE_BUSY
    state = _attribute(driver_error, "sqlstate") or _attribute(driver_error, "pgcode")
    if isinstance(state, str) and state:
        return state.startswith(_TRANSIENT_SQLSTATES)
    first = next(iter(getattr(driver_error, "args", ())), None)
    if isinstance(first, int):
        return first in _TRANSIENT_MYSQL
    text = _text_of(driver_error).lower()
    if type(driver_error).__module__.partition(".")[0] == "sqlite3":
        return "locked" in text
    return not any(words in text for words in _REFUSALS)


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
