"""Lines: which documents a text file is, by what ids, and what becomes of bad ones."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rows import documents, refusals, rows, told

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import TransientError, UsageError
from ferryman.sources import Doubt, Lines
from ferryman.sources.records import physical_lines


def lines_of(folder: Path, data: bytes, **options: Any) -> dict[str, Any]:
    (folder / "f").write_bytes(data)
    return {id: doc.raw for id, doc in documents(Lines(folder, **options)).items()}


# --- documents and ids ------------------------------------------------------------------------------------------------


def test_a_line_is_a_document(tmp_path: Path) -> None:
    """Its text is the content; path and number are its id; it has no fields, so that a line that moves is the same."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a #1.log").write_text("one\ntwo\n")

    [first, second] = documents(Lines(tmp_path)).values()

    assert (first.id, first.raw, first.fields) == ("logs/a %231.log#line=1", b"one", {})
    assert (second.id, second.raw) == ("logs/a %231.log#line=2", b"two")


def test_an_id_is_no_child_s(tmp_path: Path) -> None:
    """A step that makes a child called like a line of the same file does not hit it."""
    (tmp_path / "f").write_text("one")
    [line] = documents(Lines(tmp_path))

    assert Document("f").child("line=1").id != line


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", {}),
        (b"a", {1: b"a"}),
        (b"a\nb\n", {1: b"a", 2: b"b"}),
        (b"a\r\nb\r\n", {1: b"a", 2: b"b"}),
        (b"a\rb\n", {1: b"a\rb"}),
        (b"a\r", {1: b"a\r"}),
        (b"\n \t\r\n\na\n", {4: b"a"}),
        (" a\u2028b\x0b \n".encode(), {1: " a\u2028b\x0b ".encode()}),
        (codecs.BOM_UTF8 + b"a\nb", {1: b"a", 2: b"b"}),
        (codecs.BOM_UTF8, {}),
    ],
)
def test_what_a_line_is(tmp_path: Path, data: bytes, lines: dict[int, bytes]) -> None:
    """It ends with LF or CR LF, and nothing else of it is taken away; blank ones count and are no documents."""
    assert lines_of(tmp_path, data) == {f"f#line={n}": text for n, text in lines.items()}


def test_blank_lines_are_kept_if_asked_for(tmp_path: Path) -> None:
    """An empty line is empty text."""
    assert lines_of(tmp_path, b"a\n\n  \nb", blank="keep") == {
        "f#line=1": b"a",
        "f#line=2": b"",
        "f#line=3": b"  ",
        "f#line=4": b"b",
    }


def test_a_line_known_by_its_content_may_move(tmp_path: Path) -> None:
    """With id="content": a line put in at the top changes nothing of the others."""
    before = lines_of(tmp_path, b"a\nb\n", id="content")
    after = lines_of(tmp_path, b"new\na\nb\n", id="content")

    assert before.items() < after.items()
    assert all(id.startswith("f#content=") for id in after)
    (tmp_path / "f").write_bytes(b"a\na\r\na")
    assert len({entry.id for entry in rows(Lines(tmp_path, id="content"))}) == 1, "equal lines are one document"


def test_the_root_may_be_a_file(tmp_path: Path) -> None:
    """Its name is the id's beginning; other files beside it are not looked at, odd names mean themselves."""
    (tmp_path / "a[1]*.txt").write_text("one")
    (tmp_path / "a1x.txt").write_text("other")
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "latest.txt").symlink_to("../a[1]*.txt")

    assert list(documents(Lines(tmp_path / "a[1]*.txt"))) == ["a[1]*.txt#line=1"]
    assert list(documents(Lines(tmp_path / "far" / "latest.txt"))) == ["latest.txt#line=1"], "a person named this link"


def test_a_name_that_is_not_utf_8_survives(tmp_path: Path) -> None:
    """Its bytes are percent-encoded, and lead back to the file."""
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")).write_text("one")

    assert list(documents(Lines(tmp_path))) == ["caf%E9.txt#line=1"]
    assert list(documents(Lines(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt"))))) == ["caf%E9.txt#line=1"]


def test_globs_are_those_of_files(tmp_path: Path) -> None:
    """Include and exclude, hidden files too."""
    for name in ("a.log", "b.txt", ".c.log"):
        (tmp_path / name).write_text("x")

    assert list(documents(Lines(tmp_path, "**/*.log", "**/.*"))) == ["a.log#line=1"]


# --- encodings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-be", "utf-32", "utf-8-sig", "cp037"])
def test_other_encodings_become_utf_8(tmp_path: Path, encoding: str) -> None:
    """So that ``doc.text()`` is right; line ends are those of the text, not of the bytes."""
    data = "café\r\n\nœuvre\n" if encoding not in ("latin-1", "cp037") else "café\r\n\nÿ\n"
    want = data.replace("\r", "").splitlines()

    assert lines_of(tmp_path, data.encode(encoding), encoding=encoding) == {
        "f#line=1": want[0].encode(),
        "f#line=3": want[2].encode(),
    }


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_a_byte_order_mark_wins(tmp_path: Path, encoding: str) -> None:
    """A file says itself what it is."""
    assert lines_of(tmp_path, "é\n".encode(encoding), encoding="latin-1") == {"f#line=1": "é".encode()}


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n")), max_size=5),
    st.sampled_from(["utf-8", "utf-16", "utf-32-le"]),
)
def test_lines_come_back(texts: list[str], encoding: str) -> None:
    """Whatever is in them."""
    import io

    data = "".join(f"{text}\n" for text in texts).encode(encoding)
    assume(encoding != "utf-16" or not data.startswith(codecs.BOM_UTF32_LE))  # a mark, and a NUL: UTF-32 says the same
    stream: Any = io.BufferedReader(io.BytesIO(data))  # type: ignore[arg-type]
    if encoding == "utf-8" and data.startswith(codecs.BOM_UTF8):
        data = data[3:]

    found = [line.decode().removesuffix("\n") for _, line, wrong in physical_lines(stream, encoding, 1000, "f")]

    assert "\n".join(found).removeprefix("\ufeff") == "\n".join(texts).removeprefix("\ufeff")
    assert len(found) == len(texts)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_a_line_that_is_too_long_is_refused(tmp_path: Path, end: bytes) -> None:
    """The line end does not count; what comes after it is found again."""
    (tmp_path / "f").write_bytes(b"x" * 10 + end)
    assert len(documents(Lines(tmp_path, max_bytes=10))) == 1

    (tmp_path / "f").write_bytes(b"one\n" + b"x" * 11 + end)
    assert refusals(Lines(tmp_path, max_bytes=10)) == {
        "f#line=2": f"{tmp_path}/f, line 2: more than 10 bytes. Raise max_bytes, or shorten the line."
    }

    (tmp_path / "f").write_bytes(b"x" * 1_000_000 + b"\nlast")
    assert list(documents(Lines(tmp_path, max_bytes=10))) == ["f#line=2"]


def test_utf_16_that_breaks_off_is_incomplete(tmp_path: Path) -> None:
    """Where the next line begins cannot be known: the lines before it are listed, and nothing is deleted."""
    (tmp_path / "f").write_bytes("one\ntwo\n".encode("utf-16") + b"\n")

    why = told(Lines(tmp_path))

    assert why.startswith(f"{tmp_path}/f: not utf-16-le text after byte")
    assert "Not all that is in this file is known" in why


def test_a_file_that_may_not_be_read_is_incomplete(
    shared_folder: Path, as_nobody: Callable[[Callable[[], Any]], Any]
) -> None:
    """Named, with what to do; the other files are listed."""
    for name in "ab":
        (shared_folder / name).write_text(name)
    (shared_folder / "a").chmod(0)
    source = Lines(shared_folder)

    assert "/a: this user" in as_nobody(lambda: told(source))
    assert list(as_nobody(lambda: documents(source, all_readable=False))) == ["b#line=1"]


def test_what_is_no_file_is_incomplete(tmp_path: Path) -> None:
    """Its lines, if it had any when it was a file, are not taken for gone."""
    (tmp_path / "a").symlink_to("gone")

    assert told(Lines(tmp_path)).startswith(f"{tmp_path}/a: link to gone, which does not exist.")


def test_a_folder_that_cannot_be_read_is_incomplete(
    shared_folder: Path, as_nobody: Callable[[Callable[[], Any]], Any]
) -> None:
    """What else there is is listed."""
    (shared_folder / "a").write_text("a")
    (shared_folder / "closed").mkdir(mode=0)
    source = Lines(shared_folder)

    assert "closed: Permission denied" in as_nobody(lambda: told(source))
    assert list(as_nobody(lambda: documents(source, all_readable=False))) == ["a#line=1"]


def test_a_file_that_vanished_is_gone(tmp_path: Path) -> None:
    """Between the listing and its reading: so are its lines, if the driver does not see it either."""
    (tmp_path / "a").write_text("a")
    source = Lines(tmp_path)
    [piece] = source.partitions()
    (tmp_path / "a").unlink()

    assert list(source.listing(piece)) == [Doubt("a", "missing")]


def test_a_root_that_vanished_is_not_empty(tmp_path: Path) -> None:
    """A file that is the root: that it is gone says nothing of its lines."""
    (tmp_path / "a").write_text("a")
    source = Lines(tmp_path / "a")
    [piece] = source.partitions()
    (tmp_path / "a").unlink()

    with pytest.raises(TransientError, match="/a: deleted since"):
        list(source.listing(piece))
    with pytest.raises(UsageError, match="/a: there is no such folder"):
        source.check()


def test_a_file_that_is_written_anew_meanwhile_is_incomplete(tmp_path: Path) -> None:
    """Half a file is not taken for the whole one."""
    (tmp_path / "a").write_bytes(b"line\n" * 100_000)
    source = Lines(tmp_path)
    [piece] = source.partitions()
    listing = source.listing(piece)
    next(listing)
    os.truncate(tmp_path / "a", 300_000)

    with pytest.raises(TransientError, match="/a: became shorter while it was read"):
        list(listing)


def test_a_file_that_grows_is_fine(tmp_path: Path) -> None:
    """A log is written while it is read."""
    (tmp_path / "a").write_bytes(b"line\n" * 100_000)
    source = Lines(tmp_path)
    [piece] = source.partitions()
    listing = source.listing(piece)
    next(listing)
    with (tmp_path / "a").open("ab") as log:
        log.write(b"more\n")

    assert len(list(listing)) == 100_000


def test_reading_holds_one_line_at_a_time(tmp_path: Path) -> None:
    """A file may be larger than the memory."""
    import tracemalloc

    with (tmp_path / "a").open("wb") as file:
        for _ in range(200):
            file.write(b"x" * 99_999 + b"\n")
    tracemalloc.start()
    try:
        assert sum(1 for _ in rows(Lines(tmp_path))) == 200
        assert tracemalloc.get_traced_memory()[1] < 2 * limits.MIB
    finally:
        tracemalloc.stop()


def test_building_touches_nothing() -> None:
    """The root is looked at by check."""
    source = Lines("/nowhere/at/all")

    assert repr(source) == "Lines('/nowhere/at/all', include='**/*')"
    with pytest.raises(UsageError, match="there is no such folder"):
        source.check()
