"""A store in one SQLite file: many processes of one machine, no server.

A process that holds locks keeps a *session*, a row with a lease that a thread renews. A session whose lease has run out
is dead: from that moment nobody sees its nodes, and the next commit of anybody removes them. Leases are counted by the
machine's own clock since it was started, which no setting of the time changes, and end with it.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ferryman.intake.nodes import name_of, parent_of
from ferryman.intake.store.base import Check, Conflict, Create, Delete, Op, SessionLost, Set, StoredNode, Why
from ferryman.intake.store.lease import Lease, boot_id
from ferryman.intake.store.sqlite_file import connected, plain, told
from ferryman.intake.store.sqlite_watch import SqliteWatch, State, Watches

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
