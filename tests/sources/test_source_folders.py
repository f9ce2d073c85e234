"""Files: what makes a listing incomplete, and roots that are not there."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import scan, tree, until_it_fails

from ferryman.errors import UsageError
from ferryman.sources import Doubt, Files
from ferryman.sources.folder import Folder, FolderPiece

AsNobody = Callable[[Callable[[], Any]], Any]


# --- folders that cannot be listed ------------------------------------------------------------------------------------


def test_an_unreadable_folder_makes_the_listing_incomplete(shared_folder: Path, as_nobody: AsNobody) -> None:
    """After all else was listed, an error names it: its documents are not taken for deleted."""
    tree(shared_folder, "a/1", "locked/2", "z/3")
    (shared_folder / "locked").chmod(0)
    source = Files(shared_folder)

    ids, why = as_nobody(lambda: until_it_fails(source.listing([FolderPiece("", None)])))
    pieces = as_nobody(source.partitions)

    assert ids == ["a/1", "z/3"]
    assert f"{shared_folder}/locked: Permission denied" in why
    assert "chmod a+rx" in why
    assert ("locked", None) in [folder for piece in pieces for folder in piece]
    assert sorted(as_nobody(lambda: scan(Files(shared_folder, exclude="locked")))) == ["a/1", "z/3"]


def test_a_folder_that_may_be_read_but_not_searched_is_incomplete(shared_folder: Path, as_nobody: AsNobody) -> None:
    """Its names can be seen, its files cannot."""
    tree(shared_folder, "a/1", "names-only/2", "names-only/3")
    (shared_folder / "names-only").chmod(0o444)

    ids, why = as_nobody(lambda: until_it_fails(Files(shared_folder).listing([FolderPiece("", None)])))

    assert ids == ["a/1"]
    assert why.count("Permission denied") == 1


def test_a_failing_disk_makes_the_listing_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the driver, which leaves the folder to the worker."""
    tree(tmp_path, "a/1", "bad/2", "z/3")
    scandir = os.scandir

    def failing(path: str) -> Any:
        if path.endswith("bad"):
            raise OSError(errno.EIO, "Input/output error")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    source = Files(tmp_path)

    ids, why = until_it_fails(source.listing([folder for piece in source.partitions() for folder in piece]))

    assert sorted(ids) == ["a/1", "z/3"]
    assert f"{tmp_path}/bad: Input/output error" in why


def test_a_folder_that_breaks_off_brings_what_it_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network drive may fail in the middle of a folder."""
    tree(tmp_path, "a", "b")

    class Failing:
        def __init__(self, path: str) -> None:
            self.entries = scandir(path)

        def __enter__(self) -> Any:
            yield next(self.entries)
            raise OSError(errno.ESTALE, "Stale file handle")

        def __exit__(self, *_: object) -> None:
            self.entries.close()

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", Failing)

    ids, why = until_it_fails(Files(tmp_path).listing([FolderPiece("", None)]))

    assert len(ids) == 1
    assert f"{tmp_path}: Stale file handle" in why


def test_only_a_few_broken_folders_are_named(shared_folder: Path, as_nobody: AsNobody) -> None:
    """A message is for reading."""
    tree(shared_folder, *(f"{i}/" for i in range(8)))
    for i in range(8):
        (shared_folder / str(i)).chmod(0)

    _, why = as_nobody(lambda: until_it_fails(Files(shared_folder).listing([FolderPiece("", None)])))

    assert why.count("Permission denied") == 3
    assert "and 5 more" in why


def test_a_folder_that_vanishes_is_gone(tmp_path: Path) -> None:
    """As long as the root is there, it was deleted between the cut and the listing; the driver is to look again."""
    tree(tmp_path, "a/1")
    source = Files(tmp_path)

    found = list(source.listing([FolderPiece("gone", None), FolderPiece("a", None)]))

    assert found == [*source.listing([FolderPiece("a", None)]), Doubt("gone", "missing")]
    assert source.contradiction(Doubt("gone", "missing")) == ""


def test_a_root_that_vanishes_is_not_an_empty_one(tmp_path: Path) -> None:
    """An unmounted disk, or a worker that does not see the folder, must delete nothing."""
    source = Files(tmp_path / "unmounted")

    for folder in ("", "sub"):
        ids, why = until_it_fails(source.listing([FolderPiece(folder, None)]))
        assert ids == []
        assert f"there is no such folder on {socket.gethostname()}" in why
    assert source.partitions() == [[FolderPiece("", None)]]


def test_a_file_that_vanishes_while_its_folder_is_listed_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the folder's names and a look at the file."""
    tree(tmp_path, "a", "b")
    entries = Folder._entries

    def late(self: Folder, folder: str, troubles: list[str]) -> Any:
        found = entries(self, folder, troubles)
        (tmp_path / "a").unlink()
        return found

    monkeypatch.setattr(Folder, "_entries", late)

    assert list(scan(Files(tmp_path))) == ["b"]


# --- is it there at all -----------------------------------------------------------------------------------------------


def test_a_missing_root_is_named(tmp_path: Path) -> None:
    """With what to do, before anything is listed."""
    with pytest.raises(UsageError, match=f"^{tmp_path}/none: there is no such folder. Make it, or start at"):
        Files(tmp_path / "none").check()


def test_a_root_that_is_a_file_is_named(tmp_path: Path) -> None:
    """With how to take that one file."""
    tree(tmp_path, "a.txt")

    with pytest.raises(UsageError, match=r"is not a folder") as caught:
        Files(tmp_path / "a.txt").check()

    assert f"Files('{tmp_path}', include='a.txt')" in str(caught.value)


def test_a_root_that_may_not_be_read_is_named(shared_folder: Path, as_nobody: AsNobody) -> None:
    """With what to do."""
    tree(shared_folder, "locked/")
    (shared_folder / "locked").chmod(0)

    with pytest.raises(UsageError, match=r"locked: this user \(uid \d+\) may not read this folder"):
        as_nobody(Files(shared_folder / "locked").check)
