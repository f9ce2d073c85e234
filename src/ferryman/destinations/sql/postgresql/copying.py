"""Rows as the text format of COPY, thousands at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from ferryman.destinations.base import Delivery
from ferryman.destinations.sql.layout import Layout
from ferryman.errors import PermanentError

BLOCK_ROWS: Final = 1000
"""Rows that are sent together: the server reads them while the next ones are made."""

_VALUE, _ROW, _NULL = "\x1f", "\x1e", "\x1d"
"""Stand for the end of a value, the end of a row and NULL until all else is escaped. Texts hardly ever have them."""

_NAMES_OF: Final = ("id", "parent_id", "origin_id")
"""What must stay as it is: with another character in it, it would be another document's."""

_encode = msgspec.json.Encoder(order="sorted").encode

Row = tuple[Any, ...]


def blocks(layout: Layout, chunk: list[Delivery]) -> Iterator[bytes]:
    """The chunk's rows, columns as in ``layout.names``.

    Escaping whole blocks costs a tenth of escaping each value, and what COPY does not allow is looked for in blocks
    too. NUL, which PostgreSQL cannot store, becomes U+FFFD, like bytes that are no text.

    Raises:
        BadDocument: fields that JSON cannot hold.
        PermanentError: a NUL in an id.
        UnicodeEncodeError: a lone surrogate.
    """
    rows = layout.rows(chunk)
    while some := list(islice(rows, BLOCK_ROWS)):
        block = _joined(some)
        if "\0" in block or r"\u0000" in block:
            some = [_without_nul(row, layout.names) for row in some]
            block = _joined(some)
        if _is_plain(block, some):
            block = _escaped(block).replace(_VALUE, "\t").replace(_ROW, "\n").replace(_NULL, r"\N")
        else:
            block = "".join("\t".join(map(_value, row)) + "\n" for row in some)
        yield block.encode()


def _joined(rows: list[Row]) -> str:
    return _ROW.join([_VALUE.join(map(_text, row)) for row in rows]) + _ROW


def _text(value: Any) -> str:
    """A value as the input function of any column's type reads it."""
    if type(value) is str:
        return value
    if value is None:
        return _NULL
    if value is True or value is False:
        return "true" if value else "false"
    return str(value)


def _is_plain(block: str, rows: list[Row]) -> bool:
    """Is no mark part of a value?"""
    return (
        block.count(_ROW) == len(rows)
        and block.count(_VALUE) == len(rows) * (len(rows[0]) - 1)
        and block.count(_NULL) == sum([row.count(None) for row in rows])
    )


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace("\t", r"\t").replace("\r", r"\r")


def _value(value: Any) -> str:
    return r"\N" if value is None else _escaped(_text(value))


def _without_nul(row: Row, names: tuple[str, ...]) -> Row:
    for name, value in zip(names, row, strict=True):
        if name in _NAMES_OF and value is not None and "\0" in value:
            raise PermanentError(
                f"{value.replace(chr(0), '␀')}: PostgreSQL has no NUL characters, and this {name} has one. Give the "
                "document another id: with another character in its place it could be another document's."
            )
    return tuple(
        _json_without_nul(value) if name == "fields" else value.replace("\0", "\ufffd") if type(value) is str else value
        for name, value in zip(names, row, strict=True)
    )


def _json_without_nul(fields: str | None) -> str | None:
    """``\\u0000`` may be a NUL, or a backslash and five characters: only JSON itself knows."""
    if fields is None or r"\u0000" not in fields:
        return fields
    return _encode(_replaced(msgspec.json.decode(fields))).decode()


def _replaced(value: Any) -> Any:
    match value:
        case str():
            return value.replace("\0", "\ufffd")
        case list():
            return [_replaced(each) for each in value]
        case dict():
            return {_replaced(name): _replaced(each) for name, each in value.items()}
        case _:
            return value
