"""A file system whose locks do not work: a second driver takes a state over while the first one lives."""

from __future__ import annotations

from typing import Any

from ferryman.storage import locks
from ferryman.storage.locks import Lock


class NoLock:
    """What ``Lock.take`` returns there."""

    def note(self, what: object) -> None: ...

    def release(self) -> None: ...


take: Any = classmethod(lambda cls, path: NoLock())
"""In place of ``Lock.take``."""


def remove_locks() -> None:
    """For the rest of this process."""
    Lock.take = take  # type: ignore[method-assign]


def remove_all_locks() -> None:
    """For the rest of this process: also those of queues and readers. Nobody waits for one, and nobody is kept out."""
    remove_locks()
    locks.lock_with_timeout = lambda fd, kind, wait_s: True
