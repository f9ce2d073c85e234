"""Messages of Outlook (.msg), read by olefile: a compound file with a stream for each property of a message."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.policy import default
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from ferryman import limits
from ferryman.steps.formats import MAIL, Attachment, Content, Unread, Unreadable, format_time, one_line
from ferryman.steps.formats.charsets import decode
from ferryman.steps.formats.mail import fuller_text
from ferryman.steps.formats.markup import html
from ferryman.steps.formats.rtf import rtf

if TYPE_CHECKING:
    from olefile import OleFileIO

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
        message = _Storage(ole, [], _HEADER_BYTES[""])
        if not message.is_complete:
            raise Unreadable("it has no properties: the file is broken. Save it again")
        unread = Unread()
        content = message.content(unread)
        content.parts = list(message.attachments(unread, limits.EXTRACT_DEPTH))
        content.fields |= unread.fields
        return content


class _Storage:
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
        """Return a time as ISO 8601; "" if there is none."""
        value = self._values.get(property_, b"")
        ticks = struct.unpack("<Q", value)[0] if len(value) == 8 else 0
        try:
            return format_time(_EPOCH + timedelta(microseconds=ticks // 10)) if ticks else ""
        except OverflowError:
            return ""

    def bytes_of(self, property_: int) -> bytes:
        return self._stream(f"__SUBSTG1.0_{property_:04X}{_BINARY}")

    def text_of(self, property_: int) -> str:
        """Return a text: UTF-16, or in the code page of the message."""
        name = f"__SUBSTG1.0_{property_:04X}"
        if f"{name}{_TEXT}" in self._streams:
            return self._stream(f"{name}{_TEXT}").decode("utf-16-le", "replace").rstrip("\0")
        return decode(self._stream(f"{name}{_OLD_TEXT}").rstrip(b"\0"), self._code_page).text

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
        page = self.bytes_of(_HTML)
        rich = html(page, self._html_charset()).text if page else ""
        if not rich and (page_text := self.text_of(_HTML)):
            rich = html(page_text.encode("utf-8", "replace"), "utf-8").text
        if not plain.strip() and not rich and (packed := self.bytes_of(_RTF)):
            rich = _rich_text(packed, unread)
        return fuller_text(plain, rich)

    def _html_charset(self) -> str:
        number = self.number(_INTERNET_CODE_PAGE)
        return {0: "", 65001: "utf-8", 20127: ""}.get(number, f"cp{number}")

    def attachments(self, unread: Unread, depth: int) -> Iterator[Attachment]:
        """Yield the attachments, but for pictures that the text shows."""
        for name in sorted(self._streams):
            if not name.startswith("__ATTACH_VERSION1.0_"):
                continue
            each = _Storage(self._ole, self._streams[name], _HEADER_BYTES["__attach"], self._code_page)
            file_name = next((n for p in (_FILE_NAME, _SHORT_FILE_NAME, _NAME) if (n := one_line(each.text_of(p)))), "")
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
                yield Attachment(file_name, data, kind)

    def _embedded_mail(self, unread: Unread, depth: int) -> bytes:
        """Return the message in this attachment as an e-mail."""
        path = self._streams[f"__SUBSTG1.0_{_DATA:04X}{_OBJECT}"]
        inner = _Storage(self._ole, path, _EMBEDDED_HEADER_BYTES)
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
                message.add_attachment(_parsed(part.raw))
            else:
                main, _, sub = (part.type if "/" in part.type else "application/octet-stream").partition("/")
                message.add_attachment(part.raw, maintype=main, subtype=sub, filename=part.name or None)
        return message.as_bytes()


def _parsed(raw: bytes) -> Any:
    import email

    return email.message_from_bytes(raw, policy=default)


def _rich_text(packed: bytes, unread: Unread) -> str:
    """Return the text of a body that is RTF, compressed as Outlook does."""
    import compressed_rtf

    if len(packed) < 16 or struct.unpack_from("<I", packed, 4)[0] > limits.EXTRACT_PART_BYTES:
        unread.add("text")
        return ""
    return rtf(compressed_rtf.decompress(packed)).text


_STREAM: Final = 2
"""olefile's type of a stream."""
