"""Plain text, Markdown and RTF."""

from __future__ import annotations

import re
from typing import Final

from ferryman.steps.formats import Content, one_line
from ferryman.steps.formats.charsets import decode

_HEADING: Final = re.compile(r"^ {0,3}#[ \t]+(.+?)[ \t#]*$", re.MULTILINE)


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
