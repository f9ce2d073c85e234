"""What PostgreSQL cannot store: NUL, as a character of text and as ``\\u0000`` in JSON.

In text and fields U+FFFD stands for it, as for bytes that are no text. An id must stay as it is.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import psycopg
from psycopg.errors import CharacterNotInRepertoire, UntranslatableCharacter

from ferryman.errors import PermanentError

_NAMES_OF: Final = ("id", "parent_id", "origin_id")
"""Columns that name documents."""

_encode = msgspec.json.Encoder(order="sorted").encode

Row = tuple[Any, ...]


def is_meant(error: psycopg.Error) -> bool:
    """Is it of the kind that a NUL makes? psycopg finds it in text, the server in JSON."""
    own = isinstance(error, psycopg.DataError) and error.sqlstate is None
    return own or isinstance(error, UntranslatableCharacter | CharacterNotInRepertoire)


def replaced(row: Row, names: tuple[str, ...]) -> Row:
    """The row without NULs.

    Raises:
        PermanentError: an id has one.
    """
    for name, value in zip(names, row, strict=True):
        if name in _NAMES_OF and value is not None and "\0" in value:
            raise PermanentError(
                f"{value.replace(chr(0), '␀')}: PostgreSQL has no NUL characters, and this {name} has one. Give the "
                "document another id: with another character in its place it could equal another document's id."
            )
    return tuple(
        _in_json(value) if name == "fields" else value.replace("\0", "\ufffd") if type(value) is str else value
        for name, value in zip(names, row, strict=True)
    )


def _in_json(fields: str | None) -> str | None:
    """``\\u0000`` may be a NUL, or a backslash and five characters: only JSON itself knows."""
    if fields is None or r"\u0000" not in fields:
        return fields
    return _encode(_in_value(msgspec.json.decode(fields))).decode()


def _in_value(value: Any) -> Any:
    match value:
        case str():
            return value.replace("\0", "\ufffd")
        case list():
            return [_in_value(each) for each in value]
        case dict():
            return {_in_value(name): _in_value(each) for name, each in value.items()}
        case _:
            return value
