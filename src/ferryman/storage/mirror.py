"""Logs of tables in an object store, mirrored in a local folder.

Entries are read and written in a local folder that has the same log; the store is authoritative. A commit takes effect
when its entry is created in the store under the next number, which only one of two drivers can do. So everything that
``storage.delta`` does with files holds here too.

Beside the entries the store has a mark for each: an object whose name contains the entry's tag. A listing shows
entries, tags and marks at once, so the log is verified without reading it again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ferryman.errors import StateDamaged, StateLost
from ferryman.storage.delta import SHARED_CHECKPOINT_MARK, TableLog
from ferryman.storage.disk import scratch_folder
from ferryman.storage.files import StatePath, checksum, replace, seal
from ferryman.storage.objects import ObjectPath, StoredObject

_MARKS: Final = "_marks"
_PARALLEL_FETCHES: Final = 8
"""Entries fetched in parallel."""


class MirroredLog(TableLog):
    """Log of a table in an object store, mirrored locally."""

    def __init__(self, home: ObjectPath) -> None:
        self._temporary = scratch_folder()
        super().__init__(Path(self._temporary.name))
        self._home = home / "_delta_log"
        self._tags: dict[str, str] = {}
        """Name -> tag of the object, for each file of the mirror."""
        self._mark_names: dict[int, str] = {}
        """Version -> name of its mark in the store."""
        self._checkpoint_tag: str | None = None
        """Tag of the checkpoint mark."""
        self._was_refreshed = False
        self._lock = threading.RLock()
        self.folder.mkdir()

    @property
    def exists(self) -> bool:
        if not self._was_refreshed or not self._mark_names:
            self.refresh()
        return bool(self._mark_names)

    def refresh(self) -> None:
        """Bring the mirror up to date with the store."""
        with self._lock:
            found = {each.key.removeprefix(f"{self._home.key}/"): each for each in self._list_objects()}
            entries = {name: each for name, each in found.items() if "/" not in name}
            for name in self._tags.keys() - entries.keys():
                (self.folder / name).unlink(missing_ok=True)
                del self._tags[name]
            changed = [name for name, each in entries.items() if self._tags.get(name) != each.tag]
            with ThreadPoolExecutor(_PARALLEL_FETCHES) as pool:
                for name, data in zip(changed, pool.map(self._get, changed), strict=True):
                    if data is None:  # trimmed since it was listed
                        continue
                    replace(self.folder / name, data)
                    self._tags[name] = entries[name].tag
            marks = {name.partition("/")[2]: each.tag for name, each in found.items() if name.startswith(f"{_MARKS}/")}
            self._update_marks(marks)
            self._was_refreshed = True

    def publish(self, version: int) -> bool:
        """Put an entry that was written to the mirror into effect; return False if another driver is ahead.

        1. create it in the store
        2. check whether a newer checkpoint was marked since the last refresh, see ``TableLog.publish``
        """
        path = self.path(version)
        with self._lock:
            try:
                tag = self._store_create(path)  # 1
            except BaseException:
                path.unlink()
                raise
            if tag is None:
                path.unlink()
                self._tags.pop(path.name, None)  # the other driver's entry is fetched when it is needed
                return False
            self._tags[path.name] = tag
            if self._current_checkpoint_tag() != self._checkpoint_tag:  # 2
                self.refresh()
            return super().publish(version)

    def mark(self, version: int) -> None:
        super().mark(version)
        name = _mark_name(version, self._tags[self.path(version).name])
        self._put(f"{_MARKS}/{name}", seal(checksum(self.path(version).read_bytes())))
        self._mark_names[version] = name

    def repair(self) -> str | None:
        with self._removing():
            return super().repair()

    def make_checkpoint(self, version: int) -> None:
        path, content = self.checkpoint_path(version), self._checkpoint_content(version)
        with self._lock:
            self._tags[path.name] = self._put(path.name, content)
            replace(path, content)

    def mark_checkpoint(self, version: int) -> None:
        """Record the version in the log's only checkpoint mark, replacing exactly the mark that was read.

        Raises:
            StateLost: another driver has marked a newer checkpoint in the meantime.
        """
        key, data = f"{self._home.key}/{_MARKS}/{SHARED_CHECKPOINT_MARK}", self._sealed_checkpoint(version)
        store = self._home.store
        with self._lock:
            while (self.marked_checkpoint() or -1) < version:
                known = self._checkpoint_tag
                tag = store.create(key, data) if known is None else store.put(key, data, known)
                if tag is not None:
                    self._checkpoint_tag = tag
                    replace(self.marks / SHARED_CHECKPOINT_MARK, data)
                    return
                self.refresh()  # an older driver may have been suspended before it marked its own
        raise StateLost(f"{self._home}: another driver has made a checkpoint while this one held the state.")

    def trim(self, version: int) -> None:
        with self._removing():
            super().trim(version)
        trimmed = [number for number in self._mark_names if number < version]
        self._delete([f"{_MARKS}/{self._mark_names.pop(number)}" for number in trimmed])

    def _has_checkpoint(self, version: int) -> bool:
        return self._home.store.head(f"{self._home.key}/{self.checkpoint_path(version).name}") is not None

    def _checkpoint_mark_path(self, version: int) -> Path:
        return self.marks / SHARED_CHECKPOINT_MARK

    def problems(self) -> Iterator[StateDamaged]:
        self.refresh()
        for found in super().problems():
            path = found.path.replace(str(self.folder), str(self._home))
            yield StateDamaged(path.replace(str(self.marks), f"{self._home}/{_MARKS}"), found.what)

    @contextmanager
    def _removing(self) -> Iterator[None]:
        """Remove from the store whatever is removed from the mirror during this block."""
        with self._lock:
            yield
            removed = [name for name in self._tags if not (self.folder / name).exists()]
            self._delete(removed)
            for name in removed:
                del self._tags[name]

    def _update_marks(self, found: dict[str, str]) -> None:
        """Mark the mirror's entries whose marks in the store match; write a bad mark for an entry whose mark does not
        match.

        Args:
            found: name -> tag of each mark in the store.
        """
        self.marks.mkdir(exist_ok=True)
        self._mark_names = {int(name.partition(".")[0]): name for name in found if name[0].isdigit()}
        for path in self.marks.iterdir():
            if path.name.isdigit() and int(path.name) not in self._mark_names:
                path.unlink()
        for version, name in self._mark_names.items():
            path = self.path(version)
            fits = path.name in self._tags and name == _mark_name(version, self._tags[path.name])
            content = seal(checksum(path.read_bytes()) if fits else "another entry's")
            if (mark := self.marks / f"{version:020d}").exists() and mark.read_bytes() == content:
                continue
            mark.write_bytes(content)
        checkpoint = found.get(SHARED_CHECKPOINT_MARK)
        if checkpoint is None:
            (self.marks / SHARED_CHECKPOINT_MARK).unlink(missing_ok=True)
        elif checkpoint != self._checkpoint_tag:
            (self.marks / SHARED_CHECKPOINT_MARK).write_bytes(self._get(f"{_MARKS}/{SHARED_CHECKPOINT_MARK}") or b"")
        self._checkpoint_tag = checkpoint

    def _list_objects(self) -> list[StoredObject]:
        return self._home.store.list_objects(f"{self._home.key}/")

    def _get(self, name: str) -> bytes | None:
        return self._home.store.get(f"{self._home.key}/{name}")

    def _put(self, name: str, data: bytes) -> str:
        return self._home.store.put(f"{self._home.key}/{name}", data) or ""

    def _store_create(self, path: Path) -> str | None:
        return self._home.store.create(f"{self._home.key}/{path.name}", path.read_bytes())

    def _current_checkpoint_tag(self) -> str | None:
        found = self._home.store.head(f"{self._home.key}/{_MARKS}/{SHARED_CHECKPOINT_MARK}")
        return None if found is None else found.tag

    def _delete(self, names: list[str]) -> None:
        if names:
            self._home.store.delete([f"{self._home.key}/{name}" for name in names])


def _mark_name(version: int, tag: str) -> str:
    return f"{version:020d}.{checksum(tag.encode())}"


_mirrors: dict[ObjectPath, tuple[int, MirroredLog]] = {}


def open_log(folder: StatePath) -> TableLog:
    """Return the log of the table in a folder. A process has one mirror of each log, shared by all callers."""
    if isinstance(folder, Path):
        return TableLog(folder)
    pid, found = _mirrors.get(folder, (0, None))
    if found is None or pid != os.getpid():
        found = MirroredLog(folder)
        _mirrors[folder] = os.getpid(), found
    return found


def local_log_folder(folder: StatePath) -> Path | None:
    """Return the local folder where a table's log can be read in its current state; None if there is no such table."""
    log = open_log(folder)
    log.refresh()
    return log.root if log.folder.is_dir() and (isinstance(folder, Path) or log.versions()) else None


def forget_mirrors() -> None:
    """Drop all mirrors, as a new process starts without them."""
    _mirrors.clear()
