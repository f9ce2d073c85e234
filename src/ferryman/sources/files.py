"""Files in a folder, and in the folders below it."""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Final

from ferryman import settings
from ferryman.document import Document
from ferryman.errors import TransientError, UsageError
from ferryman.sources.base import Detect, Listed, Source
from ferryman.sources.globs import Globs
from ferryman.sources.paths import id_of, name_of, shown
from ferryman.sources.root import LEAVE_OUT, Root, relative, special, too_large, user

Piece = list[tuple[str, bool]]
"""A piece of a listing: folders by their id, each with whether the folders below belong to it too."""

_TRUST_NS: Final = int(settings.FINGERPRINT_TRUST_S * 1e9)
_NAMED_FOLDERS: Final = 3  # folders that an error names; a broken mount may have thousands
_BROKEN_LINK: Final = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "does not exist",
    errno.ELOOP: "leads in a circle",
    errno.ENAMETOOLONG: "is longer than a path can be",
    errno.EACCES: "this user may not look at",
}

_by_name = attrgetter("name")


class Files(Source):
    """Every file below ``root`` that the globs take, as a document: its bytes are ``raw``, it has no fields.

    ``Files("corpus")``, ``Files("src", include="**/*.py", exclude=["**/.*", "build"])``.

    **Ids** are paths relative to the root with ``/`` between names: ``histories/henryv.txt``, ``a b/ça.txt``. So that
    every name has its own id, four things are percent-encoded: ``%`` (``%25``) and ``#`` (``%23``: it parts a child's
    key from its parent), control characters, and bytes of a name that are not UTF-8 (``%FF``).

    **Globs** are matched against the path relative to the root and are case-sensitive: ``*`` stays within a name,
    ``**`` is any number of folders, also none (``**/*.py`` takes ``setup.py`` too), and ``{py,md}`` is either. Files
    and folders whose names begin with a dot are taken like all others; ``exclude="**/.*"`` leaves them out. An exclude
    wins over every include, and one that matches a folder leaves out all that is in it, unvisited.

    **Folders** are never documents, whatever their name. One that cannot be read makes the listing incomplete (nothing
    is deleted in this scan), after everything else was listed. One that vanishes meanwhile is gone like its files.

    **Links** to files inside the root are read, under their own id. Links to folders inside the root are not followed:
    their files are documents already, under their real path; where the globs leave that out, the link is refused.
    Refused, by name, are links that lead nowhere, in a circle, back to a folder that holds them, or out of the root.

    Also refused: files of more than ``max_bytes``, and what is no file (pipes, sockets, devices), which are never
    opened. An empty file is a document like any other, with ``raw=b""``. A refused name is a document that ends as
    ERROR_DOC; to have no such document, exclude it.

    **Changes** are seen by size and time of modification (``detect="fingerprint"``); where that time is less than 2 s
    ago, or yet to come, the file is read.

    Args:
        root: a folder. A relative path counts from where the driver is when the source is made. On a cluster every
            worker must see the same folder at the same path.
        include: one glob or several.
        exclude: one glob or several.
        max_bytes: largest file that is read (bytes). A document lives whole in a worker's memory.
        prefix, detect, max_deleted: see ``Source``.

    Raises:
        UsageError: a glob or a limit that cannot be meant. Whether the root exists is asked later, by ``check``.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        include: str | Sequence[str] = "**/*",
        exclude: str | Sequence[str] | None = None,
        max_bytes: int = settings.MAX_FILE_BYTES,
        *,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float = settings.MAX_DELETED,
    ) -> None:
        super().__init__(prefix=prefix, detect=detect, max_deleted=max_deleted)
        path = os.fspath(root)
        if not isinstance(path, str) or not path:
            raise UsageError(f"Files({root!r}): give the folder as text; '.' is the current one.")
        if not isinstance(max_bytes, int) or max_bytes < 1:
            raise UsageError(f"Files(max_bytes={max_bytes!r}): give a whole number of bytes, at least 1.")
        self.root = os.path.abspath(path)
        self.include = include
        self.exclude = exclude
        self.max_bytes = max_bytes
        self._globs = Globs(include, exclude)
        self._root = Root(self.root)

    def __repr__(self) -> str:
        left_out = "" if self.exclude is None else f", exclude={self.exclude!r}"
        return f"Files({self.root!r}, include={self.include!r}{left_out})"

    # --- listing ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """
        Raises:
            UsageError: the root is not there, is not a folder, or may not be read.
        """
        self._root.check()

    def partitions(self) -> list[Piece]:
        """Up to ``settings.SMALL_LISTING_PARTS`` pieces: folders are opened from the top until there are enough."""
        walked: list[str] = []  # their folders are pieces of their own, so they bring only their files
        whole: list[str] = []
        waiting = deque([""])
        while waiting and len(walked) + len(whole) + len(waiting) < settings.SMALL_LISTING_PARTS:
            folder = waiting.popleft()
            try:
                waiting.extend(self._folders(folder))
                walked.append(folder)
            except OSError:
                whole.append(folder)  # its listing meets the same and can say so without stopping the others
        folders = [(id_of(folder), False) for folder in walked]
        folders += [(id_of(folder), True) for folder in (*whole, *waiting)]
        parts = min(len(folders), settings.SMALL_LISTING_PARTS)
        cuts = [len(folders) * i // parts for i in range(parts + 1)]
        return [folders[start:end] for start, end in pairwise(cuts)]

    def listing(self, partition: Piece) -> Iterator[Listed]:
        """Every file of these folders, sorted by name within each folder.

        Raises:
            TransientError: some folders could not be read; raised after all the others were listed.
        """
        troubles: list[str] = []
        for folder, deep in partition:
            waiting = [name_of(folder)]
            while waiting:
                below: list[str] = []
                yield from self._folder(waiting.pop(), below, troubles)
                if deep:
                    waiting.extend(reversed(below))
        if troubles:
            more = f"; and {len(troubles) - _NAMED_FOLDERS} more" if len(troubles) > _NAMED_FOLDERS else ""
            raise TransientError(
                f"the listing is incomplete, so nothing is deleted: {'; '.join(troubles[:_NAMED_FOLDERS])}{more}. "
                f"Mend that (rights: chmod a+rx for {user()}), {LEAVE_OUT}."
            )

    def _folders(self, folder: str) -> list[str]:
        """The folders in this one that must be walked, sorted."""
        start = f"{folder}/" if folder else ""
        with os.scandir(self._root.path_of(folder)) as entries:
            names = [start + entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return sorted(name for name in names if self._globs.walks(name))

    def _folder(self, folder: str, below: list[str], troubles: list[str]) -> Iterator[Listed]:
        """The files of one folder; notes the folders in it in ``below``, and what went wrong in ``troubles``."""
        globs = self._globs
        start = f"{folder}/" if folder else ""
        start_id = id_of(start)
        trusted_ns = time.time_ns() - _TRUST_NS  # before anything is looked at: what changes meanwhile is not trusted
        entries = self._entries(folder, troubles)
        while entries:
            entry = entries.pop()  # and forget it: with what it knows of its file it is large, and folders may be too
            name = start + entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    if globs.walks(name):
                        below.append(name)
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
                troubles.append(f"{shown(self._root.path_of(name))}: {e.strerror}")
                if isinstance(e, PermissionError):
                    return  # the folder may be read but not searched: all its files would say the same

    def _entries(self, folder: str, troubles: list[str]) -> list[os.DirEntry[str]]:
        """What is in a folder, sorted by name, the last first."""
        path = self._root.path_of(folder)
        entries: list[os.DirEntry[str]] = []
        try:
            with os.scandir(path) as found:
                entries.extend(found)  # keeps what it got when the folder breaks off in the middle
        except FileNotFoundError:
            if not folder or not os.path.isdir(self.root):
                troubles.append(f"{shown(path)}: there is no such folder on {socket.gethostname()}")
        except OSError as e:
            troubles.append(f"{shown(path)}: {e.strerror}")
        entries.sort(key=_by_name, reverse=True)
        return entries

    def _file(self, id: str, about: os.stat_result, trusted_ns: int, link_to: str = "") -> Listed:
        size, changed_ns = about.st_size, about.st_mtime_ns
        if not stat.S_ISREG(about.st_mode):
            return Listed(id, 0, refused=special(self._root.shown(id), about.st_mode))
        fingerprint = "" if changed_ns > trusted_ns else f"{size}-{changed_ns}{link_to}"
        if size > self.max_bytes:
            return Listed(id, size, fingerprint, refused=too_large(self._root.shown(id), size, self.max_bytes))
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
            return self._refused(name, leads_to, f"{why}. Mend or remove the link") if takes else None
        is_folder = stat.S_ISDIR(about.st_mode)
        if not (walks if is_folder else takes):
            return None
        target = os.path.realpath(path)
        inside = self._root.way_to(target)
        if inside is None:
            there = "start another Files there" if is_folder else "put the file inside"
            return self._refused(
                name, leads_to, f"leads out of the root to {shown(target)}. Start Files further up, {there}"
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

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, listed: Listed) -> Document:
        """The file's bytes as they are now, read once.

        Raises:
            BadDocument: this user may not read it; it is no file any more, grew over the limit, or leads out of the
                root by now.
            TransientError: it vanished since the listing (the next scan sees it gone), or the disk failed.
        """
        return Document(listed.id, raw=self._root.read(listed.id, self.max_bytes))
