"""A store on ZooKeeper: many hosts, and no queue without a majority of its servers.

Every change is one multi-operation. Ids are sequential nodes: what else belongs to a new node is made in the same
multi-operation, under the name that it will have; if another was faster, nothing is made, and it is tried again.

A session that is lost is another one afterwards. What names the old one is refused here before it is sent, and by the
servers if it was sent: so a lock that was lost can never be used again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ferryman.intake.errors import QueueLost, QueueRefused
from ferryman.intake.nodes import DIGITS, lock_of, name_of, parent_of
from ferryman.intake.store.address import address
from ferryman.intake.store.base import Check, Conflict, Create, Delete, Op, SessionLost, Set, StoredNode, Why
from ferryman.intake.store.client import client_of
from ferryman.intake.store.listing import FolderListing
from ferryman.intake.store.zookeeper_watch import ZooKeeperWatch, ZooKeeperWatches

CONNECT_S: Final = 15.0
"""How long the first connection may take: a quorum that has just lost its leader needs some seconds for another."""

TRIED_BLINDLY: Final = 1
"""Names that are given without asking whether they are held: it is cheaper to try. If these were held, there may be
thousands more: they are asked for together."""

READ_AT_ONCE: Final = 256
"""Reads that are asked for together; twice as many are under way."""

BURN: Final = 400
"""Numbers that are skipped in one multi-operation."""


class ZooKeeperStore:
    """A tree below a chroot of a ZooKeeper."""

    def __init__(self, url: str, *, session_timeout_s: float = 10.0, may_make: bool = True) -> None:
        """``may_make``: the chroot is made if it is not there."""
        at = address(url)
        self.url = at.shown
        self._timeout_s = session_timeout_s
        self._client, self._acl = client_of(at, session_timeout_s)
        self._turn = threading.Lock()
        """Between asking whether a session lives and sending what names it, it cannot be lost and another begun."""
        self._lost = 0
        self._listings: dict[str, FolderListing] = {}
        self._held: set[str] = set()
        self._watches = ZooKeeperWatches(self._arm)
        self._client.add_listener(self._listen)
        self._start(at.chroot, may_make)

    def _start(self, chroot: str, may_make: bool) -> None:
        try:
            self._client.start(timeout=CONNECT_S)
            if chroot and may_make:
                self._client.ensure_path(chroot)
            self._client.chroot = chroot  # kazoo takes one with the hosts, but makes no path of several parts for it
        except Exception as e:
            self._client.stop()
            self._client.close()
            raise self._plain(e) from e

    def _listen(self, state: str) -> None:
        if state == "LOST":
            with self._turn:
                self._lost += 1
                self._held.clear()

    # --- sessions -----------------------------------------------------------------------------------------------------

    def session(self) -> int:
        """ZooKeeper's own number of the session."""
        give_up = time.monotonic() + self._timeout_s + CONNECT_S
        while True:
            found = self._client.client_id
            if found is not None and self._client.connected:
                return int(found[0])
            if time.monotonic() > give_up:
                raise QueueLost(f"{self.url}: no server has answered for {self._timeout_s + CONNECT_S:g} s.")
            time.sleep(0.02)

    def alive(self, session: int) -> bool:
        found = self._client.client_id
        return session != 0 and found is not None and found[0] == session and bool(self._client.connected)

    def close(self) -> None:
        self._client.remove_listener(self._listen)
        self._client.stop()
        self._client.close()

    # --- changes ------------------------------------------------------------------------------------------------------

    def commit(
        self, ops: Sequence[Op], *, session: int | None = None, look: Sequence[str] = ()
    ) -> list[StoredNode | None]:
        from kazoo import exceptions

        if not ops:
            return self.read(look)
        while True:
            self._refuse_other_creation(ops)
            try:
                results, looked = self._send(ops, session, look)
            except exceptions.SessionExpiredError as e:
                if session is not None:
                    raise SessionLost(f"{self.url}: the session has ended") from e
                self._connected()
                if self._was_done(ops, session):
                    return self.read(look)
            except (exceptions.ConnectionLoss, exceptions.ConnectionClosedError) as e:
                self._connected()
                if session is not None and self.session() != session:
                    raise SessionLost(f"{self.url}: the session has ended") from e
                if self._was_done(ops, session):
                    return self.read(look)
            except exceptions.KazooException as e:
                raise self._plain(e) from e
            else:
                self._refuse(ops, results)
                self._note(ops)
                try:
                    return self._got(looked)
                except exceptions.ConnectionLoss:
                    return self.read(look)

    def _send(self, ops: Sequence[Op], session: int | None, look: Sequence[str]) -> tuple[list[Any], list[Any]]:
        """Send it, and right behind it what shall be read then: a server answers in the order in which it was asked."""
        transaction = self._client.transaction()
        for op in ops:
            if isinstance(op, Create):
                path = op.path[:-DIGITS] if op.numbered else op.path
                transaction.create(path, op.data, acl=self._acl, ephemeral=op.ephemeral, sequence=op.numbered)
            elif isinstance(op, Set):
                transaction.set_data(op.path, op.data, -1 if op.version is None else op.version)
            elif isinstance(op, Delete):
                transaction.delete(op.path)
            else:
                transaction.check(op.path, -1 if op.version is None else op.version)
        while True:
            with self._turn:
                found = self._client.client_id
                if found is not None or session is None:
                    if session is not None and found[0] != session:
                        raise SessionLost(f"{self.url}: the session has ended")
                    sent = transaction.commit_async()
                    looked = [self._client.get_async(path) for path in look]
                    break
            self._connected()  # whether the session outlives this is known when there is a connection again
        return list(sent.get()), looked

    def _refuse_other_creation(self, ops: Sequence[Op]) -> None:
        """A multi-operation compares versions only, and a node that was made again has version 0 again."""
        for index, op in enumerate(ops):
            if isinstance(op, Check) and op.creation is not None:
                (found,) = self.read([op.path])
                if found is None or found.creation != op.creation:
                    self._held.discard(op.path)  # an operator took the lock away: this handle may take it again
                    raise Conflict(index, op.path, Why.CHANGED if found else Why.MISSING)

    def _refuse(self, ops: Sequence[Op], results: list[Any]) -> None:
        """If it was refused, say which operation it was.

        Raises:
            Conflict: it was, as a whole.
        """
        from kazoo import exceptions

        for index, (op, result) in enumerate(zip(ops, results, strict=False)):
            if not isinstance(result, Exception) or isinstance(result, exceptions.RolledBackError):
                continue
            if isinstance(result, exceptions.NodeExistsError):
                raise Conflict(index, op.path, Why.EXISTS)
            if isinstance(result, exceptions.NoNodeError | exceptions.NoChildrenForEphemeralsError):
                raise Conflict(index, op.path, Why.MISSING)
            if isinstance(result, exceptions.BadVersionError):
                raise Conflict(index, op.path, Why.CHANGED)
            if isinstance(result, exceptions.NotEmptyError):
                raise Conflict(index, op.path, Why.NOT_EMPTY)
            raise self._plain(result)
        self._refuse_other_number(ops, results)

    def _refuse_other_number(self, ops: Sequence[Op], results: list[Any]) -> None:
        """A numbered node without anything below it may have got another number than expected: take it back."""
        for index, (op, result) in enumerate(zip(ops, results, strict=True)):
            if isinstance(op, Create) and op.numbered and result != op.path:
                self._client.delete(result)
                raise Conflict(index, op.path, Why.CHANGED)

    def _was_done(self, ops: Sequence[Op], session: int | None) -> bool:
        """After a lost connection: did it take effect? All of it did if one of its operations did.

        Raises:
            QueueLost: nobody can tell.
        """
        if any(isinstance(op, Create) and op.numbered for op in ops):
            raise QueueLost(
                f"{self.url}: the connection was lost during a write. The node was written completely or not at all: "
                "check whether it exists, and write it again if not."
            )
        self._client.sync("/")
        passing = {op.path for op in ops if isinstance(op, Delete)} & {op.path for op in ops if isinstance(op, Create)}
        ops = [op for op in ops if op.path not in passing]  # it leaves no trace of what it makes and removes
        found = self.read([op.path for op in ops])
        for op, node in zip(ops, found, strict=True):
            if isinstance(op, Create) and op.ephemeral:
                return node is not None and node.owner == session
            if isinstance(op, Set) and op.version is not None:
                return node is not None and node.version == op.version + 1 and node.data == op.data
        for op, node in zip(ops, found, strict=True):
            if isinstance(op, Create):
                return node is not None and node.data == op.data
            if isinstance(op, Delete):
                return node is None
        return False  # it sets or checks without a condition: that may be done again

    def _note(self, ops: Sequence[Op]) -> None:
        """Remember what we hold, and what the listings of this handle can take over."""
        for op in ops:
            if isinstance(op, Create):
                if op.ephemeral:
                    self._held.add(op.path)
                listing = self._listings.get(parent_of(op.path))
                if listing is not None:
                    listing.add(name_of(op.path))
            elif isinstance(op, Delete):
                self._held.discard(op.path)

    def _connected(self) -> None:
        """Wait for a connection.

        Raises:
            QueueLost: there is none for as long as a session and a first connection take.
        """
        self.session()

    def advance(self, path: str, number: int) -> None:
        while True:
            (node,) = self.read([path])
            if node is None:
                raise Conflict(0, path, Why.MISSING)
            if node.numbered >= number:
                return
            transaction = self._client.transaction()
            for at in range(node.numbered, min(number, node.numbered + BURN)):
                transaction.create(f"{path}/skip{at}", acl=self._acl)
                transaction.delete(f"{path}/skip{at}")
            transaction.commit()

    # --- reading ------------------------------------------------------------------------------------------------------

    def _again(self, ask: Callable[[], Any]) -> Any:
        """Ask; if the connection is lost, ask again once there is one."""
        from kazoo import exceptions

        while True:
            try:
                return ask()
            except (exceptions.ConnectionLoss, exceptions.SessionExpiredError, exceptions.ConnectionClosedError):
                self._connected()
            except exceptions.NoNodeError:
                raise
            except exceptions.KazooException as e:
                raise self._plain(e) from e

    def read(self, paths: Sequence[str]) -> list[StoredNode | None]:
        return list(self._again(lambda: self._read(paths)))

    def _read(self, paths: Sequence[str]) -> list[StoredNode | None]:
        """Some are asked for while the answers to others are on their way: the servers never wait for us."""
        found: list[StoredNode | None] = []
        before: list[Any] = []
        for at in range(0, len(paths), READ_AT_ONCE):
            asked = [self._client.get_async(path) for path in paths[at : at + READ_AT_ONCE]]
            found += self._got(before)
            before = asked
        return found + self._got(before)

    def _got(self, asked: Sequence[Any]) -> list[StoredNode | None]:
        """The answers to what was asked."""
        from kazoo import exceptions

        found: list[StoredNode | None] = []
        if asked:
            asked[-1].wait()  # answers come in the order of the questions: one pause for all, and not one for each
        for one in asked:
            try:
                found.append(_node(*one.get()))
            except exceptions.NoNodeError:
                found.append(None)
        return found

    def children(self, path: str, prefix: str = "") -> list[str]:
        from kazoo import exceptions

        try:
            found = self._again(lambda: self._client.get_children(path))
            return sorted(name for name in found if name.startswith(prefix)) if prefix else sorted(found)
        except exceptions.NoNodeError:
            return []

    def free(self, folder: str, items: str) -> Iterator[str]:
        """Each name is given once a listing: who gets it tries its lock, and need not try it again within a second."""
        listing = self._listings.setdefault(folder, FolderListing())
        given, last = 0, False
        if listing.is_old():
            names = self.children(folder)
            listing.renew(names)
            last = not names
        while True:
            if given >= TRIED_BLINDLY:
                listing.step_over(lambda names: self._are_held(items, names))
            name = listing.take()
            if name is not None:
                if lock_of(items, name) not in self._held:
                    given += 1
                    yield name
            elif last:
                return
            else:
                listing.renew(self.children(folder), all_of_them=True)
                given, last = TRIED_BLINDLY, True

    def _are_held(self, items: str, names: Sequence[str]) -> list[bool]:
        """What this handle holds is not asked for."""
        locks = [lock_of(items, name) for name in names]
        asked = [lock for lock in locks if lock not in self._held]
        free = {lock for lock, node in zip(asked, self.read(asked), strict=True) if node is None}
        return [lock not in free for lock in locks]

    def walk(self, path: str) -> Iterator[tuple[str, StoredNode]]:
        level = [path]
        found: dict[str, StoredNode] = {}
        while level:
            nodes = self.read(level)
            there = [(at, node) for at, node in zip(level, nodes, strict=True) if node is not None]
            found.update(there)
            level = [
                f"{at.rstrip('/')}/{name}"
                for at, node in there
                if node.children
                for name in self.children(at)
                if (at, name) != ("/", "zookeeper")
            ]
        yield from sorted(found.items(), key=lambda one: one[0].split("/"))

    def watch(self, path: str) -> ZooKeeperWatch:
        return self._watches.watch(path)

    def _arm(self, path: str, told: Callable[[object], None]) -> None:
        """Set a watch of a node's children; of its coming, if it is not there."""
        from kazoo import exceptions

        try:
            self._again(lambda: self._client.get_children(path, watch=told))
        except exceptions.NoNodeError:
            self._again(lambda: self._client.exists(path, watch=told))

    def _plain(self, error: Exception) -> Exception:
        """kazoo's errors as ours."""
        name = type(error).__name__
        if name in ("NoAuthError", "AuthFailedError", "InvalidACLError", "SessionClosedRequireSaslError"):
            return QueueRefused(f"{self.url}: the servers refuse access ({name}): give user:password@ of this queue.")
        return QueueLost(f"{self.url}: {name}: {str(error) or 'no server answers'}. Is ZooKeeper running there?")


def _node(data: bytes, stat: Any) -> StoredNode:
    # The servers tell changes of a node's children, comings and goings; its comings are what numbers are made of.
    numbered = (stat.cversion + stat.numChildren) // 2
    times = stat.ctime / 1000, stat.mtime / 1000
    return StoredNode(data or b"", stat.version, stat.numChildren, numbered, stat.ephemeralOwner, stat.czxid, *times)
