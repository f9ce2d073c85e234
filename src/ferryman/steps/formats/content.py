"""What reading yields: text, fields, and parts that are documents of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

_CONTROL: Final = bytes({*range(0x20), 0x7F} - set(b"\t\n\f\r"))
_NO_CHARACTERS: Final = "\ufffe\uffff"
"""What no text has and many destinations refuse."""

_NEWLINES: Final = ("\r\n", "\r", "\u2028", "\x85")
_PAGES: Final = ("\f", "\u2029")
_GAP: Final = re.compile("\n{3,}")
_DATE: Final = re.compile(r"\d{4}(-\d\d(-\d\d)?)?")


class Unreadable(Exception):
    """It cannot be read: why, and what to do, in words."""


class Attachment(NamedTuple):
    """Something inside that is a document of its own, an attachment."""

    name: str
    """Its file name, or "" where it has none."""
    raw: bytes
    type: str = ""
    """Its MIME type, as the outside says; "" where it says none."""


@dataclass(slots=True)
class Content:
    """Text as it is read; paragraphs are apart by a blank line.

    Attributes:
        fields: title, author, created, modified, language, pages, …: what is known, as JSON values.
        verbatim: its white space means something.
    """

    text: str
    fields: dict[str, Any] = field(default_factory=dict)
    parts: list[Attachment] = field(default_factory=list)
    verbatim: bool = False


def cleaned(text: str, verbatim: bool = False) -> str:
    """Text that every destination takes: no control characters, no lone surrogates, one way to end a line.

    Unless it is to stay ``verbatim``, no blanks at the ends of lines either, and no more than one blank line in a row.
    """
    for newline in _NEWLINES:
        text = text.replace(newline, "\n")  # most have none of them, which is seen faster than by a pattern
    text = text.encode("utf-8", "replace").translate(None, _CONTROL).decode()
    for none in _NO_CHARACTERS:
        text = text.replace(none, "")
    if not verbatim:
        for page in _PAGES:
            text = text.replace(page, "\n\n")
        text = "\n".join(map(str.rstrip, text.split("\n")))
        if "\n\n\n" in text:
            text = _GAP.sub("\n\n", text)
        text = text.strip()
    return text


def line(text: str | None) -> str:
    """Text of a field: one line, "" for nothing."""
    return " ".join(cleaned(text).split()) if text else ""


def moment(text: str | None) -> str:
    """A date as ISO 8601, "" where it is not one; UTC ends in Z; without a zone it stays without."""
    text = line(text)
    if _DATE.fullmatch(text):
        return text
    try:
        return written(datetime.fromisoformat(text))
    except ValueError:
        return ""


def written(when: datetime) -> str:
    """ISO 8601, whole seconds; UTC as Z."""
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")
