"""Locks on files, and leases in object stores: there is one driver per state, and it is known who holds it and whether
it is being read.

Locks on files are those of the operating system and end with their process. An object store has none: there, a lease is
renewed by its holder.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from ferryman.errors import EngineError, StateHeld
from ferryman.storage import files
from ferryman.storage.files import StatePath
from ferryman.storage.objects import ObjectPath
from ferryman.storage.processes import EXPIRES_S, HEARTBEAT_S, Process

_READER_WAIT_S: Final = 5.0
"""Seconds that a reader waits for a driver that is removing files, which is quick unless the driver is stopped."""

_LOCK_WAIT_S: Final = 30.0
"""Default time to wait for a lock, in seconds; its holder may have been stopped."""

_PROBE_S: Final = 0.1
"""Seconds that ``Lock.take`` waits: ``find_holder`` may be trying the lock, for microseconds."""

_NOTE_BYTES: Final = 64 * 1024
"""Bytes of a lock file that are read: who holds it, and what that process noted."""


class Holder(msgspec.Struct, frozen=True):
    """The process that holds a lock, or the last one that did.

    Attributes:
        since: when it took the lock, ISO 8601.
        is_active: whether it holds the lock now. In an object store: whether it renewed it within the last minute.
        note: what it noted last, see ``Lock.note``; it outlives the process.
    """

    host: str
    pid: int
    since: str
    is_active: bool
    note: Mapping[str, Any]


def find_holder(path: StatePath) -> Holder | None:
    """Return who holds the lock of a state, or held it last; None if nobody ever did. Keeps nobody out."""
    if isinstance(path, ObjectPath):
        return _find_lease_holder(path)
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:  # no state yet, or no permission to read the file
        return None
    try:
        is_free = _try_lock(fd, fcntl.LOCK_SH)
        if is_free:
            fcntl.flock(fd, fcntl.LOCK_UN)
        host, pid, since = _read_holder(fd)
        return Holder(host, pid, since, not is_free, _read_note(fd)) if pid or not is_free else None
    finally:
        os.close(fd)


class Lock:
    """Exclusive lock on a file, held from ``take`` until ``release`` or the end of the process, however it ends."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._since = _now()

    @classmethod
    def take(cls, path: Path) -> Self:
        """Take the lock. What its last holder noted stays in the file until this one notes something.

        Raises:
            StateHeld: another process holds it; names it.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not lock_with_timeout(fd, fcntl.LOCK_EX, _PROBE_S):
                raise StateHeld(str(path.parent), *_read_holder(fd))
            lock = cls(path, fd)
            _write_holder(fd, lock._since, _read_note(fd))
        except BaseException:  # such as a full disk: otherwise nobody would release it
            os.close(fd)
            raise
        return lock

    def note(self, what: Mapping[str, Any]) -> None:
        """Record what this process is doing, for ``find_holder``. Not synced, and lost if the disk is full."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                _write_holder(self._fd, self._since, what)

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def take_lock(path: StatePath, *, take_over: bool = False) -> Lock | ObjectLease:
    """Take the lock of a state, and become its only driver.

    Args:
        path: the lock in the state's folder.
        take_over: take it in an object store even if another process seems to hold it.

    Raises:
        StateHeld: another process holds it; names it.
    """
    return Lock.take(path) if isinstance(path, Path) else ObjectLease.take(path, take_over=take_over)


@contextlib.contextmanager
def hold_lock(path: StatePath, wait_s: float = _LOCK_WAIT_S, *, signed: bool = False) -> Iterator[bool]:
    """Hold a lock file, which is released when its process ends; yield False if it could not be taken in time.

    In an object store there is no such lock and nobody is kept out, so callers must not rely on it there.

    Args:
        wait_s: longest time to wait. A process that was stopped while it held the lock does not release it.
        signed: record the holder in the file, for ``describe_holder``.
    """
    if not isinstance(path, Path):
        yield True
        return
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        is_held = lock_with_timeout(fd, fcntl.LOCK_EX, wait_s)
        if is_held and signed:
            with contextlib.suppress(OSError):  # a full disk must not prevent anyone from making room
                _write_holder(fd, _now(), {})
        yield is_held
    finally:
        os.close(fd)


def describe_holder(path: Path) -> str:
    """Describe the process that holds a signed lock file: "process 17 on host a since …"."""
    with path.open("rb") as file:
        host, pid, since = _read_holder(file.fileno())
    return f"process {pid} on {host} since {since}" if pid else "another process"


class Readers:
    """Lock shared by all processes that are reading a state.

    A driver removes replaced files only while nobody is reading, or if they were replaced long ago. In an object store
    readers cannot be seen, so only the age counts.
    """

    def __init__(self, path: StatePath) -> None:
        self._path = path

    def create(self) -> None:
        """Create the lock file if it does not exist."""
        if isinstance(self._path, Path):
            self._path.touch()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Keep files that are replaced during this block from being removed, at least for some time. If the lock cannot
        be taken, read without it."""
        fd = None
        if not isinstance(self._path, Path):
            yield
            return
        with contextlib.suppress(OSError):  # an older state, or no permission to read the file
            fd = os.open(self._path, os.O_RDONLY)
        try:
            if fd is not None:
                lock_with_timeout(fd, fcntl.LOCK_SH, _READER_WAIT_S)
            yield
        finally:
            if fd is not None:
                os.close(fd)

    @contextlib.contextmanager
    def exclude_readers(self) -> Iterator[bool]:
        """Keep new readers out during this block; yield False if somebody is already reading, who is not disturbed."""
        if not isinstance(self._path, Path):
            yield False
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            yield _try_lock(fd, fcntl.LOCK_EX)
        finally:
            os.close(fd)

    def filesystem_time(self) -> float:
        """Return the current time of the file system, or the store, in seconds since 1970."""
        return files.filesystem_time(self._path)


def lock_with_timeout(fd: int, kind: int, wait_s: float) -> bool:
    """Take ``flock`` of this kind; return False if it could not be taken in time."""
    until = time.monotonic() + wait_s
    while not _try_lock(fd, kind):
        if time.monotonic() >= until:
            return False
        time.sleep(0.001)
    return True


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_holder(fd: int, since: str, note: Mapping[str, Any]) -> None:
    """Record in the lock file that this process holds it, in one line: a reader beside it sees the old or the new."""
    record = {"host": socket.gethostname(), "pid": os.getpid(), "since": since, "note": note}
    line = msgspec.json.encode(record) + b"\n"
    os.pwrite(fd, line, 0)
    os.ftruncate(fd, len(line))


def _read_record(fd: int) -> dict[str, Any]:
    """Return the record of a lock file; empty if there is none, or it is damaged."""
    try:
        record = msgspec.json.decode(os.pread(fd, _NOTE_BYTES, 0).partition(b"\n")[0])
    except msgspec.DecodeError:
        return {}
    return record if isinstance(record, dict) else {}


def _read_holder(fd: int) -> tuple[str, int, str]:
    try:
        record = _read_record(fd)
        return str(record["host"]), int(record["pid"]), str(record["since"])
    except (KeyError, TypeError, ValueError):
        return "an unknown host", 0, "just now"  # locked, but not yet signed


def _read_note(fd: int) -> dict[str, Any]:
    note = _read_record(fd).get("note")
    return note if isinstance(note, dict) else {}


# --- lease of a state in an object store: an object that names its holder and is renewed by it ---
#
# A store has no lock that ends with its process, so the next driver has to judge whether the holder is alive. A holder
# on this machine whose process has ended is dead. Any other counts as dead if the lease was not renewed for
# ``EXPIRES_S`` seconds of the observer's own clock; clocks of two machines are never compared. The lease only warns
# whoever starts a second driver: what keeps a replaced driver from committing is the epoch.

_POLL_S: Final = 2.0


class LeaseHolder(msgspec.Struct, frozen=True):
    """Content of a lease.

    Attributes:
        token: identifies one call of ``take``; "" if nobody holds the lease.
        machine: identifies the machine and container.
        start: when the process started, by the machine's own count, because process ids are reused.
        counter: number of renewals.
        note: what the holder is doing, see ``Lock.note``.
    """

    token: str
    host: str
    machine: str
    pid: int
    start: str
    since: str
    counter: int = 0
    note: dict[str, Any] = {}

    @property
    def is_gone(self) -> bool:
        """Return whether its process has certainly ended; False if that cannot be determined from this machine."""
        return Process(self.machine, self.pid, self.start).is_gone


class ObjectLease:
    """Lease held from ``take`` until ``release``, as long as it is renewed."""

    def __init__(self, path: ObjectPath, holder: LeaseHolder, tag: str) -> None:
        self._path = path
        self._holder = holder
        self._note = holder.note
        self._tag: str | None = tag
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="ferryman-lease", daemon=True)
        self._renewing.start()

    @classmethod
    def take(cls, path: ObjectPath, *, take_over: bool = False) -> Self:
        """Take the lease. If a process that cannot be checked from this machine holds it, wait until the lease is
        renewed or expires.

        Args:
            take_over: take it at once, whoever holds it.

        Raises:
            StateHeld: another process holds it; names it.
        """
        this = Process.current()
        own = LeaseHolder(uuid.uuid4().hex, socket.gethostname(), this.machine, this.pid, this.start, _now())
        last_seen: tuple[str, float] | None = None
        while True:
            found = path.store.get_tagged(path.key)
            if found is None:
                if (tag := path.store.create(path.key, msgspec.json.encode(own))) is not None:
                    return cls(path, own, tag)
                continue
            holder, tag = _decode_holder(found[0]), found[1]
            own = msgspec.structs.replace(own, note=holder.note if holder is not None else {})
            if last_seen is None or last_seen[0] != tag:
                if last_seen is not None and holder is not None and not holder.is_gone and holder.token:
                    raise _held_error(path, holder)  # it was renewed, or taken, while we watched
                last_seen = tag, time.monotonic()
            expired = time.monotonic() - last_seen[1] >= EXPIRES_S
            if holder is None or not holder.token or holder.is_gone or expired or take_over:
                if (new_tag := path.store.put(path.key, msgspec.json.encode(own), tag)) is not None:
                    return cls(path, own, new_tag)
            elif holder.machine == own.machine:
                raise _held_error(path, holder)
            else:
                time.sleep(_POLL_S)

    def note(self, what: Mapping[str, Any]) -> None:
        """Record what this process is doing, for ``find_holder``: with the next renewal."""
        self._note = dict(what)

    def release(self) -> None:
        """Release the lease."""
        if not self._ended.is_set():
            self._ended.set()
            self._renewing.join()
            self._write(msgspec.structs.replace(self._holder, token="", note=self._note))

    def _renew(self) -> None:
        while not self._ended.wait(HEARTBEAT_S) and self._tag is not None:
            self._renew_now()

    def _renew_now(self) -> None:
        self._holder = msgspec.structs.replace(self._holder, counter=self._holder.counter + 1, note=self._note)
        self._write(self._holder)

    def _write(self, holder: LeaseHolder) -> None:
        """Write the lease unless another process has taken it; the epoch stops this driver then."""
        if self._tag is None:
            return
        try:
            self._tag = self._path.store.put(self._path.key, msgspec.json.encode(holder), self._tag)
        except EngineError:
            return  # the store is unavailable: the next renewal tries again


def _held_error(path: ObjectPath, holder: LeaseHolder) -> StateHeld:
    return StateHeld(str(path.parent), holder.host, holder.pid, holder.since)


def _find_lease_holder(path: ObjectPath) -> Holder | None:
    """Return who holds a lease, or held it last. The store's clock decides whether it is renewed: it is compared with
    this machine's, so a clock that is wrong by a minute shows the wrong answer, and nothing else relies on it."""
    found = path.store.get_tagged(path.key)
    holder = None if found is None else _decode_holder(found[0])
    stored = path.store.head(path.key)
    if holder is None or stored is None:
        return None
    is_renewed = time.time() - stored.changed < EXPIRES_S
    is_active = bool(holder.token) and not holder.is_gone and is_renewed
    return Holder(holder.host, holder.pid, holder.since, is_active, holder.note)


def _decode_holder(data: bytes) -> LeaseHolder | None:
    try:
        return msgspec.json.decode(data, type=LeaseHolder)
    except msgspec.DecodeError:
        return None


def _now() -> str:
    return dt.datetime.now().astimezone().isoformat(timespec="seconds")
