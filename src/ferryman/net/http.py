"""HTTP to one server, for destinations: whatever fails, it is known whether the server may have got the request."""

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
"""Most bytes read of an answer: an outcome each for far more deliveries than a chunk has."""

Auth = str | tuple[str, str]

_LEAST_S: Final = 0.001
"""A time-out of 0 would mean: do not wait for the socket at all."""


class NotSent(Exception):
    """No byte of the request has left: nothing took effect, for certain.

    Attributes:
        permanent: waiting does not help (a certificate that is not trusted).
    """

    def __init__(self, why: str, permanent: bool = False) -> None:
        super().__init__(why, permanent)
        self.why, self.permanent = why, permanent

    def __str__(self) -> str:
        return self.why


class Unanswered(Exception):
    """The request was sent, at least in part, and no whole answer came: it may have taken effect, or not."""


class Answer(NamedTuple):
    """A whole answer; of one that is not a success perhaps without its body."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def fine(self) -> bool:
        return 200 <= self.status < 300


class Http:
    """A connection to the server of a URL, kept open between requests. No proxy, no redirects, no cookies.

    Args:
        url: http or https; a user and password in it are sent as Basic authentication. ``${NAME}`` in it, in ``auth``
            and in the headers' values, is filled in from the environment.
        auth: user and password, or all that the header ``Authorization`` says (``Bearer ${TOKEN}``).
        headers: sent with each request.
        ca: a PEM file with the authorities to trust; None: the system's.
        shown: the URL as it may be shown.

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
        parsed, login = _parted(filled(url, shown), shown)
        self._headers = {name: filled(value, shown) for name, value in (headers or {}).items()}
        self._secrets = [value for name, value in self._headers.items() if value != (headers or {})[name]]
        if isinstance(auth, str):
            self._headers["authorization"] = filled(auth, shown)
            self._secrets += self._headers["authorization"].split()[1:]
        elif auth is not None:
            login = ":".join(filled(part, shown) for part in auth)
        if login:
            basic = urls.basic(login)
            self._headers.setdefault("authorization", basic)
            self._secrets += [*basic.split()[1:], login.partition(":")[2]]
        self._secrets += [os.environ[name].strip() for name in names(url)]
        self.path = parsed.request_uri
        self.connections = 0
        """How often it was connected: another number, perhaps another process of the server."""
        self._connection = _connection(parsed, ca, shown)
        self._connection.response_class = _WholeHead

    def connect(self, timeout_s: float) -> None:
        """Be connected. Raises ``NotSent``."""
        connection = self._connection
        if connection.is_connected or _only_tickets(connection.sock):
            return
        connection.close()  # what the server has closed meanwhile
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
        """One request, one answer; both within ``timeout_s``, looked at whenever something arrives.

        Raises:
            NotSent: nothing took effect.
            Unanswered: nobody knows.
        """
        give_up = time.monotonic() + timeout_s
        self.connect(timeout_s)
        connection = self._connection
        all_headers = {"user-agent": "ferryman", "accept-encoding": "gzip", **self._headers, **(headers or {})}
        connection.timeout = max(give_up - time.monotonic(), _LEAST_S)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # who refuses it may answer before it has all of it
                connection.request(method, path, body=body, headers=all_headers, preload_content=False)
            answer = connection.getresponse()
        except (HTTPException, HTTPError, OSError) as e:
            connection.close()
            raise Unanswered(_reason(e, timeout_s)) from e
        content = bytearray()
        try:
            while len(content) <= ANSWER_BYTES and (piece := answer.read(limits.MIB, decode_content=True)):
                content += piece
                if connection.sock is not None:
                    connection.sock.settimeout(max(give_up - time.monotonic(), _LEAST_S))
            if len(content) > ANSWER_BYTES:
                raise HTTPException(f"more than {ANSWER_BYTES} bytes")
        except (HTTPException, HTTPError, OSError) as e:
            connection.close()
            if 200 <= answer.status < 300:
                raise Unanswered(f"it answered {answer.status}, but then {_reason(e, timeout_s)}") from e
            content.clear()
        return Answer(answer.status, self.shown(answer.reason or ""), answer.headers, bytes(content))

    def close(self) -> None:
        """No more requests."""
        self._connection.close()

    def shown(self, said: str | bytes, most: int = 300) -> str:
        """Return the server's words as one line without our secrets."""
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
        for secret in filter(None, self._secrets):
            text = text.replace(secret, "…")
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return text if len(text) <= most else text[:most] + "…"


class _Lines:
    """A file whose last line is remembered."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.last = b""

    def readline(self, *limit: int) -> bytes:
        self.last = self.file.readline(*limit)
        return self.last

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class _WholeHead(HTTPResponse):
    """http.client takes an answer whose head breaks off for one with fewer headers, and without a length."""

    def begin(self) -> None:
        lines = _Lines(self.fp)
        self.fp = lines  # type: ignore[assignment]
        super().begin()
        self.fp = lines.file
        if lines.last not in (b"\r\n", b"\n"):
            raise IncompleteRead(lines.last)


def _parted(url: str, shown: str) -> tuple[Url, str]:
    with suppress(ValueError):
        parts, login = urls.parted(url)
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


def _only_tickets(sock: object) -> bool:
    """Return whether the readable data is only what TLS 1.3 sends after its handshake, not an end of the connection."""
    if not isinstance(sock, ssl.SSLSocket):
        return False
    waits_s = sock.gettimeout()
    sock.settimeout(0)
    try:
        sock.recv(1)  # a byte of an answer that nobody asked for would make it unfit, too
    except ssl.SSLWantReadError:
        return True
    except OSError:
        pass
    finally:
        sock.settimeout(waits_s)
    return False


def _reason(error: BaseException, timeout_s: float) -> str:
    said = (getattr(each, "strerror", None) for each in causes(error))
    broken = f"the connection broke off, or it is not HTTP ({type(error).__name__})"
    return urls.reason(error, timeout_s) or next(filter(None, said), broken)


# Secrets from the environment: ``${NAME}`` in a destination's arguments, filled in where it is used.

_NAME: Final = re.compile(r"\$\{(\w+)\}")


def filled(text: str, where: str) -> str:
    """``text`` with each ``${NAME}`` replaced by that variable of this process's environment, stripped.

    Call it in ``check`` and ``open``: what is filled in is then never pickled, shown or stored.

    Args:
        where: begins the error's message.

    Raises:
        Misconfigured: a variable is not set, or holds a line break; its value is not shown.
    """

    def value(found: re.Match[str]) -> str:
        value = os.environ.get(found[1], "").strip()
        if not value:
            raise Misconfigured(
                f"{where}: the environment variable {found[1]} is not set. Set it for the driver and for the workers, "
                "then run again.",
            )
        if not value.isprintable():
            raise Misconfigured(
                f"{where}: the environment variable {found[1]} holds a line break or another control character. "
                "Set it to one line, then run again.",
            )
        return value

    return _NAME.sub(value, text)


def names(text: str) -> list[str]:
    """The variables that a text asks for."""
    return _NAME.findall(text)
