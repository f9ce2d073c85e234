"""E-mail (RFC 5322), saved web pages (MHTML) and mailboxes, read by the standard library."""

from __future__ import annotations

import base64
import binascii
import email
import re
from collections.abc import Callable, Iterable, Iterator
from email.message import EmailMessage
from email.policy import EmailPolicy
from itertools import pairwise
from typing import Any, Final

from ferryman import limits
from ferryman.errors import DeliveryError
from ferryman.limits import KIB
from ferryman.steps.formats import (
    HTML,
    MAIL,
    MAILBOX_LINE,
    Attachment,
    Content,
    Unread,
    Unreadable,
    clean,
    format_time,
    kind_of,
    one_line,
)
from ferryman.steps.formats.charsets import decode
from ferryman.steps.formats.markup import html

HEADER_CHARS: Final = 4 * KIB
"""Characters parsed of a header, enough for 100 addresses: the standard library's parser takes quadratic time."""

PART_CHARS, PART_PARAMETERS = KIB, 16
"""Limits for the headers of a part, of which a mail may have thousands: characters, parameters."""


class _BoundedHeaders(EmailPolicy):
    """Reads the beginning of headers that are longer than any that mail programs make, whatever their encoding."""

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        if name.lower().startswith("content-"):
            value = _cut(";".join(value.split(";", PART_PARAMETERS)[:PART_PARAMETERS]), PART_CHARS)
        else:
            value = _cut(value, HEADER_CHARS)
        return name, _as_unicode(value)


def _as_unicode(value: str) -> str:
    """Return a header's value with its encoded words in UTF-8, and bytes above 127, which it may not have, decoded.

    The standard library knows fewer names of encodings than mails have.
    """
    if not value.isascii():  # bytes are in it as lone surrogates
        value = decode(value.encode("utf-8", "surrogateescape")).text
    if "=?" not in value:
        return value
    pieces: list[str] = []
    charset, raw, end = "", b"", 0
    for word in _ENCODED_WORD.finditer(value):
        gap, content = value[end : word.start()], _word_bytes(word[2].lower(), word[3])
        if raw and word[1].lower() == charset and not gap.strip():
            raw += content  # a character may be cut between them
        else:
            pieces += [_word(raw, charset), gap]
            charset, raw = word[1].lower(), content
        end = word.end()
    return "".join([*pieces, _word(raw, charset), value[end:]])


_ENCODED_WORD: Final = re.compile(r"=\?([^?\s*]{1,40})(?:\*[^?\s]{0,20})?\?([BbQq])\?([^?\r\n]{0,4096})\?=")


def _word_bytes(encoding: str, text: str) -> bytes:
    """Return the bytes of an encoded word (RFC 2047)."""
    if encoding == "q":
        return binascii.a2b_qp(text.encode("utf-8", "replace"), header=True)
    try:
        return binascii.a2b_base64(text.encode("ascii", "ignore").rstrip(b"=") + b"==")
    except binascii.Error:
        return b""


def _word(raw: bytes, charset: str) -> str:
    """Return an encoded word in UTF-8, so that its commas do not separate addresses; "" for nothing."""
    text = decode(raw, charset).text if raw else ""
    return f"=?utf-8?B?{base64.b64encode(text.encode('utf-8', 'replace')).decode()}?=" if text else ""


def _cut(value: str, limit: int) -> str:
    """Return the beginning of a value, cut between addresses or words if it has several."""
    if len(value) <= limit:
        return value
    ends = (value.rfind(between, 0, limit) for between in ",; \n")
    return value[: next((end for end in ends if end > limit // 2), limit)]


_READ_AS_TEXT: Final = frozenset({"text/plain", "text/html", "text/enriched", "text/richtext", "text/rfc822-headers"})
_REPORTS: Final = frozenset({"message/delivery-status", "message/disposition-notification", "message/feedback-report"})
"""Parts of reports, made of headers."""

_MESSAGES: Final = frozenset({"message/rfc822", "message/global", "message/news"})

_SHOWN: Final = ("image/", "audio/", "video/", "font/", "text/css", "text/javascript", "application/javascript")
"""Types of what a page or a mail shows or uses, and that is not text."""
_SIGNATURES: Final = ("application/pgp-signature", "application/pkcs7-signature", "application/x-pkcs7-signature")
_OTHER_FORMS: Final = ("text/x-amp-html", "text/watch-html")
"""Forms of a mail for a few programs, with what is in its HTML, too."""

_FULLER: Final = 2
"""How many times as many words an alternative must have for its plain text to be a stub."""

_LOST_BOUNDARY: Final = re.compile(
    rb"^--([^\s\"\\][^\r\n\"\\]{0,199}?)[ \t]{0,99}\r?\n(?=Content-[\w-]{1,50}:|\r?\n)", re.MULTILINE | re.IGNORECASE
)
"""Line between parts of a mail whose header states another one, or none."""


def mail(raw: bytes) -> Content:
    """Read a mail: its text; subject, sender, receivers and date as fields; attachments as parts.

    The text is the plain text unless it is blank or a stub beside fuller HTML; texts between attachments are joined.
    """
    message = email.message_from_bytes(raw, policy=_BoundedHeaders())
    assert isinstance(message, EmailMessage)
    fields = {
        "title": one_line(_header(message, "subject")),
        "author": one_line(_header(message, "from")),
        "to": one_line(_header(message, "to")),
        "created": _date(message),
    }
    reader = _PartReader()
    reader.read(message, is_body=True)
    return reader.content({name: value for name, value in fields.items() if value})


def mbox(raw: bytes) -> Content:
    """Read a mailbox: each message becomes a part, with a document of its own."""
    starts = [match.start() for match in MAILBOX_LINE.finditer(raw)]
    if len(starts) > limits.UNPACK_MEMBERS:
        raise Unreadable(f"it has {len(starts)} messages, more than {limits.UNPACK_MEMBERS}. Split it")
    messages = []
    for start, end in pairwise([*starts, len(raw)]):
        message = raw[raw.index(b"\n", start) + 1 : end]
        messages.append(Attachment("", _QUOTED_LINE.sub(rb"\1", message), MAIL.type))
    return Content("", {"messages": len(messages)}, messages)


_QUOTED_LINE: Final = re.compile(rb"^>(>*From )", re.MULTILINE)
"""Line of a message that its mailbox quotes, so that it does not begin the next one."""


class _PartReader:
    """Reads the parts of a mail into text and attachments."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.attachments: list[Attachment] = []
        self.unread = Unread()
        self._replaced = 0
        self._error: Unreadable | None = None

    def content(self, fields: dict[str, Any]) -> Content:
        text = "\n\n".join(text for text in self.texts if text.strip())
        if self._error is not None:
            if not text:
                raise self._error
            self.unread.add("HTML")
        if self._replaced:
            fields["replaced_characters"] = self._replaced
        return Content(text, fields | self.unread.fields, self.attachments)

    def read(self, part: Any, is_body: bool = False) -> None:
        """Add a part and what is in it.

        Args:
            is_body: whether the part stands where the text of a mail stands, whatever its name.
        """
        kind = part.get_content_type()
        if part.get_content_maintype() == "multipart":
            self._read_parts(part, kind)
        elif kind in _REPORTS:
            self.texts.append(_headers_text(part))
        elif _is_text(part, is_body):
            self.texts.append(self._text(part, kind))
        elif kind == "message/external-body":
            self.unread.add("linked files")
        elif not _is_shown(part) and kind != "application/applefile":
            self._attach(part)

    def _read_parts(self, part: Any, kind: str) -> None:
        parts = _parts_of(part)
        if not parts:
            self._read_without_parts(part)
        elif kind == "multipart/alternative":
            self._read_alternative(parts)
        elif kind == "multipart/related":
            self._read_related(part, parts)
        else:
            if kind == "multipart/encrypted":
                self.unread.add("encrypted text")
            for each in parts:
                if not (kind == "multipart/signed" and each.get_content_type() in _SIGNATURES):
                    self.read(each)

    def _read_without_parts(self, part: Any) -> None:
        """Read what should have parts and has none: as a text."""
        raw = _bytes(part)
        if raw.strip():
            self.texts.append(self._decoded_text(raw, "", is_html=kind_of(raw) == HTML))

    def _read_alternative(self, parts: list[Any]) -> None:
        """Read the fullest of several forms, and what is attached among them."""
        plain, rich, others = list[str](), list[str](), list[Any]()
        for part in parts:
            kind = part.get_content_type()
            if part.get_content_maintype() == "multipart":
                inner = _PartReader()
                inner.read(part, is_body=True)
                rich += inner.texts
                self._take_over(inner)
            elif _is_text(part, is_body=True):
                (plain if kind == "text/plain" else rich).append(self._text(part, kind))
            elif kind == "text/calendar" and not part.get_filename():
                self.unread.add("calendar")
            elif kind not in _OTHER_FORMS:
                others.append(part)
        self.texts.append(fuller_text(_join_once(plain), _join_once(rich)))
        for part in others:
            self.read(part)

    def _take_over(self, inner: _PartReader) -> None:
        """Take over all of another reader but its texts."""
        self.attachments += inner.attachments
        self.unread |= inner.unread
        self._replaced += inner._replaced
        self._error = self._error or inner._error

    def _read_related(self, whole: Any, parts: list[Any]) -> None:
        """Read a text with what it shows: frames are text, too; pictures and styles are not."""
        start = str(_try_parse(lambda: whole.get_param("start")) or "")
        root = next((part for part in parts if start and str(part["content-id"] or "").strip() == start), parts[0])
        self.read(root, is_body=True)
        for part in parts:
            if part is not root:
                self.read(part)

    def _text(self, part: Any, kind: str) -> str:
        raw, charset = _bytes(part), str(_try_parse(part.get_content_charset) or "")
        text = self._decoded_text(raw, charset, is_html=kind == "text/html")
        return _without_enrichment(text) if kind in ("text/enriched", "text/richtext") else text

    def _decoded_text(self, raw: bytes, charset: str, is_html: bool) -> str:
        try:
            content = html(raw, charset) if is_html else None
        except Unreadable as e:
            self._error = e
            return ""
        if content is not None:
            self._replaced += content.fields.get("replaced_characters", 0)
            return content.text
        decoded = decode(raw, charset)
        self._replaced += decoded.replaced
        return decoded.text

    def _attach(self, part: Any) -> None:
        raw, name = _bytes(part), str(_try_parse(part.get_filename) or "")
        if raw or name:
            charset = str(_try_parse(part.get_content_charset) or "")
            kind = MAIL.type if part.get_content_type() in _MESSAGES else part.get_content_type()
            self.attachments.append(Attachment(name, raw, kind, charset))


def fuller_text(plain: str, rich: str) -> str:
    """Return the plain text of a mail, unless it is a stub beside the text of its HTML."""
    return rich if len(rich.split()) >= max(1, _FULLER * len(plain.split())) else plain


def _join_once(texts: Iterable[str]) -> str:
    return "\n\n".join(dict.fromkeys(text.strip() for text in texts if text.strip()))


def _is_text(part: Any, is_body: bool) -> bool:
    """Return whether a part is shown as text; with a name it is an attachment, unless it stands for the body."""
    if part.get_content_type() not in _READ_AS_TEXT or _disposition(part) == "attachment":
        return False
    return is_body or not _try_parse(part.get_filename)


def _is_shown(part: Any) -> bool:
    """Return whether a part is a picture, style or the like that a text shows or uses."""
    if _disposition(part) == "attachment" or not part.get_content_type().startswith(_SHOWN):
        return False
    return bool(part["content-id"] or part["content-location"])


def _disposition(part: Any) -> str:
    return str(_try_parse(part.get_content_disposition) or "")


def _parts_of(part: Any) -> list[Any]:
    """Return the parts of a multipart; where its boundary is missing or another one, by the first line that looks like
    one."""
    parts = part.get_payload()
    if isinstance(parts, list):
        return parts
    raw = _bytes(part)
    boundary = _LOST_BOUNDARY.search(raw)
    if boundary is None:
        return []
    header = b'Content-Type: multipart/mixed; boundary="%s"\r\n\r\n' % boundary[1]
    parts = email.message_from_bytes(header + raw[boundary.start() :], policy=_BoundedHeaders()).get_payload()
    return parts if isinstance(parts, list) else []


def _headers_text(part: Any) -> str:
    """Return the text of a report that is made of headers, such as why a mail was not delivered."""
    blocks = part.get_payload() if part.is_multipart() else []
    texts = (text for block in blocks for text in ("\n".join(_header_lines(block)), decode(_bytes(block)).text))
    return "\n\n".join(text for text in texts if text.strip()) or decode(_bytes(part)).text


def _header_lines(message: Any) -> Iterator[str]:
    for name in dict.fromkeys(message.keys()):
        yield f"{name}: {one_line(_header(message, name))}"


_ENRICHED: Final = re.compile(r"<<|<param>[^<]{0,1000}</param>|</?[A-Za-z][A-Za-z0-9-]{0,59}>|\n+", re.IGNORECASE)


def _without_enrichment(text: str) -> str:
    """Return the text in ``text/enriched`` (RFC 1896), where one line end is a space, and several are one fewer."""

    def plain(match: re.Match[str]) -> str:
        found = match[0]
        if found.startswith("\n"):
            return "\n" * (len(found) - 1) or " "
        return "<" if found == "<<" else "\n" if found.lower() == "<nl>" else ""

    return _ENRICHED.sub(plain, text.replace("\r\n", "\n"))


def _bytes(part: Any) -> bytes:
    """Return a part's content, decoded from its transfer encoding; for an attached message, its bytes."""
    if part.get_content_maintype() == "message" and isinstance(inner := part.get_payload(), list):
        return bytes(inner[0]) if inner else b""
    payload: Any = _try_parse(lambda: part.get_payload(decode=True))
    return payload if isinstance(payload, bytes) else b""


def _try_parse(read: Callable[[], Any]) -> Any:
    """Return the result of parsing; None if it fails, because malformed mails are common."""
    try:
        return read()
    except DeliveryError:  # the step's time is up
        raise
    except Exception:
        return None


def _header(message: EmailMessage, name: str) -> str:
    return clean(str(_try_parse(lambda: message[name]) or ""))


def _date(message: EmailMessage) -> str:
    return str(_try_parse(lambda: format_time(message["date"].datetime)) or "")
