"""Folders of servers, as a destination's user names them and as somebody on the server sees them."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from ferryman.destinations import DestinationContext, Directory, Guarantee
from tests.servers.server import Server

DRIVES = ["ftp", "old-ftp", "sftp", "old-sftp", "smb"]
"""Servers that serve a folder of this machine."""

EVERYWHERE = [*DRIVES, "s3"]

ODD = [
    "a b.txt", " leading", "-dash", "#", "%41", "100%25.txt", "[a]*?.txt", "a;b&c=d+e.txt", "é.txt",
    "汉字/\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}.txt", "'\"`$(x)", "~tilde", "a\\b", "con:x", "../up", ".hidden",
    "line\nend", "dot.", "{b}", "!x", "@y",
]  # fmt: skip
"""Names that some protocol or server reads in a way of its own."""


class Elsewhere(Protocol):
    """Folder of a server."""

    url: str
    options: dict[str, Any]

    def tree(self) -> dict[str, bytes]:
        """Path -> content of all its files, seen by the server's own means."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file, as somebody else."""


class Served:
    """Folder of this machine that a server serves."""

    def __init__(self, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server: Server = server
        self.name = uuid.uuid4().hex
        self.folder: Path = server.files / self.name
        self.url = f"{server.url}/{self.name}"
        self.options = {name: value for name, value in server.login.items() if name.islower()}
        for name, value in server.login.items():
            if name.isupper():
                monkeypatch.setenv(name, value)

    def tree(self) -> dict[str, bytes]:
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in found}

    def write(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def clear(self) -> None:
        shutil.rmtree(self.folder)


class InBucket:
    """Prefix in a bucket of the S3 server."""

    def __init__(self, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server: Server = server
        self.bucket = f"bucket-{uuid.uuid4().hex}"
        self.client = server.client()
        self.client.create_bucket(Bucket=self.bucket)
        self.url = f"s3://{self.bucket}/out"
        self.options: dict[str, Any] = {}
        settings = {"ENDPOINT_URL": server.url, "ACCESS_KEY_ID": "k3y-of-tests", "SECRET_ACCESS_KEY": "s3cr3t"}
        for name, value in {**settings, "REGION": "us-east-1", "ALLOW_HTTP": "true"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)

    def tree(self) -> dict[str, bytes]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix="out/")
        found = [each for page in pages for each in page.get("Contents", [])]
        return {each["Key"].removeprefix("out/"): self._read(each["Key"]) for each in found}

    def _read(self, key: str) -> bytes:
        content: bytes = self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return content

    def write(self, name: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=f"out/{name}", Body=data)


def place_on(name: str, server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new folder on the server of this name."""
    return (InBucket if name == "s3" else Served)(server(name), monkeypatch)


def context(**options: Any) -> DestinationContext:
    return DestinationContext("plan", 1, "out", 1, Guarantee.AT_LEAST_ONCE, **options)


def opened(where: Elsewhere, **options: Any) -> Directory:
    made = Directory(where.url, storage_options=where.options or None, **options)
    made.check()
    made.open(context())
    return made


def shown(where: Elsewhere) -> dict[str, bytes]:
    """What is there but for Ferryman's own folder."""
    return {name: data for name, data in where.tree().items() if not name.startswith(".ferryman/")}
