"""``extract_text`` of what Outlook saves (.msg), and of comments and shapes in XLS: compound files."""

from __future__ import annotations

import re
import struct
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Any

import pytest

from ferryman import steps
from ferryman.document import Document
from ferryman.errors import BadDocument
from ferryman.steps.formats import MSG, TNEF, XLS, kind_of
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


# -- winmail.dat -----------------------------------------------------------------------------------


def listed(**values: bytes) -> bytes:
    """A list of properties in a winmail.dat: number and type in hexadecimal -> value."""
    out = struct.pack("<I", len(values))
    for name, value in values.items():
        number, type_ = int(name[1:5], 16), int(name[5:], 16)
        size = b"" if type_ in (0x03, 0x40) else struct.pack("<II", 1, len(value))
        out += struct.pack("<HH", type_, number) + size + value.ljust(-(-len(value) // 4) * 4, b"\0")
    return out


def winmail(*attributes: tuple[int, bytes], key: int = 363) -> bytes:
    """A winmail.dat of attributes: number, content."""
    return struct.pack("<IH", 0x223E9F78, key) + b"".join(
        struct.pack("<BII", 1, number | 0x60000, len(content)) + content + struct.pack("<H", sum(content) & 0xFFFF)
        for number, content in attributes
    )


FERRY_16 = FERRY.encode("utf-16-le")
INNER = winmail((0x9003, listed(x0037001F="inside".encode("utf-16-le"), x1000001F=FERRY_16)))
NAMED = (
    struct.pack("<IHH16sII", 2, 0x1F, 0x8001, bytes(16), 1, 6)
    + b"a\0b\0\0\0\0\0"
    + struct.pack("<II", 1, 2)
    + b"x\0\0\0"
)
NAMED += listed(x1000001F=FERRY_16)[4:]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (winmail((0x9003, listed(x1000001F=FERRY_16))), FERRY),
        (winmail((0x9003, listed(x10130102=f"<p>{FERRY}".encode())), key=0x695E), FERRY),
        (winmail((0x9003, listed(x10090102=COMPRESSED))), "hello world"),
        (winmail((0x9007, struct.pack("<II", 1251, 0)), (0x800C, "Паром отходит\0".encode("cp1251"))), "Паром отходит"),
        (winmail((0x800C, b"old"), (0x9003, listed(x1000001F=FERRY_16))), FERRY),
        (winmail((0x9003, NAMED)), FERRY),
        (winmail((0x9003, listed(x1000001F=FERRY_16) + b"\1")), FERRY),
        (winmail(), ""),
    ],
    ids=["plain", "HTML", "RTF", "code page", "both", "named property", "breaks off", "nothing"],
)
def test_the_text_in_a_winmail_dat(raw: bytes, text: str) -> None:
    """As in a message; it may be all that there is of a mail."""
    [doc] = read(raw)
    assert (doc.text(), doc["content_type"], doc.get("unread")) == (text, TNEF.type, None)


def test_attachments_in_a_winmail_dat_are_children_of_a_mail() -> None:
    """Which has no other attachments; by their long names; a message has a text of its own."""
    packed = winmail(
        (0x9003, listed(x0037001F="trip".encode("utf-16-le"), x00390040=struct.pack("<Q", SENT))),
        *((0x9002, bytes(14)), (0x8010, b"PLAY~1.DOC\0"), (0x800F, corpus.docx())),
        (0x9005, listed(x3707001F="play.docx".encode("utf-16-le"))),
        *((0x9002, bytes(14)), (0x8010, b"notes.txt\0"), (0x800F, b"notes")),
        *((0x9002, bytes(14)), (0x9005, listed(x37050003=struct.pack("<i", 5), x3701000D=bytes(16) + INNER))),
        *((0x9002, bytes(14)), (0x9005, listed(x37050003=struct.pack("<i", 7)))),
    )
    mail = EmailMessage()
    mail["Subject"], mail["From"] = "trip", "a@example.org"
    mail.set_content("See there.")
    mail.add_attachment(packed, maintype="application", subtype="ms-tnef", filename="winmail.dat")
    docs = steps.extract_text()(Document("m.eml", raw=mail.as_bytes()))
    assert isinstance(docs, list)
    letter, box, play, notes, other = docs
    assert (letter.text().strip(), box.id, box["title"], box["created"]) == (
        "See there.", "m.eml#winmail.dat", "trip", "2024-05-06T08:00:00Z"
    )  # fmt: skip
    assert (play.id, play["title"], notes.text()) == ("m.eml#winmail.dat#play.docx", "Henry V", "notes")
    assert (other.text(), other["title"], box["unread"]) == (FERRY, "inside", ["linked files"])


def test_a_winmail_dat_that_breaks_off_is_refused() -> None:
    """Or is damaged."""
    whole = winmail((0x9003, listed(x1000001F=FERRY_16)), (0x9002, bytes(14)), (0x800F, b"x" * 99))
    for raw in (whole[:-30], whole.replace(FERRY_16[:8], b"\xff" * 8)[:60], winmail((0x9003, b"\1"))):
        with pytest.raises(BadDocument, match=r"^m\.msg: Outlook attachment \(winmail\.dat\): it "):
            read(raw)


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
