"""A Delta log that is durable and verified.

An entry is written and fsynced under a temporary name and linked to its own, which only one of two drivers can do. Then
the folder is fsynced, and the entry is *marked*: a small sealed file beside the log holds its checksum. What this buys:

* a marked entry that is missing or differs is damage: refused by name;
* a last entry without a mark was cut off between commit and mark. If it is whole it is marked now; if it is torn (a
  power cut, by a file system that does not keep what it has synced) it never took effect: it is set aside;
* an entry that somebody else wrote (``OPTIMIZE``, ``DELETE``) is refused by name.

A checkpoint is written whole, and then marked under its own version: the log begins at the newest one that is marked,
and nothing below that is looked at.

Two drivers may work on a log where a lock was lost: either may sleep before any of its steps, and wake when the other
one has gone on for long. So a step never relies on an old look. Entries, checkpoints and marks are only ever added,
under names that say their versions; only what is older than a marked checkpoint is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ferryman.errors import EngineError, StateDamaged, StateLost
from ferryman.memory import lacks_memory
from ferryman.storage.disk import scratch_folder
from ferryman.storage.files import (
    StatePath,
    checksum,
    fsync_folder,
    make_folder,
    read,
    remove_temporary,
    replace,
    seal,
    staged,
    stamp,
    unseal,
)

_COMMIT = re.compile(r"(\d{20})\.json\Z")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet\Z")
_CHECKPOINT_MARK = re.compile(r"checkpoint-(\d{20})\Z")
SHARED_CHECKPOINT_MARK: Final = "checkpoint"
"""The one mark of a checkpoint that older releases had on a disk, and that a log in an object store has."""
_HINT: Final = "_last_checkpoint"
"""Names the newest checkpoint for other programs, which find it without, too. Older releases wrote it."""
_FERRYMAN: Final = "ferryman"
_OTHER_PROGRAM: Final = "others"


class TableLog:
    """The log of the table in ``folder``: ``_delta_log/`` and its marks in ``_marks/``."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.folder = folder / "_delta_log"
        self.marks = folder / "_marks"

    @property
    def exists(self) -> bool:
        """Is the table there? A kill while it was made leaves no mark."""
        return self.marks.is_dir()

    def refresh(self) -> None:
        """See what is there now: files need nothing for that."""

    def create(self, entry: bytes) -> None:
        """Make the log with this entry, durably; one that is there stays as it is.

        Nothing is removed, and nothing is written over: whoever makes a log has no epoch yet, and what is there may be
        in use by a driver that was faster.
        """
        make_folder(self.folder)
        fsync_folder(self.root)
        self.refresh()
        if not self.versions() and not (self.write(0, entry) and self.publish(0)):
            self.refresh()
        if self.versions() == [0]:
            self.sync()
            self.mark(0)

    def publish(self, version: int) -> bool:
        """The entry that was written takes effect; False: another driver is further.

        As a file it has, unless its number was free because an entry had been there, and was trimmed: before that a
        checkpoint is marked. Either way it stays where it is. Below a checkpoint it means nothing; and if another
        driver has counted it, it is needed.
        """
        marked = self.marked_checkpoint()
        return marked is None or marked < version

    def path(self, version: int) -> Path:
        """The log file of a version."""
        return self.folder / f"{version:020d}.json"

    def write(self, version: int, data: bytes) -> bool:
        """Make an entry whole; its name is not yet durable. False: somebody else's is there."""
        with staged(self.path(version), data) as name_it:
            return name_it()

    def sync(self) -> None:
        """Make the names of entries durable."""
        fsync_folder(self.folder)

    def mark(self, version: int) -> None:
        """Note that a synced commit took effect."""
        make_folder(self.marks)
        replace(self._mark_path(version), seal(_file_checksum(self.path(version))))

    def info(self, version: int) -> dict[str, Any]:
        """What we wrote into a commit beside its actions; {} where there is nothing of ours."""
        for line in _read_log_file(self.path(version)).splitlines():
            commit_info = msgspec.json.decode(line).get("commitInfo")
            if commit_info is not None:
                found: dict[str, Any] = commit_info.get("ferryman") or {}
                return found
        return {}

    def find(self, kind: str, wave: int) -> dict[str, Any]:
        """What our commit of this kind for this wave said; it is in the log until the wave is settled.

        Raises:
            StateDamaged: it is not there.
        """
        for version in reversed(self.versions()):
            info = self.info(version)
            if (info.get("kind"), info.get("wave")) == (kind, wave):
                return info
        raise StateDamaged(str(self.folder), f"the commit of wave {wave} is missing")

    def versions(self) -> list[int]:
        """Versions whose log files are there, ascending."""
        if not self.folder.is_dir():
            return []
        return sorted(int(m[1]) for name in os.listdir(self.folder) if (m := _COMMIT.match(name)))

    def last(self) -> int:
        """The last version as it is now, -1: there is none."""
        self.refresh()
        return max(self.versions(), default=-1)

    def starting_points(self) -> tuple[str, set[str]]:
        """What a version may be read from: the first entry that there is (""), and the checkpoints, marked or not."""
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        return min(filter(_COMMIT.match, names), default=""), set(filter(_CHECKPOINT.match, names))

    def checkpoint_path(self, version: int) -> Path:
        """The file of a checkpoint."""
        return self.folder / f"{version:020d}.checkpoint.parquet"

    def marked_checkpoint(self) -> int | None:
        """The version of the checkpoint that is marked; None: there is none, or its mark is damaged."""
        with contextlib.suppress(StateDamaged):
            mark = self._checkpoint_mark()
            return None if mark is None else int(mark["version"])
        return None

    def transactions(self) -> dict[str, int]:
        """Application id -> number of its last transaction, of all that there are.

        Raises:
            StateDamaged: the log cannot be read.
        """
        mark, torn = self._checkpoint_mark(), self.torn_version()
        base = -1 if mark is None else int(mark["version"])
        found: dict[str, int] = {}
        if mark is not None:
            path = self.checkpoint_path(base)
            with _parquet_errors_as_damage(path):
                rows = pq.read_table(path, columns=["txn"])["txn"].to_pylist()
            found = {row["appId"]: row["version"] for row in rows if row is not None}
        for version in self.versions():
            if version > base and version != torn:
                for line in _read_log_file(self.path(version)).splitlines():
                    if (action := msgspec.json.decode(line).get("txn")) is not None:
                        found[action["appId"]] = action["version"]
        return found

    def verify(self) -> None:
        """Check the chain without changing anything; an unmarked last entry is allowed.

        Raises:
            StateDamaged: names the first damaged file.
        """
        for problem in self.problems():
            raise problem

    def problems(self) -> Iterator[StateDamaged]:
        """Every damaged file of the chain."""
        if not self.folder.is_dir():
            yield StateDamaged(str(self.folder), "the log is missing")
            return
        try:
            mark = self._checkpoint_mark()
        except StateDamaged as e:
            yield e
            return
        base = -1 if mark is None else int(mark["version"]) - 1
        if mark is not None:
            yield from self._checkpoint_problems(mark)
        there = set(self.versions())
        marked = self._marked_versions()
        last = max(there | marked, default=-1)
        if last < 0:
            yield StateDamaged(str(self.folder), "the log is empty")
        for version in range(base + 1, last + 1):
            if version not in there:
                yield self._missing_problem(version, base)
        for version in sorted(there):
            if version <= base:  # a driver that slept has left it, or is about to trim it
                continue
            if version in marked:
                if (problem := self._mark_mismatch(version)) is not None:
                    yield problem
            else:
                try:
                    if version != last or self._written_by(version) == _OTHER_PROGRAM:
                        yield self._unmarked_problem(version)
                except StateDamaged as e:  # to a reader: it was trimmed since it was listed
                    yield e

    def torn_version(self) -> int | None:
        """The last entry's version, if it was cut off before it took effect: readers do not look at it."""
        last = max(self.versions(), default=-1)
        return last if last > 0 and last not in self._marked_versions() and self._written_by(last) is None else None

    def repair(self) -> str | None:
        """Finish or set aside what a crash left; says what was set aside. After ``verify``, under the lock."""
        versions = self.versions()
        if not versions or versions[-1] in self._marked_versions():
            return None
        last = versions[-1]
        if self._written_by(last) is not None:
            self.sync()
            self.mark(last)
            return None
        make_folder(self.marks)
        aside = self.marks / f"set-aside-{last:020d}.json"
        self.path(last).rename(aside)
        fsync_folder(self.folder)
        return f"{self.path(last)}: torn by a crash before it took effect, set aside as {aside}"

    def remove_half_written(self, before: float) -> None:
        """See ``storage.files.remove_temporary``."""
        for folder in (self.folder, self.marks):
            remove_temporary(folder, before)

    def make_checkpoint(self, version: int) -> None:
        """Fold the log up to this version into one file, durably. Until it is marked it means nothing."""
        replace(self.checkpoint_path(version), self._checkpoint_content(version))

    def mark_checkpoint(self, version: int) -> None:
        """Note that the checkpoint of this version is there; what is older may then be removed. Where a newer one is
        marked, that stays the one that counts."""
        make_folder(self.marks)
        replace(self._checkpoint_mark_path(version), self._sealed_checkpoint(version))

    def trim(self, version: int) -> None:
        """Remove commits and checkpoints before a marked checkpoint, and the marks of what is gone.

        Raises:
            StateLost: it is not there: another driver has trimmed it, up to a newer one. Nothing was removed.
        """
        if not self._has_checkpoint(version):
            raise StateLost(f"{self.checkpoint_path(version)}: another driver has made a newer checkpoint.")
        for name in os.listdir(self.folder):
            found = _COMMIT.match(name) or _CHECKPOINT.match(name)
            if name == _HINT or (found and int(found[1]) < version):
                (self.folder / name).unlink(missing_ok=True)
        there = set(self.versions())
        for marked in self._marked_versions() - there:
            if marked < version:
                self._mark_path(marked).unlink(missing_ok=True)
        for path in self._checkpoint_mark_paths():
            if path != self._checkpoint_mark_path(version) and self._mark_version(path) < version:
                path.unlink(missing_ok=True)

    def _has_checkpoint(self, version: int) -> bool:
        return self.checkpoint_path(version).exists()

    def _checkpoint_content(self, version: int) -> bytes:
        """The content of a checkpoint: of the marked one and the entries from there on."""
        mark = self._checkpoint_mark()
        base = -1 if mark is None else int(mark["version"])
        entries = [self.path(each) for each in self.versions() if base <= each <= version]
        return checkpoint_content([*entries, *([] if mark is None else [self.checkpoint_path(base)])], version)

    def _sealed_checkpoint(self, version: int) -> bytes:
        return seal({"version": version, "checkpoint": _file_checksum(self.checkpoint_path(version))})

    def _checkpoint_mark_path(self, version: int) -> Path:
        """Each checkpoint has its own: one that all share could be replaced by a driver that slept."""
        return self.marks / f"checkpoint-{version:020d}"

    def _checkpoint_mark_paths(self) -> list[Path]:
        names = os.listdir(self.marks) if self.marks.is_dir() else []
        return [self.marks / name for name in names if name == SHARED_CHECKPOINT_MARK or _CHECKPOINT_MARK.match(name)]

    def _mark_version(self, path: Path) -> int:
        found = _CHECKPOINT_MARK.match(path.name)
        return int(found[1]) if found else -1  # the one that all shared is older than any that has its own

    def _mark_path(self, version: int) -> Path:
        return self.marks / f"{version:020d}"

    def _marked_versions(self) -> set[int]:
        if not self.marks.is_dir():
            return set()
        return {int(name) for name in os.listdir(self.marks) if name.isdigit()}

    def _written_by(self, version: int) -> str | None:
        """Who wrote a log file: us, or others; None: it is torn (it holds not as many actions as its commit says)."""
        try:
            actions = [msgspec.json.decode(line) for line in _read_log_file(self.path(version)).splitlines()]
            said = next(a["commitInfo"] for a in actions if "commitInfo" in a).get("ferryman")
            if said is None:  # the making of an empty table
                making = (
                    version == 0 and any("metaData" in a for a in actions) and any("protocol" in a for a in actions)
                )
                return _FERRYMAN if making else _OTHER_PROGRAM
            whole = all(said[f"{kind}s"] == sum(kind in a for a in actions) for kind in ("add", "remove", "txn"))
        except (msgspec.DecodeError, StopIteration, AttributeError, KeyError, TypeError):
            return None
        return _FERRYMAN if whole else None

    def _mark_mismatch(self, version: int) -> StateDamaged | None:
        """A marked entry against its mark."""
        try:
            if unseal(self._mark_path(version)) != _file_checksum(self.path(version)):
                return StateDamaged(str(self.path(version)), "its checksum does not match its content")
        except StateDamaged as e:
            return e
        return None

    def _unmarked_problem(self, version: int) -> StateDamaged:
        if self._written_by(version) == _OTHER_PROGRAM:
            return StateDamaged(str(self.path(version)), "it was not written by Ferryman")
        return StateDamaged(str(self._mark_path(version)), "the mark is missing")

    def _missing_problem(self, version: int, base: int) -> StateDamaged:
        newest = max((int(m[1]) for name in os.listdir(self.folder) if (m := _CHECKPOINT.match(name))), default=-1)
        if base < 0 and newest > version:  # the log was trimmed, and that is done only after the checkpoint is marked
            return StateDamaged(str(self._checkpoint_mark_path(newest)), "the mark of the checkpoint is missing")
        return StateDamaged(str(self.path(version)), "the log file is missing")

    def _checkpoint_mark(self) -> dict[str, Any] | None:
        """The mark of the newest checkpoint that is marked."""
        for path in sorted(self._checkpoint_mark_paths(), key=self._mark_version)[-1:]:
            mark: Any = unseal(path)
            return dict(mark)
        return None

    def _checkpoint_problems(self, mark: dict[str, Any]) -> Iterator[StateDamaged]:
        checkpoint = self.checkpoint_path(int(mark["version"]))
        if not checkpoint.exists():
            yield StateDamaged(str(checkpoint), "the checkpoint is missing")
        elif _file_checksum(checkpoint) != mark["checkpoint"]:
            yield StateDamaged(str(checkpoint), "its checksum does not match its content")


def version_of(name: str) -> int:
    """The version that an entry or a checkpoint of this name is of."""
    return int(name.partition(".")[0])


@contextlib.contextmanager
def _parquet_errors_as_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as e:
        if lacks_memory(e):
            raise
        raise StateDamaged(str(path), f"it cannot be read ({e})") from e


def _file_checksum(path: Path) -> str:
    return checksum(_read_log_file(path))


def _read_log_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise StateDamaged(str(path), "the file is missing") from None


# Checkpoints of Delta logs: delta-rs folds a log into one file, in a scratch folder of this machine.
#
# So it never looks at what a kill or another program has left in the log itself, and a checkpoint gets its name there
# when it is whole.


def checkpoint_content(parts: Iterable[StatePath], version: int) -> bytes:
    """The content of a checkpoint.

    Args:
        parts: entries of the log up to this version, all of them, or a checkpoint and all after it.

    Raises:
        FileNotFoundError: one is not there.
        EngineError: delta-rs cannot fold them.
    """
    from deltalake import DeltaTable  # loaded where it is needed: that takes longer than most questions
    from deltalake.exceptions import DeltaError

    with scratch_folder() as folder:
        log = Path(folder, "_delta_log")
        log.mkdir()
        for part in parts:
            (log / part.name).write_bytes(read(part))
        try:
            DeltaTable(folder, version=version).create_checkpoint()
        except (DeltaError, OSError) as e:
            raise EngineError(f"the checkpoint failed: {message_on_one_line(e)}") from e
        return (log / f"{version:020d}.checkpoint.parquet").read_bytes()


def message_on_one_line(error: Exception) -> str:
    """What delta-rs says, without its colours and line breaks."""
    return " ".join(re.sub(r"\x1b\[\d+m", "", str(error)).split())


# Open Delta tables, kept and brought to the newest version: that reads only what is new of their logs.

MAX_OPEN_TABLES: Final = 6
"""Handles of a thread: the tables of two states."""
_MAX_OPEN_ATTEMPTS: Final = 20
"""So often a log is read again because a driver trimmed it meanwhile."""


class OpenTable:
    """A table as of one version; ``move_on`` brings it to the newest.

    Args:
        version: not the newest one, but this.

    Raises:
        LogUnreadable: there is no log, or it cannot be read.
    """

    def __init__(self, folder: Path, version: int | None = None) -> None:
        self.folder = folder
        self._log = TableLog(folder)
        # before it is read: what is trimmed or removed meanwhile shows afterwards
        self._starting_points = self._log.starting_points()
        self.version = -1
        self._files: dict[str, DataFile] = {}
        self._transactions: dict[str, int] = {}
        begin = self._starting_checkpoint()
        if begin is not None:
            self._apply(read_checkpoint(self._log.checkpoint_path(begin)), begin)
        for each in self._log.versions():
            if each <= self.version or (version is not None and each > version):
                continue
            if each != self.version + 1:
                raise LogUnreadable(f"{self._log.path(self.version + 1)}: the log file is missing")
            self._apply(read_entry(self._log.path(each)), each)
        if self.version < 0:
            raise LogUnreadable(f"{self._log.folder}: there is no log")
        self._stamp = stamp(self._log.path(self.version))

    def refresh(self) -> None:
        """To the newest version. Versions have no gaps: without the next one there is nothing to read."""
        before = self.version
        while (path := self._log.path(self.version + 1)).exists():
            self._apply(read_entry(path), self.version + 1)
        if self.version != before:
            self._stamp = stamp(self._log.path(self.version))

    @property
    def is_valid(self) -> bool:
        """Is the log still the one that was read? Not if another state was put into its place, nor if it was trimmed or
        is about to be, nor if a checkpoint was removed that a kill had left."""
        found = stamp(self._log.path(self.version))
        return found is not None and found == self._stamp and not self.was_trimmed

    @property
    def was_trimmed(self) -> bool:
        """Has anybody trimmed the log since it was read, or is about to? Then a version that seems to be free may have
        been there."""
        return self._log.starting_points() != self._starting_points

    def transaction(self, application: str) -> int:
        """The number of its last transaction, 0 if there was none."""
        return self._transactions.get(application, 0)

    def files(self) -> dict[str, DataFile]:
        """Path -> live file."""
        return dict(self._files)

    def _starting_checkpoint(self) -> int | None:
        """The version of the checkpoint to begin with: the one that is marked. Where there is no mark, none, unless the
        first entries are not there any more."""
        marked = self._log.marked_checkpoint()
        first, checkpoints = self._starting_points
        if marked is not None or first == self._log.path(0).name or not checkpoints:
            return marked
        return max(map(version_of, checkpoints))

    def _apply(self, changes: LogChanges, version: int) -> None:
        for path in changes.removes:
            self._files.pop(path, None)
        self._files.update((file.path, file) for file in changes.adds)
        self._transactions.update(changes.transactions)
        self.version = version


def open_newest(folder: Path, handle: OpenTable | None = None) -> OpenTable:
    """The table in its newest version.

    Args:
        handle: one that was opened before; it is used if it can be.

    Raises:
        LogUnreadable: see ``OpenTable``.
    """
    if handle is not None and handle.is_valid:
        handle.refresh()
        return handle
    log = TableLog(folder)
    for _ in range(_MAX_OPEN_ATTEMPTS):
        before = log.starting_points()
        try:
            return OpenTable(folder)
        except LogUnreadable:
            if log.starting_points() == before:
                raise
    return OpenTable(folder)


class _ThreadTables(threading.local):
    """Of this thread: a handle that is moved on by one thread would be read at two versions by another."""

    def __init__(self) -> None:
        self.handles: OrderedDict[Path, OpenTable] = OrderedDict()


_thread_tables = _ThreadTables()


def open_newest_cached(folder: Path) -> OpenTable:
    """The same, for those who read only: whoever commits must have a handle that nobody else moves on."""
    kept = _thread_tables.handles
    kept[folder] = open_newest(folder, kept.pop(folder, None))
    while len(kept) > MAX_OPEN_TABLES:
        kept.popitem(last=False)
    return kept[folder]


# Entries and checkpoints of a Delta log that is our own, read and written without delta-rs: for logs of a few dozen
# small entries that takes a twentieth of the time, and no threads.
#
# What a name or a value may be in such a log is what we write there; ``TableLog`` refuses what others have written.

_STATISTICS: Final = ("minValues", "maxValues", "nullCount")


class LogUnreadable(Exception):
    """A log is not there, or cannot be read."""


class DataFile(NamedTuple):
    """A live file of a table."""

    path: str
    """Its name in the table's folder."""
    size: int
    rows: int
    partition: dict[str, str]
    stats: dict[str, Any]


class LogChanges(NamedTuple):
    """What an entry, or all up to a checkpoint, has changed."""

    adds: list[DataFile]
    removes: list[str]
    transactions: dict[str, int]


class _Add(msgspec.Struct):
    path: str
    size: int
    partitionValues: dict[str, str]
    stats: str | None = None


class _Remove(msgspec.Struct):
    path: str


class _Transaction(msgspec.Struct):
    appId: str
    version: int


class _Action(msgspec.Struct):
    """What else there is in an entry is skipped."""

    add: _Add | None = None
    remove: _Remove | None = None
    txn: _Transaction | None = None


_decode = msgspec.json.Decoder(_Action).decode


def read_entry(path: Path) -> LogChanges:
    """What an entry has changed.

    Raises:
        LogUnreadable: it is not there, or is not an entry.
    """
    try:
        actions = [_decode(line) for line in path.read_bytes().splitlines()]
        adds = [_data_file(a.path, a.size, a.partitionValues, a.stats) for a in (each.add for each in actions) if a]
    except (OSError, ValueError) as e:
        if lacks_memory(e):
            raise
        raise LogUnreadable(f"{path}: {e}") from e
    return LogChanges(
        adds,
        [each.remove.path for each in actions if each.remove],
        {each.txn.appId: each.txn.version for each in actions if each.txn},
    )


def read_checkpoint(path: Path) -> LogChanges:
    """All that there is in a checkpoint.

    Raises:
        LogUnreadable: it is not there, or is not a checkpoint.
    """
    try:
        table = pq.read_table(path, columns=["add", "txn"])
        adds = [
            _data_file(add["path"], add["size"], dict(add["partitionValues"] or ()), add["stats"])
            for add in table["add"].to_pylist()
            if add is not None
        ]
        found = (txn for txn in table["txn"].to_pylist() if txn is not None)
        return LogChanges(adds, [], {txn["appId"]: txn["version"] for txn in found})
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as e:
        if lacks_memory(e):
            raise
        raise LogUnreadable(f"{path}: {e}") from e


def first_entry(schema: str, partition_by: list[str], configuration: Mapping[str, str]) -> bytes:
    """The entry that makes a table."""
    now = time.time_ns() // 1_000_000
    metadata = {
        "id": str(uuid.uuid4()),
        "name": None,
        "description": None,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": partition_by,
        "createdTime": now,
        "configuration": configuration,
    }
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": now, "operation": "CREATE TABLE", "engineInfo": "ferryman"}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": metadata},
    ]
    return b"".join(msgspec.json.encode(action) + b"\n" for action in actions)


def encode_entry(
    adds: Iterable[DataFile],
    removes: Iterable[DataFile],
    transactions: Mapping[str, int],
    info: Mapping[str, Any],
    partition_by: list[str],
    *,
    data_change: bool,
) -> bytes:
    """The file of an entry; ``info`` is kept beside its actions."""
    how = {"mode": "Append", "partitionBy": msgspec.json.encode(partition_by).decode()}
    now = time.time_ns() // 1_000_000
    about = {"timestamp": now, "operation": "WRITE", "operationParameters": how, "engineInfo": "ferryman", **info}
    return b"".join(msgspec.json.encode(a) + b"\n" for a in _actions(about, adds, removes, transactions, data_change))


def _actions(
    about: Mapping[str, Any],
    adds: Iterable[DataFile],
    removes: Iterable[DataFile],
    transactions: Mapping[str, int],
    data_change: bool,
) -> Iterator[dict[str, Any]]:
    yield {"commitInfo": about}
    for name, number in transactions.items():
        yield {"txn": {"appId": name, "version": number}}
    for gone in removes:
        yield {
            "remove": {
                "path": gone.path,
                "dataChange": data_change,
                "deletionTimestamp": 0,
                "extendedFileMetadata": True,
                "partitionValues": gone.partition,
                "size": gone.size,
            }
        }
    for file in adds:
        yield {
            "add": {
                "path": file.path,
                "partitionValues": file.partition,
                "size": file.size,
                "modificationTime": 0,
                "dataChange": data_change,
                "stats": msgspec.json.encode({"numRecords": file.rows, **file.stats}).decode(),
            }
        }


def _data_file(path: str, size: int, partition: dict[str, str], stats: str | None) -> DataFile:
    said = msgspec.json.decode(stats) if stats else {}
    return DataFile(
        path, size, said.get("numRecords") or 0, partition, {k: said[k] for k in _STATISTICS if said.get(k)}
    )
