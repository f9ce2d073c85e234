"""Files, and rows of files, in what fsspec reaches: memory, archives, and S3 on a real server."""

from __future__ import annotations

import gzip
import pickle
import sys
import urllib.request
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from folders import refused, scan, tree
from rows import documents, told
from tests.servers.s3 import S3

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import BadDocument, TransientError, UsageError
from ferryman.net.drives import Drive
from ferryman.sources import Csv, Doubt, Files, Lines, Listed, Source
from ferryman.testing.sources import SourceSuite

ODD = ["a.txt", "b c/é ü.txt", "d/100%#1.txt", "d/.hidden", "d/e/f.py", "d/%41.txt"]


class Bucket:
    """A bucket of its own, written by another client than the one that is tested."""

    def __init__(self, server: S3) -> None:
        self.server = server
        self.name = f"bucket-{uuid.uuid4().hex}"
        self.client = server.client()
        self.client.create_bucket(Bucket=self.name)

    def put(self, key: str, data: bytes | str = b"") -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)

    def files(self, root: str = "corpus", **options: Any) -> Files:
        return Files(f"s3://{self.name}/{root}", storage_options=self.server.options, **options)


@pytest.fixture
def bucket(server: Callable[[str], Any]) -> Bucket:
    return Bucket(server("s3"))


@pytest.fixture
def memory() -> Iterator[str]:
    """A folder in fsspec's memory of this process."""
    root = f"/{uuid.uuid4().hex}"
    yield root
    fsspec.filesystem("memory").rm(root, recursive=True)


def put(root: str, name: str, data: bytes) -> None:
    fsspec.filesystem("memory").pipe_file(f"{root}/{name}", data)


def texts(source: Files) -> dict[str, bytes | None]:
    return {id: source.read(listed).raw for id, listed in scan(source).items()}


# --- the same as in a folder ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "zip", pytest.param("s3", marks=pytest.mark.server)])
def test_ids_and_globs_are_those_of_a_folder(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    """State survives a move from a disk to a bucket, and back."""
    root = tmp_path / "root"
    root.mkdir()
    tree(root, *ODD)
    if kind == "memory":
        url, options = f"memory:/{request.getfixturevalue('memory')}", {}
        for name in ODD:
            put(url.removeprefix("memory:/"), name, name.encode())
    elif kind == "zip":
        url, options = f"zip://::{tmp_path}/a.zip", {}
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            for name in ODD:
                archive.writestr(name, name)
    else:
        bucket = request.getfixturevalue("bucket")
        url, options = f"s3://{bucket.name}/corpus", bucket.server.options
        for name in ODD:
            bucket.put(f"corpus/{name}", name)
        bucket.put("corpus-of-others/x.txt")

    there = Files(url, storage_options=options)
    there.check()
    assert texts(there) == texts(Files(root))
    for include, exclude in [("**/*.txt", None), ("*", None), ("d/**", None), ("**/*", "**/.*"), ("**/*", "d")]:
        assert (
            scan(Files(url, include, exclude, storage_options=options)).keys()
            == scan(Files(root, include, exclude)).keys()
        )


class TestFilesInMemory(SourceSuite):
    """memory:// tells neither etag nor time of modification."""

    def source(self, folder: Path) -> Files:
        self.root = f"/{uuid.uuid4().hex}"
        for name in ODD:
            put(self.root, name, name.encode())
        return Files(f"memory:/{self.root}")

    def absent(self, folder: Path) -> Files:
        return Files(f"memory://{uuid.uuid4().hex}")

    def change(self, source: Source, id: str) -> None:
        put(self.root, id, b"changed")

    def remove(self, source: Source, id: str) -> None:
        fsspec.filesystem("memory").rm(f"{self.root}/{id}")


class TestFilesInS3(SourceSuite):
    @pytest.fixture(autouse=True)
    def _bucket(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def source(self, folder: Path) -> Files:
        for name in ODD:
            self.bucket.put(f"corpus/{name}", name)
        return self.bucket.files()

    def absent(self, folder: Path) -> Files:
        return self.bucket.files("missing")

    def change(self, source: Source, id: str) -> None:
        self.bucket.put(f"corpus/{id}", "changed")

    def remove(self, source: Source, id: str) -> None:
        self.bucket.delete(f"corpus/{id}")


class TestLinesInS3(TestFilesInS3):
    def source(self, folder: Path) -> Lines:  # type: ignore[override]
        self.bucket.put("corpus/a.txt", "one\ntwo\n")
        self.bucket.put("corpus/b.txt.gz", gzip.compress(b"three\n"))
        return self._lines("corpus")

    def absent(self, folder: Path) -> Lines:  # type: ignore[override]
        return self._lines("missing")

    def change(self, source: Source, id: str) -> None:
        self.bucket.put("corpus/a.txt", "changed\ntwo\n")

    def remove(self, source: Source, id: str) -> None:
        self.bucket.put("corpus/a.txt", "\ntwo\n")

    def _lines(self, root: str) -> Lines:
        return Lines(f"s3://{self.bucket.name}/{root}", storage_options=self.bucket.server.options)


# --- what is there ----------------------------------------------------------------------------------------------------


def test_an_etag_is_a_fingerprint(bucket: Bucket) -> None:
    """At once, however young: it is of the content."""
    bucket.put("corpus/a", "one")
    first = scan(bucket.files())["a"]
    bucket.put("corpus/a", "two")
    second = scan(bucket.files())["a"]
    bucket.put("corpus/a", "one")
    third = scan(bucket.files())["a"]

    assert first.fingerprint
    assert first.fingerprint != second.fingerprint
    assert first.fingerprint == third.fingerprint


def test_keys_that_are_no_paths(bucket: Bucket) -> None:
    """Folders that consoles make are no documents; keys that climb are refused; a // is told."""
    for key in ("empty/", "a.txt", "../climbs.txt", "d/./dot.txt", "d/b.txt"):
        bucket.put(f"corpus/{key}", "" if key.endswith("/") else key)
    source = bucket.files()

    assert sorted(scan(source)) == ["../climbs.txt", "a.txt", "d/./dot.txt", "d/b.txt"]
    assert {id: "cannot have such a name" in why for id, why in refused(source).items()} == {
        "../climbs.txt": True,
        "d/./dot.txt": True,
    }

    bucket.put("corpus/d/control\x01.txt", "of any characters")
    assert texts(source)["d/control%01.txt"] == b"of any characters", "a key that obstore cannot list: decision 0059"

    bucket.put("corpus/d//lost.txt")
    with pytest.raises(TransientError, match="d/: a folder with an empty name cannot be listed"):
        scan(source)


def test_an_empty_object_is_a_document(bucket: Bucket) -> None:
    """Of empty text."""
    bucket.put("corpus/a")

    assert texts(bucket.files()) == {"a": b""}


def test_more_keys_than_a_page(bucket: Bucket) -> None:
    """A listing comes in pages of a thousand."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: bucket.put(f"corpus/{i:04}", "x"), range(1001)))

    assert len(scan(bucket.files())) == 1001


def test_limits_hold_for_objects(bucket: Bucket) -> None:
    """When listed, and when read: it may have grown meanwhile."""
    bucket.put("corpus/a", "123456")
    source = bucket.files(max_bytes=5)

    [why] = refused(source).values()
    assert why.startswith(f"s3://{bucket.name}/corpus/a: 6 bytes, more than the limit of 5. Allow it with max_bytes=6")
    with pytest.raises(BadDocument, match="6 bytes, more than the limit of 5"):
        source.read(Listed("a", 3))


def test_a_key_may_be_the_root_of_rows(bucket: Bucket) -> None:
    """Files want a folder, and say so."""
    bucket.put("corpus/p.csv", "a,b\n1,2\n")
    url = f"s3://{bucket.name}/corpus/p.csv"

    source = Csv(url, storage_options=bucket.server.options)
    assert {id: doc.fields for id, doc in documents(source).items()} == {"p.csv#row=2": {"a": "1", "b": "2"}}
    with pytest.raises(
        UsageError, match=rf"is not a folder. Start at the folder it is in: s3://{bucket.name}/corpus, with inc"
    ):
        bucket.files("corpus/p.csv").check()


def test_a_large_object_streams(bucket: Bucket) -> None:
    """It comes in several requests, and is not held."""
    line = b"x" * 999 + b"\n"
    bucket.put("corpus/a", line * 12_000)

    source = Lines(f"s3://{bucket.name}/corpus", storage_options=bucket.server.options)
    [piece] = source.partitions()
    found = list(source.listing(piece))

    assert len(found) == 12_000
    assert all(isinstance(doc, Document) and doc.raw == line[:-1] for doc in found)


# --- what is not ------------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_told(bucket: Bucket, tmp_path: Path) -> None:
    """Before anything is done: an empty listing would delete everything."""
    options = bucket.server.options
    (tmp_path / "no.zip").write_text("no zip")
    for url, why in {
        f"s3://{bucket.name}/none": "there is nothing of this name",
        f"s3://{uuid.uuid4().hex}/none": "there is nothing of this name",
    }.items():
        with pytest.raises(UsageError, match=why):
            Files(url, storage_options=options).check()
    for url, why in {
        "memory://none": "there is nothing of this name",
        "nosuch://x": "Protocol not known: nosuch",
        f"zip://::{tmp_path}/none.zip": "cannot be opened",
        f"zip://::{tmp_path}/no.zip": "cannot be opened",
    }.items():
        with pytest.raises(UsageError, match=why):
            Files(url).check()


def test_an_object_that_vanished(bucket: Bucket) -> None:
    """Is tried again by Files; of lines it takes them with it."""
    bucket.put("corpus/a", "one")
    bucket.put("corpus/b", "two")
    files = bucket.files()
    lines = Lines(files.root, storage_options=bucket.server.options)
    pieces = lines.partitions()
    bucket.delete("corpus/a")

    with pytest.raises(TransientError, match="a: deleted after it was listed"):
        files.read(Listed("a", 3))
    found = [entry for piece in pieces for entry in lines.listing(piece)]
    assert found == [Doubt("a", "missing"), Document("b#line=1", raw=b"two")]


def test_a_server_that_is_down_makes_the_listing_incomplete(server: Callable[[str], Any], bucket: Bucket) -> None:
    """Nothing is taken for gone; reading is tried again; nothing secret is told."""
    bucket.put("corpus/a", "one")
    source = bucket.files()
    assert list(scan(source)) == ["a"]
    s3 = server("s3")
    s3.stop()
    try:
        source = bucket.files()
        source.check()  # a fault of the moment is none of the person's
        with pytest.raises(TransientError, match="Could not connect to the endpoint") as listing:
            scan(source)
        with pytest.raises(TransientError, match="corpus/a: cannot be read now") as reading:
            source.read(Listed("a", 3))
        assert "Could not connect to the endpoint" in told(Lines(source.root, storage_options=s3.options))
    finally:
        s3.start()
    for error in (listing, reading):
        assert "s3cr3t" not in str(error.value)
        assert "\n" not in str(error.value)


def test_wrong_credentials_are_told(bucket: Bucket) -> None:
    """Before anything is done; the secret is not."""
    bucket.put("corpus/a", "one")
    authorise(bucket.server, after=0)
    try:
        with pytest.raises(UsageError, match=r"may not be read: .*Correct the credentials") as caught:
            bucket.files().check()
        with pytest.raises(BadDocument, match="corpus/a: may not or cannot be read"):
            bucket.files().read(Listed("a", 3))
        with pytest.raises(TransientError, match="does not exist in our records"):
            scan(bucket.files())
    finally:
        authorise(bucket.server, after=1_000_000_000)
    assert "s3cr3t" not in str(caught.value)


def authorise(server: S3, after: int) -> None:
    """Have the server look at credentials after so many requests; it knows nobody."""
    told = urllib.request.Request(
        f"{server.url}/moto-api/reset-auth", str(after).encode(), headers={"Content-Type": "text/plain"}
    )
    urllib.request.urlopen(told, timeout=300).close()


def test_secrets_are_never_shown() -> None:
    """Neither those in options nor those in a URL; both travel to the workers."""
    options = {
        "secret": "s3cr3t",
        "client_kwargs": {"aws_session_token": "t0ken"},
        "endpoint_url": "http://127.0.0.1:9",
    }
    source = Files("s3://user:passw0rd@bucket/x", storage_options=options)
    copy = pickle.loads(pickle.dumps(source))

    assert copy._tree._options == options
    shown = [
        repr(source),
        source.root,
        source._tree.display_path("a"),
        source._tree._error_text(ValueError(f"no {options} …")),
    ]  # type: ignore[attr-defined]
    for text in shown:
        assert not any(secret in text for secret in ("s3cr3t", "t0ken", "passw0rd")), text
    assert "http://127.0.0.1:9" in shown[-1]


def test_no_part_of_a_secret_is_shown_of_a_long_error() -> None:
    """Where the middle of the error is left out."""
    secret = "abcdefgh" * 100
    drive = Drive("s3://bucket/x", {"secret": secret})
    for before in range(limits.MESSAGE_CHARACTERS - 2 * len(secret), limits.MESSAGE_CHARACTERS, len(secret) // 2):
        text = drive.error_text(ValueError(f"{'.' * before}{secret}{'.' * 5000}"))
        assert "abc" not in text
        assert len(text) < limits.MESSAGE_CHARACTERS + 100


def test_what_has_to_be_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command that does it."""
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UsageError, match=r"pip install 'ferryman\[fsspec\]'"):
        Files("s3://bucket/x").check()
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "s3fs", None)
    for name in ("s3", "s3a"):
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, name, raising=False)
    with pytest.raises(UsageError, match=r"pip install 'ferryman\[s3\]'"):
        Files("s3://bucket/x").check()


# --- archives ---------------------------------------------------------------------------------------------------------


def test_an_archive_that_changed_is_opened_anew(tmp_path: Path) -> None:
    """No cache of fsspec's outlives a scan."""
    path = tmp_path / "a.zip"
    for text in ("one", "two!"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.txt", text)
        source = Files(f"zip://::{path}")
        assert texts(source) == {"a.txt": text.encode()}
        assert scan(source)["a.txt"].fingerprint, "a CRC is one"


def test_members_that_are_bad_harm_themselves(tmp_path: Path) -> None:
    """Damaged, or with a name that climbs."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("good.txt", "good")
        archive.writestr("../up.txt", "climbs")
        archive.writestr("bad.txt", "damaged content")
    path.write_bytes(path.read_bytes().replace(b"damaged content", b"dAmaged content"))
    source = Files(f"zip://::{path}")
    found = scan(source)

    assert source.read(found["good.txt"]).raw == b"good"
    assert list(refused(source)) == ["../up.txt"]
    with pytest.raises(BadDocument, match=r"bad\.txt::.*: may not or cannot be read: Bad CRC-32"):
        source.read(found["bad.txt"])


def test_deletes_of_a_drive_are_guarded_as_behind_a_login(tmp_path: Path) -> None:
    roots = ("sftp://host/here", "memory://here", str(tmp_path), f"file://{tmp_path}")
    assert [Files(root).max_deleted for root in roots] == [0.1, 0.5, 0.5, 0.5]
    assert [Lines(root).max_deleted for root in roots] == [0.1, 0.5, 0.5, 0.5]
    assert Files("sftp://host/here", max_deleted=0.3).max_deleted == 0.3
