"""SQLite's files, locks and settings."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa

from ferryman.errors import Misconfigured
from ferryman.limits import KIB, MIB

BUSY_TIMEOUT_S: Final = 30.0
"""How long to wait for another writer's transaction: half of what a ``write`` may take in all."""

PAGE_BYTES: Final = 16 * KIB
"""Page size of a database we make: 1 to 2 µs a document less than SQLite's 4 KiB with a full-text index."""

CACHE_BYTES: Final = 64 * MIB
"""Pages kept in memory by a writer: holds the upper parts of the indexes, and the segments that FTS5 merges."""

WAL_BYTES: Final = 64 * MIB
"""The log is copied into the database at this size: pages that many chunks change are then copied once."""


def engine(url: sa.URL) -> sa.Engine:
    """An engine without a pool whose transactions take the write lock at their start.

    A transaction that reads first and writes later would fail at its first write if another process wrote in between;
    with BEGIN IMMEDIATE what was read (hashes, sequences) still holds when it is written.
    """
    made = sa.create_engine(
        url,
        poolclass=sa.NullPool,
        connect_args={"isolation_level": None, "check_same_thread": False, **_patience(url)},
    )
    sa.event.listen(made, "connect", _settle_in)
    sa.event.listen(made, "begin", _begin)
    return made


def reader(url: sa.URL) -> sa.Engine:
    """An engine that changes nothing, and makes no file."""
    made = sa.create_engine(url, poolclass=sa.NullPool, connect_args=_patience(url))
    sa.event.listen(made, "connect", lambda connection, _record: connection.execute("PRAGMA query_only = ON"))
    return made


def _patience(url: sa.URL) -> dict[str, float]:
    """How long others may hold the lock: what the URL says wins."""
    return {} if "timeout" in url.query else {"timeout": BUSY_TIMEOUT_S}


def _settle_in(connection: sqlite3.Connection, _record: Any) -> None:
    for pragma in (
        # Every commit waits for the disk: our own "delivered" must not survive a power cut that the rows do not.
        "synchronous = FULL",
        f"cache_size = -{CACHE_BYTES // KIB}",
        # Debian's SQLite overwrites freed pages with zeros through the log: FAST does it only where it costs no write.
        "secure_delete = FAST",
    ):
        connection.execute(f"PRAGMA {pragma}")
    page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_BYTES // page_bytes}")


def _begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def schema(connection: sa.Connection) -> int:
    """A number that changes when a table or an index is made, changed or dropped, by anyone."""
    return int(connection.exec_driver_sql("PRAGMA schema_version").scalar_one())


def prepare(made: sa.Engine) -> None:
    """Make the file, if it is not there, and have readers and one writer side by side (WAL). Safe to race."""
    path = made.url.database or ""
    folder = os.path.dirname(path)
    if not path.startswith("file:") and not os.path.isdir(folder):
        raise Misconfigured(f"{path}: there is no folder {folder}. Make it, or correct the URL, then run again.")
    with made.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        _patiently(lambda: _to_wal(driver))


def _to_wal(driver: sqlite3.Connection) -> None:
    if driver.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        return
    if driver.execute("PRAGMA page_count").fetchone()[0] == 0:
        driver.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    mode = driver.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise Misconfigured(
            f"this file system or build of SQLite keeps journal_mode={mode}; Ferryman writes in WAL mode. "
            "Put the database on a local disk, then run again."
        )


def _patiently(act: Callable[[], None]) -> None:
    """SQLite does not wait for a lock when it changes the journal mode: two who make one file would collide."""
    give_up = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            return act()
        except sqlite3.OperationalError as e:
            if e.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            if time.monotonic() > give_up:
                raise
            time.sleep(0.02)
