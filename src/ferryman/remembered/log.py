"""Logs in which tasks note their calls and answers, durably and as they come. A log has one writer.

::

    log/<plan>~<wave>~<id>.rec      on a disk; locked by its writer as long as that lives
    log/<plan>~<wave>~<id>.rec.<n>  in an object store: what was appended at once is an object

Each record has a checksum. One that is damaged is skipped: its input is asked again.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ferryman.remembered.answers import RememberedAnswer
from ferryman.storage import files
from ferryman.storage.files import StatePath
from ferryman.storage.objects import ObjectPath

SUFFIX: Final = ".rec"
_FRAME: Final = struct.Struct("<II")
"""Before each record: its length and CRC-32."""


class Begun(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """Calls that begin now: the key of each input, and the hash of its document's family."""

    keys: list[bytes]
    documents: list[bytes]


class Answered(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """An answer to an input."""

    key: bytes
    answer: RememberedAnswer


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """Calls that ended without an answer that can be remembered."""

    keys: list[bytes]


class Used(msgspec.Struct, frozen=True, array_like=True, tag="u"):
    """Inputs that were answered from memory."""

    keys: list[bytes]
    documents: list[bytes]


class Forgotten(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """Inputs whose answers from before a time (µs since 1970) do not count any more."""

    keys: list[bytes]
    until: int


class Doubted(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """Inputs that are called again although a call of theirs has begun: what became of that is in doubt."""

    keys: list[bytes]


class Header(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    """Who writes the log: the version and the cost of a call, in millionths of a dollar."""

    version: str
    cost: float


Record = Begun | Answered | Ended | Used | Forgotten | Doubted | Header

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


class LogName(NamedTuple):
    """Name of a log: the folder of the state whose task wrote it, and its wave."""

    plan: str
    wave: int
    id: str

    def __str__(self) -> str:
        return f"{self.plan}~{self.wave}~{self.id}{SUFFIX}"

    @classmethod
    def new(cls, plan: str, wave: int) -> LogName:
        """Return a name for a new log; names sort by their time."""
        return cls(plan, wave, f"{time.time_ns():019d}-{uuid.uuid4().hex[:16]}")

    @classmethod
    def parse(cls, name: str) -> LogName | None:
        """Parse a name; None: it is not one of a log."""
        stem, suffix, _ = name.partition(SUFFIX)
        plan, _, rest = stem.partition("~")
        wave, _, id = rest.partition("~")
        return cls(plan, int(wave), id) if suffix and wave.isdigit() and id else None


class Position(NamedTuple):
    """Place of a record in a log: the object's number (0 on a disk), and bytes before it."""

    object: int = 0
    at: int = 0


class LogWriter:
    """Appends records to a new log, which exists from the first append on."""

    def __init__(self, folder: StatePath, name: LogName) -> None:
        self.name = str(name)
        self._path = folder / self.name
        self._fd = -1
        self._objects = 0
        self._held: list[bytes] = []

    def append(self, *records: Record, durable: bool = False) -> list[Position]:
        """Append records and return their places. In an object store what is not durable waits for the next that is."""
        frames = [_frame(record) for record in records]
        if isinstance(self._path, ObjectPath):
            at = sum(map(len, self._held))
            places = [Position(self._objects, at + sum(map(len, frames[:n]))) for n in range(len(frames))]
            self._held += frames
            if durable:
                files.replace(self._path.parent / f"{self.name}.{self._objects}", b"".join(self._held))
                self._objects, self._held = self._objects + 1, []
            return places
        new = self._fd < 0
        if new:
            files.make_folder(self._path.parent)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        at = os.lseek(self._fd, 0, os.SEEK_END)
        data = memoryview(b"".join(frames))
        while data:
            data = data[os.write(self._fd, data) :]
        if durable:
            os.fdatasync(self._fd)
        if new:
            files.fsync_folder(self._path.parent)
        places = []
        for frame in frames:
            places.append(Position(0, at))
            at += len(frame)
        return places

    def close(self) -> None:
        """Make all records durable, and end the log."""
        if isinstance(self._path, ObjectPath):
            if self._held:
                self.append(durable=True)
        elif self._fd >= 0:
            os.fdatasync(self._fd)
            os.close(self._fd)
            self._fd = -1


def _frame(record: Record) -> bytes:
    data = _encode(record)
    return _FRAME.pack(len(data), zlib.crc32(data)) + data


def is_written(path: StatePath) -> bool:
    """Return whether the writer of a log holds its lock; False in an object store, where logs have no locks."""
    if not isinstance(path, Path):
        return False
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def log_names(folder: StatePath) -> list[str]:
    """Return the names of all logs in the order of their time."""
    names = {name[: name.index(SUFFIX) + len(SUFFIX)] for name in files.list_names(folder) if SUFFIX in name}
    found = ((parsed.id, name) for name in names if (parsed := LogName.parse(name)) is not None)
    return [name for _, name in sorted(found)]


def read_after(path: StatePath, start: Position) -> tuple[list[tuple[Position, Record]], Position]:
    """Return the records of a log from a place on, and the place behind them. A record that is not complete yet is not
    read; one that is damaged is skipped.

    Raises:
        FileNotFoundError: the log is gone.
    """
    found: list[tuple[Position, Record]] = []
    if isinstance(path, ObjectPath):
        number = start.object
        while (version := files.read_version(path.parent / f"{path.name}.{number}")) is not None:
            found += [(Position(number, at), record) for at, record in _records(version[0], 0)[0]]
            number += 1
        return found, Position(number)
    with path.open("rb") as file:
        file.seek(start.at)
        records, end = _records(file.read(), start.at)
    return [(Position(0, at), record) for at, record in records], Position(0, end)


def read_answer(path: StatePath, place: Position) -> RememberedAnswer | None:
    """Return the answer at a place of a log; None: the log is gone, or the record is damaged."""
    try:
        if isinstance(path, ObjectPath):
            data = files.read(path.parent / f"{path.name}.{place.object}")[place.at :]
        else:
            with path.open("rb") as file:
                file.seek(place.at)
                head = file.read(_FRAME.size)
                data = head + file.read(_FRAME.unpack(head)[0])
    except (FileNotFoundError, struct.error):
        return None
    record = next((record for _, record in _records(data, 0)[0]), None)
    return record.answer if isinstance(record, Answered) else None


def _records(data: bytes, offset: int) -> tuple[list[tuple[int, Record]], int]:
    """Return the records in some bytes of a log with their places, and the place behind the last one."""
    found: list[tuple[int, Record]] = []
    at = 0
    while at + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, at)
        begin, end = at + _FRAME.size, at + _FRAME.size + length
        if end > len(data):
            break
        record = _record(data[begin:end], checksum)
        if record is None and end == len(data):
            break  # perhaps it is being written
        if record is not None:
            found.append((offset + at, record))
        at = end
    return found, offset + at


def _record(data: bytes, checksum: int) -> Record | None:
    if zlib.crc32(data) != checksum:
        return None
    try:
        record: Record = _decode(data)
    except msgspec.DecodeError:
        return None
    return record


def all_records(path: StatePath) -> Iterator[Record]:
    """Yield all records of a log that are whole."""
    for _, record in read_after(path, Position())[0]:
        yield record
