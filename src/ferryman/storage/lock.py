"""One driver a state: an OS lock that dies with its process, and who holds it, to tell the second one."""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import socket
from pathlib import Path
from typing import Self

import msgspec

from ferryman.errors import StateHeld


class Lock:
    """Held from ``take`` until ``release`` or the end of the process, however it ends."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    @classmethod
    def take(cls, path: Path) -> Self:
        """Take it now.

        Raises:
            StateHeld: another process has it; says which.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held = _holder(fd)
            os.close(fd)
            raise StateHeld(str(path.parent), *held) from None
        since = dt.datetime.now().astimezone().isoformat(timespec="seconds")
        os.ftruncate(fd, 0)
        os.pwrite(fd, msgspec.json.encode({"host": socket.gethostname(), "pid": os.getpid(), "since": since}), 0)
        return cls(path, fd)

    def release(self) -> None:
        """Give it up."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _holder(fd: int) -> tuple[str, int, str]:
    try:
        held = msgspec.json.decode(os.pread(fd, 4096, 0))
        return str(held["host"]), int(held["pid"]), str(held["since"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return "an unknown host", 0, "just now"  # taken, but not yet signed
