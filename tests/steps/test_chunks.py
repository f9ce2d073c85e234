"""``split_text``: parts of a text as children."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferryman import steps
from ferryman.document import Document
from ferryman.errors import BadDocument, Dropped, UsageError
from tests.support.plan_world import PlanWorld

PAGE = """Before.

# Henry V

O for a Muse.

## Act I ##

```sh
# no heading
```

### Scene 1

Enter.

Act II
------

Exeunt.
"""


def split(text: str, fields: dict[str, Any] | None = None, **options: Any) -> list[Document]:
    out = steps.split_text(**options)(Document.of("d", fields or {}, text.encode()))
    return out if isinstance(out, list) else [out]


def texts(text: str, **options: Any) -> list[str]:
    return [doc.text() for doc in split(text, **options)]


def test_paragraphs_are_apart_by_blank_lines() -> None:
    """One each, or so many, the last of one repeated at the beginning of the next."""
    text = "\n\none\nmore\n \n\ntwo\n\nthree\n\nfour\n"

    assert texts(text) == ["one\nmore", "two", "three", "four"]
    assert texts(text, size=3) == ["one\nmore\n\ntwo\n\nthree", "four"]
    assert texts(text, size=3, overlap=1) == ["one\nmore\n\ntwo\n\nthree", "three\n\nfour"]
    assert texts(text, size=3, overlap=2) == ["one\nmore\n\ntwo\n\nthree", "two\n\nthree\n\nfour"]
    assert texts("one", size=3, overlap=2) == ["one"]


@settings(deadline=None, max_examples=200)
@given(n=st.integers(0, 30), size=st.integers(1, 8), data=st.data())
def test_windows_have_everything(n: int, size: int, data: st.DataObject) -> None:
    """Each unit is in a part, in order; no part is within another."""
    overlap = data.draw(st.integers(0, size - 1))
    units = [f"u{i}" for i in range(n)]
    if not n:
        return
    parts = [part.split("\n\n") for part in texts("\n\n".join(units), size=size, overlap=overlap)]

    assert parts[0] + [unit for part in parts[1:] for unit in part[overlap:]] == units
    assert all(len(part) <= size for part in parts)
    assert all(len(part) > overlap for part in parts[1:])


def test_sentences_are_those_of_a_language() -> None:
    """Abbreviations end none; the document's language counts, unless one is given."""
    assert texts("Prof. X met her at 3.5 p.m. today. It cost $3.50. “Really?” she asked.", by="sentences") == [
        "Prof. X met her at 3.5 p.m. today.",
        "It cost $3.50.",
        "“Really?” she asked.",
    ]
    german = "Am 3. Mai kam z.B. Herr Dr. Müller.\nEr ging."
    assert texts(german, by="sentences", language="de") == ["Am 3. Mai kam z.B. Herr Dr. Müller.", "Er ging."]
    assert [d.text() for d in split(german, {"language": "de"}, by="sentences", size=2)] == [german.replace("\n", " ")]


def test_pieces_of_a_size_are_cut_at_the_best_place() -> None:
    """Between paragraphs, sentences, words; never larger than asked."""
    text = "One sentence. Another sentence.\n\n" + "word " * 100
    pieces = texts(text, by="characters", size=40)

    assert pieces[0] == "One sentence. Another sentence."
    assert all(len(piece) <= 40 for piece in pieces)
    assert " ".join(pieces).split() == text.split()
    assert len(texts(text, by="characters", size=40, overlap=20)) > len(pieces)


def test_pieces_of_tokens_need_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vocabulary comes with the library."""
    import socket

    monkeypatch.setattr(socket, "socket", lambda *_, **__: pytest.fail("it asks the network"))
    pieces = texts("word " * 100, by="tokens", size=10)

    assert len(pieces) == 10
    assert texts("word " * 100, by="tokens", size=10, model="gpt-3.5-turbo")


def test_sections_of_markdown_know_their_headings() -> None:
    """What stands before the first, and headings that are none because they are code, are no sections."""
    found = [(doc.text().splitlines()[0], doc.get("headings")) for doc in split(PAGE, by="headings")]

    assert found == [
        ("Before.", None),
        ("# Henry V", ["Henry V"]),
        ("## Act I ##", ["Henry V", "Act I"]),
        ("### Scene 1", ["Henry V", "Act I", "Scene 1"]),
        ("Act II", ["Henry V", "Act II"]),
    ]
    assert "".join(texts(PAGE, by="headings")).replace("\n", "") == PAGE.replace("\n", "")
    assert "headings" not in split(PAGE, by="headings", heading="")[1]
    assert texts("no heading", by="headings") == ["no heading"]


def test_children_get_what_they_are_given() -> None:
    """Copied fields, their number; not the others."""
    fields = {"title": "Henry V", "author": "W. S.", "pages": 3}
    found = split("one\n\ntwo", fields, copy=["title", "author", "missing"], number="part")

    assert [doc.fields for doc in found] == [
        {"title": "Henry V", "author": "W. S.", "part": 0},
        {"title": "Henry V", "author": "W. S.", "part": 1},
    ]
    whole, *parts = split("one\n\ntwo", fields, keep=True)
    assert (whole.id, whole.raw, len(parts)) == ("d", b"one\n\ntwo", 2)


def test_keys_by_number_and_by_content() -> None:
    """By content an insertion changes no other id; equal parts are told apart by their order."""
    assert [doc.id for doc in split("a\n\nb\n\na")] == ["d#0", "d#1", "d#2"]
    before = [doc.id for doc in split("a\n\nb\n\na\n\nc", key="content")]
    after = [doc.id for doc in split("a\n\nnew\n\nb\n\na\n\nc", key="content")]

    assert len(set(before)) == 4
    assert before[2] == f"{before[0]}-2"
    assert [id for id in after if id in before] == before


def test_nothing_to_split() -> None:
    """No raw: it goes on. No text: DROPPED. No UTF-8: refused."""
    doc = Document("d", title="x")
    assert steps.split_text()(doc) is doc
    for by in ("paragraphs", "sentences", "characters", "tokens", "headings"):
        with pytest.raises(Dropped, match="no text to split"):
            split(" \n\n ", by=by)
    assert [d.id for d in split("", keep=True)] == ["d"]
    with pytest.raises(BadDocument, match="not utf-8 text"):
        steps.split_text()(Document("d", raw=b"\xff"))


def test_arguments_that_cannot_be_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found when the step is made; so is a library that is not installed."""
    for options in (
        {"by": "words"},
        {"key": "hash"},
        {"size": 0},
        {"size": 2, "overlap": 2},
        {"overlap": 1},
        {"by": "headings", "size": 2},
        {"by": "tokens", "model": "nobody's"},
    ):
        with pytest.raises(ValueError, match=r"[Gg]ive|leave"):
            steps.split_text(**options)  # type: ignore[arg-type]
    from ferryman.steps import text as chunks

    monkeypatch.setattr(chunks, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'ferryman\[split\]'"):
        steps.split_text(by="sentences")


def test_on_the_engine_an_insertion_moves_no_other_part(place: Path) -> None:
    """With ``key="content"`` no id is deleted, none gets another content; with numbers each that follows does."""
    for key, moved in (("content", 0), ("number", 3)):
        net = PlanWorld.empty(place / key)
        (place / key).mkdir()
        net.source().step("split", steps.split_text(key=key)).destination("out", net.out("out"))  # type: ignore[arg-type]
        net.put("d", text="a\n\nb\n\nc\n\nd")
        net.run()
        before = {line["id"]: line["text"] for line in net.out("out").lines()}
        net.put("d", text="a\n\nnew\n\nb\n\nc\n\nd")
        net.run()
        now = {line["id"]: line["text"] for line in net.out("out").lines()}
        assert sum(now[id] != text for id, text in before.items()) == moved
        assert not [line for line in net.out("out").lines() if line["op"] == "delete"]


@pytest.mark.parametrize(
    "markdown", ["# Henry V\n\nO for a Muse.\n\n## Act I\n\nBe gone.", "Henry V\n===\n\nO for a Muse."]
)
def test_a_heading_alone_is_not_a_paragraph(markdown: str) -> None:
    """It stands before what follows; at the end, behind what is before; headings alone are one part."""
    parts = texts(markdown)
    assert "\n\n".join(parts) == markdown
    assert all(len(part.split("\n\n")) == 2 for part in parts)
    assert texts("text\n\n# The end") == ["text\n\n# The end"]
    assert texts("# One\n\n## Two") == ["# One\n\n## Two"]
    assert texts("```\n# a comment\n```") == ["```\n# a comment\n```"]


@pytest.mark.parametrize(("by", "size"), [("characters", 400), ("tokens", 100)])
def test_an_edit_changes_the_ids_of_the_pieces_around_it_only(by: Any, size: int) -> None:
    """Pieces by content, in a long section: wherever a word is put in, most pieces keep their ids."""
    chance = random.Random(1)
    words = ["muse", "fire", "ascend", "the", "brightest", "heaven", "of", "invention", "kingdom", "stage"]
    paragraphs = [" ".join(chance.choices(words, k=chance.randint(5, 60))) + f" {n}." for n in range(200)]

    def ids(paragraphs: list[str]) -> set[str]:
        found = split("\n\n".join(paragraphs), by=by, size=size, key="content")
        assert " ".join(doc.text() for doc in found).split() == " ".join(paragraphs).split(), "something is lost"
        return {doc.id for doc in found}

    before = ids(paragraphs)
    assert len(before) > 30
    for at in range(0, 200, 20):
        edited = paragraphs.copy()
        edited[at] = "Another " + edited[at]
        assert len(before - ids(edited)) <= len(before) / 4, at
    lost = [len(before - ids([*paragraphs[:at], "Put in.", *paragraphs[at:]])) for at in range(0, 200, 20)]
    assert sum(lost) / len(lost) <= 6
