"""Mails as Outlook, Thunderbird, Gmail and Apple Mail write them, and what Chrome saves of a page."""

from __future__ import annotations

import base64
import quopri
import struct
from typing import Final

from tests.steps.corpus.producers import Sample
from tests.steps.corpus.producers.office import google_docs

PICTURE: Final = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(48)).decode()
HEAD: Final = (
    "From: Ann Captain <ann@example.org>\r\nTo: Bob <bob@example.org>\r\nSubject: Sailing on Monday\r\n"
    "Date: Mon, 6 May 2024 10:00:00 +0200\r\nMessage-ID: <1@example.org>\r\nMIME-Version: 1.0\r\n"
)
SEEN: Final = "Sailing on Monday Ann Captain <ann@example.org> Bob <bob@example.org> 2024-05-06T10:00:00+02:00"


def part(kind: str, body: str, *more: str, encoding: str = "7bit") -> str:
    """A part with its headers; the body is encoded."""
    if encoding == "base64":
        body = base64.encodebytes(body.encode()).decode().replace("\n", "\r\n")
    elif encoding == "quoted-printable":
        body = quopri.encodestring(body.encode()).decode().replace("\n", "\r\n")
    head = [f"Content-Type: {kind}", f"Content-Transfer-Encoding: {encoding}", *more]
    return "\r\n".join(head) + f"\r\n\r\n{body}\r\n"


def multipart(kind: str, boundary: str, *parts: str, more: str = "") -> str:
    inner = "".join(f"--{boundary}\r\n{each}" for each in parts)
    return f'Content-Type: multipart/{kind};{more}\r\n\tboundary="{boundary}"\r\n\r\n{inner}--{boundary}--\r\n'


def outlook() -> bytes:
    """An HTML of Word beside a plain text; the logo of the signature is shown in it; a document is attached."""
    html = (
        '<html xmlns:o="urn:schemas-microsoft-com:office:office"><head><meta http-equiv=Content-Type content="text/html;'
        ' charset=us-ascii"><style><!-- p.MsoNormal {margin:0cm;} --></style><!--[if gte mso 9]><xml><o:shapedefaults/>'
        "</xml><![endif]--></head><body lang=EN-GB><div class=WordSection1><p class=MsoNormal>Dear Bob,<o:p></o:p></p>"
        "<p class=MsoNormal><o:p>&nbsp;</o:p></p><p class=MsoNormal>The ferry leaves at nine&#8230;<o:p></o:p></p>"
        '<p class=MsoNormal><img src="cid:image001.png@01DA"></p></div></body></html>'
    )
    plain = "Dear Bob,\r\n\r\n \r\n\r\nThe ferry leaves at nine…\r\n"
    texts = multipart(
        "alternative",
        "----=_NextPart_002",
        part('text/plain; charset="utf-8"', plain, encoding="base64"),
        part('text/html; charset="us-ascii"', html, encoding="quoted-printable"),
    )
    logo = part('image/png; name="image001.png"', PICTURE, "Content-ID: <image001.png@01DA>").replace("7bit", "base64")
    shown = multipart("related", "----=_NextPart_001", texts, logo, more='\r\n\ttype="multipart/alternative";')
    letter = base64.encodebytes(google_docs()).decode().replace("\n", "\r\n")
    attached = part(
        'application/vnd.openxmlformats-officedocument.wordprocessingml.document; name="times.docx"',
        letter,
        'Content-Disposition: attachment; filename="times.docx"; size=1000',
    ).replace("7bit", "base64")
    return (
        HEAD + "X-Mailer: Microsoft Outlook 16.0\r\n" + multipart("mixed", "----=_NextPart_000", shown, attached)
    ).encode()


def thunderbird() -> bytes:
    """Text that flows (RFC 3676), with a quotation and a signature; an answer."""
    body = "On 05.05.2024 Bob wrote:\r\n> When does it leave?\r\n\r\nAt nine. It is never late, \r\nbut be there in time.\r\n\r\n-- \r\nAnn\r\n"
    head = HEAD + "User-Agent: Mozilla Thunderbird\r\nContent-Language: en-GB\r\nIn-Reply-To: <0@example.org>\r\n"
    return (head + part("text/plain; charset=UTF-8; format=flowed", body)).encode()


def gmail() -> bytes:
    """Both forms in UTF-8; the subject in encoded words; the quotation in a block of its own."""
    plain = "Salut Bob,\r\n\r\nLe bac part à *neuf* heures 🚢\r\n"
    html = '<div dir="ltr">Salut Bob,<div><br></div><div>Le bac part à <b>neuf</b> heures 🚢</div></div>'
    head = HEAD.replace("Sailing on Monday", "=?UTF-8?B?RMOpcGFydCBsdW5kaQ==?=").replace(
        "Ann Captain", "=?UTF-8?Q?Ren=C3=A9e?="
    )
    texts = multipart(
        "alternative",
        "000000000000a1b2c3",
        part('text/plain; charset="UTF-8"', plain, encoding="quoted-printable"),
        part('text/html; charset="UTF-8"', html, encoding="quoted-printable"),
    )
    return (head + texts).encode()


def apple_mail() -> bytes:
    """A picture and a document between two texts, in the HTML form; the plain form has only the texts."""
    html = (
        '<html><head><meta http-equiv="content-type" content="text/html; charset=utf-8"></head><body style='
        '"overflow-wrap: break-word;">Here is the plan:<div><br></div></body></html>'
    )
    mixed = multipart(
        "mixed",
        "Apple-Mail=_2",
        part("text/html; charset=utf-8", html),
        part('text/plain; name="plan.txt"', "Load the ferry", 'Content-Disposition: attachment; filename="plan.txt"'),
        part("text/html; charset=us-ascii", "<html><body><div>Greetings</div></body></html>"),
    )
    plain = part("text/plain; charset=utf-8", "Here is the plan:\r\n\r\n\r\n\r\nGreetings\r\n")
    return (
        HEAD + "X-Mailer: Apple Mail (2.3774)\r\n" + multipart("alternative", "Apple-Mail=_1", plain, mixed)
    ).encode()


def takeout() -> bytes:
    """The mailbox that Gmail exports: two mails."""
    line = "From 1798@xxx Mon May 06 08:00:00 +0000 2024\n"
    second = (HEAD.replace("<1@", "<2@") + part("text/plain; charset=utf-8", ">From here it is far.")).encode()
    return b"\n".join((line.encode() + each.replace(b"\r\n", b"\n")) for each in (thunderbird(), second))


def chrome() -> bytes:
    """A page saved as one file, with its style and picture, each by its address."""
    html = (
        '<!DOCTYPE html><html lang="en"><head><meta http-equiv="Content-Type" content="text/html; charset=UTF-8"><title>'
        'Harbour</title><link rel="stylesheet" href="cid:css-1@mhtml.blink"></head><body><h1>Harbour</h1><p>The ferry '
        'leaves at nine.</p><img src="https://example.org/a.png" alt="a ship"></body></html>'
    )
    head = (
        "From: <Saved by Blink>\r\nSnapshot-Content-Location: https://example.org/\r\nSubject: Harbour\r\n"
        "Date: Mon, 6 May 2024 10:00:00 -0000\r\nMIME-Version: 1.0\r\n"
    )
    place = "Content-Location: https://example.org/"
    saved = multipart(
        "related",
        "----MultipartBoundary--abc----",
        part("text/html", html, "Content-ID: <frame-1@mhtml.blink>", place, encoding="quoted-printable"),
        part("text/css", "h1 { color: navy; }", "Content-Location: cid:css-1@mhtml.blink", encoding="quoted-printable"),
        part("image/png", PICTURE, place + "a.png").replace("7bit", "base64"),
        more='\r\n\ttype="text/html";',
    )
    return (head + saved).encode()


def winmail() -> bytes:
    """What Outlook packs text and attachments into, for a program that it takes for its own: winmail.dat."""

    def attribute(number: int, content: bytes, level: int = 1) -> bytes:
        return struct.pack("<BII", level, number, len(content)) + content + struct.pack("<H", sum(content) & 0xFFFF)

    def properties(*listed: tuple[int, int, bytes]) -> bytes:
        each = (
            struct.pack("<HHII", type_, number, 1, len(value)) + value.ljust(-(-len(value) // 4) * 4, b"\0")
            for type_, number, value in listed
        )
        return struct.pack("<I", len(listed)) + b"".join(each)

    html = "<html><body><p>Dear Bob,</p><p>The ferry leaves at nine…</p></body></html>".encode()
    title = "Sailing on Monday\0".encode("utf-16-le")
    return (
        struct.pack("<IH", 0x223E9F78, 0x695E)
        + attribute(0x00089006, struct.pack("<I", 0x10000))
        + attribute(0x00069007, struct.pack("<II", 1252, 0))
        + attribute(0x00069003, properties((0x1F, 0x0037, title), (0x102, 0x1013, html)))
        + attribute(0x00069002, struct.pack("<HIHHI", 1, 0xFFFFFFFF, 0, 0, 0), 2)
        + attribute(0x00018010, b"TIMES~1.DOC\0", 2)
        + attribute(0x0006800F, google_docs(), 2)
        + attribute(0x00069005, properties((0x1F, 0x3707, "times.docx\0".encode("utf-16-le"))), 2)
    )


def samples() -> list[Sample]:
    times = "Harbour Le bac part à neuf heures 🚢. Horaires first line second line Port Heure Ostende 9 h"
    return [
        Sample(
            "outlook.eml", "Outlook", outlook(), f"Dear Bob, The ferry leaves at nine… {times}", f"{SEEN} times.docx"
        ),
        Sample(
            "winmail.dat",
            "Outlook",
            winmail(),
            f"Dear Bob, The ferry leaves at nine… {times}",
            "Sailing on Monday times.docx",
        ),
        Sample(
            "thunderbird.eml",
            "Thunderbird",
            thunderbird(),
            "On 05.05.2024 Bob wrote: > When does it leave? At nine. It is never late, but be there in time. -- Ann",
            SEEN,
        ),
        Sample(
            "gmail.eml",
            "Gmail",
            gmail(),
            "Salut Bob, Le bac part à *neuf* heures 🚢",
            SEEN.replace("Sailing on Monday", "Départ lundi").replace("Ann Captain", "Renée"),
        ),
        Sample(
            "apple.eml", "Apple Mail", apple_mail(), "Here is the plan: Greetings Load the ferry", f"{SEEN} plan.txt"
        ),
        Sample(
            "takeout.mbox",
            "Gmail",
            takeout(),
            "On 05.05.2024 Bob wrote: > When does it leave? At nine. It is never late, but be there in time. -- Ann "
            "From here it is far.",
            SEEN,
        ),
        Sample(
            "chrome.mhtml",
            "Chrome",
            chrome(),
            "Harbour The ferry leaves at nine.",
            "Harbour Saved by Blink 2024-05-06T10:00:00",
        ),
    ]
