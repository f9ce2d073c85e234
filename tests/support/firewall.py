"""A firewall before a search engine, which does not like some requests."""

from __future__ import annotations

import socket
import struct

from tests.support.front_server import FrontHandler, FrontServer


class Firewall(FrontServer):
    """``http://127.0.0.1:…`` before an HTTP server.

    Attributes:
        most_bytes: a request with a larger body is reset.
        suspicious: a request with one of these texts in its body is answered with ``status``.
        status: 0: the connection is reset.
        refused: sizes of the requests that were reset or refused.
    """

    def __init__(
        self, host: str, port: int, *, most_bytes: int = 1 << 40, suspicious: tuple[bytes, ...] = (), status: int = 0
    ) -> None:
        self.most_bytes, self.suspicious, self.status = most_bytes, suspicious, status
        self.refused: list[int] = []
        super().__init__(host, port)

    def handle(self, request: FrontHandler, body: bytes) -> bool:
        too_large = len(body) > self.most_bytes
        if not too_large and not any(text in body for text in self.suspicious):
            return False
        self.refused.append(len(body))
        if too_large or not self.status:
            _reset(request)
        else:
            request.say(self.status, b"<html>Request blocked</html>", "text/html")
        return True


def _reset(request: FrontHandler) -> None:
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.connection.close()
    request.close_connection = True
    request.wfile = open("/dev/null", "wb")  # noqa: SIM115  # the handler flushes it
