"""Inventory of a destination, for ``ferryman verify``: its deliveries, and hashes that show whether their content was
changed since it was written."""

from __future__ import annotations

import datetime as dt
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

_T = TypeVar("_T")


class Stored(NamedTuple):
    """A delivery as a destination holds it.

    Attributes:
        id: the document's id.
        hash: the delivery's hash.
        intact: whether the stored content is what was written; None: unknown.
        source, version, route: as the delivery's; "" and () if they are not stored.
    """

    id: str
    hash: str
    intact: bool | None = None
    source: str = ""
    version: str = ""
    route: tuple[str, ...] = ()


def content_hash(*values: str | bytes | int | None) -> str:
    """Return a hash over these values, 32 hex digits of BLAKE2b-128.

    Raises:
        UnicodeEncodeError: a text has a lone surrogate.
    """
    return hash_of_values(values)


def hash_of_values(values: tuple[str | bytes | int | None, ...]) -> str:
    """Return ``content_hash`` of a tuple of values, for loops over all rows."""
    return blake2b(_pack(values), digest_size=16).hexdigest()


def canonical_json(text: bytes) -> bytes:
    """Return JSON in a form that is the same after a store has parsed and printed it: keys sorted, numbers of equal
    value written alike (1.0 and 1e0 as 1), U+FFFD for NUL."""
    value = _decode(text)
    return _encode(without_nul(value) if _NUL in text else value)


def canonical_fields(fields: bytes) -> bytes:
    """Return ``canonical_json`` of fields as ``encode_fields`` writes them: with sorted keys already."""
    return canonical_json(fields) if _FLOAT.search(fields) or _NUL in fields else fields


def without_nul(value: Any) -> Any:
    """Return a JSON value with U+FFFD for each NUL in its texts, for stores that have no NUL."""
    match value:
        case str():
            return value.replace("\0", "\ufffd")
        case list():
            return [without_nul(each) for each in value]
        case dict():
            return {without_nul(name): without_nul(each) for name, each in value.items()}
        case _:
            return value


def slices(values: Iterable[str], size: int) -> Iterator[list[str]]:
    """Split values into lists of at most this size."""
    remaining = iter(values)
    while some := list(islice(remaining, size)):
        yield some


def split_by_size(rows: Iterable[_T], size_of: Callable[[_T], int], limit: int) -> Iterator[list[_T]]:
    """Split rows into lists whose sizes add up to at most this limit; a row that is larger is alone."""
    some: list[_T] = []
    total = 0
    for row in rows:
        size = size_of(row)
        if some and total + size > limit:
            yield some
            some, total = [], 0
        some.append(row)
        total += size
    if some:
        yield some


def is_same_value(stored: Any, written: Any, is_text: bool) -> bool:
    """Return whether a column has this value, however its type has changed the form of it: ``1`` for true, ``2.50`` for
    2.5, ``2024-01-01 00:00:00`` for ``2024-01-01T00:00Z``.

    Args:
        is_text: whether the column keeps text as it was written. Of any other one, a value whose form says nothing is
            believed to be the same.
    """
    if stored is None or written is None:
        return stored is None and written is None
    text = str(stored)
    if isinstance(written, bool):
        return text.lower() in (("1", "1.0", "t", "true") if written else ("0", "0.0", "f", "false"))
    if isinstance(written, list | dict):
        return canonical_json(text.encode()) == canonical_json(_encode(written))
    if isinstance(written, int | float):
        return _is_same_number(text, written)
    if text == written or text == written.replace("\0", "\ufffd"):
        return True
    return not is_text and _may_be_same(text, written)


def _is_same_number(text: str, written: float) -> bool:
    """Return whether a number is printed by this text, perhaps with the precision of a column: that of a 64-bit or a
    32-bit float, or 15 digits, as SQLite makes floats text."""
    try:
        number, exact = Decimal(text), Decimal(repr(written))
        if number == exact or not number.is_finite():
            return number == exact
        if isinstance(written, int) and text.lstrip("+-").isdecimal():
            return False
        digits = len(number.as_tuple().digits)
        return (
            float(number) == float(written)
            or number == Decimal(f"{written:.15g}")
            or (digits <= _SINGLE_DIGITS and _single(float(number)) == _single(float(written)))
        )
    except (InvalidOperation, OverflowError):
        return False


_SINGLE_DIGITS: Final = 9
"""Digits that a 32-bit float is printed with, at most."""


def _single(number: float) -> float:
    """Return a number with the precision of a 32-bit float.

    Raises:
        OverflowError: it is too large for one.
    """
    single: float = struct.unpack("f", struct.pack("f", number))[0]
    return single


def _may_be_same(text: str, written: str) -> bool:
    """Return whether two texts may be forms of one value."""
    if text.rstrip() == written.rstrip():  # char(n)
        return True
    for parse in (Decimal, _instant):
        with suppress(ValueError, InvalidOperation):
            expected = parse(written)
            with suppress(ValueError, InvalidOperation):
                found = parse(text)
                return bool(found == expected) or (parse is Decimal and float(text) == float(written))
            return False
    return True


def _instant(text: str) -> dt.datetime:
    """Parse a date or a time; one without a zone is in UTC.

    Raises:
        ValueError: it is none.
    """
    instant = dt.datetime.fromisoformat(text.strip())
    return instant if instant.tzinfo else instant.replace(tzinfo=dt.UTC)


_FLOAT: Final = re.compile(rb"[:,\[]-?[0-9]+[.eE]")
"""Matches where JSON may have a number that is not an integer; also inside of texts."""

_NUL: Final = rb"\u0000"


def _canonical_number(literal: str) -> int | float:
    number = float(literal)
    return int(Decimal(repr(number))) if number.is_integer() else number


_pack = msgspec.msgpack.Encoder().encode
_decode = msgspec.json.Decoder(float_hook=_canonical_number).decode
_encode = msgspec.json.Encoder(order="sorted").encode
