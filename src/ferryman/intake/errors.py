"""Errors of the queue.

::

    FerrymanError
    ├── UsageError
    │   ├── StateError     this move is not in the table; nothing was changed
    │   │   └── ItemLocked another process works on it; nothing was changed
    │   ├── BatchExists    the batchID is another submission's
    │   └── QueueRefused   this is not a queue, or none that this command may touch
    ├── NodeInvalid        a node is missing, or holds what it cannot hold
    ├── LockLost           this process does not hold the lock any more: stop what you do under it
    └── QueueLost          the queue's server does not answer, or went away in the middle of a change
"""

from __future__ import annotations

from ferryman.errors import FerrymanError, UsageError


class StateError(UsageError):
    """Raised for a move from ``before`` to ``after`` that the table of states does not have. Nothing was changed."""

    def __init__(self, before: str, after: str) -> None:
        super().__init__(str(before), str(after))
        self.before, self.after = str(before), str(after)

    def __str__(self) -> str:
        return f"State change ({self.before}->{self.after}) is not allowed"


class ItemLocked(StateError):
    """Raised because somebody else works on the item and holds the lock at ``path``. Nothing was changed."""

    def __init__(self, path: str) -> None:
        FerrymanError.__init__(self, path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"{self.path}: another process is working on it, and holds this lock. Nothing was changed. Wait until it "
            "is released; `ferryman intake unlock ID` revokes it."
        )


class BatchExists(UsageError):
    """Raised if another submission has this ``batchID``. Nothing was created."""

    def __init__(self, uuid: str, batch_id: str) -> None:
        super().__init__(uuid, batch_id)
        self.uuid, self.batch_id = uuid, batch_id

    def __str__(self) -> str:
        return (
            f"batchID {self.uuid} belongs to batch {self.batch_id}, which was submitted with other contents. Nothing "
            "was created. Give this submission a batchID of its own."
        )


class QueueRefused(UsageError):
    """Raised for a store that is not a queue, or not one that can be used in this way; nothing was changed."""


class NodeInvalid(FerrymanError):
    """Raised for a node, at ``path``, that is missing or malformed."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(path, what)
        self.path, self.what = path, what

    def __str__(self) -> str:
        return f"{self.path}: {self.what}. `ferryman intake audit` lists everything that is wrong with this queue."


class LockLost(FerrymanError):
    """Raised because this object has lost the lock it held. Another process may hold it now, so stop at once."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"{self.path}: the lock was lost (it was released, an operator revoked it, or its session ended: this "
            "process was stopped, or cut off, for longer than the session timeout). Nothing was changed. Others may "
            "have acquired this work: stop, and acquire it again."
        )


class QueueLost(FerrymanError):
    """The queue's server cannot be reached, or was lost in the middle of a change."""
