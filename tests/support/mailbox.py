"""A mail server of the tests' own: it takes whatever comes, and keeps it."""

from __future__ import annotations

import socketserver
import threading
from email import message_from_bytes
from email.message import Message
from typing import Any


class Mailbox:
    """``with Mailbox() as mailbox``: mails to ``127.0.0.1:mailbox.port`` are in ``mailbox.mails``.

    Attributes:
        silent: it takes the connection and says nothing.
    """

    def __init__(self, *, silent: bool = False) -> None:
        self.mails: list[Message] = []
        self.silent = silent
        self.ended = threading.Event()
        mailbox = self

        class Handler(_Handler):
            of = mailbox

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Mailbox:
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(socketserver.StreamRequestHandler):
    of: Mailbox

    def handle(self) -> None:
        if self.of.silent:
            self.of.ended.wait(30)
            return
        self._say("220 mailbox")
        while line := self.rfile.readline():
            match line.split()[0].upper():
                case b"EHLO":
                    self._say("250 mailbox")
                case b"DATA":
                    self._say("354 go on")
                    lines = []
                    while (text := self.rfile.readline()) != b".\r\n":
                        lines.append(text.removeprefix(b"."))
                    self.of.mails.append(message_from_bytes(b"".join(lines)))
                    self._say("250 kept")
                case b"QUIT":
                    self._say("221 bye")
                    return
                case _:
                    self._say("250 fine")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())
