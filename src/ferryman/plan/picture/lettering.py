"""How wide words are, and how to shorten them, without asking a font: which one will be used is not known here."""

from __future__ import annotations

import re
import unicodedata

NARROW, WIDE = frozenset("iljtfrI.,:;'|!()[]/ "), frozenset("mwMWQOGD@%—…")
EMS_NARROW, EMS_WIDE, EMS_ELSE, EMS_EAST_ASIAN = 0.36, 0.92, 0.6, 1.05
"""Widths in parts of the font's size; a little more than the usual fonts without serifs have."""


def width(words: str, px: float, *, bold: bool = False) -> float:
    """Pixels that the words take at most in a font of this size, or a little less."""
    return sum(map(_ems, words)) * px * (1.1 if bold else 1.0)


def shortened(words: str, most: int) -> str:
    """At most so many signs; the middle is left out, for the ends of names and paths tell more."""
    if len(words) <= most:
        return words
    head = (most - 1) // 2
    return f"{words[:head]}…{words[len(words) - (most - 1 - head) :]}"


def printable(words: str) -> str:
    """What XML cannot hold (control characters, halves of surrogate pairs) as the replacement sign."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", words)


def _ems(sign: str) -> float:
    if sign in NARROW:
        return EMS_NARROW
    if sign in WIDE:
        return EMS_WIDE
    return EMS_EAST_ASIAN if unicodedata.east_asian_width(sign) in "WF" else EMS_ELSE
