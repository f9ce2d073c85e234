"""Debezium's change events: what a message means, and what it must never become."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ferryman.errors import BadDocument, UsageError
from ferryman.sources import Kafka
from ferryman.sources.debezium import UNAVAILABLE, read_event


def message(value: Any) -> bytes | None:
    return None if value is None else json.dumps(value).encode()


def event(op: str, after: Any = None, before: Any = None) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": {"table": "items"}, "ts_ms": 1}


def with_schema(payload: Any) -> dict[str, Any]:
    return {"schema": {"type": "struct"}, "payload": payload}


ROW = {"id": 7, "name": "seven"}


@pytest.mark.parametrize("wrap", [lambda value: value, with_schema])
@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (event("r", ROW), ROW),
        (event("c", ROW), ROW),
        (event("u", ROW, {"id": 7, "name": "six"}), ROW),
        (event("d", None, ROW), None),
    ],
)
def test_what_an_event_says(wrap: Any, value: Any, fields: Any) -> None:
    found = read_event(message(wrap({"id": 7})), message(wrap(value)))
    assert (found.id, found.fields) == ("7", fields)


def test_the_null_after_a_delete_deletes_once_more() -> None:
    assert read_event(message({"id": 7}), None) == ("7", None)


@pytest.mark.parametrize(
    ("key", "id"),
    [
        ({"id": "a/b"}, "a/b"),
        ({"a": 1, "b": "x/y%"}, "1/x%2Fy%25"),
        ({"id": True}, "true"),
        ({"id": 9007199254740993}, "9007199254740993"),
    ],
)
def test_the_id_is_that_of_the_key(key: Any, id: str) -> None:
    assert read_event(message(key), message(event("c", {"n": 1}))).id == id


@pytest.mark.parametrize("placeholder", [*sorted(UNAVAILABLE), ["__debezium_unavailable_value"]])
@pytest.mark.rule("tables.omitted")
def test_a_placeholder_is_never_a_value(placeholder: Any) -> None:
    after = {"id": 7, "body": placeholder}
    with pytest.raises(BadDocument, match="lacks body, which did not change and was not logged"):
        read_event(message({"id": 7}), message(event("u", after)))
    with pytest.raises(BadDocument, match="lacks body"):
        read_event(message({"id": 7}), message(event("u", after, {"id": 7, "body": placeholder})))
    found = read_event(message({"id": 7}), message(event("u", after, {"id": 7, "body": "known"})))
    assert found.fields == {"id": 7, "body": "known"}


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (None, event("t"), "the table was truncated"),
        (None, event("c", ROW), "no key"),
        (None, None, "no key"),
        ({}, event("c", ROW), "no columns"),
        ({"id": 7}, event("x", ROW), "op='x'"),
        ({"id": 7}, event("c"), "no row"),
        ({"id": 7}, ROW, "op=None"),
        ({"id": 7}, [1], "not an event"),
        ("text", event("c", ROW), "not an event"),
    ],
)
def test_what_is_refused(key: Any, value: Any, why: str) -> None:
    with pytest.raises(BadDocument, match=why):
        read_event(message(key), message(value))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_not_json(data: bytes) -> None:
    with pytest.raises(BadDocument):
        read_event(data, b"{}")
    with pytest.raises(BadDocument):
        read_event(message({"id": 7}), data)


def test_events_are_of_keys() -> None:
    with pytest.raises(UsageError, match="keyed=True"):
        Kafka("h:1", "t", format="debezium")
