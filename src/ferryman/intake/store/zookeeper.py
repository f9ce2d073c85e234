"""A store on ZooKeeper, for many hosts; unavailable without a majority of the servers.

Every change is a single multi-operation. Ids are sequential nodes: everything else that belongs to a new node is
created in the same multi-operation, under the name that the node is expected to get; if another process was faster,
nothing is created and the change is repeated.

After a session is lost there is a new one. Requests that name the old session are refused here before they are sent,
and by the servers otherwise, so a lost lock can never be used again.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final

from ferryman.intake.errors import QueueLost, QueueRefused
from ferryman.intake.nodes import DIGITS, lock_of_entry, name_of, parent_of
from ferryman.intake.store.base import (
    COMMITS_AT_ONCE,
    Address,
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
    Tls,
    commit_singly,
    parse_address,
)

CONNECT_S: Final = 15.0
"""Seconds to wait for the first connection: a quorum that has just lost its leader needs some seconds to elect
another."""

READ_AT_ONCE: Final = 256
"""Reads that are sent together; twice as many may be in flight."""

REQUEST_BYTES: Final = 256 << 10
"""Approximate size, in bytes, up to which commits share a request; servers refuse those near 1 MiB."""

OP_BYTES: Final = 64
"""Bytes of an operation in a request, beside its path and its data."""

NUMBERS_AT_ONCE: Final = 400
"""Numbers that are skipped in one multi-operation."""


class ZooKeeperStore:
    """A tree of nodes below a chroot of ZooKeeper."""

    def __init__(self, url: str, *, session_timeout_s: float = 10.0, create_chroot: bool = True) -> None:
        """Connect. ``create_chroot``: create the chroot if it does not exist."""
        address = parse_address(url)
        self.url = address.display_url
        self._timeout_s = session_timeout_s
        self._client, self._acl = create_client(address, session_timeout_s)
        self._send_lock = threading.Lock()
        """Held from the check that a session is alive until the request that names it is sent, so that no other session
        begins in between."""
        self._listings: dict[str, FolderListing] = {}
        self._own_locks: dict[str, OwnLock] = {}
        """Path -> lock, for those that this store holds."""
        self._watches = ZooKeeperWatches(self._set_watch)
        self._client.add_listener(self._listen)
        self._start(address.chroot, create_chroot)

    def _start(self, chroot: str, create_chroot: bool) -> None:
        try:
            self._client.start(timeout=CONNECT_S)
            if chroot and create_chroot:
                self._client.ensure_path(chroot)
            self._client.chroot = chroot  # given with the hosts, kazoo would not create several levels
        except Exception as e:
            self._client.stop()
            self._client.close()
            raise self._queue_error(e) from e

    def _listen(self, state: str) -> None:
        if state == "LOST":
            with self._send_lock:
                self._own_locks.clear()

    # --- sessions -----------------------------------------------------------------------------------------------------

    def session(self) -> int:
        """Return the number that ZooKeeper gave to the session."""
        deadline = time.monotonic() + self._timeout_s + CONNECT_S
        while True:
            client_id = self._client.client_id
            if client_id is not None and self._client.connected:
                return int(client_id[0])
            if time.monotonic() > deadline:
                raise QueueLost(f"{self.url}: no server has answered for {self._timeout_s + CONNECT_S:g} s.")
            time.sleep(0.02)

    def is_alive(self, session: int) -> bool:
        client_id = self._client.client_id
        return session != 0 and client_id is not None and client_id[0] == session and bool(self._client.connected)

    def close(self) -> None:
        self._client.remove_listener(self._listen)
        self._client.stop()
        self._client.close()

    # --- changes ------------------------------------------------------------------------------------------------------

    def commit(
        self, ops: Sequence[Op], *, session: int | None = None, read_after: Sequence[str] = ()
    ) -> list[StoredNode | None]:
        from kazoo import exceptions

        if not ops:
            return self.read(read_after)
        while True:
            self._refuse_other_creation(ops)
            new_locks = {op.path: OwnLock() for op in ops if isinstance(op, Create) and op.ephemeral}
            try:
                results, pending_reads = self._send(ops, session, read_after, new_locks)
            except exceptions.SessionExpiredError as e:
                if session is not None:
                    raise SessionLost(f"{self.url}: the session has ended") from e
                self._wait_for_connection()
                if self._took_effect(ops, session):
                    return self.read(read_after)
            except (exceptions.ConnectionLoss, exceptions.ConnectionClosedError) as e:
                self._wait_for_connection()
                if session is not None and self.session() != session:
                    raise SessionLost(f"{self.url}: the session has ended") from e
                if self._took_effect(ops, session):
                    return self.read(read_after)
            except exceptions.KazooException as e:
                raise self._queue_error(e) from e
            else:
                self._raise_conflict(ops, results)
                return self._finish_commit(Commit(ops, session, read_after), new_locks, pending_reads)

    def _finish_commit(
        self, commit: Commit, new_locks: Mapping[str, OwnLock], pending_reads: list[Any]
    ) -> list[StoredNode | None]:
        """Return the nodes that are read after a commit; remember its locks."""
        from kazoo import exceptions

        self._note_commit(commit.ops, new_locks)
        try:
            nodes = self._collect(pending_reads)
        except (exceptions.ConnectionLoss, exceptions.SessionExpiredError, exceptions.ConnectionClosedError):
            return self.read(commit.read_after)
        for path, node in zip(commit.read_after, nodes, strict=True):
            if node is not None and node.owner == commit.session and path in new_locks:
                new_locks[path].creation = node.creation
        return nodes

    def commit_all(self, commits: Sequence[Commit]) -> list[CommitResult]:
        """Send many commits as one multi-operation; if it is refused, send those before the one that was to blame, then
        those after it."""
        results: dict[int, CommitResult] = {}
        for chunk in _split_commits(commits):
            results |= self._commit_together({at: commits[at] for at in chunk})
        return [results[at] for at in range(len(commits))]

    def _commit_together(self, commits: Mapping[int, Commit]) -> dict[int, CommitResult]:
        """Make commits of one session, in one request if possible. Returns position -> result."""
        from kazoo import exceptions

        results: dict[int, CommitResult] = {}
        remaining = dict(commits)
        for at, commit in commits.items():
            try:
                self._refuse_other_creation(commit.ops)
            except Conflict as e:
                results[at] = e
                del remaining[at]
        size = len(remaining)
        while remaining:
            chunk = dict(islice(remaining.items(), size))
            merged = Commit(
                [op for commit in chunk.values() for op in commit.ops],
                next(iter(chunk.values())).session,
                [path for commit in chunk.values() for path in commit.read_after],
            )
            new_locks = {op.path: OwnLock() for op in merged.ops if isinstance(op, Create) and op.ephemeral}
            try:
                answers, _ = self._send(merged.ops, merged.session, (), new_locks)
                self._raise_conflict(merged.ops, answers)
                pending_reads = self._send_reads(merged.read_after, new_locks)  # not sooner: a refused one has many
            except Conflict as e:
                at, index = _find_operation(chunk, e.index)
                results[at] = Conflict(index, e.path, e.reason)
                del remaining[at]
                size = list(chunk).index(at) or max(1, size // 2)  # those before it are fine; it may be one of many
            except SessionLost as e:
                return results | dict.fromkeys(remaining, e)
            except (exceptions.SessionExpiredError, exceptions.ConnectionLoss, exceptions.ConnectionClosedError):
                return results | self._commit_after_loss(remaining)
            except exceptions.KazooException as e:
                raise self._queue_error(e) from e
            else:
                nodes = iter(self._finish_commit(merged, new_locks, pending_reads))
                results |= {at: [next(nodes) for _ in commit.read_after] for at, commit in chunk.items()}
                remaining = {at: commit for at, commit in remaining.items() if at not in chunk}
                size *= 2
        return results

    def _commit_after_loss(self, commits: Mapping[int, Commit]) -> dict[int, CommitResult]:
        """Make those commits that did not take effect before the connection was lost."""
        self._wait_for_connection()
        results: dict[int, CommitResult] = {}
        for at, commit in commits.items():
            if commit.session is not None and self.session() != commit.session:
                results[at] = SessionLost(f"{self.url}: the session has ended")
            elif self._took_effect(commit.ops, commit.session):
                results[at] = self.read(commit.read_after)
            else:
                (results[at],) = commit_singly(self, [commit])
        return results

    def _send(
        self, ops: Sequence[Op], session: int | None, read_after: Sequence[str], new_locks: Mapping[str, OwnLock]
    ) -> tuple[list[Any], list[Any]]:
        """Send the operations, followed by the reads; a server answers in the order of the requests. New locks that are
        read are watched."""
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
            with self._send_lock:
                client_id = self._client.client_id
                if client_id is not None or session is None:
                    if session is not None and client_id[0] != session:
                        raise SessionLost(f"{self.url}: the session has ended")
                    sent = transaction.commit_async()
                    pending_reads = self._send_reads(read_after, new_locks)
                    break
            self._wait_for_connection()  # whether the session survives is known only once reconnected
        return list(sent.get()), pending_reads

    def _send_reads(self, paths: Sequence[str], new_locks: Mapping[str, OwnLock]) -> list[Any]:
        return [
            self._client.get_async(path, watch=partial(self._lose, path, new_locks[path]))
            if path in new_locks
            else self._client.get_async(path)
            for path in paths
        ]

    def _lose(self, path: str, lock: OwnLock, event: Any) -> None:
        """Record that a lock is gone, or after a lost connection, that it may be."""
        lock.is_intact = False
        if event.type == "DELETED" and self._own_locks.get(path) is lock:
            self._own_locks.pop(path, None)  # an operator revoked it: this store may acquire it again

    def _refuse_other_creation(self, ops: Sequence[Op]) -> None:
        """Refuse the operations if a node is not the expected one. A multi-operation compares only versions, and a node
        that was created again begins with version 0 too. A lock whose watch has not fired need not be read."""
        for index, op in enumerate(ops):
            if isinstance(op, Check) and op.creation is not None:
                own = self._own_locks.get(op.path)
                if own is not None and own.is_intact and own.creation == op.creation:
                    continue
                (node,) = self.read([op.path])
                if node is None or node.creation != op.creation:
                    raise Conflict(index, op.path, ConflictReason.CHANGED if node else ConflictReason.MISSING)

    def _raise_conflict(self, ops: Sequence[Op], results: list[Any]) -> None:
        """Raise a conflict for the operation that failed, if the commit was refused.

        Raises:
            Conflict: the commit was refused, as a whole.
        """
        from kazoo import exceptions

        for index, (op, result) in enumerate(zip(ops, results, strict=False)):
            if not isinstance(result, Exception) or isinstance(result, exceptions.RolledBackError):
                continue
            if isinstance(result, exceptions.NodeExistsError):
                raise Conflict(index, op.path, ConflictReason.EXISTS)
            if isinstance(result, exceptions.NoNodeError | exceptions.NoChildrenForEphemeralsError):
                raise Conflict(index, op.path, ConflictReason.MISSING)
            if isinstance(result, exceptions.BadVersionError):
                raise Conflict(index, op.path, ConflictReason.CHANGED)
            if isinstance(result, exceptions.NotEmptyError):
                raise Conflict(index, op.path, ConflictReason.NOT_EMPTY)
            raise self._queue_error(result)
        self._refuse_other_number(ops, results)

    def _refuse_other_number(self, ops: Sequence[Op], results: list[Any]) -> None:
        """If a numbered node without children got another number than expected, remove it and raise ``Conflict``."""
        from kazoo import exceptions

        for index, (op, result) in enumerate(zip(ops, results, strict=True)):
            if isinstance(op, Create) and op.numbered and result != op.path:
                with suppress(exceptions.NoNodeError):  # deleted by a request whose answer was lost
                    self._retry(partial(self._client.delete, result))
                raise Conflict(index, op.path, ConflictReason.CHANGED)

    def _took_effect(self, ops: Sequence[Op], session: int | None) -> bool:
        """Find out, after a lost connection, whether a commit took effect; either all of its operations did, or none.

        Raises:
            QueueLost: this cannot be determined.
        """
        if any(isinstance(op, Create) and op.numbered for op in ops):
            raise QueueLost(
                f"{self.url}: the connection was lost during a write. The node was written completely or not at all: "
                "check whether it exists, and write it again if not."
            )
        self._retry(lambda: self._client.sync("/"))
        temporary = {op.path for op in ops if isinstance(op, Delete)} & {
            op.path for op in ops if isinstance(op, Create)
        }
        ops = [op for op in ops if op.path not in temporary]  # it leaves no trace of nodes that it creates and removes
        nodes = self.read([op.path for op in ops])
        for op, node in zip(ops, nodes, strict=True):
            if isinstance(op, Create) and op.ephemeral:
                return node is not None and node.owner == session
            if isinstance(op, Set) and op.version is not None:
                return node is not None and node.version == op.version + 1 and node.data == op.data
        for op, node in zip(ops, nodes, strict=True):
            if isinstance(op, Create):
                return node is not None and node.data == op.data
            if isinstance(op, Delete):
                return node is None
        return False  # it sets or checks without a condition, so it can be repeated

    def _note_commit(self, ops: Sequence[Op], new_locks: Mapping[str, OwnLock]) -> None:
        """Remember the locks that this store holds, and add new children to its listings."""
        for op in ops:
            if isinstance(op, Create):
                if op.ephemeral:
                    self._own_locks[op.path] = new_locks[op.path]
                listing = self._listings.get(parent_of(op.path))
                if listing is not None:
                    listing.add(name_of(op.path))
            elif isinstance(op, Delete):
                self._own_locks.pop(op.path, None)

    def _wait_for_connection(self) -> None:
        """Wait for a connection.

        Raises:
            QueueLost: none was made within the time of a session and a first connection.
        """
        self.session()

    def skip_numbers(self, path: str, number: int) -> None:
        from kazoo import exceptions

        while True:
            (node,) = self.read([path])
            if node is None:
                raise Conflict(0, path, ConflictReason.MISSING)
            if node.next_number >= number:
                return
            transaction = self._client.transaction()
            for at in range(node.next_number, min(number, node.next_number + NUMBERS_AT_ONCE)):
                transaction.create(f"{path}/skip{at}", acl=self._acl)
                transaction.delete(f"{path}/skip{at}")
            try:
                transaction.commit()
            except (exceptions.ConnectionLoss, exceptions.SessionExpiredError, exceptions.ConnectionClosedError):
                self._wait_for_connection()  # then what has been skipped is seen

    # --- reading ------------------------------------------------------------------------------------------------------

    def _retry(self, ask: Callable[[], Any]) -> Any:
        """Send requests; if the connection is lost, send them again after reconnecting."""
        from kazoo import exceptions

        while True:
            try:
                return ask()
            except (exceptions.ConnectionLoss, exceptions.SessionExpiredError, exceptions.ConnectionClosedError):
                self._wait_for_connection()
            except exceptions.NoNodeError:
                raise
            except exceptions.KazooException as e:
                raise self._queue_error(e) from e

    def read(self, paths: Sequence[str]) -> list[StoredNode | None]:
        return list(self._retry(lambda: self._read(paths)))

    def _read(self, paths: Sequence[str]) -> list[StoredNode | None]:
        """Read nodes in batches; the next batch is sent while the answers to the previous one arrive."""
        nodes: list[StoredNode | None] = []
        pending: list[Any] = []
        for at in range(0, len(paths), READ_AT_ONCE):
            requests = [self._client.get_async(path) for path in paths[at : at + READ_AT_ONCE]]
            nodes += self._collect(pending)
            pending = requests
        return nodes + self._collect(pending)

    def _collect(self, requests: Sequence[Any]) -> list[StoredNode | None]:
        """Wait for the answers, and return the nodes."""
        from kazoo import exceptions

        nodes: list[StoredNode | None] = []
        if requests:
            requests[-1].wait()  # answers arrive in the order of the requests, so wait once for all of them
        for request in requests:
            try:
                nodes.append(_stored_node(*request.get()))
            except exceptions.NoNodeError:
                nodes.append(None)
        return nodes

    def children(self, path: str, prefix: str = "") -> list[str]:
        from kazoo import exceptions

        try:
            names = self._retry(lambda: self._client.get_children(path))
            return sorted(name for name in names if name.startswith(prefix)) if prefix else sorted(names)
        except exceptions.NoNodeError:
            return []

    def unlocked_entries(self, folder: str, items: str, at_once: int = 1) -> Iterator[str]:
        """Yield each name of a listing once: the caller tries its lock, and does not try it again within a second.

        Once a try has failed, there may be thousands of locked items, whose locks are then checked together.
        """
        listing = self._listings.setdefault(folder, FolderListing())
        has_failed, is_last_listing = False, False
        tried: list[str] = []
        if listing.is_old():
            names = self._list_entries(folder)
            listing.renew(names)
            is_last_listing = not names
        while True:
            if has_failed:
                listing.skip_held(lambda names: self._are_held(items, names))
            name = listing.next_name()
            if name is not None:
                lock = lock_of_entry(items, name)
                if lock not in self._own_locks:
                    tried.append(lock)
                    yield name
                    if len(tried) >= at_once:
                        has_failed |= any(lock not in self._own_locks for lock in tried)
                        tried.clear()
            elif is_last_listing:
                return
            else:
                listing.renew(self._list_entries(folder), all_of_them=True)
                has_failed, is_last_listing = True, True

    def _list_entries(self, folder: str) -> list[str]:
        """List a folder's children; a caller that watches the folder learns of any later ones."""
        names = self._watches.names(folder)
        return self.children(folder) if names is None else names

    def _are_held(self, items: str, names: Sequence[str]) -> list[bool]:
        """Return which items are locked. Those that this store has locked are not requested."""
        locks = [lock_of_entry(items, name) for name in names]
        unknown = [lock for lock in locks if lock not in self._own_locks]
        free = {lock for lock, node in zip(unknown, self.read(unknown), strict=True) if node is None}
        return [lock not in free for lock in locks]

    def walk(self, path: str) -> Iterator[tuple[str, StoredNode]]:
        level = [path]
        nodes_by_path: dict[str, StoredNode] = {}
        while level:
            nodes = self.read(level)
            existing = [(at, node) for at, node in zip(level, nodes, strict=True) if node is not None]
            nodes_by_path.update(existing)
            level = [
                f"{at.rstrip('/')}/{name}"
                for at, node in existing
                if node.children
                for name in self.children(at)
                if (at, name) != ("/", "zookeeper")
            ]
        yield from sorted(nodes_by_path.items(), key=lambda one: one[0].split("/"))

    def watched_children(self, path: str) -> Sequence[str]:
        return self._watches.children(path)

    def watch(self, path: str, on_change: Callable[[], None] = lambda: None) -> ZooKeeperWatch:
        return self._watches.watch(path, on_change)

    def _set_watch(self, path: str, callback: Callable[[object], None]) -> list[str]:
        """Set a watch at the servers: on a node's children, or on its creation if it does not exist. Returns the sorted
        children."""
        from kazoo import exceptions

        try:
            return sorted(self._retry(lambda: self._client.get_children(path, watch=callback)))
        except exceptions.NoNodeError:
            self._retry(lambda: self._client.exists(path, watch=callback))
            return []

    def _queue_error(self, error: Exception) -> Exception:
        """Return the queue's error for an error of kazoo."""
        name = type(error).__name__
        if name in ("NoAuthError", "AuthFailedError", "InvalidACLError", "SessionClosedRequireSaslError"):
            return QueueRefused(f"{self.url}: the servers refuse access ({name}): give user:password@ of this queue.")
        return QueueLost(f"{self.url}: {name}: {str(error) or 'no server answers'}. Is ZooKeeper running there?")


def _split_commits(commits: Sequence[Commit]) -> Iterator[list[int]]:
    """Yield the positions of commits that may share a request: of one session, few enough, and not too large. A commit
    that creates numbered nodes gets a request of its own."""
    chunk: list[int] = []
    size = reads = 0
    for at, commit in enumerate(commits):
        commit_size = sum(OP_BYTES + len(op.path) + len(getattr(op, "data", b"")) for op in commit.ops)
        is_numbered = any(isinstance(op, Create) and op.numbered for op in commit.ops)
        fits = size + commit_size <= REQUEST_BYTES and reads + len(commit.read_after) <= READ_AT_ONCE
        is_full = not fits or len(chunk) == COMMITS_AT_ONCE or is_numbered
        if chunk and (is_full or commit.session != commits[chunk[0]].session):
            yield chunk
            chunk, size, reads = [], 0, 0
        chunk.append(at)
        size, reads = size + commit_size, reads + len(commit.read_after)
        if is_numbered:
            yield chunk
            chunk, size, reads = [], 0, 0
    if chunk:
        yield chunk


def _find_operation(commits: Mapping[int, Commit], index: int) -> tuple[int, int]:
    """Return (position of the commit, index in it) of an operation of commits that share a request."""
    for at, commit in commits.items():
        if index < len(commit.ops):
            return at, index
        index -= len(commit.ops)
    raise IndexError(index)


class OwnLock:
    """A lock that a store holds. ``is_intact``: its watch has not fired, so that it is still the same node."""

    __slots__ = ("creation", "is_intact")

    def __init__(self) -> None:
        self.creation, self.is_intact = 0, True


def _stored_node(data: bytes, stat: Any) -> StoredNode:
    # ZooKeeper's counter of child changes counts creations and removals; numbers are derived from the creations.
    numbered = (stat.cversion + stat.numChildren) // 2
    times = stat.ctime / 1000, stat.mtime / 1000
    return StoredNode(data or b"", stat.version, stat.numChildren, numbered, stat.ephemeralOwner, stat.czxid, *times)


# A client of ZooKeeper's servers, configured by a queue's URL.

log = logging.getLogger("ferryman.intake")

RECONNECT_MAX_S: Final = 1.0
"""Longest pause between two attempts to reconnect, in seconds; kazoo would wait up to a minute, which is six
sessions."""

TRIES_A_SESSION: Final = 3
"""Least number of attempts to reach a server while a session may still be alive. A server that is just starting may
accept a connection and never answer (ZooKeeper 3.9 does): kazoo waits for it for the session timeout divided by the
number of servers."""


def create_client(address: Address, session_timeout_s: float) -> tuple[Any, Any]:
    """Create a kazoo client, not yet started, and the ACL for its nodes; None means open to everyone.

    Raises:
        QueueRefused: kazoo, or with SASL pure-sasl, is not installed.
    """
    client, security = _import_kazoo()
    acl, auth_data = None, None
    if address.sasl:
        acl = [security.make_acl("sasl", address.user, all=True)]
    elif address.user:
        acl = [security.make_digest_acl(address.user, address.password, all=True)]
        auth_data = [("digest", f"{address.user}:{address.password}")]
    if not address.user and not address.is_local:
        log.warning(
            "%s: anyone who reaches these servers may change this queue: give user:password@ in its URL",
            address.display_url,
        )
    kazoo_client = client.KazooClient(
        handler=_inline_handler(),
        hosts=",".join([address.hosts] * -(-TRIES_A_SESSION // len(address.hosts.split(",")))),
        timeout=session_timeout_s,
        auth_data=auth_data,
        default_acl=acl,
        **_tls_arguments(address.tls),
        **_sasl_arguments(address),
        connection_retry={"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": RECONNECT_MAX_S},
    )
    return kazoo_client, acl


def _tls_arguments(tls: Tls | None) -> dict[str, Any]:
    """Return the arguments of kazoo's client for TLS."""
    if tls is None:
        return {}
    files = {"ca": tls.ca or None, "certfile": tls.cert or None, "keyfile": tls.key or None}
    return {"use_ssl": True, "verify_certs": True, "check_hostname": tls.check_hostname, **files}


def _sasl_arguments(address: Address) -> dict[str, Any]:
    """Return the arguments of kazoo's client for SASL."""
    if not address.sasl:
        return {}
    try:
        import puresasl.client  # noqa: F401 - kazoo loads it when it connects
    except ImportError:
        raise QueueRefused(
            "sasl=true needs the package pure-sasl, which is not installed: pip install 'ferryman[intake]'"
        ) from None
    return {"sasl_options": {"mechanism": "DIGEST-MD5", "username": address.user, "password": address.password}}


def _import_kazoo() -> tuple[Any, Any]:
    try:
        from kazoo import client, security
    except ImportError:
        raise QueueRefused(
            "a queue on ZooKeeper needs the package kazoo, which is not installed: pip install 'ferryman[intake]'"
        ) from None
    # kazoo's log repeats its errors; show it only if the program wants that log.
    logging.getLogger("kazoo").addHandler(logging.NullHandler())
    return client, security


def _inline_handler() -> Any:
    """Return a handler that runs watch callbacks in the thread that reads answers.

    A server reports a change before it answers any later request. So when a request is answered, all watches of changes
    before it have fired. These callbacks only set flags and wake threads.
    """
    from kazoo.handlers.threading import SequentialThreadingHandler

    class InlineHandler(SequentialThreadingHandler):  # type: ignore[misc]
        def dispatch_callback(self, callback: Any) -> None:
            if callback.type == "watch":
                callback.func(*callback.args)
            else:
                super().dispatch_callback(callback)

    return InlineHandler()


# Listings: a folder's children, cached for a second.

LISTING_S: Final = 1.0
"""Seconds for which a listing is used for acquiring: listing 100 000 jobs takes 0.2 s, and each acquisition then only
one change."""

HELD_S: Final = 3.0
"""Seconds for which a job found locked is skipped while there are others: checking thousands of locks every second
would take longer than a second."""

CHECKED_FIRST: Final = 8
"""Number of locks in the first check, doubled each time: other consumers are usually only a little ahead."""

CHECKED_MAX: Final = 256
"""Maximum number of locks in one check."""


class FolderListing:
    """Children of a folder, each returned once; valid for a second. Those found locked recently are left out of the
    next listing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: list[str] = []
        self._next = self._checked = 0
        """Position of the next name; of the first one whose lock was not checked."""
        self._read_at = float("-inf")
        self._held: dict[str, float] = {}

    def is_old(self) -> bool:
        return time.monotonic() - self._read_at > LISTING_S

    def renew(self, names: list[str], *, all_of_them: bool = False) -> None:
        """Start a new listing. ``all_of_them``: include names found locked recently, whose locks are checked."""
        with self._lock:
            now = time.monotonic()
            self._held = {name: at for name, at in self._held.items() if now - at < HELD_S and not all_of_them}
            self._entries = [name for name in names if name not in self._held]
            self._next, self._checked, self._read_at = 0, 0, now

    def next_name(self) -> str | None:
        """Return the next name; None if all were returned. The caller either locks it or finds that somebody else
        has."""
        with self._lock:
            if self._next == len(self._entries):
                return None
            self._next += 1
            name = self._entries[self._next - 1]
            self._held[name] = time.monotonic()
            return name

    def skip_held(self, are_held: Callable[[Sequence[str]], list[bool]]) -> None:
        """Skip to the next name that nobody has locked; each lock is checked once."""
        with self._lock:
            size = CHECKED_FIRST
            while self._next >= self._checked and (chunk := self._entries[self._next : self._next + size]):
                is_held = dict(zip(chunk, are_held(chunk), strict=True))
                free = [name for name in chunk if not is_held[name]]
                self._held.update({name: time.monotonic() for name in chunk if is_held[name]})
                self._entries[self._next : self._next + size] = free
                self._checked, size = self._next + len(free), min(2 * size, CHECKED_MAX)

    def add(self, name: str) -> None:
        """Add a name that this store has just created, unless it is listed already."""
        with self._lock:
            self._held.pop(name, None)
            at = bisect_left(self._entries, name, lo=self._next)
            if name not in self._entries[at : at + 1]:
                self._entries.insert(at, name)


# Watches of a ZooKeeper store: all watches of a node share one at the servers, which stays until it fires.
#
# Setting a watch reads the names of all children, which for thousands of batches would be most of the load of an idle
# queue.

SetWatch = Callable[[str, Callable[[object], None]], list[str]]
"""Function that sets a watch on a path at the servers, with the function to call when it fires; returns the names of
the children."""


class ZooKeeperWatches:
    """Watches of a store; those of the same node share a watch at the servers."""

    def __init__(self, set_watch: SetWatch) -> None:
        self._set_watch = set_watch
        self._lock = threading.Lock()
        self._server_watches: dict[str, _ServerWatch] = {}

    def watch(self, path: str, on_change: Callable[[], None]) -> ZooKeeperWatch:
        """Watch a node from now on. A change from just before may be reported, too."""
        watch = ZooKeeperWatch(self._remove, on_change)
        with self._lock:
            server_watch = self._server_watches.get(path)
            if server_watch is not None:
                server_watch.watches.add(watch)
                watch.server_watch = server_watch
                return watch
        watch.server_watch = self._set(path, {watch})
        return watch

    def children(self, path: str) -> Sequence[str]:
        """Return the names of a node's children, without asking the servers until a watch fires."""
        server_watch = self._server_watches.get(path)
        return (server_watch or self._set(path, set())).names

    def names(self, path: str) -> list[str] | None:
        """Return the names of a node's children if somebody watches it and the watch has not fired."""
        server_watch = self._server_watches.get(path)
        return server_watch.names if server_watch is not None and server_watch.watches else None

    def _set(self, path: str, watches: set[ZooKeeperWatch]) -> _ServerWatch:
        server_watch = _ServerWatch(watches)
        server_watch.names = self._set_watch(
            path, lambda _: self._fire(path, server_watch)
        )  # also when the connection is lost, since changes may then be missed
        with self._lock:
            if not server_watch.has_fired:
                self._server_watches[path] = server_watch
        return server_watch

    def _fire(self, path: str, server_watch: _ServerWatch) -> None:
        with self._lock:
            server_watch.has_fired = True
            if self._server_watches.get(path) is server_watch:
                del self._server_watches[path]
            watches = list(server_watch.watches)
        for watch in watches:
            watch.notify()

    def _remove(self, watch: ZooKeeperWatch) -> None:
        with self._lock:
            if watch.server_watch is not None:
                watch.server_watch.watches.discard(watch)


class _ServerWatch:
    """A watch at the servers, with the watches that share it."""

    def __init__(self, watches: set[ZooKeeperWatch]) -> None:
        self.watches = watches
        self.names: list[str] = []
        """Children of the node when the watch was set."""
        self.has_fired = False


class ZooKeeperWatch:
    """A watch that one thread waits on."""

    def __init__(self, remove: Callable[[ZooKeeperWatch], None], on_change: Callable[[], None]) -> None:
        self._remove, self._on_change = remove, on_change
        self._changed, self._closed = threading.Event(), False
        self.server_watch: _ServerWatch | None = None

    def notify(self) -> None:
        self._changed.set()
        self._on_change()

    def wait(self, timeout_s: float) -> bool:
        return self._changed.wait(timeout_s) and not self._closed

    def close(self) -> None:
        self._closed = True
        self._remove(self)
        self._changed.set()
