"""E-mail (RFC 5322), saved web pages (MHTML) and mailboxes, read by the standard library; messages of Outlook."""

from __future__ import annotations

import base64
import binascii
import email
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.policy import EmailPolicy, default
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from ferryman import limits
from ferryman.errors import DeliveryError
from ferryman.limits import KIB
from ferryman.net.mailboxes import split_mailbox, unquote_lines
from ferryman.steps.formats import (
    HTML,
    MAIL,
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
from ferryman.steps.formats.rtf import rtf

if TYPE_CHECKING:
    from olefile import OleFileIO

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
    spans = list(split_mailbox(BytesIO(raw)))
    if len(spans) > limits.UNPACK_MEMBERS:
        raise Unreadable(f"it has {len(spans)} messages, more than {limits.UNPACK_MEMBERS}. Split it")
    messages = [Attachment("", unquote_lines(raw[start:end]), MAIL.type) for start, end in spans]
    return Content("", {"messages": len(messages)}, messages)


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
        if text:
            self.unread.pop("pictures", None)
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
            self.unread |= dict.fromkeys(content.fields.get("unread", ()))
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


# Messages of Outlook (.msg): compound files with a stream for each property, opened by olefile.

# Properties, by their numbers in [MS-OXPROPS].
_CLASS: Final = 0x001A
_SUBJECT: Final = 0x0037
_SENT: Final = 0x0039
_REPRESENTED_NAME: Final = 0x0042
_SENDER_NAME, _SENDER_ADDRESS, _SENDER_SMTP = 0x0C1A, 0x0C1F, 0x5D01
_TO: Final = 0x0E04
_RECEIVED: Final = 0x0E06
_BODY, _RTF, _HTML = 0x1000, 0x1009, 0x1013
_NAME: Final = 0x3001
_DATA, _SHORT_FILE_NAME, _METHOD, _FILE_NAME = 0x3701, 0x3704, 0x3705, 0x3707
_MIME_TYPE, _CONTENT_ID = 0x370E, 0x3712
_INTERNET_CODE_PAGE, _MESSAGE_CODE_PAGE = 0x3FDE, 0x3FFD

_TEXT, _OLD_TEXT, _BINARY, _OBJECT = "001F", "001E", "0102", "000D"
"""Types of properties: UTF-16, text in the message's code page, bytes, a storage."""

_EMBEDDED_MESSAGE: Final = 5
"""Method of an attachment that is a message."""
_LINKED: Final = (2, 3, 4, 7)
"""Methods of attachments that are somewhere else."""

_HEADER_BYTES: Final = {"": 32, "__attach": 8}
"""Bytes before the entries in a storage's properties; those of an embedded message have 24."""
_EMBEDDED_HEADER_BYTES: Final = 24
_ENTRY_BYTES: Final = 16

_EPOCH: Final = datetime(1601, 1, 1, tzinfo=UTC)
_OTHER_CLASSES: Final = (
    ("ipm.contact", "contact details"),
    ("ipm.distlist", "members"),
    ("ipm.appointment", "calendar"),
    ("ipm.schedule", "calendar"),
    ("ipm.task", "task"),
)
"""Classes of what is not a mail, and what of it is in properties that are not read."""


def msg(raw: bytes) -> Content:
    """Read a message: its text; subject, sender, receivers and date as fields; attachments as parts.

    A message that is attached becomes a part in the format of e-mail (RFC 5322).
    """
    import olefile

    with olefile.OleFileIO(BytesIO(raw)) as ole:
        message = _OutlookStorage(ole, [], _HEADER_BYTES[""])
        if not message.is_complete:
            raise Unreadable("it has no properties: the file is broken. Save it again")
        unread = Unread()
        content = message.content(unread)
        content.parts = list(message.attachments(unread, limits.EXTRACT_DEPTH))
        content.fields |= unread.fields
        return content


class _Properties:
    """Properties of a message or an attachment of Outlook, by their numbers."""

    def number(self, property_: int) -> int:
        raise NotImplementedError

    def time(self, property_: int) -> str:
        """Return a time as ISO 8601; "" if there is none."""
        raise NotImplementedError

    def bytes_of(self, property_: int) -> bytes:
        raise NotImplementedError

    def text_of(self, property_: int) -> str:
        raise NotImplementedError

    def content(self, unread: Unread) -> Content:
        fields = {
            "title": one_line(self.text_of(_SUBJECT)),
            "author": self._sender(),
            "to": one_line(self.text_of(_TO)),
            "created": self.time(_SENT) or self.time(_RECEIVED),
        }
        class_ = self.text_of(_CLASS).lower()
        for begin, what in _OTHER_CLASSES:
            if class_.startswith(begin):
                unread.add(what)
        return Content(self._body(unread), {name: value for name, value in fields.items() if value})

    def _sender(self) -> str:
        name = one_line(self.text_of(_SENDER_NAME) or self.text_of(_REPRESENTED_NAME))
        address = one_line(self.text_of(_SENDER_SMTP) or self.text_of(_SENDER_ADDRESS))
        if "@" not in address or address == name:  # an address inside an organisation says nothing
            return name
        return f"{name} <{address}>" if name else address

    def _body(self, unread: Unread) -> str:
        plain = self.text_of(_BODY)
        if page := self.bytes_of(_HTML):
            content = html(page, self._html_charset())
        else:
            content = html(self.text_of(_HTML).encode("utf-8", "replace"), "utf-8")
        rich = content.text
        if not plain.strip():
            unread |= dict.fromkeys(content.fields.get("unread", ()))
        if not plain.strip() and not rich and (packed := self.bytes_of(_RTF)):
            rich = _rich_text(packed, unread)
        return fuller_text(plain, rich)

    def _html_charset(self) -> str:
        number = self.number(_INTERNET_CODE_PAGE)
        return {0: "", 65001: "utf-8", 20127: ""}.get(number, f"cp{number}")

    @property
    def file_name(self) -> str:
        return next(
            (name for each in (_FILE_NAME, _SHORT_FILE_NAME, _NAME) if (name := one_line(self.text_of(each)))), ""
        )


class _OutlookStorage(_Properties):
    """A message or an attachment in a compound file.

    Args:
        path: of the storage; empty for the file itself.
        header_bytes: size of what stands before the entries of its properties.
    """

    def __init__(self, ole: OleFileIO, path: list[str], header_bytes: int, code_page: str = "") -> None:
        self._ole, self._path = ole, path
        self._streams = {
            entry[-1].upper(): entry for entry in ole.listdir(storages=True) if entry[:-1] == path and len(entry) > 0
        }
        self._values = self._read_values(header_bytes)
        self._code_page = code_page or self._find_code_page()

    @property
    def is_complete(self) -> bool:
        return "__PROPERTIES_VERSION1.0" in self._streams

    def _read_values(self, header_bytes: int) -> dict[int, bytes]:
        """Return the properties of fixed size: their eight bytes each."""
        raw = self._stream("__PROPERTIES_VERSION1.0")
        entries = range(header_bytes, len(raw) - _ENTRY_BYTES + 1, _ENTRY_BYTES)
        return {struct.unpack_from("<H", raw, at + 2)[0]: raw[at + 8 : at + 16] for at in entries}

    def _find_code_page(self) -> str:
        numbers = (self.number(each) for each in (_MESSAGE_CODE_PAGE, _INTERNET_CODE_PAGE))
        number = next((each for each in numbers if each), 0)
        return {0: "", 20127: "", 65001: "utf-8", 28591: "iso-8859-1"}.get(number, f"cp{number}")

    def _stream(self, name: str) -> bytes:
        path = self._streams.get(name)
        if path is None or self._ole.get_type(path) != _STREAM:
            return b""
        with self._ole.openstream(path) as stream:
            content: bytes = stream.read()
            return content

    def number(self, property_: int) -> int:
        value = self._values.get(property_, b"")
        return int(struct.unpack("<i", value[:4])[0]) if len(value) >= 4 else 0

    def time(self, property_: int) -> str:
        return _time(self._values.get(property_, b""))

    def bytes_of(self, property_: int) -> bytes:
        return self._stream(f"__SUBSTG1.0_{property_:04X}{_BINARY}")

    def text_of(self, property_: int) -> str:
        """Return a text: UTF-16, or in the code page of the message."""
        name = f"__SUBSTG1.0_{property_:04X}"
        if f"{name}{_TEXT}" in self._streams:
            return self._stream(f"{name}{_TEXT}").decode("utf-16-le", "replace").rstrip("\0")
        return decode(self._stream(f"{name}{_OLD_TEXT}").rstrip(b"\0"), self._code_page).text

    def attachments(self, unread: Unread, depth: int) -> Iterator[Attachment]:
        """Yield the attachments, but for pictures that the text shows."""
        for name in sorted(self._streams):
            if not name.startswith("__ATTACH_VERSION1.0_"):
                continue
            each = _OutlookStorage(self._ole, self._streams[name], _HEADER_BYTES["__attach"], self._code_page)
            kind = one_line(each.text_of(_MIME_TYPE)).lower()
            method, data = each.number(_METHOD), each.bytes_of(_DATA)
            if f"__SUBSTG1.0_{_DATA:04X}{_OBJECT}" in each._streams:
                if method != _EMBEDDED_MESSAGE or depth <= 0:
                    unread.add("embedded files")
                else:
                    yield Attachment("", each._embedded_mail(unread, depth), MAIL.type)
            elif method in _LINKED:
                unread.add("linked files")
            elif not (kind.startswith("image/") and each.text_of(_CONTENT_ID)):
                yield Attachment(each.file_name, data, kind)

    def _embedded_mail(self, unread: Unread, depth: int) -> bytes:
        """Return the message in this attachment as an e-mail."""
        path = self._streams[f"__SUBSTG1.0_{_DATA:04X}{_OBJECT}"]
        inner = _OutlookStorage(self._ole, path, _EMBEDDED_HEADER_BYTES)
        content = inner.content(unread)
        message = EmailMessage(policy=default)
        for header, field in (("Subject", "title"), ("From", "author"), ("To", "to")):
            if value := content.fields.get(field):
                message[header] = value
        if created := content.fields.get("created"):
            message["Date"] = datetime.fromisoformat(created)
        message.set_content(content.text)
        for part in inner.attachments(unread, depth - 1):
            if part.type == MAIL.type:
                message.add_attachment(email.message_from_bytes(part.raw, policy=default))
            else:
                main, _, sub = (part.type if "/" in part.type else "application/octet-stream").partition("/")
                message.add_attachment(part.raw, maintype=main, subtype=sub, filename=part.name or None)
        return message.as_bytes()


def _rich_text(packed: bytes, unread: Unread) -> str:
    """Return the text of a body that is RTF, compressed as Outlook does."""
    import compressed_rtf

    if len(packed) < 16 or struct.unpack_from("<I", packed, 4)[0] > limits.EXTRACT_PART_BYTES:
        unread.add("text")
        return ""
    content = rtf(compressed_rtf.decompress(packed))
    unread |= dict.fromkeys(content.fields.get("unread", ()))
    return content.text


_STREAM: Final = 2
"""olefile's type of a stream."""


# Attachments in which Outlook packs those of a mail to a program that it takes for its own: winmail.dat ([MS-OXTNEF]).

_ATTRIBUTE: Final = struct.Struct("<BII")
"""Beginning of an attribute: of the message or of an attachment, its number and type, its length."""
_CHECKSUM_BYTES: Final = 2
_TNEF_SUBJECT, _TNEF_BODY, _TNEF_CODE_PAGE, _TNEF_PROPERTIES = 0x8004, 0x800C, 0x9007, 0x9003
_TNEF_BEGIN, _TNEF_NAME, _TNEF_DATA, _TNEF_ATTACHED = 0x9002, 0x8010, 0x800F, 0x9005
"""Numbers of attributes: where an attachment begins, its name, its content, its properties."""
_TNEF_OF_MESSAGE: Final = {_TNEF_SUBJECT: _SUBJECT, _TNEF_BODY: _BODY}
_TNEF_OF_ATTACHMENT: Final = {_TNEF_NAME: _SHORT_FILE_NAME, _TNEF_DATA: _DATA}

_FIXED_BYTES: Final = {
    0x02: 4, 0x03: 4, 0x04: 4, 0x05: 8, 0x06: 8, 0x07: 8, 0x0A: 4, 0x0B: 4, 0x14: 8, 0x40: 8, 0x48: 16,
}  # fmt: skip
"""Types of properties -> bytes that they have there."""
_SEVERAL: Final = 0x1000
_OBJECT_ID_BYTES: Final = 16


class _TnefProperties(_Properties):
    """Properties in a winmail.dat: number -> type and value."""

    def __init__(self) -> None:
        self.values: dict[int, tuple[int, bytes]] = {}
        self.code_page = ""

    def number(self, property_: int) -> int:
        value = self.bytes_of(property_)
        return int(struct.unpack("<i", value[:4])[0]) if len(value) >= 4 else 0

    def time(self, property_: int) -> str:
        return _time(self.bytes_of(property_))

    def bytes_of(self, property_: int) -> bytes:
        type_, value = self.values.get(property_, (0, b""))
        return value if f"{type_:04X}" not in (_TEXT, _OLD_TEXT) else b""

    def text_of(self, property_: int) -> str:
        type_, value = self.values.get(property_, (0, b""))
        if f"{type_:04X}" == _TEXT:
            return value.decode("utf-16-le", "replace").rstrip("\0")
        return decode(value.rstrip(b"\0"), self.code_page).text if f"{type_:04X}" == _OLD_TEXT else ""

    def add_all(self, raw: bytes) -> None:
        """Add a list of properties; one that breaks off is read as far as it goes."""
        at, left = 4, struct.unpack_from("<I", raw)[0]
        while left > 0 and at + 4 <= len(raw):
            left -= 1
            type_, number = struct.unpack_from("<HH", raw, at)
            at += 4
            if number & 0x8000:  # it has a name
                kind, size = struct.unpack_from("<II", raw, at + 16)
                at += 24 + (-(-size // 4) * 4 if kind else 0)
            plain_type = type_ & ~_SEVERAL
            count, fixed = 1, _FIXED_BYTES.get(plain_type, 0)
            if type_ & _SEVERAL or not fixed:
                count = struct.unpack_from("<I", raw, at)[0]
                at += 4
            for n in range(min(count, len(raw))):
                size = fixed
                if not fixed:
                    size = struct.unpack_from("<I", raw, at)[0]
                    at += 4
                if not n:
                    self.values[number] = plain_type, raw[at : at + size]
                at += -(-size // 4) * 4
                if at > len(raw):
                    break


def tnef(raw: bytes) -> Content:
    """Read what Outlook has packed into a winmail.dat: the text of its mail; attachments as parts."""
    unread = Unread()
    message, files = _TnefProperties(), list[_TnefProperties]()
    for number, value in _tnef_attributes(raw):
        if number == _TNEF_CODE_PAGE and len(value) >= 4:
            message.code_page = f"cp{struct.unpack_from('<I', value)[0]}"
        elif number in _TNEF_OF_MESSAGE:
            message.values.setdefault(_TNEF_OF_MESSAGE[number], (0x1E, value))
        elif number == _TNEF_PROPERTIES:
            message.add_all(value)
        elif number == _TNEF_BEGIN:
            files.append(_TnefProperties())
            files[-1].code_page = message.code_page
        elif files and number == _TNEF_ATTACHED:
            files[-1].add_all(value)
        elif files and number in _TNEF_OF_ATTACHMENT:
            type_ = 0x1E if number == _TNEF_NAME else 0x102
            files[-1].values.setdefault(_TNEF_OF_ATTACHMENT[number], (type_, value))
    content = message.content(unread)
    for each in files:
        data = each.bytes_of(_DATA)
        if each.number(_METHOD) == _EMBEDDED_MESSAGE:
            content.parts.append(Attachment("", data[_OBJECT_ID_BYTES:]))
        elif each.number(_METHOD) in _LINKED:
            unread.add("linked files")
        elif data:
            content.parts.append(Attachment(each.file_name, data, one_line(each.text_of(_MIME_TYPE)).lower()))
    content.fields |= unread.fields
    return content


def _tnef_attributes(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes of a winmail.dat: their numbers and contents."""
    at = 6  # its mark, and a number that says nothing
    while at + _ATTRIBUTE.size <= len(raw):
        _, number, size = _ATTRIBUTE.unpack_from(raw, at)
        at += _ATTRIBUTE.size
        if size > len(raw) - at:
            raise Unreadable("it breaks off. Send it again")
        yield number & 0xFFFF, raw[at : at + size]
        at += size + _CHECKSUM_BYTES


def _time(ticks: bytes) -> str:
    """Return a time of Windows as ISO 8601; "" if there is none."""
    count = struct.unpack("<Q", ticks)[0] if len(ticks) == 8 else 0
    try:
        return format_time(_EPOCH + timedelta(microseconds=count // 10)) if count else ""
    except OverflowError:
        return ""
