"""An API on a real HTTP server, with pages of rows and a list of changes, whose faults a test chooses; and readers of
it as people write them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

from ferryman.sources import CursorExpired
from tests.support.local_server import LocalServer

PAGE = 10


class Reply(NamedTuple):
    """An answer in the place of the usual one; ``cut`` is the number of bytes at its end that do not come."""

    status: int = 200
    body: Any = b""
    headers: Mapping[str, str] = {}
    cut: int = 0


class ApiServer(LocalServer):
    """Serves ``/rows?offset=`` and ``/changes?after=``.

    Attributes:
        rows: what there is, by id.
        changes: pairs of a cursor and a change.
        fault: called with the number of each request since it was set, from 1; returns what is answered, or None.
        kill_at: the process that asks is killed at this request; 0: at none.
        asked: paths that were asked for.
    """

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.changes: list[tuple[Any, dict[str, Any]]] = []
        self.asked: list[str] = []
        self.kill_at = 0
        self._fault: Callable[[int], Reply | None] = lambda _: None
        self._count = 0
        self._start(_Handler, api=self)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fill(self, count: int) -> None:
        self.rows = {f"r{n}": {"id": f"r{n}", "text": f"Row {n}"} for n in range(count)}

    def set_fault(self, fault: Callable[[int], Reply | None] = lambda _: None) -> None:
        self._fault, self._count = fault, 0

    def answer(self, path: str, pid: int) -> Reply:
        self.asked.append(path)
        self._count += 1
        if self.kill_at and self._count == self.kill_at:
            os.kill(pid, signal.SIGKILL)
        if (reply := self._fault(self._count)) is not None:
            return reply
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/rows":
            return Reply(body=self.page(int(query["offset"])))
        after = json.loads(query["after"])
        return Reply(body={"changes": [each for each in self.changes if after is None or each[0] > after]})

    def page(self, offset: int) -> dict[str, Any]:
        return {"total": len(self.rows), "rows": list(self.rows.values())[offset : offset + PAGE]}


class _Handler(BaseHTTPRequestHandler):
    api: ApiServer

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        reply = self.api.answer(self.path, int(self.headers["x-pid"]))
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        for name, value in {"content-length": str(len(body)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) - reply.cut])


def ask(url: str) -> Any:
    with urlopen(Request(url, headers={"x-pid": str(os.getpid())}), timeout=10) as answer:
        return json.load(answer)


def read_carefully(url: str) -> Iterator[dict[str, Any]]:
    """Read all rows as ``docs/how-to/index-an-api.md`` does: the number of rows must be what each page announces."""
    seen, totals = 0, set()
    while True:
        content = ask(f"{url}/rows?offset={seen}")
        if "error" in content:
            raise RuntimeError(content["error"])
        totals.add(content["total"])
        yield from content["rows"]
        seen += len(content["rows"])
        if not content["rows"]:
            break
    if totals != {seen}:
        raise RuntimeError(f"{seen} rows came, where {sorted(totals)} were announced")


def read_carelessly(url: str) -> Iterator[dict[str, Any]]:
    """Read pages until one has no rows, whatever else it says."""
    at = 0
    while rows := ask(f"{url}/rows?offset={at}").get("rows"):
        yield from rows
        at += PAGE


def read_changes(url: str, cursor: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    try:
        content = ask(f"{url}/changes?after={json.dumps(cursor)}")
    except HTTPError as e:
        if e.code == 410:
            raise CursorExpired("410 Gone") from e
        raise
    for number, change in content["changes"]:
        yield change, number
