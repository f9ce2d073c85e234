"""Positions of a queue's registered readers: one small file each, replaced durably."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ferryman import crash, limits
from ferryman.errors import ReaderHeld
from ferryman.storage import files
from ferryman.storage.files import StatePath, fsync_folder, seal, unseal_bytes
from ferryman.storage.locks import describe_holder, hold_lock

_MAX_OTHER_HANDLES: Final = 63
"""Number of other handles whose last change a reader's object remembers, so that each can check whether its own took
effect."""


class Positions:
    """Position files in ``folder``; a name is that of a tailer, or of a plan's source."""

    def __init__(self, folder: StatePath, queue: str) -> None:
        self._folder = folder
        self._queue = queue
        self._last_read: dict[str, tuple[str | None, dict[str, int]]] = {}
        """Reader -> version of its object when it was last read, and the changes that led to that version."""
        self._handle_id, self._count = uuid.uuid4().hex, 0
        self._locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        """Locks between the threads that use this object."""

    def list_readers(self) -> list[str]:
        """Return the names of all readers, sorted."""
        return sorted(name for name in files.list_names(self._folder) if not name.startswith("."))

    def all(self) -> dict[str, int]:
        """Return reader -> index of its next message.

        Raises:
            StateDamaged: a reader's file is not what was written.
        """
        found = {}
        for name in self.list_readers():
            if (position := self.position_of(name)) is not None:
                found[name] = position
        return found

    def position_of(self, name: str) -> int | None:
        """Return the index of a reader's next message; None if it is not registered."""
        record = self._read_record(name)
        return None if record is None else int(record["position"])

    def record(self, name: str, position: int, moved: str = "") -> bool:
        """Record a reader's position durably. Call it within ``hold``, after reading the position.

        Args:
            moved: unique id of this move, if somebody other than the reader moves it.

        Returns:
            False: it was moved after its position was read (possible only in an object store); nothing was recorded.
        """
        self._count += 1
        path, (version, others) = self._folder / name, self._last_read.get(name, (None, {}))
        record: dict[str, Any] = {"reader": name, "queue": self._queue, "position": position}
        if moved:
            record["moved"] = moved
        if not isinstance(path, Path):
            record["notes"] = {**dict([*others.items()][-_MAX_OTHER_HANDLES:]), self._handle_id: self._count}
        noted = files.replace_version(path, seal(record), version)
        if not noted:  # perhaps only the answer was lost, and others have continued from there
            self._read_record(name)
            noted = self._last_read[name][1].get(self._handle_id) == self._count
        crash.point("tailer.noted")
        return noted

    def last_move(self, name: str) -> tuple[int, str] | None:
        """Return the position that a reader was moved to, and the unique id of this move; None if it reached its
        position by reading, or is not registered.

        Both are read at once, because a process without write access cannot hold the reader.
        """
        record = self._read_record(name)
        return None if record is None or not (token := record.get("moved")) else (int(record["position"]), str(token))

    def forget(self, name: str) -> bool:
        """Remove a reader; return False if there was none."""
        with self.hold(name):
            existed = files.exists(self._folder / name)
            files.remove(self._folder / name)
            fsync_folder(self._folder)
        return existed  # the lock file stays: another process may be waiting for it

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Keep others from moving this reader during the block. In an object store there are no locks, so ``record``
        detects moves instead.

        Raises:
            ReaderHeld: the reader could not be locked in time, perhaps because its holder was stopped; names the
                holder.
        """
        path, wait_s = self._folder / f".lock-{name}", limits.QUEUE_READER_S
        if not (lock := self._locks[name]).acquire(timeout=wait_s):
            raise ReaderHeld(str(path.parent.parent), name, "another thread of this process")
        try:
            with hold_lock(path, wait_s, signed=True) as alone:
                if not alone:
                    raise ReaderHeld(str(path.parent.parent), name, self.describe_holder(name))
                yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def hold_all(self, wait_s: float) -> Iterator[str | None]:
        """Keep all currently registered readers from being moved during the block; yield the name of one that could not
        be locked in time, or None. In an object store they can still be moved."""
        with contextlib.ExitStack() as held:
            for name in self.list_readers():
                if not held.enter_context(hold_lock(self._folder / f".lock-{name}", wait_s, signed=True)):
                    yield name
                    return
            yield None

    def describe_holder(self, name: str) -> str:
        """Describe the process that holds this reader, or held it last."""
        path = self._folder / f".lock-{name}"
        return describe_holder(path) if isinstance(path, Path) else ""

    def _read_record(self, name: str) -> dict[str, Any] | None:
        path = self._folder / name
        found = files.read_version(path)
        self._last_read[name] = None, {}
        if found is None:
            return None
        record: Any = unseal_bytes(path, found[0])
        self._last_read[name] = found[1], record.get("notes", {})
        return dict(record)
