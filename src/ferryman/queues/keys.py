"""What must be known of appends whose files have been merged or trimmed: sorted files that never change, a few at any
time.

While a file that was appended with a key is live, the log itself knows the key. Before it leaves the log its key is
written here, so that at any moment one of the two knows it. Rows of writers that were trimmed are kept in the same way,
in a folder of their own: see ``queues.once``.
"""

from __future__ import annotations

import mmap
import os
import uuid
import zlib
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ferryman import crash
from ferryman.errors import StateDamaged
from ferryman.queues.entries import MessageFile
from ferryman.storage import files
from ferryman.storage.disk import TEMPORARY
from ferryman.storage.files import StatePath, make_folder, replace

_HEAD: Final = 16
"""Bytes before the numbers: the CRC-32 of what follows, and blanks."""
_CLASS: Final = 8
"""So many files of one class of size become one; a class begins at so many times the size of the one before."""

_SPARSE: Final = 2
"""A file of which less than one in so many is wanted is written again without the rest."""

Numbers = np.ndarray[Any, Any]


class KeyRun(NamedTuple):
    """Four columns of equal length, in the order of the first two."""

    high: Numbers
    low: Numbers
    first: Numbers
    rows: Numbers


def key_name(key: str) -> str:
    """What stands for a key: 32 hexadecimal digits."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class RememberedKeys:
    """The files in ``folder``."""

    def __init__(self, folder: StatePath) -> None:
        self._folder = folder
        self._runs: dict[str, KeyRun] = {}

    def find(self, name: str) -> range | None:
        """The indices that were given to the append with this key.

        Raises:
            StateDamaged: a file is not what was written.
        """
        for run in self._load().values():
            if (at := _at(run, name)) is not None:
                return range(int(run.first[at]), int(run.first[at] + run.rows[at]))
        return None

    def known(self, names: Iterable[str]) -> set[str]:
        """Those of them that are kept."""
        runs = [*self._load().values()]
        return {name for name in names if any(_at(run, name) is not None for run in runs)}

    def remember(self, files: Iterable[MessageFile]) -> None:
        """Durably, before these files leave the log."""
        if keyed := [(f.key, f.first, f.rows) for f in files if f.key]:
            self.add(keyed)
            crash.point("keys.kept")
            self.merge()

    def add(self, keys: Sequence[tuple[str, int, int]]) -> None:
        """Keep names with their two numbers, durably; ``merge`` comes next."""
        keyed = [(*_halves(name), first, rows) for name, first, rows in keys]
        high, low, first, rows = zip(*keyed, strict=True)
        numbers = (np.array(high, "<u8"), np.array(low, "<u8"), np.array(first, "<i8"), np.array(rows, "<i8"))
        make_folder(self._folder)  # a queue may have been made without it
        self._write(KeyRun(*numbers))

    def drop(self, wanted: Callable[[KeyRun], Numbers]) -> None:
        """Remove what is not wanted any more: whole files, or most of one.

        Args:
            wanted: of each key of a file, whether it is.
        """
        for name, run in self._load().items():
            left = wanted(run)
            if left.sum() * _SPARSE > len(left):
                continue
            if left.any():
                self._write(KeyRun(*(column[left] for column in run)))
                crash.point("keys.merged")
            files.remove(self._folder / name)

    def merge(self) -> None:
        """Make one file of those of a class, where they have become many."""
        classes: dict[int, list[str]] = {}
        for name, run in self._load().items():
            size, number = len(run.high) // 32, 0
            while size:
                size, number = size // _CLASS, number + 1
            classes.setdefault(number, []).append(name)
        for names in classes.values():
            if len(names) >= _CLASS:
                columns = [np.concatenate(column) for column in zip(*(self._runs[n] for n in names), strict=True)]
                self._write(KeyRun(*columns))
                crash.point("keys.merged")
                files.remove_all(self._folder / name for name in names)

    def _write(self, run: KeyRun) -> None:
        order = np.lexsort((run.low, run.high))
        run = KeyRun(*(column[order] for column in run))
        new = np.ones(len(order), bool)  # a kill may have left a key in two files
        new[1:] = (run.high[1:] != run.high[:-1]) | (run.low[1:] != run.low[:-1])
        body = b"".join(column[new].tobytes() for column in run)
        head = b"%08x" % zlib.crc32(body)
        replace(self._folder / uuid.uuid4().hex, head.ljust(_HEAD) + body)

    def _load(self) -> dict[str, KeyRun]:
        """All files as they are now, read once each."""
        while True:
            names = {n for n in files.names(self._folder) if not n.startswith(TEMPORARY)}
            try:
                new = {n: _read(files.local(self._folder / n)) for n in names - self._runs.keys()}
                self._runs = {n: new[n] if n in new else self._runs[n] for n in names}
            except FileNotFoundError:  # merged meanwhile
                continue
            return self._runs


def _read(path: Path) -> KeyRun:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _HEAD or (size - _HEAD) % 32:
            raise StateDamaged(str(path), f"it has {size} bytes, which cannot be")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if data[:8] != b"%08x" % zlib.crc32(memoryview(data)[_HEAD:]):
        raise StateDamaged(str(path), "its checksum does not match its content")
    columns = np.frombuffer(data, "<u8", offset=_HEAD).reshape(4, -1)
    return KeyRun(columns[0], columns[1], columns[2].view("<i8"), columns[3].view("<i8"))


def _at(run: KeyRun, name: str) -> int | None:
    """Where a key stands in a file; None: it does not."""
    high, low = _halves(name)
    at = int(np.searchsorted(run.high, np.uint64(high)))
    while at < len(run.high) and run.high[at] == high:
        if run.low[at] == low:
            return at
        at += 1
    return None


def _halves(name: str) -> tuple[int, int]:
    return int(name[:16], 16), int(name[16:], 16)
