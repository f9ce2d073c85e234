"""A proxy before an IMAP server: notes commands, changes lines of either side, and cuts connections."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Change = Callable[[bytes], bytes | None]
"""Changes a line; None: the connection is cut in its place."""


class ImapProxy:
    """Listens at ``port`` for a server at another one.

    Attributes:
        commands: of all clients, without tags.
        command, answer: change each line on its way.
        is_silent: takes connections and says nothing.
        connections: number of connections so far.
    """

    def __init__(self, port: int) -> None:
        self.commands: list[str] = []
        self.command: Change = lambda line: line
        self.answer: Change = lambda line: line
        self.is_silent = False
        self.connections = 0
        self._server_port = port
        self._open: list[socket.socket] = []
        self._ended = threading.Event()
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                proxy.serve(self.request)

        self._listener = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._listener.daemon_threads = True
        self.port: int = self._listener.server_address[1]
        threading.Thread(target=self._listener.serve_forever, args=[0.01], daemon=True).start()

    def cut(self) -> None:
        """Close all connections, as a server does that was idle for long."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def serve(self, client: socket.socket) -> None:
        """Pass the lines of a client on, until either side ends."""
        self.connections += 1
        if self.is_silent:
            self._ended.wait()
            return
        with socket.create_connection(("127.0.0.1", self._server_port)) as server:
            self._open += [client, server]
            back = threading.Thread(target=self._pass, args=[server, client, self._changed_answer], daemon=True)
            back.start()
            self._pass(client, server, self._changed_command)
            back.join()

    def _pass(self, source: socket.socket, target: socket.socket, change: Change) -> None:
        with contextlib.suppress(OSError), source.makefile("rb") as lines:
            for line in lines:
                changed = change(line)
                if changed is None:
                    break
                target.sendall(changed)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _changed_command(self, line: bytes) -> bytes | None:
        self.commands.append(line.decode("utf-8", "replace").strip().partition(" ")[2])
        return self.command(line)

    def _changed_answer(self, line: bytes) -> bytes | None:
        return self.answer(line)

    def close(self) -> None:
        self._ended.set()
        self.cut()
        self._listener.shutdown()
        self._listener.server_close()


@contextmanager
def imap_proxy(port: int) -> Iterator[ImapProxy]:
    proxy = ImapProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()


def once(change: Callable[[], Any], *, at: bytes) -> Change:
    """Do something when the first line with this in it comes by."""
    waiting = [change]

    def look(line: bytes) -> bytes:
        if at in line and waiting:
            waiting.pop()()
        return line

    return look
