"""PDF, read by PDFium, the reader in Chromium."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

from ferryman import limits
from ferryman.steps.formats import Content, Unreadable, format_time, one_line

_HYPHEN: Final = re.compile("[\ufffe\x02](?:\r?\n)?")
"""Hyphen that PDFium recognised as one at the end of a line, in the middle of a word."""

_DATE: Final = re.compile(r"(?:D:)?(\d{4})(\d\d)?(\d\d)?(\d\d)?(\d\d)?(\d\d)?(?:(Z)|([+-])(\d\d)'?(\d\d)?'?)?")


def pdf(raw: bytes) -> Content:
    """Read the text of all pages in order. Pages that are pictures have none."""
    import pypdfium2

    try:
        book = pypdfium2.PdfDocument(raw)
    except pypdfium2.PdfiumError as e:
        if "password" in str(e).lower():
            raise Unreadable("it is encrypted. Save it without a password") from None
        raise
    try:
        meta = book.get_metadata_dict(skip_empty=True)
        count = len(book)
        if count > limits.EXTRACT_PAGES:
            raise Unreadable(f"it has {count} pages, more than {limits.EXTRACT_PAGES}. Split it")
        text = "\n\n".join(_page(book, number) for number in range(count))
    finally:
        book.close()
    fields: dict[str, Any] = {
        "title": one_line(meta.get("Title")),
        "author": one_line(meta.get("Author")),
        "created": _iso_date(meta.get("CreationDate", "")),
        "modified": _iso_date(meta.get("ModDate", "")),
        "pages": count,
    }
    if "\ufffe" in text or "\x02" in text:
        text = _HYPHEN.sub("", text)
    return Content(text, {name: value for name, value in fields.items() if value})


def _page(book: Any, number: int) -> str:
    """Return a page's text; "" if the page is damaged, so that the others are read."""
    import pypdfium2

    try:
        page = book[number]
    except pypdfium2.PdfiumError:
        return ""
    try:
        letters = page.get_textpage()
        text: str = letters.get_text_range()
        letters.close()
        return text
    finally:
        page.close()


def _iso_date(text: str) -> str:
    """Convert a date as PDF writes it, ``D:20240501120000+02'00'``, to ISO 8601; "" if it is not a date."""
    match = _DATE.match(text.strip())
    if not match:
        return ""
    year, month, day, hour, minute, second, utc, sign, hours, minutes = match.groups()
    iso = f"{year}-{month or '01'}-{day or '01'}T{hour or '00'}:{minute or '00'}:{second or '00'}"
    zone = "+00:00" if utc else f"{sign}{hours}:{minutes or '00'}" if sign else ""
    try:
        return format_time(datetime.fromisoformat(iso + zone))
    except ValueError:
        return ""
