"""Which process has begun something, and does it still work on it, as far as that can be told from here?

A process of this machine is gone or it is not. Of any other, and of one that was stopped, only signs of life tell: it
renews a file, and who waits for it sees whether the file changes, by his own clock.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import msgspec

from ferryman.errors import EngineError
from ferryman.storage import files
from ferryman.storage.files import StatePath

HEARTBEAT_S: Final = 10.0
"""How often a sign of life is given."""
EXPIRES_S: Final = 60.0
"""Who gives none for so long is gone, or as good as gone: six were missed."""


class Process(msgspec.Struct, frozen=True):
    """A process, by what no other has.

    Attributes:
        machine: what no other machine, and no other container, has.
        start: when it started, as the machine counts it: process numbers are used again.
    """

    machine: str
    pid: int
    start: str

    @classmethod
    def current(cls) -> Self:
        """The one that asks."""
        return cls(machine_id(), os.getpid(), start_time_of(os.getpid()))

    @property
    def is_gone(self) -> bool:
        """Is it gone for certain? False also where that cannot be seen from here."""
        return self.machine == machine_id() and start_time_of(self.pid) != self.start


def machine_id() -> str:
    """This machine until it is started again, and this container: elsewhere process numbers mean other processes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def start_time_of(pid: int) -> str:
    """When a process of this machine started; "": there is none, or it has ended and its parent has not looked yet."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    except (FileNotFoundError, ProcessLookupError, IndexError, ValueError):
        return ""


@contextlib.contextmanager
def heartbeat(path: StatePath, while_there: StatePath) -> Iterator[None]:
    """Renew a file every ``RENEWED_S`` while this block runs, and another file is there. Work that is shorter leaves
    none."""
    ended = threading.Event()

    def renew() -> None:
        renewed = 0
        while not ended.wait(HEARTBEAT_S):
            renewed += 1
            with contextlib.suppress(OSError, EngineError):  # the next one may come through
                if not files.exists(while_there):
                    return
                files.replace(path, str(renewed).encode())

    renewing = threading.Thread(target=renew, name="ferryman-alive", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()


class ProcessWatch:
    """Watches a process that has begun something.

    Args:
        path: of its signs of life.
    """

    def __init__(self, process: Process, path: StatePath) -> None:
        self._process = process
        self._path = path
        self._seen: tuple[bytes, str] | None = None
        self._since = time.monotonic()

    def is_alive(self) -> bool:
        """Does it work on it still? Not if it is this very process, which has come to ask."""
        if self._process.is_gone or self._process == Process.current():
            return False
        if (found := files.read_version(self._path)) != self._seen:
            self._seen, self._since = found, time.monotonic()
        return time.monotonic() - self._since < EXPIRES_S
