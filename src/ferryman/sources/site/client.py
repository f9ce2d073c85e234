"""Requests to the hosts of a site: at one polite rate, with secrets for these hosts only, and never past what
robots.txt forbids."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from ferryman import limits
from ferryman.errors import Misconfigured, PermanentError, Unavailable
from ferryman.net import allowed_addresses
from ferryman.net import urls as net
from ferryman.sources.site.scope import normalize, origin_of

if TYPE_CHECKING:
    from protego import Protego
    from urllib3 import PoolManager

AGENT: Final = "ferryman"
"""Name by which robots.txt may address us."""

_CHARSET: Final = re.compile(r";[ \t]*+charset[ \t]*+=[ \t]*+[\"']?([\w.:+-]{1,40})", re.IGNORECASE | re.ASCII)
_PIECE_BYTES: Final = 64 * limits.KIB
ROBOTS_BYTES: Final = 512 * limits.KIB
"""Bytes of robots.txt that count, as RFC 9309 demands at least 500 KiB."""

MAX_DELAY_S: Final = 60.0
"""Longest pause between two requests that a robots.txt is granted, and longest wait that an answer may ask for."""

_REDIRECTS: Final = (301, 302, 303, 307, 308)
MOVED: Final = (301, 308)
"""Statuses of a page that has another address from now on."""

_STAMP: Final = struct.Struct("<d")


class Response(NamedTuple):
    """Answer to one request.

    Attributes:
        status: 0: there was no answer, for the reason ``error``.
        target: where a redirect leads, in its one form; "": it is none.
        is_away: there is no connection to the host, or it breaks.
        is_cut: the body has more bytes than are read.
    """

    url: str
    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""
    target: str = ""
    error: str = ""
    is_away: bool = False
    is_cut: bool = False

    @property
    def why(self) -> str:
        """Return the status, or why there is none, for messages."""
        return self.error or str(self.status)

    def values_of(self, name: str) -> list[str]:
        """Return the values of a header that may come several times."""
        from urllib3 import HTTPHeaderDict

        return self.headers.getlist(name) if isinstance(self.headers, HTTPHeaderDict) else []

    @property
    def mime(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str:
        stated = _CHARSET.search(self.headers.get("content-type", ""))
        return stated[1].lower() if stated else ""

    @property
    def is_html(self) -> bool:
        if self.mime:
            return self.mime in ("text/html", "application/xhtml+xml")
        return self.body[:512].lstrip()[:1] == b"<"


@dataclass(frozen=True)
class Access:
    """Settings of the requests to the hosts of a site.

    Attributes:
        origins: origins that the plan's author names: private or not, they may be asked, and get the secrets.
        others: other origins that may be asked, by the rules for addresses; they get no secret.
    """

    origins: frozenset[str]
    others: frozenset[str] = frozenset()
    rate: float = 5.0
    contact: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    cookies: Mapping[str, str] = field(default_factory=dict)
    auth: str | tuple[str, str] | None = None
    timeout_s: float = limits.FETCH_TIMEOUT_S
    max_bytes: int = limits.MAX_FILE_BYTES
    robots: bool = True

    @property
    def agent(self) -> str:
        return f"{AGENT}/{_version()}" + (f" (+{self.contact})" if self.contact else "")

    def secret_headers(self) -> dict[str, str]:
        """Return the headers for the named origins, filled in from the environment.

        Raises:
            Misconfigured: a variable is missing, or a value cannot be a header's.
        """
        from ferryman.net import http

        shown = f"source Site({', '.join(sorted(self.origins))})"
        try:
            found = {
                name.lower(): http.check_header(name, http.expand_variables(value, shown))
                for name, value in self.headers.items()
            }
            if self.cookies:
                pairs = (f"{name}={http.expand_variables(value, shown)}" for name, value in self.cookies.items())
                found["cookie"] = http.check_header("cookies=", "; ".join(pairs))
            if isinstance(self.auth, str):
                found["authorization"] = http.check_header("auth=", http.expand_variables(self.auth, shown))
            elif self.auth is not None:
                login = ":".join(http.expand_variables(part, shown) for part in self.auth)
                found["authorization"] = net.basic_auth(login)
        except ValueError as e:
            raise Misconfigured(f"{shown}: {e}. Correct it, then run again.") from None
        return found


class SiteClient:
    """Client for the hosts of a site, in one process.

    Attributes:
        requests: number of requests so far.
    """

    def __init__(self, access: Access) -> None:
        from ferryman.net import http

        self._access = access
        self._secrets = access.secret_headers()
        process = allowed_addresses.process_reach()
        named = tuple(f"{_host_pattern(origin)}" for origin in access.origins)
        reach = allowed_addresses.Reach(process.folders, (*process.hosts, *named), process.strict)
        self._pool: PoolManager = http.pool(reach)
        self._clocks: dict[str, RequestClock] = {}
        self._robots: dict[str, Robots] = {}
        self.requests = 0

    def may_ask(self, url: str) -> bool:
        """Return whether this host may be asked at all."""
        return origin_of(url) in self._access.origins or origin_of(url) in self._access.others

    def robots(self, url: str) -> Robots:
        """Return the rules of a host; they are asked for once.

        Raises:
            Unavailable: the host does not say them now, which forbids everything for now.
        """
        origin = origin_of(url)
        if origin not in self._robots:
            rules = Robots() if not self._access.robots else self._ask_robots(origin)
            self._robots[origin] = rules  # an error is not kept
            self._clock_of(origin).slow_down_to(rules.delay_s)
        return self._robots[origin]

    def get(self, url: str, headers: Mapping[str, str] | None = None, *, max_bytes: int = 0) -> Response:
        """Ask for one address, without following a redirect; a server that is busy is asked once more."""
        answer = self._get(url, headers or {}, max_bytes or self._access.max_bytes)
        if answer.is_away:  # a server may close a connection that was idle for the pause between two requests
            answer = self._get(url, headers or {}, max_bytes or self._access.max_bytes)
        wait_s = net.retry_after_s(answer.headers) if answer.status in (429, 503) else None
        if answer.status == net.TOO_MANY_REQUESTS:
            self._clock_of(origin_of(url)).slow_down_to(max(1.0, wait_s or 0.0))
        if wait_s is not None and wait_s <= MAX_DELAY_S:
            time.sleep(wait_s)
            return self._get(url, headers or {}, max_bytes or self._access.max_bytes)
        return answer

    def follow(self, url: str, headers: Mapping[str, str] | None = None, *, max_bytes: int = 0) -> Response:
        """Ask for an address, whose host may be asked, and follow redirects as far as they lead to such hosts.

        Returns:
            The last answer; one with ``target`` leads to a host that may not be asked, or in a circle.
        """
        answer = self.get(url, headers, max_bytes=max_bytes)
        seen = {url}
        while answer.target and answer.target not in seen and len(seen) <= limits.FETCH_REDIRECTS:
            if not self.may_ask(answer.target) or not self.robots(answer.target).allows(answer.target):
                break
            seen.add(answer.target)
            answer = self.get(answer.target, max_bytes=max_bytes)
        return answer

    def _clock_of(self, origin: str) -> RequestClock:
        if origin not in self._clocks:
            self._clocks[origin] = RequestClock(origin, 1 / self._access.rate)
        return self._clocks[origin]

    def _get(self, url: str, headers: Mapping[str, str], max_bytes: int) -> Response:
        from ferryman.net import http

        origin = origin_of(url)
        own = self._secrets if origin in self._access.origins else {}
        sent = {"accept-encoding": "gzip", "accept": "*/*", **own, **headers, "user-agent": self._access.agent}
        self._clock_of(origin).wait()
        self.requests += 1
        timeout_s = self._access.timeout_s
        deadline = time.monotonic() + timeout_s
        try:
            with http.exchange(self._pool, "GET", url, sent, timeout_s, deadline=deadline) as answer:
                if answer.status != 200 and (answer.length_remaining or 0) <= _PIECE_BYTES:
                    answer.read1(_PIECE_BYTES)  # to its end, or the connection cannot be used again
                target = answer.get_redirect_location() if answer.status in _REDIRECTS else ""
                if target:
                    return Response(url, answer.status, answer.headers, target=normalize(target, url))
                head = Response(url, answer.status, answer.headers)
                if answer.status != 200 or is_left_out(head.mime):
                    return head
                if coding := http.unread_coding(answer):
                    return Response(url, 0, error=f"its content is encoded with {coding}, which was not asked for")
                body = bytearray()
                while len(body) <= max_bytes:
                    if time.monotonic() > deadline:
                        return Response(url, 0, error=f"not all within {timeout_s:g} s")
                    piece = answer.read1(_PIECE_BYTES, decode_content=True)
                    if not piece:
                        return head._replace(body=bytes(body))
                    body += piece
                return head._replace(body=bytes(body[:max_bytes]), is_cut=True)
        except http.NotSent as e:
            return Response(url, 0, error=str(e), is_away=True)
        except http.Unanswered as e:
            return Response(url, 0, error=str(e), is_away=not e.timed_out)
        except (allowed_addresses.NotAllowed, PermanentError) as e:
            return Response(url, 0, error=str(e).rstrip("."))

    def _ask_robots(self, origin: str) -> Robots:
        url = f"{origin}/robots.txt"
        answer = self.get(url, max_bytes=ROBOTS_BYTES)
        for _ in range(limits.FETCH_REDIRECTS):
            if not answer.target or not self.may_ask(answer.target):
                break
            answer = self.get(answer.target, max_bytes=ROBOTS_BYTES)
        if answer.status == 0 or answer.status >= 500 or answer.status == net.TOO_MANY_REQUESTS:
            raise Unavailable(
                f"{url}: {answer.why}. Until a host says what it allows, it is not read, and nothing of it is deleted",
                scope=urlsplit(origin).netloc,
            )
        if answer.status != 200:
            return Robots()
        if answer.is_html or answer.body[:512].lstrip().lower().startswith((b"<!doctype", b"<html")):
            return Robots(page=answer.body)
        from protego import Protego

        rules: Protego = Protego.parse(answer.body.decode("utf-8", "replace"))
        rate = rules.request_rate(AGENT)
        delays = [rules.crawl_delay(AGENT) or 0.0, rate.seconds / rate.requests if rate and rate.requests else 0.0]
        return Robots(rules, float(max(delays)), tuple(rules.sitemaps))


class Robots(NamedTuple):
    """Rules of a host's robots.txt.

    Attributes:
        rules: None: everything is allowed.
        asked_delay_s: pause between two requests that it asks for.
        page: the page that was in its place; "": none was.
    """

    rules: Any = None
    asked_delay_s: float = 0.0
    sitemaps: Sequence[str] = ()
    page: bytes = b""

    @property
    def delay_s(self) -> float:
        return min(self.asked_delay_s, MAX_DELAY_S)

    def allows(self, url: str) -> bool:
        return self.rules is None or bool(self.rules.can_fetch(url, AGENT))


class RequestClock:
    """Times of the requests to a host, kept for all processes of this machine: tasks that read a few pages again ask no
    faster, together, than one."""

    def __init__(self, origin: str, interval_s: float) -> None:
        self._interval_s = interval_s
        name = blake2b(origin.encode(), digest_size=12).hexdigest()
        self._path = os.path.join(tempfile.gettempdir(), f"ferryman-pace-{os.getuid()}-{name}")
        self._next = 0.0

    def slow_down_to(self, interval_s: float) -> None:
        self._interval_s = max(self._interval_s, min(interval_s, MAX_DELAY_S))

    def wait(self) -> None:
        """Wait until the next request may be sent."""
        now = time.time()
        at = self._reserve(now)
        if at > now:
            time.sleep(at - now)

    def _reserve(self, now: float) -> float:
        """Return when the next request may be sent, and move that time on."""
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:  # no such folder, or somebody else's file: this process keeps its own pace
            at = self._clamp(self._next, now)
            self._next = at + self._interval_s
            return at
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            stored = os.pread(file, _STAMP.size, 0)
            at = self._clamp(_STAMP.unpack(stored)[0] if len(stored) == _STAMP.size else 0.0, now)
            with suppress(OSError):
                os.pwrite(file, _STAMP.pack(at + self._interval_s), 0)
            return at
        finally:
            os.close(file)

    def _clamp(self, at: float, now: float) -> float:
        """Return a time that is not before now, nor later than any that we would have set: a clock may jump."""
        return now if not now <= at <= now + 100 * max(self._interval_s, 1.0) else at


@lru_cache(maxsize=1)
def _version() -> str:
    try:
        return version("ferryman")
    except PackageNotFoundError:  # its files are on the path of a worker
        return "0"


def is_left_out(mime: str) -> bool:
    """Return whether content of this type is not a document: pictures, sound, films, fonts, styles, scripts."""
    kind, _, subtype = mime.partition("/")
    return kind in ("image", "video", "audio", "font") or subtype in ("css", "javascript", "x-javascript", "ecmascript")


def _host_pattern(origin: str) -> str:
    """Return the pattern that allows the addresses of an origin's host."""
    parts = urlsplit(origin)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = parts.hostname or ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
