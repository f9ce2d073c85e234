"""A store in one SQLite file: many processes of one machine, no server.

A process that holds locks keeps a *session*, a row with a lease that a thread renews. A session whose lease has run out
is dead: from that moment nobody sees its nodes, and the next commit of anybody removes them. Leases are counted by the
machine's own clock since it was started, which no setting of the time changes, and end with it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final
from weakref import WeakSet, ref

from ferryman.errors import FerrymanError
from ferryman.intake.errors import QueueLost, QueueRefused
from ferryman.intake.nodes import name_of, parent_of
from ferryman.intake.store.base import Check, Conflict, Create, Delete, Op, SessionLost, Set, StoredNode, Why

REAP_S: Final = 1.0
"""How often a handle looks for dead sessions, unless one is in its way: their nodes are seen by nobody anyhow."""

_NODE = "data, version, children, numbered, owner, creation, created, modified"
_LIVES = "EXISTS (SELECT 1 FROM session WHERE id = owner AND boot = ? AND expires > ?)"


class SqliteStore:
    """A tree in the table ``node`` of a file."""

    def __init__(
        self,
        path: Path,
        *,
        session_timeout_s: float = 10.0,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = f"sqlite:///{path}"
        self.path = path
        self._clock, self._monotonic = clock, monotonic
        self._boot = boot_id()
        self._using = threading.RLock()
        self._connection = connected(path)
        self._lease = Lease(path, session_timeout_s, monotonic)
        self._reap_at = 0.0
        self._watches = Watches(self._asked)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def session(self) -> int:
        return self._lease.session()

    def alive(self, session: int) -> bool:
        return self._lease.alive(session)

    def close(self) -> None:
        session = self._lease.end()
        with self._using:
            if session:
                with self._changing():
                    self._end(session)
            self._connection.close()

    # --- changes ------------------------------------------------------------------------------------------------------

    def commit(
        self, ops: Sequence[Op], *, session: int | None = None, look: Sequence[str] = ()
    ) -> list[StoredNode | None]:
        now = self._monotonic()
        if now >= self._reap_at:
            self._reap_dead()
        try:
            return self._commit(ops, session, look)
        except Conflict:
            if not self._reap_dead():
                raise
            return self._commit(ops, session, look)  # what was in the way was a dead session's

    def _commit(self, ops: Sequence[Op], session: int | None, look: Sequence[str]) -> list[StoredNode | None]:
        with self._changing():
            if session is not None and not self._lives(session):
                self._lease.lost(session)
                raise SessionLost(f"{self.url}: the session has ended")
            for index, op in enumerate(ops):
                self._do(index, op, session or 0)
            # Who watches looks when this is committed: until then nobody reads.
            changed = [op.path for op in ops if isinstance(op, Create | Delete)]
            self._watches.tell([*changed, *map(parent_of, changed)])
            return [self._seen(path) for path in look]

    def _do(self, index: int, op: Op, session: int) -> None:
        run = self._connection.execute
        parent, name = parent_of(op.path), name_of(op.path)
        if isinstance(op, Create):
            self._create(index, op, session)
        elif isinstance(op, Delete):
            gone = run("DELETE FROM node WHERE parent = ? AND name = ? AND children = 0", (parent, name))
            if not gone.rowcount:
                raise Conflict(index, op.path, Why.NOT_EMPTY if self._at(op.path) else Why.MISSING)
            self._counted(parent, -1, 0)
        elif isinstance(op, Set):
            version = "" if op.version is None else f" AND version = {int(op.version)}"
            done = run(
                "UPDATE node SET data = ?, version = version + 1, modified = ? WHERE parent = ? AND name = ?" + version,
                (op.data, self._clock(), parent, name),
            )
            if not done.rowcount:
                raise Conflict(index, op.path, Why.CHANGED if self._at(op.path) else Why.MISSING)
        else:
            assert isinstance(op, Check)
            found = self._at(op.path)
            if found is None:
                raise Conflict(index, op.path, Why.MISSING)
            if op.version not in (None, found.version) or op.creation not in (None, found.creation):
                raise Conflict(index, op.path, Why.CHANGED)

    def _create(self, index: int, op: Create, session: int) -> None:
        parent, name = parent_of(op.path), name_of(op.path)
        if op.numbered:
            found = self._at(parent)
            if found is not None and not name.endswith(f"{found.numbered:010d}"):
                raise Conflict(index, op.path, Why.CHANGED)
        if not self._counted(parent, 1, 1):
            raise Conflict(index, op.path, Why.MISSING)
        now, owner = self._clock(), session if op.ephemeral else 0
        try:
            self._connection.execute(
                "INSERT INTO node (parent, name, data, owner, created, modified, creation) SELECT ?, ?, ?, ?, ?, ?,"
                " numbered FROM node WHERE parent = ? AND name = ?",  # which its parent gives once
                (parent, name, op.data, owner, now, now, parent_of(parent), name_of(parent)),
            )
        except sqlite3.IntegrityError:
            raise Conflict(index, op.path, Why.EXISTS) from None

    def _counted(self, path: str, children: int, numbered: int) -> bool:
        """Note a node's child that came or went. Is there such a node, that may have children?"""
        done = self._connection.execute(
            "UPDATE node SET children = children + ?, numbered = numbered + ?"
            " WHERE parent = ? AND name = ? AND owner = 0",
            (children, numbered, parent_of(path), name_of(path)),
        )
        return bool(done.rowcount)

    def _lives(self, session: int) -> bool:
        asked = "SELECT 1 FROM session WHERE id = ? AND boot = ? AND expires > ?"
        return self._connection.execute(asked, (session, self._boot, self._monotonic())).fetchone() is not None

    def _reap_dead(self) -> bool:
        """Remove dead sessions, and what lived with them. Were there any?"""
        now = self._monotonic()
        self._reap_at = now + REAP_S
        asked = "SELECT id FROM session WHERE boot != ? OR expires <= ?"
        with self._using, told(self.path):
            if self._connection.execute(asked, (self._boot, now)).fetchone() is None:
                return False
        with self._changing():
            dead = self._connection.execute(asked, (self._boot, now)).fetchall()
            for (session,) in dead:
                self._end(session)
        return bool(dead)

    def _end(self, session: int) -> None:
        run = self._connection.execute
        for parent, name in run("SELECT parent, name FROM node WHERE owner = ?", (session,)).fetchall():
            run("DELETE FROM node WHERE parent = ? AND name = ?", (parent, name))
            self._counted(parent, -1, 0)
        run("DELETE FROM session WHERE id = ?", (session,))

    def advance(self, path: str, number: int) -> None:
        with self._changing():
            done = self._connection.execute(
                "UPDATE node SET numbered = max(numbered, ?) WHERE parent = ? AND name = ?",
                (number, parent_of(path), name_of(path)),
            )
            if not done.rowcount:
                raise Conflict(0, path, Why.MISSING)

    def _changing(self) -> _Transaction:
        """One transaction that no other process's comes between."""
        return _Transaction(self.path, self._connection, self._using, "BEGIN IMMEDIATE")

    # --- reading ------------------------------------------------------------------------------------------------------

    def _at(self, path: str) -> StoredNode | None:
        asked = f"SELECT {_NODE} FROM node WHERE parent = ? AND name = ?"
        row = self._connection.execute(asked, (parent_of(path), name_of(path))).fetchone()
        return StoredNode(*row) if row else None

    def read(self, paths: Sequence[str]) -> list[StoredNode | None]:
        if len(paths) == 1:  # one statement is one look
            with self._using, told(self.path):
                return [self._seen(paths[0])]
        with self._reading():
            return [self._seen(path) for path in paths]

    def _seen(self, path: str) -> StoredNode | None:
        """The node, unless its session is dead."""
        found = self._at(path)
        return None if found and found.owner and not self._lives(found.owner) else found

    def children(self, path: str, prefix: str = "") -> list[str]:
        asked = f"SELECT name FROM node WHERE parent = ? AND name >= ? AND (owner = 0 OR {_LIVES})"
        values: tuple[object, ...] = (path, prefix, self._boot, self._monotonic())
        if prefix:  # no name has this character
            asked, values = f"{asked} AND name < ?", (*values, f"{prefix}\U0010ffff")
        with self._using, told(self.path):
            return [name for (name,) in self._connection.execute(f"{asked} ORDER BY name", values)]

    def free(self, folder: str, items: str) -> Iterator[str]:
        """One search along the index: what is held is stepped over, what comes after the first free one not read."""
        asked = f"""SELECT name FROM node AS entry WHERE parent = ? AND name > ? AND NOT EXISTS (
            SELECT 1 FROM node WHERE parent = ? || substr(entry.name, instr(entry.name, '-') + 1)
            AND name = 'lock' AND (owner = 0 OR {_LIVES})) ORDER BY name LIMIT 1"""
        after = ""
        while True:
            with self._using, told(self.path):
                values = (folder, after, f"{items}/", self._boot, self._monotonic())
                found = self._connection.execute(asked, values).fetchone()
            if found is None:
                return
            (after,) = found
            yield after

    def walk(self, path: str) -> Iterator[tuple[str, StoredNode]]:
        """All of it as it was at one instant."""
        asked = (
            f"SELECT parent, name, {_NODE} FROM node WHERE (owner = 0 OR {_LIVES})"
            " AND (? = '/' OR parent = ? OR (parent >= ? AND parent < ?) OR (parent = ? AND name = ?))"
        )
        at = (path, path, f"{path}/", f"{path}0", parent_of(path), name_of(path))
        with self._reading():
            rows = self._connection.execute(asked, (self._boot, self._monotonic(), *at)).fetchall()
        found = [
            ((parent.rstrip("/") + "/" + name) if name else "/", StoredNode(*node)) for parent, name, *node in rows
        ]
        yield from sorted(found, key=lambda one: one[0].split("/"))

    def watch(self, path: str) -> SqliteWatch:
        return SqliteWatch(self._watches, path, partial(self._children_of, path))

    def _asked(self) -> int:
        """Another value after a change of other processes."""
        with self._using, told(self.path):
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _children_of(self, path: str) -> State:
        (node,) = self.read([path])
        return (node.children, node.numbered) if node else None

    def _reading(self) -> _Transaction:
        """One look: whatever is read within was so at one instant."""
        return _Transaction(self.path, self._connection, self._using, "BEGIN")


class _Transaction:
    """All or nothing, by one thread at a time. Within another one it is a part of that."""

    __slots__ = ("_begin", "_connection", "_inner", "_path", "_using")

    def __init__(self, path: Path, connection: sqlite3.Connection, using: threading.RLock, begin: str) -> None:
        self._path, self._connection, self._using, self._begin = path, connection, using, begin
        self._inner = False

    def __enter__(self) -> None:
        self._using.acquire()
        try:
            self._inner = self._connection.in_transaction
            if not self._inner:
                self._connection.execute(self._begin)
        except BaseException as e:
            self._using.release()
            if isinstance(e, sqlite3.Error):
                raise plain(self._path, e) from e
            raise

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, _: object) -> None:
        try:
            if not self._inner:
                self._connection.execute("COMMIT" if kind is None else "ROLLBACK")
        except sqlite3.Error as e:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise plain(self._path, e) from e
        finally:
            self._using.release()
        if isinstance(raised, sqlite3.Error):
            raise plain(self._path, raised) from raised


# A session's lease in a SQLite queue, and the thread that renews it.

RENEWALS: Final = 3
"""Renewals in the time that a lease lasts: one that comes late, or fails, loses nothing."""

RENEWAL_BUSY_S: Final = 5.0
"""How long a renewal waits for other processes' changes."""


def boot_id() -> str:
    """Return an id of this start of the machine; "" where there is none."""
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
        """Return whether the session is ours and its lease has not run out."""
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
        self._connection = sqlite3.connect(self._path, timeout=RENEWAL_BUSY_S, isolation_level=None)
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._connection.execute("COMMIT" if kind is None else "ROLLBACK")
        finally:
            self._connection.close()


# The file of a queue in SQLite: what makes it one, and its errors as ours.

MARK: Final = 0x46725179
"""SQLite's application id of our files ("FrQy"): another database is not taken for a queue."""

FORMAT: Final = 2
"""Format of the tables. Another one is refused."""

BUSY_S: Final = 30.0
"""How long a change waits for other processes' changes, which take a millisecond each."""

CHECKPOINT_PAGES: Final = 8192
"""The log is folded into the file at 32 MiB: pages that change all the time are written once, not a thousand times."""

TABLES: Final = """
CREATE TABLE node (
  parent TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL DEFAULT 0,
  children INTEGER NOT NULL DEFAULT 0, numbered INTEGER NOT NULL DEFAULT 0, owner INTEGER NOT NULL DEFAULT 0,
  creation INTEGER NOT NULL DEFAULT 0, created REAL NOT NULL, modified REAL NOT NULL,
  PRIMARY KEY (parent, name)) WITHOUT ROWID;
CREATE INDEX node_owner ON node (owner) WHERE owner != 0;
CREATE TABLE session (id INTEGER PRIMARY KEY AUTOINCREMENT, boot TEXT NOT NULL, expires REAL NOT NULL);
"""

_MAKING: Final = threading.Lock()
"""Whoever closes a file gives up all locks that this process has on it, those of other connections too (POSIX). SQLite
knows that of its own files. So a database that is there is never opened here, and no thread connects to one while it
is made."""


def connected(path: Path) -> sqlite3.Connection:
    """A connection to a queue's file, made if it is not there.

    Raises:
        QueueRefused: it cannot be opened, or is something else.
    """
    with _MAKING, suppress(OSError):  # SQLite says what is wrong; its own other files get the mode of this one
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    with told(path):
        connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
            (mark,) = connection.execute("PRAGMA application_id").fetchone()
            if mark != MARK:
                _made(connection, path)
            _check_format(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def _made(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables in an empty file; several processes may try it at once."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if connection.execute("PRAGMA application_id").fetchone()[0] == MARK:
            return
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise QueueRefused(f"{path}: this is not a queue database. Name another file for the queue.")
        for statement in TABLES.split(";")[:-1]:
            connection.execute(statement)
        connection.execute("INSERT INTO node (parent, name, data, created, modified) VALUES ('', '', x'', 0, 0)")
        connection.execute(f"PRAGMA application_id={MARK}")
        connection.execute(f"PRAGMA user_version={FORMAT}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse tables of another format."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > FORMAT:
        raise QueueRefused(f"{path}: this queue was made by a newer Ferryman (format {found}). Use that one.")
    if found < FORMAT:
        raise QueueRefused(
            f"{path}: this queue was made by an older Ferryman (format {found}). Dump it with that one, and load the "
            "dump into a new file."
        )


@contextmanager
def told(path: Path) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.Error as e:
        raise plain(path, e) from e


def plain(path: Path, error: sqlite3.Error) -> Exception:
    """An error of SQLite's as ours: about this file, and what to do."""
    text = str(error)
    if isinstance(error, sqlite3.OperationalError):
        if "locked" in text or "busy" in text:
            return QueueLost(f"{path}: other processes have been changing this queue for {BUSY_S:g} s. Try again.")
        if "unable to open" in text or "readonly" in text:
            return QueueRefused(f"{path}: {text}. Name a file in a folder that exists and may be written to.")
        return QueueLost(f"{path}: {text}. Fix this, and run the same command again: nothing was half done.")
    if isinstance(error, sqlite3.ProgrammingError):
        return QueueLost(f"{path}: this queue was closed.")
    return QueueRefused(f"{path}: {text}. If it was a queue, restore it from a dump.")


# Watches of a store in SQLite: one thread a handle asks whether other processes have changed the file.

POLL_S: Final = 0.1
"""How often it asks while there are watches: this costs microseconds."""

State = tuple[int, int] | None
"""Children of a node: how many there are, and how many there ever were; None if there is no node."""


class Watches:
    """All watches of a handle.

    Args:
        asked: another value after other processes have changed the file. It may raise: then all watches look.
    """

    def __init__(self, asked: Callable[[], int]) -> None:
        self._asked = asked
        self._lock = threading.Lock()
        self._all: WeakSet[SqliteWatch] = WeakSet()
        self._thread: threading.Thread | None = None

    def add(self, watch: SqliteWatch) -> None:
        before = self._asked()  # without the lock: who commits has the file's, and wants this one
        with self._lock:
            self._all.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=_poll, args=(ref(self), before), name="queue watch", daemon=True)
                self._thread.start()

    def remove(self, watch: SqliteWatch) -> None:
        with self._lock:
            self._all.discard(watch)

    def tell(self, paths: Iterable[str]) -> None:
        """This handle changes the children of these nodes, or makes or removes them."""
        if self._all:
            named = set(paths)
            self._set(lambda watch: watch.path in named)

    def _set(self, chosen: Callable[[SqliteWatch], bool]) -> None:
        with self._lock:
            watches = [watch for watch in self._all if chosen(watch)]
        for watch in watches:
            watch.event.set()

    def look(self, seen: int) -> int | None:
        """Ask once. Returns the value now; None when nobody watches any more: the thread ends."""
        with self._lock:
            if not self._all:
                self._thread = None
                return None
        try:
            now = self._asked()
        except FerrymanError:  # whoever waits meets it too
            now = -1
        if now != seen:
            self._set(lambda watch: True)
        return now


def _poll(watches: ref[Watches], seen: int) -> None:
    """The thread, which does not keep a handle that nobody else keeps."""
    while True:
        time.sleep(POLL_S)
        there = watches()
        now = there.look(seen) if there is not None else None
        if now is None:
            return
        seen = now


class SqliteWatch:
    """Waits for a change of a node's children. ``state``: reads the node."""

    def __init__(self, watches: Watches, path: str, state: Callable[[], State]) -> None:
        self._watches, self.path, self._state = watches, path, state
        self.event = threading.Event()
        """Something may have changed, or it is closed."""
        self._closed = False
        watches.add(self)
        self._before = state()

    def wait(self, timeout_s: float) -> bool:
        give_up = time.monotonic() + timeout_s
        while self.event.wait(max(0.0, give_up - time.monotonic())):
            self.event.clear()
            if self._closed:
                return False
            if self._state() != self._before:
                self.event.set()  # and stays so
                return True
        return False

    def close(self) -> None:
        self._closed = True
        self._watches.remove(self)
        self.event.set()
