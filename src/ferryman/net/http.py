"""HTTP client for destinations. After any failure it is known whether the server may have received the request."""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import Any, Final, NamedTuple

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.util import Url

from ferryman import limits
from ferryman.errors import Misconfigured
from ferryman.net import urls
from ferryman.net.faults import causes

ANSWER_BYTES: Final = 16 * limits.MIB
"""Largest part read of an answer: outcomes for far more deliveries than a chunk has."""

Auth = str | tuple[str, str]

_LEAST_S: Final = 0.001
"""Shortest time-out of a socket: 0 would make it non-blocking."""


class NotSent(Exception):
    """No byte of the request was sent, so nothing took effect.

    Attributes:
        permanent: trying again does not help (a certificate that is not trusted).
    """

    def __init__(self, why: str, permanent: bool = False) -> None:
        super().__init__(why, permanent)
        self.why, self.permanent = why, permanent

    def __str__(self) -> str:
        return self.why


class Unanswered(Exception):
    """The request was sent, at least in part, without a complete answer: it may or may not have taken effect."""


class Answer(NamedTuple):
    """A complete answer; one that is not a success may lack its body."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


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
        Misconfigured: an environment variable is missing, the URL is invalid, or ``ca`` cannot be read.
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
        self._headers = {name: expand_variables(value, shown) for name, value in (headers or {}).items()}
        self._secrets = [value for name, value in self._headers.items() if value != (headers or {})[name]]
        if isinstance(auth, str):
            self._headers["authorization"] = expand_variables(auth, shown)
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
        connection = self._connection
        if connection.is_connected or _has_only_tls_tickets(connection.sock):
            return
        connection.close()  # the server may have closed it meanwhile
        connection.timeout = timeout_s
        try:
            connection.connect()
        except (HTTPError, OSError) as e:
            connection.close()
            untrusted = [each for each in causes(e) if isinstance(each, ssl.SSLCertVerificationError)]
            if untrusted:
                why = getattr(untrusted[0], "verify_message", "") or "it is not trusted"
                raise NotSent(f"its certificate is refused: {why}. Give its authority: ca=", permanent=True) from e
            raise NotSent(_reason(e, timeout_s)) from e
        self.connections += 1

    def request(
        self, method: str, path: str, body: bytes | None, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request and read its answer, both within ``timeout_s``, which is checked whenever data arrives.

        Raises:
            NotSent: nothing took effect.
            Unanswered: it may or may not have taken effect.
        """
        deadline = time.monotonic() + timeout_s
        self.connect(timeout_s)
        connection = self._connection
        all_headers = {"user-agent": "ferryman", "accept-encoding": "gzip", **self._headers, **(headers or {})}
        connection.timeout = max(deadline - time.monotonic(), _LEAST_S)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # a server may refuse it before it has all of it
                connection.request(method, path, body=body, headers=all_headers, preload_content=False)
            answer = connection.getresponse()
        except (HTTPException, HTTPError, OSError) as e:
            connection.close()
            raise Unanswered(_reason(e, timeout_s)) from e
        content = bytearray()
        try:
            while len(content) <= ANSWER_BYTES and (part := answer.read(limits.MIB, decode_content=True)):
                content += part
                if connection.sock is not None:
                    connection.sock.settimeout(max(deadline - time.monotonic(), _LEAST_S))
            if len(content) > ANSWER_BYTES:
                raise HTTPException(f"more than {ANSWER_BYTES} bytes")
        except (HTTPException, HTTPError, OSError) as e:
            connection.close()
            if 200 <= answer.status < 300:
                raise Unanswered(f"it answered {answer.status}, but then {_reason(e, timeout_s)}") from e
            content.clear()
        return Answer(answer.status, self.redact(answer.reason or ""), answer.headers, bytes(content))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def redact(self, text: str | bytes, limit: int = 300) -> str:
        """Return a text from the server as one line of at most ``limit`` characters, without our secrets."""
        line = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        for secret in filter(None, self._secrets):
            line = line.replace(secret, "…")
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


def _split_url(url: str, shown: str) -> tuple[Url, str]:
    with suppress(ValueError):
        parts, login = urls.split_login(url)
        if parts.scheme in ("http", "https") and parts.host:
            return parts, login
    raise Misconfigured(f"{shown} is not an http or https URL. Correct it, then run again.")


def _connection(url: Url, ca: str | None, shown: str) -> HTTPConnection:
    host = (url.host or "").strip("[]")
    if url.scheme != "https":
        return HTTPConnection(host, url.port or 80)
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as e:  # ssl.SSLError too
        raise Misconfigured(
            f"{shown}: ca={ca!r} cannot be read as PEM certificates ({e.strerror or e}). Correct it, then run again.",
        ) from e
    return HTTPSConnection(host, url.port or 443, ssl_context=context)


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
    return urls.failure_reason(error, timeout_s) or next(filter(None, reasons), default)


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
    """Return the names of the variables in a text."""
    return _VARIABLE.findall(text)
