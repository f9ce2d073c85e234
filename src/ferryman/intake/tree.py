"""Tree of nodes as items use it: reads with clear errors, and changes that are planned again after conflicts."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ferryman.errors import UsageError, plain_text
from ferryman.intake.errors import LockLost, NodeInvalid, QueueLost
from ferryman.intake.nodes import (
    COLLECTION_LOCKS,
    LOCKS,
    PAUSE_PATH,
    QUEUE_LOCKS,
    check_size,
    decode_node,
    format_time,
    name_of,
    node_name,
)
from ferryman.intake.store.base import (
    Check,
    Commit,
    Conflict,
    ConflictReason,
    Create,
    Delete,
    Op,
    SessionLost,
    Set,
    Store,
    StoredNode,
)

CHANGE_TRIES: Final = 60
"""Number of plans after which a change is given up: other processes may be faster a few times, but not this often by
chance."""

PAUSE_MAX_S: Final = 0.03
"""Longest pause between two plans, in seconds: a few times as long as another process's change takes."""

LOCKS_AT_ONCE: Final = 128
"""Named locks that are acquired in one change at most."""

MESSAGE_CHARS_MAX: Final = 4000
"""Maximum length of a status's message, which users read, in characters; longer ones are cut."""


@dataclass(frozen=True)
class HeldLock:
    """A lock that an object holds, and the session that the lock lives with.

    ``creation`` identifies the lock: one that was revoked and created again is a different lock, even if the same
    process created both.
    """

    path: str
    session: int
    creation: int


class NodeTree:
    """A store with a clock; caches which folders exist."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self.clock = clock
        self._folders: set[str] = set()

    def now(self) -> str:
        """Return the present time in the format of nodes."""
        return format_time(self.clock())

    # --- reading ------------------------------------------------------------------------------------------------------

    def find(self, path: str) -> StoredNode | None:
        return self.store.read([path])[0]

    def get(self, path: str) -> StoredNode:
        """Read a node.

        Raises:
            NodeInvalid: it is not there.
        """
        node = self.find(path)
        if node is None:
            raise NodeInvalid(path, "is not there")
        return node

    def json(self, path: str) -> dict[str, Any]:
        """Read the JSON object in a node.

        Raises:
            NodeInvalid: it is not there, or holds something else.
        """
        return decode_node(path, self.get(path).data)

    def is_paused(self) -> bool:
        """Return whether the queue is paused, as of the store's last commit or later."""
        return name_of(PAUSE_PATH) in self.store.watched_children(QUEUE_LOCKS)

    def create_missing(self, folders: Iterable[str]) -> list[Op]:
        """Return the operations that create missing folders, each after its parent."""
        unknown = [path for path in folders if path not in self._folders]
        nodes = self.store.read(unknown) if unknown else []
        self._folders.update(path for path, node in zip(unknown, nodes, strict=True) if node)
        return [Create(path) for path, node in zip(unknown, nodes, strict=True) if node is None]

    # --- changes ------------------------------------------------------------------------------------------------------

    def change(
        self,
        plan: Callable[[], Sequence[Op]],
        held_lock: HeldLock | None = None,
        session: int | None = None,
        on_conflict: Callable[[Conflict], None] = lambda conflict: None,
        read_after: Sequence[str] = (),
    ) -> list[StoredNode | None]:
        """Commit the operations that ``plan`` returns for the current tree; plan again if another process was faster.

        Returns the nodes at ``read_after``.

        Args:
            plan: returns the operations for the current tree; called again after each conflict.
            held_lock: commit only as long as this lock is held.
            session: commit only as long as this session lives.
            on_conflict: called with each conflict; it may raise to end the attempts.
            read_after: paths of nodes to read after the change.

        Raises:
            LockLost: it is not held any more; nothing was changed.
            SessionLost: ``session`` has ended; nothing was changed.
            NodeInvalid: the plan conflicts with the tree every time, so the tree is damaged.
        """
        for attempt in range(CHANGE_TRIES):
            if attempt:
                time.sleep(random.uniform(0, min(PAUSE_MAX_S, 0.001 * 2**attempt)))
                self._folders.clear()
            ops = list(plan())
            try:
                if session is None:
                    return self.commit(ops, held_lock, read_after)
                return self.store.commit(ops, session=session, read_after=read_after)
            except Conflict as e:
                on_conflict(e)
                refused = e
        raise NodeInvalid(refused.path, f"is {refused.reason.value}, which does not fit the nodes around it")

    def commit(
        self, ops: list[Op], held_lock: HeldLock | None = None, read_after: Sequence[str] = ()
    ) -> list[StoredNode | None]:
        """Apply all operations or none. Returns the nodes at ``read_after``, read right after the change.

        Raises:
            Conflict: the tree is not as these operations expect.
            LockLost: ``held_lock`` is not held any more.
        """
        if held_lock is None:
            return self.store.commit(ops, read_after=read_after)
        try:
            return self.store.commit(
                [Check(held_lock.path, creation=held_lock.creation), *ops],
                session=held_lock.session,
                read_after=read_after,
            )
        except SessionLost:
            raise LockLost(held_lock.path) from None
        except Conflict as e:
            if e.index == 0:
                raise LockLost(held_lock.path) from None
            raise

    def commit_all(self, commits: Sequence[tuple[list[Op], HeldLock]]) -> list[bool]:
        """Make several commits together, each only as long as its lock is held. Returns which of them took effect."""
        results = self.store.commit_all(
            [Commit([Check(held.path, creation=held.creation), *ops], held.session) for ops, held in commits]
        )
        return [isinstance(result, list) for result in results]

    def lock_all(
        self, locks: Sequence[tuple[str, Sequence[Op], Sequence[str]]]
    ) -> list[tuple[HeldLock, list[StoredNode | None]] | None]:
        """Create several locks together that live with this session.

        Args:
            locks: (path of the lock, checks, paths of nodes to read under the lock)

        Returns for each what ``lock`` returns; None if it is held, a check failed, or the session has just ended.
        """
        session = self.store.session()
        results = self.store.commit_all(
            [Commit([Create(path, ephemeral=True), *checks], session, [path, *reads]) for path, checks, reads in locks]
        )
        found: list[tuple[HeldLock, list[StoredNode | None]] | None] = []
        for (path, *_), result in zip(locks, results, strict=True):
            lock = result[0] if isinstance(result, list) else None
            if isinstance(result, list) and lock is not None and lock.owner == session:
                found.append((HeldLock(path, session, lock.creation), result[1:]))
            else:  # it was revoked before we read it, or never ours
                found.append(None)
        return found

    def lock(self, path: str, *checks: Op, read_after: Sequence[str] = ()) -> tuple[HeldLock, list[StoredNode | None]]:
        """Create a lock that lives with this session. Returns it, and the nodes at ``read_after``, read under the lock.

        Raises:
            Conflict: the lock is held (``index`` 0), or a check failed.
        """
        while True:
            session = self.store.session()
            try:
                lock, *nodes = self.store.commit(
                    [Create(path, ephemeral=True), *checks], session=session, read_after=[path, *read_after]
                )
            except SessionLost:
                continue  # the session ended just now: use the next one
            if lock is None or lock.owner != session:  # it was revoked before we read it
                raise Conflict(0, path, ConflictReason.EXISTS)
            return HeldLock(path, session, lock.creation), nodes

    def next_number(self, folder: str) -> int:
        """Return the number that the next numbered child of a folder gets, unless another process is faster."""
        return self.get(folder).next_number


def trim_message(message: object) -> str:
    """Return a message as a status node stores it: plain text of at most ``MESSAGE_CHARS_MAX`` characters."""
    text = plain_text(message)
    return text if len(text) <= MESSAGE_CHARS_MAX else text[: MESSAGE_CHARS_MAX - 1] + "…"


def below(paths: Iterable[str]) -> list[str]:
    """Return paths in an order in which they can be removed: a folder's content before the folder."""
    return sorted(paths, key=lambda path: path.count("/"), reverse=True)


# Locks of queues, collections, objects and local ids.

_NUMBERED_SUFFIX = re.compile(r"~[0-9]+")
"""Suffix of a node's name if the plain name is already taken."""


class LockKind(NamedTuple):
    folder: str
    node: str
    """Name of the lock's node; "" if the lock has a name of its own."""
    is_persistent: bool
    """Whether operators set and clear it; other locks live with the session that created them."""


KINDS: Final = {
    "ingest": LockKind(QUEUE_LOCKS, "ingest", True),
    "access-small": LockKind(QUEUE_LOCKS, "accessSmall", True),
    "access-large": LockKind(QUEUE_LOCKS, "accessLarge", True),
    "collection": LockKind(COLLECTION_LOCKS, "", True),
    "storage": LockKind(f"{LOCKS}/storage", "", True),
    "inventory": LockKind(f"{LOCKS}/inventory", "", False),
    "localid": LockKind(f"{LOCKS}/localid", "", False),
}


class Locks:
    """Named locks: ``lock`` acquires one, ``unlock`` releases it, ``check`` tests it.

    Two names may map to the same node name (``a/b`` and ``a_b``). So a lock's node contains the original name, and if a
    node name is taken, the next lock gets ``NODE~2``, then ``NODE~3``, ….
    """

    def __init__(self, tree: NodeTree) -> None:
        self._tree = tree
        self._own: dict[tuple[str, str], HeldLock] = {}
        """(kind, name) -> lock that was acquired through this object, unless it is persistent."""

    def lock(self, kind: str, name: str | None = None) -> bool:
        """Acquire a lock. Returns False if anybody holds it, including this process.

        Raises:
            UsageError: there is no such kind, or it needs a name, or none.
        """
        lock_kind = _lock_kind(kind, name)
        session = None if lock_kind.is_persistent else self._tree.store.session()
        is_free, path = False, list[str]()

        def plan() -> list[Op]:
            nonlocal is_free
            folder = self._tree.get(lock_kind.folder)
            held_names = self._held_nodes(lock_kind, name) if lock_kind.node or folder.children else {}
            is_free = (name or "") not in held_names.values() and "" not in held_names.values()
            if not is_free:
                return []
            node = _first_free_name(lock_kind.node or node_name(name or ""), set(held_names))
            path[:] = [f"{lock_kind.folder}/{node}"]
            create = Create(path[0], check_size(path[0], (name or "").encode()), ephemeral=not lock_kind.is_persistent)
            # The folder's own data stays empty. Setting it anyway makes the commits of others who are choosing a node
            # for a name fail, so that a name cannot be locked twice under two nodes.
            return [create] if lock_kind.node else [create, Set(lock_kind.folder, b"", folder.version)]

        while True:
            try:
                nodes = self._tree.change(plan, session=session, read_after=path)
            except SessionLost:
                session = self._tree.store.session()  # the session ended just now: use the next one
            else:
                if is_free and session is not None and nodes[0] is not None:
                    self._own[kind, name or ""] = HeldLock(path[0], session, nodes[0].creation)
                return is_free

    def lock_all(self, kind: str, names: Sequence[str]) -> list[bool]:
        """Acquire several locks of a kind with names, all in one change if nobody holds any of them. Returns for each
        whether it was acquired.

        Raises:
            UsageError: there is no such kind, or a name cannot be a lock's.
        """
        acquired: dict[int, bool] = {}
        try:
            for first in range(0, len(names), LOCKS_AT_ONCE):
                self._lock_chunk(kind, names, range(first, min(first + LOCKS_AT_ONCE, len(names))), acquired)
        except QueueLost:
            if True not in acquired.values():
                raise  # otherwise the next request does, and the caller knows what it holds
        return [acquired.get(at, False) for at in range(len(names))]

    def _lock_chunk(self, kind: str, names: Sequence[str], chunk: range, acquired: dict[int, bool]) -> None:
        """Acquire the locks whose names have these positions; note for each in ``acquired`` whether it was."""
        lock_kind = _lock_kind(kind, names[chunk[0]])
        folder = self._tree.get(lock_kind.folder)
        existing = self._tree.store.children(lock_kind.folder) if folder.children else []
        taken = {*existing, *(node.rpartition("~")[0] for node in existing)}
        free: dict[str, int] = {}
        for at in chunk:
            node = node_name(names[at])
            if node not in taken and not lock_kind.is_persistent:
                free.setdefault(node, at)
        nodes_by_name = {names[at]: node for node, at in free.items()}
        if len(free) > 1 and self._lock_free(kind, lock_kind, folder, nodes_by_name):
            acquired.update(dict.fromkeys(free.values(), True))
        for at in chunk:
            if at not in acquired:
                acquired[at] = self.lock(kind, names[at])

    def _lock_free(self, kind: str, lock_kind: LockKind, folder: StoredNode, nodes: Mapping[str, str]) -> bool:
        """Acquire locks, name -> node, none of whose nodes exists. Returns False if that changed meanwhile."""
        session = self._tree.store.session()
        paths = [f"{lock_kind.folder}/{node}" for node in nodes.values()]
        creates: list[Op] = [
            Create(path, check_size(path, name.encode()), ephemeral=True)
            for path, name in zip(paths, nodes, strict=True)
        ]
        ops = [*creates, Set(lock_kind.folder, b"", folder.version)]
        try:
            created = self._tree.store.commit(ops, session=session, read_after=paths)
        except (Conflict, SessionLost):
            return False
        for name, path, node in zip(nodes, paths, created, strict=True):
            if node is not None:
                self._own[kind, name] = HeldLock(path, session, node.creation)
        return True

    def unlock_all(self, kind: str, names: Sequence[str]) -> None:
        """Release several locks, those that this object acquired in one change."""
        own = {name: self._own.pop((kind, name)) for name in names if (kind, name) in self._own}
        self._tree.commit_all([([Delete(lock.path)], lock) for lock in own.values()])
        for name in names:
            if name not in own:
                self.unlock(kind, name)

    def check(self, kind: str, name: str | None = None) -> bool:
        """Return whether it is locked.

        Raises:
            UsageError: there is no such kind, or it needs a name, or none.
        """
        lock_kind = _lock_kind(kind, name)
        return bool({name or "", ""} & set(self._held_nodes(lock_kind, name).values()))

    def unlock(self, kind: str, name: str | None = None) -> None:
        """Release a lock. Does nothing if it is not locked, or if it lives with another session.

        Raises:
            UsageError: there is no such kind, or it needs a name, or none.
        """
        lock_kind = _lock_kind(kind, name)
        own = self._own.pop((kind, name or ""), None)
        if own is not None:
            with suppress(Conflict, LockLost):  # otherwise it is gone, and somebody else may hold it
                self._tree.commit([Delete(own.path)], own)
                return
        for node, holds in self._held_nodes(lock_kind, name).items():
            if holds in ("", name or ""):
                self._remove(f"{lock_kind.folder}/{node}")

    def _remove(self, path: str) -> None:
        """Remove a lock if this session may."""
        node = self._tree.find(path)
        if node is None or (node.owner and not self._tree.store.is_alive(node.owner)):
            return
        with suppress(Conflict, SessionLost):  # already gone
            same_lock = Check(path, creation=node.creation)
            self._tree.store.commit([same_lock, Delete(path)], session=node.owner or None)

    def revoke(self, kind: str, name: str | None = None) -> bool:
        """Revoke a lock, whoever holds it. Returns whether it was locked.

        Raises:
            UsageError: there is no such kind, or it needs a name, or none.
        """
        lock_kind = _lock_kind(kind, name)
        was_locked = False
        for node, holds in self._held_nodes(lock_kind, name).items():
            if holds in ("", name or ""):
                with suppress(Conflict):  # already gone
                    self._tree.commit([Delete(f"{lock_kind.folder}/{node}")])
                    was_locked = True
        return was_locked

    def held(self, kind: str) -> list[str]:
        """List the locked names of a kind; for a kind without names, the kind itself if it is locked.

        Raises:
            UsageError: there is no such kind.
        """
        if kind not in KINDS:
            raise _unknown_kind(kind)
        lock_kind = KINDS[kind]
        if lock_kind.node:
            return [kind] if self.check(kind) else []
        nodes = self._tree.store.children(lock_kind.folder)
        stored = self._tree.store.read([f"{lock_kind.folder}/{node}" for node in nodes])
        return [
            kept.data.decode("utf-8", "backslashreplace") or node
            for node, kept in zip(nodes, stored, strict=True)
            if kept
        ]

    def _held_nodes(self, lock_kind: LockKind, name: str | None) -> dict[str, str]:
        """Map each existing node that may belong to a name to the name it contains; "" if another tool created it."""
        if lock_kind.node:
            is_there = self._tree.find(f"{lock_kind.folder}/{lock_kind.node}") is not None
            return {lock_kind.node: ""} if is_there else {}
        plain_name = node_name(name or "")
        candidates = self._tree.store.children(lock_kind.folder, plain_name)
        nodes = [
            node for node in candidates if node == plain_name or _NUMBERED_SUFFIX.fullmatch(node[len(plain_name) :])
        ]
        if not nodes:
            return {}
        stored = self._tree.store.read([f"{lock_kind.folder}/{node}" for node in nodes])
        return {
            node: kept.data.decode("utf-8", "backslashreplace")
            for node, kept in zip(nodes, stored, strict=True)
            if kept
        }


def _first_free_name(node: str, taken: set[str]) -> str:
    """Return the node's name, with ``~2``, ``~3``, … appended if it is taken."""
    number = 1
    while (candidate := node if number == 1 else f"{node}~{number}") in taken:
        number += 1
    return candidate


def _lock_kind(kind: str, name: str | None) -> LockKind:
    if kind not in KINDS:
        raise _unknown_kind(kind)
    lock_kind = KINDS[kind]
    if lock_kind.node and name is not None:
        raise UsageError(f"lock {kind}: this is one lock, without a name ({name!r} was given).")
    if not lock_kind.node:
        if not name:
            raise UsageError(f"lock {kind}: give its name.")
        node_name(name)
    return lock_kind


def _unknown_kind(kind: str) -> UsageError:
    return UsageError(f"lock {kind}: there is no such kind; choose one of {', '.join(KINDS)}.")
