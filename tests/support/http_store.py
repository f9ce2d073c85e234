"""A client of S3 without threads, for tests that fork processes in the middle of a run. Threads do not survive that."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

import urllib3

from ferryman.errors import EngineError
from ferryman.storage.objects import StoredObject

_NONCE = "x-amz-meta-ferryman-nonce"
_TRIES = 60


class HttpStore:
    """See ``ferryman.storage.objects.ObjectStore``. For servers that take requests without a signature."""

    def __init__(self, bucket: str) -> None:
        self._base = f"{os.environ['AWS_ENDPOINT_URL']}/{bucket.partition('://')[2]}"
        self._pool, self._pid = urllib3.PoolManager(maxsize=16, retries=False, timeout=30), os.getpid()

    def create(self, key: str, data: bytes) -> str | None:
        nonce = uuid.uuid4().hex
        answer = self.ask("PUT", key, data, {"If-None-Match": "*", _NONCE: nonce})
        if answer.status == 200:
            return answer.headers["ETag"]
        found = self.ask("HEAD", key)
        return found.headers["ETag"] if found.headers.get(_NONCE) == nonce else None

    def put(self, key: str, data: bytes | Path, if_match: str | None = None) -> str | None:
        body = data.read_bytes() if isinstance(data, Path) else data
        answer = self.ask("PUT", key, body, {} if if_match is None else {"If-Match": if_match})
        if answer.status == 200:
            return answer.headers["ETag"]
        found = self.get_tagged(key)
        return found[1] if found and found[0] == body else None

    def get(self, key: str) -> bytes | None:
        found = self.get_tagged(key)
        return found and found[0]

    def get_tagged(self, key: str) -> tuple[bytes, str] | None:
        answer = self.ask("GET", key)
        return None if answer.status == 404 else (answer.data, answer.headers["ETag"])

    def head(self, key: str) -> StoredObject | None:
        answer = self.ask("HEAD", key)
        if answer.status == 404:
            return None
        changed = parsedate_to_datetime(answer.headers["Last-Modified"]).timestamp()
        return StoredObject(key, int(answer.headers["Content-Length"]), changed, answer.headers["ETag"])

    def list_objects(self, prefix: str) -> list[StoredObject]:
        return self._listed(prefix, "")[1]

    def list_folder(self, folder: str) -> tuple[list[str], list[StoredObject]]:
        return self._listed(f"{folder}/" if folder else "", "/")

    def copy(self, key: str, to: str) -> None:
        bucket = self._base.rpartition("/")[2]
        if self.ask("PUT", to, headers={"x-amz-copy-source": quote(f"/{bucket}/{key}")}).status == 404:
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
    ) -> urllib3.BaseHTTPResponse:
        """Again after a lost answer and after 503, as obstore does."""
        if self._pid != os.getpid():  # a connection has one user
            self._pool, self._pid = urllib3.PoolManager(maxsize=16, retries=False, timeout=30), os.getpid()
        url = f"{self._base}/{quote(key)}" + (f"?{query}" if query else "")
        for _ in range(_TRIES):
            try:
                answer = self._pool.request(method, url, body=data, headers=headers)
            except urllib3.exceptions.HTTPError:
                continue
            if answer.status != 503:
                return answer
        raise EngineError(f"{url}: the object store does not answer")


def _found(each: ElementTree.Element) -> StoredObject:
    text = {child.tag: child.text or "" for child in each}
    changed = datetime.fromisoformat(text["LastModified"]).timestamp()
    return StoredObject(text["Key"], int(text["Size"]), changed, text["ETag"])
