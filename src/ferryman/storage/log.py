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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ferryman.errors import StateDamaged, StateLost
from ferryman.memory import lacks_memory
from ferryman.storage.checkpoints import folded
from ferryman.storage.files import fsync_folder, make_folder, remove_temporary, replace, staged
from ferryman.storage.seals import checksum, sealed, unseal

_COMMIT = re.compile(r"(\d{20})\.json\Z")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet\Z")
_CHECKPOINT_MARK = re.compile(r"checkpoint-(\d{20})\Z")
ONE_MARK: Final = "checkpoint"
"""The one mark of a checkpoint that older releases had on a disk, and that a log in an object store has."""
_HINT: Final = "_last_checkpoint"
"""Names the newest checkpoint for other programs, which find it without, too. Older releases wrote it."""
_OURS: Final = "ferryman"
_OTHERS: Final = "others"


class TableLog:
    """The log of the table in ``folder``: ``_delta_log/`` and its marks in ``_marks/``."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.folder = folder / "_delta_log"
        self.marks = folder / "_marks"

    @property
    def made(self) -> bool:
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
        replace(self._mark(version), sealed(_checksum(self.path(version))))

    def info(self, version: int) -> dict[str, Any]:
        """What we wrote into a commit beside its actions; {} where there is nothing of ours."""
        for line in _read(self.path(version)).splitlines():
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

    def base(self) -> tuple[str, set[str]]:
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
        mark, torn = self._checkpoint_mark(), self.torn()
        base = -1 if mark is None else int(mark["version"])
        found: dict[str, int] = {}
        if mark is not None:
            path = self.checkpoint_path(base)
            with _readable(path):
                rows = pq.read_table(path, columns=["txn"])["txn"].to_pylist()
            found = {row["appId"]: row["version"] for row in rows if row is not None}
        for version in self.versions():
            if version > base and version != torn:
                for line in _read(self.path(version)).splitlines():
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
            yield from self._problems_of_checkpoint(mark)
        there = set(self.versions())
        marked = self._marked()
        last = max(there | marked, default=-1)
        if last < 0:
            yield StateDamaged(str(self.folder), "the log is empty")
        for version in range(base + 1, last + 1):
            if version not in there:
                yield self._missing(version, base)
        for version in sorted(there):
            if version <= base:  # a driver that slept has left it, or is about to trim it
                continue
            if version in marked:
                if (problem := self._compared(version)) is not None:
                    yield problem
            else:
                try:
                    if version != last or self._author(version) == _OTHERS:
                        yield self._unmarked(version)
                except StateDamaged as e:  # to a reader: it was trimmed since it was listed
                    yield e

    def torn(self) -> int | None:
        """The last entry's version, if it was cut off before it took effect: readers do not look at it."""
        last = max(self.versions(), default=-1)
        return last if last > 0 and last not in self._marked() and self._author(last) is None else None

    def mend(self) -> str | None:
        """Finish or set aside what a crash left; says what was set aside. After ``verify``, under the lock."""
        versions = self.versions()
        if not versions or versions[-1] in self._marked():
            return None
        last = versions[-1]
        if self._author(last) is not None:
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
        replace(self.checkpoint_path(version), self._folded(version))

    def mark_checkpoint(self, version: int) -> None:
        """Note that the checkpoint of this version is there; what is older may then be removed. Where a newer one is
        marked, that stays the one that counts."""
        make_folder(self.marks)
        replace(self._mark_of_checkpoint(version), self._sealed_checkpoint(version))

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
        for marked in self._marked() - there:
            if marked < version:
                self._mark(marked).unlink(missing_ok=True)
        for path in self._marks_of_checkpoints():
            if path != self._mark_of_checkpoint(version) and self._version_of_mark(path) < version:
                path.unlink(missing_ok=True)

    def _has_checkpoint(self, version: int) -> bool:
        return self.checkpoint_path(version).exists()

    def _folded(self, version: int) -> bytes:
        """The content of a checkpoint: of the marked one and the entries from there on."""
        mark = self._checkpoint_mark()
        base = -1 if mark is None else int(mark["version"])
        entries = [self.path(each) for each in self.versions() if base <= each <= version]
        return folded([*entries, *([] if mark is None else [self.checkpoint_path(base)])], version)

    def _sealed_checkpoint(self, version: int) -> bytes:
        return sealed({"version": version, "checkpoint": _checksum(self.checkpoint_path(version))})

    def _mark_of_checkpoint(self, version: int) -> Path:
        """Each checkpoint has its own: one that all share could be replaced by a driver that slept."""
        return self.marks / f"checkpoint-{version:020d}"

    def _marks_of_checkpoints(self) -> list[Path]:
        names = os.listdir(self.marks) if self.marks.is_dir() else []
        return [self.marks / name for name in names if name == ONE_MARK or _CHECKPOINT_MARK.match(name)]

    def _version_of_mark(self, path: Path) -> int:
        found = _CHECKPOINT_MARK.match(path.name)
        return int(found[1]) if found else -1  # the one that all shared is older than any that has its own

    def _mark(self, version: int) -> Path:
        return self.marks / f"{version:020d}"

    def _marked(self) -> set[int]:
        if not self.marks.is_dir():
            return set()
        return {int(name) for name in os.listdir(self.marks) if name.isdigit()}

    def _author(self, version: int) -> str | None:
        """Who wrote a log file: us, or others; None: it is torn (it holds not as many actions as its commit says)."""
        try:
            actions = [msgspec.json.decode(line) for line in _read(self.path(version)).splitlines()]
            said = next(a["commitInfo"] for a in actions if "commitInfo" in a).get("ferryman")
            if said is None:  # the making of an empty table
                making = (
                    version == 0 and any("metaData" in a for a in actions) and any("protocol" in a for a in actions)
                )
                return _OURS if making else _OTHERS
            whole = all(said[f"{kind}s"] == sum(kind in a for a in actions) for kind in ("add", "remove", "txn"))
        except (msgspec.DecodeError, StopIteration, AttributeError, KeyError, TypeError):
            return None
        return _OURS if whole else None

    def _compared(self, version: int) -> StateDamaged | None:
        """A marked entry against its mark."""
        try:
            if unseal(self._mark(version)) != _checksum(self.path(version)):
                return StateDamaged(str(self.path(version)), "its checksum does not match its content")
        except StateDamaged as e:
            return e
        return None

    def _unmarked(self, version: int) -> StateDamaged:
        if self._author(version) == _OTHERS:
            return StateDamaged(str(self.path(version)), "it was not written by Ferryman")
        return StateDamaged(str(self._mark(version)), "the mark is missing")

    def _missing(self, version: int, base: int) -> StateDamaged:
        newest = max((int(m[1]) for name in os.listdir(self.folder) if (m := _CHECKPOINT.match(name))), default=-1)
        if base < 0 and newest > version:  # the log was trimmed, and that is done only after the checkpoint is marked
            return StateDamaged(str(self._mark_of_checkpoint(newest)), "the mark of the checkpoint is missing")
        return StateDamaged(str(self.path(version)), "the log file is missing")

    def _checkpoint_mark(self) -> dict[str, Any] | None:
        """The mark of the newest checkpoint that is marked."""
        for path in sorted(self._marks_of_checkpoints(), key=self._version_of_mark)[-1:]:
            mark: Any = unseal(path)
            return dict(mark)
        return None

    def _problems_of_checkpoint(self, mark: dict[str, Any]) -> Iterator[StateDamaged]:
        checkpoint = self.checkpoint_path(int(mark["version"]))
        if not checkpoint.exists():
            yield StateDamaged(str(checkpoint), "the checkpoint is missing")
        elif _checksum(checkpoint) != mark["checkpoint"]:
            yield StateDamaged(str(checkpoint), "its checksum does not match its content")


def version_of(name: str) -> int:
    """The version that an entry or a checkpoint of this name is of."""
    return int(name.partition(".")[0])


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as e:
        if lacks_memory(e):
            raise
        raise StateDamaged(str(path), f"it cannot be read ({e})") from e


def _checksum(path: Path) -> str:
    return checksum(_read(path))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise StateDamaged(str(path), "the file is missing") from None
