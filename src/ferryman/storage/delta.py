"""Delta logs, durable and verified: their entries, marks and checkpoints, and tables opened from them.

An entry is written and fsynced under a temporary name, then linked to its final name, which only one of two drivers can
do. Then the folder is fsynced, and the entry is *marked*: a small sealed file beside the log holds its checksum. So:

* a marked entry that is missing or differs is damage, and is refused by name;
* a last entry without a mark was cut off between commit and mark. If it is complete it is marked now; if it is torn (a
  power cut, on a file system that does not keep what it has synced) it never took effect, and is set aside;
* an entry written by another program (``OPTIMIZE``, ``DELETE``) is refused by name.

A checkpoint is written completely, and then marked under its own version: the log begins at the newest marked one, and
nothing below that is read.

Two drivers may work on a log if a lock was lost: either may be suspended before any of its steps, and resume long after
the other one has moved the log forward. So a step never relies on what an earlier one has seen. Entries, checkpoints
and marks are only ever added, under names that say their versions; only what is older than a marked checkpoint is
removed.
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
"""Name of the single checkpoint mark of a log in an object store. Older releases also wrote it on disks."""
_HINT: Final = "_last_checkpoint"
"""Name of the file that points other programs to the newest checkpoint (optional in Delta). Older releases wrote it."""
_FERRYMAN: Final = "ferryman"
_OTHER_PROGRAM: Final = "others"


class TableLog:
    """Log of the table in ``folder``: entries in ``_delta_log/``, their marks in ``_marks/``."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.folder = folder / "_delta_log"
        self.marks = folder / "_marks"

    @property
    def exists(self) -> bool:
        """Return whether the table was created. A process killed while creating it leaves no mark."""
        return self.marks.is_dir()

    def refresh(self) -> None:
        """Read the current state of the log. Files on a disk need no refresh."""

    def create(self, entry: bytes) -> None:
        """Create the log with this first entry, durably; leave an existing log as it is.

        Nothing is removed or overwritten: a process that creates a log has no epoch yet, and existing files may be in
        use by a driver that was faster.
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
        """Put a written entry into effect; return False if another driver is ahead.

        A file is in effect as soon as it has its name, unless its number was free only because an earlier entry of that
        number was trimmed: then a newer checkpoint is marked. The entry stays in either case: below a checkpoint it has
        no meaning, and if another driver has counted it, it is needed.
        """
        marked = self.marked_checkpoint()
        return marked is None or marked < version

    def path(self, version: int) -> Path:
        """Return the path of a version's log entry."""
        return self.folder / f"{version:020d}.json"

    def write(self, version: int, data: bytes) -> bool:
        """Write a complete entry, whose name is not yet durable; return False if the version exists already."""
        with staged(self.path(version), data) as publish_name:
            return publish_name()

    def sync(self) -> None:
        """Make the names of entries durable."""
        fsync_folder(self.folder)

    def mark(self, version: int) -> None:
        """Record that a synced commit took effect."""
        make_folder(self.marks)
        replace(self._mark_path(version), seal(_file_checksum(self.path(version))))

    def info(self, version: int) -> dict[str, Any]:
        """Return Ferryman's own fields of a commit's ``commitInfo``; {} if there are none."""
        for line in _read_log_file(self.path(version)).splitlines():
            commit_info = msgspec.json.decode(line).get("commitInfo")
            if commit_info is not None:
                found: dict[str, Any] = commit_info.get("ferryman") or {}
                return found
        return {}

    def find(self, kind: str, wave: int) -> dict[str, Any]:
        """Return ``info`` of the commit of this kind and wave; it stays in the log until the wave is settled.

        Raises:
            StateDamaged: there is no such commit.
        """
        for version in reversed(self.versions()):
            info = self.info(version)
            if (info.get("kind"), info.get("wave")) == (kind, wave):
                return info
        raise StateDamaged(str(self.folder), f"the commit of wave {wave} is missing")

    def versions(self) -> list[int]:
        """Return the versions that have a log entry, ascending."""
        if not self.folder.is_dir():
            return []
        return sorted(int(m[1]) for name in os.listdir(self.folder) if (m := _COMMIT.match(name)))

    def last(self) -> int:
        """Refresh, and return the last version; -1 if there is none."""
        self.refresh()
        return max(self.versions(), default=-1)

    def starting_points(self) -> tuple[str, set[str]]:
        """Return the name of the first entry ("" if none) and of all checkpoints, marked or not: reading begins at one
        of them."""
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        return min(filter(_COMMIT.match, names), default=""), set(filter(_CHECKPOINT.match, names))

    def checkpoint_path(self, version: int) -> Path:
        """Return the path of a version's checkpoint."""
        return self.folder / f"{version:020d}.checkpoint.parquet"

    def marked_checkpoint(self) -> int | None:
        """Return the version of the newest marked checkpoint; None if there is none, or its mark is damaged."""
        with contextlib.suppress(StateDamaged):
            mark = self._checkpoint_mark()
            return None if mark is None else int(mark["version"])
        return None

    def transactions(self) -> dict[str, int]:
        """Return application id -> number of its last transaction, for all applications.

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
        """Check the chain of entries without changing anything; the last entry may be unmarked.

        Raises:
            StateDamaged: names the first damaged file.
        """
        for problem in self.problems():
            raise problem

    def problems(self) -> Iterator[StateDamaged]:
        """Yield an error for every damaged file of the chain."""
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
        existing = set(self.versions())
        marked = self._marked_versions()
        last = max(existing | marked, default=-1)
        if last < 0:
            yield StateDamaged(str(self.folder), "the log is empty")
        for version in range(base + 1, last + 1):
            if version not in existing:
                yield self._missing_problem(version, base)
        for version in sorted(existing):
            if version <= base:  # left by a driver that was suspended, or about to be trimmed
                continue
            if version in marked:
                if (problem := self._mark_mismatch(version)) is not None:
                    yield problem
            else:
                try:
                    if version != last or self._written_by(version) == _OTHER_PROGRAM:
                        yield self._unmarked_problem(version)
                except StateDamaged as e:  # for a reader: trimmed since it was listed
                    yield e

    def torn_version(self) -> int | None:
        """Return the version of a last entry that was cut off before it took effect, which readers skip; else None."""
        last = max(self.versions(), default=-1)
        return last if last > 0 and last not in self._marked_versions() and self._written_by(last) is None else None

    def repair(self) -> str | None:
        """Finish, or set aside, an entry that a crash left unmarked; return a note on what was set aside.

        Call it after ``verify``, holding the state's lock.
        """
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
        """Remove temporary files older than ``before``, see ``storage.files.remove_temporary``."""
        for folder in (self.folder, self.marks):
            remove_temporary(folder, before)

    def make_checkpoint(self, version: int) -> None:
        """Fold the log up to this version into one file, durably. It has no meaning until it is marked."""
        replace(self.checkpoint_path(version), self._checkpoint_content(version))

    def mark_checkpoint(self, version: int) -> None:
        """Record that this version's checkpoint is complete, so that older files may be removed. A newer marked
        checkpoint stays in force."""
        make_folder(self.marks)
        replace(self._checkpoint_mark_path(version), self._sealed_checkpoint(version))

    def trim(self, version: int) -> None:
        """Remove entries and checkpoints older than a marked checkpoint, and their marks.

        Raises:
            StateLost: the checkpoint is missing: another driver has trimmed the log up to a newer one. Nothing was
                removed.
        """
        if not self._has_checkpoint(version):
            raise StateLost(f"{self.checkpoint_path(version)}: another driver has made a newer checkpoint.")
        for name in os.listdir(self.folder):
            found = _COMMIT.match(name) or _CHECKPOINT.match(name)
            if name == _HINT or (found and int(found[1]) < version):
                (self.folder / name).unlink(missing_ok=True)
        existing = set(self.versions())
        for marked in self._marked_versions() - existing:
            if marked < version:
                self._mark_path(marked).unlink(missing_ok=True)
        for path in self._checkpoint_mark_paths():
            if path != self._checkpoint_mark_path(version) and self._mark_version(path) < version:
                path.unlink(missing_ok=True)

    def _has_checkpoint(self, version: int) -> bool:
        return self.checkpoint_path(version).exists()

    def _checkpoint_content(self, version: int) -> bytes:
        """Return the content of a new checkpoint, folded from the marked one and the entries after it."""
        mark = self._checkpoint_mark()
        base = -1 if mark is None else int(mark["version"])
        entries = [self.path(each) for each in self.versions() if base <= each <= version]
        return checkpoint_content([*entries, *([] if mark is None else [self.checkpoint_path(base)])], version)

    def _sealed_checkpoint(self, version: int) -> bytes:
        return seal({"version": version, "checkpoint": _file_checksum(self.checkpoint_path(version))})

    def _checkpoint_mark_path(self, version: int) -> Path:
        """Return the path of a checkpoint's mark. Each checkpoint has its own: a shared one could be overwritten by a
        driver that was suspended."""
        return self.marks / f"checkpoint-{version:020d}"

    def _checkpoint_mark_paths(self) -> list[Path]:
        names = os.listdir(self.marks) if self.marks.is_dir() else []
        return [self.marks / name for name in names if name == SHARED_CHECKPOINT_MARK or _CHECKPOINT_MARK.match(name)]

    def _mark_version(self, path: Path) -> int:
        found = _CHECKPOINT_MARK.match(path.name)
        return int(found[1]) if found else -1  # the shared mark is older than any mark of a single checkpoint

    def _mark_path(self, version: int) -> Path:
        return self.marks / f"{version:020d}"

    def _marked_versions(self) -> set[int]:
        if not self.marks.is_dir():
            return set()
        return {int(name) for name in os.listdir(self.marks) if name.isdigit()}

    def _written_by(self, version: int) -> str | None:
        """Return who wrote an entry: ``_FERRYMAN`` or ``_OTHER_PROGRAM``; None if it is torn (fewer actions than its
        commit counts)."""
        try:
            actions = [msgspec.json.decode(line) for line in _read_log_file(self.path(version)).splitlines()]
            counts = next(a["commitInfo"] for a in actions if "commitInfo" in a).get("ferryman")
            if counts is None:  # maybe the creation of an empty table
                is_creation = (
                    version == 0 and any("metaData" in a for a in actions) and any("protocol" in a for a in actions)
                )
                return _FERRYMAN if is_creation else _OTHER_PROGRAM
            complete = all(counts[f"{kind}s"] == sum(kind in a for a in actions) for kind in ("add", "remove", "txn"))
        except (msgspec.DecodeError, StopIteration, AttributeError, KeyError, TypeError):
            return None
        return _FERRYMAN if complete else None

    def _mark_mismatch(self, version: int) -> StateDamaged | None:
        """Return the error of a marked entry that does not match its mark, if any."""
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
        """Return the content of the newest checkpoint mark."""
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
    """Return the version in the name of an entry or checkpoint."""
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


# --- checkpoints ---
#
# delta-rs folds a log into one file in a local scratch folder. So it never sees leftovers of a crash or of another
# program in the log itself, and a checkpoint gets its name only when it is complete.


def checkpoint_content(parts: Iterable[StatePath], version: int) -> bytes:
    """Return the content of a checkpoint.

    Args:
        parts: all entries of the log up to this version, or a checkpoint and all entries after it.

    Raises:
        FileNotFoundError: one of them is missing.
        EngineError: delta-rs cannot fold them.
    """
    from deltalake import DeltaTable  # loaded lazily: importing it takes longer than most queries
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
    """Return an error's message without the colours and line breaks of delta-rs."""
    return " ".join(re.sub(r"\x1b\[\d+m", "", str(error)).split())


# --- open tables ---
#
# They are cached: refreshing one reads only the entries that are new.

MAX_OPEN_TABLES: Final = 6
"""Open tables cached per thread: those of two states."""
_MAX_OPEN_ATTEMPTS: Final = 20
"""How often opening a log is retried because a driver trimmed it in the meantime."""


class OpenTable:
    """Table as of one version; ``refresh`` moves it to the newest.

    Args:
        version: open this version instead of the newest.

    Raises:
        LogUnreadable: there is no log, or it cannot be read.
    """

    def __init__(self, folder: Path, version: int | None = None) -> None:
        self.folder = folder
        self._log = TableLog(folder)
        # noted before reading, so that files trimmed or removed in the meantime show afterwards
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
        """Apply all newer entries. Versions have no gaps, so reading stops at the first missing one."""
        before = self.version
        while (path := self._log.path(self.version + 1)).exists():
            self._apply(read_entry(path), self.version + 1)
        if self.version != before:
            self._stamp = stamp(self._log.path(self.version))

    @property
    def is_valid(self) -> bool:
        """Return whether this is still the log that was read. It is not if another state took its place, if the log was
        or is about to be trimmed, or if a stray checkpoint was removed."""
        found = stamp(self._log.path(self.version))
        return found is not None and found == self._stamp and not self.was_trimmed

    @property
    def was_trimmed(self) -> bool:
        """Return whether the log was trimmed since it was read, or is about to be: a version that looks free may have
        existed."""
        return self._log.starting_points() != self._starting_points

    def transaction(self, application: str) -> int:
        """Return the number of an application's last transaction, 0 if there was none."""
        return self._transactions.get(application, 0)

    def files(self) -> dict[str, DataFile]:
        """Return path -> live file."""
        return dict(self._files)

    def _starting_checkpoint(self) -> int | None:
        """Return the version of the checkpoint to start from: the marked one. Without a mark start from the first
        entry, or from the newest checkpoint if the first entries are removed."""
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
    """Return the table at its newest version.

    Args:
        handle: a table opened before, which is refreshed if it is still valid.

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
    """Open tables of this thread: a table shared by two threads could be refreshed by one while the other reads it."""

    def __init__(self) -> None:
        self.handles: OrderedDict[Path, OpenTable] = OrderedDict()


_thread_tables = _ThreadTables()


def open_newest_cached(folder: Path) -> OpenTable:
    """Return the table at its newest version, shared by readers of this thread. A writer needs a handle of its own."""
    kept = _thread_tables.handles
    kept[folder] = open_newest(folder, kept.pop(folder, None))
    while len(kept) > MAX_OPEN_TABLES:
        kept.popitem(last=False)
    return kept[folder]


# --- reading and writing entries and checkpoints ---
#
# This is done without delta-rs: for logs of a few dozen small entries that takes a twentieth of the time, and no
# threads. Only names and values that Ferryman itself writes are supported; ``TableLog`` refuses foreign entries.

_STATISTICS: Final = ("minValues", "maxValues", "nullCount")


class LogUnreadable(Exception):
    """Raised when a log is missing or cannot be read."""


class DataFile(NamedTuple):
    """Live file of a table."""

    path: str
    """File name in the table's folder."""
    size: int
    rows: int
    partition: dict[str, str]
    stats: dict[str, Any]


class LogChanges(NamedTuple):
    """Changes of one entry, or of all entries folded into a checkpoint."""

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


class _TransactionAction(msgspec.Struct):
    appId: str
    version: int


class _Action(msgspec.Struct):
    """Action of an entry; other kinds of action are skipped."""

    add: _Add | None = None
    remove: _Remove | None = None
    txn: _TransactionAction | None = None


_decode = msgspec.json.Decoder(_Action).decode


def read_entry(path: Path) -> LogChanges:
    """Return the changes of an entry.

    Raises:
        LogUnreadable: it is missing, or is not an entry.
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
    """Return the whole content of a checkpoint.

    Raises:
        LogUnreadable: it is missing, or is not a checkpoint.
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
    """Return the content of the entry that creates a table."""
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
    """Return the content of an entry; ``info`` is stored beside its actions."""
    parameters = {"mode": "Append", "partitionBy": msgspec.json.encode(partition_by).decode()}
    now = time.time_ns() // 1_000_000
    commit_info = {
        "timestamp": now,
        "operation": "WRITE",
        "operationParameters": parameters,
        "engineInfo": "ferryman",
        **info,
    }
    return b"".join(
        msgspec.json.encode(a) + b"\n" for a in _actions(commit_info, adds, removes, transactions, data_change)
    )


def _actions(
    commit_info: Mapping[str, Any],
    adds: Iterable[DataFile],
    removes: Iterable[DataFile],
    transactions: Mapping[str, int],
    data_change: bool,
) -> Iterator[dict[str, Any]]:
    yield {"commitInfo": commit_info}
    for name, number in transactions.items():
        yield {"txn": {"appId": name, "version": number}}
    for removed in removes:
        yield {
            "remove": {
                "path": removed.path,
                "dataChange": data_change,
                "deletionTimestamp": 0,
                "extendedFileMetadata": True,
                "partitionValues": removed.partition,
                "size": removed.size,
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
    statistics = msgspec.json.decode(stats) if stats else {}
    bounds = {name: statistics[name] for name in _STATISTICS if statistics.get(name)}
    return DataFile(path, size, statistics.get("numRecords") or 0, partition, bounds)
