"""Where the registered readers of a queue stand: one small file each, replaced durably."""

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
"""So many other handles have a reader's object remember their last notes, each of which may ask for its own."""


class Positions:
    """The files in ``folder``; a name is that of a tailer, or of a plan's source."""

    def __init__(self, folder: StatePath, queue: str) -> None:
        self._folder = folder
        self._queue = queue
        self._last_read: dict[str, tuple[str | None, dict[str, int]]] = {}
        """Reader -> the version of its object that was read last; whose notes led to it."""
        self._handle_id, self._count = uuid.uuid4().hex, 0
        self._locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        """Of the threads that use this handle."""

    def list_readers(self) -> list[str]:
        """All readers, sorted."""
        return sorted(name for name in files.list_names(self._folder) if not name.startswith("."))

    def all(self) -> dict[str, int]:
        """Reader -> index of the message that comes next.

        Raises:
            StateDamaged: the file of one is not what was written.
        """
        found = {}
        for name in self.list_readers():
            if (position := self.position_of(name)) is not None:
                found[name] = position
        return found

    def position_of(self, name: str) -> int | None:
        """Where one stands; None: it is not registered."""
        said = self._read_record(name)
        return None if said is None else int(said["position"])

    def record(self, name: str, position: int, moved: str = "") -> bool:
        """From now on it stands there, durably. Inside ``held``, after a look at where it stood.

        Args:
            moved: tells this move from all others, if somebody else than the reader moves it.

        Returns:
            False: in an object store, somebody has moved it since that look; nothing was noted.
        """
        self._count += 1
        path, (version, others) = self._folder / name, self._last_read.get(name, (None, {}))
        said: dict[str, Any] = {"reader": name, "queue": self._queue, "position": position}
        if moved:
            said["moved"] = moved
        if not isinstance(path, Path):
            said["notes"] = {**dict([*others.items()][-_MAX_OTHER_HANDLES:]), self._handle_id: self._count}
        noted = files.replace_version(path, seal(said), version)
        if not noted:  # the answer to it may have been lost, and others have gone on from there
            self._read_record(name)
            noted = self._last_read[name][1].get(self._handle_id) == self._count
        crash.point("tailer.noted")
        return noted

    def last_move(self, name: str) -> tuple[int, str] | None:
        """Where it was moved, and what tells this move from all others; None: it went where it stands by itself, or is
        not registered.

        Both are read at once: who may only read the queue cannot hold the reader.
        """
        said = self._read_record(name)
        return None if said is None or not (token := said.get("moved")) else (int(said["position"]), str(token))

    def forget(self, name: str) -> bool:
        """It is not a reader any more; False: it was none."""
        with self.hold(name):
            there = files.exists(self._folder / name)
            files.remove(self._folder / name)
            fsync_folder(self._folder)
        return there  # the lock's file stays: another process may wait at it

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Meanwhile nobody else moves this reader; or ``note`` tells, in an object store, where there are no locks.

        Raises:
            ReaderHeld: somebody else has it all the time, perhaps a process that was stopped; says who.
        """
        path, wait_s = self._folder / f".lock-{name}", limits.QUEUE_READER_S
        if not (ours := self._locks[name]).acquire(timeout=wait_s):
            raise ReaderHeld(str(path.parent.parent), name, "another thread of this process")
        try:
            with hold_lock(path, wait_s, signed=True) as alone:
                if not alone:
                    raise ReaderHeld(str(path.parent.parent), name, self.describe_holder(name))
                yield
        finally:
            ours.release()

    @contextlib.contextmanager
    def hold_all(self, wait_s: float) -> Iterator[str | None]:
        """Meanwhile nobody moves any reader that is registered now; or the one that could not be had for so long. In an
        object store they can be moved."""
        with contextlib.ExitStack() as held:
            for name in self.list_readers():
                if not held.enter_context(hold_lock(self._folder / f".lock-{name}", wait_s, signed=True)):
                    yield name
                    return
            yield None

    def describe_holder(self, name: str) -> str:
        """Names the process that holds this reader, or held it last."""
        path = self._folder / f".lock-{name}"
        return describe_holder(path) if isinstance(path, Path) else ""

    def _read_record(self, name: str) -> dict[str, Any] | None:
        path = self._folder / name
        found = files.read_version(path)
        self._last_read[name] = None, {}
        if found is None:
            return None
        said: Any = unseal_bytes(path, found[0])
        self._last_read[name] = found[1], said.get("notes", {})
        return dict(said)
