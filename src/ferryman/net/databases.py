"""How databases are named and how they fail: URLs, drivers, passwords that nobody must see, errors that pass."""

from __future__ import annotations

import sqlite3
from importlib.util import find_spec
from typing import Final

import sqlalchemy as sa

from ferryman.errors import UsageError
from ferryman.net import places

POSTGRESQL_DRIVER: Final = "postgresql+psycopg"

_HIDDEN: Final = "***"

_PASSING_SQLSTATES: Final = ("08", "25", "40", "53", "55", "57", "58", "XX")
"""Classes of SQLSTATE that speak of the connection, the server or other sessions, not of the statement."""

_PASSING_SQLITE: Final = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_PROTOCOL,
)

_REFUSALS: Final = ("authentication", "password", "pg_hba.conf", "does not exist", "Access denied", "permission denied")
"""A refused connection often has no code, only words."""


def parse(url: str) -> sa.URL:
    """The URL, in full: a plain ``postgresql://`` with the driver that we use, a relative file from the root on.

    Raises:
        UsageError: it is not a database URL, or its driver is not installed; says what to write or install.
    """
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # the latter: of its port
        raise UsageError(
            "the url is not one that SQLAlchemy knows. Write sqlite:///index.db for a file, or "
            "postgresql://user@host/database"
        ) from None
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername=POSTGRESQL_DRIVER)
    if parsed.drivername == POSTGRESQL_DRIVER and find_spec("psycopg") is None:
        raise UsageError("PostgreSQL needs psycopg, which is not installed: pip install 'ferryman[postgres]'")
    return _absolute(parsed) if parsed.get_backend_name() == "sqlite" else parsed


def shown(url: str) -> str:
    """A URL, or what was given for one, without its password."""
    return parse(url).render_as_string() if "://" in url else url


def is_in_memory(url: sa.URL) -> bool:
    """Return whether it is an SQLite database without a file, private to one process."""
    path = url.database
    return not path or path == ":memory:" or "mode=memory" in path or url.query.get("mode") == "memory"


def written(url: sa.URL) -> str:
    """The URL with its password, to be parsed again."""
    return url.render_as_string(hide_password=False)


def without_secrets(text: str, url: sa.URL) -> str:
    """A text that may have come from a driver, without the URL's password and without what its options hide."""
    secrets = [url.password, *(v for k, v in url.query.items() if "pass" in k.lower() or "secret" in k.lower())]
    for secret in secrets:
        if secret:
            text = text.replace(str(secret), _HIDDEN)
    return text


def _absolute(url: sa.URL) -> sa.URL:
    """Return a URL that is valid in any working folder."""
    path = url.database
    if is_in_memory(url) or path is None or path.startswith("file:"):
        return url
    return url.set(database=places.absolute(path))


def may_pass(error: sa.exc.DBAPIError) -> bool:
    """Would the same statement be answered later (a server that is down, a lock), without anybody fixing it?"""
    cause = error.orig
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in _PASSING_SQLITE
    state = getattr(cause, "sqlstate", None)
    if state:
        return str(state).startswith(_PASSING_SQLSTATES)
    if any(words in str(cause) for words in _REFUSALS):
        return False
    return isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError)
