"""Files: what is listed of a folder, and how it is divided."""

from __future__ import annotations

import os
import socket
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from folders import refused, scan, tree

from ferryman import limits
from ferryman.errors import BadDocument, UsageError
from ferryman.sources import Files, Listed
from ferryman.sources.folder import FolderPiece

# --- plain files ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("doc.relative")
def test_files_are_listed_with_size_and_read_whole(tmp_path: Path) -> None:
    """A file is listed by its path relative to the root, and read as its bytes."""
    tree(tmp_path, "histories/henryv.txt", "a b.txt", ".hidden", ".git/config")
    source = Files(tmp_path)

    found = scan(source)

    assert sorted(found) == [".git/config", ".hidden", "a b.txt", "histories/henryv.txt"]
    assert found["a b.txt"].size == 7
    doc = source.read(found["histories/henryv.txt"])
    assert (doc.id, doc.raw) == ("histories/henryv.txt", b"histories/henryv.txt")


def test_an_empty_file_is_a_document(tmp_path: Path) -> None:
    """It has empty bytes, which is not no bytes."""
    (tmp_path / "empty").touch()
    source = Files(tmp_path)

    assert source.read(scan(source)["empty"]).raw == b""


def test_globs_choose_the_files(tmp_path: Path) -> None:
    """Includes take, excludes win."""
    tree(tmp_path, "a.py", "a.txt", "x/b.py", "x/c.md", "build/d.py", "x/build/e.py")

    assert sorted(scan(Files(tmp_path, "**/*.py"))) == ["a.py", "build/d.py", "x/b.py", "x/build/e.py"]
    assert sorted(scan(Files(tmp_path, ["**/*.{py,md}"], exclude="**/build"))) == ["a.py", "x/b.py", "x/c.md"]
    assert sorted(scan(Files(tmp_path, "x/*"))) == ["x/b.py", "x/c.md"]
    assert sorted(scan(Files(tmp_path, exclude=["**/*.py", "a.*"]))) == ["x/c.md"]


def test_a_folder_named_like_a_file_is_walked(tmp_path: Path) -> None:
    """A folder is never a document, and what is in it is tested by its own name."""
    tree(tmp_path, "x.py/y.py", "x.py/z.txt", "empty.py/")

    assert list(scan(Files(tmp_path, "**/*.py"))) == ["x.py/y.py"]


def test_a_listing_is_in_order(tmp_path: Path) -> None:
    """The files of a folder by name, then the folders in it: a scan of the same tree brings the same order."""
    tree(tmp_path, "b", "a", "c", "y/2", "y/1", "x/b/1", "x/a/1", "x/c")

    ids = [entry.id for entry in Files(tmp_path).listing([FolderPiece("", None)]) if isinstance(entry, Listed)]

    assert ids == ["a", "b", "c", "x/c", "x/a/1", "x/b/1", "y/1", "y/2"]


def test_excluded_folders_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither are those that no include reaches: a huge or broken folder can be left out."""
    tree(tmp_path, "docs/a.md", "docs/deep/b.md", "docs/old/c.md", "src/d.md")
    opened = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: opened.append(os.path.relpath(path, tmp_path)) or scandir(path))

    assert sorted(scan(Files(tmp_path, "docs/**/*.md", exclude="docs/old/**"))) == ["docs/a.md", "docs/deep/b.md"]
    assert set(opened) == {".", "docs", "docs/deep"}


def test_a_relative_root_counts_from_where_the_source_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run elsewhere."""
    tree(tmp_path, "corpus/a.txt", "elsewhere/")
    monkeypatch.chdir(tmp_path)
    source = Files("corpus/")
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert source.root == str(tmp_path / "corpus")
    assert source.read(scan(source)["a.txt"]).raw == b"corpus/a.txt"


def test_the_root_may_be_a_link_that_is_turned(tmp_path: Path) -> None:
    """`current -> release-2` is a common way to switch a folder; files of the new one are not outside."""
    tree(tmp_path, "release-1/a.txt", "release-2/a.txt")
    (tmp_path / "current").symlink_to("release-1")
    source = Files(tmp_path / "current")
    listed = scan(source)["a.txt"]
    assert source.read(listed).raw == b"release-1/a.txt"

    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("release-2")

    assert source.read(listed).raw == b"release-2/a.txt"
    assert source.read(listed).raw == b"release-2/a.txt"


def test_the_whole_file_system_can_be_a_root(tmp_path: Path) -> None:
    """The root of all roots ends in a slash already."""
    tree(tmp_path, "a.txt")
    source = Files("/", f"{tmp_path}/*".lstrip("/"))

    [listed] = scan(source).values()

    assert source.read(listed).raw == b"a.txt"


# --- pieces -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["a", "b"],
        [f"folder{i}/{j}" for i in range(7) for j in range(3)],
        [f"folder{i}/below/{j}" for i in range(300) for j in range(2)] + ["top"],
        ["/".join("x" * depth) + "/file" for depth in range(1, 90)],
        [f"{i}/{j}/{k}" for i in range(9) for j in range(9) for k in range(2)],
    ],
    ids=["empty", "flat", "few folders", "many folders", "a deep one", "two levels"],
)
def test_pieces_cover_everything_once(tmp_path: Path, names: list[str]) -> None:
    """However the tree is cut: no more pieces than the limit, every file in one of them, the same cut each time."""
    tree(tmp_path, *names)
    source = Files(tmp_path)

    pieces = source.partitions()

    assert 1 <= len(pieces) <= limits.SMALL_LISTING_PARTS
    assert all(pieces)
    assert sorted(scan(source)) == sorted(names)
    assert source.partitions() == pieces


def test_the_driver_opens_only_as_many_folders_as_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Walking is the workers' work."""
    tree(tmp_path, *(f"{i}/{j}/file" for i in range(80) for j in range(2)))
    opened = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: opened.append(path) or scandir(path))

    Files(tmp_path).partitions()

    assert len(opened) == 1


# --- fingerprints -----------------------------------------------------------------------------------------------------


def set_mtime(path: Path, seconds_from_now: float) -> None:
    mtime_ns = time.time_ns() + int(seconds_from_now * 1e9)
    os.utime(path, ns=(mtime_ns, mtime_ns))


@pytest.mark.rule("change.trust")
@pytest.mark.parametrize(
    ("age_s", "trusted"), [(60, True), (0, False), (-60, False), (limits.FINGERPRINT_TRUST_S + 0.5, True)]
)
def test_a_fingerprint_is_trusted_when_the_file_had_time_to_settle(tmp_path: Path, age_s: float, trusted: bool) -> None:
    """What changed just now, or by its clock will change later, may change again without a sign."""
    tree(tmp_path, "a.txt")
    set_mtime(tmp_path / "a.txt", -age_s)

    listed = scan(Files(tmp_path))["a.txt"]

    mtime_ns = (tmp_path / "a.txt").stat().st_mtime_ns
    assert listed.fingerprint == (f"5-{mtime_ns}" if trusted else "")


# --- what is no file --------------------------------------------------------------------------------------------------


def test_special_files_are_refused_and_never_opened(tmp_path: Path) -> None:
    """Opening a named pipe that nobody writes to would hang for ever."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    kinds = {"pipe": "a named pipe", "link": "a named pipe", "socket": "a socket"}
    if os.geteuid() == 0:
        os.mknod(tmp_path / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        kinds["device"] = "a device"
    source = Files(tmp_path)

    why = refused(source)

    assert {id: text.split(": ")[1].split(",")[0] for id, text in why.items()} == kinds
    for id in kinds:
        with pytest.raises(BadDocument, match=f"{id}: a .*, not a file"):
            source.read(Listed(id, 0))


def test_a_file_over_the_limit_is_refused_unread(tmp_path: Path) -> None:
    """A file of 1 GB is refused by its listing: it would not fit a worker's memory."""
    with open(tmp_path / "huge.iso", "wb") as file:
        file.truncate(limits.GIB)
    source = Files(tmp_path)

    [listed] = scan(source).values()

    assert listed.size == limits.GIB
    assert listed.refused == (
        f"{tmp_path}/huge.iso: 1073741824 bytes, more than the limit of 268435456. "
        "Allow it with max_bytes=1073741824, or leave it out with exclude=…."
    )


def test_the_limit_itself_is_allowed(tmp_path: Path) -> None:
    """max_bytes is the size of the largest file that is read."""
    (tmp_path / "a").write_bytes(b"12345")

    assert not refused(Files(tmp_path, max_bytes=5))
    assert list(refused(Files(tmp_path, max_bytes=4))) == ["a"]
    assert Files(tmp_path, max_bytes=5).read(Listed("a", 5)).raw == b"12345"


# --- is it there at all -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        {"root": ""},
        {"root": b"bytes"},
        {"max_bytes": 0},
        {"max_bytes": "1GB"},
        {"include": "/absolute"},
        {"exclude": [None]},
        {"detect": "mtime"},
        {"max_deleted": 50},
    ],
)
def test_what_cannot_be_meant_is_refused(bad: dict[str, Any]) -> None:
    """When the source is made, not in the middle of a run."""
    with pytest.raises(UsageError):
        Files(**{"root": "corpus", **bad})


@pytest.mark.rule("plan.no-io")
def test_making_a_source_looks_at_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building a plan does no I/O."""
    for name in ("stat", "scandir", "open", "lstat", "readlink"):
        monkeypatch.setattr(os, name, None)

    assert repr(Files("/nowhere", "**/*.py", exclude="build")) == (
        "Files('/nowhere', include='**/*.py', exclude='build')"
    )
