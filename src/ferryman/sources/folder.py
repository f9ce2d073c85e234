"""A folder of this machine and the folders below it, as a tree of files."""

from __future__ import annotations

import errno
import io
import os
import socket
import stat
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import quote_from_bytes

from ferryman import limits
from ferryman.errors import BadDocument, TransientError, UsageError
from ferryman.net import compressed
from ferryman.net.faults import is_connection_error
from ferryman.sources.base import (
    EMPTY,
    MISSING,
    PRESENT,
    Doubt,
    Listed,
    Note,
    TouchedFiles,
    id_of,
    name_of,
    printable_path,
)
from ferryman.sources.globs import Globs, is_unfinished

if TYPE_CHECKING:
    from ferryman.sources.inotify import FolderEvents

_TRUST_NS: Final = int(limits.FINGERPRINT_TRUST_S * 1e9)
_BROKEN_LINK: Final = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "does not exist",
    errno.ELOOP: "leads in a circle",
    errno.ENAMETOOLONG: "is longer than a path can be",
    errno.EACCES: "this user may not look at",
}

_STATES: Final = ".ferryman"
"""Name of the default folder of states."""

_by_name = attrgetter("name")


class Folder:
    """Tree of files in a folder, see ``FileTree``. Inspects each file once, and reads only files really below the root.

    Args:
        path: absolute.
        max_bytes: larger files are listed as refused; None: no limit.
    """

    def __init__(self, path: str, globs: Globs, max_bytes: int | None) -> None:
        self._root = Root(path)
        self._globs = globs
        self._max_bytes = max_bytes
        self._leaves_out_unfinished = False

    @property
    def where(self) -> str:
        return self._root.path

    def watch(self) -> FolderEvents:
        from ferryman.sources.inotify import FolderEvents

        self._leaves_out_unfinished = True
        return FolderEvents(self._root.path, self._is_watched, self._selects)

    def end_watch(self) -> None:
        self._leaves_out_unfinished = False

    def _is_watched(self, folder: str) -> bool:
        """Return whether changes in a folder are noticed. Those of states are not: each wave makes some."""
        return folder.rpartition("/")[2] != _STATES and self._globs.may_contain(folder)

    def _selects(self, name: str) -> bool:
        """Return whether the listing takes a file of this name, relative to the root."""
        if self._leaves_out_unfinished and is_unfinished(name.rpartition("/")[2]):
            return False
        return self._globs.everything or self._globs.selects(name)

    def not_installed(self) -> str:
        return ""

    def display_path(self, id: str) -> str:
        return self._root.display_path(id)

    def check(self) -> None:
        self._root.check()

    def is_file(self) -> bool:
        return os.path.isfile(self._root.path)

    def single_file(self) -> LocalFile:
        return LocalFile(self._root.path)

    def uri(self, id: str) -> str:
        return f"file://{quote_from_bytes(os.fsencode(self._root.path_of(name_of(id))))}"

    def url(self, id: str) -> str | None:
        return None

    def read(self, listed: Listed, limit_bytes: int) -> FileContent:
        return FileContent(*self._root.read(listed.id, limit_bytes))

    def open(self, listed: Listed) -> OpenFile:
        return self._root.open(listed.id)

    # --- listing ------------------------------------------------------------------------------------------------------

    def pieces(self) -> list[Piece]:
        return split_tree(self._subfolders, id_of)

    def listing(self, piece: Piece | NamedFiles) -> Iterator[Listed | Doubt | Note]:
        """Yield every file of these folders, sorted by name within each folder."""
        if isinstance(piece, NamedFiles):
            return self._list_files(piece.ids)
        remedy = f"Fix that (rights: chmod a+rx for {user_label()}), {LEAVE_OUT}."
        return walk_piece(piece, name_of, self._list_folder, id_of, remedy)

    def still_there(self, ids: Iterable[str]) -> str:
        names: dict[str, set[str]] = {}
        for id in ids:
            folder, _, last = (name := name_of(id)).rpartition("/")
            path = self._root.path_of(name)
            if self._selects(name) and os.path.lexists(path) and not os.path.isdir(path):
                if folder not in names:
                    names[folder] = self._names_in(folder)
                if last in names[folder]:  # on case-insensitive file systems, another spelling of the name is no proof
                    return _seen_here(path, "there")
        return ""

    def _names_in(self, folder: str) -> set[str]:
        """Return the names in a folder; none if the listing leaves the folder out or it is reached by a link."""
        ancestor = folder
        while ancestor:
            if not self._globs.may_contain(ancestor) or os.path.islink(self._root.path_of(ancestor)):
                return set()
            ancestor = ancestor.rpartition("/")[0]
        try:
            return set(os.listdir(self._root.path_of(folder)))
        except OSError:
            return set()  # the listing met the same error

    def contradiction(self, doubt: Doubt) -> str:
        path = self._root.path_of(name_of(doubt.place))
        if doubt.seen == PRESENT:
            return "" if os.path.lexists(path) else f"{printable_path(path)} is not there on {socket.gethostname()}"
        try:
            if doubt.seen == EMPTY:
                with os.scandir(path) as entries:
                    return "" if next(entries, None) is None else _seen_here(path, "not empty")
            return _seen_here(path, "there") if os.path.lexists(path) else ""
        except FileNotFoundError:
            return ""
        except OSError as e:
            return f"{printable_path(path)}: {e.strerror} on {socket.gethostname()}"

    def _subfolders(self, folder: str) -> list[str]:
        """Return the folders right in this one that must be walked, sorted."""
        start = f"{folder}/" if folder else ""
        with os.scandir(self._root.path_of(folder)) as entries:
            names = [start + entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return sorted(name for name in names if self._globs.may_contain(name))

    def _list_folder(self, folder: str, findings: FolderFindings) -> Iterator[Listed]:
        """Yield the files right in a folder."""
        globs = self._globs
        takes_all = globs.everything and not self._leaves_out_unfinished
        start = f"{folder}/" if folder else ""
        start_id = id_of(start)
        trusted_ns = time.time_ns() - _TRUST_NS  # taken before listing, so that a file that changes now is not trusted
        entries = self._entries(folder, findings)
        while entries:
            entry = entries.pop()  # freed at once: entries with their stat results are large, and so may be the folder
            name = start + entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    if globs.may_contain(name):
                        findings.below.append(name)
                    continue
                if not takes_all and not self._selects(name) and not entry.is_symlink():
                    continue
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISLNK(info.st_mode):
                    listed = self._link(name, trusted_ns)
                else:
                    listed = self._file(start_id + id_of(entry.name), info, trusted_ns)
                if listed is not None:
                    yield listed
            except FileNotFoundError:
                continue  # deleted since the folder was read
            except OSError as e:
                findings.add_problem(_listing_error(self._root.path_of(name), e), e)
                if isinstance(e, PermissionError):
                    return  # the folder may be read but not searched: all its files would raise the same

    def _list_files(self, ids: Sequence[str]) -> Iterator[Listed]:
        """Yield these files, as far as they are there now and a listing of their folders would name them."""
        trusted_ns = time.time_ns() - _TRUST_NS
        for folder, named in groupby(sorted(ids), lambda id: id.rpartition("/")[0]):
            name = name_of(folder)
            real = os.path.realpath(self._root.path_of(name))
            if not self._globs.may_contain(name) or self._root.path_inside(real) != name:
                continue  # it has become a link
            for id in named:
                name = name_of(id)
                path = self._root.path_of(name)
                try:
                    info = os.lstat(path)
                    if stat.S_ISDIR(info.st_mode):
                        continue
                    if stat.S_ISLNK(info.st_mode):
                        listed = self._link(name, trusted_ns)
                    else:
                        listed = self._file(id, info, trusted_ns) if self._selects(name) else None
                except (FileNotFoundError, NotADirectoryError):
                    continue  # a listing of everything finds out what was deleted
                if listed is not None:
                    yield listed

    def _entries(self, folder: str, findings: FolderFindings) -> list[os.DirEntry[str]]:
        """Return a folder's entries in reverse order of their names."""
        path = self._root.path_of(folder)
        entries: list[os.DirEntry[str]] = []
        try:
            with os.scandir(path) as inside:
                entries.extend(inside)  # keeps the entries before an error in the middle
            findings.seen = "" if entries else EMPTY
        except FileNotFoundError:
            if not folder or not os.path.isdir(self._root.path):
                findings.problems.append(f"{printable_path(path)}: there is no such folder on {socket.gethostname()}")
            else:
                findings.seen = MISSING
        except OSError as e:
            findings.add_problem(_listing_error(path, e), e)
        entries.sort(key=_by_name, reverse=True)
        return entries

    def _file(self, id: str, info: os.stat_result, trusted_ns: int, link_to: str = "") -> Listed:
        size, changed_ns = info.st_size, info.st_mtime_ns
        if not stat.S_ISREG(info.st_mode):
            return Listed(id, 0, refused=special_file_refusal(self._root.display_path(id), info.st_mode))
        fingerprint = "" if changed_ns > trusted_ns else f"{size}-{changed_ns}{link_to}"
        if self._max_bytes is not None and size > self._max_bytes:
            return Listed(
                id, size, fingerprint, refused=size_refusal(self._root.display_path(id), size, self._max_bytes)
            )
        return Listed(id, size, fingerprint)

    def _link(self, name: str, trusted_ns: int) -> Listed | None:
        """Return a link's entry: a file, a refusal that says where it leads, or None to ignore it."""
        path, globs = self._root.path_of(name), self._globs
        is_selected, may_contain = self._selects(name), globs.may_contain(name)
        if not is_selected and not may_contain:
            return None
        leads_to = os.readlink(path)
        try:
            info = os.stat(path)
        except OSError as e:
            why = _BROKEN_LINK.get(e.errno or 0)
            if why is None:
                raise
            return self._refused(name, leads_to, f"{why}. Fix or remove the link") if is_selected else None
        is_folder = stat.S_ISDIR(info.st_mode)
        if not (may_contain if is_folder else is_selected):
            return None
        target = os.path.realpath(path)
        inside = self._root.path_inside(target)
        if inside is None:
            there = "start another source there" if is_folder else "put the file inside"
            return self._refused(
                name,
                leads_to,
                f"leads out of the root to {printable_path(target)}. Start the source further up, {there}",
            )
        if not is_folder:
            return self._file(id_of(name), info, trusted_ns, f"-{id_of(inside)}")
        if path_below(os.path.realpath(os.path.dirname(path)), target) is not None:
            return self._refused(name, leads_to, "leads in a circle: that folder holds the link. Remove the link")
        if globs.may_contain(inside):
            return None  # listed there, under its real path
        return self._refused(
            name,
            leads_to,
            f"leads to a folder that the globs leave out, and is not followed. Include {printable_path(inside)}",
        )

    def _refused(self, name: str, leads_to: str, why: str) -> Listed:
        path = printable_path(self._root.path_of(name))
        return Listed(id_of(name), 0, refused=f"{path}: link to {printable_path(leads_to)}, which {why}, {LEAVE_OUT}.")


def _listing_error(path: str, error: OSError) -> str:
    return f"{printable_path(path)}: {error.strerror} on {socket.gethostname()}"


def _seen_here(path: str, what: str) -> str:
    return f"{printable_path(path)} is {what} on {socket.gethostname()}"


class LocalFile:
    """A file of this machine as the root of a source, see ``SingleFile``."""

    def __init__(self, path: str) -> None:
        self.where = path
        self._id = id_of(os.path.basename(path))

    def display_path(self, id: str) -> str:
        return printable_path(self.where)

    def listed(self) -> Listed:
        try:
            return Listed(self._id, os.stat(self.where).st_size)
        except OSError as e:
            raise TransientError(f"{printable_path(self.where)}: {e.strerror}") from e

    def open(self, listed: Listed) -> OpenFile:
        folder, name = os.path.split(os.path.realpath(self.where))
        return Root(folder).open(id_of(name))


# Compressed files, recognised by their first bytes and read as their content.


def open_unpacked(stream: io.RawIOBase | io.BytesIO, path: str, size: int) -> io.BufferedReader:
    """Open a file's content: unpacked if it is gzip, bzip2, xz or zstd, else as it is.

    It is read in chunks, so memory does not grow with the file. Closing the returned stream closes the given one.

    Args:
        path: for messages.
        size: bytes of the packed file, 0 if not known; see ``limits.PACKED_RATIO``.

    Raises:
        BadDocument: while reading: the packed bytes are damaged or break off, or unpack to far too many.
    """
    buffered: io.BufferedReader = io.BufferedReader(stream, compressed.CHUNK_BYTES)
    if kind := compressed.stream_compression(buffered):
        return io.BufferedReader(_CheckedUnpacking(buffered, f"{path}: {kind} data", size), compressed.CHUNK_BYTES)
    return buffered


def read_unpacked(data: bytes, path: str, limit_bytes: int) -> bytes:
    """Unpack the content of a file that is in memory already.

    Raises:
        BadDocument: as ``open_unpacked``, or it unpacks to more than the limit.
    """
    if not compressed.compression_of(data):
        return data
    with open_unpacked(io.BytesIO(data), path, len(data)) as stream:
        whole = stream.read(limit_bytes + 1)
    if len(whole) > limit_bytes:
        raise BadDocument(
            f"{path}: more than the limit of {limit_bytes} bytes when unpacked. Raise max_bytes, {LEAVE_OUT}."
        )
    return whole


class _CheckedUnpacking(io.RawIOBase):
    """Unpacked content of a file whose damage, or excessive size, is reported as an error of its document."""

    def __init__(self, packed: io.BufferedReader, what: str, size: int) -> None:
        self._content = compressed.UnpackedStream(packed, self._count)
        self._what = what
        self._limit_bytes = max(limits.PACKED_FREE_BYTES, size * limits.PACKED_RATIO)
        self._unpacked_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return self._content.readinto(buffer)
        except compressed.DAMAGE_ERRORS as e:  # errors of reading the file itself are Ferryman's already
            raise BadDocument(
                f"{self._what} that cannot be unpacked after byte {self._unpacked_bytes} ({e}). Make the file again, "
                f"{LEAVE_OUT}."
            ) from None

    def close(self) -> None:
        self._content.close()
        super().close()

    def _count(self, size: int) -> None:
        self._unpacked_bytes += size
        if self._unpacked_bytes > self._limit_bytes:
            raise BadDocument(
                f"{self._what} that unpack to more than {self._limit_bytes} bytes, {limits.PACKED_RATIO} times the "
                f"file: it looks like a decompression bomb. Unpack the file if it is not, {LEAVE_OUT}."
            )


# The folder that a source of files may not leave.

LEAVE_OUT: Final = "or leave it out with exclude=…"
"""End of every message about a file: the remedy that is always possible."""

# Opening must not block: if a named pipe has replaced a file since the listing, a blocking open would wait for a writer
# forever.
_OPEN_FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)


class Root:
    """A folder whose files are read only if they are really in it, wherever links lead.

    ``path`` is absolute; it may itself be a link, also one that is redirected to another folder meanwhile.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._start = path.rstrip(os.sep) + os.sep
        self._real_start: str | None = None

    def path_of(self, name: str) -> str:
        """Return the absolute path of a relative one; "" is the root itself."""
        return self._start + name if name else self.path

    def display_path(self, id: str) -> str:
        """Return the absolute path of a document, for messages."""
        return printable_path(self._start) + id

    def check(self) -> None:
        """
        Raises:
            UsageError: the root is not there, is not a folder, or may not be read.
        """
        root = printable_path(self.path)
        try:
            os.scandir(self.path).close()
        except FileNotFoundError:
            raise UsageError(f"{root}: there is no such folder. Make it, or start at one that exists.") from None
        except NotADirectoryError:
            folder, name = os.path.split(root)
            raise UsageError(
                f"{root}: is not a folder. Start Files at the folder it is in: Files({folder!r}, include={name!r})."
            ) from None
        except PermissionError:
            raise UsageError(f"{root}: {user_label()} may not read this folder. Allow it: chmod a+rx.") from None
        except OSError:
            pass  # perhaps transient: the listing meets it again, and is incomplete

    def path_inside(self, real_path: str) -> str | None:
        """Return a path, given without links, relative to the root ("" for the root itself); None if it is outside."""
        return path_below(real_path, os.path.realpath(self.path))

    def read(self, id: str, limit_bytes: int) -> tuple[bytes, float]:
        """Return the current bytes of a file, and when it was modified (seconds since 1970).

        Raises:
            BadDocument: this user may not read it; it is no longer a file, larger than the limit, or out of the root.
            TransientError: it was deleted, or the disk failed.
        """
        try:
            descriptor, info = self._open(id)
            try:
                return self._bytes(id, descriptor, info.st_size, limit_bytes), info.st_mtime
            finally:
                os.close(descriptor)
        except OSError as e:
            raise self._document_error(id, e) from e  # the cause tells whether the device failed

    def open(self, id: str) -> OpenFile:
        """Open a file to be read in chunks; the caller closes it.

        Raises:
            FileNotFoundError: it was deleted.
            BadDocument, TransientError: as ``read`` says; the stream too.
        """
        try:
            descriptor, info = self._open(id)
        except FileNotFoundError:
            raise
        except OSError as e:
            raise self._document_error(id, e) from e
        return OpenFile(descriptor, info.st_size, self.display_path(id))

    def _open(self, id: str) -> tuple[int, os.stat_result]:
        """Open a file that is really in the root; return its descriptor and status."""
        try:
            path = self._start + name_of(id)
            descriptor = os.open(path, _OPEN_FLAGS)
        except ValueError:
            raise BadDocument(f"{id!r} is not the id of a file: no file name can be made of it.") from None
        try:
            info = os.fstat(descriptor)
            if stat.S_ISDIR(info.st_mode):
                raise TransientError(
                    f"{self.display_path(id)}: became a folder after it was listed. The next scan looks inside."
                )
            if not stat.S_ISREG(info.st_mode):
                raise BadDocument(special_file_refusal(self.display_path(id), info.st_mode))
            self._refuse_outside(id, path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, info

    def _bytes(self, id: str, descriptor: int, size: int, limit: int) -> bytes:
        if size > limit:
            raise BadDocument(size_refusal(self.display_path(id), size, limit))
        data = os.read(descriptor, size + 1)
        if len(data) == size:
            return data  # complete: one byte more was requested than there is
        # The file grows or shrinks meanwhile, or is larger than one call reads.
        parts, total = [], 0
        while data:
            parts.append(data)
            total += len(data)
            if total > limit:
                raise BadDocument(size_refusal(self.display_path(id), max(total, os.fstat(descriptor).st_size), limit))
            data = os.read(descriptor, max(size - total, limits.MIB))
        return b"".join(parts)

    def _refuse_outside(self, id: str, path: str, descriptor: int) -> None:
        """Refuse a file outside the root. The path of the open file is checked, because links in the path by which it
        was opened may have changed."""
        if self._real_start is None:
            self._real_start = _real_start(self.path)
        where = _real_path(descriptor)
        if where is not None and self._real_start and where.startswith(self._real_start):
            return
        # The system does not tell the path, or the root is a link that was redirected meanwhile: check again, by path.
        self._real_start = None
        real = os.path.realpath(path)
        if self.path_inside(real) is None:
            raise BadDocument(
                f"{self.display_path(id)}: leads out of the root {printable_path(self.path)} to "
                f"{printable_path(real)}; it was not read. Put the file inside, start the source further up, "
                f"{LEAVE_OUT}."
            )
        if not os.path.samestat(os.stat(real), os.fstat(descriptor)):
            raise TransientError(f"{self.display_path(id)}: was replaced while it was opened.")

    def _document_error(self, id: str, error: OSError) -> BadDocument | TransientError:
        """Convert an error of the operating system to the document's error."""
        path = self.display_path(id)
        match error.errno:
            case errno.ENOENT | errno.ENOTDIR:
                return TransientError(f"{path}: deleted after it was listed. The next scan handles it.")
            case errno.EACCES | errno.EPERM:
                return BadDocument(f"{path}: {user_label()} may not read this file. Allow it (chmod a+r), {LEAVE_OUT}.")
            case errno.ELOOP:
                return BadDocument(f"{path}: a link that leads in a circle. Fix or remove it, {LEAVE_OUT}.")
            case errno.ENXIO:
                return BadDocument(special_file_refusal(path, stat.S_IFSOCK))
            case _:
                return TransientError(f"{path}: cannot be read now: {error.strerror}.")


class OpenFile(io.FileIO):
    """An open file that raises if the file becomes shorter meanwhile: it is being rewritten, so its end is not
    final."""

    def __init__(self, descriptor: int, size: int, path: str) -> None:
        super().__init__(descriptor)
        self._size = size
        self._path = path

    def readinto(self, buffer: Any) -> int:
        """
        Raises:
            TransientError: the disk failed, or the file became shorter.
        """
        try:
            count = super().readinto(buffer) or 0
            if not count and len(buffer) and os.fstat(self.fileno()).st_size < self._size:
                raise TransientError(f"{self._path}: became shorter while it was read")
        except OSError as e:
            raise TransientError(f"{self._path}: cannot be read now: {e.strerror}") from e
        return count


def size_refusal(path: str, size: int, limit: int) -> str:
    """Return why a file over the limit is refused. Sizes are in bytes."""
    return f"{path}: {size} bytes, more than the limit of {limit}. Allow it with max_bytes={size}, {LEAVE_OUT}."


def special_file_refusal(path: str, mode: int) -> str:
    """Return why something that is neither file nor folder is refused."""
    kind = "a named pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
    return f"{path}: {kind}, not a file; it is not read. Take it out of the folder, {LEAVE_OUT}."


def path_below(path: str, folder: str) -> str | None:
    """Return a path relative to a folder, "" for the folder itself; None if it is outside. Both are absolute and
    without links."""
    if path == folder:
        return ""
    start = folder.rstrip(os.sep) + os.sep
    return path[len(start) :] if path.startswith(start) else None


def user_label() -> str:
    """Return the current user for messages about permissions, by number: names differ between machines."""
    return f"this user (uid {os.geteuid()})" if hasattr(os, "geteuid") else "this user"


def _real_path(descriptor: int) -> str | None:
    """Return the path of an open file without links; None if the system does not tell it."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None


def _real_start(folder: str) -> str:
    """Return the real path of a folder, with a slash at its end; "" if the system does not tell it."""
    descriptor = os.open(folder, _OPEN_FLAGS)
    try:
        real = _real_path(descriptor)
        return "" if real is None else real.rstrip(os.sep) + os.sep
    finally:
        os.close(descriptor)


# Files below a root, in a folder of this machine or in a file system of fsspec.


class FolderPiece(NamedTuple):
    """A folder in a piece of a listing."""

    id: str
    below: str | None
    """None: the folders below it are listed with it. Else they are listed separately: ``names_hash`` of their names."""


Piece = list[FolderPiece]
"""Part of a listing, for one task."""


class NamedFiles(NamedTuple):
    """Part of a listing that names the files to list."""

    ids: tuple[str, ...]


_NAMED: Final = 4096
"""Files that a piece of a listing names at most."""

_NAMED_FOLDERS: Final = 3  # number of problems that an error lists; a broken mount may cause thousands


class FileContent(NamedTuple):
    data: bytes
    modified_s: float | None
    """Time of modification (seconds since 1970); None: not known."""


class SingleFile(Protocol):
    """Port for a root that is itself a file. The plan names it, so a link may lead anywhere."""

    def display_path(self, id: str) -> str:
        """Return the file's name for messages, see ``FileTree``."""

    def listed(self) -> Listed:
        """List the file; its id is its name.

        Raises:
            TransientError: it was deleted, or cannot be inspected.
        """

    def open(self, listed: Listed) -> io.RawIOBase:
        """Open the file, see ``FileTree``."""


class FileTree(Protocol):
    """Port for the files below a root, by ids relative to it. It is pickled to the workers, and opens nothing before a
    method needs it."""

    @property
    def where(self) -> str:
        """Return the root: a path or a URL, without secrets."""

    def not_installed(self) -> str:
        """Return the missing extra, see ``Source``."""

    def display_path(self, id: str) -> str:
        """Return a file's whole path or URL for a message: on one line, without secrets."""

    def check(self) -> None:
        """
        Raises:
            UsageError: the root is not there, is not a folder, or may not be read.
        """

    def is_file(self) -> bool:
        """Return whether the root itself is a file."""

    def single_file(self) -> SingleFile:
        """Return the root as a file; call only if ``is_file``."""

    def pieces(self) -> list[Piece]:
        """Split the listing into up to ``limits.SMALL_LISTING_PARTS`` pieces: folders are opened from the top until
        there are enough."""

    def watch(self) -> FolderEvents | None:
        """Begin to notice changes, see ``Source.watch``."""

    def end_watch(self) -> None:
        """End what ``watch`` has begun."""

    def listing(self, piece: Piece | NamedFiles) -> Iterator[Listed | Doubt | Note]:
        """Yield every file of these folders, in a stable order, and folders that other machines may see differently.

        Raises:
            TransientError: some folders could not be read; raised after all the others were listed.
        """

    def still_there(self, ids: Iterable[str]) -> str:
        """Return where this machine still sees a document, see ``Source``."""

    def contradiction(self, doubt: Doubt) -> str:
        """Return how this machine sees a doubtful place, see ``Source``."""

    def uri(self, id: str) -> str:
        """Return the URI by which a file can be opened: absolute, without secrets."""

    def url(self, id: str) -> str | None:
        """Return the URL by which a person opens a file; None if there is none."""

    def read(self, listed: Listed, limit_bytes: int) -> FileContent:
        """Read a file.

        Raises:
            BadDocument: this user may not read it; it is no longer a file, or larger than the limit.
            TransientError: it was deleted, or reading failed.
        """

    def open(self, listed: Listed) -> io.RawIOBase:
        """Open a file of any size, to be read in chunks; the caller closes it.

        Raises:
            FileNotFoundError: it was deleted.
            BadDocument, TransientError: as ``read``; the stream too.
        """


def split_tree(subfolders_of: Callable[[str], list[str]], id_of: Callable[[str], str]) -> list[Piece]:
    """Split a tree into pieces, see ``FileTree.pieces``; ``subfolders_of`` returns the names of the folders in a
    folder, and may raise."""
    listed: list[tuple[str, list[str]]] = []  # their folders are pieces of their own, so they bring only their files
    whole: list[str] = []
    waiting = deque([""])
    while waiting and len(listed) + len(whole) + len(waiting) < limits.SMALL_LISTING_PARTS:
        folder = waiting.popleft()
        try:
            subfolders = subfolders_of(folder)
            waiting.extend(subfolders)
            listed.append((folder, subfolders))
        except Exception:
            whole.append(folder)  # its listing raises the same error, without stopping the others
    folder_pieces = [FolderPiece(id_of(folder), names_hash(subfolders)) for folder, subfolders in listed]
    folder_pieces += [FolderPiece(id_of(folder), None) for folder in (*whole, *waiting)]
    parts = min(len(folder_pieces), limits.SMALL_LISTING_PARTS)
    cuts = [len(folder_pieces) * i // parts for i in range(parts + 1)]
    return [folder_pieces[start:end] for start, end in pairwise(cuts)]


def pieces_of(changes: TouchedFiles) -> list[Piece | NamedFiles]:
    """Split a listing of these files and folders into pieces."""
    top = [name for name in changes.folders if not _has_parent_in(name, changes.folders)]
    files = [name for name in sorted(changes.files) if not _has_parent_in(name, changes.folders)]
    pieces: list[Piece | NamedFiles] = [[FolderPiece(id_of(name), None)] for name in sorted(top)]
    pieces += [NamedFiles(tuple(map(id_of, files[at : at + _NAMED]))) for at in range(0, len(files), _NAMED)]
    return pieces


def _has_parent_in(name: str, folders: Collection[str]) -> bool:
    while name := name.rpartition("/")[0]:
        if name in folders:
            return True
    return False


def names_hash(names: Iterable[str]) -> str:
    """Return a hash of names, equal on machines that see the same names."""
    joined = "\0".join(sorted(names)).encode("utf-8", "surrogatepass")
    return blake2b(joined, digest_size=16).hexdigest()


@dataclass(slots=True)
class FolderFindings:
    """Results of listing a folder, besides its files."""

    below: list[str]
    """Folders in it, by their names relative to the root."""
    problems: list[str] = field(default_factory=list)
    """Descriptions of the errors so far, of all folders of the piece."""
    outages: list[Exception] = field(default_factory=list)
    """Errors of the device or the connection among the causes of ``problems``."""
    seen: str = ""
    """MISSING or EMPTY, if it is."""
    notes: list[str] = field(default_factory=list)
    """Messages for the people who run the plan."""

    def add_problem(self, problem: str, error: Exception) -> None:
        """Note that something could not be inspected."""
        self.problems.append(problem)
        if is_connection_error(error, reading=True):
            self.outages.append(error)


def walk_piece(
    piece: Piece,
    name_of: Callable[[str], str],
    list_folder: Callable[[str, FolderFindings], Iterator[Listed]],
    id_of: Callable[[str], str],
    remedy: str,
) -> Iterator[Listed | Doubt | Note]:
    """Walk a piece, see ``FileTree.listing``.

    Args:
        list_folder: yields the files of the folder of this name, and fills in the findings.
    """
    problems: list[str] = []
    outages: list[Exception] = []
    doubts: list[Doubt] = []
    for id, names in piece:
        waiting = [name_of(id)]
        while waiting:
            name = waiting.pop()
            findings = FolderFindings([], problems, outages)
            yield from list_folder(name, findings)
            yield from map(Note, findings.notes)
            if findings.seen:
                doubts.append(Doubt(id_of(name), findings.seen))
            if names is None:
                waiting.extend(reversed(findings.below))
            elif names_hash(findings.below) != names:
                doubts.extend(Doubt(id_of(each), PRESENT) for each in findings.below)
    yield from doubts[: limits.FOLDER_CHECKS]
    if problems:
        more = f"; and {len(problems) - _NAMED_FOLDERS} more" if len(problems) > _NAMED_FOLDERS else ""
        raise TransientError(f"{'; '.join(problems[:_NAMED_FOLDERS])}{more}. {remedy}") from next(iter(outages), None)
