"""Logs in which tasks note their calls and answers, durably and as they come. A log has one writer.

::

    log/<plan>~<wave>~<id>.rec      on a disk; locked by its writer as long as that lives
    log/<plan>~<wave>~<id>.rec.<n>  in an object store: what was appended at once is an object

Each record has a checksum. One that is damaged is skipped: its input is asked again.
"""

from __future__ import annotations

import fcntl
import io
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec

from ferryman.remembered.answers import RememberedAnswer
from ferryman.storage import files
from ferryman.storage.files import RecordPlace, RecordWriter, StatePath, framed_records, numbered
from ferryman.storage.objects import ObjectPath

SUFFIX: Final = ".rec"


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
    def new(cls, plan: str, wave: int, began_us: int | None = None) -> LogName:
        """Return a name for a new log; names sort by their time.

        Args:
            began_us: time of the log, µs since 1970; None: now.
        """
        began_ns = time.time_ns() if began_us is None else began_us * 1000
        return cls(plan, wave, f"{began_ns:019d}-{uuid.uuid4().hex[:16]}")

    @property
    def began_us(self) -> int:
        """Return the log's time, µs since 1970: no call in it has begun before."""
        return int(self.id.partition("-")[0]) // 1000

    @classmethod
    def parse(cls, name: str) -> LogName | None:
        """Parse a name; None: it is not one of a log."""
        stem, suffix, _ = name.partition(SUFFIX)
        plan, _, rest = stem.partition("~")
        wave, _, id = rest.partition("~")
        return cls(plan, int(wave), id) if suffix and wave.isdigit() and id else None


class LogWriter:
    """Appends records to a new log, which exists from the first append on."""

    def __init__(self, folder: StatePath, name: LogName) -> None:
        self.name = str(name)
        self._folder = folder
        self._records: RecordWriter | None = None

    def append(self, *records: Record, durable: bool = False) -> list[RecordPlace]:
        """Append records and return their places. In an object store what is not durable waits for the next that is."""
        if self._records is None:
            files.make_folder(self._folder)
            self._records = RecordWriter(self._folder / self.name, locked=True)
        places = [self._records.add(_encode(record)) for record in records]
        if durable:
            self._records.sync()
        else:
            self._records.flush()
        return places

    def close(self) -> None:
        """Make all records durable, and end the log."""
        if self._records is not None:
            self._records.sync()
            self._records.close()


def is_written(path: StatePath) -> bool:
    """Return whether the writer of a log holds its lock; False in an object store, where logs have no locks."""
    if not isinstance(path, Path):
        return False
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # it has just gone into the table
        return False
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


def read_after(path: StatePath, start: RecordPlace) -> tuple[list[tuple[RecordPlace, Record]], RecordPlace]:
    """Return the records of a log from a place on, and the place behind them. A record that is not complete yet is not
    read; one that is damaged is skipped, once another one follows it.

    Raises:
        FileNotFoundError: the log is gone.
    """
    if isinstance(path, ObjectPath):
        found, number = [], start.object
        while (version := files.read_version(numbered(path, number))) is not None:
            found += _records(io.BytesIO(version[0]), RecordPlace(number))[0]
            number += 1
        return found, RecordPlace(number)
    with path.open("rb") as file:
        file.seek(start.at)
        return _records(file, start)


def _records(file: BinaryIO, start: RecordPlace) -> tuple[list[tuple[RecordPlace, Record]], RecordPlace]:
    found: list[tuple[RecordPlace, Record]] = []
    number, at = end = start
    for size, data in framed_records(file):
        if (record := _record(data)) is not None:
            found.append((RecordPlace(number, at), record))
            end = RecordPlace(number, at + size)
        at += size
    return found, end


def _record(data: bytes | None) -> Record | None:
    """Return a record; None: it is damaged, or perhaps being written."""
    try:
        record: Record | None = None if data is None else _decode(data)
    except msgspec.DecodeError:
        return None
    return record


def read_answer(path: StatePath, place: RecordPlace) -> RememberedAnswer | None:
    """Return the answer at a place of a log; None: the log is gone, or the record is damaged."""
    try:
        if isinstance(path, ObjectPath):
            file: BinaryIO = io.BytesIO(files.read(numbered(path, place.object)))
        else:
            file = path.open("rb")
    except FileNotFoundError:
        return None
    with file:
        file.seek(place.at)
        _, data = next(framed_records(file), (0, None))
    record = _record(data)
    return record.answer if isinstance(record, Answered) else None


def all_records(path: StatePath) -> Iterator[Record]:
    """Yield all records of a log that are whole."""
    for _, record in read_after(path, RecordPlace())[0]:
        yield record
