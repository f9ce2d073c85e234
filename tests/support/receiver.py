"""A web server of the tests' own that is posted to, writes down what came, and answers as the test wants."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple


class Request(NamedTuple):
    """What came; header names are lower case."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def ids(self) -> list[str]:
        return [delivery["id"] for delivery in self.json["deliveries"]]


class Reply(NamedTuple):
    """What is answered. ``how``: "whole"; "nothing" (the connection is closed instead), "reset" (it is reset), "half"
    (it is closed before the end of the body), "late" (nothing, until the server ends), "nonsense"."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})
    how: str = "whole"


class Receiver:
    """``with Receiver() as receiver``: posts to ``receiver.url`` are in ``receiver.requests``.

    Attributes:
        answer: request -> reply; default: 200. What it does before it answers takes effect.
    """

    def __init__(self, answer: Callable[[Request], Reply] | None = None, *, tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer or (lambda _: Reply())
        self.requests: list[Request] = []
        self.tls = tls
        self.port = 0
        self._server: ThreadingHTTPServer | None = None
        self.connections: list[socket.socket] = []
        """All that were opened, in their order, until it stops."""
        self.stopped = threading.Event()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        """Of all deliveries that came, in their order."""
        return [id for request in self.requests for id in request.ids]

    def start(self) -> None:
        """Listen, at the same port as before."""
        self.stopped.clear()
        receiver = self

        class Handler(_Handler):
            of = receiver

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        if self.tls:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()

    def stop(self) -> None:
        """Do not listen any more; open connections are closed."""
        assert self._server
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()
        for connection in self.connections:
            with suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)  # a close would wait for the files made of it
            connection.close()
        self.connections.clear()

    def __enter__(self) -> Receiver:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    of: Receiver

    def setup(self) -> None:
        super().setup()
        self.of.connections.append(self.connection)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        request = Request(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        self.of.requests.append(request)
        reply = self.of.answer(request)
        match reply.how:
            case "nothing":
                self.close_connection = True
            case "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                self.connection.close()
            case "late":
                self.of.stopped.wait(30)
                self.close_connection = True
            case "nonsense":
                self.wfile.write(b"this is no HTTP\r\n\r\n")
                self.close_connection = True
            case _:
                self._send(reply)

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        missing = 4 if reply.how == "half" else 0
        self.send_header("content-length", str(len(reply.body) + missing))
        self.end_headers()
        self.wfile.write(reply.body)
        self.close_connection = self.close_connection or bool(missing)

    def finish(self) -> None:
        with suppress(OSError):  # a connection that was reset
            super().finish()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that refuses connections: bound, so that nobody else takes it, and not listened at."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
