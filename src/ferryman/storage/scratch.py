"""Scratch folders in the system's temporary folder. What a killed process has left there, the next one removes.

All of a process are in one folder, which it holds by a lock that ends with it: other processes, also those of other
containers that share the temporary folder, see by that lock whether it lives.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

PREFIX: Final = "ferryman-log-"

_of_process: dict[int, Path] = {}
"""Process -> its folder; one that was forked makes its own."""


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """An empty folder, removed when it is closed or forgotten, and at the latest some time after this process has
    ended."""
    return tempfile.TemporaryDirectory(dir=_folder(), ignore_cleanup_errors=True)


def _folder() -> Path:
    pid = os.getpid()
    if pid not in _of_process:
        _remove_left()
        while (held := _held(Path(tempfile.mkdtemp(prefix=PREFIX)))) is None:
            pass  # another process took it for one that was left: it had no lock yet
        _of_process[pid] = held
        atexit.register(_end, pid)
    return _of_process[pid]


def _held(folder: Path) -> Path | None:
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


def _remove_left() -> None:
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


def _end(pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(_of_process[pid], ignore_errors=True)
