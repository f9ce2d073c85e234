"""A destination whose deliveries can be read in the driver's process: for tests and first steps."""

from __future__ import annotations

import atexit
import fcntl
import os
import pickle
import shutil
import struct
import tempfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final
from urllib.parse import quote

from ferryman.destinations.base import (
    Delivery,
    Destination,
    DestinationContext,
    Effect,
    Facts,
    Guarantee,
    Outcome,
    Stored,
)
from ferryman.errors import EngineError, Misconfigured, Unavailable
from ferryman.storage.files import classified_errors, explained_errors
from ferryman.storage.locks import lock_with_timeout

_FRAME: Final = struct.Struct("<QI")
"""Header of each pickled chunk: its length and CRC-32, so that a torn one is detected."""

_GENERATION_BYTES: Final = 16
"""Random bytes at the beginning of a spool, by which a reader detects that it was cleared since."""

_BUSY_S: Final = 30.0
"""Time to wait for the lock of another process: it writes a chunk, unless it was stopped."""


class Memory(Destination):
    """Keeps what it is given, by the name of its node: ``Memory.of("name")`` in the driver's process, while it lives.

    Workers may be other processes, but on this machine: deliveries pass through files in a temporary folder of the
    driver's, which goes when the driver ends. On a cluster of several machines use another destination.

    Under exactly-once a hash that is there is passed over, whoever wrote it. Under the other guarantees everything is
    kept that arrives, also twice, so that a test can see it. A chunk whose writer was killed is there whole or not at
    all.
    """

    effect = Effect.POTENT
    transactional = True
    facts: ClassVar[Facts] = Facts(stored="each delivery, deletes too; under exactly-once one a hash")

    def __init__(self) -> None:
        self._folder: str | None = None
        self._spool: _Spool | None = None
        self._once = True

    @staticmethod
    def of(name: str) -> list[Delivery]:
        """Everything that the destinations of this name were given, in the order of arrival; [] if nothing was."""
        with explained_errors(_temporary_root()), _Spool(_own_folder(), name).locked() as spool:
            return [delivery for chunk in spool.read_new() for delivery in chunk]

    @staticmethod
    def clear(name: str | None = None) -> None:
        """Forget what destinations of this name were given, or all; hashes too."""
        with explained_errors(_temporary_root()):
            for path in Path(_own_folder()).iterdir():
                if name is None or path.name == _file_name(name):
                    _clear_spool(path)

    def __getstate__(self) -> dict[str, Any]:
        """Add the folder of the process that pickles it first, which is the driver."""
        return self.__dict__ | {"_folder": self._folder or _own_folder(), "_spool": None}

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        wanted = None if ids is None else set(ids)
        for each in self.of(context.destination):
            if wanted is None or each.id in wanted:
                yield Stored(each.id, each.hash, True, each.source, each.version, each.route)

    def open(self, context: DestinationContext) -> None:
        self._once = context.guarantee is Guarantee.EXACTLY_ONCE
        with classified_errors(Path(self._folder or _temporary_root())):
            self._spool = _Spool(self._folder or _own_folder(), context.destination)

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        if self._spool is None:
            raise Misconfigured("Memory: write before open")
        with classified_errors(Path(self._folder or _temporary_root())), self._spool.locked() as spool:
            spool.skip_new()
            arrived = chunk
            if self._once:
                first = {d.hash: d for d in reversed(chunk)}
                arrived = [d for d in chunk if d.hash not in spool.hashes and first[d.hash] is d]
            if arrived:
                spool.append(arrived)
        return [Outcome.ok()] * len(chunk)

    def close(self) -> None:
        self._spool = None


class _Spool:
    """A file of chunks that several processes append to. Each chunk is read once."""

    _file: BinaryIO

    def __init__(self, folder: str, name: str) -> None:
        self._path = os.path.join(folder, _file_name(name))
        self._reset(b"")

    def _reset(self, generation: bytes) -> None:
        self._generation = generation
        self._end = _GENERATION_BYTES
        self.hashes: set[str] = set()

    @contextmanager
    def locked(self) -> Iterator[_Spool]:
        """Hold the file's lock."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            raise Misconfigured(
                f"Memory: {os.path.dirname(self._path)} does not exist: its driver ended, or runs on another machine. "
                "Memory works on one machine only.",
            ) from None
        with open(fd, "r+b") as self._file:
            if not lock_with_timeout(fd, fcntl.LOCK_EX, _BUSY_S):
                raise Unavailable(f"Memory: another process has held {self._path} for {_BUSY_S:g} s. Was it stopped?")
            yield self

    def read_new(self) -> Iterator[list[Delivery]]:
        """Yield the chunks since the last call. A torn one at the end, whose writer was killed, is cut off."""
        self._file.seek(0)
        generation = self._file.read(_GENERATION_BYTES)
        if len(generation) < _GENERATION_BYTES:
            generation = os.urandom(_GENERATION_BYTES)
            self._file.seek(0)
            self._file.write(generation)
            self._file.truncate()
        if generation != self._generation:
            self._reset(generation)
        self._file.seek(self._end)
        while (chunk := self._read_chunk()) is not None:
            self._end = self._file.tell()
            self.hashes.update(d.hash for d in chunk)
            yield chunk
        self._file.truncate(self._end)

    def skip_new(self) -> None:
        """Read past the chunks that others have appended, and note their hashes."""
        for _ in self.read_new():
            pass

    def _read_chunk(self) -> list[Delivery] | None:
        head = self._file.read(_FRAME.size)
        if len(head) < _FRAME.size:
            return None
        size, checksum = _FRAME.unpack(head)
        body = self._file.read(size)
        if len(body) < size or zlib.crc32(body) != checksum:
            return None
        chunk: list[Delivery] = pickle.loads(body)
        return chunk

    def append(self, chunk: list[Delivery]) -> None:
        """Append a chunk. Call ``read_new`` or ``skip_new`` before."""
        body = pickle.dumps(chunk, pickle.HIGHEST_PROTOCOL)
        self._file.seek(self._end)
        self._file.write(_FRAME.pack(len(body), zlib.crc32(body)) + body)
        self._file.flush()
        self._end = self._file.tell()
        self.hashes.update(d.hash for d in chunk)


def _clear_spool(path: Path) -> None:
    with open(path, "r+b") as file:
        if not lock_with_timeout(file.fileno(), fcntl.LOCK_EX, _BUSY_S):
            raise EngineError(f"Memory: another process has held {path} for {_BUSY_S:g} s. Was it stopped?")
        file.truncate(0)


def _temporary_root() -> str:
    """Return the folder in which this process's own is created."""
    return tempfile.tempdir or os.environ.get("TMPDIR") or "/tmp"


def _file_name(name: str) -> str:
    return f"spool-{quote(name, safe='')}"


@cache
def _own_folder() -> str:
    """Return this process's folder (after a fork its parent's), which is created when it is first needed."""
    folder = tempfile.mkdtemp(prefix="ferryman-memory-")
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)


# A destination that accepts everything and stores nothing.


class Null(Destination):
    """Says ok to all and does nothing: to measure a plan without its destinations, or to end a path on purpose.

    It keeps any guarantee: where nothing happens, nothing happens twice.
    """

    effect = Effect.IDEMPOTENT
    transactional = True
    facts: ClassVar[Facts] = Facts(stored="nothing")

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        return [Outcome.ok()] * len(chunk)
