"""Delta table of a queue, and the keys of its appends. Many processes append to it: whoever gives the next version its
name, as only one can, wins.

``refresh`` reads what others have written since; ``commit`` writes the next entry, unless another process was faster.
Nothing here needs a lock.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import uuid
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ferryman import crash
from ferryman.errors import EngineError, StateDamaged
from ferryman.queues import entries
from ferryman.queues.entries import LAST, LogEntry, MessageFile
from ferryman.storage import files
from ferryman.storage.delta import checkpoint_content
from ferryman.storage.disk import TEMPORARY
from ferryman.storage.files import StatePath, checksum, fsync_folder, make_folder, replace, seal, stamp, unseal

_ENTRY = re.compile(r"(\d{20})\.json\Z")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet\Z")
_HINT: Final = "_last_checkpoint"
_MAX_READ_ATTEMPTS: Final = 20
"""How often the log is read again because it was trimmed in the meantime."""


class CommitUnknown(EngineError):
    """Raised if a process was suspended while it committed, and the log was trimmed in the meantime: whether the commit
    took effect is unknown."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"{self.path}: the log went on without this process, which was stopped while it committed. Whether the "
            "commit took effect is not known. An append with a key can be repeated."
        )


class MessageTable:
    """Table in ``folder`` as of one version: ``files`` are in the order of their messages."""

    def __init__(self, folder: StatePath) -> None:
        self.folder = folder
        self.log = folder / "_delta_log"
        self.marks = folder / "_marks"
        self.version = -1
        self.checkpointed = -1
        self.files: list[MessageFile] = []
        self.transactions: dict[str, int] = {}
        self._stamp: tuple[int | str, ...] | None = None

    @property
    def last(self) -> int:
        """Index of the last message ever appended, 0 if there was none."""
        return self.transactions.get(LAST, 0)

    @property
    def first(self) -> int:
        """Index of the first message that is kept; of the next message if there is none."""
        return self.files[0].first if self.files else self.last + 1

    def path(self, version: int) -> StatePath:
        """Return the path of an entry."""
        return self.log / f"{version:020d}.json"

    @property
    def is_valid(self) -> bool:
        """Return whether the entry of the current version is still in the log. If it was trimmed, later ones may have
        been too."""
        return self._stamp is not None and self._stamp == stamp(self.path(self.version))

    def refresh(self) -> bool:
        """Read the newest version, which is durable then; return whether it is another one than before.

        Raises:
            StateDamaged: an entry or checkpoint is missing, or not what was written.
        """
        before = self.version
        for _ in range(_MAX_READ_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):  # trimmed while we read it
                if not self.is_valid:
                    self._load()
                while files.exists(self.path(self.version + 1)):
                    entry = entries.read_entry(self.path(self.version + 1))
                    if not self.is_valid:  # as in commit: the entry may come from a process that was suspended
                        break
                    self._apply(entry, self.version + 1)
                if self.is_valid:
                    break
        else:
            raise StateDamaged(str(self.path(self.version)), "the log file is missing")
        if self.version != before:
            self._sync()
        return self.version != before

    def commit(self, entry: LogEntry, *, data_change: bool = True) -> bool:
        """Write the next version, durably; return False if another process has written it: nothing was changed.

        1. write and sync the entry under a temporary name
        2. give it the name of the next version, which only one process can do: it has taken effect
        3. check that our version was not trimmed. If it was, the next one may have been written and trimmed too, and
        its number
           be free for that reason: entries are trimmed in their order
        4. sync the folder

        Raises:
            CommitUnknown: the log was trimmed while we were about to commit.
        """
        version, kind = self.version + 1, entry.kind
        with files.staged(
            self.path(version), entries.encode_entry(entry, data_change=data_change)
        ) as publish_name:  # 1
            crash.point(f"{kind}.written")
            if not self.is_valid:
                return False
            if not publish_name():  # 2
                if not isinstance(self.folder, Path) and not self.is_valid:  # maybe ours, and the answer was lost
                    raise CommitUnknown(str(self.path(version)))
                return False
            crash.point(f"{kind}.logged")
            if not self.is_valid:  # 3
                raise CommitUnknown(str(self.path(version)))
        fsync_folder(self.log)  # 4
        crash.point(f"{kind}.synced")
        self._apply(entry, version)
        return True

    def files_covering(self, start: int, end: int) -> list[MessageFile]:
        """Return the files with messages of ``start`` ≤ index < ``end``."""
        at = max(bisect_right(self.files, start, key=lambda f: f.first) - 1, 0)
        stop = bisect_right(self.files, end - 1, key=lambda f: f.first)
        return [f for f in self.files[at:stop] if f.end > start]

    def commits_since_checkpoint(self) -> int:
        """Return the number of commits since the log was last folded, by any process."""
        self.checkpointed = max((int(n) for n in files.list_names(self.marks) if n.isdigit()), default=0)
        return self.version - self.checkpointed

    def checkpoint(self) -> None:
        """Fold the log into one file and remove what it replaces, so that opening stays cheap.

        1. write and sync the checkpoint
        2. mark it: a small file with its checksum
        3. remove older entries and checkpoints
        """
        version = self.version
        path, content = self._checkpoint_path(version), self._checkpoint_content()
        replace(path, content)  # 1
        crash.point("fold.made")
        replace(self.marks / f"{version:020d}", seal(checksum(content)))  # 2
        crash.point("fold.marked")
        old = sorted(
            n for n in files.list_names(self.log) if (number := _version_of(n)) is not None and number < version
        )
        for name in old:  # 3, one after the other, the oldest first: see commit
            files.remove(self.log / name)
        files.remove_all(self.marks / n for n in files.list_names(self.marks) if n.isdigit() and int(n) < version)
        self._correct_hint()
        self.checkpointed = version
        crash.point("fold.trimmed")

    def _checkpoint_content(self) -> bytes:
        """Return the content of a checkpoint of the current version: the marked one and the entries after it.

        Raises:
            FileNotFoundError: the log was trimmed in the meantime.
        """
        marked = {int(name) for name in files.list_names(self.marks) if name.isdigit()}
        names = files.list_names(self.log)
        checkpoints = {int(found[1]) for name in names if (found := _CHECKPOINT.match(name))}
        base = max((each for each in checkpoints & marked if each < self.version), default=-1)
        entries = [self.path(int(f[1])) for name in names if (f := _ENTRY.match(name)) and int(f[1]) <= self.version]
        return checkpoint_content([*entries, *([self._checkpoint_path(base)] if base >= 0 else [])], self.version)

    def _checkpoint_path(self, version: int) -> StatePath:
        return self.log / f"{version:020d}.checkpoint.parquet"

    def _load(self) -> None:
        """Read the newest marked checkpoint and the entries after it."""
        names = files.list_names(self.log)
        written = {int(found[1]) for name in names if (found := _ENTRY.match(name))}
        folded = {int(found[1]) for name in names if (found := _CHECKPOINT.match(name))}
        marked = max(folded & {int(name) for name in files.list_names(self.marks) if name.isdigit()}, default=-1)
        self.files, self.transactions = [], {}
        if marked >= 0:
            self._apply(self._read_checkpoint(marked), marked)
        elif 0 in written:
            self._apply(entries.read_entry(self.path(0)), 0)
        else:
            missing = self._missing_start(folded)
            if files.exists(missing):  # it appeared in the meantime
                raise FileNotFoundError(str(missing))
            raise StateDamaged(str(missing), "the file is missing")
        self.checkpointed = max(marked, 0)
        begins, began = self.path(self.version), self._stamp
        for version in range(self.version + 1, max(written, default=-1) + 1):
            if version not in written and not self._was_trimmed(version):
                raise StateDamaged(str(self.path(version)), "the log file is missing")
            self._apply(entries.read_entry(self.path(version)), version)
        if stamp(begins) != began:
            self._stamp = None  # trimmed in the meantime: read again

    def _missing_start(self, folded: set[int]) -> StatePath:
        """Return the path of the missing file without which the log cannot be read."""
        marks = [int(name) for name in files.list_names(self.marks) if name.isdigit()]
        if marks:
            return self._checkpoint_path(max(marks))
        return self.marks / f"{max(folded):020d}" if folded else self.path(0)

    def _was_trimmed(self, version: int) -> bool:
        """Return whether an entry was removed because a newer checkpoint contains it."""
        return any(name.isdigit() and int(name) > version for name in files.list_names(self.marks))

    def _read_checkpoint(self, version: int) -> LogEntry:
        path = self._checkpoint_path(version)
        content = files.read(path)
        if unseal(self.marks / f"{version:020d}") != checksum(content):
            raise StateDamaged(str(path), "its checksum does not match its content")
        try:
            return entries.decode_checkpoint(
                pq.read_table(pa.BufferReader(content), columns=["add", "txn"]).to_pylist()
            )
        except (pa.ArrowException, msgspec.DecodeError, KeyError, TypeError) as e:
            raise StateDamaged(str(path), f"cannot be read ({e})") from e

    def _apply(self, entry: LogEntry, version: int) -> None:
        removed = {file if isinstance(file, str) else file.path for file in entry.removes}
        if removed:
            self.files = [f for f in self.files if f.path not in removed]
        self.files = sorted([*self.files, *entry.adds], key=lambda f: f.first)  # nearly sorted: quick
        self.transactions.update(entry.transactions)
        self.version = version
        self._stamp = stamp(self.path(version))

    def _sync(self) -> None:
        """Make entries of other processes durable before anybody acts on them."""
        try:
            fsync_folder(self.log)
        except OSError as e:
            if e.errno not in (errno.EROFS, errno.EINVAL, errno.EACCES):  # where nothing is written, all is durable
                raise

    def _correct_hint(self) -> None:
        """Remove the hint that names a checkpoint which no longer exists: other programs begin there."""
        hint = self.log / _HINT
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError, KeyError, TypeError):
            named = msgspec.json.decode(files.read(hint))["version"]
            if not files.exists(self._checkpoint_path(named)):
                files.remove(hint)


def _version_of(name: str) -> int | None:
    """Return the version of an entry or a checkpoint."""
    found = _ENTRY.match(name) or _CHECKPOINT.match(name)
    return int(found[1]) if found else None


# --- keys of appends whose files have been merged or trimmed: a few sorted files that never change ---
#
# While a file that was appended with a key is live, the log itself has the key. Before the file leaves the log its key
# is written here, so that at any moment one of the two has it. Trimmed rows of writers are kept in the same way, in a
# folder of their own: see ``queues.store.RepeatingWriter``.

_HEAD: Final = 16
"""Bytes before the numbers: the CRC-32 of what follows, and blanks."""
_MERGE_FACTOR: Final = 8
"""Number of files of one size class that are merged into one; a class begins at this multiple of the previous one's
size."""

_SPARSE: Final = 2
"""Divisor of a file's rows: a file of which less than that part is wanted is rewritten without the rest."""

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
