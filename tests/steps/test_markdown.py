"""Markdown: its title, its front matter, and the sections that ``split_text`` makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import steps
from ferryman.document import Document
from ferryman.errors import Dropped

REPORTS = Path(__file__).parent / "corpus" / "reports"


def extract(text: str) -> Document:
    doc = steps.extract_text(languages=None)(Document("a.md", raw=text.encode()))
    assert isinstance(doc, Document)
    return doc


def sections(text: str, **options: Any) -> list[Document]:
    parts = steps.split_text(by="headings", **options)(Document("d", raw=text.encode()))
    assert isinstance(parts, list)
    return parts


def parts(text: str, **options: Any) -> list[tuple[str, Any]]:
    return [(part.text(), part.get("headings")) for part in sections(text, **options)]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Harbour tools\n=============\n\n```sh\n# install\n```\n", "Harbour tools"),
        ("```sh\n# install the things\nmake\n```\n", None),
        ("~~~\n# no\n~~~\n\n# Yes #\n", "Yes"),
        ("    # code\n\nText\n\n# Title", "Title"),
        ("<!--\n# no\n-->\n\nTitle\n===\n", "Title"),
        ("<!-- note -->\n" * 40 + "# Title\n", "Title"),
        ("---\ntitle: My post\ndate: 2024-01-01\n---\n\n# A\n", "My post"),
        ('---\nlayout: x\ntitle: "A: B"\n...\ntext', "A: B"),
        ("+++\ntitle = 'My post'\n+++\n", "My post"),
        ("\ufeff---\r\ntitle: CRLF\r\n---\r\n", "CRLF"),
        ("---\ndate: 2024\n---\n# A\n", "A"),
        ("---\n\nNot front matter\n---\n\n# A\n", "A"),
        ("## Second\n\n# First\n", "First"),
        ("> # quoted\n\n- # item\n\n## x\n", None),
        ("#hashtag\n\n# Title\r\nx", "Title"),
        ("a\n\n#\n\n# Title", "Title"),
        ("no heading", None),
        ("", None),
    ],
)
def test_the_title(text: str, title: str | None) -> None:
    """That of the front matter, else the first heading of level 1, however it is written; not what is code."""
    if text:
        assert extract(text).get("title") == title
        assert extract(text + "\n").get("title") == title


def test_reported_markdown() -> None:
    read = {name: (REPORTS / name).read_text() for name in ("setext.md", "front.md", "formfeed.md", "notes.md")}

    assert extract(read["setext.md"])["title"] == "Harbour tools"
    assert extract(read["front.md"])["title"] == "My post"
    assert extract(read["notes.md"]).text() == read["notes.md"]
    front = "---\ntitle: My post\ndate: 2024-01-01\n---"
    assert parts(read["front.md"]) == [(front, None), ("# A\n\nunder a", ["A"])]
    assert parts(read["formfeed.md"]) == [
        ("Page one\fPage two\fPage three", None),
        ("# H1\n\nunder h1", ["H1"]),
        ("# H2\n\nunder h2", ["H2"]),
    ]


@pytest.mark.parametrize("sign", ["\f", "\u2028", "\u2029", "\x0b", "\x1c", "\x85"])
def test_signs_that_end_no_line_cut_no_section(sign: str) -> None:
    text = f"a{sign}b{sign}c\n\n# One\n\n1{sign}2\n\nTwo\n---\n\nx{sign}y"
    assert parts(text) == [
        (f"a{sign}b{sign}c", None),
        (f"# One\n\n1{sign}2", ["One"]),
        (f"Two\n---\n\nx{sign}y", ["One", "Two"]),
    ]


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_of_other_systems(end: str) -> None:
    text = f"# One{end}{end}a{end}{end}Two{end}---{end}b{end}"
    assert parts(text) == [(f"# One{end}{end}a", ["One"]), (f"Two{end}---{end}b", ["One", "Two"])]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("# A\n\n## B\n\ntext", [("# A\n\n## B\n\ntext", ["A", "B"])]),
        ("# A\n## B\n### C\nc\n## D\nd", [("# A\n## B\n### C\nc", ["A", "B", "C"]), ("## D\nd", ["A", "D"])]),
        ("# A\n\n# B\n\ntext", [("# A\n\n# B\n\ntext", ["B"])]),
        ("# A\n\ntext\n\n# B\n", [("# A\n\ntext\n\n# B", ["A"])]),
        ("# A\n\n## B\n", [("# A\n\n## B", ["A", "B"])]),
        ("before\n\n# A\n", [("before\n\n# A", None)]),
        ("A\n=\n\nB\n-\nb", [("A\n=\n\nB\n-\nb", ["A", "B"])]),
    ],
)
def test_a_heading_alone_is_not_a_section(text: str, wanted: list[Any]) -> None:
    """It stands before the text of the next one; what follows nothing stands behind the last."""
    assert parts(text) == wanted
    assert "".join(part for part, _ in parts(text)).replace("\n", "") == text.replace("\n", "")


def test_nothing_but_blanks_is_dropped() -> None:
    with pytest.raises(Dropped):
        sections(" \n\f\n")


def test_ids_of_sections_and_of_their_parts_survive_an_edit() -> None:
    """By the headings' words: only the paragraph that is changed has another id."""
    before = "# A\n\none\n\ntwo\n\n## B\n\nthree\n\nfour\n\n## B\n\nfive"
    after = before.replace("one", "ONE, and more").replace("# A", "new\n\n# A")

    def ids(text: str) -> tuple[list[str], dict[str, str]]:
        found = sections(text, key="content")
        chunks = [chunk for section in found for chunk in steps.split_text(key="content")(section)]  # type: ignore[union-attr]
        return [section.id for section in found], {chunk.text(): chunk.id for chunk in chunks}  # type: ignore[union-attr]

    (old, old_chunks), (new, new_chunks) = ids(before), ids(after)
    assert len(set(old)) == 3
    assert new[1:] == old
    assert old[2] == f"{old[1]}-2"
    assert {text for text in old_chunks if new_chunks.get(text) == old_chunks[text]} == set(old_chunks) - {"# A\n\none"}
