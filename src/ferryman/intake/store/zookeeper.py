"""A store on ZooKeeper: many hosts, and no queue without a majority of its servers.

Every change is one multi-operation. Ids are sequential nodes: what else belongs to a new node is made in the same
multi-operation, under the name that it will have; if another was faster, nothing is made, and it is tried again.

A session that is lost is another one afterwards. What names the old one is refused here before it is sent, and by the
servers if it was sent: so a lock that was lost can never be used again.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ferryman.intake.errors import QueueLost, QueueRefused
from ferryman.intake.nodes import DIGITS, lock_of, name_of, parent_of
from ferryman.intake.store.base import (
    Address,
    Check,
    Conflict,
    Create,
    Delete,
    Op,
    SessionLost,
    Set,
    StoredNode,
    Tls,
    Why,
    address,
)

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
        """Return which items are locked. Items that this handle holds are not requested."""
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


# A client of ZooKeeper's servers, as a queue's URL says.

log = logging.getLogger("ferryman.intake")

RECONNECT_MAX_S: Final = 1.0
"""Longest pause between two tries to reach a server again: kazoo would wait up to a minute, six sessions long."""

TRIES_A_SESSION: Final = 3
"""Times that a server is tried at least while a session may still live. One that is just starting may take a connection
and never answer (ZooKeeper 3.9 does): kazoo waits for it for a session divided by the servers that it was given."""


def client_of(at: Address, session_timeout_s: float) -> tuple[Any, Any]:
    """A kazoo client that is not started yet, and the ACL of what it makes; None for an open one.

    Raises:
        QueueRefused: kazoo, or with SASL pure-sasl, is not installed.
    """
    client, security = _kazoo()
    acl, login = None, None
    if at.sasl:
        acl = [security.make_acl("sasl", at.user, all=True)]
    elif at.user:
        acl = [security.make_digest_acl(at.user, at.password, all=True)]
        login = [("digest", f"{at.user}:{at.password}")]
    if not at.user and not at.is_local:
        log.warning(
            "%s: anyone who reaches these servers may change this queue: give user:password@ in its URL", at.shown
        )
    made = client.KazooClient(
        hosts=",".join([at.hosts] * -(-TRIES_A_SESSION // len(at.hosts.split(",")))),
        timeout=session_timeout_s,
        auth_data=login,
        default_acl=acl,
        **_secure(at.tls),
        **_known(at),
        connection_retry={"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": RECONNECT_MAX_S},
    )
    return made, acl


def _secure(tls: Tls | None) -> dict[str, Any]:
    """kazoo's words for it."""
    if tls is None:
        return {}
    files = {"ca": tls.ca or None, "certfile": tls.cert or None, "keyfile": tls.key or None}
    return {"use_ssl": True, "verify_certs": True, "check_hostname": tls.check_hostname, **files}


def _known(at: Address) -> dict[str, Any]:
    """How the user proves to the servers who it is."""
    if not at.sasl:
        return {}
    try:
        import puresasl.client  # noqa: F401 - kazoo loads it when it connects
    except ImportError:
        raise QueueRefused(
            "sasl=true needs the package pure-sasl, which is not installed: pip install 'ferryman[intake]'"
        ) from None
    return {"sasl_options": {"mechanism": "DIGEST-MD5", "username": at.user, "password": at.password}}


def _kazoo() -> tuple[Any, Any]:
    try:
        from kazoo import client, security
    except ImportError:
        raise QueueRefused(
            "a queue on ZooKeeper needs the package kazoo, which is not installed: pip install 'ferryman[intake]'"
        ) from None
    # What it has to say, its errors say: nobody shall be told twice, unless a program asks for its log.
    logging.getLogger("kazoo").addHandler(logging.NullHandler())
    return client, security


# A folder's children as a server gave them, for a second.

LISTING_S: Final = 1.0
"""A listing is kept so long for acquiring: of 100 000 jobs it costs 0.2 s, each acquisition then one change."""

HELD_S: Final = 3.0
"""A job that somebody held is left alone for so long, as long as there are others: of thousands that are worked at,
asking for each lock once a second would take longer than a second."""

ASKED_FIRST: Final = 8
"""Names that are asked for together at first, then twice as many each time: others are most often a little ahead."""

ASKED_MAX: Final = 256
"""Names that are asked for together at most."""


class FolderListing:
    """The children of a folder, each given once, for a second. Those that were held lately are left out of the next."""

    def __init__(self) -> None:
        self._using = threading.Lock()
        self._names: list[str] = []
        self._next = 0
        self._read_at = float("-inf")
        self._held: dict[str, float] = {}

    def is_old(self) -> bool:
        return time.monotonic() - self._read_at > LISTING_S

    def renew(self, names: list[str], *, all_of_them: bool = False) -> None:
        """Start again. ``all_of_them``: also those that were held lately; they are asked for."""
        with self._using:
            now = time.monotonic()
            self._held = {name: at for name, at in self._held.items() if now - at < HELD_S and not all_of_them}
            self._names = [name for name in names if name not in self._held]
            self._next, self._read_at = 0, now

    def take(self) -> str | None:
        """The next name; None if all were given. Whoever takes it holds it, or has found that another does."""
        with self._using:
            if self._next == len(self._names):
                return None
            self._next += 1
            name = self._names[self._next - 1]
            self._held[name] = time.monotonic()
            return name

    def step_over(self, are_held: Callable[[Sequence[str]], list[bool]]) -> None:
        """Go on to the next name that nobody holds."""
        with self._using:
            size = ASKED_FIRST
            while some := self._names[self._next : self._next + size]:
                size = min(2 * size, ASKED_MAX)
                held = are_held(some)
                free = held.index(False) if False in held else len(some)
                self._held.update(dict.fromkeys(some[:free], time.monotonic()))
                self._next += free
                if free < len(some):
                    return

    def add(self, name: str) -> None:
        """This handle has made it just now."""
        with self._using:
            self._held.pop(name, None)
            insort(self._names, name, lo=self._next)


# Watches of a store on ZooKeeper: all that look at a node share one at the servers, which stays until it has told.
#
# Setting one reads the names of all children: of thousands of batches, at each look, that would be most of what an
# idle queue costs.

Arm = Callable[[str, Callable[[object], None]], None]
"""Sets a watch at the servers: of a path, and what is called when it tells."""


class ZooKeeperWatches:
    """Watches of one handle."""

    def __init__(self, arm: Arm) -> None:
        self._arm = arm
        self._lock = threading.Lock()
        self._armed: dict[str, _Armed] = {}

    def watch(self, path: str) -> ZooKeeperWatch:
        """Look at a node from now on. What has just changed may be told once more."""
        watch = ZooKeeperWatch(self._forget)
        with self._lock:
            armed = self._armed.get(path)
            if armed is not None:
                armed.watches.add(watch)
                watch.armed = armed
                return watch
        armed = _Armed({watch})
        watch.armed = armed
        self._arm(path, lambda _: self._tell(path, armed))  # also when the connection is lost: then nobody knows
        with self._lock:
            if not armed.told:
                self._armed[path] = armed
        return watch

    def _tell(self, path: str, armed: _Armed) -> None:
        with self._lock:
            armed.told = True
            if self._armed.get(path) is armed:
                del self._armed[path]
            watches = list(armed.watches)
        for watch in watches:
            watch.tell()

    def _forget(self, watch: ZooKeeperWatch) -> None:
        with self._lock:
            if watch.armed is not None:
                watch.armed.watches.discard(watch)


class _Armed:
    """A watch at the servers, and all that share it."""

    def __init__(self, watches: set[ZooKeeperWatch]) -> None:
        self.watches = watches
        self.told = False


class ZooKeeperWatch:
    """Watch of one waiter."""

    def __init__(self, forget: Callable[[ZooKeeperWatch], None]) -> None:
        self._forget = forget
        self._told, self._closed = threading.Event(), False
        self.armed: _Armed | None = None

    def tell(self) -> None:
        self._told.set()

    def wait(self, timeout_s: float) -> bool:
        return self._told.wait(timeout_s) and not self._closed

    def close(self) -> None:
        self._closed = True
        self._forget(self)
        self._told.set()
