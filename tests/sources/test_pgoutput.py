"""Messages of ``pgoutput``, also such as no server sends."""

from __future__ import annotations

import random
import struct

import pytest

from ferryman.sources.pgoutput import OMITTED, RowChange, TableShape, TransactionBegin, Truncation, decode


def row(*values: bytes | None) -> bytes:
    found = struct.pack("!H", len(values))
    for value in values:
        found += b"n" if value is None else b"u" if value == b"?" else b"t" + struct.pack("!I", len(value)) + value
    return found


RELATION = (
    b"R" + struct.pack("!I", 7) + b"public\0items\0d" + struct.pack("!H", 1) + b"\1id\0" + struct.pack("!Ii", 23, -1)
)
UPDATE = b"U" + struct.pack("!I", 7) + b"K" + row(b"1", None) + b"N" + row(b"2", b"?")


def test_what_messages_say() -> None:
    assert decode(b"B" + struct.pack("!QQI", 99, 0, 5)) == TransactionBegin(99)
    assert decode(b"C" + bytes(25)) is None
    shape = decode(RELATION)
    assert isinstance(shape, TableShape)
    assert (shape.oid, shape.schema, shape.name, shape.identity) == (7, "public", "items", "d")
    assert shape.columns == (("id", 23, True),)
    assert decode(b"I" + struct.pack("!I", 7) + b"N" + row(b"1", None)) == RowChange(7, None, False, (b"1", None))
    assert decode(UPDATE) == RowChange(7, (b"1", None), False, (b"2", OMITTED))
    assert decode(b"D" + struct.pack("!I", 7) + b"O" + row(b"1", b"x")) == RowChange(7, (b"1", b"x"), True, None)
    assert decode(b"T" + struct.pack("!IBII", 2, 1, 7, 8)) == Truncation((7, 8))


@pytest.mark.parametrize("message", [b"", b"X", b"I", b"I\0\0\0\7", b"I\0\0\0\7N\0\1z", b"U\0\0\0\7Q\0\0"])
def test_what_is_not_a_message(message: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(message)


def test_a_damaged_message_is_an_error_or_another_message() -> None:
    """Never anything but ``ValueError``, however it is damaged or cut off."""
    chance = random.Random(1)
    for _ in range(5000):
        data = bytearray(chance.choice([RELATION, UPDATE]))
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            decode(bytes(data[: chance.randint(1, len(data))]))
        except ValueError:
            continue
