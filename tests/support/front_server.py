"""A front server of the tests' own: what stands before an HTTP server, and passes some requests on."""

from __future__ import annotations

import http.client
import ssl
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.local_server import LocalServer


class FrontServer(LocalServer):
    """Passes requests on to a server.

    Args:
        context: speaks TLS by it; None: plain HTTP.
    """

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None = None) -> None:
        self.server = (host, port)
        self._address = "http://127.0.0.1" if context is None else "https://localhost"  # as its certificate says
        self._start(FrontHandler, context=context, front=self)

    @property
    def url(self) -> str:
        return f"{self._address}:{self.port}"

    def handle(self, request: FrontHandler, body: bytes) -> bool:
        """Answer a request; returns False if it is to be passed on."""
        return False

    def change(self, request: FrontHandler, status: int, content: bytes) -> bytes:
        """Return what is answered in place of what the server has answered."""
        return content


class FrontHandler(BaseHTTPRequestHandler):
    """One request to a front server."""

    protocol_version = "HTTP/1.1"
    front: FrontServer

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def say(self, status: int, body: bytes, kind: str) -> None:
        """Answer the request."""
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.front.handle(self, body):
            return
        server = http.client.HTTPConnection(*self.front.server, timeout=300)
        headers = {"content-type": self.headers.get("content-type", "application/json")}
        server.request(self.command, self.path, body or None, headers)
        answer = server.getresponse()
        content = self.front.change(self, answer.status, answer.read())
        self.say(answer.status, content, answer.headers.get("content-type", "text/plain"))
        server.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass
