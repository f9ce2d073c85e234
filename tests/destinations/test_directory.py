"""The ``Directory`` destination: its files, their names, and what a kill leaves."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ferryman.destinations import Destination, DestinationContext, Directory, Guarantee, Outcome, files
from ferryman.destinations.files import case_key, hashed_path, path_of_id
from ferryman.errors import PermanentError, PlanError, TransientError
from ferryman.testing.destinations import DestinationSuite, delete, delivery


def indexed(folder: Path) -> dict[str, str]:
    """id -> path of what is there, by the query that the docstring gives."""
    with sqlite3.connect(folder / ".ferryman" / "index.db") as index:
        return dict(index.execute("SELECT id, path FROM documents WHERE operation = 'upsert'"))


def tree(folder: Path) -> dict[str, bytes]:
    """Path -> content of every file but ours."""
    found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return {path: content for path, content in found.items() if not path.startswith(".ferryman/")}


class Promises(DestinationSuite):
    keyed = True
    options: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it

    @pytest.fixture(autouse=True)
    def _place(self, place: Path) -> None:
        """In memory: thousands of files, each with its fsync."""
        self.place = place

    def destination(self, folder: Path) -> Destination:
        return Directory(getattr(self, "place", folder) / "out", **self.options)

    def hashes(self, folder: Path) -> list[str]:
        """Index and files have to say the same; the content says which delivery it was."""
        out = self.place / "out"
        paths = indexed(out)
        assert {*paths.values()} == {*tree(out)}, "files and index differ"
        with sqlite3.connect(out / ".ferryman" / "index.db") as index:
            found = dict(index.execute("SELECT id, delivery_hash FROM documents WHERE operation = 'upsert'"))
        self.contents(out, paths, found)
        return list(found.values())

    def contents(self, out: Path, paths: dict[str, str], hashes: dict[str, str]) -> None:
        """Are these files right?"""


class TestRaw(Promises):
    pass


class TestJson(Promises):
    options = {"content": "json"}  # noqa: RUF012 - nobody changes it

    def contents(self, out: Path, paths: dict[str, str], hashes: dict[str, str]) -> None:
        for id, path in paths.items():
            told = json.loads((out / path).read_bytes())
            assert (told["id"], told["hash"]) == (id, hashes[id])


class TestArchive(Promises):
    options = {"by": "content"}  # noqa: RUF012 - nobody changes it

    def hashes(self, folder: Path) -> list[str]:
        out = self.place / "out"
        for path, content in tree(out).items():
            assert path.rpartition("/")[2] == sha256(content).hexdigest()
        assert {*indexed(out).values()} <= {*tree(out)}
        with sqlite3.connect(out / ".ferryman" / "index.db") as index:
            return [h for (h,) in index.execute("SELECT delivery_hash FROM documents WHERE operation = 'upsert'")]


del Promises  # pytest would collect it


def opened(folder: Path, **options: Any) -> Directory:
    made = Directory(folder, **options)
    made.check()
    made.open(DestinationContext("plan", 1, "out", 1, Guarantee.AT_LEAST_ONCE))
    return made


def test_a_document_is_a_file_where_its_id_says(tmp_path: Path) -> None:
    """Raw bytes as they are; without any, the fields. A delete removes the file, and folders that are empty then."""
    out = opened(tmp_path)
    fields = delivery("a/b/fields", 3, None, {"title": "One"})
    out.write([delivery("histories/henryv.txt", 1, "O for a muse"), delivery("top", 2, ""), fields])
    assert tree(tmp_path) == {"histories/henryv.txt": b"O for a muse", "top": b"", "a/b/fields": b'{"title":"One"}\n'}
    out.write([delete("a/b/fields", 4), delete("top", 5)])
    assert tree(tmp_path) == {"histories/henryv.txt": b"O for a muse"}
    assert sorted(os.listdir(tmp_path)) == [".ferryman", "histories"]
    out.write([delivery("top", 6, "again")])
    assert tree(tmp_path)["top"] == b"again"


def test_what_ids_are_called() -> None:
    """Percent-encoding is undone as far as it can be; what a file system refuses or misunderstands is encoded."""
    called = {
        "a b/é.txt": "a b/é.txt",
        "100%25.txt": "100%25.txt",
        "caf%C3%A9%23.txt": "café#.txt",
        "%FF.txt": "%FF.txt",
        "a.txt#2": "a.txt#2",
        "a#x%2Fy": "a#x%2Fy",
        "../../etc/passwd": "%2E%2E/%2E%2E/etc/passwd",
        "%2E%2E/x": "%2E%2E/x",
        ".ferryman/index.db": "%2Eferryman/index.db",
        ".Ferryman": "%2EFerryman",
        ".gitignore": ".gitignore",
        'a:b*c?"<>|\\~': "a%3Ab%2Ac%3F%22%3C%3E%7C%5C%7E",
        "line\nend": "line%0Aend",
        "dots...": "dots..%2E",
        "/absolute": None,
        "a//b": None,
        "": None,
        "folder/": None,
        "x" * 241: None,
        "y/" * 600 + "z": None,
    }
    assert {id: path_of_id(id) for id in called} == called
    assert hashed_path("x" * 300 + ".txt").startswith("x" * 60 + "~")
    assert hashed_path("x" * 300 + ".txt").endswith(".txt")
    assert case_key("Straße/É") == case_key("STRASSE/e\u0301")


@pytest.mark.rule("directory.order")
def test_every_id_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Also where one is another's folder, differs only in case, or is called like another when it is decoded."""
    ids = ["a", "a/b", "A", "A/c", "b/c", "b", "x%41", "xA", "", "/", "é", "e\u0301", "n" * 300, "n" * 299]
    chunk = [delivery(id, i + 1, f"content {i}") for i, id in enumerate(ids)]
    for part in (chunk[:7], chunk[7:], chunk):
        outcomes = opened(tmp_path).write(part)
        assert [o.kind for o in outcomes] == ["ok"] * len(part)
        paths = indexed(tmp_path)
        assert len({case_key(path) for path in paths.values()}) == len(paths)
        assert tree(tmp_path) == {paths[d.id]: d.raw for d in chunk if d.id in paths}
    assert {id: paths[id] for id in ("a", "b/c", "x%41", "é")} == {"a": "a", "b/c": "b/c", "x%41": "xA", "é": "é"}
    opened(tmp_path).write([delete(id, 100 + i) for i, id in enumerate(ids)])
    assert tree(tmp_path) == {}


@pytest.mark.rule("directory.order")
def test_a_folder_that_came_in_the_way(tmp_path: Path) -> None:
    """An id that comes back where somebody has made a folder meanwhile gets another name."""
    opened(tmp_path).write([delivery("a", 1), delete("a", 2)])
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine").write_text("mine")
    assert opened(tmp_path).write([delivery("a", 3, "new")]) == [Outcome.ok()]
    assert tree(tmp_path) == {"a/mine": b"mine", hashed_path("a"): b"new"}


def test_a_file_that_was_there_is_not_touched(tmp_path: Path) -> None:
    """The document is refused, with what to do; the others are written."""
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / hashed_path("mine.txt")).write_text("mine too")
    refused, fine = opened(tmp_path).write([delivery("mine.txt", 1), delivery("yours.txt", 2)])
    assert (refused.kind, refused.universal, fine.kind) == ("permanent", False, "ok")
    assert refused.why.startswith(f"{tmp_path}/mine.txt already existed")
    assert tree(tmp_path)["mine.txt"] == b"mine"


def test_an_archive_keeps_everything(tmp_path: Path) -> None:
    """Under the hash of its content, equal content once; a delete forgets only whose it was."""
    out = opened(tmp_path, by="content")
    assert [
        o.kind for o in out.write([delivery("a", 1, "same"), delivery("b", 2, "same"), delivery("c", 3, None)])
    ] == [
        "ok",
        "ok",
        "permanent",
    ]
    digest = sha256(b"same").hexdigest()
    where = f"sha256/{digest[:2]}/{digest[2:4]}/{digest}"
    assert tree(tmp_path) == {where: b"same"}
    assert indexed(tmp_path) == {"a": where, "b": where}
    out.write([delivery("a", 4, "other"), delete("b", 5)])
    assert len(tree(tmp_path)) == 2
    assert indexed(tmp_path).keys() == {"a"}


@pytest.mark.rule("directory.order")
@pytest.mark.parametrize("content", ["raw", "json"])
def test_a_kill_between_file_and_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any) -> None:
    """What comes again finds its own name, and an older version does not stay."""
    chunk = [delivery("a", 2, "new"), delete("b", 3), delivery("c", 4, "new")]
    opened(tmp_path, content=content).write([delivery("a", 1, "old"), delivery("b", 1, "old")])

    def killed(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(files.IndexedFolder, "record", killed)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path, content=content).write(chunk)
    assert len(tree(tmp_path)) == 2, "the files are there, the index does not know"
    assert opened(tmp_path, content=content).write(chunk) == [Outcome.ok()] * 3
    assert {*indexed(tmp_path)} == {"a", "c"}
    assert {*indexed(tmp_path).values()} == {*tree(tmp_path)}
    assert opened(tmp_path, content=content).write([delivery("b", 2)]) == [Outcome.stale()]


def test_what_a_killed_writer_leaves_is_cleaned_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that stops half way leaves no file that a reader would take for a document."""

    def half(fd: int, data: bytes) -> NoReturn:
        real_write(fd, bytes(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    out = opened(tmp_path)
    real_write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", half)
        with pytest.raises(TransientError, match="No space left on device") as caught:
            out.write([delivery("a", 1)])
    assert caught.value.universal
    assert tree(tmp_path) == {}
    assert len(os.listdir(tmp_path / ".ferryman" / "new")) == 1
    out.check()
    assert os.listdir(tmp_path / ".ferryman" / "new") == []
    assert out.write([delivery("a", 1)]) == [Outcome.ok()]


def test_a_place_that_cannot_be_written_is_for_a_person(tmp_path: Path) -> None:
    """A file where the folder should be is permanent and universal, and is not touched."""
    (tmp_path / "out").write_text("mine")
    with pytest.raises(PermanentError, match=f"{tmp_path}/out: ") as caught:
        Directory(tmp_path / "out").check()
    assert caught.value.universal
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("options", [{"content": "xml"}, {"by": "date"}, {"by": "content", "content": "json"}])
def test_arguments_that_cannot_be_meant(options: dict[str, Any]) -> None:
    """Refused when the plan is made."""
    with pytest.raises(PlanError, match=r"Directory\('out'\): "):
        Directory("out", **options)
