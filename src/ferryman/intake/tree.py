"""The tree as items use it: reading with clear errors, and changes that are planned again when others were faster."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ferryman.errors import UsageError, plain_text
from ferryman.intake.errors import LockLost, NodeInvalid
from ferryman.intake.nodes import COLLECTION_LOCKS, LOCKS, QUEUE_LOCKS, check_size, decode_node, format_time, node_name
from ferryman.intake.store import (
    Check,
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

TRIES: Final = 60
"""Plans of one change before it is given up: others may be faster a few times, but not this often by chance."""

PAUSE_MAX_S: Final = 0.03
"""Longest pause between two plans: a few times as long as another's change takes."""

MESSAGE_CHARS_MAX: Final = 4000
"""Most characters of a status's message, which users read; a longer one is cut."""


@dataclass(frozen=True)
class Hold:
    """A lock that an object holds, and the session that it lives with.

    ``creation`` is the owner's token: a lock that was taken away and made again is another one, also if the same
    process made both.
    """

    path: str
    session: int
    creation: int


class NodeTree:
    """A store, the time, and which folders are known to be there."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self.clock = clock
        self._folders: set[str] = set()

    def now(self) -> str:
        """The time as it is written in nodes."""
        return format_time(self.clock())

    # --- reading ------------------------------------------------------------------------------------------------------

    def find(self, path: str) -> StoredNode | None:
        return self.store.read([path])[0]

    def get(self, path: str) -> StoredNode:
        """A node.

        Raises:
            NodeInvalid: it is not there.
        """
        found = self.find(path)
        if found is None:
            raise NodeInvalid(path, "is not there")
        return found

    def json(self, path: str) -> dict[str, Any]:
        """The object in a node.

        Raises:
            NodeInvalid: it is not there, or holds something else.
        """
        return decode_node(path, self.get(path).data)

    def missing(self, folders: Iterable[str]) -> list[Op]:
        """Return the operations that make missing folders, each after its parent."""
        unknown = [path for path in folders if path not in self._folders]
        found = self.store.read(unknown) if unknown else []
        self._folders.update(path for path, node in zip(unknown, found, strict=True) if node)
        return [Create(path) for path, node in zip(unknown, found, strict=True) if node is None]

    # --- changes ------------------------------------------------------------------------------------------------------

    def change(
        self,
        plan: Callable[[], Sequence[Op]],
        hold: Hold | None = None,
        session: int | None = None,
        on_conflict: Callable[[Conflict], None] = lambda conflict: None,
        read_after: Sequence[str] = (),
    ) -> list[StoredNode | None]:
        """Commit what ``plan`` makes of the tree as it is; plan again if another process was faster.

        Returns the nodes at ``read_after``.

        Args:
            plan: makes the operations from the tree as it is; called again after each conflict.
            hold: commit only as long as this lock is held.
            session: commit only as long as this session lives.
            on_conflict: called with each conflict; it may raise instead of another try.
            read_after: paths of nodes to read after the change.

        Raises:
            LockLost: it is not held any more; nothing was changed.
            SessionLost: ``session`` has ended; nothing was changed.
            NodeInvalid: the tree does not fit the plan, however often it was made: it is damaged.
        """
        for tried in range(TRIES):
            if tried:
                time.sleep(random.uniform(0, min(PAUSE_MAX_S, 0.001 * 2**tried)))
                self._folders.clear()
            ops = list(plan())
            try:
                if session is None:
                    return self.commit(ops, hold, read_after)
                return self.store.commit(ops, session=session, read_after=read_after)
            except Conflict as e:
                on_conflict(e)
                refused = e
        raise NodeInvalid(refused.path, f"is {refused.reason.value}, which does not fit the nodes around it")

    def commit(
        self, ops: list[Op], hold: Hold | None = None, read_after: Sequence[str] = ()
    ) -> list[StoredNode | None]:
        """Do all of it or nothing. Returns the nodes at ``read_after``, as they are after it.

        Raises:
            Conflict: the tree is not as these operations expect.
            LockLost: ``hold`` is not held any more.
        """
        if hold is None:
            return self.store.commit(ops, read_after=read_after)
        try:
            return self.store.commit(
                [Check(hold.path, creation=hold.creation), *ops], session=hold.session, read_after=read_after
            )
        except SessionLost:
            raise LockLost(hold.path) from None
        except Conflict as e:
            if e.index == 0:
                raise LockLost(hold.path) from None
            raise

    def lock(self, path: str, *checks: Op, read_after: Sequence[str] = ()) -> tuple[Hold, list[StoredNode | None]]:
        """Make a lock that lives with this session. Returns it, and the nodes at ``read_after`` as they are under it.

        Raises:
            Conflict: it is held (``index`` 0), or a check did not hold.
        """
        while True:
            session = self.store.session()
            try:
                lock, *found = self.store.commit(
                    [Create(path, ephemeral=True), *checks], session=session, read_after=[path, *read_after]
                )
            except SessionLost:
                continue  # it ended just now: in the next one
            if lock is None or lock.owner != session:  # it was taken away before we saw it
                raise Conflict(0, path, ConflictReason.EXISTS)
            return Hold(path, session, lock.creation), found

    def next_number(self, folder: str) -> int:
        """The number that the next numbered child of a folder gets, unless another is faster."""
        return self.get(folder).next_number


def message_text(message: object) -> str:
    """A message as it may be stored."""
    text = plain_text(message)
    return text if len(text) <= MESSAGE_CHARS_MAX else text[: MESSAGE_CHARS_MAX - 1] + "…"


def below(paths: Iterable[str]) -> list[str]:
    """Paths in an order in which they can be removed: what is in a folder before the folder."""
    return sorted(paths, key=lambda path: path.count("/"), reverse=True)


# Locks of queues, collections, objects and local ids.

_OTHER = re.compile(r"~[0-9]+")
"""Suffix of a node's name where an earlier node has the plain name."""


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
            path = f"{what.folder}/{_free(what.node or node_name(name or ''), set(taken))}"
            made = Create(path, check_size(path, (name or "").encode()), ephemeral=not what.stays)
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
        """Return whether it is locked.

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
        if found is None or (found.owner and not self._tree.store.is_alive(found.owner)):
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
        begins = node_name(name or "")
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
        node_name(name)
    return what


def _no_kind(kind: str) -> UsageError:
    return UsageError(f"lock {kind}: there is no such kind; choose one of {', '.join(KINDS)}.")
