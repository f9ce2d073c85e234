"""What the URL of a queue on ZooKeeper says."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from ferryman.intake.errors import QueueRefused

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class Address(NamedTuple):
    """What a queue's URL says."""

    hosts: str
    chroot: str
    user: str
    password: str

    @property
    def shown(self) -> str:
        """Without the password."""
        return f"zookeeper://{self.hosts}{self.chroot}"

    @property
    def is_local(self) -> bool:
        """Can nobody but this machine reach it?"""
        return all(urlsplit(f"//{host}").hostname in LOOPBACK for host in self.hosts.split(","))


def address(url: str) -> Address:
    """The parts of ``zookeeper://user:password@h1:2181,h2:2181/chroot``.

    Raises:
        QueueRefused: it names no host.
    """
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    chroot = parts.path.rstrip("/")
    if not hosts or "//" in chroot:
        raise QueueRefused(f"zookeeper://{hosts}{parts.path}: give zookeeper://host:port,host:port/chroot.")
    return Address(hosts, chroot, unquote(user), unquote(password))
