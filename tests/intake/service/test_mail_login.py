"""Mail servers that refuse a login, and how: for good, for now, or by hanging up."""

from __future__ import annotations

import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ferryman.errors import PermanentError, TransientError
from ferryman.intake.service.reports import CALLBACK_TRIES, Mail
from tests.servers import certificates

WHAT = {"id": "bid1/report", "batch": "bid1", "status": "Completed"}
TO = {"submitter": "somebody@example.org"}
REFUSED = "535 no such user"


class ScriptedServer(socketserver.ThreadingTCPServer):
    """Answers each command with what ``answers`` has for its first word; after one in ``hangs_up``, it hangs up."""

    daemon_threads = True

    def __init__(self, context: ssl.SSLContext, answers: dict[str, str], hangs_up: frozenset[str]) -> None:
        self.context, self.answers, self.hangs_up = context, answers, hangs_up
        self.came: list[str] = []
        super().__init__(("127.0.0.1", 0), ScriptedAnswers)

    def get_request(self) -> tuple[ssl.SSLSocket, object]:
        socket, address = super().get_request()
        return self.context.wrap_socket(socket, server_side=True), address


class ScriptedAnswers(socketserver.StreamRequestHandler):
    server: ScriptedServer

    def handle(self) -> None:
        self._say("220 here")
        while line := self.rfile.readline():
            word = line.split()[0].decode().upper()
            self.server.came.append(word)
            if word == "DATA":
                self._say("354 go on")
                while self.rfile.readline() != b".\r\n":
                    pass
            self._say(self.server.answers.get(word, "250 fine"))
            if word in self.server.hangs_up:
                return

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ssl.SSLContext]:
    """What a server at 127.0.0.1 speaks TLS with; this process trusts it."""
    folder: Path = tmp_path_factory.mktemp("authority")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(certificates.authority(folder)))
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        made.load_cert_chain(certificates.server(folder))
        yield made


@contextmanager
def answering(context: ssl.SSLContext, *hangs_up: str, **answers: str) -> Iterator[tuple[ScriptedServer, Mail]]:
    """A server, and what sends mail through it."""
    with ScriptedServer(
        context, {"EHLO": "250-here\r\n250 AUTH PLAIN LOGIN", **answers}, frozenset(hangs_up)
    ) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield server, Mail(f"smtps://me:pw@127.0.0.1:{server.server_address[1]}?from=l@example.org", pause_s=0)
        server.shutdown()


@pytest.mark.rule("intake.mail")
def test_a_server_that_hangs_up_after_it_refused_the_login(context: ssl.SSLContext) -> None:
    """It has refused for good: the next way to log in, which meets the end of the connection, does not count."""
    with (
        answering(context, "AUTH", AUTH=REFUSED) as (server, mail),
        pytest.raises(PermanentError, match=r"refuses user and password \(535\)"),
    ):
        mail.send(TO, WHAT)
    assert server.came == ["EHLO", "AUTH"]


def test_a_refusal_is_not_covered_by_the_answer_to_goodbye(context: ssl.SSLContext) -> None:
    with (
        answering(context, AUTH=REFUSED, QUIT="421 too many failures") as (_, mail),
        pytest.raises(PermanentError, match="535"),
    ):
        mail.send(TO, WHAT)


def test_a_login_that_cannot_be_checked_now_is_tried_again(context: ssl.SSLContext) -> None:
    """454: the server's own users cannot be asked at the moment."""
    with (
        answering(context, AUTH="454 temporary authentication failure") as (server, mail),
        pytest.raises(TransientError, match="454"),
    ):
        mail.send(TO, WHAT)
    assert server.came.count("EHLO") == CALLBACK_TRIES


def test_a_server_that_hangs_up_without_an_answer(context: ssl.SSLContext) -> None:
    """Nobody has said no: it is tried again."""
    with answering(context, "EHLO") as (server, mail), pytest.raises(TransientError, match="was not taken"):
        mail.send(TO, WHAT)
    assert server.came == ["EHLO"] * CALLBACK_TRIES


@pytest.mark.parametrize("goodbye", ["221 bye", "421 going down"])
def test_a_mail_that_was_taken_is_not_sent_again(context: ssl.SSLContext, goodbye: str) -> None:
    """Whatever the server answers to the goodbye."""
    with answering(context, "QUIT", AUTH="235 welcome", DATA="250 kept", QUIT=goodbye) as (server, mail):
        assert mail.send(TO, WHAT)
    assert server.came.count("DATA") == 1
