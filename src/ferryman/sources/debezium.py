"""Debezium's change events: JSON with or without a schema, decoded from the key and the value of a message."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from ferryman.document import json_error
from ferryman.errors import BadDocument
from ferryman.sources.base import id_of_columns

UNAVAILABLE: Final = frozenset({"__debezium_unavailable_value", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="})
"""Placeholders for a value that the database did not log, as text and as base64."""


class ChangeEvent(NamedTuple):
    """Change of one row."""

    id: str
    fields: dict[str, Any] | None
    """The row; None: it was deleted."""


def event_id(key: bytes | None, value: bytes | None) -> str:
    """Return the id of the row that an event is about: the values of the key's columns.

    Raises:
        BadDocument: the key is not one of Debezium's.
    """
    if key is None:
        if value is not None and _payload(value, "value").get("op") == "t":
            raise BadDocument(
                "the table was truncated, and a topic does not say which rows that deletes. Delete their documents "
                "(a new version of the plan, with an empty destination), then have the plan pass this message"
            )
        raise BadDocument("the event has no key: the table has no primary key, or message.key.columns is missing")
    columns = _payload(key, "key")
    if not columns:
        raise BadDocument(f"the key has no columns: {key[:40]!r}")
    return id_of_columns([_text_of(value) for value in columns.values()])


def read_event(key: bytes | None, value: bytes | None) -> ChangeEvent:
    """Decode an event. A snapshot's rows (``r``), inserts and updates have the row; a delete, and the null after it,
    have none.

    Raises:
        BadDocument: it is not one of Debezium's, is a TRUNCATE, or lacks a value that the database did not log.
    """
    id = event_id(key, value)
    if value is None:
        return ChangeEvent(id, None)
    event = _payload(value, "value")
    match event.get("op"):
        case "c" | "u" | "r":
            after = event.get("after")
            if not isinstance(after, dict):
                raise BadDocument("the event has no row in 'after'")
            return ChangeEvent(id, _without_placeholders(after, event.get("before")))
        case "d":
            return ChangeEvent(id, None)
        case op:
            raise BadDocument(f"the event has op={op!r}: expected c, u, r or d. Is it unwrapped? Then use 'json'")


def _payload(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise BadDocument(f"the {what} is not JSON: {json_error(data, e)}") from e
    if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
        found = found["payload"]
    if not isinstance(found, dict):
        raise BadDocument(f"the {what} is not an event of Debezium: {data[:40]!r}")
    return found


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def _without_placeholders(after: dict[str, Any], before: Any) -> dict[str, Any]:
    """Return the row with the values of the old row in place of placeholders."""
    missing = [name for name, value in after.items() if _is_placeholder(value)]
    if not missing:
        return after
    old = before if isinstance(before, dict) else {}
    if unknown := [name for name in missing if name not in old or _is_placeholder(old[name])]:
        raise BadDocument(
            f"the event lacks {', '.join(unknown)}, which did not change and was not logged: give the table REPLICA "
            "IDENTITY FULL, or Debezium a reselect processor"
        )
    return {**after, **{name: old[name] for name in missing}}


def _is_placeholder(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) == 1 and _is_placeholder(value[0])
    return isinstance(value, str) and value in UNAVAILABLE
