"""What URLs of strangers may lead to: which addresses are connected to, and which files of this machine are read.

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
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from ferryman.errors import PermanentError, UsageError

if TYPE_CHECKING:
    from urllib3 import PoolManager

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

METADATA: Final = tuple(
    map(ipaddress.ip_network, ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "100.100.100.200/32"))
)
"""Link-local addresses, and where clouds tell a machine its secrets."""

NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
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
    """What may be reached.

    Args:
        folders: files below these may be read by ``file:`` URLs; none: no file.
        hosts: allow what would be refused, as ``HostPattern.parse`` takes them.
        strict: refuse every address that is not public; False: only ``METADATA``.
    """

    folders: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    strict: bool = True

    def file(self, url: str) -> Path:
        """The file that a URL names.

        Raises:
            NotAllowed: it is in none of the folders, wherever links lead.
        """
        path = Path(unquote(urlsplit(url).path))
        real = Path(os.path.realpath(path))
        if not any(real.is_relative_to(os.path.realpath(folder)) for folder in self.folders):
            raise NotAllowed(f"{path}: files of this machine are not read from there. Allow it with --allow-files DIR.")
        return real

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
        refused = not inner.is_global or inner.is_multicast if self.strict else any(inner in net for net in METADATA)
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
"""What whoever submits something may name: public addresses, and no file."""

OWN_PLAN: Final = Reach(strict=False)
"""What a step of somebody's own plan may ask for: its author is trusted, whoever wrote the documents may not be."""


def of_this_process() -> Reach:
    """What was told to the workers of this plan; without a word, ``OWN_PLAN``."""
    told = os.environ.get(ENVIRONMENT)
    return msgspec.json.decode(told, type=Reach) if told else OWN_PLAN


def to_environment(reach: Reach) -> str:
    """What ``of_this_process`` reads."""
    return msgspec.json.encode({"folders": reach.folders, "hosts": reach.hosts, "strict": reach.strict}).decode()


def _inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 one leads to; any other, itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


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
    try:
        addresses: Sequence[str] = reach.addresses(host, asking.port)
    except socket.gaierror as e:
        raise of.NameResolutionError(asking.host, asking, e) from e
    except UnicodeError:
        raise of.LocationParseError(f"{host!r}, label empty or too long") from None
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
