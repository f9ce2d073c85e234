"""Durable files on a local disk: what returns from here survives a power cut."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import uuid
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from ferryman.errors import StateDamaged, UsageError

TEMPORARY = ".tmp-"

_UNSUPPORTED: Final = (errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.ENOLCK, errno.EMLINK)
"""What file systems say of what they do not have."""


def fsync_folder(folder: Path | str) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_file(path: Path | str) -> None:
    """Make a file's content durable, whoever wrote it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_tree(folder: Path) -> None:
    """Make all files in a folder and below durable, with their names: in one go where the system can, which of 50 000
    files takes a second and not minutes."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _syncfs is None:
            os.sync()
        elif _syncfs(fd):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(fd)


_syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
"""Linux's call for all that is not written yet of one file system."""


def write_synced(path: Path, data: bytes | memoryview) -> None:
    """Write a new file and fsync it; its name is durable only after ``fsync_folder``."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: Path, data: bytes) -> None:
    """Set a file's content, all or nothing, durably."""
    temporary = _temporary(path)
    with _discarding(temporary):
        write_synced(temporary, data)
        os.replace(temporary, path)
    fsync_folder(path.parent)


def publish(path: Path, data: bytes) -> bool:
    """Make a file whole and once for all: False if it is there already (its content is not looked at). Durable."""
    temporary = _temporary(path)
    with _discarding(temporary):
        write_synced(temporary, data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
    fsync_folder(path.parent)
    return True


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read and write, from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as out:
        out.write(text)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and its parents, durably. ``mode``: of those that are made, less the umask."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(mode, exist_ok=True)
        with _needed(each.parent, "a sync of folders"):
            fsync_folder(each.parent)


def probe(folder: Path) -> None:
    """Has the file system of a folder all that a state needs? Leaves nothing behind.

    Raises:
        UsageError: it has not; names what is missing.
    """
    one, two = _temporary(folder / "probe"), _temporary(folder / "probe")
    with _discarding(one), _discarding(two):
        one.touch()
        with _needed(folder, "hard links"):
            os.link(one, two)
        with _needed(folder, "a sync of folders"):
            fsync_folder(folder)
        with _needed(folder, "locks (flock)"), one.open("rb") as first, one.open("rb") as second:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            raise OSError(errno.ENOLCK, "two processes may have the same lock")


@contextlib.contextmanager
def _needed(folder: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        if e.errno not in _UNSUPPORTED:
            raise
        raise UsageError(
            f"{folder}: this file system has no {what} ({e.strerror}). A state needs hard links, locks (flock) and a "
            "sync of folders: give a --state on another one, a local disk for example. Nothing was sent."
        ) from e


def remove_temporary(folder: Path, before: float) -> None:
    """Remove the half-written files that a crash left in a folder: those that nobody has changed since ``before`` (a
    time of the file system, seconds since 1970). A younger one may be somebody's who is at work."""
    for name in os.listdir(folder):
        path = folder / name
        if name.startswith(TEMPORARY) and changed_before(path, before):
            path.unlink(missing_ok=True)


def stamp(path: Path) -> tuple[int, int, int] | None:
    """What tells a file from another one of its name; None: there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def changed_before(path: Path, when: float) -> bool:
    """Was a file that is there changed last before this time of the file system (seconds since 1970)?"""
    try:
        return path.stat().st_mtime < when
    except FileNotFoundError:
        return False


def checksum(data: bytes) -> str:
    """What a mark says of a file of the log."""
    return blake2b(data, digest_size=16).hexdigest()


def sealed(record: object) -> bytes:
    """A record as JSON behind its CRC-32, so that ``unseal`` knows it whole."""
    body = msgspec.json.encode(record)
    return b"%08x " % zlib.crc32(body) + body


def unseal(path: Path) -> object:
    """The record in a sealed file.

    Raises:
        StateDamaged: the file is missing, or not what was written.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise StateDamaged(str(path), "the file is missing") from None
    body = data[9:]
    if data[:9] != b"%08x " % zlib.crc32(body):
        raise StateDamaged(str(path), "its checksum does not match its content")
    return msgspec.json.decode(body)


def disk_full(error: BaseException) -> bool:
    """Is this what a full disk (or a used-up quota) makes of a write, also of one by Spark or delta-rs?"""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "No space left on device" in str(error)


def _temporary(path: Path) -> Path:
    return path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")


@contextlib.contextmanager
def _discarding(temporary: Path) -> Iterator[None]:
    try:
        yield
    finally:
        temporary.unlink(missing_ok=True)
