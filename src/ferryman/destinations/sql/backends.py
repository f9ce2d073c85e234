"""Choice of the dialect for a database."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from ferryman.destinations.sql.dialect import Dialect

BACKENDS: Final = ("sqlite", "postgresql", "mysql")
"""SQLAlchemy's names of the databases that have a dialect."""

SEARCHED: Final = ("sqlite", "postgresql")
"""Names of the databases whose tables ``ferryman search`` can search."""


def dialect_of(url: sa.URL) -> Dialect:
    """Return the dialect for a URL of one of ``BACKENDS``; loads only the modules that it needs."""
    if url.get_backend_name() == "sqlite":
        from ferryman.destinations.sql.sqlite import SQLite

        return SQLite()
    if url.get_backend_name() == "mysql":
        from ferryman.destinations.sql.mysql import MySQL

        return MySQL()
    from ferryman.destinations.sql.postgresql import PostgreSQL

    return PostgreSQL()
