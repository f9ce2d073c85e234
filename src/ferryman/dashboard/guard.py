"""Who may see a page, and who may act.

A request passes these checks, in this order:

1. its Host is one of ours: else a name that an attacker points here could read pages (DNS rebinding)
2. the path is below the base path, which is taken off it
3. somebody is known: by a token (``Authorization: Bearer``, or the session that the login page made of it), by the
   header of a trusted proxy, or, on loopback without tokens, whoever can reach the port
4. a POST comes from one of our own pages (Origin), with the CSRF token of its session

Answers carry a strict Content-Security-Policy: no script and no style that is not a file of ours.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferryman.errors import UsageError
from ferryman.state.commands import current_user

SECRET_CHARACTERS: Final = 16
"""Shortest token."""
COOKIE: Final = "ferryman-session"
LOGIN: Final = "/login"
STATIC: Final = "/static/"
_SESSION_S: Final = 12 * 3600
_SESSIONS: Final = 1_000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}\Z")
_PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+\Z")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Person(NamedTuple):
    """Somebody who asks for a page.

    Attributes:
        name: as the ledger records it.
        is_known: whether the name is that of one person: a shared token is not.
    """

    name: str
    may_act: bool
    is_known: bool


class Token(NamedTuple):
    """A token.

    Attributes:
        name: of its person; "": it is shared.
        digest: SHA-256 of the secret.
    """

    name: str
    is_operator: bool
    digest: bytes


def parse_tokens(texts: Iterable[str]) -> tuple[Token, ...]:
    """Parse ``--token``: a secret, ``NAME:reader:SECRET``, ``NAME:operator:SECRET``, or ``@FILE`` with one a line.

    Raises:
        UsageError: a text is none of these; the message has no secret in it.
    """
    lines: list[str] = []
    for text in texts:
        lines += _lines_of(text) if text.startswith("@") else [text]
    return tuple(map(_token, lines))


def _lines_of(text: str) -> list[str]:
    try:
        lines = Path(text[1:]).read_text("utf-8").splitlines()
    except (OSError, UnicodeError) as e:
        raise UsageError(f"--token {text}: the file cannot be read ({type(e).__name__}).") from None
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _token(text: str) -> Token:
    name, role, secret = "", "operator", text
    if (parts := text.split(":", 2))[1:2] and parts[1] in ("reader", "operator") and len(parts) == 3:
        name, role, secret = parts
        if not _NAME.match(name):
            raise UsageError(f"--token {name}:{role}:…: a name has letters, digits, and ._@- only.")
    if len(secret) < SECRET_CHARACTERS:
        raise UsageError(
            f"--token: a secret has {SECRET_CHARACTERS} characters or more. This makes one: "
            "python3 -c 'import secrets; print(secrets.token_urlsafe(24))'"
        )
    return Token(name, role == "operator", _digest(secret))


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()


class Settings(NamedTuple):
    """Settings of a dashboard, as its options give them.

    Attributes:
        base_path: "" or a path such as ``/ferryman``, under which a proxy has it.
        user_header: header of a trusted proxy that names the person; "": none.
        operators: names of persons of that header who may act; ``*``: all.
        allowed_hosts: names beside those of this machine by which it is called.
    """

    host: str = "127.0.0.1"
    port: int = 8440
    tokens: tuple[Token, ...] = ()
    base_path: str = ""
    user_header: str = ""
    operators: frozenset[str] = frozenset()
    allow_actions: bool = False
    allowed_hosts: frozenset[str] = frozenset()

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach it."""
        return is_loopback(self.host)

    def check(self) -> None:
        """Refuse settings that would let in anybody.

        Raises:
            UsageError: says which, and what to do.
        """
        if self.base_path and not _PREFIX.match(self.base_path):
            raise UsageError(f"--base-path {self.base_path}: give one such as /ferryman, without a slash at its end.")
        if not self.is_loopback and not self.tokens:
            raise UsageError(
                f"--host {self.host}: everybody who reaches this machine could read every document's id. Give --token, "
                "or let a proxy on this machine do it: then leave --host out."
            )
        if self.user_header and self.allow_actions and not self.operators:
            raise UsageError(
                "--user-header with --allow-actions: name who may act with --operator NAME, or --operator '*' for all."
            )
        if self.operators and not self.user_header:
            raise UsageError("--operator is for --user-header; a token says itself: --token NAME:operator:SECRET.")


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address is this machine's loopback."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class _Session(NamedTuple):
    token: Token
    ends: float


class Guard:
    """Checks requests before the pages see them."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self.settings = settings
        self._key = secrets.token_bytes(32)
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._lock = threading.Lock()
        own = {"localhost", settings.host.lower(), socket.gethostname().lower()}
        self._hosts = own | {host.lower() for host in settings.allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        send = self._with_headers(send)
        if not self._is_our_host(headers.get("host", "")):
            text = "This dashboard does not answer to this host name. Start it with --allow-host NAME to allow it.\n"
            await PlainTextResponse(text, 421)(scope, receive, send)
            return
        base, path = self._split_path(scope["path"], headers)
        scope = {**scope, "path": path, "raw_path": quote(path).encode(), "root_path": ""}
        session = self._session_id(headers)
        person = self._person(headers, session)
        found = {"base": base, "person": person, "csrf": self.csrf(session), "guard": self, "session": session}
        scope["state"] = {**scope.get("state", {}), **found}
        if scope["method"] not in ("GET", "HEAD") and not self._is_own_origin(headers):
            await PlainTextResponse("This request came from another site.\n", 403)(scope, receive, send)
        elif person is None and path != LOGIN and not path.startswith(STATIC):
            await self._refuse(base, path, headers)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    # --- the checks ---

    def _is_our_host(self, host: str) -> bool:
        """Return whether a Host header names this dashboard. An address cannot be pointed here by anybody."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            ipaddress.ip_address(name)
        except ValueError:
            return bool(re.fullmatch(r"[\w.-]+(?::\d+)?", host)) and host.partition(":")[0].lower() in self._hosts
        return True

    def _split_path(self, path: str, headers: Headers) -> tuple[str, str]:
        """Return the base path of links, and the path below it. A proxy may have taken the base path off."""
        base = self.settings.base_path
        if base and (path == base or path.startswith(f"{base}/")):
            path = path[len(base) :] or "/"
        forwarded = headers.get("x-forwarded-prefix", "").rstrip("/")
        if forwarded and len(forwarded) <= 200 and _PREFIX.match(forwarded):
            base = forwarded
        return base, path

    def _person(self, headers: Headers, session: str) -> Person | None:
        settings = self.settings
        token = self._token_of(headers, session)
        if settings.tokens and token is None:
            return None
        if settings.user_header:
            name = headers.get(settings.user_header, "").strip()
            if not _NAME.match(name):
                return None
            is_operator = not settings.operators.isdisjoint({name, "*"})
            return Person(name, settings.allow_actions and is_operator, is_known=True)
        if token is not None and token.name:
            return Person(token.name, settings.allow_actions and token.is_operator, is_known=True)
        return Person(f"dashboard of {current_user()}", settings.allow_actions, is_known=False)

    def _token_of(self, headers: Headers, session: str) -> Token | None:
        kind, _, secret = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.find_token(secret.strip())
        with self._lock:
            known = self._sessions.get(session)
        return known.token if known is not None and known.ends > time.monotonic() else None

    def find_token(self, secret: str) -> Token | None:
        """Return the token with this secret, in the same time whichever it is, or whether it is none."""
        digest, found = _digest(secret), None
        for token in self.settings.tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found

    def _refuse(self, base: str, path: str, headers: Headers) -> PlainTextResponse | RedirectResponse:
        if self.settings.user_header and not headers.get(self.settings.user_header):
            return PlainTextResponse(
                f"The proxy before this dashboard did not say who you are ({self.settings.user_header}).\n", 403
            )
        if "text/html" not in headers.get("accept", "") or "hx-request" in headers:
            return PlainTextResponse("A token is needed: Authorization: Bearer SECRET.\n", 401)
        return RedirectResponse(f"{base}{LOGIN}?next={quote(path, safe='/')}", 303)

    # --- sessions and CSRF tokens ---

    def _session_id(self, headers: Headers) -> str:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return ""
        return cookie.value if cookie is not None else ""

    def open_session(self, token: Token) -> str:
        """Return the id of a new session of a token's person."""
        session = secrets.token_urlsafe(24)
        with self._lock:
            self._sessions[session] = _Session(token, time.monotonic() + _SESSION_S)
            while len(self._sessions) > _SESSIONS:
                self._sessions.popitem(last=False)
        return session

    def close_session(self, session: str) -> None:
        with self._lock:
            self._sessions.pop(session, None)

    def csrf(self, session: str) -> str:
        """Return the token that forms of a session carry."""
        return hmac.new(self._key, session.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()

    def is_csrf(self, session: str, given: str) -> bool:
        """Return whether a form was one of this session."""
        return hmac.compare_digest(self.csrf(session).encode(), given.encode(errors="surrogateescape"))

    def _is_own_origin(self, headers: Headers) -> bool:
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = headers.get("origin", "")
        if not origin or origin == "null":
            return origin == ""
        return self._is_our_host(urlsplit(origin).netloc)

    def _with_headers(self, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("content-security-policy", _POLICY)
                headers.setdefault("cache-control", "no-store")
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        return send_with_headers


def allowed_hosts(names: Sequence[str]) -> frozenset[str]:
    """Check the names of ``--allow-host``.

    Raises:
        UsageError: one is not the name of a host.
    """
    for name in names:
        if not re.fullmatch(r"[\w.-]+", name):
            raise UsageError(f"--allow-host {name}: give the name of a host, such as ferryman.example.org.")
    return frozenset(names)
