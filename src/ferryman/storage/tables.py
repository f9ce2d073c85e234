"""Delta tables of a state: written by one driver, file by file, each commit fenced by the driver's epoch.

A log entry can be created only if its name is free, so of two drivers that commit at the same time one wins; the other
one's view of the log is then outdated, and it cannot commit any more. Every commit contains the driver's epoch, so a
driver sees if another one has taken over.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ferryman import limits
from ferryman.errors import EngineError, StateDamaged, StateLost
from ferryman.storage import files
from ferryman.storage.delta import (
    OWN_CHECKPOINTS,
    CommitUnknown,
    DataFile,
    LogEntry,
    delta_schema,
    first_entry,
    open_log,
)
from ferryman.storage.disk import TEMPORARY, discard_if_left, temporary_name
from ferryman.storage.files import StatePath, changed_before
from ferryman.storage.parquet import Part, data_files, epoch_of

OTHERS: Final = "others"
"""Field of an entry: name -> version of each other table of the state when it was written."""


class Table:
    """Table of a state. ``files`` are the live files as of the last load or commit."""

    def __init__(self, folder: StatePath, schema: pa.Schema, partition_by: list[str]) -> None:
        self.folder = folder
        self.name = folder.name
        self.schema = schema
        self.partition_by = partition_by
        self.log = open_log(folder)
        self.files: dict[str, DataFile] = {}
        self.version = -1
        self.transactions: dict[str, int] = {}
        self.siblings: Mapping[str, Table] = {}
        """Name -> table of the same state. Each commit records their versions, so that an entry missing at the end of
        one log is noticed from another log."""
        self._fence: tuple[str, int] | None = None
        self._retired: list[tuple[StatePath, float]] = []

    @property
    def exists(self) -> bool:
        """Return whether the table was created."""
        return self.log.exists

    @property
    def epoch(self) -> int:
        """Epoch of the driver that this table is fenced for."""
        assert self._fence is not None, "only a driver has an epoch"
        return self._fence[1]

    def create(self) -> None:
        """Create the table durably if it does not exist."""
        self.log.create(first_entry(delta_schema(self.schema), self.partition_by, OWN_CHECKPOINTS))

    def load(self, applications: Iterable[str] = ()) -> None:
        """Read version, live files and the transaction numbers of these applications.

        Raises:
            StateDamaged: the log cannot be read.
        """
        with self.log.lock:
            self.log.refresh(durable=False)  # a driver does this itself
            self.version = self.log.version
            self.transactions = {a: self.log.transactions.get(a, 0) for a in applications}
            self.files = dict(self.log.files)

    def transaction(self, application: str) -> int:
        """Return the number of an application's last transaction, 0 if there was none, as of the last load or commit.

        Raises:
            StateLost: another driver has taken over, and the log has changed since.
        """
        if application not in self.transactions:
            with self.log.lock:
                self.log.refresh()
                if self._fence is not None and self.log.version != self.version:
                    raise taken_over_error(self.folder, self.log.transactions.get(self._fence[0], 0), self.epoch)
                self.transactions[application] = self.log.transactions.get(application, 0)
        return self.transactions[application]

    def transaction_on_disk(self, application: str) -> int:
        """Return the number of an application's last transaction as it is on disk now; 0 if the log cannot be read."""
        now = Table(self.folder, self.schema, self.partition_by)
        with contextlib.suppress(StateDamaged, OSError):
            now.load([application])
        return now.transactions.get(application, 0)

    def fence(self, application: str, epoch: int) -> None:
        """Write this epoch with every commit from now on; a commit fails if the log has another epoch. The first commit
        announces the epoch."""
        self._fence = (application, epoch)
        self.log = self.log.copy()  # readers move the shared log
        self._commit(LogEntry("epoch"), announcing=True)

    def commit(
        self,
        kind: str,
        *,
        adds: Iterable[DataFile] = (),
        removes: Iterable[str] = (),
        transactions: Mapping[str, int] | None = None,
        info: Mapping[str, Any] | None = None,
        data_change: bool = True,
    ) -> None:
        """Commit one atomic, durable change of the table, see ``DeltaLog.commit``.

        Args:
            kind: purpose of the commit; names its crash points.
            removes: paths of live files.
            info: fields stored in the log, see ``DeltaLog.find``.

        Raises:
            StateLost: another driver has taken over.
            EngineError: a file to add is missing; nothing was committed.
        """
        self._commit(
            LogEntry(kind, tuple(adds), tuple(removes), dict(transactions or {}), dict(info or {})),
            data_change=data_change,
        )

    def _commit(self, entry: LogEntry[DataFile], *, announcing: bool = False, data_change: bool = True) -> None:
        assert self._fence is not None, "a table is fenced before it is written"
        application, epoch = self._fence
        found = self.log.transactions.get(application, 0)
        if self.log.version != self.version or (found >= epoch if announcing else found != epoch):
            raise taken_over_error(self.folder, found, epoch)
        self.check_written(entry.adds)
        others = {name: each.version for name, each in self.siblings.items() if each is not self}
        fenced = entry._replace(
            transactions={**entry.transactions, application: epoch}, info={**entry.info, OTHERS: others}
        )
        try:
            committed = self.log.commit(fenced, data_change=data_change)
        except CommitUnknown:
            committed = False
        except OSError as e:
            raise EngineError(f"{self.folder}: the commit failed: {e}. Nothing is lost: fix it and run again.") from e
        if not committed:
            with contextlib.suppress(StateDamaged):  # an entry written by another program may be in the way
                self.log.refresh()
            if (found := self.log.transactions.get(application, 0)) != epoch:
                raise taken_over_error(self.folder, found, epoch)
            raise StateLost(f"{self.folder}: another driver committed while this one held the state: this one stops.")
        self.version = self.log.version
        for path in entry.removes:
            del self.files[path]
        self.files.update((f.path, f) for f in entry.adds)
        self.transactions.update(entry.transactions)

    def verify_sizes(self, expected: Iterable[DataFile] | None = None) -> None:
        """Check that every live file, or each of these, exists with its size.

        Raises:
            StateDamaged: names the file.
        """
        wanted = list(self.files.values() if expected is None else expected)
        for file, size in zip(wanted, files.look_up_sizes(self.folder, [file.path for file in wanted]), strict=True):
            if size is None:
                raise StateDamaged(str(self.folder / file.path), "the file is missing")
            if size != file.size:
                raise StateDamaged(str(self.folder / file.path), f"it has {size} bytes, not {file.size}")

    def checkpoint(self) -> None:
        """Fold the log into one file and trim it, so that loading stays fast after any number of commits.

        Raises:
            StateLost: another driver has taken over.
        """
        assert self._fence is not None, "a table is fenced before it is written"
        application, epoch = self._fence
        self.log.refresh()
        if self.log.version != self.version:
            raise taken_over_error(self.folder, self.log.transactions.get(application, 0), epoch)
        try:
            self.log.checkpoint()
        except OSError as e:
            raise EngineError(
                f"{self.folder}: the checkpoint failed: {e}. Nothing is lost: fix it and run again."
            ) from e

    def check_written(self, expected: Iterable[DataFile]) -> None:
        """Check that files to be committed exist with their size.

        Raises:
            EngineError: names the file.
        """
        try:
            self.verify_sizes(expected)
        except StateDamaged as e:
            raise EngineError(
                f"{e.path}: {e.what}, though it was written a moment ago. Nothing was committed. Keep other programs "
                "from the state directory, and make sure that driver and executors have it at the same path; then run "
                "again."
            ) from e

    def sweep(self, keep: Iterable[str] = (), before: float | None = None) -> int:
        """Remove data files that are not live (staged by a crashed wave, or replaced); return how many.

        Files of a newer epoch are left alone: a driver that has taken over unnoticed is about to commit them.

        Args:
            keep: staged files that a committed but unsettled wave names.
            before: remove only files last changed before this time of the file system (seconds since 1970); None: all.
        """
        wanted = {*self.files, *keep}
        strays = [name for name in files.file_sizes(self.folder) if name not in wanted]
        return _remove((self.folder / name for name in strays if epoch_of(name) <= self.epoch), before)

    def retire(self, paths: Iterable[str]) -> None:
        """Record files that are no longer live, for ``remove_retired``; their age counts from now."""
        for path in (self.folder / p for p in paths):
            files.touch(path)
            self._retired.append((path, time.monotonic()))

    def remove_retired(self, before: float | None = None) -> None:
        """Remove retired files; see ``sweep``."""
        old = [path for path, since in self._retired if isinstance(path, Path) or _past_grace(since)]
        _remove(old, before if isinstance(self.folder, Path) else None)
        self._retired = [each for each in self._retired if each[0] not in old or files.exists(each[0])]

    def paths(self, names: Iterable[str] | None = None) -> list[Path]:
        """Return the local paths of the live files, or of these.

        Raises:
            StateDamaged: one is missing.
        """
        return data_files(self.folder / name for name in (self.files if names is None else names))

    def path(self, name: str) -> Path:
        """Return the local path of one of the table's files."""
        return self.paths([name])[0]

    def data_file(self, part: Part, partition: Mapping[str, str] | None = None) -> DataFile:
        """Return a written part as a file to add."""
        return DataFile(part.path, part.size, part.rows, dict(partition or {}), part.stats or {})


def _past_grace(since: float) -> bool:
    """Return whether an object was retired so long ago that nobody can still be reading it."""
    return time.monotonic() - since > limits.READERS_GRACE_S


def _remove(paths: Iterable[StatePath], before: float | None) -> int:
    removed = 0
    for path in paths:
        if before is not None and not path.name.startswith(TEMPORARY) and not changed_before(path, before):
            continue
        files.remove(path)
        removed += 1
    return removed


def taken_over_error(place: StatePath, current: int, own: int) -> StateLost:
    """Return the error for a driver whose epoch is no longer the state's."""
    return StateLost(
        f"{place}: another driver has taken this state over (epoch {current}, ours is {own}): this one stops."
    )


# --- data files shared with a table in another folder: linked, or copied without being read where possible ---

_PARALLEL_COPIES: Final = 16
"""Objects that a store is asked to copy in parallel."""


def copy_table(source: Table, target: Table, transactions: Mapping[str, int]) -> None:
    """Make a table have exactly the rows of another one, in one commit; do nothing if it already does."""
    adds = [file for path, file in source.files.items() if path not in target.files]
    removes = [path for path in target.files if path not in source.files]  # left behind by a killed run
    if source.files and not adds and not removes:
        return
    link_files(source.folder, target.folder, [file.path for file in adds])
    target.commit("version", adds=adds, removes=removes, transactions=transactions)


def link_files(source: StatePath, target: StatePath, names: Iterable[str]) -> None:
    """Give files that never change the same names in another folder, durably: as links, or as copies where the file
    system has none; an object store makes copies itself."""
    if isinstance(source, Path) and isinstance(target, Path):
        _link(source, target, list(names))
        return
    assert not isinstance(source, Path)
    assert not isinstance(target, Path)
    pairs = [((source / name).key, (target / name).key) for name in names]
    with ThreadPoolExecutor(_PARALLEL_COPIES) as pool:
        for _ in pool.map(lambda pair: source.store.copy(*pair), pairs):
            pass


def _link(source: Path, target: Path, names: list[str]) -> None:
    for name in names:
        original, link = source / name, target / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.exists() and link.samefile(original):  # left by a run that was killed
            continue
        try:
            os.link(original, link)
        except OSError:
            temporary = temporary_name(link)
            with discard_if_left(temporary):
                shutil.copyfile(original, temporary)
                files.fsync_file(temporary)
                temporary.replace(link)
    for folder in {target, *((target / name).parent for name in names)}:
        files.fsync_folder(folder)
