"""Text of strangers in a cell of a page: ids, messages, values.

Templates escape markup. This module makes what is left harmless and short: control characters and characters that turn
the direction of text are written as escapes, logins in URLs are left out, and what is long is cut in its middle.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
import time
from typing import Any, Final

from markupsafe import Markup, escape

from ferryman.limits import MESSAGE_CHARACTERS, format_count, plural
from ferryman.net.urls import redact
from ferryman.observe import format_size, one_line

ID_CHARACTERS: Final = 160
TEXT_CHARACTERS: Final = 600
WORD_CHARACTERS: Final = MESSAGE_CHARACTERS
LINKED_CHARACTERS: Final = 6_000
"""Longest id that has a link: servers and proxies refuse URLs of more than 64 kB."""
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s\"'<>]+")
_UNITS: Final = ((86_400.0, "day"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


def clean(text: object, limit: int = TEXT_CHARACTERS) -> str:
    """Return text on one line, harmless and not too long; URLs in it without logins and queries."""
    return "" if text is None else _harmless(_cut(mask_urls(str(text)), limit))


def clean_lines(text: str, limit: int = 20_000) -> str:
    """Return text of several lines, such as a traceback, as ``clean``."""
    return "\n".join(clean(line, 2_000) for line in _cut(mask_urls(text), limit).splitlines())


def mask_urls(text: str) -> str:
    """Leave the logins and queries of all URLs in a text out."""
    return _URL.sub(lambda found: redact(found[0]), text)


def _harmless(text: str) -> str:
    return one_line(text).encode("utf-8", "replace").decode()


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = (limit - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def code(text: object, limit: int = ID_CHARACTERS) -> Markup:
    """Return an id or a value as HTML: its direction is its own, and a cut one says how long it is."""
    whole = "" if text is None else str(text)
    hint = f' title="{format_count(len(whole))} characters"' if len(whole) > limit else ""
    return Markup(f"<bdi{hint}>") + escape(_harmless(_cut(whole, limit))) + Markup("</bdi>")


def command_of(*words: str) -> str:
    """Return a command as a page shows it, quoted for a shell.

    Its words are made harmless before they are quoted: a cut through a quoted one could put the rest of it outside of
    its quotes.
    """
    return f"ferryman {shlex.join(clean(word, WORD_CHARACTERS) for word in words)}"


def as_json(value: Any, limit: int = 2_000) -> str:
    """Return a JSON value as text."""
    return clean(json.dumps(value, ensure_ascii=False, default=str), limit)


def when(value: object) -> Markup:
    """Return a time as HTML: how long ago, with the time itself; a script of ours puts it into the reader's zone.

    Args:
        value: ISO 8601 text, seconds since 1970, or None.
    """
    found = _moment(value)
    if found is None:
        return Markup("")
    iso, text = found.isoformat(timespec="seconds"), f"{found:%Y-%m-%d %H:%M:%S} UTC"
    words = ago(found.timestamp() - time.time())
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso, text, words)


def moment(value: object) -> Markup:
    """Return a time as HTML, itself: in UTC, until a script of ours puts it into the reader's zone."""
    found = _moment(value)
    if found is None:
        return Markup("")
    iso = found.isoformat(timespec="seconds")
    words = ago(found.timestamp() - time.time())
    return Markup('<time class="full" datetime="{}" title="{}">{:%Y-%m-%d %H:%M:%S} UTC</time>').format(
        iso, words, found
    )


def _moment(value: object) -> dt.datetime | None:
    if value in (None, ""):
        return None
    try:
        if isinstance(value, int | float):
            return dt.datetime.fromtimestamp(value, dt.UTC)
        found = value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(str(value))
    except (ValueError, OverflowError, OSError):
        return None
    return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found.astimezone(dt.UTC)


def ago(seconds: float) -> str:
    """Return a difference from now in words: ``3 min ago``, ``in 2 h``, ``now``."""
    words = duration(abs(seconds))
    if abs(seconds) < 1:
        return "now"
    return f"in {words}" if seconds > 0 else f"{words} ago"


def duration(seconds: float) -> str:
    """Return a duration in its largest unit: ``12 min``."""
    for size, unit in _UNITS:
        if seconds >= size:
            number = int(seconds // size)
            return f"{number} {unit}{'s' if unit == 'day' and number != 1 else ''}"
    return f"{seconds:.1f} s" if seconds >= _SHORTEST_S else "0 s"


_SHORTEST_S: Final = 0.05


def rate(number: int, seconds: float) -> str:
    """Return a rate: ``120/s``, ``4/min``; "" if nothing was done, or in less time than ``duration`` shows."""
    if not number or seconds < _SHORTEST_S:
        return ""
    per_s = number / seconds
    return f"{format_count(round(per_s))}/s" if per_s >= 1 else f"{max(1, round(per_s * 60))}/min"


FILTERS: Final = {
    "clean": clean,
    "clean_lines": clean_lines,
    "code": code,
    "as_json": as_json,
    "when": when,
    "moment": moment,
    "duration": duration,
    "count": format_count,
    "size": format_size,
}
"""Filters of the templates."""

FUNCTIONS: Final = {"plural": plural, "rate": rate, "linked_characters": LINKED_CHARACTERS}
"""Functions that templates call, and limits."""
