"""Touched files in a folder of this machine and the folders below it, as the kernel reports them (inotify)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ferryman import limits
from ferryman.sources.base import TouchedFiles, printable_path

_CLOSE_WRITE: Final = 0x8
_MOVED_FROM: Final = 0x40
_MOVED_TO: Final = 0x80
_CREATE: Final = 0x100
_DELETE: Final = 0x200
_DELETE_SELF: Final = 0x400
_MOVE_SELF: Final = 0x800
_UNMOUNT: Final = 0x2000
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_ONLY_FOLDERS: Final = 0x01000000
_NO_LINKS: Final = 0x02000000
_NOT_UNLINKED: Final = 0x04000000
_IS_FOLDER: Final = 0x40000000

_IN_FOLDERS: Final = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLY_FOLDERS | _NOT_UNLINKED
_OF_ROOT: Final = _IN_FOLDERS | _DELETE_SELF | _MOVE_SELF

_HEADER: Final = struct.Struct("iIII")
_READ_BYTES: Final = 256 * limits.KIB

_SYSCTLS: Final = "/proc/sys/fs/inotify"
_ENOUGH: Final = {"max_user_watches": 1_048_576, "max_user_instances": 1024}
_MOUNTS: Final = "/proc/self/mountinfo"
_REMOTE: Final = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|fuse(blk)?(\..*)?|9p|afs|ceph|lustre|gpfs|beegfs|ocfs2|gfs2|virtiofs|vboxsf|"
    r"prl_fs|vmhgfs|acfs|orangefs|coda|davfs"
)
"""File systems on which other machines, or a process that serves the files, make changes of which this kernel hears
nothing."""


class CannotWatch(Exception):
    """Raised if the kernel cannot report changes of a folder; the text gives the reason."""


class Event(NamedTuple):
    """An event of the kernel."""

    watch: int
    mask: int
    name: str
    """Name in the watched folder; "": the folder itself."""


class Inotify:
    """An inotify instance of the kernel; Python's library has none.

    Raises:
        OSError: EMFILE: this user, or this process, may have no more of them; ENOSYS: not on this system.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._descriptor = self._check(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK), "")

    def fileno(self) -> int:
        return self._descriptor

    def add(self, path: str, mask: int) -> int:
        """Watch a folder and return the watch's number, which is the same if it is watched already.

        Raises:
            OSError: ENOSPC: this user may have no more watches; it is not a folder, is gone, or may not be read.
        """
        return self._check(self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), mask), path)

    def remove(self, watch: int) -> None:
        """End a watch; the kernel may have ended it already."""
        self._libc.inotify_rm_watch(self._descriptor, watch)

    def read(self) -> Iterator[Event]:
        """Yield the events that wait; does not block."""
        while True:
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                watch, mask, _, size = _HEADER.unpack_from(data, at)
                at += _HEADER.size
                yield Event(watch, mask, os.fsdecode(data[at : at + size].rstrip(b"\0")))
                at += size

    def close(self) -> None:
        os.close(self._descriptor)

    def _check(self, result: int, path: str) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        return result


class FolderEvents:
    """Watches a folder and the folders below it. Names are relative to the root, with ``/`` between them.

    A file counts as changed when whoever wrote it has closed it, or when it was moved here: one that grows for a minute
    is named once, at its end. A folder that appears is watched first and named then, so that a listing of it misses
    nothing.

    Args:
        root: absolute path; it may be a link.
        may_contain: whether a folder below it is watched.
        selects: whether changes of a file are named.
        inotify: makes the kernel's part.

    Raises:
        CannotWatch: there are no events here; nothing is left open.
    """

    def __init__(
        self,
        root: str,
        may_contain: Callable[[str], bool],
        selects: Callable[[str], bool],
        inotify: Callable[[], Inotify] = Inotify,
    ) -> None:
        self._root = root
        self._may_contain = may_contain
        self._selects = selects
        self._names: dict[int, str] = {}
        """Watch -> name of its folder."""
        self._watches: dict[str, int] = {}
        self._below: dict[str, set[str]] = {}
        """Folder -> the watched folders right in it."""
        self._devices: set[int] = set()
        """File systems whose changes this kernel sees."""
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._gone: set[str] = set()
        self._folder_has_gone = False
        """A folder was removed or moved away. One that has its name by now need not have its files."""
        self._created: set[str] = set()
        """Files that are being written and were not there before, and that no listing can have seen."""
        self._is_listed = False
        self.overflowed = False
        """There was more than is remembered: only a listing of everything finds all of it."""
        self.lost_events = False
        """It was more than the kernel keeps."""
        with _explain_limits(root):
            self._inotify = inotify()
        try:
            with _explain_limits(root):
                self._watch_tree("")
            if not self._watches:
                raise CannotWatch(f"{printable_path(root)} is not there, or may not be read")
        except BaseException:
            self._inotify.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor that can be read when there are events."""
        return self._inotify.fileno()

    def read(self) -> bool:
        """Read the events that wait, and return whether anything has changed; does not block.

        Raises:
            CannotWatch: from now on there are no events: a folder has appeared that cannot be watched, or the root was
                removed, moved or unmounted.
        """
        for event in self._inotify.read():
            if event.mask & _OVERFLOW:
                self.overflowed = self.lost_events = True
                continue
            if event.mask & _IGNORED:
                self._forget_watch(event.watch)
            folder = self._names.get(event.watch)
            if folder is None:
                continue  # it was watched when this happened, and has gone since
            if event.mask & (_DELETE_SELF | _MOVE_SELF | _UNMOUNT):
                if not folder:
                    raise CannotWatch(f"{printable_path(self._root)} was removed or moved")
                continue
            name = f"{folder}/{event.name}" if folder else event.name
            if event.mask & _IS_FOLDER:
                self._folder_event(event.mask, name)
            elif self._selects(name):
                self._file_event(event.mask, name)
        if not self._watches:
            raise CannotWatch(f"{printable_path(self._root)} was removed")
        if len(self._files) + len(self._folders) + len(self._gone) + len(self._created) > limits.WATCH_NAMES:
            self.overflowed = True
            self.take()
        return self.overflowed or bool(self._files or self._folders or self._gone)

    def take(self) -> TouchedFiles:
        """Return the files and folders to list that have changed since the last call, and forget them."""
        changes = TouchedFiles(frozenset(self._files), frozenset(self._folders))
        if self._folders:
            self.begin_listing()
        self._created -= self._files
        self._files.clear()
        self._folders.clear()
        return changes

    def take_gone(self) -> bool:
        """Return whether files that were removed or moved away since the last call are still missing, or a folder was,
        and forget them. Files of which the name is there again were saved by renaming."""
        gone = self._folder_has_gone or any(not os.path.lexists(self._path(name)) for name in self._gone)
        self._forget_gone()
        return gone

    def forget(self) -> None:
        """Forget all that has changed, since everything is going to be listed."""
        self.take()
        self._forget_gone()
        self.begin_listing()
        self.overflowed = self.lost_events = False

    def _forget_gone(self) -> None:
        self._gone.clear()
        self._folder_has_gone = False

    def begin_listing(self) -> None:
        """Take note that from now on, until ``end_listing``, files are listed that no event has named."""
        self._is_listed = True
        self._created.clear()

    def end_listing(self) -> None:
        """Take note that nothing is listed any more. All events of the time before were read."""
        self._is_listed = False

    def watch_again(self) -> None:
        """Watch the folders of which no event has told: it was lost, or they could not be watched then.

        Raises:
            CannotWatch: see ``read``.
        """
        with _explain_limits(self._root):
            self._watch_tree("")

    @property
    def has_gone(self) -> bool:
        """Return whether ``take_gone`` has something to look for."""
        return bool(self._gone)

    @property
    def is_changed(self) -> bool:
        """Return whether ``take`` has something to return."""
        return bool(self._files or self._folders)

    def close(self) -> None:
        """End all watches."""
        self._inotify.close()

    def _file_event(self, mask: int, name: str) -> None:
        if mask & (_DELETE | _MOVED_FROM):
            self._files.discard(name)
            if name in self._created:  # it came and went, and nobody has listed it
                self._created.discard(name)
            else:
                self._gone.add(name)
        elif mask & _CREATE and not self._is_whole(name):
            if name not in self._gone and not self._is_listed:
                self._created.add(name)
        else:
            self._files.add(name)

    def _folder_event(self, mask: int, name: str) -> None:
        """Follow a folder that appears or disappears."""
        if not self._may_contain(name):
            return
        if mask & (_DELETE | _MOVED_FROM):
            self._forget_tree(name)
            self._folders.discard(name)
            self._gone.add(name)
            self._folder_has_gone = True
        elif mask & (_CREATE | _MOVED_TO):
            with _explain_limits(self._root):
                self._watch_tree(name)
            self._folders.add(name)

    def _is_whole(self, name: str) -> bool:
        """Return whether a file was complete when its name appeared: a link of either kind. Others are being
        written."""
        try:
            info = os.lstat(self._path(name))
        except OSError:
            return False
        return stat.S_ISLNK(info.st_mode) or info.st_nlink > 1

    def _watch_tree(self, name: str) -> None:
        """Watch a folder and those below it, as far as they are there and may be read."""
        waiting = [name]
        while waiting:
            folder = waiting.pop()
            path = self._path(folder)
            try:
                self._check_device(path)
                self._add(folder, self._inotify.add(path, _IN_FOLDERS | _NO_LINKS if folder else _OF_ROOT))
                with os.scandir(path) as entries:
                    names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            except OSError as e:
                if e.errno in (errno.ENOSPC, errno.ENOMEM):
                    raise
                continue  # gone meanwhile; or the listing meets the same error, and reports it
            below = (f"{folder}/{each}" if folder else each for each in names)
            waiting += [each for each in below if self._may_contain(each)]

    def _add(self, name: str, watch: int) -> None:
        before = self._names.get(watch)
        if before is not None and before != name:
            self._drop(before)  # it was moved, and the event of that is yet to be read
        replaced = self._watches.get(name)
        if replaced is not None and replaced != watch:
            self._names.pop(replaced, None)
            self._inotify.remove(replaced)
        self._names[watch] = name
        self._watches[name] = watch
        self._below.setdefault(name, set())
        if name:
            self._below.setdefault(name.rpartition("/")[0], set()).add(name)

    def _forget_tree(self, name: str) -> None:
        """End the watches of a folder that has gone, and of those below it: their names are not true any more."""
        waiting = [name]
        while waiting:
            folder = waiting.pop()
            waiting += self._below.get(folder, ())
            if (watch := self._drop(folder)) is not None:
                self._inotify.remove(watch)

    def _forget_watch(self, watch: int) -> None:
        """Forget a watch that the kernel has ended."""
        if (name := self._names.get(watch)) is not None:
            self._drop(name)

    def _drop(self, name: str) -> int | None:
        self._below.pop(name, None)
        self._below.get(name.rpartition("/")[0], set()).discard(name)
        watch = self._watches.pop(name, None)
        if watch is not None:
            self._names.pop(watch, None)
        return watch

    def _check_device(self, path: str) -> None:
        """
        Raises:
            CannotWatch: the folder is on a file system that others can change.
        """
        device = os.stat(path).st_dev
        if device not in self._devices:
            if kind := remote_kind(device):
                raise CannotWatch(
                    f"{printable_path(path)} is on {kind}, where changes by others are not reported to this machine"
                )
            self._devices.add(device)

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name) if name else self._root


def remote_kind(device: int, mounts: str = _MOUNTS) -> str:
    """Return the kind of the file system with this ``st_dev`` if other machines, or a process that serves it, can
    change it; "" for all others."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path(mounts).read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        place, _, kind = line.partition(" - ")
        if place.split()[2:3] == [number]:
            name = kind.split()[0]
            return name if _REMOTE.fullmatch(name) else ""
    return ""


@contextlib.contextmanager
def _explain_limits(root: str) -> Iterator[None]:
    """Convert the errors of limits that were reached to ``CannotWatch``, with the setting that raises them."""
    try:
        yield
    except OSError as e:
        setting = {errno.ENOSPC: "max_user_watches", errno.EMFILE: "max_user_instances"}.get(e.errno or 0)
        if setting is None:
            raise CannotWatch(f"this system reports no changes of files ({e.strerror})") from e
        what = "watches of folders" if setting == "max_user_watches" else "watchers"
        raise CannotWatch(
            f"{printable_path(root)}: this user may have no more {what} (fs.inotify.{setting} is "
            f"{setting_of(setting)}): raise it, as in sysctl -w fs.inotify.{setting}={_ENOUGH[setting]}"
        ) from e


def setting_of(name: str) -> str:
    """Return a setting of the kernel, for messages."""
    try:
        return Path(_SYSCTLS, name).read_text("ascii").strip()
    except OSError:
        return "unknown"
