"""``extract_text`` of e-mail: which parts are its text, which are attachments, and what of it is not read."""

from __future__ import annotations

import base64
from email.message import EmailMessage
from typing import Any

import pytest

from ferryman import steps
from ferryman.document import Document
from ferryman.errors import BadDocument, Unsupported
from ferryman.steps import formats
from ferryman.steps.formats import MAIL, MBOX, kind_of
from ferryman.steps.formats.mail import mail, mbox
from tests.steps import corpus

REPORTS = corpus.FILES.parent / "reports"
FERRY = "The ferry leaves at nine."
LONG = " ".join(["The ferry leaves at nine, and again at noon."] * 3)


def part(kind: str, body: str | bytes = "", *headers: str) -> bytes:
    raw = body if isinstance(body, bytes) else body.encode()
    return "\r\n".join([f"Content-Type: {kind}", *headers, "", ""]).encode() + raw


def parts(kind: str, *inner: bytes, boundary: str = "x", stated: str | None = None) -> bytes:
    """A multipart; ``stated`` is the boundary that its header states, "" for none."""
    stated = boundary if stated is None else stated
    header = f'multipart/{kind}; boundary="{stated}"' if stated else f"multipart/{kind}"
    line = f"--{boundary}".encode()
    return part(header, b"".join(line + b"\r\n" + each + b"\r\n" for each in inner) + line + b"--\r\n")


def message(body: bytes) -> bytes:
    head = "From: A <a@example.org>\r\nTo: b@example.org\r\nSubject: trip\r\nMIME-Version: 1.0\r\n"
    return head.encode() + b"Date: Mon, 6 May 2024 10:00:00 +0200\r\n" + body


def read(raw: bytes, name: str = "m.eml", **options: Any) -> list[Document]:
    out = steps.extract_text(**options)(Document(name, raw=raw))
    return out if isinstance(out, list) else [out]


def text_of(raw: bytes) -> str:
    return formats.clean(mail(raw).text)


PLAIN, HTML = part("text/plain", FERRY), part("text/html", f"<p>{FERRY}</p>")
PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20))
DOCX = base64.b64encode(corpus.docx())
BASE64 = "Content-Transfer-Encoding: base64"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (parts("alternative", part("text/plain", " \r\n"), HTML), FERRY),
        (parts("alternative", part("text/plain", "\xa0\r\n\xa0"), HTML), FERRY),
        (parts("alternative", part("text/plain", "This mail is in HTML."), part("text/html", f"<p>{LONG}")), LONG),
        (parts("alternative", part("text/plain"), parts("related", HTML, boundary="y")), FERRY),
        (parts("mixed", parts("alternative", part("text/plain", " "), HTML, boundary="y")), FERRY),
        (parts("alternative", PLAIN, part("text/html", "<p>The ferry leaves at <b>nine</b>.")), FERRY),
        (parts("alternative", part("text/html", f"<p>{FERRY}"), part("text/plain", " ")), FERRY),
        (parts("alternative", part("text/enriched", "<bold>The ferry</bold> leaves at nine.")), FERRY),
        (parts("alternative", PLAIN, part("text/html", "<div>" * 100_000 + "deep")), FERRY),
    ],
    ids=["blank", "no-break blanks", "stub", "HTML with pictures", "nested", "alike", "HTML first", "enriched", "deep"],
)
def test_the_fuller_alternative_is_read(body: bytes, text: str) -> None:
    """Plain text, unless it is blank or a stub beside the HTML."""
    assert text_of(message(body)) == text


def test_the_reports_are_read() -> None:
    """A blank text part beside a full HTML part; a saved web page with its style and its picture."""
    for name in ("empty-plain.eml", "page.mht"):
        [doc] = read((REPORTS / name).read_bytes(), name)
        assert (doc.text(), doc.get("unread")) == (FERRY, None)


@pytest.mark.parametrize(
    "body",
    [
        parts("mixed", PLAIN, part("text/plain", "Second."), stated=""),
        parts("mixed", PLAIN, part("text/plain", "Second."), stated="other"),
        parts("mixed", parts("alternative", PLAIN, HTML, boundary="y", stated="z"), part("text/plain", "Second.")),
        parts("mixed", PLAIN, part("text/plain", "Second."), boundary="a=_b (c)", stated="wrong"),
        part("multipart/mixed", f"{FERRY}\r\n\r\nSecond."),
        part("multipart/mixed; boundary=x", f"<html><body><p>{FERRY}<p>Second."),
        parts("mixed", PLAIN, part("text/plain", "Second.")).removesuffix(b"--x--\r\n"),
    ],
    ids=["no boundary", "wrong", "wrong inside", "wrong with blanks", "no parts", "no parts but HTML", "no end"],
)
def test_parts_are_found_without_their_boundary(body: bytes) -> None:
    """By the first line that looks like one; what has no parts is a text."""
    assert text_of(message(body)).split("\n\n") in ([FERRY, "Second."], [FERRY, FERRY, "Second."])


@pytest.mark.parametrize(
    "attached",
    [
        part('application/octet-stream; name="play.docx"', DOCX, BASE64),
        part("application/octet-stream", DOCX, BASE64, 'Content-Disposition: attachment; filename="play.docx"'),
        part(
            'application/octet-stream; name="play.docx"', DOCX, BASE64, "Content-ID: <1>", "Content-Disposition: inline"
        ),
    ],
    ids=["named", "attached", "inline"],
)
@pytest.mark.parametrize("around", ["alternative", "related", "mixed", "signed", "report"])
def test_attachments_are_found_wherever_they_are(attached: bytes, around: str) -> None:
    """Directly inside an ``alternative``, where Apple's program and many others put them, too."""
    doc, play = read(message(parts(around, PLAIN, HTML, attached)))
    assert FERRY in doc.text()
    assert (play.id, play["file_name"]) == ("m.eml#play.docx", "play.docx")
    assert corpus.MUSE in play.text()


def test_texts_between_attachments_are_one_text() -> None:
    """Apple's program writes a part for each text before and after what is attached; lists append footers."""
    attached = part('application/pdf; name="a.pdf"', base64.b64encode(corpus.pdf(["One."])), BASE64)
    doc, file = read(
        message(parts("mixed", PLAIN, attached, part("text/html", "<p>After it."), part("text/plain", "--\nlist")))
    )
    assert (doc.text(), file.text()) == (f"{FERRY}\n\nAfter it.\n\n--\nlist", "One.")


def test_a_text_with_a_name_is_an_attachment() -> None:
    """Unless it stands where the text of a mail stands."""
    named = part('text/plain; name="notes.txt"', "notes")
    doc, notes = read(message(parts("mixed", PLAIN, named)))
    assert (doc.text(), notes.text(), notes["file_name"]) == (FERRY, "notes", "notes.txt")
    [doc] = read(message(named))
    assert doc.text() == "notes"
    doc, notes = read(message(part("text/plain", "notes", 'Content-Disposition: attachment; filename="notes.txt"')))
    assert (doc.text(), notes.text()) == ("", "notes")


@pytest.mark.parametrize(
    "shown",
    [
        part("image/png; name=image001.png", PICTURE, BASE64, "Content-ID: <1>"),
        part("image/png", PICTURE, BASE64, "Content-Location: https://example.org/a.png"),
        part("text/css", ".a { color: red }", "Content-Location: cid:css@mhtml.blink"),
        part("font/woff2", PICTURE, BASE64, "Content-Location: https://example.org/a.woff2"),
        part("text/javascript", "alert(1)", "Content-Location: https://example.org/a.js"),
    ],
    ids=["picture", "picture of a page", "style", "font", "script"],
)
def test_what_a_page_shows_is_no_document(shown: bytes) -> None:
    """Neither a document of its own nor a rejection."""
    [doc] = read(message(parts("related", HTML, shown)))
    assert (doc.text(), doc.get("unread")) == (FERRY, None)


def test_a_picture_that_is_attached_is_a_document() -> None:
    """It is rejected by its kind: nobody took it for a part of the text."""
    attached = part("image/png; name=a.png", PICTURE, BASE64, "Content-ID: <1>", "Content-Disposition: attachment")
    _, picture = read(message(parts("mixed", PLAIN, attached)))
    assert isinstance(picture.refused, Unsupported)


def test_frames_of_a_saved_page_are_text() -> None:
    """Each is a part beside the page."""
    frame = part("text/html", "<p>In the frame.", "Content-Location: https://example.org/frame")
    assert text_of(message(parts("related", HTML, frame))) == f"{FERRY}\n\nIn the frame."
    start = b'Content-Type: multipart/related; start="<root>"; '
    other_start = parts("related", frame, part("text/html", f"<p>{FERRY}", "Content-ID: <root>"))
    assert FERRY in text_of(message(other_start.replace(b"Content-Type: multipart/related; ", start, 1)))


@pytest.mark.parametrize(
    ("enriched", "text"),
    [
        ("<bold>The ferry</bold>\nleaves at\n\nnine.", "The ferry leaves at\nnine."),
        ("<color><param>red</param>The ferry</color> leaves << at > nine.", "The ferry leaves < at > nine."),
        ("<FontFamily><Param>Times</Param>The ferry<nl>leaves</FontFamily>", "The ferry\nleaves"),
    ],
)
def test_enriched_text(enriched: str, text: str) -> None:
    """Without its commands; one line end is a blank."""
    assert text_of(message(part("text/enriched", enriched))) == text
    assert text_of(message(parts("alternative", part("text/plain", " "), part("text/richtext", enriched)))) == text


@pytest.mark.parametrize("kind", ["delivery-status", "disposition-notification", "feedback-report"])
def test_reports_say_why(kind: str) -> None:
    """The headers of a report are text."""
    status = part(
        f"message/{kind}", "Reporting-MTA: dns; example.org\r\n\r\nFinal-Recipient: rfc822; b@example.org\r\n"
    )
    returned = part("text/rfc822-headers", "Subject: trip\r\n")
    text = text_of(message(parts("report", PLAIN, status, returned)))
    assert text.startswith(FERRY)
    assert "Final-Recipient: rfc822; b@example.org" in text
    assert "Subject: trip" in text


@pytest.mark.parametrize(
    ("charset", "words"),
    [("iso-8859-2", "Zażółć gęślą jaźń"), ("koi8-r", "Паром отходит в девять"), ("iso-2022-jp", "船は九時に出ます。")],
)
def test_attachments_have_the_charset_of_their_part(charset: str, words: str) -> None:
    """Text and HTML that state none themselves."""
    raw = words.encode(charset)
    plain = part(f'text/plain; charset={charset}; name="a.txt"', base64.b64encode(raw), BASE64)
    page = part(f'text/html; charset={charset}; name="a.html"', base64.b64encode(b"<p>" + raw), BASE64)
    _, first, second = read(message(parts("mixed", PLAIN, plain, page)))
    assert (first.text(), second.text()) == (words, words)
    assert (
        text_of(message(parts("alternative", part("text/plain"), part(f"text/html; charset={charset}", b"<p>" + raw))))
        == words
    )


@pytest.mark.parametrize(
    ("header", "title"),
    [
        ("Größe".encode(), "Größe"),
        ("Größe und Gewicht".encode("cp1252"), "Größe und Gewicht"),
        (b"=?gb2312?B?" + base64.b64encode("镕基".encode("gb18030")) + b"?=", "镕基"),
        (b"=?ks_c_5601-1987?B?" + base64.b64encode("똠방각하".encode("cp949")) + b"?=", "똠방각하"),
        (b"=?iso-8859-8-i?Q?=E4=EE?= =?ISO-8859-1?Q?_caf=E9?=", "המ café"),
        (b"=?utf-8?Q?Gr=C3?= =?UTF-8?Q?=B6=C3=9Fe?=", "Größe"),
        (b"=?utf-8*de?B?R3LDtsOfZQ?=", "Größe"),
        (b"=?windows-1252?Q?a=2C_b?= and =?us-ascii?Q?c?=", "a, b and c"),
        (b"1 =?= 2 =?x? =?utf-8?X?a?=", "1 =?= 2 =?x? =?utf-8?X?a?="),
    ],
    ids=range(9),
)
def test_headers_in_any_encoding(header: bytes, title: str) -> None:
    """Encoded words by the names of the web, cut in the middle of a character; bytes that a header may not have."""
    raw = (
        message(PLAIN)
        .replace(b"trip", header)
        .replace(b"To: b@", b"To: " + header + b" <b@")
        .replace(b"org\r\nSub", b"org>\r\nSub")
    )
    fields = mail(raw).fields
    assert fields["title"] == title
    assert "b@example.org" in fields["to"]


def test_what_is_not_read_is_named() -> None:
    """An invitation beside its text, encrypted text, attachments that ``depth`` leaves out."""
    calendar = part("text/calendar; method=REQUEST", "BEGIN:VCALENDAR")
    assert mail(message(parts("alternative", PLAIN, HTML, calendar))).fields["unread"] == ["calendar"]
    encrypted = parts(
        "encrypted", part("application/pgp-encrypted", "Version: 1"), part("application/octet-stream", "----")
    )
    assert mail(message(encrypted)).fields["unread"] == ["encrypted text"]
    deep = parts("alternative", PLAIN, part("text/html", "<div>" * 100_000 + "deep"))
    assert mail(message(deep)).fields["unread"] == ["HTML"]
    attached = part('text/plain; name="notes.txt"', "notes")
    [doc] = read(message(parts("mixed", PLAIN, attached)), depth=0)
    assert doc["unread"] == ["attachments"]
    assert "unread" not in mail(message(parts("alternative", PLAIN, HTML, part("text/x-amp-html", "<p>")))).fields


@pytest.mark.parametrize("kind", ["rfc822", "global", "news"])
def test_messages_in_a_message_are_documents(kind: str) -> None:
    """With fields of their own; one that is only a link to a message is named."""
    inner = part(f"message/{kind}", message(PLAIN))
    doc, other = read(message(parts("mixed", part("text/plain", "See below."), inner)))
    assert (doc.text(), other.text(), other["title"]) == ("See below.", FERRY, "trip")
    link = part("message/external-body; access-type=URL", "Content-Type: text/plain\r\n\r\n")
    assert mail(message(parts("mixed", PLAIN, link))).fields["unread"] == ["linked files"]


def test_signatures_are_no_attachments() -> None:
    """Of a signed mail only what is signed is read."""
    signature = part("application/pgp-signature; name=signature.asc", "-----BEGIN PGP SIGNATURE-----")
    [doc] = read(message(parts("signed", PLAIN, signature)))
    assert doc.text() == FERRY


def test_html_that_cannot_be_read_is_refused_if_there_is_nothing_else() -> None:
    with pytest.raises(BadDocument, match="its elements nest too deep"):
        read(message(part("text/html", "<div>" * 100_000 + "deep")))


# -- mailboxes -------------------------------------------------------------------------------------

LINE = b"From a@example.org Mon May  6 10:00:00 2024\r\n"


def test_each_message_of_a_mailbox_is_a_document() -> None:
    """With its own fields and attachments; the mailbox says how many."""
    attached = parts("mixed", PLAIN, part('text/plain; name="notes.txt"', "notes"))
    raw = LINE + message(PLAIN) + b"\r\n\r\n" + LINE + message(attached) + b"\r\n\r\n" + LINE + message(HTML)
    box, first, second, notes, third = read(raw, "archive")
    assert (box.text(), box["messages"], box["content_type"]) == ("", 3, MBOX.type)
    assert {doc.text() for doc in (first, second, third)} == {FERRY}
    assert (first["title"], second.parent_id, notes.id) == ("trip", "archive", f"{second.id}#notes.txt")
    assert len({first.id, second.id, third.id}) == 3


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"one\n\n>From here on\n>>From there\n", "one\n\nFrom here on\n>From there"),
        (b"one\n\nFrom here on it is 10:00\n", "one\n\nFrom here on it is 10:00"),
        (b"one\n\nFrom Monday on Mon 2024\nno header\n", "one\n\nFrom Monday on Mon 2024\nno header"),
    ],
    ids=["quoted", "a sentence", "nearly a line"],
)
def test_lines_of_a_message_that_look_like_a_mailbox(body: bytes, text: str) -> None:
    """Quoted ones lose their quotation mark; others are text unless a date and a header are there."""
    line = LINE.replace(b"\r\n", b"\n")
    head = b"From: a@example.org\nSubject: x\n\n"
    found = mbox(line + head + body + b"\n" + line + head + b"two\n")
    assert [text_of(part.raw) for part in found.parts] == [text, "two"]


def test_mailboxes_are_told_from_mails() -> None:
    """One message with the line of a mailbox is a mail, unless it is named a mailbox."""
    one = LINE + message(PLAIN)
    assert kind_of(one, "m.eml") == MAIL
    assert kind_of(one, "m.mbox") == MBOX
    assert kind_of(one + b"\r\n\r\n" + one, "m") == MBOX
    assert (
        kind_of(b"From Monday on, in 2024, the ferry leaves at nine.\nNote: bring a coat.\n", "a.txt") == formats.PLAIN
    )
    assert text_of(one) == FERRY


def test_a_mailbox_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferryman.limits.UNPACK_MEMBERS", 2)
    with pytest.raises(BadDocument, match=r"mailbox: it has 3 messages, more than 2\. Split it"):
        read((LINE + message(PLAIN) + b"\r\n\r\n") * 3)


def test_mails_that_python_makes() -> None:
    """As the standard library writes them."""
    made = EmailMessage()
    made["Subject"], made["From"] = "trip", "a@example.org"
    made.set_content(" ")
    made.add_alternative(f"<p>{FERRY}</p>", subtype="html")
    made.add_attachment("notes", filename="notes.txt")
    doc, notes = read(made.as_bytes())
    assert (doc.text(), notes.text()) == (FERRY, "notes\n")


# -- bytes that are made to take long --------------------------------------------------------------

MEGABYTE = 1_000_000


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "line",
    [
        "From " + "Mon " * 50 + "2" * 100,
        "From " + " " * 200,
        "--" + "a" * 199,
        "--a" + " " * 300,
        "=?utf-8?q?",
        "<param>",
        "<<param><" + "a" * 59,
        ">" * 999,
        "<",
    ],
)
@pytest.mark.parametrize("end", ["\n", "\n\n", ""])
def test_bytes_that_are_made_to_take_long(line: str, end: str) -> None:
    """A megabyte of the beginnings of what a mail is searched for takes no longer than any other megabyte."""
    body = (line + end) * (MEGABYTE // len(line + end))
    assert kind_of(body.encode(), "m.eml") == MAIL
    mbox(body.encode())
    for kind in ("multipart/mixed", "text/enriched", "text/plain"):
        assert mail(message(part(kind, body))).fields["title"] == "trip"
