"""Choice of the dialect for a database."""

from __future__ import annotations

from typing import Final

from ferryman.destinations.sql.dialect import Dialect

BACKENDS: Final = ("sqlite", "postgresql", "mysql")
"""SQLAlchemy's names of the databases that have a dialect."""

SEARCHED: Final = ("sqlite", "postgresql")
"""Names of the databases whose tables ``ferryman search`` can search."""


def dialect_of(backend: str) -> Dialect:
    """Return the dialect for one of ``BACKENDS``; loads only the modules that it needs."""
    if backend == "sqlite":
        from ferryman.destinations.sql.sqlite import SQLite

        return SQLite()
    if backend == "mysql":
        from ferryman.destinations.sql.mysql import MySQL

        return MySQL()
    from ferryman.destinations.sql.postgresql import PostgreSQL

    return PostgreSQL()
