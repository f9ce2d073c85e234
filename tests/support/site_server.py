"""A web site on a real HTTP server, whose pages and faults a test chooses."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from tests.support.local_server import LocalServer


@dataclass
class Served:
    """What a path answers.

    Attributes:
        validators: which of "etag" and "modified" it states, and answers 304 by.
        hang: it answers only when the server ends.
        cut: bytes at the end of the body that do not come.
    """

    body: bytes | str = b""
    status: int = 200
    mime: str = "text/html"
    headers: Mapping[str, str] = field(default_factory=dict)
    validators: tuple[str, ...] = ("etag",)
    hang: bool = False
    cut: int = 0


class SiteServer(LocalServer):
    """A site whose pages are ``pages``: path with query -> what it answers, or a function of the request's headers.

    Attributes:
        requests: paths that were asked for, in their order; ``sent`` their headers.
        other: answers for every path that is not in ``pages``; None: 404.
        is_away: it closes each connection without an answer.
        connections: number of connections so far.
    """

    def __init__(self, **pages: Any) -> None:
        self.pages: dict[str, Any] = {}
        self.other: Any = None
        self.requests: list[str] = []
        self.sent: list[dict[str, str]] = []
        self.statuses: Counter[int] = Counter()
        self.is_away = False
        self.connections = 0
        self._ended = threading.Event()
        self._start(_Handler, site=self)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def put(self, path: str, body: bytes | str = b"", **options: Any) -> None:
        """Let a path answer this."""
        self.pages[path] = Served(body, **options)

    def page(self, path: str, text: str, *links: str, head: str = "", **options: Any) -> None:
        """Let a path answer a page of HTML."""
        anchors = "".join(f'<a href="{link}">to {link}</a> ' for link in links)
        self.put(path, f"<html><head><title>{text}</title>{head}</head><body><p>{text}</p>{anchors}</body>", **options)

    def sitemap(self, entries: Mapping[str, str], path: str = "/sitemap.xml") -> None:
        """Let a path answer a sitemap of these paths with their lastmods."""
        urls = "".join(
            f"<url><loc>{self.url}{each}</loc>{f'<lastmod>{when}</lastmod>' if when else ''}</url>"
            for each, when in entries.items()
        )
        self.put(path, f"<urlset xmlns='http://www.sitemaps.org/schemas/sitemap/0.9'>{urls}</urlset>", mime="text/xml")

    def asked(self) -> list[str]:
        """Return the paths of pages that were asked for since the last call, sorted."""
        found, self.requests = self.requests, []
        self.sent, self.statuses = [], Counter()
        return sorted(path for path in found if path not in ("/robots.txt", "/sitemap.xml") and not _is_probe(path))

    def start(self) -> None:
        """Answer again after ``stop``, at the same port."""
        self._start(_Handler, port=self.port, site=self)

    def answer(self, path: str, headers: Mapping[str, str]) -> Served:
        served = self.pages.get(path, self.other)
        if isinstance(served, Callable):  # type: ignore[arg-type]
            served = served(headers)
        if served is None:
            return Served("no such page", 404)
        if served.hang:
            self._ended.wait(60)
        return served

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        super().__exit__(*error)


def _is_probe(path: str) -> bool:
    """Return whether this is the random address that a crawl asks for."""
    name = urlsplit(path).path.rpartition("/")[2]
    return len(name) == 16 and all(character in "0123456789abcdef" for character in name)


_MODIFIED = "Wed, 01 May 2024 10:00:00 GMT"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    site: SiteServer

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def setup(self) -> None:
        super().setup()
        self.site.connections += 1

    def do_GET(self) -> None:
        if self.site.is_away:
            self.close_connection = True
            return None
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.site.requests.append(self.path)
        self.site.sent.append(headers)
        served = self.site.answer(self.path, headers)
        body = served.body.encode() if isinstance(served.body, str) else served.body
        etag = f'"{blake2b(body, digest_size=8).hexdigest()}"'
        states = served.status == 200
        if states and "etag" in served.validators and headers.get("if-none-match") == etag:
            return self._say(304, b"", {"etag": etag})
        if states and "modified" in served.validators and headers.get("if-modified-since") == _MODIFIED:
            return self._say(304, b"", {})
        extra = {"etag": etag} if states and "etag" in served.validators else {}
        extra |= {"last-modified": _MODIFIED} if states and "modified" in served.validators else {}
        extra |= {"content-type": served.mime} if served.mime else {}
        return self._say(served.status, body, extra | dict(served.headers), served.cut)

    def _say(self, status: int, body: bytes, headers: Mapping[str, str], cut: int = 0) -> None:
        self.site.statuses[status] += 1
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 304:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) - cut])
        self.close_connection = self.close_connection or bool(cut)
