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
    """A node as it was read."""

    data: bytes
    version: int
    """How often its data was set."""
    children: int
    """How many it has now."""
    numbered: int
    """The number that its next numbered child gets."""
    owner: int
    """The session that an ephemeral node lives with; 0 for one that stays."""
    creation: int
    """Tells it from every other node that had this path before it, or has it after it."""
    created_s: float
    modified_s: float
    """When its data was set last, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node. ``numbered``: its path ends in the number that the caller expects, its parent's ``numbered``."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Replace a node's data; ``version``: only if it is still that one."""

    path: str
    data: bytes
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node without children."""

    path: str


@dataclass(frozen=True, slots=True)
class Check:
    """The node is there; ``version``: and its data is still of that one; ``creation``: and it is that very node.

    ZooKeeper compares versions with a change, but not creations: its store looks right before the change. Who depends
    on a creation also checks the version of a node that changes with it.
    """

    path: str
    version: int | None = None
    creation: int | None = None


Op = Create | Set | Delete | Check


class Why(enum.StrEnum):
    """Why a commit was refused."""

    EXISTS = "there already"
    MISSING = "not there"
    CHANGED = "changed meanwhile"
    NOT_EMPTY = "not empty"


class Conflict(FerrymanError):
    """A commit was refused: nothing of it took effect. ``index`` is that of the first operation that could not be."""

    def __init__(self, index: int, path: str, why: Why) -> None:
        super().__init__(index, path, why)
        self.index, self.path, self.why = index, path, why

    def __str__(self) -> str:
        return f"{self.path}: {self.why.value}"


class SessionLost(FerrymanError):
    """The session that a commit named has ended: nothing of it took effect."""


class Watch(Protocol):
    """Tells that the children of a node have changed since it was asked for, or that its node came or went."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for a change, at most so long. Was there one?"""

    def close(self) -> None:
        """Stop looking. Whoever waits returns at once, without a change."""


class Store(Protocol):
    """Where the nodes are. Safe to use from many threads."""

    url: str
    """URL for operators, without passwords."""

    def session(self) -> int:
        """The session of this handle, begun if there is none that lives. After one was lost, it is another."""

    def alive(self, session: int) -> bool:
        """Does this session live, for all that is known here without asking?"""

    def commit(
        self, ops: Sequence[Op], *, session: int | None = None, look: Sequence[str] = ()
    ) -> list[StoredNode | None]:
        """Do all of it, or nothing. ``session`` is needed to make ephemeral nodes; they belong to it.

        Returns the nodes at ``look``, as they are after it: in the time that the change takes alone.

        Raises:
            Conflict: a node is there, missing, or another than expected.
            SessionLost: ``session`` has ended.
            QueueLost: the server was lost. What was asked may have been done, all of it or nothing, if it made numbered
                nodes; anything else is asked again until it is known.
        """

    def read(self, paths: Sequence[str]) -> list[StoredNode | None]:
        """The nodes at these paths, in one go; None for what is not there."""

    def children(self, path: str, prefix: str = "") -> list[str]:
        """The names of a node's children that begin so, sorted; none if it is not there."""

    def free(self, folder: str, items: str) -> Iterator[str]:
        """Children of a folder, sorted, that nobody seems to hold. They are named ``05-ID``; the lock of one is
        ``items/ID/lock``.

        This is a hint, and may be a second old: who wants one makes its lock, and checks that the child is there, in
        one commit. When it ends, all were named that were there and not held when it was asked for.
        """

    def watch(self, path: str) -> Watch:
        """Look at the children of a node from now on."""

    def walk(self, path: str) -> Iterator[tuple[str, StoredNode]]:
        """A node and all below, parents first, sorted."""

    def advance(self, path: str, number: int) -> None:
        """Make sure that this node's next numbered child gets this number or a higher one."""

    def close(self) -> None:
        """End the session, and what lives with it."""


# What the URL of a queue on ZooKeeper says.

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


TLS: Final = ("tls", "ca", "cert", "key", "check_hostname")
"""Options of a URL, behind ``?``."""


class Tls(NamedTuple):
    """How the servers are known, and this client to them."""

    ca: str = ""
    """A file of certificates that sign the servers'; "": the system's authorities."""
    cert: str = ""
    """A file of this client's certificate."""
    key: str = ""
    """A file of its key."""
    check_hostname: bool = True
    """Must a server's certificate be of the name by which it is asked?"""


SASL: Final = "sasl"
"""Another option: user and password are proved to the servers by SASL (DIGEST-MD5), and they know the user."""


class Address(NamedTuple):
    """Parts of a queue's URL."""

    hosts: str
    chroot: str
    user: str
    password: str
    tls: Tls | None = None
    sasl: bool = False
    """Do the servers know the user by SASL? Otherwise user and password are for this queue's nodes only."""

    @property
    def shown(self) -> str:
        """Without the password."""
        return f"zookeeper://{self.hosts}{self.chroot}"

    @property
    def is_local(self) -> bool:
        """Can nobody but this machine reach it?"""
        return all(urlsplit(f"//{host}").hostname in LOOPBACK for host in self.hosts.split(","))


def address(url: str) -> Address:
    """The parts of ``zookeeper://user:password@h1:2181,h2:2181/chroot?tls=true&ca=ca.pem``.

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
    shown = f"zookeeper://{hosts}{chroot}"
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(options.keys() - {*TLS, SASL}):
        raise QueueRefused(f"{shown}: there is no option {unknown[0]}; choose from {', '.join((*TLS, SASL))}.")
    sasl = options.pop(SASL, "false")
    if sasl not in ("true", "false"):
        raise QueueRefused(f"{shown}: give sasl=true or sasl=false.")
    if sasl == "true" and not (user and password):
        raise QueueRefused(f"{shown}: sasl=true needs a user: give zookeeper://user:password@host:port.")
    return Address(hosts, chroot, unquote(user), unquote(password), _tls(options, shown), sasl == "true")


def _tls(options: dict[str, str], shown: str) -> Tls | None:
    """Return the TLS options of a URL; None without TLS."""
    flags = {name: options.pop(name, default) for name, default in (("tls", "false"), ("check_hostname", "true"))}
    if wrong := [name for name, value in flags.items() if value not in ("true", "false")]:
        raise QueueRefused(f"{shown}: give {wrong[0]}=true or {wrong[0]}=false.")
    if flags["tls"] == "false":
        if options:
            raise QueueRefused(f"{shown}: {min(options)} is for TLS: give tls=true too.")
        return None
    return Tls(**options, check_hostname=flags["check_hostname"] == "true")
