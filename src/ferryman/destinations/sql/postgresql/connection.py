"""Connections to PostgreSQL, and how a session is set up."""

from __future__ import annotations

from typing import Any, Final

import psycopg
import sqlalchemy as sa

CONNECT_TIMEOUT_S: Final = 10
"""A server that does not answer by then is down; a host that drops packets would else take two minutes."""

LOCK_TIMEOUT_S: Final = 30
"""How long to wait for another writer's rows: half of what a ``write`` may take in all."""

IDLE_TIMEOUT_S: Final = 60
"""A writer that stands still in the middle of a transaction (stopped, swapped out, cut off) holds its rows no longer
than this: the server ends its session."""

_SETTINGS: Final = (
    f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'",
    f"SET idle_in_transaction_session_timeout = '{IDLE_TIMEOUT_S}s'",
    # Every commit waits for the disk: our own "delivered" must not survive a power cut that the rows do not.
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
)


def connect(url: sa.URL) -> psycopg.Connection[Any]:
    """A session for a writer: a transaction only where one is asked for, each commit on disk.

    No prepared statements: behind a pooler (PgBouncer) the next transaction may be another server process's.
    """
    _, options = url.get_dialect()().create_connect_args(url)
    connection = psycopg.connect(**_patient(dict(options)), autocommit=True, prepare_threshold=None)
    for statement in _SETTINGS:
        connection.execute(statement)
    return connection


def engine(url: sa.URL, *, read_only: bool = False) -> sa.Engine:
    """An engine without a pool."""
    options = {"options": f"{url.query.get('options', '')} -c default_transaction_read_only=on"} if read_only else {}
    return sa.create_engine(url, poolclass=sa.NullPool, connect_args=_patient(dict(url.query)) | options)


def _patient(options: dict[str, Any]) -> dict[str, Any]:
    return {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "ferryman"} | options
