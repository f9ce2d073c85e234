"""Delta table of a queue, and the keys of its appends. Many processes append to it: only one of them can create the
entry of the next version.

``refresh`` reads what others have written since; ``commit`` writes the next entry, unless another process was faster.
Nothing here needs a lock.
"""

from __future__ import annotations

import datetime as dt
import mmap
import os
import uuid
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec
import numpy as np

from ferryman import crash
from ferryman.errors import StateDamaged
from ferryman.queues.message import ROWS
from ferryman.storage import files
from ferryman.storage.delta import OWN_CHECKPOINTS, AddedFile, DeltaLog, LogEntry, delta_schema, first_entry
from ferryman.storage.disk import TEMPORARY
from ferryman.storage.files import StatePath, make_folder, replace

LAST: Final = "index"
"""Application whose transaction number is the index of the last message ever appended."""

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class MessageFile(NamedTuple):
    """Live data file with the messages ``first`` to ``end`` - 1."""

    path: str
    """File name in the table's folder."""
    size: int
    first: int
    rows: int
    oldest: int
    newest: int
    """Minimum (``oldest``) and maximum of ``created`` of its messages, µs since 1970."""
    level: int = 0
    """Number of times its messages have been merged."""
    key: str = ""
    """Hash of the key that the file was appended with; "" if none."""

    @property
    def end(self) -> int:
        """Return the index after its last message."""
        return self.first + self.rows

    @classmethod
    def from_added(cls, added: AddedFile) -> Self:
        """Return the file that an action describes."""
        statistics, tags = msgspec.json.decode(added.stats or "{}"), added.tags or {}
        first, rows = statistics["minValues"]["index"], statistics["numRecords"]
        oldest, newest, level = int(tags["oldest"]), int(tags["newest"]), int(tags["level"])
        return cls(added.path, added.size, first, rows, oldest, newest, level, tags.get("key", ""))

    def as_added(self) -> AddedFile:
        """Return the action that describes the file."""
        statistics = {
            "numRecords": self.rows,
            "minValues": {"index": self.first, "created": _milliseconds(self.oldest)},
            "maxValues": {"index": self.end - 1, "created": _milliseconds(self.newest + 999)},
            "nullCount": {"index": 0, "created": 0},
        }
        tags = {"level": str(self.level), "oldest": str(self.oldest), "newest": str(self.newest)}
        if self.key:
            tags["key"] = self.key
        return AddedFile(self.path, self.size, {}, msgspec.json.encode(statistics).decode(), tags)


def _milliseconds(created_us: int) -> str:
    """Return a time for Delta's statistics, rounded down to the millisecond."""
    at = _EPOCH + dt.timedelta(milliseconds=created_us // 1000)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def first_queue_entry(identity: str) -> bytes:
    """Return the content of the entry that creates the table; its id is the queue's."""
    return first_entry(delta_schema(ROWS), [], OWN_CHECKPOINTS, identity)


class MessageTable:
    """Table in ``folder`` as of one version; ``files`` are in the order of their messages."""

    def __init__(self, folder: StatePath) -> None:
        self.folder = folder
        self.log = DeltaLog(folder, MessageFile)
        self.files: list[MessageFile] = []

    @property
    def version(self) -> int:
        """Return the version read last, -1 if none was."""
        return self.log.version

    @property
    def transactions(self) -> dict[str, int]:
        """Return application id -> number of its last transaction."""
        return self.log.transactions

    @property
    def last(self) -> int:
        """Return the index of the last message ever appended, 0 if there was none."""
        return self.log.transactions.get(LAST, 0)

    @property
    def first(self) -> int:
        """Return the index of the first message that is kept; of the next message if there is none."""
        return self.files[0].first if self.files else self.last + 1

    def refresh(self) -> bool:
        """Read the newest version, see ``DeltaLog.refresh``."""
        changed = self.log.refresh()
        if changed:
            self._sort()
        return changed

    def commit(self, entry: LogEntry[MessageFile], *, data_change: bool = True) -> bool:
        """Write the next version, see ``DeltaLog.commit``."""
        if not self.log.commit(entry, data_change=data_change):
            return False
        self._sort()
        return True

    def files_covering(self, start: int, end: int) -> list[MessageFile]:
        """Return the files with messages of ``start`` ≤ index < ``end``."""
        at = max(bisect_right(self.files, start, key=lambda f: f.first) - 1, 0)
        stop = bisect_right(self.files, end - 1, key=lambda f: f.first)
        return [f for f in self.files[at:stop] if f.end > start]

    def _sort(self) -> None:
        self.files = sorted(self.log.files.values(), key=lambda file: file.first)  # nearly sorted: quick


# --- keys of appends whose files have been merged or trimmed: a few sorted files that never change ---
#
# While a file that was appended with a key is live, the log itself has the key. Before the file leaves the log its key
# is written here, so that at any moment one of the two has it. Trimmed rows of writers are kept in the same way, in a
# folder of their own: see ``queues.append.RepeatingWriter``.

_HEAD: Final = 16
"""Bytes before the numbers: the CRC-32 of what follows, and blanks."""
_MERGE_FACTOR: Final = 8
"""Number of files of one size class that are merged into one; each class begins at this multiple of the previous one's
size."""

_SPARSE: Final = 2
"""Divisor of a file's rows: if fewer than that share are still wanted, the file is rewritten with only these."""

Numbers = np.ndarray[Any, Any]


class KeyRun(NamedTuple):
    """Four columns of equal length, sorted by the first two."""

    high: Numbers
    low: Numbers
    first: Numbers
    rows: Numbers


def key_name(key: str) -> str:
    """Return a key's hash, 32 hexadecimal digits."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class RememberedKeys:
    """Keys stored in the files in ``folder``, each with two numbers."""

    def __init__(self, folder: StatePath) -> None:
        self._folder = folder
        self._runs: dict[str, KeyRun] = {}

    def find(self, name: str) -> range | None:
        """Return the indices of the append with this key.

        Raises:
            StateDamaged: a file is not what was written.
        """
        for run in self._load().values():
            if (at := _find_key(run, name)) is not None:
                return range(int(run.first[at]), int(run.first[at] + run.rows[at]))
        return None

    def find_known(self, names: Iterable[str]) -> set[str]:
        """Return those of the names that are stored."""
        runs = [*self._load().values()]
        return {name for name in names if any(_find_key(run, name) is not None for run in runs)}

    def remember(self, files: Iterable[MessageFile]) -> None:
        """Store the keys of these files durably, before the files leave the log."""
        if keyed := [(f.key, f.first, f.rows) for f in files if f.key]:
            self.add(keyed)
            crash.point("keys.kept")
            self.merge()

    def add(self, keys: Sequence[tuple[str, int, int]]) -> None:
        """Store names with their two numbers, durably; call ``merge`` next."""
        keyed = [(*_halves(name), first, rows) for name, first, rows in keys]
        high, low, first, rows = zip(*keyed, strict=True)
        numbers = (np.array(high, "<u8"), np.array(low, "<u8"), np.array(first, "<i8"), np.array(rows, "<i8"))
        make_folder(self._folder)  # a queue may have been created without it
        self._write(KeyRun(*numbers))

    def drop(self, wanted: Callable[[KeyRun], Numbers]) -> None:
        """Remove keys that are no longer wanted: whole files, or most of a file.

        Args:
            wanted: returns, for each key of a file, whether it is wanted.
        """
        for name, run in self._load().items():
            kept = wanted(run)
            if kept.sum() * _SPARSE > len(kept):
                continue
            if kept.any():
                self._write(KeyRun(*(column[kept] for column in run)))
                crash.point("keys.merged")
            files.remove(self._folder / name)

    def merge(self) -> None:
        """Merge the files of a size class where there are many of them."""
        classes: dict[int, list[str]] = {}
        for name, run in self._load().items():
            size, number = len(run.high) // 32, 0
            while size:
                size, number = size // _MERGE_FACTOR, number + 1
            classes.setdefault(number, []).append(name)
        for names in classes.values():
            if len(names) >= _MERGE_FACTOR:
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
        """Return all files as they are now, each read once."""
        while True:
            names = {n for n in files.list_names(self._folder) if not n.startswith(TEMPORARY)}
            try:
                new = {n: _read(files.local_copy(self._folder / n)) for n in names - self._runs.keys()}
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


def _find_key(run: KeyRun, name: str) -> int | None:
    """Return the position of a key in a file; None if it is not there."""
    high, low = _halves(name)
    at = int(np.searchsorted(run.high, np.uint64(high)))
    while at < len(run.high) and run.high[at] == high:
        if run.low[at] == low:
            return at
        at += 1
    return None


def _halves(name: str) -> tuple[int, int]:
    return int(name[:16], 16), int(name[16:], 16)
