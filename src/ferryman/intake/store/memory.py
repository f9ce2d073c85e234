"""A store in this process's memory, for tests and experiments."""

from __future__ import annotations

import itertools
import threading
import time
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakSet

from ferryman.intake.nodes import lock_of_entry, name_of, parent_of
from ferryman.intake.store.base import (
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
    commit_singly,
)


@dataclass
class _Node:
    """Node of the tree, which commits modify in place."""

    data: bytes
    owner: int
    creation: int
    created_s: float
    modified_s: float
    version: int = 0
    next_number: int = 0
    names: list[str] = field(default_factory=list)

    def snapshot(self) -> StoredNode:
        return StoredNode(
            self.data,
            self.version,
            len(self.names),
            self.next_number,
            self.owner,
            self.creation,
            self.created_s,
            self.modified_s,
        )


class _SharedTree:
    """Tree that several stores share."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.nodes: dict[str, _Node] = {"/": _Node(b"", 0, 0, 0.0, 0.0)}
        self.sessions: set[int] = set()
        self.next_session = itertools.count(1)
        self.next_creation = itertools.count(1)
        self.watches: WeakSet[_MemoryWatch] = WeakSet()

    def report_change(self) -> None:
        self.changed.notify_all()
        for watch in list(self.watches):
            watch.on_change()


_SHARED: Final[dict[str, _SharedTree]] = {}
"""Name -> tree, for the lifetime of the process."""


class MemoryStore:
    """Tree in memory, shared by all stores that were opened with the same name."""

    def __init__(self, name: str = "", *, clock: Callable[[], float] = time.time) -> None:
        self.url = f"memory:{name}"
        self._tree = _SHARED.setdefault(name, _SharedTree()) if name else _SharedTree()
        self._clock = clock
        self._session = 0

    def session(self) -> int:
        with self._tree.changed:
            if self._session not in self._tree.sessions:
                self._session = next(self._tree.next_session)
                self._tree.sessions.add(self._session)
            return self._session

    def is_alive(self, session: int) -> bool:
        return session == self._session and session in self._tree.sessions

    def commit(
        self, ops: Sequence[Op], *, session: int | None = None, read_after: Sequence[str] = ()
    ) -> list[StoredNode | None]:
        undo: list[Callable[[], object]] = []
        with self._tree.changed:
            if session is not None and session not in self._tree.sessions:
                raise SessionLost(f"{self.url}: the session has ended")
            try:
                for index, op in enumerate(ops):
                    self._apply(index, op, session or 0, undo)
            except Conflict:
                for step in reversed(undo):
                    step()
                raise
            self._tree.report_change()
            return self.read(read_after)

    def commit_all(self, commits: Sequence[Commit]) -> list[CommitResult]:
        return commit_singly(self, commits)

    def _apply(self, index: int, op: Op, session: int, undo: list[Callable[[], object]]) -> None:
        nodes = self._tree.nodes
        if isinstance(op, Create):
            parent = nodes.get(parent_of(op.path))
            if parent is None or parent.owner:
                raise Conflict(index, op.path, ConflictReason.MISSING)
            if op.path in nodes:
                raise Conflict(index, op.path, ConflictReason.EXISTS)
            if op.numbered and not op.path.endswith(f"{parent.next_number:010d}"):
                raise Conflict(index, op.path, ConflictReason.CHANGED)
            now, creation = self._clock(), next(self._tree.next_creation)
            self._insert(op.path, _Node(op.data, session if op.ephemeral else 0, creation, now, now), parent)
            parent.next_number += 1
            undo.append(lambda: self._undo_create(op.path, parent))
            return
        node = nodes.get(op.path)
        if node is None:
            raise Conflict(index, op.path, ConflictReason.MISSING)
        if isinstance(op, Delete):
            if node.names:
                raise Conflict(index, op.path, ConflictReason.NOT_EMPTY)
            self._remove(op.path)
            undo.append(lambda: self._insert(op.path, node, nodes[parent_of(op.path)]))
            return
        if op.version is not None and op.version != node.version:
            raise Conflict(index, op.path, ConflictReason.CHANGED)
        if isinstance(op, Set):
            before = (node.data, node.version, node.modified_s)
            node.data, node.version, node.modified_s = op.data, node.version + 1, self._clock()
            undo.append(lambda: node.__dict__.update(zip(("data", "version", "modified_s"), before, strict=True)))
        else:
            assert isinstance(op, Check)
            if op.creation not in (None, node.creation):
                raise Conflict(index, op.path, ConflictReason.CHANGED)

    def _undo_create(self, path: str, parent: _Node) -> None:
        self._remove(path)
        parent.next_number -= 1

    def _insert(self, path: str, node: _Node, parent: _Node) -> None:
        self._tree.nodes[path] = node
        insort(parent.names, name_of(path))

    def _remove(self, path: str) -> None:
        del self._tree.nodes[path]
        names = self._tree.nodes[parent_of(path)].names
        del names[bisect_right(names, name_of(path)) - 1]

    def read(self, paths: Sequence[str]) -> list[StoredNode | None]:
        with self._tree.changed:
            nodes = [self._tree.nodes.get(path) for path in paths]
            return [kept.snapshot() if kept else None for kept in nodes]

    def children(self, path: str, prefix: str = "") -> list[str]:
        with self._tree.changed:
            node = self._tree.nodes.get(path)
            return [name for name in node.names if name.startswith(prefix)] if node else []

    def unlocked_entries(self, folder: str, items: str, at_once: int = 1) -> Iterator[str]:
        for name in self.children(folder):
            if lock_of_entry(items, name) not in self._tree.nodes:
                yield name

    def watched_children(self, path: str) -> Sequence[str]:
        return self.children(path)

    def watch(self, path: str, on_change: Callable[[], None] = lambda: None) -> _MemoryWatch:
        return _MemoryWatch(self._tree, path, on_change)

    def walk(self, path: str) -> Iterator[tuple[str, StoredNode]]:
        with self._tree.changed:
            nodes = sorted((p.split("/"), p, kept.snapshot()) for p, kept in self._tree.nodes.items())
        for _, p, node in nodes:
            if path in ("/", p) or p.startswith(f"{path}/"):
                yield p, node

    def skip_numbers(self, path: str, number: int) -> None:
        with self._tree.changed:
            node = self._tree.nodes.get(path)
            if node is None:
                raise Conflict(0, path, ConflictReason.MISSING)
            node.next_number = max(node.next_number, number)

    def close(self) -> None:
        with self._tree.changed:
            if self._session in self._tree.sessions:
                self._tree.sessions.discard(self._session)
                for path in [p for p, kept in self._tree.nodes.items() if kept.owner == self._session]:
                    self._remove(path)
                self._tree.report_change()


class _MemoryWatch:
    """Waits until the names of a node's children differ from those when it was created."""

    def __init__(self, tree: _SharedTree, path: str, on_change: Callable[[], None]) -> None:
        self._tree, self._path, self.on_change = tree, path, on_change
        self._closed = False
        with tree.changed:
            tree.watches.add(self)
            self._before = self._child_names()

    def _child_names(self) -> list[str] | None:
        with self._tree.changed:
            node = self._tree.nodes.get(self._path)
            return list(node.names) if node else None

    def wait(self, timeout_s: float) -> bool:
        with self._tree.changed:
            self._tree.changed.wait_for(lambda: self._closed or self._child_names() != self._before, timeout_s)
            return not self._closed and self._child_names() != self._before

    def close(self) -> None:
        with self._tree.changed:
            self._closed = True
            self._tree.watches.discard(self)
            self._tree.changed.notify_all()
