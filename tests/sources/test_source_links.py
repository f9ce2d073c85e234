"""Files: links, wherever they lead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from folders import refused, scan, tree

from ferryman.sources import Files


def test_a_link_to_a_file_inside_is_a_document(tmp_path: Path) -> None:
    """With an id of its own, by whatever way it leads there."""
    tree(tmp_path, "root/a.txt", "root/sub/")
    (tmp_path / "root/sub/relative").symlink_to("../a.txt")
    (tmp_path / "root/absolute").symlink_to(tmp_path / "root/a.txt")
    (tmp_path / "root/twice").symlink_to("sub/relative")
    source = Files(tmp_path / "root")

    found = scan(source)

    assert sorted(found) == ["a.txt", "absolute", "sub/relative", "twice"]
    assert {source.read(listed).raw for listed in found.values()} == {b"root/a.txt"}
    assert found["twice"].size == len("root/a.txt")


@pytest.mark.parametrize(
    ("name", "target", "says"),
    [
        ("dangling.txt", "nowhere", "dangling.txt: link to nowhere, which does not exist"),
        ("through.txt", "a.txt/below", "through.txt: link to a.txt/below, which does not exist"),
        ("self.txt", "self.txt", "self.txt: link to self.txt, which leads in a circle"),
        ("up", ".", "up: link to ., which leads in a circle: that folder holds the link"),
        ("sub/up", "..", "sub/up: link to .., which leads in a circle"),
        ("out.txt", "../outside/secret.txt", "out.txt: link to ../outside/secret.txt, which leads out of the root to "),
        ("out", "../outside", "start another source there"),
        ("beside", "../root-2/a.txt", "which leads out of the root to "),
        ("null", "/dev/null", "which leads out of the root to /dev/null"),
        ("line\nend", "no\nwhere", "line%0Aend: link to no%0Awhere, which does not exist"),
    ],
)
def test_a_link_that_leads_nowhere_or_out_is_refused(tmp_path: Path, name: str, target: str, says: str) -> None:
    """By name, with where it leads and what to do; everything else goes on."""
    tree(tmp_path, "root/a.txt", "root/sub/b.txt", "outside/secret.txt", "root-2/a.txt")
    (tmp_path / "root" / name).symlink_to(target)
    source = Files(tmp_path / "root")

    found = scan(source)

    [(id, why)] = refused(source).items()
    assert id == name.replace("\n", "%0A")
    assert says in why
    assert why.startswith(str(tmp_path / "root"))
    assert why.endswith("or leave it out with exclude=….")
    assert why.splitlines() == [why]
    assert sorted(found) == sorted(["a.txt", "sub/b.txt", id])
    assert not refused(Files(tmp_path / "root", exclude=name)), "the way out that the message names does not work"


def test_a_circle_of_two_links_is_refused(tmp_path: Path) -> None:
    """Both of them, and the walk ends."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    assert sorted(refused(Files(tmp_path))) == ["a", "b"]


def test_a_link_to_a_folder_inside_is_not_followed(tmp_path: Path) -> None:
    """Its files are documents already, under their real path: two of each would be found twice in a search."""
    tree(tmp_path, "releases/7/a.txt")
    (tmp_path / "latest").symlink_to("releases/7")

    assert {id: entry.refused for id, entry in scan(Files(tmp_path)).items()} == {"releases/7/a.txt": ""}


def test_a_link_to_a_folder_that_the_globs_leave_out_is_refused(tmp_path: Path) -> None:
    """Else its files would be documents nowhere, and nobody would know."""
    tree(tmp_path, "releases/7/a.txt")
    (tmp_path / "latest").symlink_to("releases/7")

    [(id, why)] = refused(Files(tmp_path, "latest/**/*.txt")).items()

    assert id == "latest"
    assert "leads to a folder that the globs leave out, and is not followed. Include releases/7," in why
    assert list(refused(Files(tmp_path, exclude="releases"))) == ["latest"]


def test_links_that_no_glob_takes_are_nothing(tmp_path: Path) -> None:
    """A link is refused only where a file or folder of its name would be taken."""
    tree(tmp_path, "root/a.py", "outside/")
    for name, target in {"dangling": "nowhere", "loop.txt": "loop.txt", "out": "../outside", "x": "a.py"}.items():
        (tmp_path / "root" / name).symlink_to(target)

    assert sorted(scan(Files(tmp_path / "root", "*.py"))) == ["a.py"]


def test_a_link_turned_to_another_file_has_another_fingerprint(tmp_path: Path) -> None:
    """Also where both files have one size and one time."""
    tree(tmp_path, "1", "2")
    os.utime(tmp_path / "1", (1, 1))
    os.utime(tmp_path / "2", (1, 1))
    link = tmp_path / "link"
    link.symlink_to("1")
    before = scan(Files(tmp_path))["link"].fingerprint
    link.unlink()
    link.symlink_to("2")

    assert before
    assert scan(Files(tmp_path))["link"].fingerprint not in ("", before)
