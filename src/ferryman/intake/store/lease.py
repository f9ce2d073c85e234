"""A session's lease in a SQLite queue, and the thread that renews it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

RENEWALS: Final = 3
"""Renewals in the time that a lease lasts: one that comes late, or fails, loses nothing."""

BUSY_S: Final = 5.0
"""How long a renewal waits for other processes' changes."""


def boot_id() -> str:
    """What tells one start of this machine from another; "" where nobody says."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


class Lease:
    """The one session of a handle: begun when it is first needed, renewed until ``end``."""

    def __init__(self, path: Path, timeout_s: float, monotonic: Callable[[], float]) -> None:
        self._path, self._timeout_s, self._monotonic = path, timeout_s, monotonic
        self._changing = threading.Lock()
        self._session = 0
        self._until = 0.0
        self._stop = threading.Event()

    def session(self) -> int:
        """The session's number; a new one if the last has ended."""
        with self._changing:
            if self._session and self._until > self._monotonic():
                return self._session
            self._stop.set()  # of the thread of a session that was lost
            self._stop = threading.Event()
            with self._connected() as connection:
                until = self._monotonic() + self._timeout_s
                made = connection.execute("INSERT INTO session (boot, expires) VALUES (?, ?)", (boot_id(), until))
                self._session, self._until = int(made.lastrowid or 0), until
            renewing = threading.Thread(
                target=self._renew, args=(self._session, self._stop), name="intake lease", daemon=True
            )
            renewing.start()
            return self._session

    def alive(self, session: int) -> bool:
        """Is it ours, and has its lease not run out?"""
        return session == self._session != 0 and self._until > self._monotonic()

    def lost(self, session: int) -> None:
        """The file says that it has ended."""
        with self._changing:
            if session == self._session:
                self._session, self._until = 0, 0.0
                self._stop.set()

    def end(self) -> int:
        """Stop renewing. Returns the session, for its row to be removed; 0 if there is none."""
        with self._changing:
            self._stop.set()
            session, self._session, self._until = self._session, 0, 0.0
            return session

    def _renew(self, session: int, stop: threading.Event) -> None:
        while not stop.wait(self._timeout_s / RENEWALS):
            try:
                with self._connected() as connection:
                    now = self._monotonic()
                    until = now + self._timeout_s
                    asked = "UPDATE session SET expires = ? WHERE id = ? AND expires > ?"
                    done = connection.execute(asked, (until, session, now))
            except sqlite3.Error:
                continue  # the next one, or the lease runs out
            if not done.rowcount:
                self.lost(session)
                return
            if session == self._session:
                self._until = until

    def _connected(self) -> _Connected:
        return _Connected(self._path)


class _Connected:
    """A connection of its own for a moment, in one transaction: the thread's work waits for nobody else's here."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> sqlite3.Connection:
        self._connection = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._connection.execute("COMMIT" if kind is None else "ROLLBACK")
        finally:
            self._connection.close()
