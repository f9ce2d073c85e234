"""A client of S3 without threads, for tests that fork processes in the middle of a run. Threads do not survive that."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

from ferryman.errors import EngineError
from ferryman.storage.objects import StoredObject

_NONCE: Final = "x-amz-meta-ferryman-nonce"
_TRIES: Final = 60
_TIMEOUT_S: Final = 30


class Answer(NamedTuple):
    """An answer of the server; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class Connection:
    """A connection to a server of HTTP, for one request at a time. Libraries take ten times as long for one."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._host = address
        self._socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")
        self.ended = False

    def ask(self, method: str, target: str, data: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a request and read its answer.

        Raises:
            OSError: the connection ended before.
        """
        sent = {"Host": self._host, "Content-Length": str(len(data)), **headers}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
        self._socket.sendall("\r\n".join(lines).encode() + data)
        status = self._line().split(maxsplit=2)[1]
        found = {}
        while line := self._line():
            name, _, value = line.partition(":")
            found[name.lower()] = value.strip()
        self.ended = found.get("connection", "").lower() == "close"
        length = 0 if method == "HEAD" else int(found.get("content-length", 0))
        read = self._answers.read(length)
        if len(read) < length:
            raise ConnectionResetError(f"{len(read)} of {length} bytes")
        return Answer(int(status), found, read)

    def _line(self) -> str:
        line = self._answers.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the answer was lost")
        return line.decode("latin-1").rstrip("\r\n")


class HttpStore:
    """See ``ferryman.storage.objects.ObjectStore``. For servers that take requests without a signature."""

    def __init__(self, bucket: str) -> None:
        self._address = urlsplit(os.environ["AWS_ENDPOINT_URL"]).netloc
        self._bucket = bucket.partition("://")[2]
        self._idle: list[Connection] = []
        self._pid = os.getpid()

    def create(self, key: str, data: bytes) -> str | None:
        nonce = uuid.uuid4().hex
        answer = self.ask("PUT", key, data, {"If-None-Match": "*", _NONCE: nonce})
        if answer.status == 200:
            return answer.headers["etag"]
        found = self.ask("HEAD", key)
        return found.headers["etag"] if found.headers.get(_NONCE) == nonce else None

    def put(self, key: str, data: bytes | Path, if_match: str | None = None) -> str | None:
        body = data.read_bytes() if isinstance(data, Path) else data
        answer = self.ask("PUT", key, body, {} if if_match is None else {"If-Match": if_match})
        if answer.status == 200:
            return answer.headers["etag"]
        found = self.get_tagged(key)
        return found[1] if found and found[0] == body else None

    def get(self, key: str) -> bytes | None:
        found = self.get_tagged(key)
        return found and found[0]

    def get_tagged(self, key: str) -> tuple[bytes, str] | None:
        answer = self.ask("GET", key)
        return None if answer.status == 404 else (answer.data, answer.headers["etag"])

    def head(self, key: str) -> StoredObject | None:
        answer = self.ask("HEAD", key)
        if answer.status == 404:
            return None
        changed = parsedate_to_datetime(answer.headers["last-modified"]).timestamp()
        return StoredObject(key, int(answer.headers["content-length"]), changed, answer.headers["etag"])

    def list_objects(self, prefix: str) -> list[StoredObject]:
        return self._listed(prefix, "")[1]

    def list_folder(self, folder: str) -> tuple[list[str], list[StoredObject]]:
        return self._listed(f"{folder}/" if folder else "", "/")

    def copy(self, key: str, to: str) -> None:
        if self.ask("PUT", to, headers={"x-amz-copy-source": quote(f"/{self._bucket}/{key}")}).status == 404:
            raise FileNotFoundError(key)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.ask("DELETE", key)

    def _listed(self, prefix: str, delimiter: str) -> tuple[list[str], list[StoredObject]]:
        query = urlencode({"list-type": "2", "prefix": prefix, "delimiter": delimiter})
        root = ElementTree.fromstring(self.ask("GET", "", query=query).data)
        folders = [
            (each.findtext("Prefix") or "").rstrip("/").rpartition("/")[2] for each in root.iter("CommonPrefixes")
        ]
        return folders, [_found(each) for each in root.iter("Contents")]

    def ask(
        self, method: str, key: str, data: bytes = b"", headers: dict[str, str] | None = None, query: str = ""
    ) -> Answer:
        """Again after a lost answer and after 503, as obstore does."""
        if self._pid != os.getpid():  # a connection has one user
            self._idle, self._pid = [], os.getpid()
        target = f"/{self._bucket}/{quote(key)}" + (f"?{query}" if query else "")
        for _ in range(_TRIES):
            try:
                connection = self._connection()
                answer = connection.ask(method, target, data, headers or {})
            except OSError:
                continue
            if not connection.ended:
                self._idle.append(connection)
            if answer.status != 503:
                return answer
        raise EngineError(f"{self._address}{target}: the object store does not answer")

    def _connection(self) -> Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return Connection(self._address)


def _found(each: ElementTree.Element) -> StoredObject:
    text = {child.tag: child.text or "" for child in each}
    changed = datetime.fromisoformat(text["LastModified"]).timestamp()
    return StoredObject(text["Key"], int(text["Size"]), changed, text["ETag"])
