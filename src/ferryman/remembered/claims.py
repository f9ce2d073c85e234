"""Claims on inputs: of all tasks that need the same answer at the same time, one calls.

On a disk a claim is a lock on a byte of one file, at the place that the key says. The system releases it when the
process ends. In an object store each task has an object with the keys of its calls: a task writes its own, *then* reads
those of the others, and gives up what another one has too. So of two tasks one at most keeps a key; if both gave it up,
both try again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from ferryman.storage import files
from ferryman.storage.files import StatePath
from ferryman.storage.objects import ObjectPath
from ferryman.storage.processes import Process, ProcessWatch, heartbeat

_CLAIM: Final = ".claim"
_ALIVE: Final = ".alive"


class Claims(Protocol):
    """Claims of one task."""

    def take(self, keys: Sequence[bytes]) -> set[bytes]:
        """Claim keys that this task does not hold; return those that it holds now."""

    def release(self, keys: Iterable[bytes]) -> None:
        """Release keys that this task holds, after their answers are stored or their calls have failed."""

    def left_by_dead(self) -> set[bytes]:
        """Return keys that tasks claimed which are not at work any more, as far as this is not in the logs."""

    def close(self) -> None:
        """Release everything."""


def open_claims(folder: StatePath) -> Claims:
    """Return a task's claims on the inputs of a store."""
    return ObjectClaims(folder / "calls") if isinstance(folder, ObjectPath) else LockedClaims(folder / "calls.lock")


class LockedClaims:
    """Claims by locks of the operating system."""

    def __init__(self, path: Path) -> None:
        files.make_folder(path.parent)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def take(self, keys: Sequence[bytes]) -> set[bytes]:
        return {key for key in keys if self._lock(key, fcntl.F_WRLCK)}

    def release(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._lock(key, fcntl.F_UNLCK)

    def left_by_dead(self) -> set[bytes]:
        return set()  # the logs of such tasks say what had begun

    def close(self) -> None:
        os.close(self._fd)

    def _lock(self, key: bytes, kind: int) -> bool:
        place = int.from_bytes(key[:8], "big") >> 2
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi", kind, os.SEEK_SET, place, 1, 0))
        except OSError as e:
            if e.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True


class _Claim(msgspec.Struct):
    """Content of a task's object."""

    owner: Process
    keys: list[bytes]


class ObjectClaims:
    """Claims in an object store."""

    def __init__(self, folder: ObjectPath) -> None:
        self._folder = folder
        self._name = uuid.uuid4().hex
        self._held: set[bytes] = set()
        self._has_begun = False
        self._others: dict[str, tuple[str, _Claim, ProcessWatch]] = {}
        self._ending = contextlib.ExitStack()
        self._owner = Process.current()

    def take(self, keys: Sequence[bytes]) -> set[bytes]:
        if not self._has_begun:
            self._begin()
        wanted = {*keys} - self._held
        self._held |= wanted
        self._write()
        taken = wanted - self._keys_of_others()
        if lost := wanted - taken:
            self.release(lost)
        return taken

    def release(self, keys: Iterable[bytes]) -> None:
        self._held.difference_update(keys)
        self._write()

    def left_by_dead(self) -> set[bytes]:
        return {
            key for _, claim, watch in self._others.values() if not self._is_alive(claim, watch) for key in claim.keys
        }

    def close(self) -> None:
        self._ending.close()
        files.remove_all([self._folder / f"{self._name}{_CLAIM}", self._folder / f"{self._name}{_ALIVE}"])

    def _begin(self) -> None:
        self._has_begun = True
        self._write()
        alive = heartbeat(self._folder / f"{self._name}{_ALIVE}", self._folder / f"{self._name}{_CLAIM}")
        self._ending.enter_context(alive)

    def _write(self) -> None:
        claim = _Claim(self._owner, sorted(self._held))
        files.replace(self._folder / f"{self._name}{_CLAIM}", msgspec.msgpack.encode(claim))

    def _keys_of_others(self) -> set[bytes]:
        """Return the keys that other tasks claim which are still at work."""
        listed = {name: stamp for name, stamp in files.list_stamps(self._folder).items() if name.endswith(_CLAIM)}
        listed.pop(f"{self._name}{_CLAIM}", None)
        self._others = {name: each for name, each in self._others.items() if name in listed}
        for name, stamp in listed.items():
            tag = str(stamp)
            if name in self._others and self._others[name][0] == tag:
                continue
            if (found := files.read_version(self._folder / name)) is None:
                continue
            claim = msgspec.msgpack.decode(found[0], type=_Claim)
            old = self._others.get(name)
            watch = old[2] if old else ProcessWatch(claim.owner, self._folder / name.replace(_CLAIM, _ALIVE))
            self._others[name] = tag, claim, watch
        return {key for _, claim, watch in self._others.values() if self._is_alive(claim, watch) for key in claim.keys}

    def _is_alive(self, claim: _Claim, watch: ProcessWatch) -> bool:
        return claim.owner == self._owner or watch.is_alive()
