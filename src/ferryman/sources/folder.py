"""A folder of this machine and the folders below it, as a tree of files."""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final
from urllib.parse import quote_from_bytes

from ferryman import limits
from ferryman.errors import TransientError
from ferryman.sources.base import EMPTY, MISSING, THERE, Doubt, Listed
from ferryman.sources.globs import Globs
from ferryman.sources.paths import id_of, name_of, shown
from ferryman.sources.root import LEAVE_OUT, Root, Stream, relative, special, too_large, user
from ferryman.sources.tree import FileContent, Found, Piece, pieces, walked

_TRUST_NS: Final = int(limits.FINGERPRINT_TRUST_S * 1e9)
_BROKEN_LINK: Final = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "does not exist",
    errno.ELOOP: "leads in a circle",
    errno.ENAMETOOLONG: "is longer than a path can be",
    errno.EACCES: "this user may not look at",
}

_by_name = attrgetter("name")


class Folder:
    """See ``Tree``. Walks with one look at each file, and reads only what is really below the root.

    Args:
        path: absolute.
        max_bytes: files of more are listed as refused; None: no limit.
    """

    def __init__(self, path: str, globs: Globs, max_bytes: int | None) -> None:
        self._root = Root(path)
        self._globs = globs
        self._max_bytes = max_bytes

    @property
    def where(self) -> str:
        return self._root.path

    def not_installed(self) -> str:
        return ""

    def shown(self, id: str) -> str:
        return self._root.shown(id)

    def check(self) -> None:
        self._root.check()

    def is_file(self) -> bool:
        return os.path.isfile(self._root.path)

    def alone(self) -> File:
        return File(self._root.path)

    def uri(self, id: str) -> str:
        return f"file://{quote_from_bytes(os.fsencode(self._root.path_of(name_of(id))))}"

    def read(self, listed: Listed, limit_bytes: int) -> FileContent:
        return FileContent(*self._root.read(listed.id, limit_bytes))

    def open(self, listed: Listed) -> Stream:
        return self._root.open(listed.id)

    # --- listing ------------------------------------------------------------------------------------------------------

    def pieces(self) -> list[Piece]:
        return pieces(self._folders, id_of)

    def listing(self, piece: Piece) -> Iterator[Listed | Doubt]:
        """Every file of these folders, sorted by name within each folder."""
        remedy = f"Fix that (rights: chmod a+rx for {user()}), {LEAVE_OUT}."
        return walked(piece, name_of, self._folder, id_of, remedy)

    def still_there(self, ids: Iterable[str]) -> str:
        names: dict[str, set[str]] = {}
        for id in ids:
            folder, _, last = (name := name_of(id)).rpartition("/")
            path = self._root.path_of(name)
            if self._globs.takes(name) and os.path.lexists(path) and not os.path.isdir(path):
                if folder not in names:
                    names[folder] = self._names(folder)
                if last in names[folder]:  # not another way to write its name, where letters' case makes no difference
                    return _only_here(path, "there")
        return ""

    def _names(self, folder: str) -> set[str]:
        """What is in a folder, if it is one that is walked and not reached by a link."""
        while_in = folder
        while while_in:
            if not self._globs.walks(while_in) or os.path.islink(self._root.path_of(while_in)):
                return set()
            while_in = while_in.rpartition("/")[0]
        try:
            return set(os.listdir(self._root.path_of(folder)))
        except OSError:
            return set()  # the listing met the same

    def contradiction(self, doubt: Doubt) -> str:
        path = self._root.path_of(name_of(doubt.place))
        if doubt.seen == THERE:
            return "" if os.path.lexists(path) else f"{shown(path)} is not there on {socket.gethostname()}"
        try:
            if doubt.seen == EMPTY:
                with os.scandir(path) as entries:
                    return "" if next(entries, None) is None else _only_here(path, "not empty")
            return _only_here(path, "there") if os.path.lexists(path) else ""
        except FileNotFoundError:
            return ""
        except OSError as e:
            return f"{shown(path)}: {e.strerror} on {socket.gethostname()}"

    def _folders(self, folder: str) -> list[str]:
        """The folders in this one that must be walked, sorted."""
        start = f"{folder}/" if folder else ""
        with os.scandir(self._root.path_of(folder)) as entries:
            names = [start + entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return sorted(name for name in names if self._globs.walks(name))

    def _folder(self, folder: str, found: Found) -> Iterator[Listed]:
        """The files of one folder."""
        globs = self._globs
        start = f"{folder}/" if folder else ""
        start_id = id_of(start)
        trusted_ns = time.time_ns() - _TRUST_NS  # before anything is looked at: what changes meanwhile is not trusted
        entries = self._entries(folder, found)
        while entries:
            entry = entries.pop()  # and forget it: with what it knows of its file it is large, and folders may be too
            name = start + entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    if globs.walks(name):
                        found.below.append(name)
                    continue
                if not globs.everything and not globs.takes(name) and not entry.is_symlink():
                    continue
                about = entry.stat(follow_symlinks=False)
                if stat.S_ISLNK(about.st_mode):
                    listed = self._link(name, trusted_ns)
                else:
                    listed = self._file(start_id + id_of(entry.name), about, trusted_ns)
                if listed is not None:
                    yield listed
            except FileNotFoundError:
                continue  # gone since the folder was read
            except OSError as e:
                found.fail(_trouble(self._root.path_of(name), e), e)
                if isinstance(e, PermissionError):
                    return  # the folder may be read but not searched: all its files would say the same

    def _entries(self, folder: str, found: Found) -> list[os.DirEntry[str]]:
        """What is in a folder, sorted by name, the last first."""
        path = self._root.path_of(folder)
        entries: list[os.DirEntry[str]] = []
        try:
            with os.scandir(path) as inside:
                entries.extend(inside)  # keeps what it got when the folder breaks off in the middle
            found.seen = "" if entries else EMPTY
        except FileNotFoundError:
            if not folder or not os.path.isdir(self._root.path):
                found.troubles.append(f"{shown(path)}: there is no such folder on {socket.gethostname()}")
            else:
                found.seen = MISSING
        except OSError as e:
            found.fail(_trouble(path, e), e)
        entries.sort(key=_by_name, reverse=True)
        return entries

    def _file(self, id: str, about: os.stat_result, trusted_ns: int, link_to: str = "") -> Listed:
        size, changed_ns = about.st_size, about.st_mtime_ns
        if not stat.S_ISREG(about.st_mode):
            return Listed(id, 0, refused=special(self._root.shown(id), about.st_mode))
        fingerprint = "" if changed_ns > trusted_ns else f"{size}-{changed_ns}{link_to}"
        if self._max_bytes is not None and size > self._max_bytes:
            return Listed(id, size, fingerprint, refused=too_large(self._root.shown(id), size, self._max_bytes))
        return Listed(id, size, fingerprint)

    def _link(self, name: str, trusted_ns: int) -> Listed | None:
        """What a link is: a file, a refusal that says where it leads, or (None) nothing to speak of."""
        path, globs = self._root.path_of(name), self._globs
        takes, walks = globs.takes(name), globs.walks(name)
        if not takes and not walks:
            return None
        leads_to = os.readlink(path)
        try:
            about = os.stat(path)
        except OSError as e:
            why = _BROKEN_LINK.get(e.errno or 0)
            if why is None:
                raise
            return self._refused(name, leads_to, f"{why}. Fix or remove the link") if takes else None
        is_folder = stat.S_ISDIR(about.st_mode)
        if not (walks if is_folder else takes):
            return None
        target = os.path.realpath(path)
        inside = self._root.way_to(target)
        if inside is None:
            there = "start another source there" if is_folder else "put the file inside"
            return self._refused(
                name, leads_to, f"leads out of the root to {shown(target)}. Start the source further up, {there}"
            )
        if not is_folder:
            return self._file(id_of(name), about, trusted_ns, f"-{id_of(inside)}")
        if relative(os.path.realpath(os.path.dirname(path)), target) is not None:
            return self._refused(name, leads_to, "leads in a circle: that folder holds the link. Remove the link")
        if globs.walks(inside):
            return None  # listed there, under its real path
        return self._refused(
            name, leads_to, f"leads to a folder that the globs leave out, and is not followed. Include {shown(inside)}"
        )

    def _refused(self, name: str, leads_to: str, why: str) -> Listed:
        path = shown(self._root.path_of(name))
        return Listed(id_of(name), 0, refused=f"{path}: link to {shown(leads_to)}, which {why}, {LEAVE_OUT}.")


def _trouble(path: str, error: OSError) -> str:
    return f"{shown(path)}: {error.strerror} on {socket.gethostname()}"


def _only_here(path: str, what: str) -> str:
    return f"{shown(path)} is {what} on {socket.gethostname()}"


class File:
    """See ``OneFile``."""

    def __init__(self, path: str) -> None:
        self.where = path
        self._id = id_of(os.path.basename(path))

    def shown(self, id: str) -> str:
        return shown(self.where)

    def listed(self) -> Listed:
        try:
            return Listed(self._id, os.stat(self.where).st_size)
        except OSError as e:
            raise TransientError(f"{shown(self.where)}: {e.strerror}") from e

    def open(self, listed: Listed) -> Stream:
        folder, name = os.path.split(os.path.realpath(self.where))
        return Root(folder).open(id_of(name))
