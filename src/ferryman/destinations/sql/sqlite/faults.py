"""What SQLite's errors mean: whom they are about, and what to do."""

from __future__ import annotations

import sqlite3
from typing import Final

from sqlalchemy.exc import DBAPIError

from ferryman.errors import DeliveryError, Misconfigured, PermanentError, TransientError, Unavailable

FAULTS: Final[dict[int, tuple[type[DeliveryError], str]]] = {
    # primary result code: (error, what to do)
    sqlite3.SQLITE_BUSY: (Unavailable, "another program holds its write lock; it is tried again"),
    sqlite3.SQLITE_LOCKED: (Unavailable, "another connection holds its lock; it is tried again"),
    sqlite3.SQLITE_FULL: (Unavailable, "make room on the disk; it is tried again"),
    sqlite3.SQLITE_IOERR: (Unavailable, "the disk reports an error; it is tried again"),
    sqlite3.SQLITE_NOMEM: (TransientError, "the sender has too little memory for it; it is tried again"),
    sqlite3.SQLITE_PROTOCOL: (Unavailable, "its locks are in dispute; it is tried again"),
    sqlite3.SQLITE_INTERRUPT: (TransientError, "the statement was interrupted; it is tried again"),
    sqlite3.SQLITE_CANTOPEN: (Misconfigured, "make its folder, or correct the URL, then run again"),
    sqlite3.SQLITE_READONLY: (Misconfigured, "make the file and its folder writable, then run again"),
    sqlite3.SQLITE_PERM: (Misconfigured, "make the file readable and writable, then run again"),
    sqlite3.SQLITE_AUTH: (Misconfigured, "make the file readable and writable, then run again"),
    sqlite3.SQLITE_NOTADB: (Misconfigured, "give the path of an SQLite database or of no file, then run again"),
    sqlite3.SQLITE_CORRUPT: (
        Misconfigured,
        "restore the file from a copy, or delete it and run `ferryman retry --force`",
    ),
    sqlite3.SQLITE_TOOBIG: (PermanentError, "shorten it in a step"),
    sqlite3.SQLITE_CONSTRAINT: (PermanentError, "change the document in a step, or the table's constraint"),
    sqlite3.SQLITE_MISMATCH: (PermanentError, "change the document in a step, or the table's column"),
}


def explain(error: BaseException, where: str) -> DeliveryError | None:
    """What an error means for the delivery, or for the whole database; None for what is not SQLite's."""
    if isinstance(error, DeliveryError):
        return error
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    if isinstance(cause, UnicodeEncodeError):
        return PermanentError(
            f"{where}: a lone surrogate at character {cause.start} is not text. Replace it in a step."
        )
    if isinstance(cause, OverflowError):
        return PermanentError(f"{where}: {cause} (64 bit). Store the number as text in a step.")
    if isinstance(cause, sqlite3.ProgrammingError) and "binding parameter" in str(cause):
        return PermanentError(f"{where}: {cause}. Make it text or a number in a step.")
    if not isinstance(cause, sqlite3.Error):
        return None
    code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    code = sqlite3.SQLITE_NOMEM if code == sqlite3.SQLITE_IOERR_NOMEM else code & 0xFF  # the rest is detail
    if code in FAULTS:
        kind, remedy = FAULTS[code]
        return kind(f"{where}: {cause}: {remedy}.")
    if "no such table" in str(cause):
        return Unavailable(f"{where}: {cause}: it was dropped in use; the next wave makes it again.")
    if "no such module: fts5" in str(cause):
        return Misconfigured(f"{where}: this Python's SQLite has no FTS5: leave full_text= out, or use another.")
    if "no such column" in str(cause) or "has no column" in str(cause):
        return Misconfigured(f"{where}: {cause}: the table was changed; restore the column, or drop the table.")
    return None
