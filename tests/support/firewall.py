"""A front server of the tests' own: what stands before a search engine and does not like some requests."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Firewall:
    """``http://localhost:…`` before an HTTP server.

    Attributes:
        most_bytes: a request with a larger body is reset.
        suspicious: a request with one of these texts in its body is answered with ``status``.
        status: 0: the connection is reset.
        refused: sizes of the requests that were reset or refused.
    """

    def __init__(
        self, host: str, port: int, *, most_bytes: int = 1 << 40, suspicious: tuple[bytes, ...] = (), status: int = 0
    ) -> None:
        self.server = (host, port)
        self.most_bytes, self.suspicious, self.status = most_bytes, suspicious, status
        self.refused: list[int] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"firewall": self}))
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=[0.01], daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    firewall: Firewall

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _pass(self) -> None:
        wall = self.firewall
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        dislikes = any(text in body for text in wall.suspicious)
        if len(body) > wall.most_bytes or dislikes:
            wall.refused.append(len(body))
            if len(body) > wall.most_bytes or not wall.status:
                self._reset()
            else:
                self._say(wall.status, b"<html>Request blocked</html>", "text/html")
            return
        server = http.client.HTTPConnection(*wall.server, timeout=300)
        server.request(self.command, self.path, body or None, {"content-type": self.headers.get("content-type", "")})
        answer = server.getresponse()
        self._say(answer.status, answer.read(), answer.headers.get("content-type", "text/plain"))
        server.close()

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True
        self.wfile = open("/dev/null", "wb")  # noqa: SIM115  # the handler flushes it

    def _say(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass
