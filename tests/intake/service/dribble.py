"""A server that sends a byte every few moments, until it is told to go on as any other."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.local_server import LocalServer

EVERY_S = 0.05
PADDING = "x" * 100
"""Makes the headers last several seconds: longer than what others do meanwhile, shorter than a receiver may take."""


class Dribble(LocalServer):
    """Serves ``contents`` by path. Paths below ``/headers/`` dribble from the first byte of the answer on, others their
    content; ``answered`` counts the requests that have come."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.contents = contents
        self.faster = threading.Event()
        self.came: list[tuple[str, str]] = []
        dribble = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self._answer(b"")

            def do_GET(self) -> None:
                self._answer(dribble.contents[self.path])

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self._answer(dribble.contents[self.path])

            def _answer(self, content: bytes) -> None:
                dribble.came.append((self.command, self.path))
                size = len(dribble.contents[self.path])
                head = f"HTTP/1.1 200 OK\r\ncontent-length: {size}\r\nx-padding: {PADDING}\r\n\r\n".encode()
                at_once = b"" if self.path.startswith("/headers/") else head
                try:
                    self.wfile.write(at_once)
                    for byte in (head + content)[len(at_once) :]:
                        dribble.faster.wait(EVERY_S)
                        self.wfile.write(bytes([byte]))
                except OSError:
                    return  # the other side has had enough

            def log_message(self, *_: Any) -> None: ...

        self._start(Handler)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def stop(self) -> None:
        self.faster.set()
        super().stop()
