"""A submitter's server, which keeps what it is told; and one that has files to fetch."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.local_server import LocalServer


class Receiver(LocalServer):
    """Answers each POST with the next of ``answers``, then with 200."""

    def __init__(self, *answers: int) -> None:
        self.told: list[dict[str, Any]] = []
        self.requests: list[tuple[dict[str, str], bytes]] = []
        """(headers by lower-case name, body), of all that was posted."""
        remaining = list(answers)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
                status = remaining.pop(0) if remaining else 200
                if status == 200:
                    receiver.told.append(json.loads(body))
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._start(Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/told"


class FileServer(LocalServer):
    """Serves what ``contents`` holds by path, with ranges and an etag; ``breaks`` answers are cut off in the middle."""

    def __init__(self, contents: dict[str, bytes], *, breaks: int = 0, sizes: bool = True) -> None:
        self.contents = contents
        self.breaks = breaks
        self.asked: list[tuple[str, str, str]] = []
        """(method, path, range)"""
        files = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer(send=False)

            def do_GET(self) -> None:
                self._answer(send=True)

            def _answer(self, *, send: bool) -> None:
                span = self.headers.get("range", "")
                files.asked.append((self.command, self.path, span))
                content = files.contents.get(self.path)
                if content is None:
                    self.send_response(404)
                    self.send_header("content-length", "0")
                    self.end_headers()
                    return
                tag = f'"{hash(content)}"'
                first = int(span.removeprefix("bytes=").rstrip("-")) if span else 0
                if span and self.headers.get("if-range", tag) != tag:
                    first, span = 0, ""
                if span and first >= len(content):
                    self.send_response(416)
                    self.send_header("content-range", f"bytes */{len(content)}")
                    self.send_header("content-length", "0")
                    self.end_headers()
                    return
                self.send_response(206 if span else 200)
                self.send_header("etag", tag)
                if span:
                    self.send_header("content-range", f"bytes {first}-{len(content) - 1}/{len(content)}")
                if sizes or send:
                    self.send_header("content-length", str(len(content) - first))
                else:
                    self.close_connection = True
                self.end_headers()
                if send:
                    rest = content[first:]
                    if files.breaks > 0:
                        files.breaks -= 1
                        self.wfile.write(rest[: len(rest) // 2])
                        self.close_connection = True
                        return
                    self.wfile.write(rest)

            def log_message(self, *_: Any) -> None: ...

        self._start(Handler)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


class Redirecting(LocalServer):
    """Answers every request with a redirect to ``target``."""

    target = ""

    def __init__(self) -> None:
        self.asked = 0
        redirecting = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                redirecting.asked += 1
                self.send_response(302)
                self.send_header("location", redirecting.target)
                self.send_header("content-length", "0")
                self.end_headers()

            do_HEAD = do_POST = do_GET

            def log_message(self, *_: Any) -> None: ...

        self._start(Handler)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"
