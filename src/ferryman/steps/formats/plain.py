"""Plain text, and Markdown (CommonMark), whose headings markdown-it-py finds."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ferryman.steps.formats import Content, one_line
from ferryman.steps.formats.charsets import decode

_LINE: Final = re.compile(r"[^\r\n]*+(?:\r\n|\r|\n)|[^\r\n]++\Z")
_FRONT_ENDS: Final = {"---": ("---", "..."), "+++": ("+++",)}
"""First line of front matter, in YAML and TOML -> lines that end it."""
_FRONT_LINES: Final = 500
_FRONT_KEY: Final = re.compile(r"[\w.\"'-]{1,100}[ \t]*+[:=]")
_FRONT_TITLE: Final = re.compile(r"[\"']?title[\"']?[ \t]*+[:=][ \t]*+(.*)", re.IGNORECASE | re.DOTALL)

_MAYBE_TITLE: Final = re.compile(r"^ {0,3}(?:#(?!#)|=++[ \t]*+$)[^\n]*+", re.MULTILINE)
_TITLE_CHARACTERS: Final = 16_384
"""First characters among which the title is looked for: the parser takes seconds for a megabyte."""


class Heading(NamedTuple):
    """A heading of a text.

    Attributes:
        line: number of its first line, from 0.
        end: number of the line after it.
        level: from 1.
        anchor: part of a page's address that leads to it; "": it is not known.
    """

    line: int
    end: int
    level: int
    words: str
    anchor: str = ""


def plain(raw: bytes, declared: str = "") -> Content:
    """Read plain text; its encoding becomes a field."""
    decoded = decode(raw, declared)
    return Content(decoded.text, decoded.fields, verbatim=True)


def markdown(raw: bytes, declared: str = "") -> Content:
    """Read Markdown without changing it; its title is that of its front matter, else its first heading of level 1."""
    content = plain(raw, declared)
    if title := one_line(_title(content.text)):
        content.fields["title"] = title
    return content


def split_lines(text: str) -> list[str]:
    """Split text into lines as Markdown has them, with their ends; form feeds and U+2028 end none."""
    return _LINE.findall(text)


def find_headings(lines: list[str]) -> list[Heading]:
    """Return the headings of Markdown that are not within lists and quotations; front matter has none."""
    front = front_lines(lines)
    tokens = _parser().parse("".join(lines[front:]))
    return [
        Heading(front + token.map[0], front + token.map[1], int(token.tag[1:]), tokens[at + 1].content)
        for at, token in enumerate(tokens)
        if token.type == "heading_open" and token.map and token.level == 0
    ]


def front_lines(lines: list[str]) -> int:
    """Return how many lines are front matter: 0 if there is none."""
    ends = _FRONT_ENDS.get(lines[0].removeprefix("\ufeff").rstrip()) if lines else None
    if ends is None:
        return 0
    for at, line in enumerate(lines[1 : 1 + _FRONT_LINES], start=1):
        if line.rstrip() in ends:
            keys = [each for each in lines[1:at] if each.strip() and not each.startswith("#")]
            return at + 1 if not keys or _FRONT_KEY.match(keys[0]) else 0
    return 0


def _title(text: str) -> str:
    lines = split_lines(text[:_TITLE_CHARACTERS].removeprefix("\ufeff"))
    front = front_lines(lines)
    for line in lines[:front]:
        if (stated := _FRONT_TITLE.match(line)) and (words := stated[1].strip().strip("\"'")) not in ("", "|", ">"):
            return words
    body = "".join(lines[front:]).replace("\r\n", "\n").replace("\r", "\n")
    maybe = _MAYBE_TITLE.search(body)
    if maybe is None:
        return ""
    for part in (body[: maybe.end()], body):  # the first candidate is nearly always the title
        titles = (heading.words for heading in find_headings(split_lines(part)) if heading.level == 1)
        if words := next(filter(None, titles), ""):
            return words
    return ""


@lru_cache(maxsize=1)
def _parser() -> Any:
    """Return a parser of blocks; what stands inside lines is not parsed."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").disable("inline")
