"""The store port: a small tree of nodes, with ZooKeeper's promises.

A queue is written once, over this port. A node has a path, data and children; it may be *ephemeral*: then it lives as
long as the session that made it. A store promises:

1. ``commit`` makes all its changes at once or none: no reader, and no crash, ever sees a part of them.
2. What a commit checks (a version, that a node is there) is still so when its changes take effect.
3. Numbers of children are given once: a number whose node was removed is not given again.
4. A session ends when its process has been dead, stopped or cut off for the session timeout. Its ephemeral nodes are
   gone then. A commit that names a session takes effect while that session lives, or not at all: so a holder of a lock
   that was stopped too long cannot change anything after another has taken the lock.

One job's life at the port::

    store.commit([Check("/jobs/states/pending/05-jid1"), Create("/jobs/jid1/lock", ephemeral=True)], session=s)
    store.commit([Delete("/jobs/states/pending/05-jid1"), Create("/jobs/states/estimating/05-jid1"), ...], session=s)
    store.commit([Delete("/jobs/jid1/lock")], session=s)

A crash between two commits leaves what the first one said; the lock goes with the session.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from ferryman.errors import FerrymanError
from ferryman.intake.errors import QueueRefused
from ferryman.net import urls


class StoredNode(NamedTuple):
    """A node with its data and counters, as it was read."""

    data: bytes
    version: int
    """Number of times that its data was set."""
    children: int
    """Number of children now."""
    next_number: int
    """The number that its next numbered child gets."""
    owner: int
    """The session that an ephemeral node lives with; 0 for one that stays."""
    creation: int
    """Number that differs from that of every other node with this path, earlier or later."""
    created_s: float
    modified_s: float
    """Time when its data was set last, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node. ``numbered``: its path ends in the number that the caller expects, its parent's
    ``next_number``."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Replace a node's data; ``version``: only if the node still has that version."""

    path: str
    data: bytes
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node without children."""

    path: str


@dataclass(frozen=True, slots=True)
class Check:
    """Check that a node exists; ``version``: and has that version; ``creation``: and was not removed and created again.

    ZooKeeper compares versions with a change, but not creations: its store looks right before the change. Who depends
    on a creation also checks the version of a node that changes with it.
    """

    path: str
    version: int | None = None
    creation: int | None = None


Op = Create | Set | Delete | Check


class ConflictReason(enum.StrEnum):
    """Reason why a commit was refused."""

    EXISTS = "there already"
    MISSING = "not there"
    CHANGED = "changed meanwhile"
    NOT_EMPTY = "not empty"


class Conflict(FerrymanError):
    """A commit was refused, and changed nothing. ``index`` is the position of the first operation that failed."""

    def __init__(self, index: int, path: str, why: ConflictReason) -> None:
        super().__init__(index, path, why)
        self.index, self.path, self.reason = index, path, why

    def __str__(self) -> str:
        return f"{self.path}: {self.reason.value}"


class SessionLost(FerrymanError):
    """The session of a commit has ended, and the commit changed nothing."""


class Watch(Protocol):
    """Reports that a node's children have changed since the watch was made, or that the node was created or removed."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for a change, at most this long. Returns whether there was one."""

    def close(self) -> None:
        """Stop watching. A thread in ``wait`` returns at once, without a change."""


class Store(Protocol):
    """A tree of nodes. Safe to use from many threads."""

    url: str
    """URL for operators, without passwords."""

    def session(self) -> int:
        """Return the session of this handle; begin one if there is none, or if the last one has ended."""

    def is_alive(self, session: int) -> bool:
        """Return whether a session lives, as far as this handle knows without asking."""

    def commit(
        self, ops: Sequence[Op], *, session: int | None = None, read_after: Sequence[str] = ()
    ) -> list[StoredNode | None]:
        """Apply all operations or none. Ephemeral nodes need a ``session``, and belong to it.

        Returns the nodes at ``read_after``, as they are after it: in the time that the change takes alone.

        Raises:
            Conflict: a node is there, missing, or another than expected.
            SessionLost: ``session`` has ended.
            QueueLost: the server was lost. What was asked may have been done, all of it or nothing, if it made numbered
                nodes; anything else is asked again until it is known.
        """

    def read(self, paths: Sequence[str]) -> list[StoredNode | None]:
        """Read the nodes at these paths in one call; None for what does not exist."""

    def children(self, path: str, prefix: str = "") -> list[str]:
        """Return the sorted names of a node's children that begin with ``prefix``; none if the node does not exist."""

    def unlocked_entries(self, folder: str, items: str) -> Iterator[str]:
        """Yield the children of a folder, sorted, that seem to be unlocked. They are named ``05-ID``; the lock of one
        is ``items/ID/lock``.

        This is a hint, and may be a second old: who wants one makes its lock, and checks that the child is there, in
        one commit. When it ends, all were named that were there and not held when it was asked for.
        """

    def watch(self, path: str) -> Watch:
        """Watch the children of a node from now on."""

    def walk(self, path: str) -> Iterator[tuple[str, StoredNode]]:
        """Yield a node and all nodes below, parents first, sorted."""

    def skip_numbers(self, path: str, number: int) -> None:
        """Make sure that the next numbered child of a node gets this number or a higher one."""

    def close(self) -> None:
        """End the session; its ephemeral nodes are removed."""


# URLs of queues on ZooKeeper.

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


TLS_OPTIONS: Final = ("tls", "ca", "cert", "key", "check_hostname")
"""Options of a URL, behind ``?``."""


class Tls(NamedTuple):
    """Certificates for TLS between this client and the servers."""

    ca: str = ""
    """A file of certificates that sign the servers'; "": the system's authorities."""
    cert: str = ""
    """A file of this client's certificate."""
    key: str = ""
    """A file of its key."""
    check_hostname: bool = True
    """Whether a server's certificate must have the host name of the URL."""


SASL_OPTION: Final = "sasl"
"""Option of a URL: authenticate as a user that the servers know, by SASL (DIGEST-MD5)."""


class Address(NamedTuple):
    """Parts of a queue's URL."""

    hosts: str
    chroot: str
    user: str
    password: str
    tls: Tls | None = None
    sasl: bool = False
    """Whether user and password are for SASL; otherwise they protect this queue's nodes only."""

    @property
    def display_url(self) -> str:
        """Return the URL without the password."""
        return f"zookeeper://{self.hosts}{self.chroot}"

    @property
    def is_local(self) -> bool:
        """Return whether the servers can be reached from this machine only."""
        return all(urlsplit(f"//{host}").hostname in LOOPBACK for host in self.hosts.split(","))


def parse_address(url: str) -> Address:
    """Parse ``zookeeper://user:password@h1:2181,h2:2181/chroot?tls=true&ca=ca.pem``.

    Raises:
        QueueRefused: it names no host, or has an option that there is none of.
    """
    try:
        parts = urlsplit(url)  # of several hosts, which `net.split` does not know
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
