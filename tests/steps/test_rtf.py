"""RTF: characters of fonts and of Unicode, what is seen and what is not, in linear time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import steps
from ferryman.document import Document

REPORTS = Path(__file__).parent / "corpus" / "reports"


def extract(raw: bytes) -> Document:
    doc = steps.extract_text(languages=None)(Document("a.rtf", raw=raw))
    assert isinstance(doc, Document)
    return doc


def text(inside: str, fonts: str = "", head: str = "\\ansi\\ansicpg1252\\deff0") -> str:
    table = f"{{\\fonttbl{fonts}}}" if fonts else ""
    return extract(f"{{\\rtf1{head}{table}{inside}}}".encode("latin-1")).text()


def test_the_reported_file() -> None:
    assert extract((REPORTS / "emoji.rtf").read_bytes()).text() == "smile 😀 done\nПривет"


@pytest.mark.parametrize(
    ("inside", "wanted"),
    [
        (r"\u-10179?\u-8704?", "😀"),
        (r"\u55357?\u56832?", "😀"),
        (r"\u128512?x", "😀x"),
        (r"\uc0\u-10179\u-8704 x", "😀x"),
        (r"\uc2\u12354\'82\'a0x", "あx"),
        (r"{\uc0\u8364}\u8364?", "€€"),
        (r"\u-10179?{\b\u-8704?}", "😀"),
        (r"\u8364\'80 5", "€ 5"),
        (r"\u-3844?", "\uf0fc"),
    ],
)
def test_unicode_characters(inside: str, wanted: str) -> None:
    """Two halves are one character; what stands for it in older programs is skipped."""
    assert text(inside) == wanted


def test_half_a_character_is_replaced_and_counted() -> None:
    doc = extract(rb"{\rtf1\ansi a\u-10179?b \'81}")
    assert doc.text() == "a\ufffdb \ufffd"
    assert doc["replaced_characters"] == 2


@pytest.mark.parametrize(
    ("fonts", "inside", "wanted"),
    [
        (r"{\f0 Arial;}{\f1\fcharset204 Arial CYR;}", r"\f1\'cf\'f0", "Пр"),
        (r"{\f0 Arial;}{\f1\fcharset204 Arial CYR;}", r"{\f1\'cf\par\'f0}\'e9", "П\nрé"),
        (r"\f0 Arial;\f1\fcharset161 Greek;", r"\f1 \'e1 \f0 \'e1", "α á"),
        (r"{\f0\fnil\fcharset128 MS{\*\falt x;};}", r"\f0\'82\'a0\'83e", "あテ"),
        (r"{\f5\fcharset238 x;}", r"\f5\'b3\plain\'b3", "ł³"),
        (r"{\f1\fcharset1 x;}{\f2\fcharset0\cpg1251 y;}", r"\f1\'e9\f2\'e9", "éй"),
        (r"{\f0\fcharset134 SimSun;}", r"\'b6\'c9\'c2\'d6", "渡轮"),
        (r"{\f0\fcharset129 x;}", r"\f0\'bf\'a9", "여"),
    ],
)
def test_each_byte_is_decoded_by_its_font(fonts: str, inside: str, wanted: str) -> None:
    """Else by the document's code page; a paragraph's end does not change the font."""
    assert text(inside, fonts) == wanted


def test_code_pages() -> None:
    assert text(r"\'cf\'f0", head=r"\ansi\ansicpg1251") == "Пр"
    assert text(r"\'84", head=r"\pc") == "ä"
    assert text("Ð\x9f", head=r"\ansi\ansicpg65001") == "П"
    assert text(r"\'e9", head=r"\ansi\ansicpg99999") == "é"


@pytest.mark.parametrize(
    ("inside", "wanted"),
    [
        (r"one\cell two\cell\row three", "one\ttwo\nthree"),
        (r"a{\footnote b}c\par d", "ac\nd\n\nb"),
        (r"{\header top}{\headerl top}{\footer end}x", "x\n\ntop\n\nend"),
        (r"a{\*\annotation note}", "a\n\nnote"),
        (r"a{\v hidden}b{\deleted gone}c{\v x\plain y}", "abcy"),
        (r"{\*\unknown x{\footnote y}}z", "z"),
        (r"{\shp{\*\shpinst{\sp{\sn a}{\sv b}}{\shptxt box}}{\shprslt box}}", "box"),
        (r'{\field{\*\fldinst{HYPERLINK "https://a.example/"}}{\fldrslt{link}}}.', "link (https://a.example/)."),
        (r"{\field{\*\fldinst PAGE}{\fldrslt 3}}", "3"),
        (r"{\upr{old}{\*\ud{new \u8364?}}}", "new €"),
        (r"{\object{\*\objdata 00ff}{\result seen}}", "seen"),
        (r"{\pict\bin4 }}{{ x}y", "y"),
        (r"a\~b\_c\{d\}\\", "a\xa0b\u2011c{d}\\"),
        (r"{\listtext 1.\tab}item", "1.\titem"),
        ("a\\\nb", "a\nb"),
    ],
)
def test_what_is_seen_is_read(inside: str, wanted: str) -> None:
    """Notes, comments, headers once, text boxes and links; nothing that is hidden, deleted or kept for programs."""
    assert text(inside) == wanted


def test_what_is_not_read_is_named() -> None:
    """Files of other programs; pictures, if there is nothing else."""
    picture = rb"{\*\shppict{\pict\pngblip 00}}"
    assert extract(rb"{\rtf1 {\object{\*\objdata 00ff}{\result seen}}}")["unread"] == ["embedded files"]
    assert extract(rb"{\rtf1 {\object{\objdata 00ff}}}")["unread"] == ["embedded files"]
    assert extract(b"{\\rtf1 " + picture + b"}")["unread"] == ["pictures"]
    assert extract(b"{\\rtf1 " + picture + b"x}").get("unread") is None


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (rb"{\rtf1 one} two}", "one two"),
        (rb"{\rtf1{\fonttbl{\f0\fcharset204 x;}}\f0\'cf} \'f0 {\b b}} c}", "П р b c"),
        (rb"{\rtf1 one}" + b"\0" * 9, "one"),
        (b"{\\rtf1 one}\r\njunk", "one"),
        (rb"{\rtf1 one}{\rtf1 two}", "one"),
    ],
)
def test_an_unmatched_brace_ends_no_document(raw: bytes, wanted: str) -> None:
    """What follows belongs to it, if text with a closing brace does."""
    assert extract(raw).text() == wanted


def test_the_information_group() -> None:
    raw = (
        rb"{\rtf1\ansi\ansicpg932{\fonttbl{\f0\fcharset0 x;}}{\info{\title \'83^}{\author {\uc0\u12354}}{\company x}}y}"
    )
    doc = extract(raw)
    assert (doc["title"], doc["author"], doc.text()) == ("タ", "あ", "y")


def steps_of(raw: bytes) -> Any:
    from ferryman.steps.formats import rtf

    return rtf.rtf(raw).text


@pytest.mark.parametrize(
    "part",
    [
        b"{",
        b"}",
        b"\\",
        b"{\\field{\\*\\fldinst{",
        b"\\f1 ",
        b"{\\fonttbl",
        b"\\'",
        b"\\u1?",
        b"\\bin1 ",
        b"{\\*",
        b"x{\\v",
    ],
)
def test_broken_documents_are_read_as_far_as_they_go(part: bytes) -> None:
    """None raises, whatever is repeated and never closed."""
    assert isinstance(steps_of(b"{\\rtf1 " + part * 5000), str)
    assert isinstance(steps_of(part * 5000), str)
