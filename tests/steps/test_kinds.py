"""Kinds of content: what is text is not taken for something else, and the other way round."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferryman import steps
from ferryman.document import Document
from ferryman.steps.formats import HTML, MAIL, MARKDOWN, PDF, PLAIN, RTF, TAR, TROFF, UNKNOWN, XML, kind_of
from tests.steps import corpus

REPORTS = Path(__file__).parent / "corpus" / "reports"

NOTES = [
    b"%PDF-1.7 is how a PDF begins, %%EOF how it ends.\n",
    b"How to read a PDF: look for %PDF-1.4 and then for 1 0 obj.\n",
    b"\xef\xbb\xbf%PDF- is a mark.\n",
    b"MZ is a magic number, of Mark Zbikowski.\n",
    b"MZ-800: Sharp's home computer of 1984.\n",
    b"BZh is how bzip2 begins.\n",
    b"BZh91AY&SY is how bzip2 begins.\n",
    b"ID3 tags are at the beginning of an MP3.\n",
    b"ID3, C4.5 and CART are decision trees.\n",
    b"PAR1 is Parquet's mark.\n",
    b"GIF87a and GIF89a are two versions.\n",
    b"GIF89a\n",
    b"OggS, fLaC: marks.\n",
    b"{\\rtf1 begins RTF.\n",
    b"x" * 257 + b"ustar is the mark of tar\n",
    "PAR1: Überschrift".encode("latin-1"),
]


@pytest.mark.parametrize("note", NOTES, ids=[note[:20].decode("latin-1") for note in NOTES])
def test_text_that_begins_like_something_else_is_text(note: bytes) -> None:
    """A mark that can be typed needs a second proof; the ending of the name is only asked among texts."""
    assert kind_of(note, "notes") is PLAIN
    assert kind_of(note, "notes.md") is MARKDOWN
    assert kind_of(note * 300, "notes.txt") is PLAIN


@pytest.mark.parametrize("name", ["about-pdf.txt", "nobom.txt", "nul.log", "plain.txt"])
def test_reported_texts(name: str) -> None:
    raw = (REPORTS / name).read_bytes()
    doc = steps.extract_text()(Document(name, raw=raw))
    assert isinstance(doc, Document)
    assert doc["content_type"] == "text/plain"
    assert doc.text()
    assert "\0" not in doc.text()


@pytest.mark.parametrize(
    ("raw", "label"),
    [
        (b"MZ\x90\0\3\0\0\0\4\0\0\0\xff\xff\0\0" + bytes(48), "a Windows program"),
        (b"BZh91AY&SY\x1b\x04\x15\x8e\0\0\x01\x9f", "bzip2-compressed data"),
        (b"ID3\x04\0\0\0\0\x02\x01TIT2", "an MP3 recording"),
        (b"PAR1\x15\x04\x15\x10\x15\x14", "a Parquet file"),
        (b"GIF89a\x10\0\x10\0\xf0\0\0", "a GIF picture"),
        (b"OggS\0\2\0\0\0\0", "an Ogg recording"),
        (b"fLaC\0\0\0\x22\x10\0", "a FLAC recording"),
        (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    ],
)
def test_the_real_things_are_known(raw: bytes, label: str) -> None:
    assert kind_of(raw, "file.txt").label == label


def test_pdfs_and_rtf_are_known_by_what_is_in_them() -> None:
    """Whatever the name; with junk before the mark; broken ones by the name."""
    pdf = corpus.pdf(["Muse"])

    for name in ("a", "a.txt", "a.pdf"):
        assert kind_of(pdf, name) is PDF
    assert kind_of(b"\n \n" + pdf, "a.txt") is PDF
    assert kind_of(b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n" + pdf) is PDF
    assert kind_of(b"\x1b%-12345X@PJL\r\n" + pdf) is PDF
    assert kind_of(b"# A minimal PDF\n\n```\n" + pdf, "a.md") is MARKDOWN
    assert kind_of(b"%PDF-1.7\n" + bytes(range(256)), "a") is PDF
    assert kind_of(b"%PDF-1.7\n", "a.pdf") is PDF
    for raw in (b"{\\rtf1\\ansi x}", b"{\\rtf1 x}\n\0", b"\xef\xbb\xbf{\\rtf1{\\fonttbl}x}", b"{\\rtf\\ansi cut"):
        assert kind_of(raw) is RTF
    assert kind_of(b"{\\rtf1 x}", "a.txt") is RTF
    assert kind_of(b"{\\rtf1\\ansi is how it begins.", "a.txt") is PLAIN


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_kinds_of_text_are_known_in_any_unicode_encoding(encoding: str) -> None:
    assert kind_of("<!DOCTYPE html><p>x".encode(encoding)) is HTML
    assert kind_of('<?xml version="1.0"?><a/>'.encode(encoding)) is XML
    assert kind_of("From: a\nTo: b\nSubject: c\n\nx".encode(encoding)) is MAIL
    assert kind_of("# Title\n".encode(encoding), "a.md") is MARKDOWN
    assert kind_of(".TH LS 1\n.SH NAME\n".encode(encoding)) is TROFF


def test_logs_with_nuls_are_text() -> None:
    """A crash leaves some in the middle, a rotation any number before the first line; binary data has more."""
    line = b"2024-05-01 10:00:00 the ferry leaves\n"

    for raw in (
        line + b"\0" * 400 + line,
        b"\0" * 5000 + line * 3,
        line * 5 + b"\0\0\0\0" + line,
        line + b"\0",
        b"\0" * 100_000 + line,
    ):
        assert kind_of(raw, "a.log") is PLAIN
        out = steps.extract_text()(Document("a.log", raw=raw))
        assert isinstance(out, Document)
        assert out.text() == raw.replace(b"\0", b"").decode()
    for raw in (b"\0" * 100, b"\0", b"ab\0\x01\x02" * 9, bytes(range(256)), b"\0\1\2" * 99, b"key\0\0\0\0" * 50):
        assert kind_of(raw, "a.log") is UNKNOWN


def test_tar_archives_are_known() -> None:
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("a.txt")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"text"))
    assert kind_of(buffer.getvalue()) is TAR


def test_pages_are_known_behind_comments() -> None:
    for before in (b"<!-- a -->", b"<!-- a > -->\n" * 40, b'<?xml version="1.0"?>\n<!-- <html> -->', b" \n"):
        assert kind_of(before + b"<html><p>x") is HTML
        assert kind_of(before + b"<p>x") is not HTML
    assert kind_of(b"<header>x") is PLAIN
    assert kind_of(b'.\\" comment\r\n' * 40 + b".TH LS 1\r\n") is TROFF
    assert kind_of(b".\\\" comment\r\n.\r\n'\n\n.Dd May 1\n") is TROFF
