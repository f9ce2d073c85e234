"""Answers of a WebDAV server that do not list a folder whole: files that are still there are not taken for gone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ferryman.errors import TransientError
from ferryman.sources import Files, Listed
from tests.servers.registry import require_package

require_package("webdav4")


def entry(path: str, status: str = "", *, is_folder: bool = False) -> str:
    kind = "<d:collection/>" if is_folder else ""
    properties = f"<d:resourcetype>{kind}</d:resourcetype><d:getcontentlength>3</d:getcontentlength>"
    found = f"<d:propstat><d:prop>{properties}</d:prop><d:status>HTTP/1.1 200 OK</d:status></d:propstat>"
    return f"<d:response><d:href>{path}</d:href>{f'<d:status>{status}</d:status>' if status else found}</d:response>"


def answer(*entries: str) -> bytes:
    return f"<?xml version='1.0'?><d:multistatus xmlns:d='DAV:'>{''.join(entries)}</d:multistatus>".encode()


FOLDERS = {
    "/": answer(entry("/", is_folder=True), entry("/a"), entry("/d/", is_folder=True)),
    "/d/": answer(entry("/d/", is_folder=True), entry("/d/x"), entry("/d/y")),
}


class _Handler(BaseHTTPRequestHandler):
    fault: tuple[int, bytes] | None = None

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_PROPFIND(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.rstrip("/") + "/"
        status, body = 207, FOLDERS[path]
        if path == "/d/" and self.fault is not None and self.headers["depth"] == "1":
            status, body = self.fault
        self.send_response(status)
        self.send_header("content-length", str(len(FOLDERS[path]) if body == CUT else len(body)))
        self.end_headers()
        self.wfile.write(body)


CUT = FOLDERS["/d/"][:250]


@pytest.fixture
def server() -> Iterator[Any]:
    handler = type("Handler", (_Handler,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        http.daemon_threads = True
        threading.Thread(target=http.serve_forever, args=[0.01], daemon=True).start()
        yield http
        http.shutdown()


def scan(source: Files) -> list[str]:
    found: list[str] = []
    for partition in source.partitions():
        for each in source.listing(partition):
            if isinstance(each, Listed):
                found.append(each.id)
            else:
                assert not source.contradiction(each), "the driver sees it"  # type: ignore[arg-type]
    return found


FAULTS = {
    "it has more": (207, answer(entry("/d/", "HTTP/1.1 507 Insufficient Storage"), entry("/d/x"))),
    "a member failed": (207, answer(entry("/d/", is_folder=True), entry("/d/x"), entry("/d/y", "HTTP/1.1 500 Error"))),
    "another folder": (207, answer(entry("/e/", is_folder=True), entry("/e/z"))),
    "nothing": (207, answer()),
    "broken": (207, answer(entry("/d/", is_folder=True))[:60]),
    "cut off": (207, CUT),
    "a page": (207, b"<html><body>Log in</body></html>"),
    "a page, 200": (200, b"<html><body>Log in</body></html>"),
    **{str(status): (status, b"") for status in (204, 401, 403, 429, 503)},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_folder_that_is_not_listed_whole(server: Any, fault: str) -> None:
    source = Files(f"webdav://127.0.0.1:{server.server_port}/")
    assert scan(source) == ["a", "d/x", "d/y"]
    server.RequestHandlerClass.fault = FAULTS[fault]
    with pytest.raises((TransientError, AssertionError)):
        scan(source)
