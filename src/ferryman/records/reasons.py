"""Why a delivery failed: what its event's ``message`` holds, and how messages are grouped.

The first line is the reason. Of an error that nobody foresaw, the traceback may follow in the lines after it.
"""

from __future__ import annotations

from typing import Final

from ferryman import limits

HEADING: Final = "Traceback (most recent call last):"
_MARK: Final = f"\n{HEADING}\n"

LONGEST: Final = limits.TRACE_CHARACTERS
"""Characters of a traceback that are kept: its first line, and the last ones."""


def with_traceback(reason: str, trace: str) -> str:
    """Both as one message. ``trace``: without its heading; "": none."""
    return f"{reason}{_MARK}{trace}" if trace else reason


def reason_of(message: str) -> str:
    """The message without its traceback."""
    return message.partition(_MARK)[0]


def traceback_of(message: str) -> str:
    """The traceback with its heading; "": there is none."""
    _, mark, trace = message.partition(_MARK)
    return f"{HEADING}\n{trace}" if mark else ""


def reason_sql() -> str:
    """Of an event's columns ``message`` and ``document``, the reason as SQL: without traceback, without the document's
    id before it and the number of the attempt after it; "" if there is none."""
    first = f"split_part(coalesce(message, ''), chr(10) || '{HEADING}' || chr(10), 1)"
    about = (
        f"CASE WHEN starts_with({first}, document || ': ') THEN substr({first}, length(document) + 3) ELSE {first} END"
    )
    return f"regexp_replace({about}, ' \\((attempt [0-9]+, the last|no attempt is spent)\\)$', '')"


def alike_sql(reason: str) -> str:
    """What reasons that differ only in numbers and in what they quote have in common, and the line of code, as SQL."""
    plain = f"regexp_replace({reason}, '[0-9]+|''[^'']*''|\"[^\"]*\"', '0', 'g')"
    return f"{plain} || regexp_extract({reason}, ':[0-9]+\\)$')"
