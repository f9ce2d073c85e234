"""Plain text, Markdown and RTF, whose character encoding has to be detected."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Any, Final

from ferryman import limits
from ferryman.steps.formats import Content, iso_date, one_line

_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks and encodings; the order matters, because UTF-32's mark begins with that of UTF-16."""

_LAST_RESORT: Final = "cp1252"
"""Most frequent encoding of old text; it decodes nearly every byte."""

_IN_USE: Final = (
    "cp1252",
    "cp1250",
    "cp1251",
    "koi8_r",
    "cp1253",
    "cp1254",
    "cp1255",
    "cp1256",
    "cp932",
    "euc_jp",
    "gb18030",
    "big5",
    "cp949",
)
"""Encodings in use for text that is not Unicode. Among all encodings a short German text looks Turkish."""

_HEADING: Final = re.compile(r"^ {0,3}#[ \t]+(.+?)[ \t#]*$", re.MULTILINE)
_INFO: Final = re.compile(r"\{\\(title|author|creatim|revtim)\b ?((?:[^{}\\]|\\.)*)\}")
_PART_OF_DATE: Final = re.compile(r"\\(yr|mo|dy|hr|min)(\d{1,4})")
_CODEPAGE: Final = re.compile(rb"\\ansicpg(\d{3,5})")


def decode_text(raw: bytes) -> tuple[str, str]:
    """Return the text and the name of its encoding: by the byte order mark, else UTF-8, else guessed."""
    for bom, encoding in _BOMS:
        if raw.startswith(bom):
            return raw.decode(encoding, "replace"), encoding.removesuffix("-sig")
    try:
        return raw.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        encoding = _guess_encoding(raw[: limits.EXTRACT_SAMPLE_BYTES])
        return raw.decode(encoding, "replace"), encoding


def plain(raw: bytes) -> Content:
    """Read plain text; its encoding becomes a field."""
    text, encoding = decode_text(raw)
    return Content(text, {"charset": encoding}, verbatim=True)


def markdown(raw: bytes) -> Content:
    """Read Markdown without changing it; the first heading of the first level is the title."""
    content = plain(raw)
    if heading := _HEADING.search(content.text):
        content.fields["title"] = one_line(heading[1])
    return content


def rtf(raw: bytes) -> Content:
    """Read RTF without its control words; title, author and dates come from its information group."""
    from striprtf.striprtf import rtf_to_text

    page = _CODEPAGE.search(raw[: limits.EXTRACT_SAMPLE_BYTES])
    encoding = _python_name(f"cp{page[1].decode()}") if page else _LAST_RESORT
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


def _guess_encoding(sample: bytes) -> str:
    """Guess the encoding: the most likely one of those in use, the first if several are equally likely."""
    from charset_normalizer import from_bytes

    matches = list(from_bytes(sample, cp_isolation=list(_IN_USE)))
    if not matches:
        return _LAST_RESORT
    least = min(match.chaos for match in matches)
    alike = {name for match in matches if match.chaos <= least for name in match.could_be_from_charset}
    return _python_name(next((name for name in _IN_USE if name in alike), _LAST_RESORT))


def _python_name(encoding: str) -> str:
    """Return Python's name of an encoding; the last resort for an unknown one."""
    try:
        return codecs.lookup(encoding).name
    except LookupError:
        return _LAST_RESORT
