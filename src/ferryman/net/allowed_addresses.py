"""Limits of URLs given by strangers: which addresses may be connected to, and which files of this machine may be read.

An address that is not public (private, loopback, link-local, where clouds keep their metadata services, …) is refused
unless a pattern allows it. It is checked after the host's name was resolved, and the connection goes to the very
address that was checked: a second answer of the name server does not matter. No proxy is used.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import re
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import BinaryIO, Final
from urllib.parse import unquote, urlsplit

import msgspec

from ferryman.errors import PermanentError, UsageError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

METADATA: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("169.254.0.0/16", "fe80::/10"),
        *("100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),  # Alibaba, Azure, Oracle
        *("fd00:ec2::/32", "fd20:ce::254/128", "fd00:c1::a9fe:a9fe/128", "fd00:42::42/128"),
        # AWS, Google, Oracle, Scaleway
    )
)
"""Link-local addresses, and those of the metadata services of clouds, which give a machine its secrets."""

NOT_PUBLIC: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("192.0.0.0/24", "192.88.99.0/24"),
        *("64:ff9b:1::/48", "2001::/23", "3fff::/20", "5f00::/16", "fec0::/10"),
    )
)
"""Addresses of special purpose, by IANA's registries, that some versions of Python consider public."""

EMBEDS_IPV4: Final = tuple(
    map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/96", "::ffff:0:0:0/96", "::/96", "::ffff:0:0/96"))
)
"""IPv6 networks whose addresses lead to the IPv4 address in their last 32 bits."""

REACH_VARIABLE: Final = "FERRYMAN_REACH"
"""Environment variable by which a process passes its ``Reach`` to the workers of its plan."""


class NotAllowed(PermanentError):
    """A URL leads to an address or a file that its author may not have us read."""


@dataclass(frozen=True)
class HostPattern:
    """A host name with ``*``, an address, or a network in CIDR form; with a port, or for all ports."""

    name: str = ""
    network: Network | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> HostPattern:
        """Parse ``maps.example.org``, ``*.example.org:8080``, ``10.0.0.0/8``, ``[fd00::1]:443``.

        Raises:
            UsageError: it is none of these.
        """
        match = re.fullmatch(r"\[([^\]]+)\](?::([0-9]{1,5}))?", text)
        if match is None and text.count(":") <= 1:
            match = re.fullmatch(r"([^:\[\]\s]+)(?::([0-9]{1,5}))?", text)
        host, port = match.groups() if match else (text, None)
        try:
            return cls(network=ipaddress.ip_network(host, strict=False), port=None if port is None else int(port))
        except ValueError:
            pass
        if match is None or not re.fullmatch(r"[\w*.-]+", host):
            raise UsageError(f"{text!r} is not a host name, an address or a network. Give one, as 10.0.0.0/8:8080.")
        return cls(name=host.lower().rstrip("."), port=None if port is None else int(port))

    def allows(self, host: str, address: Address, port: int) -> bool:
        """Return whether the pattern matches this address, or the name of the requested host."""
        if self.port not in (None, port):
            return False
        if self.network is not None:
            return address.version == self.network.version and address in self.network
        return fnmatchcase(host.lower().rstrip("."), self.name)


@dataclass(frozen=True)
class Reach:
    """Addresses and files that may be reached.

    Args:
        folders: files below these may be read by ``file:`` URLs; none: no file may be read.
        hosts: exceptions, which allow addresses that would be refused; see ``HostPattern.parse``.
        strict: refuse every address that is not public; False: only ``METADATA``.
    """

    folders: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    strict: bool = True

    def file(self, url: str) -> BinaryIO:
        """Open the file that a URL names.

        The path of the open file is checked, not only the path in the URL: whoever may write below a folder may replace
        files and folders by links at any moment.

        Raises:
            NotAllowed: it is in none of the folders, wherever links lead; or it is a folder, a pipe or a device.
            OSError: it is not there.
        """
        path = unquote(urlsplit(url).path)
        folders = list(map(_where, self.folders))
        _refuse_elsewhere(path, _where(path), folders)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for its writer
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NotAllowed(f"{path}: is not a file.")
            _refuse_elsewhere(path, _real_path(descriptor, path), folders)
            return open(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise

    def addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host, all of which may be connected to.

        Raises:
            NotAllowed: one of them may not be connected to.
            OSError: the host is unknown.
        """
        bare = host.strip("[]")
        answers = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM)
        addresses = dict.fromkeys(str(sockaddr[0]).partition("%")[0] for *_, sockaddr in answers)
        for text in addresses:
            if not self.allows(bare, ipaddress.ip_address(text), port):
                raise NotAllowed(
                    f"{host}: its address {text} is not a public one, and may not be asked for. Allow it with --hosts."
                )
        return list(addresses)

    def allows(self, host: str, address: Address, port: int) -> bool:
        """Return whether a connection to this address is allowed."""
        embedded = _embedded_ipv4(address)
        refused = any(one in network for one in (address, embedded) for network in METADATA)
        if self.strict and not refused:
            refused = not all(map(_is_public, (address, embedded)))
        return not refused or any(pattern.allows(host, embedded, port) for pattern in self._patterns)

    def check(self) -> None:
        """Raises ``UsageError`` if one of ``hosts`` is not a pattern."""
        _ = self._patterns

    @functools.cached_property
    def _patterns(self) -> list[HostPattern]:
        return [HostPattern.parse(text) for text in self.hosts]


NOTHING_PRIVATE: Final = Reach()
"""Limits for URLs from submitters: public addresses only, and no files."""

OWN_PLAN: Final = Reach(strict=False)
"""Limits for steps of one's own plan: its author is trusted, though the authors of documents may not be."""


def process_reach() -> Reach:
    """Return the limits that the environment sets for workers of this plan; ``OWN_PLAN`` if it sets none."""
    encoded = os.environ.get(REACH_VARIABLE)
    return msgspec.json.decode(encoded, type=Reach) if encoded else OWN_PLAN


def to_environment(reach: Reach) -> str:
    """Encode for ``process_reach``."""
    return msgspec.json.encode({"folders": reach.folders, "hosts": reach.hosts, "strict": reach.strict}).decode()


def _refuse_elsewhere(path: str, real: str, folders: Iterable[str]) -> None:
    if not any(real == folder or real.startswith(f"{folder.rstrip('/')}/") for folder in folders):
        raise NotAllowed(f"{path}: files of this machine are not read from there. Allow it with --allow-files DIR.")


def _where(path: str) -> str:
    """Return where a path leads, through all links. Nothing is opened, so that no pipe or device takes notice."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # it is not there, perhaps
        return os.path.realpath(path)
    try:
        return _real_path(descriptor, path)
    finally:
        os.close(descriptor)


def _real_path(descriptor: int, path: str) -> str:
    """Return the path of an open file; if the system does not tell, where its path leads now, if that is the same
    file."""
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}")
    real = os.path.realpath(path)
    return real if os.path.samestat(os.stat(real), os.fstat(descriptor)) else ""


def _embedded_ipv4(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address leads to; any other address is returned as it is."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if any(address in network for network in EMBEDS_IPV4) and int(address) > 1:  # :: and ::1 are themselves
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.sixtofour or address


def _is_public(address: Address) -> bool:
    """Return whether an address is public; the caller also checks the IPv4 address embedded in it."""
    if any(address in network for network in NOT_PUBLIC) or address.is_multicast:
        return False
    return address.is_global or _embedded_ipv4(address) is not address
