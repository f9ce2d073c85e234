"""A message: what is appended, checked; what is read."""

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
"""What is appended; index and time are given to it at the append."""

ROWS: Final = pa.schema(
    [pa.field("index", pa.int64(), nullable=False), *CONTENT, pa.field("created", pa.timestamp("us", tz="UTC"))]
)
"""What is stored."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a queue. It never changes."""

    index: int
    """From 1, one more for each message."""
    body: dict[str, Any]
    meta: dict[str, Any]
    created: dt.datetime
    """When it was appended, in UTC."""


def content_of(bodies: Iterable[Mapping[str, Any]], meta: Mapping[str, Any] | None = None) -> pa.Table:
    """Messages as rows to append.

    Args:
        meta: of each of them.

    Raises:
        UsageError: one is not a JSON object; names it and says why.
    """
    if isinstance(bodies, Mapping | str | bytes):
        raise UsageError("append takes a list of messages, each a JSON object: append([{…}]). Nothing was appended.")
    texts = [_appendable(body, f"message {place}") for place, body in enumerate(bodies, 1)]
    about = _appendable(meta, "meta") if meta else None
    parts = [_table(texts[start:upto], about) for start, upto in _bounded(texts)]
    return pa.concat_tables(parts) if parts else CONTENT.empty_table()


def messages_of(rows: pa.Table) -> list[Message]:
    """Stored rows as messages."""
    columns = [rows.column(name).to_pylist() for name in ("index", "message", "meta", "created")]
    return [
        Message(index, json.loads(message), json.loads(meta) if meta else {}, created)
        for index, message, meta, created in zip(*columns, strict=True)
    ]


def _bounded(texts: list[str]) -> Iterable[tuple[int, int]]:
    """Slices whose content an Arrow column can hold: 2 GiB."""
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
    """A message, or what is said about it, as JSON.

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
    """The value, of types that JSON has: what is read is what was appended.

    Raises:
        TypeError, ValueError: there is something that JSON has no form for.
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
