"""Messages of PostgreSQL's logical decoding plugin ``pgoutput``, protocol version 1, decoded from bytes.

The module reads nothing: it is given the messages one by one, as ``pg_logical_slot_peek_binary_changes`` returns them.
See the section "Logical Replication Message Formats" of PostgreSQL's manual.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple


class OmittedValue(enum.Enum):
    """Marker for a value that was stored out of line (TOAST) and not changed, so that it is not in the message."""

    OMITTED = "omitted"


OMITTED: Final = OmittedValue.OMITTED

Value = bytes | None | OmittedValue
"""Text of a value in the server's encoding of this session; None: NULL."""


class ColumnOfRelation(NamedTuple):
    """Column of a table as of some change."""

    name: str
    type_oid: int
    is_identity: bool
    """Whether it is part of the replica identity; with identity FULL all columns are."""


class TableShape(NamedTuple):
    """Table as of the changes that follow."""

    oid: int
    schema: str
    name: str
    identity: str
    """Replica identity: "d" (the primary key), "i" (an index), "f" (all columns), "n" (none)."""
    columns: tuple[ColumnOfRelation, ...]


class TransactionBegin(NamedTuple):
    """Beginning of a committed transaction."""

    commit_lsn: int


class RowChange(NamedTuple):
    """Insert, update or delete of one row."""

    relation: int
    old: tuple[Value, ...] | None
    """Old row, or its identity alone; None: it was inserted, or its identity has not changed."""
    old_is_whole: bool
    """Whether ``old`` has all columns, not those of the identity only."""
    new: tuple[Value, ...] | None
    """New row; None: it was deleted."""


class Truncation(NamedTuple):
    """TRUNCATE of these tables."""

    relations: tuple[int, ...]


Message = TableShape | TransactionBegin | RowChange | Truncation


def decode(data: bytes, encoding: str = "utf-8") -> Message | None:
    """Decode one message; None: it says nothing about rows (the end of a transaction, a type, an origin).

    Raises:
        ValueError: it is not a message of this protocol.
    """
    try:
        match data[:1]:
            case b"B":
                return TransactionBegin(*struct.unpack_from("!Q", data, 1))
            case b"R":
                return _relation(data, encoding)
            case b"I" | b"U" | b"D":
                return _change(data, 5)
            case b"T":
                (count,) = struct.unpack_from("!I", data, 1)
                return Truncation(struct.unpack_from(f"!{count}I", data, 6))
            case b"C" | b"Y" | b"O" | b"M":
                return None
    except (struct.error, IndexError, UnicodeDecodeError) as e:
        raise ValueError(f"a message that is cut off or damaged: {data[:40]!r} ({e})") from e
    raise ValueError(f"an unknown message: {data[:40]!r}")


def _relation(data: bytes, encoding: str) -> TableShape:
    (oid,) = struct.unpack_from("!I", data, 1)
    schema, at = _text(data, 5, encoding)
    name, at = _text(data, at, encoding)
    identity, (count,) = chr(data[at]), struct.unpack_from("!H", data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _text(data, at + 1, encoding)
        (type_oid,) = struct.unpack_from("!I", data, at)
        at += 8  # the type's modifier is of no interest
        columns.append(ColumnOfRelation(column, type_oid, bool(flags & 1)))
    return TableShape(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _text(data: bytes, at: int, encoding: str) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(encoding), end + 1


def _change(data: bytes, at: int) -> RowChange:
    (relation,) = struct.unpack_from("!I", data, 1)
    old = new = None
    old_is_whole = False
    while at < len(data):
        kind = data[at : at + 1]
        row, at = _row(data, at + 1)
        if kind == b"N":
            new = row
        elif kind in (b"K", b"O"):
            old, old_is_whole = row, kind == b"O"
        else:
            raise ValueError(f"an unknown part of a change: {kind!r}")
    if old is None and new is None:
        raise ValueError("a change without a row")
    return RowChange(relation, old, old_is_whole, new)


def _row(data: bytes, at: int) -> tuple[tuple[Value, ...], int]:
    (count,) = struct.unpack_from("!H", data, at)
    at += 2
    values: list[Value] = []
    for _ in range(count):
        kind = data[at : at + 1]
        at += 1
        if kind == b"t":
            (size,) = struct.unpack_from("!I", data, at)
            at += 4
            if at + size > len(data):
                raise ValueError("a value that is cut off")
            values.append(data[at : at + size])
            at += size
        elif kind == b"n":
            values.append(None)
        elif kind == b"u":
            values.append(OMITTED)
        else:
            raise ValueError(f"an unknown kind of value: {kind!r}")
    return tuple(values), at
