"""The store port: a small tree of nodes, with the guarantees of ZooKeeper.

The queue is implemented once, on top of this port. A node has a path, data and children. An *ephemeral* node exists
only as long as the session that created it. A store guarantees:

1. ``commit`` is atomic: no reader and no crash ever exposes a part of its changes.
2. A commit's checks (of a version, or that a node exists) still hold when its changes take effect.
3. Numbers of children are never reused, even if their node was removed.
4. A session ends when its process has been dead, stopped or disconnected for the session timeout; its ephemeral nodes
   are then gone. A commit that names a session takes effect only while that session is alive. So a lock holder that was
   stopped for too long cannot change anything after another process has acquired the lock.

The commits of a job in one state::

    store.commit([Check("/jobs/states/pending/05-jid1"), Create("/jobs/jid1/lock", ephemeral=True)], session=s)
    store.commit([Delete("/jobs/states/pending/05-jid1"), Create("/jobs/states/estimating/05-jid1"), ...], session=s)
    store.commit([Delete("/jobs/jid1/lock")], session=s)

After a crash between two commits the first one stays in effect, and the lock ends with the session.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from ferryman.errors import FerrymanError
from ferryman.intake.errors import QueueRefused
from ferryman.net import urls


class StoredNode(NamedTuple):
    """A node's data and counters at the time it was read."""

    data: bytes
    version: int
    """Number of times its data was replaced."""
    children: int
    """Current number of children."""
    next_number: int
    """Number that its next numbered child will get."""
    owner: int
    """Session that an ephemeral node belongs to; 0 for other nodes."""
    creation: int
    """Number that no other node with this path has, earlier or later."""
    created_s: float
    modified_s: float
    """Time at which its data was last replaced, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node. ``numbered``: its path ends in the number that the caller expects, the parent's
    ``next_number``."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Replace a node's data; ``version``: on condition that the node still has that version."""

    path: str
    data: bytes
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node without children."""

    path: str


@dataclass(frozen=True, slots=True)
class Check:
    """Check that a node exists; ``version``: and has that version; ``creation``: and is the same node, not one created
    again.

    ZooKeeper compares versions atomically, but not creations, which its store checks right before the change. So
    callers that depend on a creation also check the version of a node that changes with it.
    """

    path: str
    version: int | None = None
    creation: int | None = None


Op = Create | Set | Delete | Check


class Commit(NamedTuple):
    """Operations that take effect together or not at all; see ``Store.commit``."""

    ops: Sequence[Op]
    session: int | None = None
    read_after: Sequence[str] = ()


COMMITS_AT_ONCE: Final = 64
"""Commits that a store takes together at most: other processes wait for a few milliseconds at most, and a request to
ZooKeeper stays small."""


class ConflictReason(enum.StrEnum):
    """Reasons why a commit was refused."""

    EXISTS = "there already"
    MISSING = "not there"
    CHANGED = "changed meanwhile"
    NOT_EMPTY = "not empty"


class Conflict(FerrymanError):
    """A commit was refused and changed nothing. ``index``: position of the first operation that failed."""

    def __init__(self, index: int, path: str, why: ConflictReason) -> None:
        super().__init__(index, path, why)
        self.index, self.path, self.reason = index, path, why

    def __str__(self) -> str:
        return f"{self.path}: {self.reason.value}"


class SessionLost(FerrymanError):
    """The session that a commit names has ended, and the commit changed nothing."""


CommitResult = list[StoredNode | None] | Conflict | SessionLost
"""Result of one of several commits: the nodes that were read after it, or why it was refused."""


class Watch(Protocol):
    """Reports when a node's children have changed since the watch was created, or when the node was created or
    removed."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for a change, at most ``timeout_s`` seconds. Returns whether there was one."""

    def close(self) -> None:
        """Stop watching. A thread in ``wait`` returns at once, without a change."""


class Store(Protocol):
    """Tree of nodes. May be used from many threads."""

    url: str
    """URL for operators, without passwords."""

    def session(self) -> int:
        """Return this object's session; begin one if there is none, or if the last one has ended."""

    def is_alive(self, session: int) -> bool:
        """Return whether a session is alive, as far as is known without asking the server."""

    def commit(
        self, ops: Sequence[Op], *, session: int | None = None, read_after: Sequence[str] = ()
    ) -> list[StoredNode | None]:
        """Apply all operations or none. Ephemeral nodes require a ``session``, to which they will belong.

        Returns the nodes at ``read_after`` as they are after the commit, which takes no additional round trip.

        Raises:
            Conflict: a node exists, is missing, or differs from what was expected.
            SessionLost: ``session`` has ended.
            QueueLost: the server was lost. If the operations create numbered nodes, all or none of them may have taken
                effect; any others are repeated until the result is known.
        """

    def commit_all(self, commits: Sequence[Commit]) -> list[CommitResult]:
        """Make several commits, in this order: each takes effect or is refused by itself, but together they cost little
        more than one. After a crash, any first ones of them may have taken effect.

        Returns for each commit what ``commit`` returns, or the ``Conflict`` or ``SessionLost`` that it raises.

        Raises:
            QueueLost: the server was lost. Each commit may have taken effect or not.
        """

    def read(self, paths: Sequence[str]) -> list[StoredNode | None]:
        """Read the nodes at these paths in one call; None for nodes that do not exist."""

    def children(self, path: str, prefix: str = "") -> list[str]:
        """Return the sorted names of a node's children that begin with ``prefix``; none if the node does not exist."""

    def unlocked_entries(self, folder: str, items: str, at_once: int = 1) -> Iterator[str]:
        """Yield the children of a folder, sorted, that seem to be unlocked. They are named ``05-ID``; the lock of such
        a child is ``items/ID/lock``. ``at_once``: how many of them the caller takes before it tries to lock them.

        The result is a hint that may be a second old. To acquire a child, create its lock and check that the child
        exists in one commit. An exhausted iterator has yielded every child that existed and was not locked when it was
        created.
        """

    def watched_children(self, path: str) -> Sequence[str]:
        """Return the names of the children of a node that seldom change. A store on a server asks for them again only
        after its watch has reported a change, and knows of all changes from before its last commit."""

    def watch(self, path: str, on_change: Callable[[], None] = lambda: None) -> Watch:
        """Watch the children of a node from now on. ``on_change`` is called in any thread when they may have changed;
        it must neither block nor use the store."""

    def walk(self, path: str) -> Iterator[tuple[str, StoredNode]]:
        """Yield a node and all nodes below, parents first, sorted."""

    def skip_numbers(self, path: str, number: int) -> None:
        """Make sure that the next numbered child of a node gets this number or a higher one."""

    def close(self) -> None:
        """End the session, which removes its ephemeral nodes."""


def commit_singly(store: Store, commits: Sequence[Commit]) -> list[CommitResult]:
    """Make commits one by one; returns as ``Store.commit_all``."""
    results: list[CommitResult] = []
    for each in commits:
        try:
            results.append(store.commit(each.ops, session=each.session, read_after=each.read_after))
        except (Conflict, SessionLost) as e:
            results.append(e)
    return results


# URLs of queues on ZooKeeper.

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


TLS_OPTIONS: Final = ("tls", "ca", "cert", "key", "check_hostname")
"""Query options of a ZooKeeper URL that are about TLS."""


class Tls(NamedTuple):
    """Certificates for TLS between this client and the servers."""

    ca: str = ""
    """File with certificates of the authorities that sign the servers'; "": the system's."""
    cert: str = ""
    """A file of this client's certificate."""
    key: str = ""
    """A file of its key."""
    check_hostname: bool = True
    """Whether a server's certificate must have the host name of the URL."""


SASL_OPTION: Final = "sasl"
"""Query option of a ZooKeeper URL: authenticate as a user that the servers know, by SASL (DIGEST-MD5)."""


class Address(NamedTuple):
    """Parts of a queue's URL."""

    hosts: str
    chroot: str
    user: str
    password: str
    tls: Tls | None = None
    sasl: bool = False
    """Whether user and password are for SASL; otherwise they only protect this queue's nodes."""

    @property
    def display_url(self) -> str:
        """Return the URL without the password."""
        return f"zookeeper://{self.hosts}{self.chroot}"

    @property
    def is_local(self) -> bool:
        """Return whether the servers can be reached only from this machine."""
        return all(urlsplit(f"//{host}").hostname in LOOPBACK for host in self.hosts.split(","))


def parse_address(url: str) -> Address:
    """Parse ``zookeeper://user:password@h1:2181,h2:2181/chroot?tls=true&ca=ca.pem``.

    Raises:
        QueueRefused: it names no host, or has an unknown option.
    """
    try:
        parts = urlsplit(url)  # for several hosts, which ``net.urls.split`` does not support
    except ValueError as e:
        raise QueueRefused(
            f"{urls.redact(url)} is not a URL ({e}). Give zookeeper://host:port,host:port/chroot."
        ) from None
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    chroot = parts.path.rstrip("/")
    if not hosts or "//" in chroot:
        raise QueueRefused(f"zookeeper://{hosts}{parts.path}: give zookeeper://host:port,host:port/chroot.")
    display_url = f"zookeeper://{hosts}{chroot}"
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(options.keys() - {*TLS_OPTIONS, SASL_OPTION}):
        raise QueueRefused(
            f"{display_url}: there is no option {unknown[0]}; choose from {', '.join((*TLS_OPTIONS, SASL_OPTION))}."
        )
    sasl = options.pop(SASL_OPTION, "false")
    if sasl not in ("true", "false"):
        raise QueueRefused(f"{display_url}: give sasl=true or sasl=false.")
    if sasl == "true" and not (user and password):
        raise QueueRefused(f"{display_url}: sasl=true needs a user: give zookeeper://user:password@host:port.")
    return Address(hosts, chroot, unquote(user), unquote(password), _parse_tls(options, display_url), sasl == "true")


def _parse_tls(options: dict[str, str], display_url: str) -> Tls | None:
    """Return the TLS options of a URL; None without TLS."""
    flags = {name: options.pop(name, default) for name, default in (("tls", "false"), ("check_hostname", "true"))}
    if invalid := [name for name, value in flags.items() if value not in ("true", "false")]:
        raise QueueRefused(f"{display_url}: give {invalid[0]}=true or {invalid[0]}=false.")
    if flags["tls"] == "false":
        if options:
            raise QueueRefused(f"{display_url}: {min(options)} is for TLS: give tls=true too.")
        return None
    return Tls(**options, check_hostname=flags["check_hostname"] == "true")
