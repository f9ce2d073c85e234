"""The ledger's vocabulary and its legal moves, as data. Pictures and docs are made from these tables."""

from __future__ import annotations

import enum
from typing import Final


class Status(enum.StrEnum):
    """State of a delivery. The latest event counts; PROCESSING and BATCHED are derived by readers, never stored."""

    FORCE = "FORCE"
    RESTART = "RESTART"
    DIRTY = "DIRTY"
    PROCESSING = "PROCESSING"
    ERROR = "ERROR"
    BATCHED = "BATCHED"
    INDEXING = "INDEXING"
    INDEXED = "INDEXED"
    DROPPED = "DROPPED"
    DEAD = "DEAD"
    ERROR_DOC = "ERROR_DOC"


TERMINAL: Final = frozenset({Status.INDEXED, Status.DROPPED, Status.DEAD, Status.ERROR_DOC})
"""A delivery in one of these has ended, until its document changes or an operator asks for more."""

MEANING: Final[dict[Status, str]] = {
    Status.FORCE: "an operator wants it read again, changed or not; the next scan reads it as a new revision",
    Status.RESTART: "an operator or a new plan version wants it retried; due now, with its attempts reset",
    Status.DIRTY: "a source or an operator suspects a change: the next scan reads it; or a step wants it again later",
    Status.PROCESSING: "in a wave that has not committed; after a crash it is processed again",
    Status.ERROR: "a step or the destination failed; retried when due",
    Status.BATCHED: "committed to the outbox; will be delivered",
    Status.INDEXING: "at-most-once: sent, and nobody knows with what result; in doubt until an operator resolves it",
    Status.INDEXED: "delivered (or the destination has something newer, or the same child already)",
    Status.DROPPED: "dropped on purpose, replaced or superseded; the message says which",
    Status.DEAD: "its attempts are exhausted, or the destination refused it with a permanent error",
    Status.ERROR_DOC: "the document itself is bad: it cannot be read or parsed, or kills the process that handles it",
}

_S = Status
PENDING: Final = frozenset({_S.FORCE, _S.RESTART, _S.ERROR, _S.BATCHED})
"""Still to be sent."""

SHOWN: Final[dict[str, tuple[frozenset[Status], str | None]]] = {
    "delivered": (frozenset({_S.INDEXED}), "upsert"),
    "deleted": (frozenset({_S.INDEXED}), "delete"),
    "dropped": (frozenset({_S.DROPPED}), None),
    "failed": (frozenset({_S.DEAD}), None),
    "rejected": (frozenset({_S.ERROR_DOC}), None),
    "pending": (PENDING, None),
    "in_doubt": (frozenset({_S.INDEXING}), None),
}
"""What is shown of a delivery -> the statuses stored for it, and its operation where that matters."""


def shown(status: str, operation: str) -> str:
    """The word for a delivery of this status: a key of ``SHOWN``."""
    for word, (statuses, only) in SHOWN.items():
        if status in statuses and only in (None, operation):
            return word
    return "pending"


def stored(text: str) -> tuple[frozenset[Status], str | None]:
    """The statuses, and the operation where it matters, for a shown word or a stored name, in any case.

    Raises:
        ValueError: there is no such status; names all.
    """
    word = text.strip().lower().replace("-", "_")
    if word in SHOWN:
        return SHOWN[word]
    if word.upper() in set(Status):
        return frozenset({Status(word.upper())}), None
    raise ValueError(f"choose one of {', '.join(SHOWN)}; or of the stored names {', '.join(Status)}")


_STEPS = frozenset({_S.BATCHED, _S.ERROR, _S.DROPPED, _S.DEAD, _S.ERROR_DOC})
"""What the steps may make of a document that is processed (again)."""
_SENT = frozenset({_S.INDEXING, _S.INDEXED, _S.ERROR, _S.DEAD, _S.ERROR_DOC})
"""What sending may make of a committed row."""
_PERSON = frozenset({_S.RESTART, _S.FORCE})

MOVES: Final[dict[Status | None, frozenset[Status]]] = {
    None: frozenset({_S.PROCESSING}),
    _S.PROCESSING: _STEPS | {_S.INDEXED},
    _S.BATCHED: _SENT | {_S.DROPPED},
    _S.INDEXING: _SENT | _PERSON | {_S.DROPPED},
    _S.ERROR: _STEPS | _SENT | _PERSON,
    _S.RESTART: _STEPS | _SENT | _PERSON,
    _S.FORCE: frozenset({_S.PROCESSING, _S.FORCE, _S.DROPPED}),
    _S.DIRTY: frozenset({_S.PROCESSING, _S.DIRTY}),
    _S.INDEXED: frozenset({_S.FORCE, _S.DIRTY}),
    _S.DROPPED: frozenset({_S.FORCE, _S.DIRTY}),
    _S.DEAD: _PERSON | {_S.DROPPED},
    _S.ERROR_DOC: _PERSON | {_S.DROPPED},
}
"""From -> to, for one delivery. None: nothing known of it yet.

It describes what the code does: the model moves by it, the tests hold every ledger against it, docs and pictures are
made of it. Nothing looks it up while events are written, for an event does not know the one before.
"""


def move(before: Status | None, after: Status) -> Status:
    """The state after a legal move.

    Raises:
        ValueError: not a legal one; nothing changes.
    """
    if after not in MOVES[before]:
        raise ValueError(
            f"a delivery cannot go from {before or 'nothing'} to {after}: only to {', '.join(sorted(MOVES[before]))}"
        )
    return after
