"""Locks of queues, collections, objects and local ids."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final, NamedTuple

from ferryman.errors import UsageError
from ferryman.intake.nodes import COLLECTION_LOCKS, LOCKS, QUEUE_LOCKS, mapped, sized
from ferryman.intake.store import Check, Conflict, Create, Delete, Op, SessionLost, Set
from ferryman.intake.tree import NodeTree

_OTHER = re.compile(r"~[0-9]+")
"""What a node's name ends in that is not the first one of its name."""


class LockKind(NamedTuple):
    """A kind of lock."""

    folder: str
    node: str
    """The node's name; "" where the lock is of something with a name of its own."""
    stays: bool
    """Set and cleared by people; the others live with the session that made them."""


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
    """``lock`` takes one, ``unlock`` gives it back, ``check`` asks.

    Two names may have one node's name (``a/b`` and ``a_b``): a lock's node holds the name as it was given, and a second
    one that would need a taken node gets ``NODE~2``, then ``NODE~3``, ….
    """

    def __init__(self, tree: NodeTree) -> None:
        self._tree = tree
        self._made: dict[tuple[str, str], str] = {}
        """(kind, name) -> the node of a lock that was taken through this object, as far as it is known."""

    def lock(self, kind: str, name: str | None = None) -> bool:
        """Take a lock. False if it is taken, by whomever.

        Raises:
            UsageError: there is no such kind, or it needs a name, or none.
        """
        what = _kind(kind, name)
        session = None if what.stays else self._tree.store.session()
        locked, path = False, ""

        def plan() -> list[Op]:
            nonlocal locked, path
            folder = self._tree.get(what.folder)
            taken = self._taken(what, name) if what.node or folder.children else {}
            locked = (name or "") not in taken.values() and "" not in taken.values()
            if not locked:
                return []
            path = f"{what.folder}/{_free(what.node or mapped(name or ''), set(taken))}"
            made = Create(path, sized(path, (name or "").encode()), ephemeral=not what.stays)
            # The folder's own data stays empty. That it is set tells others who look for a node's name at this moment
            # that one was taken: two of them cannot lock one name under two nodes.
            return [made] if what.node else [made, Set(what.folder, b"", folder.version)]

        while True:
            try:
                self._tree.change(plan, session=session)
            except SessionLost:
                session = self._tree.store.session()  # it ended just now: in the next one
            else:
                if locked and name:
                    self._made[kind, name] = path
                return locked

    def check(self, kind: str, name: str | None = None) -> bool:
        """Is it locked?

        Raises:
            UsageError: there is no such kind, or it needs a name, or none.
        """
        what = _kind(kind, name)
        return bool({name or "", ""} & set(self._taken(what, name).values()))

    def unlock(self, kind: str, name: str | None = None) -> None:
        """Give a lock back. What is not locked stays so; a lock that lives with another's session stays too.

        Raises:
            UsageError: there is no such kind, or it needs a name, or none.
        """
        what = _kind(kind, name)
        known = self._made.pop((kind, name or ""), None)
        if known is not None and self._removed(known, (name or "").encode()):
            return
        for node, holds in self._taken(what, name).items():
            if holds in ("", name or ""):
                self._removed(f"{what.folder}/{node}")

    def _removed(self, path: str, data: bytes | None = None) -> bool:
        """Was there a lock that this session may remove? With ``data``: only if its node holds that."""
        found = self._tree.find(path)
        if found is None or (found.owner and not self._tree.store.alive(found.owner)):
            return False
        if data is not None and found.data != data:
            return False
        with suppress(Conflict, SessionLost):  # it went before
            mine = Check(path, creation=found.creation)
            self._tree.store.commit([mine, Delete(path)], session=found.owner or None)
        return True

    def revoke(self, kind: str, name: str | None = None) -> bool:
        """Take a lock away, whosever it is. Was it locked?

        Raises:
            UsageError: there is no such kind, or it needs a name, or none.
        """
        what = _kind(kind, name)
        was_locked = False
        for node, holds in self._taken(what, name).items():
            if holds in ("", name or ""):
                with suppress(Conflict):  # it went before
                    self._tree.commit([Delete(f"{what.folder}/{node}")])
                    was_locked = True
        return was_locked

    def held(self, kind: str) -> list[str]:
        """Names of what is locked, of a kind that has names; of another, its own name if it is locked.

        Raises:
            UsageError: there is no such kind.
        """
        if kind not in KINDS:
            raise _no_kind(kind)
        what = KINDS[kind]
        if what.node:
            return [kind] if self.check(kind) else []
        nodes = self._tree.store.children(what.folder)
        found = self._tree.store.read([f"{what.folder}/{node}" for node in nodes])
        return [
            kept.data.decode("utf-8", "backslashreplace") or node
            for node, kept in zip(nodes, found, strict=True)
            if kept
        ]

    def _taken(self, what: LockKind, name: str | None) -> dict[str, str]:
        """The nodes that a name may have and that are there, with the names they hold; "" is one by another tool."""
        if what.node:
            found = self._tree.find(f"{what.folder}/{what.node}")
            return {} if found is None else {what.node: ""}
        begins = mapped(name or "")
        others = self._tree.store.children(what.folder, begins)
        nodes = [node for node in others if node == begins or _OTHER.fullmatch(node[len(begins) :])]
        if not nodes:
            return {}
        read = self._tree.store.read([f"{what.folder}/{node}" for node in nodes])
        return {
            node: kept.data.decode("utf-8", "backslashreplace") for node, kept in zip(nodes, read, strict=True) if kept
        }


def _free(node: str, taken: set[str]) -> str:
    """The first name that is not taken."""
    at = 1
    while (found := node if at == 1 else f"{node}~{at}") in taken:
        at += 1
    return found


def _kind(kind: str, name: str | None) -> LockKind:
    if kind not in KINDS:
        raise _no_kind(kind)
    what = KINDS[kind]
    if what.node and name is not None:
        raise UsageError(f"lock {kind}: this is one lock, without a name ({name!r} was given).")
    if not what.node:
        if not name:
            raise UsageError(f"lock {kind}: give its name.")
        mapped(name)
    return what


def _no_kind(kind: str) -> UsageError:
    return UsageError(f"lock {kind}: there is no such kind; choose one of {', '.join(KINDS)}.")
