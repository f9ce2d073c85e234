"""URLs of databases, their drivers and passwords."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ferryman.errors import UsageError, hide_secrets
from ferryman.net import relative_paths, urls

if TYPE_CHECKING:
    import sqlalchemy as sqlalchemy
else:

    class _Module:
        """A module that is loaded when something of it is first used."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._name), name)

    sqlalchemy = _Module("sqlalchemy")  # takes longer to load than a run that sends nothing
sa = sqlalchemy

POSTGRESQL_DRIVER: Final = "postgresql+psycopg"
MYSQL_DRIVER: Final = "mysql+pymysql"

_DRIVERS: Final = {"postgresql": POSTGRESQL_DRIVER, "mysql": MYSQL_DRIVER, "mariadb": MYSQL_DRIVER}
"""Scheme of a URL without a driver -> SQLAlchemy's name of the driver that is used."""

_PACKAGES: Final = {
    POSTGRESQL_DRIVER: ("psycopg", "PostgreSQL needs psycopg", "ferryman[postgres]"),
    MYSQL_DRIVER: ("pymysql", "MySQL and MariaDB need PyMySQL", "ferryman[mysql]"),
}
"""Driver -> (its package, what to say if it is not installed, what to install)."""

_HIDDEN: Final = "***"

_FILE: Final = re.compile(r"sqlite:///([\w./-]+)", re.ASCII)
"""URL of a file of SQLite that means what it says: without options, and without characters that are encoded."""


def file_of(url: str) -> str | None:
    """Return the absolute path of the file that a URL names; None: SQLAlchemy has to read it."""
    match = _FILE.fullmatch(url)
    return None if match is None else relative_paths.absolute(match[1])


def absolute_url(url: str) -> str:
    """Return a URL with its password as ``parse_url`` reads it, as text.

    Raises:
        UsageError: see ``parse_url``.
    """
    path = file_of(url)
    return with_password(parse_url(url)) if path is None else f"sqlite:///{quote(path, safe=' +/')}"


def parse_url(url: str) -> sa.URL:
    """Parse a URL, add the driver that Ferryman uses to a plain ``postgresql://``, ``mysql://`` or ``mariadb://``, and
    make a file's path absolute.

    Raises:
        UsageError: it is not a database URL, its password is not percent-encoded, or its driver is not installed; says
            what to write or install.
    """
    try:
        urls.check_login(url)
    except ValueError as e:
        raise UsageError(str(e)) from None
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # ValueError: a bad port
        raise UsageError(
            "the url is not one that SQLAlchemy knows. Write sqlite:///index.db for a file, or "
            "postgresql://user@host/database or mysql://user@host/database"
        ) from None
    parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
    package, needs, extra = _PACKAGES.get(parsed.drivername, ("", "", ""))
    if package and find_spec(package) is None:
        raise UsageError(f"{needs}, which is not installed: pip install '{extra}'")
    return _absolute(parsed) if parsed.get_backend_name() == "sqlite" else parsed


def backend_of(url: str) -> str:
    """Return what SQLAlchemy calls the kind of database of a URL that ``absolute_url`` has returned."""
    return url.partition(":")[0].partition("+")[0]


def redact(url: str) -> str:
    """Return a URL without its password; other text is returned as it is."""
    return parse_url(url).render_as_string() if "://" in url else url


def is_in_memory(url: sa.URL) -> bool:
    """Return whether a URL means an SQLite database without a file, which is private to one process."""
    path = url.database
    return not path or path == ":memory:" or "mode=memory" in path or url.query.get("mode") == "memory"


def with_password(url: sa.URL) -> str:
    """Return a URL as text with its password, to be parsed again."""
    return url.render_as_string(hide_password=False)


def redact_text(text: str, url: sa.URL) -> str:
    """Remove the URL's password, and the values of its secret options, from a text such as a driver's error."""
    secrets = [url.password, *(v for k, v in url.query.items() if "pass" in k.lower() or "secret" in k.lower())]
    return hide_secrets(text, (str(secret or "") for secret in secrets), _HIDDEN)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Keep SQLAlchemy's warnings, as of types that it does not know, from the user, who can do nothing about them:
    Ferryman reads the names of existing columns only."""
    with warnings.catch_warnings(action="ignore", category=sa.exc.SAWarning):
        yield


def _absolute(url: sa.URL) -> sa.URL:
    """Return a URL that is valid in any working folder."""
    path = url.database
    if is_in_memory(url) or path is None or path.startswith("file:"):
        return url
    return url.set(database=relative_paths.absolute(path))
