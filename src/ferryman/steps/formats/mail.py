"""E-mail (RFC 5322), read by the standard library."""

from __future__ import annotations

import email
from collections.abc import Callable
from email.message import EmailMessage
from email.policy import EmailPolicy
from typing import Any, Final

from ferryman.errors import DeliveryError
from ferryman.limits import KIB
from ferryman.steps.formats import Attachment, Content, clean, format_time, one_line
from ferryman.steps.formats.charsets import decode
from ferryman.steps.formats.markup import html

HEADER_CHARS: Final = 4 * KIB
"""Characters parsed of a header, enough for 100 addresses: the standard library's parser takes quadratic time."""

PART_CHARS, PART_PARAMETERS = KIB, 16
"""Limits for the headers of a part, of which a mail may have thousands: characters, parameters."""


class _BoundedHeaders(EmailPolicy):
    """Reads the beginning of headers that are longer than any that mail programs make."""

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        if name.lower().startswith("content-"):
            return name, _cut(";".join(value.split(";", PART_PARAMETERS)[:PART_PARAMETERS]), PART_CHARS)
        return name, _cut(value, HEADER_CHARS)


def _cut(value: str, limit: int) -> str:
    """Return the beginning of a value, cut between addresses or words if it has several."""
    if len(value) <= limit:
        return value
    ends = (value.rfind(between, 0, limit) for between in ",; \n")
    return value[: next((end for end in ends if end > limit // 2), limit)]


def mail(raw: bytes) -> Content:
    """Read a mail: its text; subject, sender, receivers and date as fields; attachments as parts."""
    message = email.message_from_bytes(raw, policy=_BoundedHeaders())
    assert isinstance(message, EmailMessage)
    fields = {
        "title": one_line(_header(message, "subject")),
        "author": one_line(_header(message, "from")),
        "to": one_line(_header(message, "to")),
        "created": _date(message),
    }
    body = _body(message)
    return Content(
        _text(body) if body is not None else "",
        {name: value for name, value in fields.items() if value},
        [_part(each) for each in _attachments(message, body)],
    )


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


def _body(message: EmailMessage) -> EmailMessage | None:
    """Return the part to read, preferably plain text, else HTML."""
    body = _try_parse(lambda: message.get_body(("plain", "html")))
    return body if isinstance(body, EmailMessage) else None


def _text(part: EmailMessage) -> str:
    raw, charset = _bytes(part), str(part.get_content_charset() or "")
    return html(raw, charset).text if part.get_content_type() == "text/html" else decode(raw, charset).text


def _attachments(message: EmailMessage, body: EmailMessage | None) -> list[EmailMessage]:
    """Return the attachments: everything with content but the body, its other forms, and inline parts of it."""
    attachments: list[EmailMessage] = []
    _gather(message, body, attachments)
    return attachments


def _gather(part: Any, body: EmailMessage | None, attachments: list[EmailMessage]) -> None:
    kind = part.get_content_type()
    if part is body:
        return
    if part.is_multipart() and kind != "message/rfc822":
        parts = part.get_payload()
        if kind == "multipart/alternative":
            parts = [each for each in parts if each.is_multipart()]  # the others say the same in another form
        for each in parts:
            _gather(each, body, attachments)
    elif part.get_content_maintype() != "multipart" and not _is_inline(part):
        attachments.append(part)


def _is_inline(part: Any) -> bool:
    """Return whether the part is a picture that the body shows."""
    return bool(part["content-id"]) and part.get_content_disposition() != "attachment" and not part.get_filename()


def _part(part: EmailMessage) -> Attachment:
    return Attachment(str(_try_parse(part.get_filename) or ""), _bytes(part), part.get_content_type())


def _bytes(part: Any) -> bytes:
    """Return a part's content, decoded from its transfer encoding; for an attached message, its bytes."""
    if part.get_content_type() == "message/rfc822":
        inner = part.get_payload()
        return bytes(inner[0]) if isinstance(inner, list) and inner else b""
    payload: Any = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""
