"""Steps that move whole fields: copy, rename, drop, set."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from reprlib import Repr
from typing import Any, Final, Literal, get_args
from zoneinfo import ZoneInfo

from humanize import naturalsize

from ferryman.document import Document, encode_fields
from ferryman.errors import BadDocument, Dropped

How = Literal["replace", "append", "if-empty"]


@dataclass(frozen=True, slots=True)
class copy_field:
    """Copy a field to another name, replacing an existing one.

    A document without the field is left unchanged. Any value is copied, whatever it holds; later changes of one do not
    show in the other.

    >>> copy_field("title", "sort_title")(Document("a", title="Henry V")).fields
    {'title': 'Henry V', 'sort_title': 'Henry V'}

    Args:
        field: the field to copy.
        to: name of the copy.

    Raises:
        ValueError: when the step is made: a name is empty, or both are the same.
    """

    field: str
    to: str

    def __post_init__(self) -> None:
        _two_names(self.field, self.to)

    def __call__(self, doc: Document) -> Document:
        if self.field in doc:
            doc[self.to] = deepcopy(doc[self.field])
        return doc


@dataclass(frozen=True, slots=True)
class rename_field:
    """Give a field another name, replacing an existing one.

    A document without the field is left unchanged.

    >>> rename_field("Title", "title")(Document("a", Title="Henry V")).fields
    {'title': 'Henry V'}

    Args:
        field: the old name.
        to: the new name.

    Raises:
        ValueError: when the step is made: a name is empty, or both are the same.
    """

    field: str
    to: str

    def __post_init__(self) -> None:
        _two_names(self.field, self.to)

    def __call__(self, doc: Document) -> Document:
        if self.field in doc:
            doc[self.to] = doc.pop(self.field)
        return doc


@dataclass(frozen=True, slots=True)
class drop_fields:
    """Remove fields. Those that are not there are no error.

    >>> drop_fields(["draft", "notes"])(Document("a", title="Henry V", draft=True)).fields
    {'title': 'Henry V'}

    Args:
        fields: one name or several.

    Raises:
        ValueError: when the step is made: there is no name, or an empty one.
    """

    fields: str | Sequence[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", field_names(self.fields))

    def __call__(self, doc: Document) -> Document:
        for name in self.fields:
            doc.pop(name, None)
        return doc


@dataclass(frozen=True, slots=True)
class set_field:
    """Set a field to a value that is the same for all documents.

    >>> set_field("language", "en", how="if-empty")(Document("a", language="")).fields
    {'language': 'en'}
    >>> set_field("tags", "play", how="append")(Document("a", tags="comedy")).fields
    {'tags': ['comedy', 'play']}

    Args:
        field: name of the field.
        value: any value that JSON can hold.
        how: "replace" what is there; "append" to it: what becomes of it is a list, and if ``value`` is a list, each of
            its elements is added; "if-empty": only if there is no such field, or it holds null, an empty text, an
            empty list or an empty dict (0 and false are values).

    Raises:
        ValueError: when the step is made: the name is empty, JSON cannot hold the value, or ``how`` is another.
    """

    field: str
    value: Any
    how: How = "replace"

    def __post_init__(self) -> None:
        field_name(self.field, "field")
        if self.how not in get_args(How):
            raise ValueError(f"how={self.how!r}: choose one of {', '.join(get_args(How))}.")
        try:
            encode_fields({self.field: self.value})
        except BadDocument as e:
            raise ValueError(f"value: {e}") from None
        object.__setattr__(self, "value", deepcopy(self.value))

    def __call__(self, doc: Document) -> Document:
        current = doc.get(self.field)
        value = deepcopy(self.value)
        if self.how == "append":
            doc[self.field] = _as_list(current) + _as_list(value)
        elif self.how == "replace" or current is None or current in ("", [], (), {}):
            doc[self.field] = value
        return doc


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _two_names(field: str, to: str) -> None:
    if field_name(field, "field") == field_name(to, "to"):
        raise ValueError(f"field and to are both {to!r}: give two names.")


# The step that changes dates.

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = {"epoch_second": timedelta(seconds=1), "epoch_millis": timedelta(milliseconds=1)}
"""Names of Elasticsearch and OpenSearch for numbers since 1970."""

_SAMPLE: Final = datetime(2016, 11, 28, 23, 45, 56, 789012, UTC)
_DEFAULT_DATES: Final = (datetime(2000, 1, 1), datetime(2004, 2, 15))  # noqa: DTZ001 - the text says the zone, or nothing does
"""Dates whose parts complete those missing in a text: if the two results differ, the text does not name a day.

They are more than a week apart, so that "Monday" alone is not a date.
"""

_ZONE_SIGN: Final = re.compile(r"\b(?:UTC|GMT)\s*(?=[+-]\d)")
"""Prefix in ``GMT+0200``, by which people mean ``+0200``; the parser would read it as POSIX does, with the sign
reversed."""

_COMMENT: Final = re.compile(r"\([^()]*+\)$")
"""Name of the zone in parentheses at the end, as in dates of mails and of JavaScript."""


@dataclass(frozen=True, slots=True)
class reformat_date:
    """Reformat dates: by default as ISO 8601 in UTC, ``2024-05-01T10:00:00Z``.

    A list is treated element by element. A document without the field is left unchanged.

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
        object.__setattr__(self, "fields", field_names(self.fields))
        formats = (self.formats,) if isinstance(self.formats, str) else tuple(self.formats)
        object.__setattr__(self, "formats", formats)
        for format_ in formats:
            _check_format(format_)
        _zone(self.from_zone)
        _zone(self.to_zone)
        if self.to is not None and (not self.to or self.to in _UNITS):
            raise ValueError(f"to={self.to!r}: give a format of strftime, or None for ISO 8601.")
        if formats and self.day_first:
            raise ValueError("day_first is for dates without formats: the formats say it already.")

    def __call__(self, doc: Document) -> Document:
        return map_values(doc, self.fields, self._reformat, NUMBER_OR_TEXT)

    def _reformat(self, value: str | int | float) -> str:
        moment = self._parse_by_formats(value) if self.formats else self._parse_freely(value)
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

    def _parse_by_formats(self, value: str | int | float) -> datetime:
        for format_ in self.formats:
            try:
                if format_ in _UNITS:
                    return _EPOCH + float(value) * _UNITS[format_]
                if isinstance(value, str):
                    return datetime.strptime(value.strip(), format_)  # noqa: DTZ007 - the zone follows
            except (ValueError, OverflowError):
                continue
        raise ValueError(f"is not a date as in {' or '.join(map(repr, self.formats))}.")

    def _parse_freely(self, value: str | int | float) -> datetime:
        if not isinstance(value, str):
            raise ValueError("is a number. Say what it counts: formats='epoch_second' or 'epoch_millis'.")
        try:
            return datetime.fromisoformat(value.strip())
        except ValueError:
            return _parse_with_dateutil(value, self.day_first)


def _parse_with_dateutil(text: str, day_first: bool) -> datetime:
    """Parse a date with dateutil.

    Raises:
        ValueError: nothing, or no certain day.
    """
    from dateutil import parser  # it takes longer to load than the rest of a plan

    text = _ZONE_SIGN.sub("", _COMMENT.sub("", text.strip()).rstrip())
    try:
        first, second = (
            parser.parse(text, default=blank, dayfirst=day_first, tzinfos=_offset) for blank in _DEFAULT_DATES
        )
    except _UnknownZone as e:
        raise ValueError(f"{e}") from None
    except (ValueError, ArithmeticError):  # it does arithmetic with numbers of any length
        raise ValueError("is not a date that can be read. Say how it is written: formats=….") from None
    if first != second:
        raise ValueError("does not say year, month and day. Say how it is written: formats=….")
    parsed: datetime = first
    return parsed


class _UnknownZone(Exception):
    """The name of a time zone is ambiguous."""


def _offset(name: str | None, seconds: int | None) -> tzinfo | None:
    """Return the time zone of a parsed date for dateutil; None without one."""
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


def _check_format(format_: str) -> None:
    """Check that a format can parse what it writes, at least the year."""
    if format_ in _UNITS:
        return
    try:
        if datetime.strptime(_SAMPLE.strftime(format_), format_).year == _SAMPLE.year:  # noqa: DTZ007
            return
        why = "has no year"
    except (ValueError, TypeError) as e:
        why = str(e)
    raise ValueError(f"format {format_!r}: {why}. Give one of strptime, as '%d.%m.%Y', or {' or '.join(_UNITS)}.")


# The step that drops documents.


@dataclass(frozen=True, slots=True)
class drop_if:
    """Let documents go that a condition is true of, and say why. They end as DROPPED, with the reason.

    >>> step = drop_if(lambda doc: doc.get("draft"), "a draft")
    >>> step(Document("a", title="Henry V")).fields
    {'title': 'Henry V'}

    Args:
        condition: a function of the document; true: it is dropped. What it raises is the document's error.
        why: the reason, a line for people.

    Raises:
        ValueError: when the step is made: the condition cannot be called, or no reason is given.
    """

    condition: Callable[[Document], Any]
    why: str

    def __post_init__(self) -> None:
        if not callable(self.condition):
            raise ValueError(f"condition={self.condition!r}: give a function of the document.")
        if not isinstance(self.why, str) or not self.why.strip():
            raise ValueError(f"why={self.why!r}: say in words why documents are dropped.")

    def __call__(self, doc: Document) -> Document:
        if self.condition(doc):
            raise Dropped(self.why)
        return doc


# Steps that change numbers.

Units = Literal["decimal", "binary"]

_LARGEST: Final = 10**33
"""Bound of sizes: above a thousand quettabytes units have no names."""


@dataclass(frozen=True, slots=True)
class format_size:
    """A number of bytes as people read it: 1500000 as ``1.5 MB``.

    A list is treated element by element. A document without the field is left unchanged. The number is then lost: where
    it is still needed, ``copy_field`` first.

    >>> format_size("size")(Document("a", size=1_500_000))["size"]
    '1.5 MB'
    >>> format_size("size", units="binary")(Document("a", size="1048576"))["size"]
    '1.0 MiB'

    Args:
        fields: one name or several. A value is a number, or a text of digits.
        units: "decimal": kB, MB, … are powers of 1000; "binary": KiB, MiB, … are powers of 1024.
        digits: decimal places, 0 to 9. Bytes themselves have none.

    Raises:
        BadDocument: a value is not a number, is less than 0, or not finite.
        ValueError: when the step is made: no name, other units, other digits.
    """

    fields: str | Sequence[str]
    units: Units = "decimal"
    digits: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", field_names(self.fields))
        if self.units not in get_args(Units):
            raise ValueError(f"units={self.units!r}: choose one of {', '.join(get_args(Units))}.")
        if self.digits not in range(10):
            raise ValueError(f"digits={self.digits!r}: give a number from 0 to 9.")

    def __call__(self, doc: Document) -> Document:
        return map_values(doc, self.fields, self._format, NUMBER_OR_TEXT)

    def _format(self, size: int | float | str) -> str:
        if isinstance(size, str):
            if not (size.isascii() and size.isdigit()):
                raise ValueError("is not a number of bytes. Give a number, or a text of digits.")
            size = int(size)
        if not 0 <= size < _LARGEST:
            raise ValueError("is not a size: give a number of bytes from 0 on.")
        return naturalsize(size, binary=self.units == "binary", format=f"%.{self.digits}f")


# Shared by all steps: names of fields, and fields that hold one value or a list of values.

Kinds = tuple[type, ...]
"""Classes of the values that a step accepts: one of the two below."""

TEXT: Final[Kinds] = (str,)
NUMBER_OR_TEXT: Final[Kinds] = (int, float, str)

_KIND_NAMES: Final = {TEXT: "text", NUMBER_OR_TEXT: "a number or text"}


class StepWithDefaults:
    """A step whose every argument has a default: ``Plan.step("text", extract_text)`` is ``extract_text()``."""

    __slots__ = ()

    def __new__(cls, doc: Document | None = None, /, **_options: Any) -> Any:
        return object.__new__(cls) if doc is None else cls()(doc)

    def __call__(self, doc: Document) -> Any:
        """Apply the function to the document."""
        raise NotImplementedError


_short = Repr()
_short.maxstring = _short.maxother = 60

_SHOWN_CHARACTERS: Final = 80
"""Characters of a value in a message, which is one line; the value may be a whole book."""


def field_names(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of fields given as one text or several, as a tuple.

    Raises:
        ValueError: there is no name, or one that is not text or is empty.
    """
    chosen = (value,) if isinstance(value, str) else tuple(value)
    if not chosen or not all(isinstance(name, str) and name for name in chosen):
        raise ValueError(f"fields {value!r}: give the name of a field, or a list of names.")
    return chosen


def field_name(value: str, argument: str) -> str:
    """Return the name of one field.

    Raises:
        ValueError: it is not text, or empty; names the argument.
    """
    if not isinstance(value, str) or not value:
        raise ValueError(f"{argument}={value!r}: give the name of a field.")
    return value


def field_values(doc: Document, name: str) -> list[str] | None:
    """Return the texts of a field, which holds one or a list of them, without nulls; None without the field.

    Raises:
        BadDocument: a value is not text.
    """
    current = doc.get(name)
    if current is None:
        return None
    present = [value for value in _as_sequence(current) if value is not None]
    for value in present:
        _check_kind(doc, name, value, TEXT)
    return present


def map_values(doc: Document, fields: Sequence[str], change: Callable[[Any], Any], kinds: Kinds = TEXT) -> Document:
    """Apply a function to every value of these fields: to a single value, or to each element of a list.

    Missing fields and nulls stay as they are. ``change`` raises ``ValueError`` to refuse a value.

    Raises:
        BadDocument: a value of another kind, or one that cannot be changed.
    """
    for name in fields:
        current = doc.get(name)
        if current is None:
            continue
        changed = [_change_value(doc, name, value, change, kinds) for value in _as_sequence(current)]
        doc[name] = changed if isinstance(current, (list, tuple)) else changed[0]
    return doc


def unique_keys(names: Iterable[str]) -> Iterator[str]:
    """Yield a unique key for each name: of equal names the second becomes ``name-2``; an empty one becomes its
    index."""
    used: set[str] = set()
    for place, name in enumerate(names):
        first = name or str(place)
        key = next(key for key in (first, *(f"{first}-{n}" for n in range(2, place + 3))) if key not in used)
        used.add(key)
        yield key


def holds_list(doc: Document, name: str) -> bool:
    """Return whether the field holds a list of values."""
    return isinstance(doc.get(name), (list, tuple))


def short_repr(value: Any) -> str:
    """Return a short repr of a value, for a message."""
    text = _short.repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def bad_field(doc: Document, name: str, why: str) -> BadDocument:
    """Return the error for a field that a step cannot process."""
    return BadDocument(f"{doc.id}: field {name!r} {why}")


def _as_sequence(current: Any) -> Sequence[Any]:
    return current if isinstance(current, (list, tuple)) else [current]


def _change_value(doc: Document, name: str, value: Any, change: Callable[[Any], Any], kinds: Kinds) -> Any:
    if value is None:
        return None
    _check_kind(doc, name, value, kinds)
    try:
        return change(value)
    except ValueError as e:
        raise bad_field(doc, name, f"holds {short_repr(value)}: {e}") from None


def _check_kind(doc: Document, name: str, value: Any, kinds: Kinds) -> None:
    if not isinstance(value, kinds) or isinstance(value, bool):
        kind_name = _KIND_NAMES[kinds]
        raise bad_field(
            doc,
            name,
            f"holds {short_repr(value)}, a {type(value).__name__}, where {kind_name} is needed. "
            f"Make {kind_name} of it in a step before this one, or give other fields.",
        )
