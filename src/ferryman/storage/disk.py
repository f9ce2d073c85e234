"""Durable writes on a local disk, and checks of the file system."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ferryman.errors import UsageError

TEMPORARY: Final = ".tmp-"

_UNSUPPORTED: Final = (errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.ENOLCK, errno.EMLINK)
"""Error codes by which file systems report a missing feature."""


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


def sync_folder(folder: Path | str) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read and write, from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as out:
        out.write(text)


def fsync_tree(folder: Path) -> None:
    """Make all files in a folder and below durable, with their names. Where the system can do it in one call, 50 000
    files take a second instead of minutes."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _syncfs is None:
            os.sync()
        elif _syncfs(fd):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(fd)


_syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
"""Linux's call that writes all pending data of one file system."""


def probe(folder: Path) -> None:
    """Check that the file system of a folder has all features that a state needs; no file remains.

    Raises:
        UsageError: it has not; names the missing feature.
    """
    one, two = temporary_name(folder / "probe"), temporary_name(folder / "probe")
    with discard_if_left(one), discard_if_left(two):
        one.touch()
        with requires(folder, "hard links"):
            os.link(one, two)
        with requires(folder, "a sync of folders"):
            sync_folder(folder)
        with requires(folder, "locks (flock)"), one.open("rb") as first, one.open("rb") as second:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            raise OSError(errno.ENOLCK, "two processes may have the same lock")


@contextlib.contextmanager
def requires(folder: Path, what: str) -> Iterator[None]:
    """Turn the error of an unsupported feature inside the block into one that names the feature.

    Raises:
        UsageError: the file system does not support it.
    """
    try:
        yield
    except OSError as e:
        if e.errno not in _UNSUPPORTED:
            raise
        raise UsageError(
            f"{folder}: this file system has no {what} ({e.strerror}). A state needs hard links, locks (flock) and a "
            "sync of folders: give a --state on another one, a local disk for example. Nothing was sent."
        ) from e


def temporary_name(path: Path) -> Path:
    """Return a temporary name beside the file that it will become."""
    return path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")


@contextlib.contextmanager
def discard_if_left(temporary: Path) -> Iterator[None]:
    """Remove the temporary file at the end, unless it was renamed."""
    try:
        yield
    finally:
        temporary.unlink(missing_ok=True)
