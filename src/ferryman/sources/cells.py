"""Values of a database's rows as JSON values."""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from typing import Any, Final

import msgspec

_AS_TEXT: Final = (
    uuid.UUID,
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)

_AS_THEY_ARE: Final = frozenset({str, int, bool, type(None)})


def json_value(value: Any) -> Any:
    """What JSON has for it: see ``sources.Sql``.

    Raises:
        TypeError: a value of a type that is not known here; names the type.
    """
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is float:
        return value if abs(value) != float("inf") and value == value else None
    match value:
        case dt.datetime():
            return moment(value)
        case dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return msgspec.to_builtins(value)
        case Decimal():
            return format(value, "f") if value.is_finite() else None
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case Enum():
            return json_value(value.value)
        case Mapping():
            return {str(name): json_value(each) for name, each in value.items()}
        case list() | tuple():
            return [json_value(each) for each in value]
        case set() | frozenset():
            return sorted(map(json_value, value), key=str)
        case str():
            return str(value)
        case int():
            return int(value)
    if isinstance(value, _AS_TEXT):
        return str(value)
    if kind is NestedTooDeep:
        raise TypeError("JSON that is nested too deep")
    raise TypeError(f"a {kind.__name__}")


class NestedTooDeep:
    """A JSON value of the database that is nested deeper than it can be read."""


def loaded(text: str | bytes) -> Any:
    """A JSON value of the database, as its driver gives it; one that is nested too deep must not end the query."""
    try:
        return json.loads(text)
    except RecursionError:
        return NestedTooDeep()


def moment(value: dt.datetime) -> str:
    """ISO 8601: an instant in UTC, so that the text does not depend on the session's time zone; others as they are."""
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(dt.UTC).replace(tzinfo=None).isoformat() + "Z"


def id_text(value: Any) -> str:
    """The text of an id; "" for what names nothing.

    Raises:
        TypeError: neither text nor a number.
    """
    match value:
        case None:
            return ""
        case bool():
            pass
        case str():
            return value
        case int() | uuid.UUID():
            return str(value)
        case Decimal():
            return format(value, "f") if value.is_finite() else ""
        case float():
            return "" if value != value else str(value)
    raise TypeError(f"a {type(value).__name__}")
