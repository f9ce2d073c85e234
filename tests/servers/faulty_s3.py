"""An object store in memory that speaks S3, in a process of its own, and fails as it is told.

Amazon's is always consistent, and so is this one. It can do what networks and stores do: carry a request out and lose
the answer, say 503, be slow. A fake: tests/storage/test_stores.py holds it against moto.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import threading
import time
from bisect import bisect_left, insort
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import Request, urlopen
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.servers.server import Server

FAULTS: Final = "/~faults"
COUNTS: Final = "/~counts"
BELOW: Final = "/~below/"
BUCKET: Final = "bucket"


class FaultyS3(Server):
    """Its buckets are there when they are used."""

    name = "faulty-s3"

    @classmethod
    def install(cls) -> Path:
        return Path(sys.prefix)

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.servers.faulty_s3", str(self.port)]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(Path(__file__).parents[2])}

    def ready(self) -> bool:
        return self.answers(COUNTS)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        """The environment of a process that keeps a state in it."""
        return settings(self.url)

    def fail(self, *, lost: float = 0, refused: float = 0, slow_s: float = 0, seed: int = 0) -> None:
        """From now on: share of requests whose answer is lost, share that gets 503, longest delay of an answer."""
        faults = {"lost": lost, "refused": refused, "slow_s": slow_s, "seed": seed}
        with urlopen(Request(self.url + FAULTS, json.dumps(faults).encode(), method="PUT")):
            pass

    def remove(self, prefix: str) -> None:
        """Remove all objects of the bucket whose key begins with this."""
        with urlopen(Request(f"{self.url}{BELOW}{BUCKET}/{prefix}", method="DELETE")):
            pass

    def counts(self) -> dict[str, int]:
        """Requests since the last call, by kind: PUT, GET, HEAD, LIST, DELETE."""
        with urlopen(self.url + COUNTS) as answer:
            found: dict[str, int] = json.load(answer)
            return found


def settings(url: str) -> dict[str, str]:
    """What obstore and delta-rs read, for a server without TLS that takes any credentials."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "k3y-of-tests",
        "AWS_SECRET_ACCESS_KEY": "s3cr3t",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


class Kept(NamedTuple):
    """An object."""

    data: bytes
    tag: str
    changed: float
    metadata: dict[str, str]


class Memory:
    """What the server holds. One lock: a request is carried out at one moment."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, Kept] = {}
        self.keys: list[str] = []
        """Sorted: a store of many tests is listed often."""
        self.faults: dict[str, float] = {}
        self.chance = random.Random()
        self.counts: dict[str, int] = {}

    def put(self, key: str, data: bytes, headers: dict[str, str]) -> tuple[int, Kept | None]:
        found = self.objects.get(key)
        if headers.get("if-none-match") == "*" and found is not None:
            return 412, found
        wanted = headers.get("if-match")
        if wanted is not None and (found is None or found.tag != wanted):
            return (404 if found is None else 412), found
        metadata = {name: value for name, value in headers.items() if name.startswith("x-amz-meta-")}
        made = Kept(data, f'"{hashlib.md5(data).hexdigest()}"', time.time(), metadata)
        self.objects[key] = made
        if found is None:
            insort(self.keys, key)
        return 200, made

    def remove(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def below(self, prefix: str, after: str) -> dict[str, Kept]:
        """Objects whose key begins with ``prefix`` and comes after ``after``, in order."""
        found = {}
        for at in range(bisect_left(self.keys, max(prefix, after)), len(self.keys)):
            key = self.keys[at]
            if not key.startswith(prefix):
                break
            if key > after:
                found[key] = self.objects[key]
        return found


class Handler(StreamRequestHandler):
    """A connection. The library's handler of HTTP takes five times as long for a request."""

    disable_nagle_algorithm = True
    memory = Memory()

    def handle(self) -> None:
        """Answer one request after the other. One that is cut off takes no effect."""
        self.goes_on = True
        while self.goes_on and (head := self._head()) is not None:
            self.command, self.path, _ = head[0].split()
            named = (line.partition(":") for line in head[1:])
            self.headers = {name.lower(): value.strip() for name, _, value in named}
            self.goes_on = self.headers.get("connection", "").lower() != "close"
            getattr(self, f"do_{self.command}")()

    def _head(self) -> list[str] | None:
        lines = []
        while (line := self.rfile.readline()).endswith(b"\n"):
            if line == b"\r\n":
                return lines
            lines.append(line.decode("latin-1"))
        return None

    def do_PUT(self) -> None:
        body = self._body()
        if self.path == FAULTS:
            self.memory.faults = json.loads(body)
            self.memory.chance.seed(self.memory.faults["seed"])
            self._answer(200)
            return
        if self._refused("PUT"):
            return
        key = self._key()
        with self.memory.lock:
            if "x-amz-copy-source" in self.headers:
                source = self.memory.objects.get(unquote(self.headers["x-amz-copy-source"]).lstrip("/"))
                if source is None:
                    self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
                    return
                body = source.data
            code, kept = self.memory.put(key, body, self.headers)
        self._answer(code, headers={"ETag": kept.tag} if kept and code == 200 else {})

    def do_GET(self) -> None:
        if self.path == COUNTS:
            counts, self.memory.counts = self.memory.counts, {}
            self._answer(200, json.dumps(counts).encode())
            return
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            if not self._refused("LIST"):
                self._list({name: values[0] for name, values in query.items()})
        elif not self._refused(self.command):
            self._get()

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        if self.path.startswith(BELOW):
            with self.memory.lock:
                for key in self.memory.below(unquote(self.path.removeprefix(BELOW)), ""):
                    self.memory.remove(key)
            self._answer(204)
        elif not self._refused("DELETE"):
            with self.memory.lock:
                self.memory.remove(self._key())
            self._answer(204)

    def do_POST(self) -> None:
        body = self._body()
        if self._refused("DELETE"):
            return
        bucket = urlsplit(self.path).path.strip("/")
        keys = [each.text or "" for each in ElementTree.fromstring(body).iter() if each.tag.endswith("Key")]
        with self.memory.lock:
            for key in keys:
                self.memory.remove(f"{bucket}/{key}")
        gone = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode())

    def _get(self) -> None:
        with self.memory.lock:
            kept = self.memory.objects.get(self._key())
        if kept is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        data, code, headers = kept.data, 200, {}
        if (asked := self.headers.get("range")) is not None:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start = int(first) if first else max(0, len(data) - int(last))
            end = min(len(data), int(last) + 1) if first and last else len(data)
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            data, code = data[start:end], 206
        headers |= {"ETag": kept.tag, "Last-Modified": formatdate(kept.changed, usegmt=True), **kept.metadata}
        self._answer(code, data, headers)

    def _list(self, query: dict[str, str]) -> None:
        bucket, prefix = urlsplit(self.path).path.strip("/"), query.get("prefix", "")
        after, delimiter = query.get("start-after", ""), query.get("delimiter", "")
        with self.memory.lock:
            below = self.memory.below(f"{bucket}/{prefix}", f"{bucket}/{after}")
        found = {key.removeprefix(f"{bucket}/"): each for key, each in below.items()}
        rest = {k: k[len(prefix) :].partition(delimiter) if delimiter else ("", "", "") for k in found}
        folders = sorted({prefix + name + delimiter for name, slash, _ in rest.values() if slash})
        contents = "".join(
            f"<Contents><Key>{escape(k)}</Key><ETag>{escape(v.tag)}</ETag><Size>{len(v.data)}</Size>"
            f"<LastModified>{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(v.changed))}.000Z</LastModified></Contents>"
            for k, v in found.items()
            if not rest[k][1]
        )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in folders)
        self._answer(200, f"<ListBucketResult>{contents}{common}</ListBucketResult>".encode())

    def _refused(self, kind: str) -> bool:
        with self.memory.lock:
            self.memory.counts[kind] = self.memory.counts.get(kind, 0) + 1
            faults, draw = self.memory.faults, self.memory.chance.random
            refused = bool(faults) and draw() < faults["refused"]
            self._lost = bool(faults) and draw() < faults["lost"]
            slow_s = faults["slow_s"] * draw() if faults else 0.0
        if slow_s:
            time.sleep(slow_s)
        if refused:
            self._lost = False
            self._answer(503, b"<Error><Code>SlowDown</Code></Error>")
        return refused

    _lost = False

    def _answer(self, code: int, data: bytes = b"", headers: dict[str, str] | None = None) -> None:
        if self._lost:
            self._lost = self.goes_on = False
            return
        told = {**(headers or {}), "Content-Length": str(len(data))}
        lines = [f"HTTP/1.1 {code} {HTTPStatus(code).phrase}", *(f"{name}: {value}" for name, value in told.items())]
        self.wfile.write("\r\n".join([*lines, "", ""]).encode() + (b"" if self.command == "HEAD" else data))

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/")

    def _body(self) -> bytes:
        """Read a request's body. One that is cut off, since its client was killed, takes no effect, as in S3."""
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionAbortedError(f"{len(body)} of {length} bytes")  # ends this connection
        return body


class Quiet(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone, or a connection that was closed on purpose."""


if __name__ == "__main__":
    Quiet(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
