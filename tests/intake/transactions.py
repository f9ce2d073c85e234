"""ZooKeeper's own record of what it did: the files of its transaction log, read."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

MAGIC: Final = 0x5A4B4C47  # "ZKLG"
CREATE, DELETE, SET, MULTI, CLOSE_SESSION = (1, 15, 19, 21), 2, 5, 14, -11


class Change(NamedTuple):
    """One node made, set or removed."""

    kind: str
    path: str


def transactions(log: Path) -> Iterator[list[Change]]:
    """Each transaction of a log file, in order: all its changes, which took effect at once."""
    data = log.read_bytes()
    magic, version, _ = struct.unpack_from(">iiq", data)
    assert (magic, version) == (MAGIC, 2)
    at = 16
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">i", data, at + 8)
        if length <= 0:
            return  # the rest of the file was made in advance
        record = _Record(data[at + 12 : at + 12 + length])
        at += 12 + length + 1
        _, _, _, _, kind = record.take(">qiqqi")
        yield list(_changes(kind, record))


class _Record:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, shape: str) -> tuple[int, ...]:
        found = struct.unpack_from(shape, self.data, self.at)
        self.at += struct.calcsize(shape)
        return found

    def buffer(self) -> bytes:
        (length,) = self.take(">i")
        self.at += max(0, length)
        return self.data[self.at - max(0, length) : self.at]


def _changes(kind: int, record: _Record) -> Iterator[Change]:
    if kind in CREATE:
        yield Change("create", record.buffer().decode())
    elif kind == DELETE:
        yield Change("delete", record.buffer().decode())
    elif kind == SET:
        yield Change("set", record.buffer().decode())
    elif kind == MULTI:
        (count,) = record.take(">i")
        parts = []
        for _ in range(count):
            (part,) = record.take(">i")
            parts.append((part, record.buffer()))
        if all(part != -1 for part, _ in parts):  # one that failed takes the others with it
            for part, data in parts:
                yield from _changes(part, _Record(data))
    elif kind == CLOSE_SESSION and record.at < len(record.data):
        (count,) = record.take(">i")
        for _ in range(count):
            yield Change("delete", record.buffer().decode())
