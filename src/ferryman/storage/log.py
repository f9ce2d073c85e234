"""A Delta log that is durable and verified.

An entry is written under a temporary name and linked to its own, which only one of two drivers can do. Then file and
folder are fsynced, and the entry is *marked*: a small sealed file beside the log holds its checksum. What this buys:

* a marked entry that is missing or differs is damage: refused by name;
* a last entry without a mark was cut off between commit and mark. If it is whole it is marked now; if it is torn (a
  power cut) it never took effect: it is set aside;
* an entry that somebody else wrote (``OPTIMIZE``, ``DELETE``) is refused by name;
* an unmarked checkpoint is only a copy of the log: it is removed.
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

from ferryman.errors import StateDamaged
from ferryman.storage.disk import TEMPORARY, discarding, temporary_name
from ferryman.storage.files import fsync_file, fsync_folder, make_folder, replace
from ferryman.storage.seals import checksum, sealed, unseal

_COMMIT = re.compile(r"(\d{20})\.json\Z")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet\Z")
_HALF = re.compile(r".*#\d+\Z")
"""What delta-rs calls a file that it has not finished."""
HINT: Final = "_last_checkpoint"
_CHECKPOINT_MARK = "checkpoint"
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

    def publish(self, version: int) -> bool:
        """The entry that was written takes effect: as a file it has; False: another driver's is there."""
        return True

    def path(self, version: int) -> Path:
        """The log file of a version."""
        return self.folder / f"{version:020d}.json"

    def write(self, version: int, data: bytes) -> bool:
        """Make an entry, all or nothing, not yet durable; False: somebody else's is there."""
        temporary = temporary_name(self.path(version))
        with discarding(temporary):
            temporary.write_bytes(data)
            try:
                os.link(temporary, self.path(version))
            except FileExistsError:
                return False
        return True

    def sync(self, version: int) -> None:
        """Make a commit durable."""
        fsync_file(self.path(version))
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
            path = self.folder / f"{base:020d}.checkpoint.parquet"
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
            if version in marked:
                if (problem := self._compared(version)) is not None:
                    yield problem
            elif version > base:
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
        self._remove_half_written()
        self._mend_checkpoint()
        versions = self.versions()
        if not versions or versions[-1] in self._marked():
            return None
        last = versions[-1]
        if self._author(last) is not None:
            self.sync(last)
            self.mark(last)
            return None
        make_folder(self.marks)
        aside = self.marks / f"set-aside-{last:020d}.json"
        self.path(last).rename(aside)
        fsync_folder(self.folder)
        return f"{self.path(last)}: torn by a crash before it took effect, set aside as {aside}"

    def mark_checkpoint(self, version: int) -> None:
        """Note that the checkpoint of this version is whole; commits up to it may then be removed."""
        checkpoint = self.folder / f"{version:020d}.checkpoint.parquet"
        fsync_file(checkpoint)
        fsync_file(self.folder / HINT)
        fsync_folder(self.folder)
        sums = {"version": version, "checkpoint": _checksum(checkpoint), "hint": _checksum(self.folder / HINT)}
        make_folder(self.marks)
        replace(self.marks / _CHECKPOINT_MARK, sealed(sums))

    def trim(self, version: int) -> None:
        """Remove commits and checkpoints before a marked checkpoint, and the marks of what is gone."""
        for path in self.folder.iterdir():
            commit, checkpoint = _COMMIT.match(path.name), _CHECKPOINT.match(path.name)
            if (commit and int(commit[1]) < version) or (checkpoint and int(checkpoint[1]) < version):
                path.unlink(missing_ok=True)
        there = set(self.versions())
        for marked in self._marked() - there:
            if marked < version:
                self._mark(marked).unlink(missing_ok=True)

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
        later = any(int(m[1]) > version for p in self.folder.iterdir() if (m := _CHECKPOINT.match(p.name)))
        if base < 0 and later:  # the log was trimmed, and that is done only after the checkpoint is marked
            return StateDamaged(str(self.marks / _CHECKPOINT_MARK), "the mark of the checkpoint is missing")
        return StateDamaged(str(self.path(version)), "the log file is missing")

    def _remove_half_written(self) -> None:
        for folder in (self.folder, self.marks):
            for path in folder.iterdir() if folder.is_dir() else ():
                if _HALF.match(path.name) or path.name.startswith(TEMPORARY):
                    path.unlink(missing_ok=True)

    def _checkpoint_mark(self) -> dict[str, Any] | None:
        path = self.marks / _CHECKPOINT_MARK
        if not path.exists():
            return None
        mark: Any = unseal(path)
        return dict(mark)

    def _problems_of_checkpoint(self, mark: dict[str, Any]) -> Iterator[StateDamaged]:
        checkpoint = self.folder / f"{mark['version']:020d}.checkpoint.parquet"
        if not checkpoint.exists():
            yield StateDamaged(str(checkpoint), "the checkpoint is missing")
        elif _checksum(checkpoint) != mark["checkpoint"]:
            yield StateDamaged(str(checkpoint), "its checksum does not match its content")
        hint = self.folder / HINT
        if hint.exists() and _checksum(hint) != mark["hint"] and not self._unmarked_checkpoints(mark["version"]):
            yield StateDamaged(str(hint), "its checksum does not match its content")

    def _unmarked_checkpoints(self, marked: int) -> list[Path]:
        return [p for p in self.folder.iterdir() if (m := _CHECKPOINT.match(p.name)) and int(m[1]) > marked]

    def _mend_checkpoint(self) -> None:
        mark = self._checkpoint_mark()
        version = -1 if mark is None else int(mark["version"])
        unmarked = self._unmarked_checkpoints(version)
        if unmarked or (mark is None and (self.folder / HINT).exists()):
            (self.folder / HINT).unlink(missing_ok=True)
            for path in unmarked:
                path.unlink()


def version_of(name: str) -> int:
    """The version that an entry or a checkpoint of this name is of."""
    return int(name.partition(".")[0])


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as e:
        raise StateDamaged(str(path), f"it cannot be read ({e})") from e


def _checksum(path: Path) -> str:
    return checksum(_read(path))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise StateDamaged(str(path), "the file is missing") from None
