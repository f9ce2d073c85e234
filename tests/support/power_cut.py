"""A power cut in this process: of the files below a folder that is left which was made durable.

A file has the content of its last fsync, a folder the names of its own last fsync. What was not synced may be there
too, as chance has it: file systems write early, and in any order.
"""

from __future__ import annotations

import os
import random
import stat
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from ferryman import crash

_PIPE_BYTES: Final = 16_384


class _Named(NamedTuple):
    inode: int
    folder: bool
    path: str


class PowerCut:
    """Notes what is synced below ``root`` while it is entered, and says what a power cut would leave.

    Args:
        root: what is there at first is durable.
        seed: by chance some of what was not synced is left; None: nothing of it.
    """

    def __init__(self, root: Path, seed: int | None = None) -> None:
        self._root = root
        self._chance = None if seed is None else random.Random(seed)
        self._content: dict[int, bytes] = {}
        self._names: dict[int, dict[str, _Named]] = {}
        self.syncs = 0
        self.at_sync: Callable[[], None] = lambda: None
        """Called before each sync."""
        for folder, _, files in os.walk(root):
            self._note_folder(folder)
            for file in files:
                self._note_file(os.path.join(folder, file))

    def __enter__(self) -> Self:
        self._fsync, self._fdatasync = os.fsync, os.fdatasync
        os.fsync = os.fdatasync = self._noting
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync, os.fdatasync = self._fsync, self._fdatasync

    def left(self, image: Path) -> None:
        """Make a copy of what would be left."""
        self._build(str(self._root), os.stat(self._root).st_ino, image)

    def _noting(self, fd: Any) -> None:
        path = os.readlink(f"/proc/self/fd/{fd if isinstance(fd, int) else fd.fileno()}")
        if path.startswith(f"{self._root}/") or path == str(self._root):
            self.syncs += 1
            self.at_sync()
            if stat.S_ISDIR(os.stat(path).st_mode):
                self._note_folder(path)
            else:
                self._note_file(path)
        self._fsync(fd)

    def _note_file(self, path: str) -> None:
        self._content[os.stat(path).st_ino] = Path(path).read_bytes()

    def _note_folder(self, folder: str) -> None:
        self._names[os.stat(folder).st_ino] = _names_in(folder)

    def _kept(self) -> bool:
        return self._chance is not None and self._chance.random() < 0.5

    def _build(self, folder: str, inode: int, image: Path) -> None:
        image.mkdir()
        durable = self._names.get(inode, {})
        there = os.path.isdir(folder) and os.stat(folder).st_ino == inode
        now = _names_in(folder) if there else {}
        for name in sorted(durable.keys() | now.keys()):
            before, after = durable.get(name), now.get(name)
            if before is not None and after is not None and before.inode == after.inode:
                before = after
            found = after if before != after and self._kept() else before
            if found is not None and found.folder:
                self._build(found.path, found.inode, image / name)
            elif found is not None:
                (image / name).write_bytes(self._data(found))

    def _data(self, file: _Named) -> bytes:
        there = os.path.exists(file.path) and os.stat(file.path).st_ino == file.inode
        now = Path(file.path).read_bytes() if there else b""
        durable = self._content.get(file.inode)
        if durable is not None:
            return now if there and now != durable and self._kept() else durable
        return now[: self._chance.randrange(len(now) + 1)] if self._chance is not None else b""


def _names_in(folder: str) -> dict[str, _Named]:
    with os.scandir(folder) as entries:
        return {e.name: _Named(e.inode(), e.is_dir(follow_symlinks=False), e.path) for e in entries}


def images_at_points(root: Path, images: Path, work: Callable[[], object]) -> list[tuple[str, Path]]:
    """What a power cut would leave at each crash point that ``work``, in a forked child, passes: the point, and a copy
    of ``root``."""

    def observed() -> None:
        with PowerCut(root) as power:

            def passed(name: str) -> None:
                power.left(images / f"{len(os.listdir(images)):06d} {name}")

            crash.point = passed
            work()

    in_child(observed)
    return [(image.name.partition(" ")[2], image) for image in sorted(images.iterdir())]


def in_child(work: Callable[[], object]) -> None:
    """Do some work in a forked child, as another process that knows nothing of what was before.

    Raises:
        AssertionError: it failed; says how.
    """
    said, saying = os.pipe()
    if not os.fork():
        try:
            work()
        except BaseException:
            os.write(saying, traceback.format_exc()[-_PIPE_BYTES:].encode())
        finally:
            os._exit(0)
    os.close(saying)
    with open(said, "rb") as words:
        failure = words.read().decode()
    os.wait()
    assert not failure, failure


def cut_by_chance(root: Path, image: Path, work: Callable[[], object], seed: int, most: int) -> bool:
    """Do some work in a forked child and cut its power at a sync that is drawn; False: it was through before.

    Args:
        most: the sync is one of so many.
    """
    at = random.Random(seed).randint(1, most)
    child = os.fork()
    if not child:
        try:
            with PowerCut(root, seed) as power:

                def cut() -> None:
                    if power.syncs == at:
                        power.left(image)
                        os._exit(1)

                power.at_sync = cut
                work()
            os._exit(0)
        finally:
            os._exit(2)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (0, 1), f"the work failed: exit code {ended}"
    return ended == 1
