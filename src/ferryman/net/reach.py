"""Limits of URLs given by strangers: which addresses may be connected to, and which files of this machine may be read.

An address that is not public (private, loopback, link-local, where clouds keep their metadata services, …) is refused
unless a pattern allows it. It is judged after the host's name was resolved, and the connection goes to the very address
that was judged: a second answer of the name's server does not matter. No proxy is used.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import re
import socket
import ssl
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import unquote, urlsplit

import msgspec

from ferryman.errors import PermanentError, UsageError

if TYPE_CHECKING:
    from urllib3 import PoolManager

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
"""Link-local addresses, and where clouds tell a machine its secrets."""

NOT_PUBLIC: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("192.0.0.0/24", "192.88.99.0/24"),
        *("64:ff9b:1::/48", "2001::/23", "3fff::/20", "5f00::/16", "fec0::/10"),
    )
)
"""Addresses of special purpose, by IANA's registries, which some versions of Python take for public."""

WITH_IPV4: Final = tuple(
    map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/96", "::ffff:0:0:0/96", "::/96", "::ffff:0:0/96"))
)
"""Addresses that lead to the IPv4 address in their last 32 bits."""

ENVIRONMENT: Final = "FERRYMAN_REACH"
"""How a process tells the workers of its plan what they may reach."""


class NotAllowed(PermanentError):
    """A URL that leads where its author may not send us."""


@dataclass(frozen=True)
class HostPattern:
    """A host name with ``*``, an address, or a network in CIDR form; with a port, or for all."""

    name: str = ""
    network: Network | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> HostPattern:
        """``maps.example.org``, ``*.example.org:8080``, ``10.0.0.0/8``, ``[fd00::1]:443``.

        Raises:
            UsageError: it is none of these.
        """
        found = re.fullmatch(r"\[([^\]]+)\](?::([0-9]{1,5}))?", text)
        if found is None and text.count(":") <= 1:
            found = re.fullmatch(r"([^:\[\]\s]+)(?::([0-9]{1,5}))?", text)
        host, port = found.groups() if found else (text, None)
        try:
            return cls(network=ipaddress.ip_network(host, strict=False), port=None if port is None else int(port))
        except ValueError:
            pass
        if found is None or not re.fullmatch(r"[\w*.-]+", host):
            raise UsageError(f"{text!r} is not a host name, an address or a network. Give one, as 10.0.0.0/8:8080.")
        return cls(name=host.lower().rstrip("."), port=None if port is None else int(port))

    def allows(self, host: str, address: Address, port: int) -> bool:
        """Does it name this address, or the host that was asked for?"""
        if self.port not in (None, port):
            return False
        if self.network is not None:
            return address.version == self.network.version and address in self.network
        return fnmatchcase(host.lower().rstrip("."), self.name)


@dataclass(frozen=True)
class Reach:
    """Addresses and files that may be reached.

    Args:
        folders: files below these may be read by ``file:`` URLs; none: no file.
        hosts: allow what would be refused, as ``HostPattern.parse`` takes them.
        strict: refuse every address that is not public; False: only ``METADATA``.
    """

    folders: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    strict: bool = True

    def file(self, url: str) -> BinaryIO:
        """The file that a URL names, open. Whoever may write below a folder may put links in the place of files and
        folders at any moment: so what is judged is where the open file is.

        Raises:
            NotAllowed: it is in none of the folders, wherever links lead; or it is a folder, a pipe or a device.
            OSError: it is not there.
        """
        path = Path(unquote(urlsplit(url).path))
        self._refuse_elsewhere(path, os.path.realpath(path))
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for its writer
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NotAllowed(f"{path}: is not a file.")
            self._refuse_elsewhere(path, _place_of(descriptor, path))
            return open(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise

    def _refuse_elsewhere(self, path: Path, real: str) -> None:
        if not any(Path(real).is_relative_to(os.path.realpath(folder)) for folder in self.folders):
            raise NotAllowed(f"{path}: files of this machine are not read from there. Allow it with --allow-files DIR.")

    def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a host, each of which may be connected to.

        Raises:
            NotAllowed: one of them may not.
            OSError: nobody knows the host.
        """
        bare = host.strip("[]")
        answers = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM)
        found = dict.fromkeys(str(sockaddr[0]).partition("%")[0] for *_, sockaddr in answers)
        for text in found:
            if not self.allows(bare, ipaddress.ip_address(text), port):
                raise NotAllowed(
                    f"{host}: its address {text} is not a public one, and may not be asked for. Allow it with --hosts."
                )
        return list(found)

    def allows(self, host: str, address: Address, port: int) -> bool:
        """May this address be connected to?"""
        inner = _inner(address)
        refused = any(one in network for one in (address, inner) for network in METADATA)
        if self.strict and not refused:
            refused = not all(map(_is_public, (address, inner)))
        return not refused or any(pattern.allows(host, inner, port) for pattern in self._patterns)

    def check(self) -> None:
        """Raises ``UsageError`` if one of ``hosts`` is not a pattern."""
        _ = self._patterns

    @functools.cached_property
    def _patterns(self) -> list[HostPattern]:
        return [HostPattern.parse(text) for text in self.hosts]

    def pool(self, connections: int = 1) -> PoolManager:
        """Connections that keep to it, so many a server; certificates are checked by the system's authorities."""
        return _pool(self, connections)


NOTHING_PRIVATE: Final = Reach()
"""Reach of submitters: public addresses, and no file."""

OWN_PLAN: Final = Reach(strict=False)
"""Reach of a step of one's own plan: its author is trusted, though the authors of documents may not be."""


def of_this_process() -> Reach:
    """Return the reach set for the workers of this plan; without one, ``OWN_PLAN``."""
    told = os.environ.get(ENVIRONMENT)
    return msgspec.json.decode(told, type=Reach) if told else OWN_PLAN


def to_environment(reach: Reach) -> str:
    """Encode for ``of_this_process``."""
    return msgspec.json.encode({"folders": reach.folders, "hosts": reach.hosts, "strict": reach.strict}).decode()


def _place_of(descriptor: int, path: Path) -> str:
    """Where an open file is; where nobody tells, where its path leads now, if it is the same file."""
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}")
    real = os.path.realpath(path)
    return real if os.path.samestat(os.stat(real), os.fstat(descriptor)) else ""


def _inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 one leads to; any other, itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if any(address in network for network in WITH_IPV4) and int(address) > 1:  # :: and ::1 are themselves
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.sixtofour or address


def _is_public(address: Address) -> bool:
    """By itself; what it leads to is judged, too."""
    if any(address in network for network in NOT_PUBLIC) or address.is_multicast:
        return False
    return address.is_global or _inner(address) is not address


def _pool(reach: Reach, connections: int) -> PoolManager:
    from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
    from urllib3.connection import HTTPConnection, HTTPSConnection

    def connect(self: Any) -> socket.socket:
        return _connected(reach, self)

    def headers(self: Any) -> Any:
        with _cut_after(self.sock, self.timeout):
            return HTTPConnection.getresponse(self)

    guarded = {"_new_conn": connect, "getresponse": headers}
    plain = type("GuardedConnection", (HTTPConnection,), guarded)
    safe = type("GuardedSafeConnection", (HTTPSConnection,), guarded)
    servers = PoolManager(num_pools=32, maxsize=connections, ssl_context=ssl.create_default_context())
    servers.pool_classes_by_scheme = {
        "http": type("GuardedPool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
        "https": type("GuardedSafePool", (HTTPSConnectionPool,), {"ConnectionCls": safe}),
    }
    return servers


@contextmanager
def _cut_after(connected: socket.socket, timeout_s: object) -> Iterator[None]:
    """Cut a connection whose answer has no end of its headers by then: a server that sends a byte now and then would
    never run into a timeout of the socket's.

    Raises:
        TimeoutError: it was cut.
    """
    if not isinstance(timeout_s, int | float):
        yield
        return
    is_cut = threading.Event()

    def cut() -> None:
        is_cut.set()
        with suppress(OSError):
            socket.socket.shutdown(connected, socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception:
        if is_cut.is_set():
            raise TimeoutError(f"no whole headers within {timeout_s:g} s") from None
        raise
    finally:
        timer.cancel()


def _connected(reach: Reach, asking: Any) -> socket.socket:
    """A connection of urllib3's to the first address that answers; its errors are urllib3's own."""
    from urllib3 import exceptions as of
    from urllib3.util import connection

    host = asking._dns_host
    began = time.monotonic()
    try:
        addresses: Sequence[str] = reach.addresses(host, asking.port)
    except socket.gaierror as e:
        _refuse_late(asking, began)
        raise of.NameResolutionError(asking.host, asking, e) from e
    except UnicodeError:
        raise of.LocationParseError(f"{host!r}, label empty or too long") from None
    _refuse_late(asking, began)
    for n, address in enumerate(addresses, 1):
        try:
            return connection.create_connection(
                (address, asking.port), asking.timeout, asking.source_address, asking.socket_options
            )
        except TimeoutError as e:
            if n == len(addresses):
                text = f"Connection to {asking.host} timed out. (connect timeout={asking.timeout})"
                raise of.ConnectTimeoutError(asking, text) from e
        except OSError as e:
            if n == len(addresses):
                raise of.NewConnectionError(asking, f"Failed to establish a new connection: {e}") from e
    raise AssertionError("a host without addresses is an error of its name")


def _refuse_late(asking: Any, began: float) -> None:
    """A name's server may keep us waiting as any other may: nobody can break that off, but it is known as such.

    Raises:
        ConnectTimeoutError: it took longer than a connection may.
    """
    from urllib3.exceptions import ConnectTimeoutError

    took = time.monotonic() - began
    if isinstance(asking.timeout, int | float) and took > asking.timeout:
        raise ConnectTimeoutError(asking, f"{asking.host}: its name was not resolved within {asking.timeout:g} s")
