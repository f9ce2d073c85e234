"""What the URL of a queue on ZooKeeper says."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from ferryman import net
from ferryman.intake.errors import QueueRefused

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
    """What a queue's URL says."""

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
            f"{net.shown(url)} is not a URL ({e}). Give zookeeper://host:port,host:port/chroot."
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
    """What the options of a URL say; None without TLS."""
    flags = {name: options.pop(name, default) for name, default in (("tls", "false"), ("check_hostname", "true"))}
    if wrong := [name for name, value in flags.items() if value not in ("true", "false")]:
        raise QueueRefused(f"{shown}: give {wrong[0]}=true or {wrong[0]}=false.")
    if flags["tls"] == "false":
        if options:
            raise QueueRefused(f"{shown}: {min(options)} is for TLS: give tls=true too.")
        return None
    return Tls(**options, check_hostname=flags["check_hostname"] == "true")
