"""``Files`` on drives: FTP, SFTP, SMB and WebDAV, on real servers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import scan
from tests.destinations.elsewhere import Served

from ferryman import limits
from ferryman.errors import BadDocument, TransientError, UsageError
from ferryman.sources import Doubt, Files, Listed, Note, Source
from ferryman.testing.sources import SourceSuite

pytestmark = pytest.mark.server

DRIVES = ["ftp", "old-ftp", "sftp", "smb", "webdav"]

ODD = ["a.txt", "b c/é ü.txt", "d/100%#1.txt", "d/.hidden", "d/e/[f]*.py", "d/%41;b=c.txt", "汉字/x&y.txt", "empty"]


class Drive(Served):
    """A folder with files that are old enough for their times to be believed."""

    def put(self, name: str, data: bytes = b"text", age_s: float = 3600) -> None:
        self.write(name, data)
        then = time.time() - age_s
        os.utime(self.folder / name, (then, then))

    def files(self, **options: Any) -> Files:
        return Files(self.url, storage_options=self.options or None, **options)


def drive_on(name: str, server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Drive:
    found = Drive(server(name), monkeypatch)
    found.folder.mkdir()
    return found


@pytest.fixture(params=DRIVES)
def drive(request: pytest.FixtureRequest, server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Drive:
    return drive_on(request.param, server, monkeypatch)


class Promises(SourceSuite):
    on = ""

    @pytest.fixture(autouse=True)
    def _drive(self, server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.drive = drive_on(self.on, server, monkeypatch)

    def source(self, folder: Path) -> Files:
        for name in ("a b#%.txt", "histories/henryv.txt"):
            self.drive.put(name, name.encode())
        return self.drive.files()

    def absent(self, folder: Path) -> Files:
        return Files(f"{self.drive.url}/missing", storage_options=self.drive.options or None)

    def change(self, source: Source, id: str) -> None:
        self._path(id).write_text("changed")

    def remove(self, source: Source, id: str) -> None:
        self._path(id).unlink()

    def _path(self, id: str) -> Path:
        return self.drive.folder / id.replace("%23", "#").replace("%25", "%")


class TestFtp(Promises):
    on = "ftp"


@pytest.mark.slow
class TestOldFtp(Promises):
    on = "old-ftp"


@pytest.mark.slow
class TestSftp(Promises):
    on = "sftp"


@pytest.mark.slow
class TestSmb(Promises):
    on = "smb"


class TestWebDav(Promises):
    on = "webdav"


del Promises  # pytest would collect it


def names_on(drive: Drive) -> list[str]:
    """Of ODD what its protocol can name."""
    return [name for name in ODD if "*" not in name] if drive.server.name == "smb" else ODD


def test_ids_are_those_of_a_folder(drive: Drive) -> None:
    """A state survives a move to a drive, and back; contents are whole."""
    for name in names_on(drive):
        drive.put(name, b"" if name == "empty" else name.encode())
    source, local = drive.files(), Files(drive.folder)
    source.check()
    assert {id: source.read(listed).raw for id, listed in scan(source).items()} == {  # type: ignore[union-attr]
        id: local.read(listed).raw  # type: ignore[union-attr]
        for id, listed in scan(local).items()
    }


def test_documents_bring_their_url(drive: Drive) -> None:
    """Without the login, percent-encoded, such as a browser opens it; with base_url the web address."""
    drive.put("d/a b#1.txt")
    source = drive.files()
    (listed,) = scan(source).values()
    url = source.read(listed)["url"]  # type: ignore[index]
    assert url == f"{drive.url.replace('webdav://', 'http://')}/d/a%20b%231.txt"
    web = drive.files(base_url="https://example.org/x")
    assert web.read(listed)["url"] == "https://example.org/x/d/a%20b%231.txt"  # type: ignore[index]


def test_a_file_is_believed_when_it_is_old(drive: Drive) -> None:
    """A young one has no fingerprint, also one from the future; an old one has, and it changes with size and time."""
    drive.put("old", age_s=3600)
    drive.put("young", age_s=limits.DRIVE_TRUST_S / 2)
    drive.put("future", age_s=-3600)
    found = scan(drive.files())
    has_times = drive.server.name != "old-ftp"
    assert {id: bool(listed.fingerprint) for id, listed in found.items()} == {
        "old": has_times, "young": False, "future": False,
    }  # fmt: skip
    before = found["old"].fingerprint
    drive.put("old", age_s=7200)
    assert not has_times or scan(drive.files())["old"].fingerprint != before


@pytest.mark.parametrize("name", ["weak-webdav", "random-webdav"])
def test_etags_that_mean_nothing(name: str, server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is believed of such a server, and a person reads why."""
    drive = drive_on(name, server, monkeypatch)
    drive.put("a/one")
    drive.put("two")
    source = drive.files()
    found = [entry for piece in source.partitions() for entry in source.listing(piece)]
    assert {entry.id: entry.fingerprint for entry in found if isinstance(entry, Listed)} == {"a/one": "", "two": ""}
    found += [entry for piece in source.partitions() for entry in source.listing(piece)]
    assert [entry.id for entry in found if isinstance(entry, Listed) and entry.fingerprint] == []


def test_a_person_reads_why(server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in each process, beside the listing."""
    drive = drive_on("weak-webdav", server, monkeypatch)
    drive.put("two")
    source = drive.files()
    piece = [folder._replace(below=None) for folder in source.partitions()[0]]
    fresh = Files(f"{drive.url}/", storage_options=drive.options or None)
    notes = [entry.text for entry in fresh.listing(piece) if isinstance(entry, Note)]
    assert len(notes) == 1
    assert "weak" in notes[0]


@pytest.mark.parametrize("name", ["ftp", "old-ftp"])
def test_a_folder_that_may_not_be_entered(
    name: str, server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FTP has one reply for it and for a missing one: the folder above tells them apart. The listing is incomplete, and
    names it, after everything else."""
    drive = drive_on(name, server, monkeypatch)
    drive.put("a")
    source = Files(drive.server.url, include=[f"{drive.name}/*", "closed/**"])
    found: list[Any] = []
    with pytest.raises(TransientError, match="closed"):
        list_all(source, found)
    assert [entry.id for entry in found if isinstance(entry, Listed)] == [f"{drive.name}/a"]
    assert [entry for entry in found if isinstance(entry, Doubt)] == []


def list_all(source: Files, found: list[Any]) -> None:
    """List all pieces, also those after one that raises."""
    errors = []
    for piece in source.partitions():
        try:
            found.extend(source.listing(piece))
        except TransientError as e:
            errors.append(e)
    if errors:
        raise errors[0]


def test_a_server_that_goes_away(drive: Drive) -> None:
    """The listing raises, and reading fails for now; when it is back, the same source lists everything."""
    for name in ("a/one", "b/two", "three"):
        drive.put(name)
    source = drive.files()
    listed = scan(source)
    pieces = source.partitions()
    drive.server.kill()
    try:
        with pytest.raises(TransientError):
            [list(source.listing(piece)) for piece in pieces]
        with pytest.raises(TransientError):
            source.read(listed["three"])
        source.check()  # perhaps it is back when the listing begins
    finally:
        drive.server.start()
    assert scan(source).keys() == listed.keys()


def test_a_large_file_is_read_in_parts_and_refused_in_time(drive: Drive) -> None:
    """One over the limit costs no more than the limit; a listing refuses it by its size."""
    drive.put("large", bytes(range(256)) * 40_000)
    source = drive.files()
    (listed,) = scan(source).values()
    assert source.read(listed).raw == bytes(range(256)) * 40_000  # type: ignore[union-attr]
    with pytest.raises(BadDocument, match="limit"):
        drive.files(max_bytes=1000).read(listed)
    assert scan(source).keys() == {"large"}


@pytest.mark.parametrize("name", ["ftp", "smb", "webdav"])
def test_a_wrong_password(name: str, server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before a run does anything, without the password."""
    drive = drive_on(name, server, monkeypatch)
    monkeypatch.setenv(f"{name.upper()}_PASSWORD", "wr0ng-passw0rd")
    with pytest.raises(UsageError, match="may not be read") as caught:
        drive.files().check()
    assert "wr0ng" not in str(caught.value)


def test_logins_in_netrc(server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The entry of the host; a file that cannot be read as one is named."""
    drive = drive_on("ftp", server, monkeypatch)
    drive.put("a")
    login = drive.server.login  # type: ignore[attr-defined]
    for variable in login:
        monkeypatch.delenv(variable)
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login ann password {login['FTP_PASSWORD']}\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert scan(drive.files()).keys() == {"a"}
    (tmp_path / "netrc").write_text("machine\n")
    with pytest.raises(UsageError, match="netrc"):
        drive.files().check()
