"""The file of a queue in SQLite: what makes it one, and its errors as ours."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ferryman.intake.errors import QueueLost, QueueRefused

MARK: Final = 0x46725179
"""SQLite's application id of our files ("FrQy"): another database is not taken for a queue."""

FORMAT: Final = 2
"""Of the tables. A newer one is refused; format 1 had no ``creation``, and gets it when it is opened."""

BUSY_S: Final = 30.0
"""How long a change waits for other processes' changes, which take a millisecond each."""

CHECKPOINT_PAGES: Final = 8192
"""The log is folded into the file at 32 MiB: pages that change all the time are written once, not a thousand times."""

TABLES: Final = """
CREATE TABLE node (
  parent TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL DEFAULT 0,
  children INTEGER NOT NULL DEFAULT 0, numbered INTEGER NOT NULL DEFAULT 0, owner INTEGER NOT NULL DEFAULT 0,
  creation INTEGER NOT NULL DEFAULT 0, created REAL NOT NULL, modified REAL NOT NULL,
  PRIMARY KEY (parent, name)) WITHOUT ROWID;
CREATE INDEX node_owner ON node (owner) WHERE owner != 0;
CREATE TABLE session (id INTEGER PRIMARY KEY AUTOINCREMENT, boot TEXT NOT NULL, expires REAL NOT NULL);
"""

_MAKING: Final = threading.Lock()
"""Whoever closes a file gives up all locks that this process has on it, those of other connections too (POSIX). SQLite
knows that of its own files. So a database that is there is never opened here, and no thread connects to one while it
is made."""


def connected(path: Path) -> sqlite3.Connection:
    """A connection to a queue's file, made if it is not there.

    Raises:
        QueueRefused: it cannot be opened, or is something else.
    """
    with _MAKING, suppress(OSError):  # SQLite says what is wrong; its own other files get the mode of this one
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    with told(path):
        connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
            (mark,) = connection.execute("PRAGMA application_id").fetchone()
            if mark != MARK:
                _made(connection, path)
            _upgrade(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def _made(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables in an empty file; several processes may try it at once."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if connection.execute("PRAGMA application_id").fetchone()[0] == MARK:
            return
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise QueueRefused(f"{path}: this is not a queue database. Name another file for the queue.")
        for statement in TABLES.split(";")[:-1]:
            connection.execute(statement)
        connection.execute("INSERT INTO node (parent, name, data, created, modified) VALUES ('', '', x'', 0, 0)")
        connection.execute(f"PRAGMA application_id={MARK}")
        connection.execute(f"PRAGMA user_version={FORMAT}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _upgrade(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the tables of an older format to this one."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > FORMAT:
        raise QueueRefused(f"{path}: this queue was made by a newer Ferryman (format {found}). Use that one.")
    if found == FORMAT:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if connection.execute("PRAGMA user_version").fetchone()[0] != FORMAT:  # no other process was faster
            connection.execute("ALTER TABLE node ADD COLUMN creation INTEGER NOT NULL DEFAULT 0")
            connection.execute(f"PRAGMA user_version={FORMAT}")
    finally:
        connection.execute("COMMIT")


@contextmanager
def told(path: Path) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.Error as e:
        raise plain(path, e) from e


def plain(path: Path, error: sqlite3.Error) -> Exception:
    """An error of SQLite's as ours: about this file, and what to do."""
    text = str(error)
    if isinstance(error, sqlite3.OperationalError):
        if "locked" in text or "busy" in text:
            return QueueLost(f"{path}: other processes have been changing this queue for {BUSY_S:g} s. Try again.")
        if "unable to open" in text or "readonly" in text:
            return QueueRefused(f"{path}: {text}. Name a file in a folder that exists and may be written to.")
        return QueueLost(f"{path}: {text}. Fix this, and run the same command again: nothing was half done.")
    if isinstance(error, sqlite3.ProgrammingError):
        return QueueLost(f"{path}: this queue was closed.")
    return QueueRefused(f"{path}: {text}. If it was a queue, restore it from a dump.")
