"""Containers: what is unpacked, and what is refused, with nothing of it left outside."""

from __future__ import annotations

import errno
import io
import os
import random
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.intake.service import workspace
from ferryman.intake.service.errors import CorruptSubmission
from ferryman.storage import disk


def zipped(path: Path, *members: tuple[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in members:
            out.writestr(zipfile.ZipInfo(name) if not content else name, content)
    return path


def tarred(path: Path, *members: tarfile.TarInfo | tuple[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as out:  # type: ignore[call-overload]
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                out.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            out.addfile(info, io.BytesIO(member[1]))
    return path


def files_in(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_zip_and_tar(tmp_path: Path) -> None:
    """The same files, whatever they are packed with."""
    members = [("a.txt", b"one"), ("deep/b.txt", b"two")]
    for packed in (
        zipped(tmp_path / "x.zip", *members),
        tarred(tmp_path / "x.tgz", *members),
        tarred(tmp_path / "x.tar", *members, mode="w"),
        tarred(tmp_path / "x.txz", *members, mode="w:xz"),
    ):
        workspace.unpack(packed, tmp_path / "out")
        assert files_in(tmp_path / "out") == dict(members)


def test_a_tar_that_ends_with_a_zip(tmp_path: Path) -> None:
    """It is a tar, though zipfile takes it for that zip; all of its files come out."""
    inner = zipped(tmp_path / "inner.zip", ("deep.txt", b"deep")).read_bytes()
    members = [("a.txt", b"one"), ("inner.zip", inner)]
    workspace.unpack(tarred(tmp_path / "x.tar", *members, mode="w"), tmp_path / "out")
    assert files_in(tmp_path / "out") == dict(members)


def link(name: str, to: str) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = tarfile.SYMTYPE, to
    return found


@pytest.mark.parametrize("name", ["../out.txt", "/etc/passwd", "a/../../b", "C:\\x"])
def test_climbing_paths(tmp_path: Path, name: str) -> None:
    """A member that leads out of its folder refuses the whole; nothing is written outside."""
    inside = tmp_path / "in"
    for packed in (zipped(tmp_path / "x.zip", (name, b"x")), tarred(tmp_path / "x.tar", (name, b"x"), mode="w")):
        with pytest.raises(CorruptSubmission, match="leads out"):
            workspace.unpack(packed, inside)
    assert set(tmp_path.iterdir()) == {inside, tmp_path / "x.zip", tmp_path / "x.tar"}


def test_links(tmp_path: Path) -> None:
    """A link could lead anywhere."""
    with pytest.raises(CorruptSubmission, match="is not a plain file, but a link"):
        workspace.unpack(tarred(tmp_path / "x.tar", link("a", "/etc/passwd"), mode="w"), tmp_path / "in")


def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What unpacks to far more than it is, is stopped on its way, by ratio, by bytes and by members."""
    monkeypatch.setattr(limits, "UNPACK_FREE_BYTES", 1 << 20)
    bomb = zipped(tmp_path / "bomb.zip", ("a", b"\0" * (8 << 20)))
    with pytest.raises(CorruptSubmission, match="as a decompression bomb does"):
        workspace.unpack(bomb, tmp_path / "in")
    assert sum(map(len, files_in(tmp_path / "in").values())) <= 3 << 20
    with pytest.raises(CorruptSubmission, match="more than 1000 bytes"):
        workspace.unpack(bomb, tmp_path / "in", unpacked_bytes=1000)
    with pytest.raises(CorruptSubmission, match="too many members"):
        workspace.unpack(zipped(tmp_path / "x.zip", ("a", b"1"), ("b", b"2")), tmp_path / "in", members=1)


ZIPS = {
    "many entries": (3000, 1),
    "long entries": (80, 60_000),
}
"""How many folders, and the length of their names: none is a file, and each takes memory before one comes out."""


@pytest.mark.parametrize("what", ZIPS)
def test_a_zips_directory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """It is refused before it is read, or before an entry is made of each of its lines."""
    count, length = ZIPS[what]
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as out:
        for n in range(count):
            out.writestr(zipfile.ZipInfo(f"{n}".ljust(length, "x") + "/"), b"")
        out.writestr("a.txt", b"text")
    made: list[str] = []
    inner = zipfile.ZipInfo._decodeExtra  # type: ignore[attr-defined]

    def counted(self: Any, *given: Any) -> None:
        made.append(self.filename)
        inner(self, *given)

    monkeypatch.setattr(zipfile.ZipInfo, "_decodeExtra", counted)
    with pytest.raises(CorruptSubmission, match=r"too many members|its directory has"):
        workspace.unpack(tmp_path / "x.zip", tmp_path / "in", members=1000)
    assert made == []
    workspace.unpack(tmp_path / "x.zip", tmp_path / "in", members=10_000)
    assert files_in(tmp_path / "in") == {"a.txt": b"text"}


def test_a_member_that_looks_like_a_directory(tmp_path: Path) -> None:
    """Its bytes are nobody's entries."""
    content = b"PK\1\2" + bytes(500_000)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as out:
        out.writestr("a.bin", content)
    workspace.unpack(tmp_path / "x.zip", tmp_path / "in", members=1)
    assert files_in(tmp_path / "in") == {"a.bin": content}


def test_headers_of_a_tar_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be a bomb as any member."""
    monkeypatch.setattr(limits, "UNPACK_FREE_BYTES", 1 << 20)
    with tarfile.open(tmp_path / "x.tgz", "w:gz", format=tarfile.PAX_FORMAT) as out:
        for n in range(16):
            info = tarfile.TarInfo(f"{n}")
            info.pax_headers = {"comment": "x" * (1 << 19)}
            out.addfile(info)
    with pytest.raises(CorruptSubmission, match="as a decompression bomb does"):
        workspace.unpack(tmp_path / "x.tgz", tmp_path / "in")


def test_an_xz_cannot_ask_for_any_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says that it needs is looked at first."""
    packed = tarred(tmp_path / "x.txz", ("a", b"text"), mode="w:xz")
    monkeypatch.setattr(limits, "PACKED_MEMORY_BYTES", limits.MIB)
    with pytest.raises(CorruptSubmission, match="neither zip nor tar"):
        workspace.unpack(packed, tmp_path / "in")


def test_members_that_lie_over_each_other(tmp_path: Path) -> None:
    """A zip may list one piece of itself many times: a bomb that needs no ratio."""
    raw = zipped(tmp_path / "x.zip", ("a", bytes(range(256)) * 4)).read_bytes()
    at = raw.index(b"PK\1\2")
    head, end = raw[at : raw.index(b"PK\5\6")], bytearray(raw[raw.index(b"PK\5\6") :])
    end[8:10] = end[10:12] = (9).to_bytes(2, "little")
    end[12:16] = (9 * len(head)).to_bytes(4, "little")
    (tmp_path / "x.zip").write_bytes(raw[:at] + head * 9 + end)
    with pytest.raises(CorruptSubmission, match="they overlap"):
        workspace.unpack(tmp_path / "x.zip", tmp_path / "in")


def test_broken(tmp_path: Path) -> None:
    """Cut off, no container at all, empty, or with one name twice."""
    whole = zipped(tmp_path / "x.zip", ("a", b"x" * 1000)).read_bytes()
    for content, why in (
        (b"just text", "neither zip nor tar"),
        (whole[:60] + b"\xff" * 20 + whole[80:], "broken"),
        (tarred(tmp_path / "y.tar", ("a", bytes(range(256)) * 40), mode="w:gz").read_bytes()[:150], "broken|neither"),
        (zipped(tmp_path / "z.zip").read_bytes(), "no files in it"),
    ):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(CorruptSubmission, match=why):
            workspace.unpack(tmp_path / "bad", tmp_path / "in")
    twice = tarred(tmp_path / "t.tar", ("a", b"1"), ("./a", b"2"), mode="w")
    with pytest.raises(CorruptSubmission, match="twice"):
        workspace.unpack(twice, tmp_path / "in")
    both = tarred(tmp_path / "t.tar", ("a", b"1"), ("a/b", b"2"), mode="w")
    with pytest.raises(CorruptSubmission, match="both a file and a folder"):
        workspace.unpack(both, tmp_path / "in")


def header(kind: bytes, size: int) -> tarfile.TarInfo:
    """What comes before a member, to hold its long name or its attributes."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, size
    return info


@pytest.mark.rule("intake.hostile")
@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE])
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_long_header_is_not_read_into_memory(
    tmp_path: Path, kind: bytes, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of 32 MB is refused before it is read, also in a tar that is not compressed."""
    packed, size = tmp_path / "c.tar", 32 << 20
    with tarfile.open(packed, mode) as out:  # type: ignore[call-overload]
        out.addfile(header(kind, size), io.BytesIO(random.Random(1).randbytes(size)))
        out.addfile(tarfile.TarInfo("a"))
    read: list[int] = []
    inner = tarfile._Stream.read  # type: ignore[attr-defined]

    def counted(self: object, size: int) -> bytes:
        read.append(size)
        return bytes(inner(self, size))

    monkeypatch.setattr(tarfile._Stream, "read", counted)  # type: ignore[attr-defined]
    with pytest.raises(CorruptSubmission, match="more than 1048576"):
        workspace.unpack(packed, tmp_path / "out")
    assert max(read) <= 1 << 20


@pytest.mark.rule("intake.hostile")
def test_a_long_number_in_a_tar_is_refused(tmp_path: Path) -> None:
    """The standard library looks for one of a tar's attributes in quadratic time: half a megabyte took hours."""
    info = tarfile.TarInfo("a")
    info.pax_headers = {"comment": "0" * (1 << 19)}
    with tarfile.open(tmp_path / "x.tgz", "w:gz", format=tarfile.PAX_FORMAT) as out:
        out.addfile(info)
    with pytest.raises(CorruptSubmission, match="more than 256 digits"):
        workspace.unpack(tmp_path / "x.tgz", tmp_path / "in")


def test_attributes_of_a_tar_count(tmp_path: Path) -> None:
    """Long and foreign names are kept in them."""
    names = ["ü" * 120, "a/" * 60 + "b", "plain"]
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as out:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = 2, {"comment": "12345", "mtime": "1700000000.25"}
            out.addfile(info, io.BytesIO(b"ok"))
    workspace.unpack(tmp_path / "x.tar", tmp_path / "in")
    assert files_in(tmp_path / "in") == dict.fromkeys(names, b"ok")


@pytest.mark.rule("intake.hostile")
def test_many_members_are_synced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one by one: 50 000 empty ones took four minutes."""
    packed = tarred(tmp_path / "c.tar", *((f"{n}.txt", b"") for n in range(50)), mode="w")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    workspace.unpack(packed, tmp_path / "out")
    disk.fsync_tree(tmp_path / "out")
    assert len(files_in(tmp_path / "out")) == 50
    assert synced == []


def test_what_cannot_be_synced_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that has failed is not taken for one that has not."""
    monkeypatch.setattr(disk, "_syncfs", lambda fd: -1)
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        disk.fsync_tree(tmp_path)
