"""The Delta table of a queue: many processes append to it; who gives the next version its name, as only one can, wins.

``move_on`` reads what others have written since; ``commit`` writes the next entry, unless somebody was faster.
Nothing here needs a lock.
"""

from __future__ import annotations

import contextlib
import errno
import re
from bisect import bisect_right
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ferryman import crash
from ferryman.errors import EngineError, StateDamaged
from ferryman.queues import entries
from ferryman.queues.entries import LAST, LogEntry, MessageFile
from ferryman.storage import files
from ferryman.storage.checkpoints import folded
from ferryman.storage.files import StatePath, fsync_folder, replace, stamp
from ferryman.storage.seals import checksum, sealed, unseal

_ENTRY = re.compile(r"(\d{20})\.json\Z")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet\Z")
_HINT: Final = "_last_checkpoint"
_TRIES: Final = 20
"""So often the log is read again because somebody trimmed it meanwhile."""


class CommitUnknown(EngineError):
    """A process slept while it committed, and others have trimmed the log meanwhile: did it take effect?"""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"{self.path}: the log went on without this process, which was stopped while it committed. Whether the "
            "commit took effect is not known. An append with a key can be repeated."
        )


class MessageTable:
    """The table in ``folder`` as of one version: ``files`` in the order of their messages."""

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
        """Index of the last message that was ever appended, 0 if there was none."""
        return self.transactions.get(LAST, 0)

    @property
    def first(self) -> int:
        """Index of the first message that is kept; that of the next one if there is none."""
        return self.files[0].first if self.files else self.last + 1

    def path(self, version: int) -> StatePath:
        """The file of an entry."""
        return self.log / f"{version:020d}.json"

    @property
    def holds(self) -> bool:
        """Is the entry of our version still in the log? If it was trimmed, what follows it may have been, too."""
        return self._stamp is not None and self._stamp == stamp(self.path(self.version))

    def move_on(self) -> bool:
        """To the newest version, which is durable then; True if it is another one than before.

        Raises:
            StateDamaged: an entry or checkpoint is missing, or not what was written.
        """
        before = self.version
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError):  # trimmed while we read it
                if not self.holds:
                    self._open()
                while files.exists(self.path(self.version + 1)):
                    entry = entries.decode(self.path(self.version + 1))
                    if not self.holds:  # as in commit: what was read may be what a sleeper has left there
                        break
                    self._apply(entry, self.version + 1)
                if self.holds:
                    break
        else:
            raise StateDamaged(str(self.path(self.version)), "the log file is missing")
        if self.version != before:
            self._sync()
        return self.version != before

    def commit(self, entry: LogEntry, *, data_change: bool = True) -> bool:
        """The next version, durable; False: somebody else has it, nothing was changed.

        1. write and sync the entry under a temporary name
        2. give it the name of the next version, which only one can: it has taken effect
        3. unless our version was trimmed. The next one may have been written and trimmed too, and be free for that
           reason: entries are trimmed in their order
        4. sync the folder

        Raises:
            CommitUnknown: the log was trimmed while we were about to commit.
        """
        version, kind = self.version + 1, entry.kind
        with files.staged(self.path(version), entries.encode(entry, data_change=data_change)) as name_it:  # 1
            crash.point(f"{kind}.written")
            if not self.holds:
                return False
            if not name_it():  # 2
                if not isinstance(self.folder, Path) and not self.holds:  # it was ours, perhaps, its answer was lost
                    raise CommitUnknown(str(self.path(version)))
                return False
            crash.point(f"{kind}.logged")
            if not self.holds:  # 3
                raise CommitUnknown(str(self.path(version)))
        fsync_folder(self.log)  # 4
        crash.point(f"{kind}.synced")
        self._apply(entry, version)
        return True

    def covering(self, start: int, end: int) -> list[MessageFile]:
        """Files with messages of ``start`` ≤ index < ``end``."""
        at = max(bisect_right(self.files, start, key=lambda f: f.first) - 1, 0)
        upto = bisect_right(self.files, end - 1, key=lambda f: f.first)
        return [f for f in self.files[at:upto] if f.end > start]

    def commits(self) -> int:
        """Commits since the log was folded last, by whomever."""
        self.checkpointed = max((int(n) for n in files.names(self.marks) if n.isdigit()), default=0)
        return self.version - self.checkpointed

    def checkpoint(self) -> None:
        """Fold the log into one file and remove what it replaces, so that opening stays cheap.

        1. write and sync it
        2. mark it: a small file with its checksum
        3. remove older entries and checkpoints
        """
        version = self.version
        path, content = self._checkpoint(version), self._fold()
        replace(path, content)  # 1
        crash.point("fold.made")
        replace(self.marks / f"{version:020d}", sealed(checksum(content)))  # 2
        crash.point("fold.marked")
        old = sorted(n for n in files.names(self.log) if (number := _number(n)) is not None and number < version)
        for name in old:  # 3, one after the other, the oldest first: see commit
            files.remove(self.log / name)
        files.remove_all(self.marks / n for n in files.names(self.marks) if n.isdigit() and int(n) < version)
        self._correct_hint()
        self.checkpointed = version
        crash.point("fold.trimmed")

    def _fold(self) -> bytes:
        """The content of a checkpoint of our version: of the marked one and the entries after it.

        Raises:
            FileNotFoundError: the log was trimmed meanwhile.
        """
        marked = {int(name) for name in files.names(self.marks) if name.isdigit()}
        names = files.names(self.log)
        checkpoints = {int(found[1]) for name in names if (found := _CHECKPOINT.match(name))}
        base = max((each for each in checkpoints & marked if each < self.version), default=-1)
        entries = [self.path(int(f[1])) for name in names if (f := _ENTRY.match(name)) and int(f[1]) <= self.version]
        return folded([*entries, *([self._checkpoint(base)] if base >= 0 else [])], self.version)

    def _checkpoint(self, version: int) -> StatePath:
        return self.log / f"{version:020d}.checkpoint.parquet"

    def _open(self) -> None:
        """Read the newest marked checkpoint and the entries after it."""
        names = files.names(self.log)
        written = {int(found[1]) for name in names if (found := _ENTRY.match(name))}
        folded = {int(found[1]) for name in names if (found := _CHECKPOINT.match(name))}
        marked = max(folded & {int(name) for name in files.names(self.marks) if name.isdigit()}, default=-1)
        self.files, self.transactions = [], {}
        if marked >= 0:
            self._apply(self._folded(marked), marked)
        elif 0 in written:
            self._apply(entries.decode(self.path(0)), 0)
        else:
            missing = self._missing(folded)
            if files.exists(missing):  # it came while we looked
                raise FileNotFoundError(str(missing))
            raise StateDamaged(str(missing), "the file is missing")
        self.checkpointed = max(marked, 0)
        begins, began = self.path(self.version), self._stamp
        for version in range(self.version + 1, max(written, default=-1) + 1):
            if version not in written and not self._trimmed(version):
                raise StateDamaged(str(self.path(version)), "the log file is missing")
            self._apply(entries.decode(self.path(version)), version)
        if stamp(begins) != began:
            self._stamp = None  # trimmed meanwhile: once more

    def _missing(self, folded: set[int]) -> StatePath:
        """The file without which there is no beginning."""
        marks = [int(name) for name in files.names(self.marks) if name.isdigit()]
        if marks:
            return self._checkpoint(max(marks))
        return self.marks / f"{max(folded):020d}" if folded else self.path(0)

    def _trimmed(self, version: int) -> bool:
        """Was it removed because a newer checkpoint holds it?"""
        return any(name.isdigit() and int(name) > version for name in files.names(self.marks))

    def _folded(self, version: int) -> LogEntry:
        path = self._checkpoint(version)
        content = files.read(path)
        if unseal(self.marks / f"{version:020d}") != checksum(content):
            raise StateDamaged(str(path), "its checksum does not match its content")
        try:
            return entries.of_checkpoint(pq.read_table(pa.BufferReader(content), columns=["add", "txn"]).to_pylist())
        except (pa.ArrowException, msgspec.DecodeError, KeyError, TypeError) as e:
            raise StateDamaged(str(path), f"cannot be read ({e})") from e

    def _apply(self, entry: LogEntry, version: int) -> None:
        gone = {file if isinstance(file, str) else file.path for file in entry.removes}
        if gone:
            self.files = [f for f in self.files if f.path not in gone]
        self.files = sorted([*self.files, *entry.adds], key=lambda f: f.first)  # nearly sorted: quick
        self.transactions.update(entry.transactions)
        self.version = version
        self._stamp = stamp(self.path(version))

    def _sync(self) -> None:
        """What others have written is durable before anybody acts on it."""
        try:
            fsync_folder(self.log)
        except OSError as e:
            if e.errno not in (errno.EROFS, errno.EINVAL, errno.EACCES):  # where nothing is written, all is durable
                raise

    def _correct_hint(self) -> None:
        """Other programs begin at the checkpoint that this file names: one that is there."""
        hint = self.log / _HINT
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError, KeyError, TypeError):
            named = msgspec.json.decode(files.read(hint))["version"]
            if not files.exists(self._checkpoint(named)):
                files.remove(hint)


def _number(name: str) -> int | None:
    """The version of an entry, or of a checkpoint."""
    found = _ENTRY.match(name) or _CHECKPOINT.match(name)
    return int(found[1]) if found else None
