"""Files: reading what may have changed since it was listed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import scan, tree

from ferryman.errors import BadDocument, TransientError
from ferryman.sources import Files, Listed
from ferryman.sources import folder as root_module

AsNobody = Callable[[Callable[[], Any]], Any]


def test_a_file_that_vanished_is_tried_again(tmp_path: Path) -> None:
    """The next scan sees that it is gone."""
    source = Files(tmp_path)

    with pytest.raises(TransientError, match=r"gone\.txt: deleted after it was listed"):
        source.read(Listed("gone.txt", 1))


def test_a_file_that_became_a_folder_is_tried_again(tmp_path: Path) -> None:
    """The next scan lists what is in it."""
    tree(tmp_path, "a/b")

    with pytest.raises(TransientError, match="became a folder"):
        Files(tmp_path).read(Listed("a", 1))


def test_a_file_that_may_not_be_read_is_refused(shared_folder: Path, as_nobody: AsNobody) -> None:
    """The message names the file, who we are, and what to do."""
    tree(shared_folder, "secret.txt")
    (shared_folder / "secret.txt").chmod(0)
    source = Files(shared_folder)
    [listed] = as_nobody(lambda: list(scan(source).values()))

    with pytest.raises(BadDocument, match=r"this user \(uid \d+\) may not read this file") as caught:
        as_nobody(lambda: source.read(listed))

    assert str(caught.value).startswith(f"{shared_folder}/secret.txt: ")
    assert "chmod a+r" in str(caught.value)


def test_a_file_that_grew_over_the_limit_is_refused(tmp_path: Path) -> None:
    """The limit holds at reading too."""
    (tmp_path / "log").write_bytes(b"123456")

    with pytest.raises(BadDocument, match=r"log: 6 bytes, more than the limit of 5\. Allow it with max_bytes=6"):
        Files(tmp_path, max_bytes=5).read(Listed("log", 3))


def short_reads(monkeypatch: pytest.MonkeyPatch, grow: Path | None = None) -> None:
    """Make every read short; a file may grow after the first."""
    read = os.read

    def short(opened: int, size: int) -> bytes:
        data = read(opened, min(size, 3))
        if grow is not None and grow.stat().st_size < 50:
            with grow.open("ab") as file:
                file.write(b"more")
        return data

    monkeypatch.setattr(os, "read", short)


def test_short_reads_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of the system reads at most 2 GiB, and may read less."""
    (tmp_path / "a").write_bytes(bytes(range(100)))
    short_reads(monkeypatch)

    assert Files(tmp_path).read(Listed("a", 100)).raw == bytes(range(100))


def test_a_file_that_grows_while_it_is_read_stays_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot fill a worker's memory."""
    path = tmp_path / "log"
    path.write_bytes(b"12345")
    short_reads(monkeypatch, grow=path)

    with pytest.raises(BadDocument, match="more than the limit of 20"):
        Files(tmp_path, max_bytes=20).read(Listed("log", 5))


def test_a_failing_disk_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The document is not to blame."""
    tree(tmp_path, "a")

    def failing(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "read", failing)

    with pytest.raises(TransientError, match=r"/a: cannot be read now: Input/output error\."):
        Files(tmp_path).read(Listed("a", 1))


def swap_for_a_link(root: Path) -> str:
    (root / "a.txt").unlink()
    (root / "a.txt").symlink_to(root.parent / "outside" / "a.txt")
    return "a.txt"


def swap_its_folder_for_a_link(root: Path) -> str:
    (root / "sub" / "a.txt").unlink()
    (root / "sub").rmdir()
    (root / "sub").symlink_to(root.parent / "outside")
    return "sub/a.txt"


def climb(root: Path) -> str:
    return "../outside/a.txt"


def climb_in_disguise(root: Path) -> str:
    return "sub%2F..%2F..%2Foutside%2Fa.txt"


def go_next_door(root: Path) -> str:
    (root.parent / "root-2").mkdir()
    (root.parent / "root-2" / "a.txt").write_text("secret")
    return "../root-2/a.txt"


@pytest.mark.parametrize("where", ["the system tells", "the system does not tell"])
@pytest.mark.parametrize("leave", [swap_for_a_link, swap_its_folder_for_a_link, climb, climb_in_disguise, go_next_door])
def test_nothing_outside_of_the_root_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: Callable[[Path], str], where: str
) -> None:
    """Whatever happens between listing and reading."""
    tree(tmp_path, "root/a.txt", "root/sub/a.txt", "outside/a.txt")
    source = Files(tmp_path / "root")
    if where == "the system does not tell":
        monkeypatch.setattr(root_module, "_real_path", lambda opened: None)
    assert source.read(Listed("a.txt", 1)).raw == b"root/a.txt"
    id = leave(tmp_path / "root")

    with pytest.raises(BadDocument, match=f"leads out of the root {tmp_path}/root to {tmp_path}/.*; it was not read"):
        source.read(Listed(id, 1))


@pytest.mark.parametrize("id", ["a%00b", "a\0b", "\udcff"])
def test_an_id_that_is_no_file_is_refused(tmp_path: Path, id: str) -> None:
    """Ids come from a state that people may have edited."""
    with pytest.raises(BadDocument, match="not the id of a file"):
        Files(tmp_path).read(Listed(id, 1))


def test_a_file_that_became_a_loop_is_refused(tmp_path: Path) -> None:
    """Named, not followed for ever."""
    (tmp_path / "a").symlink_to("a")

    with pytest.raises(BadDocument, match="/a: a link that leads in a circle"):
        Files(tmp_path).read(Listed("a", 1))
