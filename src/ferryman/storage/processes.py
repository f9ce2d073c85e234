"""Identity of the process that started some work, and whether it is still working, as far as this machine can tell.

A process on this machine is known to be running or to have ended. Any other process, or one that is stopped, is judged
by its heartbeat: it renews a file, and an observer checks by its own clock whether the file changes.
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
"""Seconds between two heartbeats."""
EXPIRES_S: Final = 60.0
"""Seconds without a heartbeat after which a process counts as dead: six heartbeats were missed."""


class Process(msgspec.Struct, frozen=True):
    """A process, identified across machines.

    Attributes:
        machine: identifies the machine and container.
        start: when it started, by the machine's own count, because process ids are reused.
    """

    machine: str
    pid: int
    start: str

    @classmethod
    def current(cls) -> Self:
        """Return the calling process."""
        return cls(machine_id(), os.getpid(), start_time_of(os.getpid()))

    @property
    def is_gone(self) -> bool:
        """Return whether the process has certainly ended; False if that cannot be determined from this machine."""
        return self.machine == machine_id() and start_time_of(self.pid) != self.start


def machine_id() -> str:
    """Return an id of this machine until its next boot, and of this container, since process ids mean other processes
    elsewhere."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def start_time_of(pid: int) -> str:
    """Return when a process of this machine started; "" if it does not exist, or has ended and was not reaped yet."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    except (FileNotFoundError, ProcessLookupError, IndexError, ValueError):
        return ""


@contextlib.contextmanager
def heartbeat(path: StatePath, while_exists: StatePath) -> Iterator[None]:
    """Renew a file every ``HEARTBEAT_S`` seconds during this block, as long as the other file exists. Shorter work
    leaves no file."""
    ended = threading.Event()

    def renew() -> None:
        renewed = 0
        while not ended.wait(HEARTBEAT_S):
            renewed += 1
            with contextlib.suppress(OSError, EngineError):  # the next one may succeed
                if not files.exists(while_exists):
                    return
                files.replace(path, str(renewed).encode())

    renewing = threading.Thread(target=renew, name="ferryman-alive", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()


class ProcessWatch:
    """Watches whether a process is still working.

    Args:
        path: file of its heartbeat.
    """

    def __init__(self, process: Process, path: StatePath) -> None:
        self._process = process
        self._path = path
        self._seen: tuple[bytes, str] | None = None
        self._since = time.monotonic()

    def is_alive(self) -> bool:
        """Return whether the process is still working. The calling process itself is not."""
        if self._process.is_gone or self._process == Process.current():
            return False
        if (found := files.read_version(self._path)) != self._seen:
            self._seen, self._since = found, time.monotonic()
        return time.monotonic() - self._since < EXPIRES_S
