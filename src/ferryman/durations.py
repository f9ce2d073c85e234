"""Durations and rates as people write them: ``90s``, ``15m``, ``2h``, ``1d``; ``100/s``, ``6000/m``."""

from __future__ import annotations

import re
from typing import Final

UNITS_S: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds(text: str) -> float:
    """``60``, ``60s``, ``1.5m``, ``2h``, ``1d``, ``500ms`` as seconds.

    Raises:
        ValueError: not a duration.
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d|)", text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r}: give seconds, or a number with ms, s, m, h or d: 60, 60s, 2m, 1d")
    return float(found[1]) * UNITS_S[found[2]]


def per_second(rate: object) -> float:
    """``100``, ``100/s``, ``6000/m``, ``6000/min``, ``50/h`` as a number a second, above 0.

    Raises:
        ValueError: not a rate.
    """
    count, slash, unit = str(rate).replace(" ", "").lower().partition("/")
    unit = {"sec": "s", "min": "m", "hour": "h", "day": "d"}.get(unit, unit)
    found = re.fullmatch(r"\d+(?:\.\d*)?|\.\d+", count)
    known = unit in ("s", "m", "h", "d") if slash else not isinstance(rate, bool)
    if found is None or not known or not float(count):
        raise ValueError(f"{rate!r}: give a number a second, or text as in '100/s', '600/m', '50/h'")
    return float(count) / UNITS_S[unit]
