"""Plain text, Markdown and RTF."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from ferryman import limits
from ferryman.steps.formats import Content, iso_date, one_line
from ferryman.steps.formats.charsets import LAST_RESORT, decode, python_name

_HEADING: Final = re.compile(r"^ {0,3}#[ \t]+(.+?)[ \t#]*$", re.MULTILINE)
_INFO: Final = re.compile(r"\{\\(title|author|creatim|revtim)\b ?((?:[^{}\\]|\\.)*)\}")
_PART_OF_DATE: Final = re.compile(r"\\(yr|mo|dy|hr|min)(\d{1,4})")
_CODEPAGE: Final = re.compile(rb"\\ansicpg(\d{3,5})")


def plain(raw: bytes, declared: str = "") -> Content:
    """Read plain text; its encoding becomes a field."""
    decoded = decode(raw, declared)
    return Content(decoded.text, decoded.fields, verbatim=True)


def markdown(raw: bytes, declared: str = "") -> Content:
    """Read Markdown without changing it; the first heading of the first level is the title."""
    content = plain(raw, declared)
    if heading := _HEADING.search(content.text):
        content.fields["title"] = one_line(heading[1])
    return content


def rtf(raw: bytes) -> Content:
    """Read RTF without its control words; title, author and dates come from its information group."""
    from striprtf.striprtf import rtf_to_text

    page = _CODEPAGE.search(raw[: limits.EXTRACT_SAMPLE_BYTES])
    encoding = (python_name(f"cp{page[1].decode()}") if page else "") or LAST_RESORT
    source = raw.decode("latin-1")
    fields = dict(_rtf_fields(source[: limits.EXTRACT_SAMPLE_BYTES], encoding))
    return Content(rtf_to_text(source, encoding=encoding, errors="replace"), fields)


def _rtf_fields(source: str, encoding: str) -> Iterator[tuple[str, Any]]:
    from striprtf.striprtf import rtf_to_text

    for name, value in _INFO.findall(source):
        if name in ("title", "author"):
            text = one_line(rtf_to_text("{\\rtf1 " + value + "}", encoding=encoding, errors="replace"))
            if text:
                yield name, text
        else:
            parts = {part: int(number) for part, number in _PART_OF_DATE.findall(value)}
            if date := _rtf_moment(parts):
                yield {"creatim": "created", "revtim": "modified"}[name], date


def _rtf_moment(parts: dict[str, int]) -> str:
    date = f"{parts.get('yr', 0):04}-{parts.get('mo', 0):02}-{parts.get('dy', 0):02}"
    return iso_date(f"{date}T{parts.get('hr', 0):02}:{parts.get('min', 0):02}:00")
