"""A TCP proxy between a destination and its server that breaks connections on request, for tests.

    with Proxy("127.0.0.1", 9200) as proxy:
        destination = MyDestination(f"http://127.0.0.1:{proxy.port}")
        ...
        proxy.break_next(ProxyFault.SWALLOW_ANSWER)
        destination.write(chunk)      # raises; the server has done it
        assert proxy.broken == 1

It knows no protocol. A *request* is what a client sends, an *answer* what the server sends after it.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import threading
import time
from typing import Final, Self

_READ_BYTES: Final = 1 << 16
_CONNECT_S: Final = 10.0
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: ``close`` resets the connection."""


class ProxyFault(enum.Enum):
    """Fault that the proxy injects into one request."""

    DROP_REQUEST = "drop request"
    """The connection breaks before the server has seen any of it: nothing was done."""
    HALF_REQUEST = "half request"
    """The server gets the first half of what came first, then both connections break."""
    SWALLOW_ANSWER = "swallow answer"
    """The server gets it all, does it and answers; then the connection breaks: the client knows nothing."""
    HALF_ANSWER = "half answer"
    """The client gets the first half of what the server sent first, then the connection breaks."""
    DELAY_ANSWER = "delay answer"
    """The answer comes whole, ``delay_s`` later."""


class Proxy:
    """Listens at ``port`` of 127.0.0.1 and forwards everything to a server, which may be down for a while.

    Attributes:
        port: where clients connect.
        broken: how many faults have happened.
        connections: how many clients have connected.
        delay_s: seconds by which ``ProxyFault.DELAY_ANSWER`` delays an answer.
    """

    def __init__(self, host: str, port: int, *, delay_s: float = 1.0) -> None:
        self._server = (host, port)
        self.delay_s = delay_s
        self.broken = 0
        self.connections = 0
        self._lock = threading.Lock()
        self._armed: list[tuple[ProxyFault, bytes]] = []
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def break_next(self, fault: ProxyFault, containing: bytes = b"") -> None:
        """Inject this fault into the next request on any connection; with ``containing``, into the next one with these
        bytes in it (``b"COMMIT"``, ``b"/_bulk"``). Several faults are injected one after the other."""
        with self._lock:
            self._armed.append((fault, containing))

    def close(self) -> None:
        """Break all connections, and accept no more."""
        # A thread in accept() holds the listener open: shutdown() wakes it, close() alone does not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                _reset(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._server, _CONNECT_S)
        except OSError:
            _reset(client)  # as if nobody listened
            return
        server.settimeout(None)
        with self._lock:
            self._open |= {client, server}
        pair = _Pair(client, server)
        answers = threading.Thread(target=self._answers, args=(pair,), daemon=True)
        answers.start()
        self._requests(pair)
        answers.join()
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()

    def _requests(self, pair: _Pair) -> None:
        with contextlib.suppress(OSError):
            while data := pair.client.recv(_READ_BYTES):
                match self._fault(data):
                    case ProxyFault.DROP_REQUEST:
                        pair.reset()
                        return
                    case ProxyFault.HALF_REQUEST:
                        pair.server.sendall(data[: len(data) // 2])
                        pair.reset()
                        return
                    case None:
                        pass
                    case fault:
                        pair.fault = fault
                pair.server.sendall(data)
            pair.server.shutdown(socket.SHUT_WR)

    def _answers(self, pair: _Pair) -> None:
        with contextlib.suppress(OSError):
            while data := pair.server.recv(_READ_BYTES):
                fault, pair.fault = pair.fault, None
                match fault:
                    case ProxyFault.SWALLOW_ANSWER:
                        pair.reset()
                        return
                    case ProxyFault.HALF_ANSWER:
                        pair.client.sendall(data[: len(data) // 2])
                        pair.end()
                        return
                    case ProxyFault.DELAY_ANSWER:
                        time.sleep(self.delay_s)
                pair.client.sendall(data)
            pair.client.shutdown(socket.SHUT_WR)

    def _fault(self, data: bytes) -> ProxyFault | None:
        with self._lock:
            if self._armed and self._armed[0][1] in data:
                self.broken += 1
                return self._armed.pop(0)[0]
        return None


class _Pair:
    """A client's connection and the one to the server for it; ``fault``: the fault of the next answer."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.fault: ProxyFault | None = None

    def reset(self) -> None:
        _reset(self.client)
        _reset(self.server)

    def end(self) -> None:
        """Close the client's connection so that it still receives what was sent: a reset may discard that."""
        with contextlib.suppress(OSError):
            self.client.shutdown(socket.SHUT_RDWR)
        _reset(self.server)


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
    connection.close()
