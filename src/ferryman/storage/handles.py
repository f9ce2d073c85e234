"""Open Delta tables, kept and brought to the newest version: that reads only what is new of their logs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from ferryman.storage.files import stamp
from ferryman.storage.log import TableLog, version_of
from ferryman.storage.log_entries import DataFile as DataFile
from ferryman.storage.log_entries import LogChanges, LogUnreadable, read_checkpoint, read_entry

KEPT: Final = 6
"""Handles of a thread: the tables of two states."""
_TRIES: Final = 20
"""So often a log is read again because a driver trimmed it meanwhile."""


class OpenTable:
    """A table as of one version; ``move_on`` brings it to the newest.

    Args:
        version: not the newest one, but this.

    Raises:
        LogUnreadable: there is no log, or it cannot be read.
    """

    def __init__(self, folder: Path, version: int | None = None) -> None:
        self.folder = folder
        self._log = TableLog(folder)
        # before it is read: what is trimmed or removed meanwhile shows afterwards
        self._base = self._log.base()
        self.version = -1
        self._files: dict[str, DataFile] = {}
        self._transactions: dict[str, int] = {}
        begin = self._begin()
        if begin is not None:
            self._apply(read_checkpoint(self._log.checkpoint_path(begin)), begin)
        for each in self._log.versions():
            if each <= self.version or (version is not None and each > version):
                continue
            if each != self.version + 1:
                raise LogUnreadable(f"{self._log.path(self.version + 1)}: the log file is missing")
            self._apply(read_entry(self._log.path(each)), each)
        if self.version < 0:
            raise LogUnreadable(f"{self._log.folder}: there is no log")
        self._stamp = stamp(self._log.path(self.version))

    def move_on(self) -> None:
        """To the newest version. Versions have no gaps: without the next one there is nothing to read."""
        before = self.version
        while (path := self._log.path(self.version + 1)).exists():
            self._apply(read_entry(path), self.version + 1)
        if self.version != before:
            self._stamp = stamp(self._log.path(self.version))

    @property
    def holds(self) -> bool:
        """Is the log still the one that was read? Not if another state was put into its place, nor if it was trimmed or
        is about to be, nor if a checkpoint was removed that a kill had left."""
        found = stamp(self._log.path(self.version))
        return found is not None and found == self._stamp and not self.trimmed

    @property
    def trimmed(self) -> bool:
        """Has anybody trimmed the log since it was read, or is about to? Then a version that seems to be free may have
        been there."""
        return self._log.base() != self._base

    def transaction(self, application: str) -> int:
        """The number of its last transaction, 0 if there was none."""
        return self._transactions.get(application, 0)

    def files(self) -> dict[str, DataFile]:
        """Path -> live file."""
        return dict(self._files)

    def _begin(self) -> int | None:
        """The version of the checkpoint to begin with: the one that is marked. Where there is no mark, none, unless the
        first entries are not there any more."""
        marked = self._log.marked_checkpoint()
        first, checkpoints = self._base
        if marked is not None or first == self._log.path(0).name or not checkpoints:
            return marked
        return max(map(version_of, checkpoints))

    def _apply(self, changes: LogChanges, version: int) -> None:
        for path in changes.removes:
            self._files.pop(path, None)
        self._files.update((file.path, file) for file in changes.adds)
        self._transactions.update(changes.transactions)
        self.version = version


def newest(folder: Path, handle: OpenTable | None = None) -> OpenTable:
    """The table in its newest version.

    Args:
        handle: one that was opened before; it is used if it can be.

    Raises:
        LogUnreadable: see ``OpenTable``.
    """
    if handle is not None and handle.holds:
        handle.move_on()
        return handle
    log = TableLog(folder)
    for _ in range(_TRIES):
        before = log.base()
        try:
            return OpenTable(folder)
        except LogUnreadable:
            if log.base() == before:
                raise
    return OpenTable(folder)


class _OfThread(threading.local):
    """Of this thread: a handle that is moved on by one thread would be read at two versions by another."""

    def __init__(self) -> None:
        self.handles: OrderedDict[Path, OpenTable] = OrderedDict()


_of_thread = _OfThread()


def newest_to_read(folder: Path) -> OpenTable:
    """The same, for those who read only: whoever commits must have a handle that nobody else moves on."""
    kept = _of_thread.handles
    kept[folder] = newest(folder, kept.pop(folder, None))
    while len(kept) > KEPT:
        kept.popitem(last=False)
    return kept[folder]
