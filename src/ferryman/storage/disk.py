"""Files of a disk, durably: what ``storage.files`` does with them, and what only they need."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ferryman.errors import UsageError

TEMPORARY: Final = ".tmp-"

_UNSUPPORTED: Final = (errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.ENOLCK, errno.EMLINK)
"""What file systems say of what they do not have."""


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


def probe(folder: Path) -> None:
    """Has the file system of a folder all that a state needs? Leaves nothing behind.

    Raises:
        UsageError: it has not; names what is missing.
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
    """A file system that cannot do what is done inside is named.

    Raises:
        UsageError: it cannot.
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
    """Of a file that is to become this one."""
    return path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")


@contextlib.contextmanager
def discard_if_left(temporary: Path) -> Iterator[None]:
    """The file is gone afterwards, unless it was given another name."""
    try:
        yield
    finally:
        temporary.unlink(missing_ok=True)


# Scratch folders in the system's temporary folder. What a killed process has left there, the next one removes.
#
# All of a process are in one folder, which it holds by a lock that ends with it: other processes, also those of other
# containers that share the temporary folder, see by that lock whether it lives.

PREFIX: Final = "ferryman-log-"

_process_folders: dict[int, Path] = {}
"""Process -> its folder; one that was forked makes its own."""


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """An empty folder, removed when it is closed or forgotten, and at the latest some time after this process has
    ended."""
    return tempfile.TemporaryDirectory(dir=_process_folder(), ignore_cleanup_errors=True)


def _process_folder() -> Path:
    pid = os.getpid()
    if pid not in _process_folders:
        _remove_abandoned_folders()
        while (held := _lock_folder(Path(tempfile.mkdtemp(prefix=PREFIX)))) is None:
            pass  # another process took it for one that was left: it had no lock yet
        _process_folders[pid] = held
        atexit.register(_remove_own_folder, pid)
    return _process_folders[pid]


def _lock_folder(folder: Path) -> Path | None:
    """The folder, from now on held by this process; None: it is not there any more."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # that process is about to remove it
        os.close(lock)
        return None
    return folder if folder.exists() else None


def _remove_abandoned_folders() -> None:
    """Folders of processes of this user that have ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            finally:
                os.close(lock)


def _remove_own_folder(pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(_process_folders[pid], ignore_errors=True)
