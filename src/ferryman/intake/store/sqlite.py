"""A store in a single SQLite file, for many processes of one machine, without a server.

A process that holds locks has a *session*: a row with a lease, which a thread renews. A session whose lease has expired
is dead: from that moment its nodes are invisible, and the next commit of any process removes them. Leases are measured
by the time since the machine's last boot, which is not affected when the clock is set, and end at the next boot.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final
from weakref import WeakSet, ref

from ferryman.errors import FerrymanError
from ferryman.intake.errors import QueueLost, QueueRefused
from ferryman.intake.nodes import name_of, parent_of
from ferryman.intake.store.base import (
    COMMITS_AT_ONCE,
    Check,
    Commit,
    CommitResult,
    Conflict,
    ConflictReason,
    Create,
    Delete,
    Op,
    SessionLost,
    Set,
    StoredNode,
)

ENTRIES_AT_ONCE: Final = 64
"""Entries of a state that one statement reads at most: the last one is still recent when the caller tries its lock."""

REAP_S: Final = 1.0
"""Seconds between two searches for dead sessions, unless one is in the way; their nodes are invisible anyway."""

_COLUMNS = "data, version, children, numbered, owner, creation, created, modified"
_OWNER_IS_ALIVE = "EXISTS (SELECT 1 FROM session WHERE id = owner AND boot = ? AND expires > ?)"


def _key(path: str) -> tuple[str, str]:
    """Return the columns ``parent`` and ``name`` of a node."""
    parent, _, name = path.rpartition("/")
    return parent or ("/" if name else ""), name


class _Counts:
    """Number of a node's children, and of those that it has ever had."""

    __slots__ = ("children", "numbered")

    def __init__(self, children: int, numbered: int) -> None:
        self.children, self.numbered = children, numbered


class SqliteStore:
    """A tree of nodes in the table ``node`` of an SQLite file."""

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
        self._lock = threading.RLock()
        self._connection = connect(path)
        self._lease = Lease(path, session_timeout_s, monotonic)
        self._next_reap = 0.0
        self._counts: dict[str, _Counts] = {}
        """Counters of nodes whose children the present transaction has changed, which are written once at its end."""
        self._watches = Watches(self._data_version)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def session(self) -> int:
        with translate_errors(self.path):
            return self._lease.session()

    def is_alive(self, session: int) -> bool:
        return self._lease.is_alive(session)

    def close(self) -> None:
        session = self._lease.end()
        with self._lock:
            if session:
                with self._write_transaction():
                    self._remove_session(session)
            self._connection.close()

    # --- changes ------------------------------------------------------------------------------------------------------

    def commit(
        self, ops: Sequence[Op], *, session: int | None = None, read_after: Sequence[str] = ()
    ) -> list[StoredNode | None]:
        (result,) = self.commit_all([Commit(ops, session, read_after)])
        if isinstance(result, list):
            return result
        raise result

    def commit_all(self, commits: Sequence[Commit]) -> list[CommitResult]:
        if self._monotonic() >= self._next_reap:
            self._reap_dead()
        results = self._commit_chunks(commits)
        if any(isinstance(each, Conflict) for each in results) and self._reap_dead():
            refused = [at for at, each in enumerate(results) if isinstance(each, Conflict)]
            for at, again in zip(refused, self._commit_chunks([commits[at] for at in refused]), strict=True):
                results[at] = again  # the conflict was with a dead session's node, perhaps
        return results

    def _commit_chunks(self, commits: Sequence[Commit]) -> list[CommitResult]:
        """Make the commits in few transactions."""
        results: list[CommitResult] = []
        for first in range(0, len(commits), COMMITS_AT_ONCE):
            chunk = commits[first : first + COMMITS_AT_ONCE]
            with self._write_transaction():
                made = self._apply_together(chunk)
                self._notify_watches(
                    op for each, result in zip(chunk, made, strict=True) if isinstance(result, list) for op in each.ops
                )
            results += made
        return results

    def _apply_together(self, commits: Sequence[Commit]) -> list[CommitResult]:
        """Apply commits within a transaction, behind one savepoint; if one is refused, each behind its own."""
        run = self._connection.execute
        run("SAVEPOINT one")
        self._counts.clear()
        try:
            for session in {each.session for each in commits if each.session is not None}:
                self._refuse_lost(session)
            results: list[CommitResult] = [self._apply_all(each) for each in commits]
            self._write_counts()
        except (Conflict, SessionLost) as e:
            run("ROLLBACK TO one")
            results = [e] if len(commits) == 1 else [self._apply_together([each])[0] for each in commits]
        run("RELEASE one")
        return results

    def _apply_all(self, commit: Commit) -> list[StoredNode | None]:
        """Apply a commit's operations, and return the nodes that it reads."""
        for index, op in enumerate(commit.ops):
            self._apply(index, op, commit.session or 0)
        for path in self._counts.keys() & set(commit.read_after):
            self._write_counts(path)
        return [self._read_alive(path, commit.session) for path in commit.read_after]

    def _refuse_lost(self, session: int) -> None:
        if not self._session_is_alive(session):
            self._lease.mark_lost(session)
            raise SessionLost(f"{self.url}: the session has ended")

    def _notify_watches(self, ops: Iterable[Op]) -> None:
        """Notify watches within a transaction: they can read the file only after it is committed."""
        changed = [op.path for op in ops if isinstance(op, Create | Delete)]
        self._watches.notify({*changed, *map(parent_of, changed)})

    def _apply(self, index: int, op: Op, session: int) -> None:
        run = self._connection.execute
        parent, name = _key(op.path)
        if isinstance(op, Create):
            self._create(index, op, session)
        elif isinstance(op, Delete):
            if op.path in self._counts:
                self._write_counts(op.path)
            cursor = run("DELETE FROM node WHERE parent = ? AND name = ? AND children = 0", (parent, name))
            if not cursor.rowcount:
                raise Conflict(
                    index, op.path, ConflictReason.NOT_EMPTY if self._read_any(op.path) else ConflictReason.MISSING
                )
            if (counts := self._counts_of(parent)) is not None:
                counts.children -= 1
        elif isinstance(op, Set):
            version = "" if op.version is None else f" AND version = {int(op.version)}"
            cursor = run(
                "UPDATE node SET data = ?, version = version + 1, modified = ? WHERE parent = ? AND name = ?" + version,
                (op.data, self._clock(), parent, name),
            )
            if not cursor.rowcount:
                raise Conflict(
                    index, op.path, ConflictReason.CHANGED if self._read_any(op.path) else ConflictReason.MISSING
                )
        else:
            assert isinstance(op, Check)
            node = self._read_any(op.path)
            if node is None:
                raise Conflict(index, op.path, ConflictReason.MISSING)
            if op.version not in (None, node.version) or op.creation not in (None, node.creation):
                raise Conflict(index, op.path, ConflictReason.CHANGED)

    def _create(self, index: int, op: Create, session: int) -> None:
        parent, name = _key(op.path)
        counts = self._counts_of(parent)
        if counts is None:
            raise Conflict(index, op.path, ConflictReason.MISSING)
        if op.numbered and not name.endswith(f"{counts.numbered:010d}"):
            raise Conflict(index, op.path, ConflictReason.CHANGED)
        counts.children += 1
        counts.numbered += 1
        now, owner = self._clock(), session if op.ephemeral else 0
        try:
            self._connection.execute(
                "INSERT INTO node (parent, name, data, owner, creation, created, modified) VALUES (?,?,?,?,?,?,?)",
                (parent, name, op.data, owner, counts.numbered, now, now),  # the parent issues each number only once
            )
        except sqlite3.IntegrityError:
            raise Conflict(index, op.path, ConflictReason.EXISTS) from None

    def _counts_of(self, path: str) -> _Counts | None:
        """Return the counters of a node, which the caller may change; None if it does not exist or is ephemeral."""
        counts = self._counts.get(path)
        if counts is None:
            query = "SELECT children, numbered FROM node WHERE parent = ? AND name = ? AND owner = 0"
            row = self._connection.execute(query, _key(path)).fetchone()
            if row is not None:
                counts = self._counts[path] = _Counts(*row)
        return counts

    def _write_counts(self, *paths: str) -> None:
        """Write the counters of these nodes, or of all whose children this transaction has changed."""
        for path in paths or list(self._counts):
            counts = self._counts.pop(path)
            self._connection.execute(
                "UPDATE node SET children = ?, numbered = ? WHERE parent = ? AND name = ?",
                (counts.children, counts.numbered, *_key(path)),
            )

    def _session_is_alive(self, session: int) -> bool:
        query = "SELECT 1 FROM session WHERE id = ? AND boot = ? AND expires > ?"
        return self._connection.execute(query, (session, self._boot, self._monotonic())).fetchone() is not None

    def _reap_dead(self) -> bool:
        """Remove dead sessions and their nodes. Returns whether there were any."""
        now = self._monotonic()
        self._next_reap = now + REAP_S
        query = "SELECT id FROM session WHERE boot != ? OR expires <= ?"
        with self._lock, translate_errors(self.path):
            if self._connection.execute(query, (self._boot, now)).fetchone() is None:
                return False
        with self._write_transaction():
            dead = self._connection.execute(query, (self._boot, now)).fetchall()
            for (session,) in dead:
                self._remove_session(session)
        return bool(dead)

    def _remove_session(self, session: int) -> None:
        """Remove a session and its ephemeral nodes."""
        run = self._connection.execute
        for parent, name in run("SELECT parent, name FROM node WHERE owner = ?", (session,)).fetchall():
            run("DELETE FROM node WHERE parent = ? AND name = ?", (parent, name))
            run("UPDATE node SET children = children - 1 WHERE parent = ? AND name = ?", _key(parent))
        run("DELETE FROM session WHERE id = ?", (session,))

    def skip_numbers(self, path: str, number: int) -> None:
        with self._write_transaction():
            cursor = self._connection.execute(
                "UPDATE node SET numbered = max(numbered, ?) WHERE parent = ? AND name = ?",
                (number, parent_of(path), name_of(path)),
            )
            if not cursor.rowcount:
                raise Conflict(0, path, ConflictReason.MISSING)

    def _write_transaction(self) -> _Transaction:
        """Return a transaction that excludes changes by other processes."""
        return _Transaction(self.path, self._connection, self._lock, "BEGIN IMMEDIATE")

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read_any(self, path: str) -> StoredNode | None:
        """Read a node, even if its session is dead."""
        query = f"SELECT {_COLUMNS} FROM node WHERE parent = ? AND name = ?"
        row = self._connection.execute(query, _key(path)).fetchone()
        return StoredNode(*row) if row else None

    def read(self, paths: Sequence[str]) -> list[StoredNode | None]:
        if len(paths) == 1:  # a single statement reads a single moment
            with self._lock, translate_errors(self.path):
                return [self._read_alive(paths[0])]
        with self._read_transaction():
            return [self._read_alive(path) for path in paths]

    def _read_alive(self, path: str, alive: int | None = None) -> StoredNode | None:
        """Read a node, unless its session is dead. ``alive``: a session that is known to be alive."""
        node = self._read_any(path)
        is_dead = node and node.owner and node.owner != alive and not self._session_is_alive(node.owner)
        return None if is_dead else node

    def children(self, path: str, prefix: str = "") -> list[str]:
        query = f"SELECT name FROM node WHERE parent = ? AND name >= ? AND (owner = 0 OR {_OWNER_IS_ALIVE})"
        values: tuple[object, ...] = (path, prefix, self._boot, self._monotonic())
        if prefix:  # no name contains this character
            query, values = f"{query} AND name < ?", (*values, f"{prefix}\U0010ffff")
        with self._lock, translate_errors(self.path):
            return [name for (name,) in self._connection.execute(f"{query} ORDER BY name", values)]

    def unlocked_entries(self, folder: str, items: str, at_once: int = 1) -> Iterator[str]:
        """Search along the index; locked entries are stepped over, and later ones are not read. Each statement reads
        twice as many entries as the one before, since a caller that wants one may skip thousands."""
        query = f"""SELECT name FROM node AS entry WHERE parent = ? AND name > ? AND NOT EXISTS (
            SELECT 1 FROM node WHERE parent = ? || substr(entry.name, instr(entry.name, '-') + 1)
            AND name = 'lock' AND (owner = 0 OR {_OWNER_IS_ALIVE})) ORDER BY name LIMIT ?"""
        after, count = "", min(at_once, ENTRIES_AT_ONCE)
        while True:
            with self._lock, translate_errors(self.path):
                values = (folder, after, f"{items}/", self._boot, self._monotonic(), count)
                rows = self._connection.execute(query, values).fetchall()
            for (after,) in rows:
                yield after
            if len(rows) < count:
                return
            count = min(2 * count, ENTRIES_AT_ONCE)

    def walk(self, path: str) -> Iterator[tuple[str, StoredNode]]:
        """Read all nodes in one transaction, as of a single moment."""
        query = (
            f"SELECT parent, name, {_COLUMNS} FROM node WHERE (owner = 0 OR {_OWNER_IS_ALIVE})"
            " AND (? = '/' OR parent = ? OR (parent >= ? AND parent < ?) OR (parent = ? AND name = ?))"
        )
        place = (path, path, f"{path}/", f"{path}0", parent_of(path), name_of(path))
        with self._read_transaction():
            rows = self._connection.execute(query, (self._boot, self._monotonic(), *place)).fetchall()
        nodes = [
            ((parent.rstrip("/") + "/" + name) if name else "/", StoredNode(*node)) for parent, name, *node in rows
        ]
        yield from sorted(nodes, key=lambda one: one[0].split("/"))

    def watched_children(self, path: str) -> Sequence[str]:
        return self.children(path)

    def watch(self, path: str, on_change: Callable[[], None] = lambda: None) -> SqliteWatch:
        return SqliteWatch(self._watches, path, partial(self._child_counts, path), on_change)

    def _data_version(self) -> int:
        """Return a value that differs after every change by another process."""
        with self._lock, translate_errors(self.path):
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _child_counts(self, path: str) -> ChildCounts:
        (node,) = self.read([path])
        return (node.children, node.next_number) if node else None

    def _read_transaction(self) -> _Transaction:
        """Return a transaction in which all reads see the same moment."""
        return _Transaction(self.path, self._connection, self._lock, "BEGIN")


class _Transaction:
    """A transaction that one thread at a time can be in; a nested one becomes part of the outer one."""

    __slots__ = ("_begin", "_connection", "_is_nested", "_lock", "_path")

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: threading.RLock, begin: str) -> None:
        self._path, self._connection, self._lock, self._begin = path, connection, lock, begin
        self._is_nested = False

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            self._is_nested = self._connection.in_transaction
            if not self._is_nested:
                self._connection.execute(self._begin)
        except BaseException as e:
            self._lock.release()
            if isinstance(e, sqlite3.Error):
                raise queue_error(self._path, e) from e
            raise

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, _: object) -> None:
        try:
            if not self._is_nested:
                self._connection.execute("COMMIT" if kind is None else "ROLLBACK")
        except sqlite3.Error as e:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise queue_error(self._path, e) from e
        finally:
            self._lock.release()
        if isinstance(raised, sqlite3.Error):
            raise queue_error(self._path, raised) from raised


# The lease of a session in a SQLite queue, and the thread that renews it.

RENEWALS: Final = 3
"""Renewals per lease, so that one may be late or fail."""

RENEWAL_BUSY_S: Final = 5.0
"""Seconds that a renewal waits for changes by other processes."""


def boot_id() -> str:
    """Return an id of the machine's current boot; "" if there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


class Lease:
    """Session of a store: begun when first needed, renewed by a thread until ``end``."""

    def __init__(self, path: Path, timeout_s: float, monotonic: Callable[[], float]) -> None:
        self._path, self._timeout_s, self._monotonic = path, timeout_s, monotonic
        self._lock = threading.Lock()
        self._session = 0
        self._expires = 0.0
        self._stop = threading.Event()

    def session(self) -> int:
        """Return the session's number; begin a new session if the last one has ended."""
        with self._lock:
            if self._session and self._expires > self._monotonic():
                return self._session
            self._stop.set()  # the thread of a session that was lost
            self._stop = threading.Event()
            with self._transaction() as connection:
                until = self._monotonic() + self._timeout_s
                cursor = connection.execute("INSERT INTO session (boot, expires) VALUES (?, ?)", (boot_id(), until))
                self._session, self._expires = int(cursor.lastrowid or 0), until
            renewing = threading.Thread(
                target=self._renew, args=(self._session, self._stop), name="intake lease", daemon=True
            )
            renewing.start()
            return self._session

    def is_alive(self, session: int) -> bool:
        """Return whether the session is this store's and its lease has not expired."""
        return session == self._session != 0 and self._expires > self._monotonic()

    def mark_lost(self, session: int) -> None:
        """Record that the session has ended, according to the file."""
        with self._lock:
            if session == self._session:
                self._session, self._expires = 0, 0.0
                self._stop.set()

    def end(self) -> int:
        """Stop renewing the lease. Returns the session, whose row the caller removes; 0 if there is none."""
        with self._lock:
            self._stop.set()
            session, self._session, self._expires = self._session, 0, 0.0
            return session

    def _renew(self, session: int, stop: threading.Event) -> None:
        while not stop.wait(self._timeout_s / RENEWALS):
            try:
                with self._transaction() as connection:
                    now = self._monotonic()
                    until = now + self._timeout_s
                    query = "UPDATE session SET expires = ? WHERE id = ? AND expires > ?"
                    cursor = connection.execute(query, (until, session, now))
            except sqlite3.Error:
                continue  # the next renewal may succeed, or the lease expires
            if not cursor.rowcount:
                self.mark_lost(session)
                return
            if session == self._session:
                self._expires = until

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction on a connection of its own, so that the renewing thread waits for no other thread of this
        process."""
        with closing(sqlite3.connect(self._path, timeout=RENEWAL_BUSY_S, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("BEGIN IMMEDIATE")
            yield connection  # closed without a commit, it is rolled back
            connection.execute("COMMIT")


# The SQLite file of a queue: its tables, and its errors converted to errors of the queue.

APPLICATION_ID: Final = 0x46725179
"""SQLite's application id of Ferryman's files ("FrQy"), so that no other database is taken for a queue."""

FORMAT: Final = 2
"""Format of the tables. A file in another format is refused."""

BUSY_S: Final = 30.0
"""Seconds that a change waits for changes by other processes, which take a millisecond each."""

CHECKPOINT_PAGES: Final = 8192
"""Pages after which the log is folded into the file (32 MiB), so that frequently changed pages are written once instead
of a thousand times."""

TABLES: Final = """
CREATE TABLE node (
  parent TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL DEFAULT 0,
  children INTEGER NOT NULL DEFAULT 0, numbered INTEGER NOT NULL DEFAULT 0, owner INTEGER NOT NULL DEFAULT 0,
  creation INTEGER NOT NULL DEFAULT 0, created REAL NOT NULL, modified REAL NOT NULL,
  PRIMARY KEY (parent, name)) WITHOUT ROWID;
CREATE INDEX node_owner ON node (owner) WHERE owner != 0;
CREATE TABLE session (id INTEGER PRIMARY KEY AUTOINCREMENT, boot TEXT NOT NULL, expires REAL NOT NULL);
"""

_CREATING: Final = threading.Lock()
"""Lock for creating a file. Closing any descriptor of a file releases all locks that this process has on it, even those
of other connections (POSIX). SQLite takes care of that for files it has opened itself. So an existing database is never
opened here, and no thread connects to one while it is being created."""


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection to a queue's file; create the file if it does not exist.

    Raises:
        QueueRefused: it cannot be opened, or is something else.
    """
    with _CREATING, suppress(OSError):  # SQLite reports what is wrong; its additional files get the same mode
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    with translate_errors(path):
        connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
            (application_id,) = connection.execute("PRAGMA application_id").fetchone()
            if application_id != APPLICATION_ID:
                _create_tables(connection, path)
            _check_format(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def _create_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables in an empty file; several processes may do so at once."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID:
            return
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise QueueRefused(f"{path}: this is not a queue database. Name another file for the queue.")
        for statement in TABLES.split(";")[:-1]:
            connection.execute(statement)
        connection.execute("INSERT INTO node (parent, name, data, created, modified) VALUES ('', '', x'', 0, 0)")
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={FORMAT}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file in another format.

    Raises:
        QueueRefused: a newer Ferryman made it, or one from before the first release.
    """
    (format_found,) = connection.execute("PRAGMA user_version").fetchone()
    if format_found > FORMAT:
        raise QueueRefused(f"{path}: this queue was made by a newer Ferryman (format {format_found}). Use that one.")
    if format_found < FORMAT:
        raise QueueRefused(
            f"{path}: this queue has format {format_found}, which was never released. Name another file for the queue."
        )


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise errors of SQLite as errors of the queue."""
    try:
        yield
    except sqlite3.Error as e:
        raise queue_error(path, e) from e


def queue_error(path: Path, error: sqlite3.Error) -> Exception:
    """Return the queue's error for an error of SQLite: about this file, and what to do."""
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


# Watches of a SQLite store: one thread per store checks whether other processes have changed the file.

POLL_S: Final = 0.1
"""Seconds between two checks while there are watches; a check takes microseconds."""

ChildCounts = tuple[int, int] | None
"""(number of children, next number) of a node; None if it does not exist."""


class Watches:
    """Watches of a store, and the thread that polls the file for all of them.

    Args:
        data_version: returns a different value after other processes have changed the file; if it raises, all watches
            are notified.
    """

    def __init__(self, data_version: Callable[[], int]) -> None:
        self._data_version = data_version
        self._lock = threading.Lock()
        self._by_path: dict[str, WeakSet[SqliteWatch]] = {}
        self._thread: threading.Thread | None = None

    def add(self, watch: SqliteWatch) -> None:
        before = self._data_version()  # not under our lock: a committer holds the file's and waits for ours
        with self._lock:
            self._by_path.setdefault(watch.path, WeakSet()).add(watch)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_poll_until_unwatched, args=(ref(self), before), name="queue watch", daemon=True
                )
                self._thread.start()

    def remove(self, watch: SqliteWatch) -> None:
        with self._lock:
            self._by_path.get(watch.path, WeakSet()).discard(watch)

    def notify(self, paths: Iterable[str]) -> None:
        """Notify the watches of these nodes: this store has changed their children, or created or removed them."""
        with self._lock:
            watches = [watch for path in self._by_path.keys() & set(paths) for watch in self._by_path[path]]
        for watch in watches:
            watch.notify()

    def poll(self, last_version: int) -> int | None:
        """Check once for changes by other processes. Returns the data version; None if no watch is left, so that the
        thread ends."""
        with self._lock:
            self._by_path = {path: watches for path, watches in self._by_path.items() if watches}
            if not self._by_path:
                self._thread = None
                return None
            paths = list(self._by_path)
        try:
            version = self._data_version()
        except FerrymanError:  # the waiting threads will meet the same error
            version = -1
        if version != last_version:
            self.notify(paths)
        return version


def _poll_until_unwatched(watches: ref[Watches], last_version: int) -> None:
    """Run the polling thread. It holds only a weak reference, so that it does not keep an unused store alive."""
    while True:
        time.sleep(POLL_S)
        alive_watches = watches()
        version = alive_watches.poll(last_version) if alive_watches is not None else None
        if version is None:
            return
        last_version = version


class SqliteWatch:
    """Waits for a change of a node's children. ``read_counts``: reads the node's ``ChildCounts``."""

    def __init__(
        self,
        watches: Watches,
        path: str,
        read_counts: Callable[[], ChildCounts],
        on_change: Callable[[], None],
    ) -> None:
        self._watches, self.path, self._read_counts, self._on_change = watches, path, read_counts, on_change
        self._event = threading.Event()
        """Set when something may have changed, or the watch is closed."""
        self._closed = False
        watches.add(self)
        self._before = read_counts()

    def notify(self) -> None:
        if not self._event.is_set():
            self._event.set()
            self._on_change()

    def wait(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self._event.wait(max(0.0, deadline - time.monotonic())):
            self._event.clear()
            if self._closed:
                return False
            if self._read_counts() != self._before:
                self._event.set()  # keep it set for later calls
                return True
        return False

    def close(self) -> None:
        self._closed = True
        self._watches.remove(self)
        self._event.set()
