"""A server that sends a byte every few moments, until it is told to go on as any other."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

EVERY_S = 0.05
PADDING = "x" * 100
"""Makes the headers last several seconds: longer than what others do meanwhile, shorter than a receiver may take."""


class Dribble:
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

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.faster.set()
        self._server.shutdown()
        self._server.server_close()
