"""Messages: checking what is appended, and decoding what is read."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from ferryman import limits
from ferryman.errors import UsageError, plain_text

CONTENT: Final = pa.schema(
    [pa.field("message", pa.string()), pa.field("meta", pa.string()), pa.field("hash", pa.string())]
)
"""Columns of messages to append; index and time are added by the append."""

ROWS: Final = pa.schema(
    [pa.field("index", pa.int64(), nullable=False), *CONTENT, pa.field("created", pa.timestamp("us", tz="UTC"))]
)
"""Columns of stored messages."""


@dataclass(frozen=True, slots=True)
class Message:
    """Message of a queue, which never changes."""

    index: int
    """Position in the queue, from 1 without gaps."""
    body: dict[str, Any]
    meta: dict[str, Any]
    created: dt.datetime
    """Time of the append, in UTC."""


def content_of(bodies: Iterable[Mapping[str, Any]], meta: Mapping[str, Any] | None = None) -> pa.Table:
    """Encode messages as rows to append.

    Args:
        meta: stored with each of them.

    Raises:
        UsageError: one is not a JSON object; names it and says why.
    """
    if isinstance(bodies, Mapping | str | bytes):
        raise UsageError("append takes a list of messages, each a JSON object: append([{…}]). Nothing was appended.")
    texts = [_appendable(body, f"message {place}") for place, body in enumerate(bodies, 1)]
    encoded_meta = _appendable(meta, "meta") if meta else None
    parts = [_table(texts[start:stop], encoded_meta) for start, stop in _slice_to_fit(texts)]
    return pa.concat_tables(parts) if parts else CONTENT.empty_table()


def messages_of(rows: pa.Table) -> list[Message]:
    """Decode stored rows to messages."""
    columns = [rows.column(name).to_pylist() for name in ("index", "message", "meta", "created")]
    return [
        Message(index, json.loads(message), json.loads(meta) if meta else {}, created)
        for index, message, meta, created in zip(*columns, strict=True)
    ]


def _slice_to_fit(texts: list[str]) -> Iterable[tuple[int, int]]:
    """Yield slices whose content an Arrow column can hold: 2 GiB."""
    start = size = 0
    for n, text in enumerate(texts):
        size += len(text)
        if size > limits.QUEUE_MESSAGE_BYTES and n > start:
            yield start, n
            start, size = n, len(text)
    if start < len(texts):
        yield start, len(texts)


def _table(texts: list[str], meta: str | None) -> pa.Table:
    nothing = pa.nulls(len(texts), pa.string())
    return pa.table([pa.array(texts, pa.string()), pa.array([meta] * len(texts), pa.string()), nothing], CONTENT)


def _appendable(body: object, what: str) -> str:
    try:
        return text_of(body)
    except (TypeError, ValueError) as e:
        raise UsageError(f"{what}: {plain_text(e)}. Nothing was appended.") from None


def text_of(body: object) -> str:
    """Encode a message, or its ``meta``, as JSON.

    Raises:
        TypeError, ValueError: it is not a JSON object, or too large; says what is wrong.
    """
    if not isinstance(body, Mapping):
        raise TypeError(f"a {type(body).__name__} is not a JSON object")
    plain = _plain(body, 0)
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if _lone_surrogate(text):
        text = json.dumps(plain, allow_nan=False, separators=(",", ":"))
    if len(text) > limits.QUEUE_MESSAGE_BYTES:
        most = limits.QUEUE_MESSAGE_BYTES // limits.MIB
        raise ValueError(f"it has more than {most} MiB: append what names the content")
    return text


def _lone_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _plain(value: object, depth: int) -> Any:
    """Return the value converted to JSON types, so that what is read equals what was appended.

    Raises:
        TypeError, ValueError: it contains a value that JSON cannot represent.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON has no {value}")
        return value
    if depth >= limits.QUEUE_NESTED:
        raise ValueError(f"it is nested more than {limits.QUEUE_NESTED} deep")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} is not a string")
        return {key: _plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, depth + 1) for each in value]
    raise TypeError(f"JSON has no form for a {type(value).__name__}")
