"""Delta logs, on a disk or in an object store: entries that contain their own checksums, and checkpoints.

An entry is written and synced under a temporary name, and then linked to the name of its version, which succeeds for
only one of several writers; in an object store it is created under that name with a conditional request. So an entry
that exists is complete, and the writer that gave it its name has committed. An entry with a wrong checksum is reported
as damaged; so is one that another program wrote (``OPTIMIZE``, ``DELETE``).

A checkpoint is the whole content of the log up to a version, in one file. It gets its name only when it is complete.
Reading begins at the newest checkpoint, and everything older is removed.

Two processes may work on a log, and either may be suspended at any step and resume long after the other one has moved
the log forward. So entries and checkpoints are only ever added, under names that contain their versions, and only files
older than a checkpoint are removed. After giving an entry its name, a process checks that the log has not moved beyond
it: the name may have been free only because an earlier entry of that version was removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import time
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ferryman import crash
from ferryman.errors import EngineError, StateDamaged
from ferryman.memory import lacks_memory
from ferryman.storage import files
from ferryman.storage.files import Stamp, StatePath, fsync_folder, make_folder, stamp

_ENTRY: Final = re.compile(r"(\d{20})\.json\Z")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet\Z")
_HINT: Final = "_last_checkpoint"
"""Name of the file that names the newest checkpoint (optional in Delta). In an object store it is written before
anything is trimmed: one request then tells whether the log was trimmed. On a disk only other programs write it."""
_MAX_READ_ATTEMPTS: Final = 20
"""How often the log is read again because it was trimmed in the meantime."""
_PARALLEL_READS: Final = 8
"""Entries of a store that are read at the same time."""
_READ_ONLY: Final = (errno.EROFS, errno.EINVAL, errno.EACCES)
"""Errors of a sync in a folder that this process cannot write to: then it has nothing to make durable."""


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


# --- what an entry contains ---


class AddedFile(msgspec.Struct):
    """Action ``add``: a data file becomes part of the table."""

    path: str
    size: int
    partitionValues: dict[str, str]
    stats: str | None = None
    tags: dict[str, str] | None = None


class LiveFile(Protocol):
    """Data file of a table, in the form that this kind of table needs."""

    @property
    def path(self) -> str:
        """File name in the table's folder."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    @classmethod
    def from_added(cls, added: AddedFile) -> Self:
        """Return the file that an action describes."""

    def as_added(self) -> AddedFile:
        """Return the action that adds the file."""


class DataFile(NamedTuple):
    """Live file of a table of a state."""

    path: str
    """File name in the table's folder."""
    size: int
    rows: int
    partition: dict[str, str]
    stats: dict[str, Any]

    @classmethod
    def from_added(cls, added: AddedFile) -> Self:
        """Return the file that an action describes."""
        statistics = msgspec.json.decode(added.stats) if added.stats else {}
        bounds = {name: statistics[name] for name in _STATISTICS if statistics.get(name)}
        return cls(added.path, added.size, statistics.get("numRecords") or 0, added.partitionValues, bounds)

    def as_added(self) -> AddedFile:
        """Return the action that adds the file."""
        statistics = msgspec.json.encode({"numRecords": self.rows, **self.stats}).decode()
        return AddedFile(self.path, self.size, self.partition, statistics)


_STATISTICS: Final = ("minValues", "maxValues", "nullCount")

FileT = TypeVar("FileT", bound=LiveFile)


class LogEntry(NamedTuple, Generic[FileT]):
    """Changes of one commit, or of all commits up to a checkpoint."""

    kind: str
    """Purpose of the commit; part of the names of its crash points."""
    adds: tuple[FileT, ...] = ()
    removes: tuple[str, ...] = ()
    """Paths of files that are no longer part of the table."""
    transactions: Mapping[str, int] = {}
    """Application id -> number of its last transaction."""
    info: Mapping[str, Any] = {}
    """Further fields to store in the entry, in JSON."""


class _Removed(msgspec.Struct):
    path: str


class _TransactionNumber(msgspec.Struct):
    appId: str
    version: int


class _CommitInfo(msgspec.Struct):
    ferryman: dict[str, Any] | None = None


class _Action(msgspec.Struct):
    """A line of an entry."""

    commitInfo: _CommitInfo | None = None
    protocol: dict[str, Any] | None = None
    metaData: dict[str, Any] | None = None
    txn: _TransactionNumber | None = None
    remove: _Removed | None = None
    add: AddedFile | None = None


_decode_action = msgspec.json.Decoder(_Action).decode


class DeltaLog(Generic[FileT]):
    """Log of the table in ``folder`` as of one version, which ``refresh`` moves to the newest. Threads may share it.

    Attributes:
        version: the version read last; -1 before the first ``refresh``.
        files: path -> live file.
        transactions: application id -> number of its last transaction.
    """

    def __init__(self, folder: StatePath, file_type: type[FileT]) -> None:
        self.folder = folder
        self.entries_folder = folder / "_delta_log"
        self._file_type = file_type
        self.lock = threading.RLock()
        self._stamps: dict[int, Stamp | None] = {}
        self._hint: Stamp | None = None
        self._forget()

    @property
    def exists(self) -> bool:
        """Return whether the table was created. In an object store it is not asked again once the log was read."""
        return (self.version >= 0 and not isinstance(self.folder, Path)) or self._read_listing().exists

    @property
    def is_valid(self) -> bool:
        """Return whether the entry of the current version is still in the log. It is not if the log was trimmed, or
        replaced by another table's."""
        read = self._stamps.get(self.version)
        return read is not None and read == stamp(self.path(self.version))

    @property
    def commits_since_checkpoint(self) -> int:
        """Number of commits since the newest checkpoint that was read."""
        return self.version - self._begins

    def copy(self) -> DeltaLog[FileT]:
        """Return a separate log at the same version, which only its holder moves."""
        with self.lock:
            copied = DeltaLog(self.folder, self._file_type)
            copied.version, copied._begins = self.version, self._begins
            copied._stamps, copied._hint = dict(self._stamps), self._hint
            copied.files, copied.transactions = dict(self.files), dict(self.transactions)
            copied._entries, copied._head = dict(self._entries), dict(self._head)
        return copied

    def path(self, version: int) -> StatePath:
        """Return the path of a version's entry."""
        return self.entries_folder / f"{version:020d}.json"

    def checkpoint_path(self, version: int) -> StatePath:
        """Return the path of a version's checkpoint."""
        return self.entries_folder / f"{version:020d}.checkpoint.parquet"

    def create(self, entry: bytes) -> None:
        """Create the log with this first entry, durably; leave an existing log as it is.

        Nothing is removed or overwritten: a process that creates a log has no epoch yet, and existing files may be in
        use by a driver that was faster.
        """
        make_folder(self.entries_folder)
        if not self.exists:
            files.publish(self.path(0), entry)
        self.sync()
        fsync_folder(self.folder)

    def live_files(self) -> list[FileT]:
        """Return the live files of the current version."""
        with self.lock:
            return list(self.files.values())

    def last(self) -> int:
        """Return the last version that has an entry now; -1 if there is none."""
        return max(self._read_listing().entries, default=-1)

    def refresh(self, *, durable: bool = True) -> bool:
        """Move to the newest version; return whether anything was read.

        Args:
            durable: also make the names of the entries that were read durable, since another process may have been
                killed before it did. Required before acting on them.

        Raises:
            StateDamaged: an entry or checkpoint is missing, or not what was written.
        """
        with self.lock:
            if self.is_valid and not files.exists(self.path(self.version + 1)):
                return False
            read, listing = False, self._read_listing()
            for _ in range(_MAX_READ_ATTEMPTS):
                try:
                    changed = self._move_to(listing)
                except StateDamaged:
                    self._forget()
                    if (again := self._read_listing()) == listing:
                        raise
                    listing = again  # the log was trimmed while it was read
                    continue
                if not changed:
                    break
                read = True
                if (again := self._read_listing()).checkpoint == listing.checkpoint:
                    break
                listing = again  # entries may come from a process that was suspended
            if read and durable:
                self.sync()
            return read

    def sync(self) -> None:
        """Make the names of all entries durable, including those of other processes, before anything relies on them."""
        try:
            fsync_folder(self.entries_folder)
        except OSError as e:
            if e.errno not in _READ_ONLY:
                raise

    def commit(self, entry: LogEntry[FileT], *, data_change: bool = True) -> bool:
        """Write the next version, durably; return False if another process has written it, or the log was trimmed or
        replaced since it was read: nothing was changed.

        1. write and sync the entry under a temporary name
        2. give it the name of the next version, which only one process can do; it has taken effect now
        3. check that no newer checkpoint exists; if one does, the version may have been written and trimmed before, so
           that its name was free
        4. sync the folder

        In an object store 1 and 2 are one request, and 4 is not needed.

        Raises:
            CommitUnknown: the log was trimmed while we were about to commit.
        """
        with self.lock:
            version, kind = self.version + 1, entry.kind
            path, content = self.path(version), self._encode(entry, data_change)
            with files.staged(path, content) as publish_name:  # 1
                crash.point(f"{kind}.written")
                if isinstance(path, Path) and not self.is_valid:
                    return False
                if (published := publish_name()) is None:  # 2
                    if not isinstance(path, Path) and not self.is_valid:  # it may be our own, if the answer was lost
                        raise CommitUnknown(str(path))
                    return False
            crash.point(f"{kind}.logged")
            if self._is_below_checkpoint(version):  # 3
                raise CommitUnknown(str(path))
            fsync_folder(self.entries_folder)  # 4
            crash.point(f"{kind}.synced")
            self._apply(self._decode(path, content), version, published)
            return True

    def _is_below_checkpoint(self, version: int) -> bool:
        """Return whether a newer checkpoint exists."""
        if not isinstance(self.folder, Path) and stamp(self.entries_folder / _HINT) == self._hint:
            return False
        listing = self._read_listing()
        self._hint = listing.hint
        return listing.checkpoint > version

    def find(self, kind: str, wave: int) -> dict[str, Any]:
        """Return ``info`` of the commit of this kind and wave; it stays in the log until the wave is settled.

        Raises:
            StateDamaged: there is no such commit.
        """
        with self.lock:
            if (found := self._find(kind, wave)) is None:
                self.refresh()
                found = self._find(kind, wave)
        if found is None:
            raise StateDamaged(str(self.entries_folder), f"the commit of wave {wave} is missing")
        return found

    def _find(self, kind: str, wave: int) -> dict[str, Any] | None:
        for version in sorted(self._entries, reverse=True):
            entry = self._entries[version]
            if (entry.kind, entry.info.get("wave")) == (kind, wave):
                return dict(entry.info)
        return None

    @property
    def last_info(self) -> Mapping[str, Any]:
        """``info`` of the current version's entry."""
        return self._entries[self.version].info

    def problems(self) -> Iterator[StateDamaged]:
        """Yield an error for every damaged file of the log.

        Files on a disk are read again; objects are not if a listing shows them as they were read.
        """
        listing = self._read_listing()
        if not isinstance(self.folder, Path):
            with contextlib.suppress(StateDamaged):
                self.refresh(durable=False)
            if self.version >= 0 and all(listing.entries.get(n) == each for n, each in self._stamps.items()):
                return
        base = listing.checkpoint
        if not listing.exists:
            yield StateDamaged(str(self.entries_folder), "the log is empty")
            return
        if base >= 0:
            try:
                self._read_checkpoint(base)
            except StateDamaged as e:
                yield e
        elif 0 not in listing.entries:
            yield self._missing_start(listing)
        first = base if base >= 0 else min(listing.entries)
        for version in range(first, max(listing.entries, default=base) + 1):
            try:
                self._read_entry(version)
            except StateDamaged as e:
                yield e

    def verify(self) -> None:
        """Check the log without changing anything.

        Raises:
            StateDamaged: names the first damaged file.
        """
        for problem in self.problems():
            raise problem

    def checkpoint(self) -> None:
        """Write the content of the log into one file, and remove what it replaces, so that opening stays cheap.

        1. write and sync the checkpoint, then give it its name
        2. in an object store, record that it exists, see ``_HINT``
        3. remove older entries and checkpoints
        """
        with self.lock:
            version, hint = self.version, self.entries_folder / _HINT
            files.replace(self.checkpoint_path(version), self._encode_checkpoint())  # 1
            crash.point("checkpoint.made")
            names = files.list_names(self.entries_folder)
            old = sorted(n for n in names if (number := _version_of(n)) is not None and number < version)
            if isinstance(hint, Path):
                old += {_HINT} & {*names}
            else:
                rows = len(self._head) + len(self.transactions) + len(self.files)
                noted = {"version": version, "size": rows, "nonce": uuid.uuid4().hex}  # unlike a suspended process's
                files.replace(hint, msgspec.json.encode(noted))  # 2
                self._hint = stamp(hint)
            files.remove_all(self.entries_folder / name for name in old)  # 3
            self._begin_at(version)
            crash.point("checkpoint.trimmed")

    def remove_temporary(self, before: float) -> None:
        """Remove temporary files older than ``before``, see ``storage.files.remove_temporary``."""
        files.remove_temporary(self.entries_folder, before)

    def _forget(self) -> None:
        """Return to the state before the first ``refresh``."""
        self.version = -1
        self.files: dict[str, FileT] = {}
        self.transactions: dict[str, int] = {}
        self._begins = 0
        """Version of the checkpoint from which reading began."""
        self._entries: dict[int, LogEntry[FileT]] = {}
        """Version -> entry, since that checkpoint."""
        self._head: dict[str, dict[str, Any]] = {}
        """Actions ``protocol`` and ``metaData``, as the table was created."""
        self._stamps = {}
        """Version -> stamp of its entry, since that checkpoint."""
        self._hint = None
        """Stamp of ``_HINT`` as of the last listing."""

    def _begin_at(self, checkpoint: int) -> None:
        """Note that the log begins at this checkpoint now."""
        self._begins = checkpoint
        self._entries = {number: each for number, each in self._entries.items() if number >= checkpoint}
        self._stamps = {number: each for number, each in self._stamps.items() if number >= checkpoint}

    def _read_listing(self) -> _Listing:
        return _Listing.of(self.entries_folder)

    def _move_to(self, listing: _Listing) -> bool:
        """Read what a listing has beyond the current version; return whether there was anything.

        Raises:
            StateDamaged: a file is missing, or not what was written.
        """
        self._hint = listing.hint
        if self.version < 0 or listing.checkpoint > self.version or not self._is_in(listing):
            self._load(listing)
            return True
        if listing.checkpoint > self._begins:
            self._begin_at(listing.checkpoint)
        return self._read_after(self.version, listing)

    def _is_in(self, listing: _Listing) -> bool:
        """Return whether the entry of the current version is in a listing, unchanged."""
        if self.version not in listing.entries:
            return False
        read = self._stamps.get(self.version)
        return read is not None and read == self._stamp_in(listing, self.version)

    def _stamp_in(self, listing: _Listing, version: int) -> Stamp | None:
        return listing.entries.get(version) or stamp(self.path(version))

    def _load(self, listing: _Listing) -> None:
        """Read the newest checkpoint and the entries after it."""
        self._forget()
        self._hint = listing.hint
        if listing.checkpoint >= 0:
            self._begins = listing.checkpoint
            self._change(self._read_checkpoint(listing.checkpoint))
        elif 0 not in listing.entries:
            raise self._missing_start(listing)
        self._read_after(self._begins - 1, listing)

    def _read_after(self, version: int, listing: _Listing) -> bool:
        newer = range(version + 1, max(listing.entries, default=-1) + 1)
        if not newer:
            return False
        for number, entry in zip(newer, self._read_entries(newer), strict=True):
            last = number == newer[-1]  # on a disk a stamp takes a call, so only that of the last entry is read
            self._apply(entry, number, self._stamp_in(listing, number) if last else listing.entries.get(number))
        return True

    def _read_entries(self, versions: Iterable[int]) -> Iterator[LogEntry[FileT]]:
        if isinstance(self.folder, Path):
            yield from map(self._read_entry, versions)
            return
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            yield from pool.map(self._read_entry, versions)

    def _apply(self, entry: LogEntry[FileT], version: int, stamp: Stamp | None) -> None:
        self._change(entry)
        self._entries[version], self._stamps[version] = entry, stamp
        self.version = version

    def _change(self, entry: LogEntry[FileT]) -> None:
        for path in entry.removes:
            self.files.pop(path, None)
        self.files.update((file.path, file) for file in entry.adds)
        self.transactions.update(entry.transactions)

    def _missing_start(self, listing: _Listing) -> StateDamaged:
        """Return the error for the missing file at which reading the log would have to begin."""
        first = min(listing.entries, default=0)
        if first <= 1:  # such a short log has no checkpoint
            return StateDamaged(str(self.path(0)), "the log file is missing")
        # entries are removed only if they are older than a checkpoint
        return StateDamaged(str(self.checkpoint_path(first)), "the checkpoint is missing")

    def _read_entry(self, version: int) -> LogEntry[FileT]:
        """Return an entry after verifying its checksum.

        Raises:
            StateDamaged: it is missing, not what was written, or another program wrote it.
        """
        path = self.path(version)
        return self._decode(path, _read(path, "the log file is missing"))

    def _foreign(self, path: StatePath, data: bytes) -> StateDamaged:
        """Return the error for an entry without our seal: one that another program added, or one of ours that is no
        more what it was."""
        what = "it was not written by Ferryman"
        next_path = self.path(int(path.name.partition(".")[0]) + 1)
        replaced = files.exists(next_path) and _SEAL.search(files.read(next_path)) is not None
        if replaced or not _is_delta_entry(data):
            return StateDamaged(str(path), what)
        return StateDamaged(str(path), what, "Another program added it: remove it, and keep that program away")

    def _decode(self, path: StatePath, data: bytes) -> LogEntry[FileT]:
        if (found := _SEAL.search(data)) is None:
            raise self._foreign(path, data)
        if not _is_sealed(data, found):
            raise StateDamaged(str(path), "its checksum does not match its content")
        actions = [_decode_action(line) for line in data.splitlines()]
        info = (actions[0].commitInfo and actions[0].commitInfo.ferryman) or {}
        for each in actions:
            if each.protocol is not None:
                self._head["protocol"] = each.protocol
            if each.metaData is not None:
                self._head["metaData"] = each.metaData
        return LogEntry(
            info["kind"],
            tuple(self._file_type.from_added(each.add) for each in actions if each.add is not None),
            tuple(each.remove.path for each in actions if each.remove is not None),
            {each.txn.appId: each.txn.version for each in actions if each.txn is not None},
            info,
        )

    def _encode(self, entry: LogEntry[FileT], data_change: bool) -> bytes:
        now = _now_ms()
        actions: list[dict[str, Any]] = [
            {"txn": {"appId": name, "version": number, "lastUpdated": now}}
            for name, number in entry.transactions.items()
        ]
        for path in entry.removes:
            removed = self.files[path].as_added()
            remove = {"path": path, "deletionTimestamp": 0, "dataChange": data_change, "extendedFileMetadata": True}
            actions.append({"remove": {**remove, "partitionValues": removed.partitionValues, "size": removed.size}})
        for file in entry.adds:
            actions.append({"add": _add_action(file.as_added(), now, data_change)})
        return _encode_sealed("WRITE" if data_change else "OPTIMIZE", {"kind": entry.kind, **entry.info}, actions)

    def _encode_checkpoint(self) -> bytes:
        now = _now_ms()
        rows: list[dict[str, Any]] = [{name: action} for name, action in self._head.items()]
        rows += [
            {"txn": {"appId": name, "version": number, "lastUpdated": now}}
            for name, number in self.transactions.items()
        ]
        rows += [{"add": _add_action(file.as_added(), now, False)} for file in self.files.values()]
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, _CHECKPOINT_SCHEMA, store_schema=False) as writer:
            writer.write_table(pa.Table.from_pylist(rows, schema=_CHECKPOINT_SCHEMA))
            writer.add_key_value_metadata({"ferryman": _UNSEALED.decode()})
        return _seal(sink.getvalue().to_pybytes())

    def _read_checkpoint(self, version: int) -> LogEntry[FileT]:
        """Return the whole content of a checkpoint after verifying its checksum.

        Raises:
            StateDamaged: it is missing, not what was written, or another program wrote it.
        """
        path = self.checkpoint_path(version)
        data = _read(path, "the checkpoint is missing")
        seals = list(_SEAL.finditer(data))
        if not seals or not _is_sealed(data, seals[-1]):
            raise StateDamaged(str(path), "its checksum does not match its content")
        try:
            with pq.ParquetFile(pa.BufferReader(data)) as file:
                rows = file.read(["protocol", "metaData", "txn", "add"], use_threads=False).to_pylist()
            adds = [msgspec.convert(_without_lists(row["add"]), AddedFile) for row in rows if row["add"] is not None]
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as e:
            if lacks_memory(e):
                raise
            raise StateDamaged(str(path), f"it cannot be read ({e})") from e
        for row in rows:
            self._head.update(
                {name: _without_lists(row[name]) for name in ("protocol", "metaData") if row[name] is not None}
            )
        transactions = {row["txn"]["appId"]: row["txn"]["version"] for row in rows if row["txn"] is not None}
        return LogEntry("checkpoint", tuple(map(self._file_type.from_added, adds)), (), transactions)


class _Listing(NamedTuple):
    """Names in the folder of a log at one moment."""

    entries: dict[int, Stamp | None]
    """Version -> stamp of its entry, where the listing has it."""
    checkpoint: int
    """Version of the newest checkpoint; -1 if there is none."""
    hint: Stamp | None
    """Stamp of ``_HINT``, as above."""

    @property
    def exists(self) -> bool:
        return bool(self.entries) or self.checkpoint >= 0

    @classmethod
    def of(cls, folder: StatePath) -> _Listing:
        """List a folder: in an object store that is one request."""
        found = files.list_stamps(folder)
        entries = {int(match[1]): each for name, each in found.items() if (match := _ENTRY.match(name))}
        checkpoints = (int(match[1]) for name in found if (match := _CHECKPOINT.match(name)))
        return cls(entries, max(checkpoints, default=-1), found.get(_HINT))


def _version_of(name: str) -> int | None:
    """Return the version in the name of an entry or a checkpoint."""
    found = _ENTRY.match(name) or _CHECKPOINT.match(name)
    return int(found[1]) if found else None


def _read(path: StatePath, missing: str) -> bytes:
    try:
        return files.read(path)
    except FileNotFoundError:
        raise StateDamaged(str(path), missing) from None


# --- open logs of states: read again only from where they were read before ---

_MAX_OPEN_LOGS: Final = 64
"""Maximum number of logs that a process keeps open: those of about ten states."""

_open_logs: OrderedDict[tuple[int, StatePath], DeltaLog[DataFile]] = OrderedDict()
_open_logs_lock = threading.Lock()


def open_log(folder: StatePath) -> DeltaLog[DataFile]:
    """Return the log of a state's table. A process has one object per table, shared by all callers."""
    key = (os.getpid(), folder)
    with _open_logs_lock:
        found = _open_logs.get(key) or DeltaLog(folder, DataFile)
        _open_logs[key] = found
        _open_logs.move_to_end(key)
        while len(_open_logs) > _MAX_OPEN_LOGS:
            _open_logs.popitem(last=False)
        return found


def read_log(folder: StatePath) -> DeltaLog[DataFile] | None:
    """Return the log of a state's table at its newest version; None if there is no such table.

    Raises:
        StateDamaged: it cannot be read.
    """
    log = open_log(folder)
    try:
        log.refresh()
    except StateDamaged:
        if log.exists:
            raise
        return None
    return log


def forget_logs() -> None:
    """Drop all open logs, as a new process starts without them."""
    with _open_logs_lock:
        _open_logs.clear()


# --- encoding ---

_SEAL: Final = re.compile(rb'"crc":"([0-9a-f]{8})"')
_UNSEALED: Final = b'"crc":"00000000"'


OWN_CHECKPOINTS: Final = {
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 0 days",
}
"""Configuration of tables: Ferryman makes checkpoints and trims the log itself; other programs must not."""


def first_entry(
    schema: str, partition_by: list[str], configuration: Mapping[str, str], identity: str | None = None
) -> bytes:
    """Return the content of the entry that creates a table.

    Args:
        schema: in Delta's JSON form.
        identity: id of the table; random if None.
    """
    metadata = {
        "id": identity or str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": partition_by,
        "createdTime": _now_ms(),
        "configuration": configuration,
    }
    actions: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": metadata},
    ]
    return _encode_sealed("CREATE TABLE", {"kind": "create"}, actions)


_TYPES: Final = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.int64(): "long",
    pa.bool_(): "boolean",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.list_(pa.float32()): {"type": "array", "elementType": "float", "containsNull": True},
}


def delta_schema(schema: pa.Schema) -> str:
    """Return a schema in Delta's JSON form."""
    fields = [
        {"name": field.name, "type": _TYPES[field.type], "nullable": field.nullable, "metadata": {}} for field in schema
    ]
    return msgspec.json.encode({"type": "struct", "fields": fields}).decode()


def _encode_sealed(operation: str, info: Mapping[str, Any], actions: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the content of an entry, with its checksum in its first line."""
    commit_info = {
        "timestamp": _now_ms(),
        "operation": operation,
        "engineInfo": "ferryman",
        "ferryman": {"crc": "00000000", **info},
    }
    return _seal(b"".join(msgspec.json.encode(action) + b"\n" for action in ({"commitInfo": commit_info}, *actions)))


def _seal(data: bytes) -> bytes:
    """Fill in the checksum of all bytes at its reserved place: the first in an entry, the last in a checkpoint."""
    at = data.index(_UNSEALED) if data[:1] == b"{" else data.rindex(_UNSEALED)
    return data[:at] + b'"crc":"%08x"' % zlib.crc32(data) + data[at + len(_UNSEALED) :]


def _is_delta_entry(data: bytes) -> bool:
    """Return whether this is a whole entry as Delta's protocol has it, such as another program writes."""
    try:
        actions = [msgspec.json.decode(line, type=dict[str, Any]) for line in data.splitlines()]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return any("commitInfo" in action for action in actions)


def _is_sealed(data: bytes, seal: re.Match[bytes]) -> bool:
    return zlib.crc32(data[: seal.start()] + _UNSEALED + data[seal.end() :]) == int(seal[1], 16)


def _add_action(added: AddedFile, now: int, data_change: bool) -> dict[str, Any]:
    action = {
        "path": added.path,
        "partitionValues": added.partitionValues,
        "size": added.size,
        "modificationTime": now,
        "dataChange": data_change,
        "stats": added.stats,
    }
    return {**action, "tags": added.tags} if added.tags else action


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _required(name: str, type_: pa.DataType) -> pa.Field:
    return pa.field(name, type_, nullable=False)


_STRINGS: Final = pa.map_(pa.string(), pa.string())
_FEATURES: Final = pa.list_(_required("element", pa.string()))
_CHECKPOINT_SCHEMA: Final = pa.schema(
    {
        "txn": pa.struct(
            [_required("appId", pa.string()), _required("version", pa.int64()), pa.field("lastUpdated", pa.int64())]
        ),
        "add": pa.struct(
            [
                _required("path", pa.string()),
                _required("partitionValues", _STRINGS),
                _required("size", pa.int64()),
                _required("modificationTime", pa.int64()),
                _required("dataChange", pa.bool_()),
                pa.field("stats", pa.string()),
                pa.field("tags", _STRINGS),
            ]
        ),
        "remove": pa.struct(
            [
                _required("path", pa.string()),
                pa.field("deletionTimestamp", pa.int64()),
                _required("dataChange", pa.bool_()),
                pa.field("extendedFileMetadata", pa.bool_()),
                pa.field("partitionValues", _STRINGS),
                pa.field("size", pa.int64()),
            ]
        ),
        "metaData": pa.struct(
            [
                _required("id", pa.string()),
                pa.field("name", pa.string()),
                pa.field("description", pa.string()),
                _required("format", pa.struct([_required("provider", pa.string()), pa.field("options", _STRINGS)])),
                _required("schemaString", pa.string()),
                _required("partitionColumns", pa.list_(_required("element", pa.string()))),
                pa.field("createdTime", pa.int64()),
                _required("configuration", _STRINGS),
            ]
        ),
        "protocol": pa.struct(
            [
                _required("minReaderVersion", pa.int32()),
                _required("minWriterVersion", pa.int32()),
                pa.field("readerFeatures", _FEATURES),
                pa.field("writerFeatures", _FEATURES),
            ]
        ),
    }
)
"""Columns of a checkpoint, as Delta's protocol defines them; files that were removed leave no row."""


def _without_lists(action: dict[str, Any]) -> dict[str, Any]:
    """Return an action of a checkpoint as an entry has it: Arrow gives a map as a list of pairs."""
    return {
        name: _without_lists(value)
        if isinstance(value, dict)
        else dict(value)
        if isinstance(value, list) and name in ("partitionValues", "tags", "options", "configuration")
        else value
        for name, value in action.items()
        if value is not None
    }
