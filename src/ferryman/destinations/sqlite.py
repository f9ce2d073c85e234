"""What is special about SQLite: its files, its locks, its settings and its errors."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ferryman.errors import DeliveryError, PermanentError, PlanError, TransientError
from ferryman.settings import KIB, MIB

BUSY_TIMEOUT_S: Final = 30.0
"""How long to wait for another writer's transaction: half of what a ``write`` may take in all."""

PAGE_BYTES: Final = 16 * KIB
"""Page size of a database we make: 1 to 2 µs a document less than SQLite's 4 KiB with a full-text index."""

CACHE_BYTES: Final = 64 * MIB
"""Pages kept in memory by a writer: holds the upper parts of the indexes, and the segments that FTS5 merges."""

WAL_BYTES: Final = 64 * MIB
"""The log is copied into the database at this size: pages that many chunks change are then copied once."""

_FAULTS: Final[dict[int, tuple[type[DeliveryError], bool, str]]] = {
    # primary result code: (error, universal, what to do)
    sqlite3.SQLITE_BUSY: (TransientError, True, "another program holds its write lock; it is tried again"),
    sqlite3.SQLITE_LOCKED: (TransientError, True, "another connection holds its lock; it is tried again"),
    sqlite3.SQLITE_FULL: (TransientError, True, "make room on the disk; it is tried again"),
    sqlite3.SQLITE_IOERR: (TransientError, True, "the disk reports an error; it is tried again"),
    sqlite3.SQLITE_NOMEM: (TransientError, True, "out of memory; it is tried again"),
    sqlite3.SQLITE_PROTOCOL: (TransientError, True, "its locks are in dispute; it is tried again"),
    sqlite3.SQLITE_INTERRUPT: (TransientError, False, "the statement was interrupted; it is tried again"),
    sqlite3.SQLITE_CANTOPEN: (PermanentError, True, "make its folder, or correct the URL, then run again"),
    sqlite3.SQLITE_READONLY: (PermanentError, True, "make the file and its folder writable, then run again"),
    sqlite3.SQLITE_PERM: (PermanentError, True, "make the file readable and writable, then run again"),
    sqlite3.SQLITE_AUTH: (PermanentError, True, "make the file readable and writable, then run again"),
    sqlite3.SQLITE_NOTADB: (PermanentError, True, "give the path of an SQLite database or of no file, then run again"),
    sqlite3.SQLITE_CORRUPT: (PermanentError, True, "restore the file from a copy, or delete it and feed all again"),
    sqlite3.SQLITE_TOOBIG: (PermanentError, False, "shorten it in a step"),
    sqlite3.SQLITE_CONSTRAINT: (PermanentError, False, "change the document in a step, or the table's constraint"),
    sqlite3.SQLITE_MISMATCH: (PermanentError, False, "change the document in a step, or the table's column"),
}


def resolved(url: sa.URL) -> sa.URL:
    """The same database from any working folder.

    Raises:
        PlanError: a database in memory, which workers could not share.
    """
    path = url.database
    if not path or path == ":memory:" or "mode=memory" in path or url.query.get("mode") == "memory":
        raise PlanError(
            [f"Sql({url}): a database in memory is private to one process. Give a file: sqlite:///index.db"]
        )
    if path.startswith("file:"):
        return url
    return url.set(database=os.path.abspath(os.path.expanduser(path)))


def engine(url: sa.URL) -> sa.Engine:
    """An engine without a pool whose transactions take the write lock at their start.

    A transaction that reads first and writes later would fail at its first write if another process wrote in between;
    with BEGIN IMMEDIATE what was read (hashes, sequences) still holds when it is written.
    """
    made = sa.create_engine(
        url,
        poolclass=sa.NullPool,
        connect_args={"isolation_level": None, "check_same_thread": False}
        | ({} if "timeout" in url.query else {"timeout": BUSY_TIMEOUT_S}),
    )
    sa.event.listen(made, "connect", _settle_in)
    sa.event.listen(made, "begin", _begin)
    return made


def reader(url: sa.URL) -> sa.Engine:
    """An engine that changes nothing, and makes no file."""
    made = sa.create_engine(url, poolclass=sa.NullPool, connect_args={"timeout": BUSY_TIMEOUT_S})
    sa.event.listen(made, "connect", lambda connection, _record: connection.execute("PRAGMA query_only = ON"))
    return made


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
        raise PermanentError(f"{path}: there is no folder {folder}. Make it, or correct the URL, then run again.", True)
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
        raise PermanentError(
            f"this file system or build of SQLite keeps journal_mode={mode}; Ferryman writes in WAL mode. "
            "Put the database on a local disk, then run again.",
            True,
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


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Errors of SQLite inside come out as ``TransientError`` or ``PermanentError``, with ``where`` and what to do."""
    try:
        yield
    except Exception as e:
        fault = explain(e, where)
        if fault is None or fault is e:
            raise
        raise fault from e


def blames_a_row(error: BaseException) -> bool:
    """Is it one delivery's value that the database does not take, so that the others can still be written?"""
    fault = explain(error, "")
    return isinstance(fault, PermanentError) and not fault.universal


def explain(error: BaseException, where: str) -> DeliveryError | None:
    """What an error means for the delivery (``universal=False``) or the database; None for what is not SQLite's."""
    if isinstance(error, DeliveryError):
        return error
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    if isinstance(cause, UnicodeEncodeError):
        return PermanentError(f"{where}: a lone surrogate at character {cause.start} is no text. Replace it in a step.")
    if isinstance(cause, OverflowError):
        return PermanentError(f"{where}: {cause} (64 bit). Store the number as text in a step.")
    if isinstance(cause, sqlite3.ProgrammingError) and "binding parameter" in str(cause):
        return PermanentError(f"{where}: {cause}. Make it text or a number in a step.")
    if not isinstance(cause, sqlite3.Error):
        return None
    code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the primary code; the rest is detail
    if code in _FAULTS:
        kind, universal, remedy = _FAULTS[code]
        return kind(f"{where}: {cause}: {remedy}.", universal)
    if "no such table" in str(cause):
        return TransientError(f"{where}: {cause}: it was dropped in use; the next wave makes it again.", True)
    if "no such module: fts5" in str(cause):
        return PermanentError(f"{where}: this Python's SQLite has no FTS5: leave full_text= out, or use another.", True)
    if "no such column" in str(cause) or "has no column" in str(cause):
        return PermanentError(f"{where}: {cause}: the table was changed; restore the column, or drop the table.", True)
    return None
