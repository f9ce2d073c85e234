"""What PostgreSQL's errors mean: whom they are about, and what to do."""

from __future__ import annotations

from typing import Final

import psycopg
from sqlalchemy.exc import DBAPIError

from ferryman.errors import DeliveryError, Misconfigured, PermanentError, TransientError, Unavailable

NodeError = tuple[type[DeliveryError], str]
"""Kind of error, what to do."""

_AGAIN: Final = "it is tried again"

FAULTS: Final[dict[str, NodeError]] = {
    # SQLSTATE, or its first two letters for all that have no line of their own
    "08": (Unavailable, f"the connection was lost; {_AGAIN}"),
    "22": (PermanentError, "change the document in a step, or the table's column"),
    "23": (PermanentError, "change the document in a step, or the table's constraint"),
    "25": (Unavailable, f"the session was ended in the middle of a transaction; {_AGAIN}"),
    "25006": (Unavailable, f"the server only reads (a standby?): give the URL of the primary; {_AGAIN}"),
    "28": (Misconfigured, "correct user and password, or pg_hba.conf, then run again"),
    "3D": (Misconfigured, "create the database, or correct the URL, then run again"),
    "3F": (Misconfigured, "create the schema, or correct the search_path, then run again"),
    "40": (Unavailable, f"other writers changed the same rows, again and again; {_AGAIN}"),
    "42": (Misconfigured, "the table is not as Ferryman made it: restore it, or drop it, then run again"),
    "42501": (Misconfigured, "grant this user the right, then run again"),
    "42P01": (Unavailable, "the table was dropped in use; the next wave makes it again"),
    "44": (PermanentError, "change the document in a step, or the view's condition"),
    "53": (Unavailable, f"the server lacks a resource (disk, memory, connections); {_AGAIN}"),
    "54": (PermanentError, "shorten it, or split it, in a step"),
    "55": (Unavailable, f"another session holds a lock; {_AGAIN}"),
    "57": (Unavailable, f"the server ended the session; {_AGAIN}"),
    "57014": (TransientError, f"the statement took longer than the server allows; {_AGAIN} with fewer rows"),
    "57P04": (Misconfigured, "the database was dropped: create it, then run again"),
    "58": (Unavailable, f"the server's disk reports an error; {_AGAIN}"),
    "P0": (PermanentError, "a trigger refuses it: change the document in a step, or the trigger"),
    "XX": (Unavailable, f"an internal error of the server, see its log; {_AGAIN}"),
    "XX001": (Misconfigured, "restore the database from a copy, then run again"),
    "XX002": (Misconfigured, "REINDEX the table, then run again"),
}

_REFUSALS: Final = {
    # A refused connection has no SQLSTATE, only words.
    "password authentication failed": "28",
    "authentication failed": "28",
    "no password supplied": "28",
    "no pg_hba.conf entry": "28",
    "is not permitted to log in": "28",
    "permission denied for database": "42501",
    "certificate verify failed": "28",
    "does not support SSL": "28",
}


def explain(error: BaseException, where: str) -> DeliveryError | None:
    """What an error means for the delivery, or for the whole database; None for what is not PostgreSQL's."""
    if isinstance(error, DeliveryError):
        return error
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    if isinstance(cause, UnicodeEncodeError):
        return PermanentError(
            f"{where}: a lone surrogate at character {cause.start} is not text. Replace it in a step."
        )
    if not isinstance(cause, psycopg.Error):
        return None
    if cause.sqlstate is None and isinstance(cause, psycopg.DataError):  # psycopg's own: it was never sent
        return PermanentError(f"{where}: {_said(cause)}: change the document in a step.")
    found = _fault(cause)
    if found is None:
        return None
    kind, remedy = found
    return kind(f"{where}: {_said(cause)}: {remedy}.")


def is_passing(error: psycopg.Error) -> bool:
    """A deadlock, a serialisation failure: the same transaction, begun again at once, finds other circumstances."""
    return error.sqlstate in ("40001", "40P01")


def _fault(error: psycopg.Error) -> NodeError | None:
    state = error.sqlstate
    if state is not None:
        return FAULTS.get(state) or FAULTS.get(state[:2])
    text = str(error)
    for words, refusal in _REFUSALS.items():
        if words in text:
            return FAULTS[refusal]
    if 'database "' in text and "does not exist" in text:
        return FAULTS["3D"]
    if 'role "' in text and "does not exist" in text:
        return FAULTS["28"]
    return FAULTS["08"] if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) else None


def _said(error: psycopg.Error) -> str:
    """The server's words in one line, with the place in the data where it says one. What a row holds is not shown."""
    said = error.diag.message_primary or str(error).strip() or type(error).__name__
    if error.diag.column_name:
        said = f"{said} (column {error.diag.column_name})"
    elif error.diag.constraint_name and error.diag.constraint_name not in said:
        said = f"{said} ({error.diag.constraint_name})"
    return " ".join(said.split())
