"""``extract_text`` of what Outlook saves (.msg), and of comments and shapes in XLS: compound files."""

from __future__ import annotations

import re
import struct
from datetime import UTC, datetime
from typing import Any

import pytest

from ferryman import steps
from ferryman.document import Document
from ferryman.errors import BadDocument
from ferryman.steps.formats import MSG, XLS, kind_of
from ferryman.steps.formats.mail import msg
from ferryman.steps.formats.spreadsheets import xls
from tests.steps import corpus

REPORTS = corpus.FILES.parent / "reports"
FERRY = "The ferry leaves at nine."


def properties(header: int, **values: bytes) -> bytes:
    """Properties of fixed size: number and type in hexadecimal -> eight bytes."""
    entries = (bytes.fromhex(name[1:])[::-1] + bytes(4) + value.ljust(8, b"\0") for name, value in values.items())
    return bytes(header) + b"".join(entries)


def text(number: str, value: str) -> dict[str, bytes]:
    return {f"__substg1.0_{number}001F": value.encode("utf-16-le")}


def old_text(number: str, value: bytes) -> dict[str, bytes]:
    return {f"__substg1.0_{number}001E": value}


def binary(number: str, value: bytes) -> dict[str, bytes]:
    return {f"__substg1.0_{number}0102": value}


def within(folder: str, streams: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{folder}/{name}": content for name, content in streams.items()}


def attached(number: int, *streams: dict[str, bytes], method: int = 1) -> dict[str, bytes]:
    inner = {"__properties_version1.0": properties(8, x37050003=struct.pack("<i", method))}
    for each in streams:
        inner |= each
    return within(f"__attach_version1.0_#{number:08X}", inner)


SENT = int((datetime(2024, 5, 6, 8, tzinfo=UTC) - datetime(1601, 1, 1, tzinfo=UTC)).total_seconds()) * 10**7
HEAD = text("0037", "trip") | text("0C1A", "Ann Captain") | text("5D01", "a@example.org") | text("0E04", "B; C")
TIMES = properties(32, x00390040=struct.pack("<Q", SENT))


def message(*streams: dict[str, bytes], head: bytes = TIMES) -> bytes:
    all_streams = {"__properties_version1.0": head, **HEAD}
    for each in streams:
        all_streams |= each
    return corpus.compound(all_streams)


def read(raw: bytes, **options: Any) -> list[Document]:
    out = steps.extract_text(**options)(Document("m.msg", raw=raw))
    return out if isinstance(out, list) else [out]


def code_page(number: int, **more: bytes) -> bytes:
    return properties(32, x3FFD0003=struct.pack("<i", number), x3FDE0003=struct.pack("<i", number), **more)


def uncompressed(rtf: bytes) -> bytes:
    return struct.pack("<II4sI", len(rtf) + 12, len(rtf), b"MELA", 0) + rtf


# The example of [MS-OXRTFCP], 3.1.1.
COMPRESSED = bytes.fromhex(
    "2d0000002b0000004c5a4675f1c5c7a703000a007263706731323542320af32068656c090020627705b06c647d0a800fa0"
)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (message(text("1000", FERRY)), FERRY),
        (message(text("1000", " "), binary("1013", f"<p>{FERRY}".encode())), FERRY),
        (message(text("1013", f"<p>{FERRY}")), FERRY),
        (message(text("1000", FERRY), binary("1013", f"<p>{FERRY}".encode())), FERRY),
        (message(old_text("1000", "Паром отходит".encode("cp1251")), head=code_page(1251)), "Паром отходит"),
        (message(old_text("1000", "船は九時に".encode("cp932")), head=code_page(932)), "船は九時に"),
        (message(old_text("1000", "Größe".encode()), head=code_page(65001)), "Größe"),
        (message(binary("1013", "<p>Größe".encode("cp1252")), head=code_page(1252)), "Größe"),
        (message(binary("1009", uncompressed(b"{\\rtf1 " + FERRY.encode() + b"}"))), FERRY),
        (message(binary("1009", COMPRESSED)), "hello world"),
        (message(text("1000", FERRY * 300)), FERRY * 300),
    ],
    ids=["plain", "blank", "HTML", "both", "cp1251", "cp932", "UTF-8", "HTML of cp1252", "RTF", "packed RTF", "long"],
)
def test_the_text_of_a_message(raw: bytes, words: str) -> None:
    """Plain text, HTML or RTF, in UTF-16 or the code page that the message states."""
    [doc] = read(raw)
    assert doc.text() == words
    assert doc["content_type"] == MSG.type


def test_fields_of_a_message() -> None:
    """As those of a mail; an address inside an organisation is left out."""
    content = msg(message(text("1000", FERRY)))
    assert content.fields == {
        "title": "trip",
        "author": "Ann Captain <a@example.org>",
        "to": "B; C",
        "created": "2024-05-06T08:00:00Z",
    }
    inside = msg(message(text("5D01", ""), text("0C1F", "/O=EXAMPLE/OU=FIRST/CN=A"), head=bytes(32)))
    assert (inside.fields["author"], inside.text) == ("Ann Captain", "")


def test_attachments_of_a_message_are_children() -> None:
    """By their long names; a picture that the text shows is none; a message has children of its own."""
    inner = {"__properties_version1.0": properties(24), **HEAD, **text("1000", "inside")}
    inner |= attached(0, text("3707", "deep.txt"), binary("3701", b"deep"))
    raw = message(
        text("1000", FERRY),
        attached(0, text("3704", "PLAY~1.DOC"), text("3707", "play.docx"), binary("3701", corpus.docx())),
        attached(1, text("3704", "a.txt"), binary("3701", b"notes")),
        attached(2, text("370E", "image/png"), text("3712", "image001"), binary("3701", b"\x89PNG")),
        attached(3, within("__substg1.0_3701000D", inner), method=5),
    )
    doc, play, notes, other, deep = read(raw)
    assert (doc.text(), play.id, play["title"], notes.text()) == (FERRY, "m.msg#play.docx", "Henry V", "notes")
    assert (other.text(), other["title"], other["author"]) == ("inside", "trip", "Ann Captain <a@example.org>")
    assert (deep.id, deep.text()) == (f"{other.id}#deep.txt", "deep")


@pytest.mark.parametrize(
    ("streams", "unread"),
    [
        (attached(0, text("3707", "a.docx"), method=7), "linked files"),
        (attached(0, within("__substg1.0_3701000D", {"CONTENTS": b"x"}), method=6), "embedded files"),
        (text("001A", "IPM.Contact"), "contact details"),
        (text("001A", "IPM.Appointment"), "calendar"),
    ],
)
def test_what_of_a_message_is_not_read_is_named(streams: dict[str, bytes], unread: str) -> None:
    """Files that are elsewhere, objects of other programs, properties of what is not a mail."""
    [doc] = read(message(text("1000", FERRY), streams))
    assert (doc.text(), doc["unread"]) == (FERRY, [unread])


def test_broken_messages_are_refused_as_such() -> None:
    """Not as a file of an older Office program."""
    whole = message(text("1000", FERRY), attached(0, binary("3701", b"x" * 5000)))
    for raw in (
        (REPORTS / "letter.msg").read_bytes(),
        whole[:1200],
        whole[:512] + bytes(len(whole) - 512) + "__substg1.0_".encode("utf-16-le"),
    ):
        assert kind_of(raw, "m.msg") == MSG
        with pytest.raises(BadDocument, match=r"^m\.msg: Outlook message: it .*broken") as refused:
            read(raw)
        assert not re.search("(Value|Index|Struct)Error", str(refused.value)), "words of the programming language"


def test_a_message_with_an_old_workbook_is_a_message() -> None:
    """The names of the streams in its attachment do not count."""
    raw = message(
        text("1000", FERRY), attached(0, text("3707", "a.xls"), binary("3701", corpus.shipped()["testEXCEL.xls"]))
    )
    assert (kind_of(raw), kind_of(corpus.shipped()["testEXCEL.xls"])) == (MSG, XLS)
    doc, book = read(raw)
    assert (doc.text(), book["pages"]) == (FERRY, 3)


# -- workbooks of before 2007 ----------------------------------------------------------------------


def record(number: int, data: bytes) -> bytes:
    return struct.pack("<HH", number, len(data)) + data


def workbook(*records: bytes) -> bytes:
    """A workbook of one sheet, with these records on it."""
    start = record(0x809, struct.pack("<HHHHII", 0x600, 5, 0, 0, 0, 6))
    name = b"One"
    sheet = record(0x809, struct.pack("<HHHHII", 0x600, 0x10, 0, 0, 0, 6))
    sheet += record(0x203, struct.pack("<HHHd", 0, 0, 0, 7.0)) + b"".join(records) + record(0x0A, b"")
    at = len(start) + 4 + 8 + len(name) + 4
    listed = record(0x85, struct.pack("<IBBBB", at, 0, 0, len(name), 0) + name)
    return corpus.compound({"Workbook": (start + listed + record(0x0A, b"") + sheet).ljust(4096, b"\0")})


def shape(words: str, *pieces: bytes) -> bytes:
    continued = pieces or (b"\1" + words.encode("utf-16-le"),)
    return record(0x1B6, bytes(10) + struct.pack("<HH4x", len(words), 16)) + b"".join(
        record(0x3C, each) for each in continued
    )


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([shape("check this price")], ["check this price"]),
        ([shape("Größe", b"\0" + "Größe".encode("latin-1"))], ["Größe"]),
        ([shape("one two", b"\0one ", b"\1" + "two".encode("utf-16-le")), shape("three")], ["one two", "three"]),
        ([record(0x14, struct.pack("<HB", 12, 0) + b"&LFerry &&Co.")], ["Ferry &Co."]),
        ([record(0x15, struct.pack("<HB", 7, 0) + b"Page &P")], []),
        ([], []),
    ],
    ids=["UTF-16", "one byte", "continued", "header", "page", "none"],
)
def test_comments_and_shapes_of_old_workbooks(records: list[bytes], words: list[str]) -> None:
    """After the cells of all sheets."""
    content = xls(workbook(*records))
    assert content.text.strip() == "\n\n".join(["One\n7", *words])
    assert "unread" not in content.fields
