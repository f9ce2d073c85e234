"""Fetching what a URL leads to, from a server of the test's own."""

from __future__ import annotations

import base64
import gzip
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ferryman.document import Document
from ferryman.errors import BadDocument, PermanentError, TransientError
from ferryman.steps import extract_text, fetch_url


class Site(BaseHTTPRequestHandler):
    """A path says what comes: ``/200/text``, ``/404``, ``/redirect/3``, ``/slow``, ``/big``, …"""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str | None, tuple[str, int]]]

    def do_GET(self) -> None:
        type(self).seen.append((self.path, self.headers.get("authorization"), self.client_address))
        _, what, *rest = self.path.partition("?")[0].split("/")
        getattr(self, f"do_{what}", self.do_status)(*rest)

    def do_status(self, *rest: str) -> None:
        status = int(self.path.partition("?")[0].split("/")[1])
        self.answer("/".join(rest).encode(), status)

    def do_redirect(self, left: str, *_: str) -> None:
        self.answer(b"moved", 302, location=f"/redirect/{int(left) - 1}" if int(left) else "/200/there")

    def do_round(self) -> None:
        self.answer(b"", 301, location="/round")

    def do_to(self) -> None:
        self.answer(b"", 307, location=self.path.partition("?")[2])

    def do_nowhere(self) -> None:
        self.answer(b"", 302)

    def do_slow(self) -> None:
        self.server.stopped.wait(60)  # type: ignore[attr-defined]
        self.close_connection = True

    def do_drip(self) -> None:
        self.answer(b"", more=1000)
        while not self.server.stopped.wait(0.05):  # type: ignore[attr-defined]
            try:
                self.wfile.write(b"x")
            except OSError:
                return

    def do_big(self, size: str) -> None:
        self.answer(b"x" * int(size))

    def do_huge(self) -> None:
        """So it says; nothing comes."""
        self.answer(b"", more=10**12)
        self.server.stopped.wait(10)  # type: ignore[attr-defined]

    def do_endless(self) -> None:
        """Without a length, and without an end."""
        self.send_response(200)
        self.send_header("connection", "close")
        self.end_headers()
        try:
            while not self.server.stopped.is_set():  # type: ignore[attr-defined]
                self.wfile.write(b"x" * 65536)
        except OSError:
            return

    def do_bomb(self, size: str) -> None:
        self.answer(gzip.compress(bytes(int(size))), content_encoding="gzip")

    def do_gzip(self) -> None:
        self.answer(gzip.compress(b"packed"), content_encoding="gzip")

    def do_coding(self, name: str) -> None:
        self.answer(b"as it comes", content_encoding=name)

    def do_charset(self, label: str) -> None:
        page = '<meta charset="iso-8859-1"><p>Паром отходит'
        self.answer(page.encode("koi8-r"), content_type=f'text/html; version=1; Charset = "{label}"')

    def do_broken(self) -> None:
        self.answer(b"half", more=4)
        self.close_connection = True

    def do_nonsense(self) -> None:
        self.wfile.write(b"this is no HTTP\r\n\r\n")
        self.close_connection = True

    def answer(self, body: bytes, status: int = 200, *, more: int = 0, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body) + more))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[ThreadingHTTPServer]:
    Site.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.stopped = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
    thread.start()
    yield server
    server.stopped.set()  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


@pytest.fixture
def at(site: ThreadingHTTPServer) -> str:
    """Address of the server."""
    return f"http://127.0.0.1:{site.server_port}"


def fetched(url: Any, **options: Any) -> bytes | None:
    return fetch_url("link", **options)(Document("i", raw=b"before", link=url)).raw


def test_the_content_becomes_raw(at: str) -> None:
    """The field stays; so does everything where there is no field."""
    doc = fetch_url("link")(Document("i", link=f"{at}/200/hello"))

    assert doc == Document("i", raw=b"hello", link=f"{at}/200/hello")
    assert fetch_url("link")(Document("i", raw=b"x")).raw == b"x"
    assert fetched([]) == b"before"
    assert fetched([f"{at}/200/one"]) == b"one"


def test_an_empty_answer_is_empty_content(at: str) -> None:
    """As an empty file is."""
    assert fetched(f"{at}/200") == b""
    assert fetched(f"{at}/204") == b""


def test_what_is_packed_is_unpacked(at: str) -> None:
    """Content is what the server means, not how it was sent."""
    assert fetched(f"{at}/gzip") == b"packed"


def test_what_cannot_be_unpacked_is_no_content(at: str) -> None:
    """A server may send what nobody has asked for. A word that is not a coding means nothing, as for a browser."""
    with pytest.raises(PermanentError, match="encoded with br, which was not asked for"):
        fetched(f"{at}/coding/br")
    assert fetched(f"{at}/coding/utf-8") == b"as it comes"


@pytest.mark.parametrize(("field", "charset"), [(None, "koi8-r"), ("cp1251", "cp1251")])
def test_the_encoding_that_http_states_is_a_field(at: str, field: str | None, charset: str) -> None:
    """So that ``extract_text`` decodes by it, whatever the page says; one that the document has is kept."""
    doc = fetch_url("link")(Document("a.html", link=f"{at}/charset/KOI8-R", charset=field))
    assert doc["charset"] == charset
    extract_text()(doc)
    assert (doc.text() == "Паром отходит") == (charset == "koi8-r")


def test_a_connection_is_used_again(at: str) -> None:
    """For the next document of this process."""
    for n in range(3):
        fetched(f"{at}/200/{n}")

    assert len({client for _, _, client in Site.seen}) == 1


def test_a_forked_process_has_its_own_connections(at: str) -> None:
    """Two processes on one connection would read each other's answers."""
    fetched(f"{at}/200/parent")
    pid = os.fork()
    if pid == 0:
        os._exit(0 if fetched(f"{at}/200/child") == b"child" else 1)
    assert os.waitpid(pid, 0)[1] == 0

    assert len({client for _, _, client in Site.seen}) == 2


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503])
def test_what_may_pass_is_tried_again(at: str, status: int) -> None:
    """The message has the status, and the URL without what may be secret."""
    with pytest.raises(TransientError) as caught:
        fetched(f"{at.replace('//', '//me:secret@')}/{status}?token=secret#part")

    assert str(caught.value).startswith(f"{at}/{status}?…: answered {status}")


@pytest.mark.parametrize("status", [304, 400, 401, 403, 404, 410, 451])
def test_what_will_not_change_is_not_tried_again(at: str, status: int) -> None:
    """Until the document changes."""
    with pytest.raises(PermanentError, match=f"/{status}: answered {status} .*Correct the URL, or drop the document"):
        fetched(f"{at}/{status}")


def test_nobody_there() -> None:
    """A refused connection may be taken later."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(TransientError, match=rf"^http://127\.0\.0\.1:{port}/x: Connection refused$"):
        fetched(f"http://127.0.0.1:{port}/x")


def test_an_unknown_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name may be known later."""

    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(TransientError, match=r"^http://nobody\.invalid: no host of this name is found$"):
        fetched("http://nobody.invalid")


@pytest.mark.parametrize("path", ["slow", "drip"])
def test_a_slow_server_is_given_up(at: str, path: str) -> None:
    """Whether it says nothing, or a little all the time."""
    began = time.monotonic()
    with pytest.raises(TransientError, match=r"no answer within 0\.3 s|bytes within 0\.3 s, and not all"):
        fetched(f"{at}/{path}", timeout_s=0.3)

    assert 0.25 < time.monotonic() - began < 30


@pytest.mark.parametrize("path", ["broken", "nonsense"])
def test_a_broken_answer_is_tried_again(at: str, path: str) -> None:
    """Half of the content is no content."""
    with pytest.raises(TransientError, match=f"/{path}: the answer broke off or is not HTTP"):
        fetched(f"{at}/{path}")


@pytest.mark.parametrize("path", ["big/1001", "huge", "endless", "bomb/100000000"])
def test_too_much_is_refused(at: str, path: str) -> None:
    """With a length, as soon as it is known; without one; and unpacked."""
    with pytest.raises(PermanentError, match="has more than max_bytes=1000"):
        fetched(f"{at}/{path}", max_bytes=1000)


def test_as_much_as_is_allowed_is_taken(at: str) -> None:
    """To the byte."""
    assert fetched(f"{at}/big/1000", max_bytes=1000) == b"x" * 1000


def test_redirects_are_followed_so_far(at: str) -> None:
    """As many as are allowed."""
    assert fetched(f"{at}/redirect/2", redirects=3) == b"there"
    with pytest.raises(PermanentError, match="redirects=2 are used up"):
        fetched(f"{at}/redirect/2", redirects=2)
    with pytest.raises(PermanentError, match="/round: its redirects=5 are used up"):
        fetched(f"{at}/round")
    with pytest.raises(PermanentError, match="answered 302"):
        fetched(f"{at}/nowhere")


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://x", "http://[::1"])
def test_a_redirect_leads_to_the_web_only(at: str, target: str) -> None:
    """As the first URL does."""
    with pytest.raises(BadDocument, match=r"^i: http://127\.0\.0\.1:.* redirects to .* not an? "):
        fetched(f"{at}/to?{target}")


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://x/y", "//host/path", "/path", "words", "", "http://", "http://[::1", "http://a:b:c/",
     "http://x:99999/", "javascript:alert(1)", "http://" + "a" * 64 + ".example/"],
)  # fmt: skip
def test_what_is_no_url_of_the_web_is_refused(url: str) -> None:
    """Nothing is asked for."""
    with pytest.raises(BadDocument):
        fetched(url)


@pytest.mark.parametrize("held", [3, {"url": "x"}, ["http://a", "http://b"], [["http://a"]]])
def test_a_field_holds_one_url(held: Any) -> None:
    """Neither several, nor something else."""
    with pytest.raises(BadDocument, match="i: field 'link' holds "):
        fetched(held)


def test_user_and_password_go_to_their_server_only(at: str) -> None:
    """As Basic authentication, and not on to where it redirects."""
    with_user = at.replace("//", "//j%C3%A4ne:p%40ss@")
    assert fetched(f"{with_user}/to?{at}/200/x") == b"x"

    sent = base64.b64encode("jäne:p@ss".encode()).decode()
    assert [(path, authorization) for path, authorization, _ in Site.seen] == [
        (f"/to?{at}/200/x", f"Basic {sent}"),
        ("/200/x", None),
    ]


def test_only_named_hosts_are_asked(at: str) -> None:
    """Redirects too."""
    other = at.replace("127.0.0.1", "localhost")
    assert fetched(f"{at}/200/x", hosts="127.0.0.1") == b"x"
    assert fetched(f"{other}/200/x", hosts=["127.0.0.1", "LocalHost"]) == b"x"
    seen = len(Site.seen)
    with pytest.raises(BadDocument, match="is on none of the hosts example"):
        fetched(f"{at}/200/x", hosts="example.org")
    with pytest.raises(BadDocument, match="redirects to http://localhost:"):
        fetched(f"{at}/to?{other}/200/x", hosts="127.0.0.1")

    assert [path for path, _, _ in Site.seen[seen:]] == [f"/to?{other}/200/x"]


@pytest.mark.parametrize(
    "options", [{"timeout_s": 0}, {"timeout_s": float("nan")}, {"max_bytes": 0}, {"redirects": -1}, {"field": ""}]
)
def test_mistakes_are_found_when_the_step_is_made(options: dict[str, Any]) -> None:
    """In the plan file."""
    with pytest.raises(ValueError, match=r"give "):
        fetch_url(**{"field": "link", **options})
