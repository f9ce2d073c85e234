"""``Directory`` and ``JsonLines`` on real servers: FTP, SFTP, SMB, S3."""

from __future__ import annotations

import ftplib
import json
import multiprocessing
import os
import pickle
import posixpath
import signal
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from ferryman import crash
from ferryman.destinations import Destination, Directory, JsonLines, file_index
from ferryman.destinations.files import path_of_id
from ferryman.errors import Misconfigured, PlanError, TransientError, Unavailable
from ferryman.net.drive_clients import Ftp
from ferryman.net.drives import Drive
from ferryman.sources import Files, Listed
from ferryman.sources.files import name_of_file
from ferryman.storage import folders
from ferryman.testing.destinations import DestinationSuite, delete, delivery
from tests.destinations.elsewhere import DRIVES, EVERYWHERE, ODD, Elsewhere, context, opened, place_on, shown
from tests.servers.registry import require_package
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

IN_TURN = ("ftp", "sftp", "smb", "s3")
"""Servers between which the ordinary run takes turns."""


@pytest.fixture(params=EVERYWHERE)
def where(request: pytest.FixtureRequest, server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    return place_on(request.param, server, monkeypatch)


@pytest.fixture(params=DRIVES)
def drive(request: pytest.FixtureRequest, server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    return place_on(request.param, server, monkeypatch)


def _slow(names: list[str]) -> list[Any]:
    """Parameters of which only the first is tried in an ordinary run."""
    return [names[0], *(pytest.param(name, marks=pytest.mark.slow) for name in names[1:])]


@pytest.fixture
def ftp(server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    return place_on("ftp", server, monkeypatch)


# --- the promises of the port -----------------------------------------------------------------------------------------


class Promises(DestinationSuite):
    keyed = True
    on = ""
    """The server; "": another one for each test."""

    @pytest.fixture(autouse=True)
    def _where(
        self, request: pytest.FixtureRequest, server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = self.on or IN_TURN[zlib.crc32(request.node.nodeid.encode()) % len(IN_TURN)]
        self.where: Elsewhere = place_on(name, server, monkeypatch)

    def destination(self, folder: Path) -> Destination:
        return Directory(self.where.url, storage_options=self.where.options or None)

    def hashes(self, folder: Path) -> list[str]:
        """By the inventory, whose files must be all that are there."""
        found = list(self.destination(folder).inventory(context()))
        assert all(each.intact for each in found)
        assert len(shown(self.where)) == len(found)
        return [each.hash for each in found]


class TestInTurn(Promises):
    """Each promise on one of the servers; the slow classes have all promises on each."""


@pytest.mark.slow
class TestFtp(Promises):
    on = "ftp"


@pytest.mark.slow
class TestOldFtp(Promises):
    on = "old-ftp"


@pytest.mark.slow
class TestSftp(Promises):
    on = "sftp"


@pytest.mark.slow
class TestOldSftp(Promises):
    on = "old-sftp"


@pytest.mark.slow
class TestSmb(Promises):
    on = "smb"


@pytest.mark.slow
class TestS3(Promises):
    on = "s3"


class Lines(Promises):
    keyed = False

    def destination(self, folder: Path) -> Destination:
        return JsonLines(self.where.url, storage_options=self.where.options or None)

    def hashes(self, folder: Path) -> list[str]:
        """By the rule that its docstring gives to readers: of a hash the first line counts."""
        files = {name: data for name, data in shown(self.where).items() if not name.startswith(".")}
        lines = [line for _, data in sorted(files.items()) for line in data.splitlines()]
        return list(dict.fromkeys(json.loads(line)["hash"] for line in lines))


class TestLinesInTurn(Lines):
    """Each promise on one of the servers."""


@pytest.mark.slow
class TestLinesByFtp(Lines):
    on = "ftp"


@pytest.mark.slow
class TestLinesBySftp(Lines):
    on = "sftp"


@pytest.mark.slow
class TestLinesBySmb(Lines):
    on = "smb"


@pytest.mark.slow
class TestLinesInS3(Lines):
    on = "s3"


del Promises, Lines  # pytest would collect them


# --- what is there ----------------------------------------------------------------------------------------------------


def test_a_document_is_a_file_where_its_id_says(where: Any) -> None:
    """New, replaced, deleted; an older version changes nothing, also from another process."""
    out = opened(where)
    out.write([delivery("histories/henryv.txt", 1, "O for a muse"), delivery("top", 2, ""), delivery("a/b/c", 3, None)])
    assert shown(where) == {"histories/henryv.txt": b"O for a muse", "top": b"", "a/b/c": b"{}\n"}
    out.write([delete("a/b/c", 4), delivery("top", 5, "again")])
    out.close()
    file_index.copies.clear()
    out = opened(where)
    assert [o.kind for o in out.write([delivery("top", 2, ""), delivery("a/b/c", 3, None)])] == ["stale", "stale"]
    assert shown(where) == {"histories/henryv.txt": b"O for a muse", "top": b"again"}
    assert out.highest_sequence() == 5
    assert out.highest_of(context()) == 5
    out.close()


@pytest.mark.rule("elsewhere.names")
def test_names_with_odd_characters(where: Any) -> None:
    """Each id has its file, under the name that a folder of this machine has for it, and gets it back."""
    out = opened(where)
    rows = [delivery(id, i, f"text {i}") for i, id in enumerate(ODD, 1)]
    assert {o.kind for o in out.write(rows)} == {"ok"}
    assert shown(where) == {path_of_id(id): f"text {i}".encode() for i, id in enumerate(ODD, 1)}
    assert {each.id: each.intact for each in out.inventory(context())} == dict.fromkeys(ODD, True)
    out.write([delete(id, i) for i, id in enumerate(ODD, 100)])
    assert shown(where) == {}
    out.close()


@pytest.mark.rule("elsewhere.names")
def test_long_names_and_names_that_meet(where: Any) -> None:
    """Too long, of another case, a file and a folder of one name: each id has a file of its own."""
    out = opened(where)
    ids = ["x" * 300, "long/" * 60, "A", "a", "b", "b/c", "d/e", "d"]
    assert {o.kind for o in out.write([delivery(id, i, id) for i, id in enumerate(ids, 1)])} == {"ok"}
    assert sorted(shown(where).values()) == sorted(id.encode() for id in ids)
    out.close()


@pytest.mark.rule("elsewhere.others")
def test_a_file_that_was_there_before_is_not_touched(where: Any) -> None:
    """The document that asks for its name is refused, by name; the others are written."""
    where.write("mine.txt", b"not Ferryman's")
    out = opened(where)
    first, second = out.write([delivery("mine.txt", 1), delivery("other.txt", 2)])
    assert (first.kind, second.kind) == ("ok", "ok")
    assert shown(where)["mine.txt"] == b"not Ferryman's"
    assert len(shown(where)) == 3
    out.close()


def test_the_archive_keeps_each_content_once(where: Any) -> None:
    """Equal content is one file, which a delete leaves."""
    out = opened(where, by="content")
    out.write([delivery("a", 1, "same"), delivery("b", 2, "same"), delivery("c", 3, "other")])
    out.write([delete("a", 4), delivery("d", 5, "same")])
    assert sorted(shown(where).values()) == [b"other", b"same"]
    out.close()


def test_verify_sees_what_was_lost_or_changed(where: Any) -> None:
    """A file that somebody changed is not intact, one that somebody removed is missing."""
    out = opened(where)
    out.write([delivery("kept", 1, "one"), delivery("changed", 2, "two")])
    where.write("changed", b"tow")
    found = list(out.inventory(context()))
    assert {each.id: each.intact for each in found} == {"kept": True, "changed": False}
    assert {(each.source, each.version) for each in found} == {("files", f"{n:032x}") for n in (1, 2)}
    out.close()


def test_verify_lists_no_folder_for_each_file(ftp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What FTP says of one file it is asked of that file, or an archive of n files would be listed n times."""
    out = opened(ftp)
    rows = [delivery(id, i) for i, id in enumerate([*ODD, *map(str, range(30))], 1)]
    out.write(rows)
    listed: list[str] = []
    ls = Ftp.ls

    def noted(self: Any, path: str, *more: Any, **options: Any) -> list[Any]:
        listed.append(path)
        return ls(self, path, *more, **options)

    monkeypatch.setattr(Ftp, "ls", noted)
    assert {each.id for each in out.inventory(context())} == {row.id for row in rows}
    assert len(listed) < 10, listed
    drive = Drive(ftp.url)
    client = drive.open()[0]
    for path in map(drive.path, shown(ftp)):
        by_listing = next(entry for entry in client.ls(posixpath.dirname(path)) if entry["name"] == path)
        assert client.info(path) == by_listing
    assert client.info(drive.path("汉字"))["type"] == "directory"
    with pytest.raises(FileNotFoundError):
        client.info(drive.path("missing"))
    drive.close()
    out.close()


# --- kills ------------------------------------------------------------------------------------------------------------


def _write_and_die(task: bytes, rows: list[Any], point: str) -> None:
    destination, given = pickle.loads(task)
    crash.arm(point)
    destination.open(given)
    destination.write(rows)
    if point == "files.merged":
        file_index.MOST_PARTS = 1  # type: ignore[misc]
        destination.maintain()


@pytest.mark.rule("elsewhere.whole")
@pytest.mark.parametrize(
    ("name", "point"),
    [
        pytest.param(
            name,
            point,
            marks=[] if name == DRIVES[0] or (name, point) == ("s3", "files.placed") else [pytest.mark.slow],
        )
        for name in EVERYWHERE
        for point in crash.FILES
        if (name, point) != ("s3", "files.uploaded")  # an object is there whole, under its name, or not at all
    ],
)
def test_a_kill_leaves_nothing_half(
    name: str, point: str, server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each point every file under its name is whole, of the version before or after; the same rows repair it, and
    what a kill has left is swept."""
    drive = place_on(name, server, monkeypatch)
    out = opened(drive)
    out.write([delivery(f"doc-{i}", i, f"before {i}" * 1000) for i in range(1, 4)])
    out.close()
    rows = [delivery("doc-1", 11, "after" * 1000), delivery("new", 12, "new" * 1000), delete("doc-2", 13)]
    task = cloudpickle.dumps((out, context()))
    child = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(task, rows, point))
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL
    versions = {f"before {i}" * 1000 for i in range(1, 4)} | {"after" * 1000, "new" * 1000}
    assert {data.decode() for data in shown(drive).values()} <= versions
    again = opened(drive)
    assert {o.kind for o in again.write(rows)} <= {"ok"}
    assert {name: data[:5] for name, data in shown(drive).items()} == {
        "doc-1": b"after", "new": b"newne", "doc-3": b"befor",
    }  # fmt: skip
    again.check()
    assert [name for name in drive.tree() if name.startswith(".ferryman/new/")] == []
    assert {each.id for each in again.inventory(context())} == {"doc-1", "doc-3", "new"}
    again.close()


@pytest.mark.rule("elsewhere.whole")
@pytest.mark.parametrize("name", _slow(DRIVES))
def test_lines_are_never_seen_half(name: str, server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill in the middle leaves no line file; what it left is swept when it is old by the server's clock."""
    drive = place_on(name, server, monkeypatch)
    lines = JsonLines(drive.url, storage_options=drive.options or None)
    lines.check()
    task = cloudpickle.dumps((lines, context()))
    rows = [delivery("a", 1, "x" * 1000)]
    child = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(task, rows, "files.uploaded"))
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL
    assert {*shown(drive)} == {".ferryman-id"}
    lines.check()
    left = [name for name in drive.tree() if name.startswith(".ferryman/new/")]
    assert len(left) == 1, "a younger one may be another worker's"
    old = (drive.folder / left[0]).stat().st_mtime - folders.STALE_S - 60
    os.utime(drive.folder / left[0], (old, old))
    lines.check()
    has_times = "old-ftp" not in type(drive.server).name  # its listing has no times
    assert len([name for name in drive.tree() if name.startswith(".ferryman/new/")]) == (not has_times)


def _write_for_ever(task: bytes) -> None:
    destination, given = pickle.loads(task)
    destination.open(given)
    for number in range(1, 1 << 20):
        destination.write([delivery(f"{number}-{i}", number * 100 + i, f"{i}" * 10_000) for i in range(50)])


@pytest.mark.rule("elsewhere.whole")
@pytest.mark.slow
def test_lines_in_a_bucket_are_whole_after_a_kill(
    server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between two chunks or in the middle of an upload: each object has all lines of its chunk."""
    where = place_on("s3", server, monkeypatch)
    lines = JsonLines(where.url, storage_options=where.options or None)
    lines.check()
    task = cloudpickle.dumps((lines, context()))
    child = multiprocessing.get_context("spawn").Process(target=_write_for_ever, args=(task,))
    child.start()
    wait_until(lambda: len(shown(where)) > 5)
    child.kill()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL
    found = shown(where)
    assert ".ferryman-id" in found
    for data in [data for name, data in found.items() if name != ".ferryman-id"]:
        ids = [json.loads(line)["id"] for line in data.splitlines()]
        assert len(ids) == 50
        assert len({id.partition("-")[0] for id in ids}) == 1


# --- the index --------------------------------------------------------------------------------------------------------


def test_the_index_is_merged(ftp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small files become few, which say the same."""
    monkeypatch.setattr(file_index, "MOST_PARTS", 4)
    monkeypatch.setattr(file_index, "MERGED_ROWS", 3)
    out = opened(ftp)
    for i in range(1, 6):
        out.write([delivery(f"doc-{i}", i)])
    before = {each.id: each.hash for each in out.inventory(context())}
    (line,) = out.maintain()
    assert "of its index" in line
    assert len([name for name in ftp.tree() if name.startswith(".ferryman/index/")]) == 2
    assert {each.id: each.hash for each in out.inventory(context())} == before
    file_index.copies.clear()
    assert [o.kind for o in out.write([delivery("doc-1", 0), delivery("doc-6", 6)])] == ["stale", "ok"]
    out.close()


def test_an_index_that_was_put_back_or_removed(ftp: Any) -> None:
    """A process that knows more than is there begins again with what is there."""
    out = opened(ftp)
    out.write([delivery("a", 1)])
    earlier = ftp.tree()
    out.write([delivery("b", 2)])
    ftp.clear()
    for name, data in earlier.items():
        ftp.write(name, data)
    assert {each.id for each in out.inventory(context())} == {"a"}
    ftp.clear()
    assert out.identity() == ""
    assert list(out.inventory(context())) == []
    out.close()


def test_a_damaged_index_is_named(ftp: Any) -> None:
    out = opened(ftp)
    out.write([delivery("a", 1)])
    part = next(name for name in ftp.tree() if name.startswith(".ferryman/index/"))
    ftp.write(part, ftp.tree()[part][:-3])
    file_index.copies.clear()
    with pytest.raises(Misconfigured, match=part):
        list(out.inventory(context()))
    out.close()


def test_a_worker_of_a_closed_pass_writes_nothing(ftp: Any) -> None:
    """It was stopped for long, and wakes up beside the next one."""
    out = opened(ftp)
    out.open(context(is_open=lambda: False))
    with pytest.raises(Unavailable, match="closed"):
        out.write([delivery("a", 1)])
    assert shown(ftp) == {}
    out.close()


@pytest.mark.parametrize("name", ["old-ftp", "old-sftp"])
def test_a_file_that_another_writer_puts_between_removal_and_rename(
    name: str, server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where renames do not overwrite, a name is free for a moment only, which another writer may take."""
    where = place_on(name, server, monkeypatch)
    target = opened(where)
    assert target.write([delivery("a.txt", 1, "old")])[0].kind == "ok"
    removed: list[str] = []

    def note(path: str) -> None:
        if path.endswith("/a.txt"):
            removed.append(path)
            if len(removed) < 3:
                where.write("a.txt", b"of another writer")

    client = require_package("asyncssh").SFTPClient
    sftp_remove, ftp_delete = client.remove, ftplib.FTP.delete

    async def remove_and_note(self: Any, path: str) -> None:
        await sftp_remove(self, path)
        note(path)

    def delete_and_note(self: Any, path: str) -> str:
        answer = ftp_delete(self, path)
        note(path)
        return answer

    monkeypatch.setattr(client, "remove", remove_and_note)
    monkeypatch.setattr(ftplib.FTP, "delete", delete_and_note)
    assert target.write([delivery("a.txt", 2, "new")])[0].kind == "ok"
    target.close()
    assert (shown(where), len(removed)) == ({"a.txt": b"new"}, 3)


@pytest.mark.slow
def test_hdfs(server: Callable[[str], Any]) -> None:
    """All names, replaced and deleted; read back as a source; its rename does not overwrite, which each run says."""
    url = f"{server('hdfs').url.replace('://', '://ann@')}/out/deep"
    out = Directory(url)
    out.check()
    out.open(context())
    assert {o.kind for o in out.write([delivery(id, i, "one") for i, id in enumerate(ODD, 1)])} == {"ok"}
    changed = [delivery(id, i, "two") for i, id in enumerate(ODD[:9], 100)]
    assert {o.kind for o in out.write([*changed, *(delete(id, i) for i, id in enumerate(ODD[9:], 200))])} == {"ok"}
    assert {each.id: each.intact for each in out.inventory(context())} == dict.fromkeys(ODD[:9], True)
    assert "missing for a moment" in out.maintain()[0]
    source = Files(url, exclude=".ferryman")
    found = [entry for piece in source.partitions() for entry in source.listing(piece) if isinstance(entry, Listed)]
    assert {source.read(entry).raw for entry in found} == {b"two"}  # type: ignore[union-attr]
    assert {name_of_file(entry.id) for entry in found} == {path_of_id(id) for id in ODD[:9]}
    out.close()


# --- servers in trouble -----------------------------------------------------------------------------------------------


@pytest.mark.rule("elsewhere.away")
def test_a_server_that_is_away_and_back(drive: Any) -> None:
    """Away: the whole destination is unavailable. Back: the same object goes on."""
    server = drive.server
    out = opened(drive)
    out.write([delivery("a", 1, "one")])
    server.kill()
    try:
        with pytest.raises(Unavailable, match=server.url.partition("://")[2].partition("/")[0]):
            out.write([delivery("a", 2, "two")])
        with pytest.raises(Unavailable):
            out.check()
    finally:
        server.start()
    assert [o.kind for o in out.write([delivery("a", 2, "two")])] == ["ok"]
    assert shown(drive) == {"a": b"two"}
    out.close()


def test_a_connection_that_was_closed_while_idle(drive: Any) -> None:
    """The next chunk opens another one; nobody notices."""
    out = opened(drive)
    out.write([delivery("a", 1, "one")])
    drive.server.stop()
    drive.server.start()
    assert [o.kind for o in out.write([delivery("a", 2, "two")])] == ["ok"]
    out.close()


@pytest.mark.rule("elsewhere.away")
@pytest.mark.parametrize("name", ["ftp", "smb"])
def test_a_wrong_password(name: str, server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Misconfigured, by the URL, without the password, whether it is in the environment or in the URL."""
    where = place_on(name, server, monkeypatch)
    monkeypatch.setenv(f"{name.upper()}_PASSWORD", "wr0ng-passw0rd")
    with_login = where.url.replace("://", "://ann:wr0ng-passw0rd@")
    for url in (where.url, with_login):
        with pytest.raises(Misconfigured) as caught:
            Directory(url).check()
        assert "wr0ng" not in str(caught.value) + Directory(url).target() + str(Directory(url).directory)
        assert "127.0.0.1" in str(caught.value)


@pytest.mark.rule("elsewhere.away")
def test_a_host_key_that_nobody_knows(server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """SFTP to it is refused, before anything is sent."""
    where = place_on("sftp", server, monkeypatch)
    unknown = {"client_keys": where.options["client_keys"], "known_hosts": "/dev/null"}
    with pytest.raises(Misconfigured, match="known_hosts"):
        Directory(where.url, storage_options=unknown).check()


@pytest.mark.rule("elsewhere.away")
def test_a_bucket_that_is_missing(server: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    where = place_on("s3", server, monkeypatch)
    with pytest.raises(Misconfigured, match="no such bucket"):
        Directory(f"s3://missing-{where.bucket}/out").check()


@pytest.mark.rule("elsewhere.whole")
def test_readers_are_told_where_a_name_may_be_missing(drive: Any) -> None:
    """By each run, about servers that cannot rename over a file; of the others nothing is said."""
    out = opened(drive)
    said = out.maintain()
    assert bool(said) == (type(drive.server).name in ("old-ftp", "old-sftp"))
    assert all("missing for a moment" in line for line in said)
    out.close()


@pytest.mark.parametrize(
    "url",
    [
        "ftp://",
        "sftp:///folder",
        "http://example.org/x",
        "s4://bucket",
        "ftp://host:99999/x",
        "memory://x",
        "webdav://host/x",
    ],
)
def test_urls_that_cannot_be_meant(url: str) -> None:
    """Refused when the plan is made."""
    for kind in (Directory, JsonLines):
        with pytest.raises(PlanError, match=kind.__name__):
            kind(url)


def test_a_folder_without_the_right_to_write(ftp: Any) -> None:
    """An error of the server that is none of the connection is no reason to stop for good."""
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    ftp.folder.mkdir()
    ftp.folder.chmod(0o500)
    with pytest.raises((Misconfigured, TransientError)):
        Directory(ftp.url).check()
