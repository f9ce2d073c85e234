"""HTTP for steps, destinations, notifications and the intake: requests, time limits, redirects, headers, secrets.

After any failure it is known whether the server may have received the request: ``NotSent`` or ``Unanswered``. What a
status means is for the caller to say (see ``urls`` for what all statuses have in common).

``Http`` is a connection to one server that the plan's author names. ``pool``, ``exchange`` and ``follow`` are for URLs
that come with documents and submissions: each connection, also one to which a redirect leads, obeys a ``Reach``.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import Any, Final, NamedTuple

from urllib3 import (
    BaseHTTPResponse,
    HTTPConnectionPool,
    HTTPSConnectionPool,
    PoolManager,
    Timeout,
    exceptions,
)
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.util import Url, connection

from ferryman import limits
from ferryman.errors import Misconfigured, PlanError, hide_secrets
from ferryman.net import urls
from ferryman.net.allowed_addresses import Reach
from ferryman.net.faults import causes

ANSWER_BYTES: Final = 16 * limits.MIB
"""Largest part read of an answer: outcomes for far more deliveries than a chunk has."""

Auth = str | tuple[str, str]

_LEAST_S: Final = 0.001
"""Shortest time-out of a socket: 0 would make it non-blocking."""


class NotSent(Exception):
    """No byte of the request was sent, so nothing took effect.

    Attributes:
        permanent: trying again does not help (a certificate that is not trusted, a name that no host can have).
        unknown_host: the name server knows no host of this name.
    """

    def __init__(self, why: str, permanent: bool = False, *, unknown_host: bool = False) -> None:
        super().__init__(why, permanent)
        self.why, self.permanent, self.unknown_host = why, permanent, unknown_host

    def __str__(self) -> str:
        return self.why


class Unanswered(Exception):
    """The request was sent, at least in part, without a complete answer: it may or may not have taken effect.

    Attributes:
        timed_out: the answer took too long.
    """

    def __init__(self, why: str, *, timed_out: bool = False) -> None:
        super().__init__(why)
        self.timed_out = timed_out


class TooManyRedirects(Exception):
    """More redirects than are followed; ``url``: where the last one leads."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


class Answer(NamedTuple):
    """A complete answer; one that is not a success may lack its body."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def asks_to_wait(self) -> str:
        """Return a part of a message: how long the server asks to wait; "" if it does not."""
        wait_s = urls.retry_after_s(self.headers)
        return f", asks to wait {wait_s:.0f} s" if wait_s else ""

    def wait(self, until: float) -> bool:
        """Wait as the server of a request that was not handled asks (``Retry-After``).

        Args:
            until: latest time (monotonic) at which the request may be sent again.

        Returns:
            False: it was handled, its server does not ask, or there is no time.
        """
        wait_s = urls.retry_after_s(self.headers) if self.status in urls.NOT_HANDLED else None
        if wait_s is None or time.monotonic() + (wait_s := max(wait_s, limits.BACKOFF_FIRST_S)) > until:
            return False
        time.sleep(wait_s)
        return True


class Http:
    """A connection to the server of a URL, kept open between requests. No proxy, no redirects, no cookies.

    Args:
        url: http or https; a user and password in it are sent as Basic authentication. ``${NAME}`` in it, in ``auth``
            and in the headers' values, is filled in from the environment.
        auth: user and password, or the whole value of the header ``Authorization`` (``Bearer ${TOKEN}``).
        headers: sent with each request.
        ca: a PEM file with the authorities to trust; None: the system's.
        shown: the URL without secrets, for messages.

    Raises:
        Misconfigured: an environment variable is missing, the URL or a header's value is invalid, or ``ca`` cannot be
            read.
    """

    def __init__(
        self,
        url: str,
        *,
        shown: str,
        auth: Auth | None = None,
        headers: Mapping[str, str] | None = None,
        ca: str | None = None,
    ) -> None:
        parsed, login = _split_url(expand_variables(url, shown), shown)
        self._headers = {name: _header_value(name, value, shown) for name, value in (headers or {}).items()}
        self._secrets = [value for name, value in self._headers.items() if value != (headers or {})[name]]
        if isinstance(auth, str):
            self._headers["authorization"] = _header_value("auth=", auth, shown)
            self._secrets += self._headers["authorization"].split()[1:]
        elif auth is not None:
            login = ":".join(expand_variables(part, shown) for part in auth)
        if login:
            basic = urls.basic_auth(login)
            self._headers.setdefault("authorization", basic)
            self._secrets += [*basic.split()[1:], login.partition(":")[2]]
        self._secrets += [os.environ[name].strip() for name in variable_names(url)]
        self.path = parsed.request_uri
        self.connections = 0
        """Number of connections made so far: if it has changed, another process of the server may answer."""
        self._connection = _connection(parsed, ca, shown)
        self._connection.response_class = _StrictResponse

    def connect(self, timeout_s: float) -> None:
        """Connect, unless a connection is open. Raises ``NotSent``."""
        opened = self._connection
        if opened.is_connected or _has_only_tls_tickets(opened.sock):
            return
        opened.close()  # the server may have closed it meanwhile
        opened.timeout = timeout_s
        try:
            opened.connect()
        except (HTTPError, OSError) as e:
            opened.close()
            untrusted = [each for each in causes(e) if isinstance(each, ssl.SSLCertVerificationError)]
            if untrusted:
                why = getattr(untrusted[0], "verify_message", "") or "it is not trusted"
                raise NotSent(f"its certificate is refused: {why}. Give its authority: ca=", permanent=True) from e
            raise NotSent(_reason(e, timeout_s)) from e
        self.connections += 1

    def request(
        self, method: str, path: str, body: bytes | None, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request and read its answer, both within ``timeout_s``: also an answer that comes byte by byte.

        Raises:
            NotSent: nothing took effect.
            Unanswered: it may or may not have taken effect.
        """
        deadline = time.monotonic() + timeout_s
        self.connect(timeout_s)
        opened = self._connection
        all_headers = {"user-agent": "ferryman", "accept-encoding": "gzip", **self._headers, **(headers or {})}
        opened.timeout = max(deadline - time.monotonic(), _LEAST_S)
        opened.has_sent = False
        connected = opened.sock
        assert connected is not None
        try:
            with _cut_off_after(connected, opened.timeout):
                with suppress(BrokenPipeError, ConnectionResetError):  # a server may refuse it before it has all of it
                    opened.request(method, path, body=body, headers=all_headers, preload_content=False)
                answer = opened.getresponse()
        except (HTTPException, HTTPError, OSError, ValueError) as e:
            opened.close()
            if not opened.has_sent:  # a ValueError may hold the value of a header
                raise NotSent(f"the request cannot be sent ({type(e).__name__})", permanent=True) from None
            raise Unanswered(_reason(e, timeout_s)) from e
        content = bytearray()
        try:
            with _cut_off_after(connected, max(deadline - time.monotonic(), _LEAST_S)):
                while len(content) <= ANSWER_BYTES and (part := answer.read(limits.MIB, decode_content=True)):
                    content += part
            if len(content) > ANSWER_BYTES:
                raise HTTPException(f"more than {ANSWER_BYTES} bytes")
        except (HTTPException, HTTPError, OSError) as e:
            opened.close()
            if 200 <= answer.status < 300:
                raise Unanswered(f"it answered {answer.status}, but then {_reason(e, timeout_s)}") from e
            content.clear()
        return Answer(answer.status, self.redact(answer.reason or ""), answer.headers, bytes(content))

    def close(self) -> None:
        self._connection.close()

    def redact(self, text: str | bytes, limit: int = 300) -> str:
        """Return a text from the server as one line of at most ``limit`` characters, without our secrets."""
        line = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        line = hide_secrets(line, self._secrets)
        line = " ".join("".join(c if c.isprintable() else " " for c in line).split())
        return line if len(line) <= limit else line[:limit] + "…"


class _LastLineReader:
    """A file that remembers the last line that was read."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.last = b""

    def readline(self, *limit: int) -> bytes:
        self.last = self.file.readline(*limit)
        return self.last

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class _StrictResponse(HTTPResponse):
    """Response that requires complete headers; ``http.client`` would accept headers that break off, without a
    length."""

    def begin(self) -> None:
        lines = _LastLineReader(self.fp)
        self.fp = lines  # type: ignore[assignment]
        super().begin()
        self.fp = lines.file
        if lines.last not in (b"\r\n", b"\n"):
            raise IncompleteRead(lines.last)


class _NotingConnection(HTTPConnection):
    """Connection that notes whether any byte was sent."""

    has_sent = False

    def send(self, data: Any) -> None:
        self.has_sent = True
        super().send(data)


class _NotingSafeConnection(_NotingConnection, HTTPSConnection):
    """Connection by TLS that notes whether any byte was sent."""


def _split_url(url: str, shown: str) -> tuple[Url, str]:
    try:
        urls.check_login(url)
    except ValueError as e:
        raise Misconfigured(f"{shown}: {e}. Correct it, then run again.") from None
    with suppress(ValueError):
        parts, login = urls.split_login(url)
        if parts.scheme in ("http", "https") and parts.host:
            return parts, login
    raise Misconfigured(f"{shown} is not an http or https URL. Correct it, then run again.")


def _connection(url: Url, ca: str | None, shown: str) -> _NotingConnection:
    host = (url.host or "").strip("[]")
    if url.scheme != "https":
        return _NotingConnection(host, url.port or 80)
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as e:  # ssl.SSLError too
        raise Misconfigured(
            f"{shown}: ca={ca!r} cannot be read as PEM certificates ({e.strerror or e}). Correct it, then run again.",
        ) from e
    return _NotingSafeConnection(host, url.port or 443, ssl_context=context)


def _has_only_tls_tickets(sock: object) -> bool:
    """Return whether the readable data is only session tickets, which TLS 1.3 sends after its handshake, not the end of
    the connection."""
    if not isinstance(sock, ssl.SSLSocket):
        return False
    timeout_s = sock.gettimeout()
    sock.settimeout(0)
    try:
        sock.recv(1)  # a byte of an unsolicited answer would make the connection unusable, too
    except ssl.SSLWantReadError:
        return True
    except OSError:
        pass
    finally:
        sock.settimeout(timeout_s)
    return False


def _reason(error: BaseException, timeout_s: float) -> str:
    reasons = (getattr(each, "strerror", None) for each in causes(error))
    default = f"the connection broke off, or it is not HTTP ({type(error).__name__})"
    return failure_reason(error, timeout_s) or next(filter(None, reasons), default)


def failure_reason(error: BaseException, timeout_s: float) -> str:
    """Return why there is no answer, without the URL that urllib3's message repeats; "" if the answer broke off or is
    not HTTP."""
    match error:
        case exceptions.NameResolutionError():
            return "no host of this name is found"
        case exceptions.NewConnectionError():
            return getattr(error.__cause__, "strerror", None) or "no connection"
        case exceptions.ConnectTimeoutError() | exceptions.ReadTimeoutError() | TimeoutError():
            return f"no answer within {timeout_s:g} s"
        case exceptions.SSLError() | ssl.SSLError():
            return f"no safe connection: {error}"
    return ""


# Values of headers.

_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def check_header(argument: str, value: str) -> str:
    """Return the value of a header without white space around it, as a file or a variable may have it.

    Args:
        argument: names it in the message.

    Raises:
        ValueError: it has a character that no header may have; the value is not shown.
    """
    value = value.strip()
    if _CONTROL.search(value):
        raise ValueError(f"{argument} holds a line break or another control character, which no header may have")
    if any(ord(character) > 0xFF for character in value):
        raise ValueError(f"{argument} holds a character beyond Latin-1, which no header may have")
    return value


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers with checked names and values, see ``check_header``.

    Raises:
        ValueError: a name or a value is invalid.
    """
    for name in headers:
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"headers: {name!r} is not the name of a header")
    return {name: check_header(f"headers: the value of {name}", value) for name, value in headers.items()}


def check_destination(
    name: str, url: str, auth: Auth | None = None, headers: Mapping[str, str] | None = None, *, argument: str = "auth="
) -> tuple[Auth | None, dict[str, str]]:
    """Return the credentials and headers of a destination, checked.

    Args:
        argument: names the one of the credentials in the message.

    Raises:
        PlanError: a header's name or value is invalid, or the URL's password is not percent-encoded. The message begins
            with ``name``, and has nothing secret in it.
    """
    try:
        urls.check_login(url)
        return check_auth(auth, argument), check_headers(headers or {})
    except ValueError as e:
        raise PlanError([f"{name}: {e}"]) from None


def check_auth(auth: Auth | None, argument: str = "auth=") -> Auth | None:
    """Return credentials as given to a source or destination, checked: the value of a header, or user and password.

    Raises:
        ValueError: there are control characters in it, or the header's value is beyond Latin-1; it is not shown.
    """
    if auth is None or isinstance(auth, str):
        return auth and check_header(argument, auth)
    user, password = (part.strip("\r\n") for part in auth)
    if _CONTROL.search(user + password):
        raise ValueError(f"{argument} holds a line break or another control character. Correct it")
    try:
        urls.basic_auth(user + password)
    except UnicodeEncodeError:
        raise ValueError(
            f"{argument} holds half a character (a lone surrogate), which cannot be sent. Correct it"
        ) from None
    return user, password


def _header_value(argument: str, value: str, shown: str) -> str:
    value = expand_variables(value, shown)
    try:
        return check_header(argument, value)
    except ValueError as e:
        raise Misconfigured(f"{shown}: {e}. Correct it, then run again.") from None


# Requests to any server that a ``Reach`` allows.


@contextmanager
def exchange(
    servers: PoolManager,
    method: str,
    url: str,
    headers: Mapping[str, str],
    timeout_s: float,
    body: bytes | None = None,
    *,
    deadline: float | None = None,
) -> Iterator[BaseHTTPResponse]:
    """Send one request, without retries and redirects; yield its answer, whose content is not read yet.

    Args:
        timeout_s: longest time to connect, until the headers are complete, and then without any data (seconds).
        deadline: latest time (monotonic) at which the headers are complete; ``timeout_s`` is then for messages only.

    Raises:
        NotSent: no connection.
        Unanswered: no answer, or it breaks off, also while it is read.
        NotAllowed: the server may not be connected to.
    """
    parts, login = urls.split_login(url)
    all_headers = {"user-agent": "ferryman", **headers, **({"authorization": urls.basic_auth(login)} if login else {})}
    single: dict[str, Any] = {"retries": False, "redirect": False, "preload_content": False}
    left = timeout_s if deadline is None else Timeout(total=max(deadline - time.monotonic(), _LEAST_S))
    try:
        with closing(servers.request(method, parts.url, body=body, headers=all_headers, timeout=left, **single)) as it:
            yield it
    except exceptions.LocationValueError as e:
        raise NotSent("this is not a possible host name", permanent=True) from e
    except (exceptions.NewConnectionError, exceptions.ConnectTimeoutError) as e:
        asked = isinstance(e, exceptions.NameResolutionError)
        unknown = asked and getattr(e.__cause__, "errno", None) != socket.EAI_AGAIN
        raise NotSent(failure_reason(e, timeout_s), unknown_host=unknown) from e
    except HTTPError as e:
        why = failure_reason(e, timeout_s) or f"the answer broke off or is not HTTP ({type(e).__name__})"
        raise Unanswered(why, timed_out=isinstance(e, exceptions.TimeoutError)) from e


_CODINGS: Final = frozenset({"br", "zstd", "compress", "x-compress", "dcb", "dcz", "exi", "pack200-gzip"})
"""Codings of content that are registered and that nobody asks for here. Other words in their place mean nothing."""


def unread_coding(answer: BaseHTTPResponse) -> str:
    """Return the coding of an answer's content that cannot be undone here; "" if it can, or there is none."""
    codings = (part.strip() for part in answer.headers.get("content-encoding", "").lower().split(","))
    return next((coding for coding in codings if coding in _CODINGS.difference(answer.CONTENT_DECODERS)), "")


@contextmanager
def follow(
    send: Callable[[str], AbstractContextManager[BaseHTTPResponse]],
    url: str,
    redirected: Callable[[str, str], str],
    redirects: int,
) -> Iterator[tuple[str, BaseHTTPResponse]]:
    """Send a request, follow redirects, and yield the last URL and its answer, whose content is not read yet.

    Args:
        send: sends one request, see ``exchange``.
        redirected: (URL, target of its redirect) -> URL to ask next; raises if it may not be asked.
        redirects: how many are followed at most.

    Raises:
        TooManyRedirects
    """
    for _ in range(redirects + 1):
        with send(url) as answer:
            target = answer.get_redirect_location()
            if not target:
                yield url, answer
                return
        url = redirected(url, target)
    raise TooManyRedirects(url)


def pool(reach: Reach, connections: int = 1) -> PoolManager:
    """Return a pool whose connections obey these limits, with ``connections`` for each server.

    Certificates are checked against the system's authorities; no proxy is used.
    """

    def connect(self: Any) -> socket.socket:
        return _connect(reach, self)

    def headers(self: Any) -> Any:
        with _cut_off_after(self.sock, self.timeout):
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
def _cut_off_after(connected: socket.socket, timeout_s: object) -> Iterator[None]:
    """Shut a connection down if what is read of it is not complete in time: a server that sends a byte now and then
    would never exceed the timeout of the socket.

    Raises:
        TimeoutError: the connection was shut down.
    """
    if not isinstance(timeout_s, int | float):
        yield
        return
    deadline = Deadline(connected, time.monotonic() + timeout_s)
    try:
        _deadlines.add(deadline)
        yield
    except Exception:
        if deadline.is_cut:
            raise TimeoutError(f"not complete within {timeout_s:g} s") from None
        raise
    finally:
        _deadlines.remove(deadline)
    if deadline.is_cut:  # an answer without a length ends where the connection does
        raise TimeoutError(f"not complete within {timeout_s:g} s")


class Deadline:
    """Time (monotonic) at which a connection is shut down."""

    def __init__(self, connected: socket.socket, until: float) -> None:
        self.connected, self.until = connected, until
        self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True
        with suppress(OSError):
            socket.socket.shutdown(self.connected, socket.SHUT_RDWR)


class Deadlines:
    """Shuts down connections at their deadlines, in one thread for all of them: a timer for each request would start a
    thread for each, which takes longer than a small request.

    The thread starts with a deadline and ends when it wakes up and finds none: once in the length of a time-out, not
    once in a request. A forked process has no thread and begins with no deadline.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._pending: set[Deadline] = set()
        self._wakes_at: float | None = None
        """When the thread wakes up; None: there is no thread."""

    def add(self, deadline: Deadline) -> None:
        with self._changed:
            if self._wakes_at is None:
                threading.Thread(target=self._watch, name="ferryman-deadlines", daemon=True).start()
                self._wakes_at = deadline.until
            elif deadline.until < self._wakes_at:
                self._wakes_at = deadline.until
                self._changed.notify()
            self._pending.add(deadline)

    def remove(self, deadline: Deadline) -> None:
        """Remove a deadline; its connection is not shut down after this."""
        with self._changed:
            self._pending.discard(deadline)

    def _watch(self) -> None:
        with self._changed:
            while self._pending:
                now = time.monotonic()
                for deadline in [each for each in self._pending if each.until <= now]:
                    self._pending.remove(deadline)
                    deadline.cut()
                self._wakes_at = min((each.until for each in self._pending), default=now)
                self._changed.wait(min(self._wakes_at - now, threading.TIMEOUT_MAX))
            self._wakes_at = None


_deadlines: Final = Deadlines()
os.register_at_fork(after_in_child=_deadlines.forget)


def _connect(reach: Reach, requester: Any) -> socket.socket:
    """Connect a connection of urllib3 to the first address that answers; raise urllib3's own errors."""
    host = requester._dns_host
    started = time.monotonic()
    try:
        addresses: Sequence[str] = reach.addresses(host, requester.port)
    except socket.gaierror as e:
        _check_resolution_time(requester, started)
        raise exceptions.NameResolutionError(requester.host, requester, e) from e
    except UnicodeError:
        raise exceptions.LocationParseError(f"{host!r}, label empty or too long") from None
    _check_resolution_time(requester, started)
    for n, address in enumerate(addresses, 1):
        try:
            return connection.create_connection(
                (address, requester.port), requester.timeout, requester.source_address, requester.socket_options
            )
        except TimeoutError as e:
            if n == len(addresses):
                text = f"Connection to {requester.host} timed out. (connect timeout={requester.timeout})"
                raise exceptions.ConnectTimeoutError(requester, text) from e
        except OSError as e:
            if n == len(addresses):
                raise exceptions.NewConnectionError(requester, f"Failed to establish a new connection: {e}") from e
    raise AssertionError("a host without addresses is an error of its name")


def _check_resolution_time(requester: Any, started: float) -> None:
    """Raise a time-out if resolving the host's name took too long. Resolving cannot be interrupted.

    Raises:
        ConnectTimeoutError: it took longer than connecting may.
    """
    took_s = time.monotonic() - started
    if isinstance(requester.timeout, int | float) and took_s > requester.timeout:
        raise exceptions.ConnectTimeoutError(
            requester, f"{requester.host}: its name was not resolved within {requester.timeout:g} s"
        )


# Secrets from the environment: ``${NAME}`` in a destination's arguments, expanded only where it is used.

_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")


def expand_variables(text: str, subject: str) -> str:
    """Replace each ``${NAME}`` by the variable of this process's environment, stripped.

    Call it in ``check`` and ``open``, so that secrets are never pickled, shown or stored.

    Args:
        subject: begins the error's message.

    Raises:
        Misconfigured: a variable is not set, or holds a line break; its value is not shown.
    """

    def value(match: re.Match[str]) -> str:
        value = os.environ.get(match[1], "").strip()
        if not value:
            raise Misconfigured(
                f"{subject}: the environment variable {match[1]} is not set. Set it for the driver and for the "
                "workers, then run again.",
            )
        if not value.isprintable():
            raise Misconfigured(
                f"{subject}: the environment variable {match[1]} holds a line break or another control character. "
                "Set it to one line, then run again.",
            )
        return value

    return _VARIABLE.sub(value, text)


def variable_names(text: str) -> list[str]:
    return _VARIABLE.findall(text)
