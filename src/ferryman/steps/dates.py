"""The step that changes dates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from ferryman.document import Document
from ferryman.steps.values import NUMBER_OR_TEXT, each, names

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = {"epoch_second": timedelta(seconds=1), "epoch_millis": timedelta(milliseconds=1)}
"""Names of Elasticsearch and OpenSearch for numbers since 1970."""

_SAMPLE: Final = datetime(2016, 11, 28, 23, 45, 56, 789012, UTC)
_BLANKS: Final = (datetime(2000, 1, 1), datetime(2004, 2, 15))  # noqa: DTZ001 - the text says the zone, or nothing does
"""What fills the gaps of a text: where both do not come to the same day, the text does not say the day.

They are more than a week apart, so that "Monday" alone is not a date.
"""

_ZONE_SIGN: Final = re.compile(r"\b(?:UTC|GMT)\s*(?=[+-]\d)")
"""``GMT+0200`` is what everybody writes for ``+0200``; the parser would take it as POSIX does, the other way round."""

_COMMENT: Final = re.compile(r"\s*\([^()]*\)$")
"""Mail and JavaScript repeat the zone's name at the end, in parentheses."""


@dataclass(frozen=True, slots=True)
class reformat_date:
    """Reformat dates: by default as ISO 8601 in UTC, ``2024-05-01T10:00:00Z``.

    A list is treated element by element. Without the field nothing is done.

    >>> reformat_date("modified")(Document("a", modified="Wed, 01 May 2024 12:00:00 +0200"))["modified"]
    '2024-05-01T10:00:00Z'
    >>> reformat_date("day", "%Y-%m-%d", formats="%d.%m.%Y")(Document("a", day="1.5.2024"))["day"]
    '2024-05-01'

    Without ``formats`` the text is read as ISO 8601, and what is not that, by dateutil: ``1 May 2024 10:00``,
    ``05/01/2024``, dates of mails. It must say year, month and day; without a time of day it is midnight. Of
    ``01/02/2024`` the first number is the month, unless ``day_first`` says otherwise: where it matters, give
    ``formats``. A year of two digits is the one nearest to today. Names of time zones other than UTC and GMT mean
    different things to different people and are refused. Of an hour that the clocks go through twice it is the first.

    Args:
        fields: one name or several.
        to: what to write, as in ``strftime``; None: ISO 8601.
        formats: how dates are written, one format or several, tried in this order: as in ``strptime``, or
            "epoch_second" or "epoch_millis" for numbers since 1970 (also as text). What ``strptime`` is not told is the
            first of January, and midnight.
        from_zone: IANA name of the time zone that times are of which say none.
        to_zone: IANA name of the time zone to write times in.
        day_first: without ``formats``: read ``01/02/2024`` as the first of February.

    Raises:
        BadDocument: a value is not a date that can be read so, or is before the year 1 or after 9999.
        ValueError: when the step is made: no name, an unknown zone, or an invalid format.
    """

    fields: str | Sequence[str]
    to: str | None = None
    formats: str | Sequence[str] = ()
    from_zone: str = "UTC"
    to_zone: str = "UTC"
    day_first: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", names(self.fields))
        formats = (self.formats,) if isinstance(self.formats, str) else tuple(self.formats)
        object.__setattr__(self, "formats", formats)
        for wanted in formats:
            _check_format(wanted)
        _zone(self.from_zone)
        _zone(self.to_zone)
        if self.to is not None and (not self.to or self.to in _UNITS):
            raise ValueError(f"to={self.to!r}: give a format of strftime, or None for ISO 8601.")
        if formats and self.day_first:
            raise ValueError("day_first is for dates without formats: the formats say it already.")

    def __call__(self, doc: Document) -> Document:
        return each(doc, self.fields, self._rewritten, NUMBER_OR_TEXT)

    def _rewritten(self, value: str | int | float) -> str:
        moment = self._by_formats(value) if self.formats else self._guessed(value)
        try:
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=_zone(self.from_zone))
            moment = moment.astimezone(_zone(self.to_zone))
        except OverflowError:
            raise ValueError("is before the year 1 or after 9999.") from None
        if self.to is not None:
            return moment.strftime(self.to)
        text = moment.isoformat()
        return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text

    def _by_formats(self, value: str | int | float) -> datetime:
        for wanted in self.formats:
            try:
                if wanted in _UNITS:
                    return _EPOCH + float(value) * _UNITS[wanted]
                if isinstance(value, str):
                    return datetime.strptime(value.strip(), wanted)  # noqa: DTZ007 - the zone follows
            except (ValueError, OverflowError):
                continue
        raise ValueError(f"is not a date as in {' or '.join(map(repr, self.formats))}.")

    def _guessed(self, value: str | int | float) -> datetime:
        if not isinstance(value, str):
            raise ValueError("is a number. Say what it counts: formats='epoch_second' or 'epoch_millis'.")
        try:
            return datetime.fromisoformat(value.strip())
        except ValueError:
            return _parsed(value, self.day_first)


def _parsed(text: str, day_first: bool) -> datetime:
    """What dateutil makes of it.

    Raises:
        ValueError: nothing, or no certain day.
    """
    from dateutil import parser  # it takes longer to load than the rest of a plan

    text = _ZONE_SIGN.sub("", _COMMENT.sub("", text.strip()))
    try:
        first, second = (parser.parse(text, default=blank, dayfirst=day_first, tzinfos=_offset) for blank in _BLANKS)
    except _UnknownZone as e:
        raise ValueError(f"{e}") from None
    except (ValueError, ArithmeticError):  # it does arithmetic with numbers of any length
        raise ValueError("is not a date that can be read. Say how it is written: formats=….") from None
    if first != second:
        raise ValueError("does not say year, month and day. Say how it is written: formats=….")
    found: datetime = first
    return found


class _UnknownZone(Exception):
    """A time zone's name that may be several."""


def _offset(name: str | None, seconds: int | None) -> tzinfo | None:
    """The zone of a parsed date; None where it says none."""
    if name is None and seconds is None:
        return None
    if seconds is None or (seconds and name):
        raise _UnknownZone(f"names the time zone {name}, which is not known for certain. Write its offset, as +02:00.")
    return timezone(timedelta(seconds=seconds))


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        raise ValueError(f"time zone {name!r}: give an IANA name, such as 'UTC' or 'Europe/Paris'.") from None


def _check_format(wanted: str) -> None:
    """It reads what it writes, the year at least."""
    if wanted in _UNITS:
        return
    try:
        if datetime.strptime(_SAMPLE.strftime(wanted), wanted).year == _SAMPLE.year:  # noqa: DTZ007
            return
        why = "has no year"
    except (ValueError, TypeError) as e:
        why = str(e)
    raise ValueError(f"format {wanted!r}: {why}. Give one of strptime, as '%d.%m.%Y', or {' or '.join(_UNITS)}.")
