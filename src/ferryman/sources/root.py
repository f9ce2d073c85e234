"""The folder that a source of files may not leave."""

from __future__ import annotations

import errno
import io
import os
import stat
from typing import Any, Final

from ferryman import limits
from ferryman.errors import BadDocument, TransientError, UsageError
from ferryman.sources.paths import name_of, shown

LEAVE_OUT: Final = "or leave it out with exclude=…"
"""How every message about a file ends: the way out that is always there."""

# A named pipe that took a file's place after the listing must not hang the worker: without a writer, a blocking open
# of one waits forever.
_OPEN: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Root:
    """A folder, and the reading of files that are really in it, whatever links lead where.

    ``path`` is absolute; it may itself be a link, also one that is turned to another folder while we work.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._start = path.rstrip(os.sep) + os.sep
        self._real_start: str | None = None

    def path_of(self, name: str) -> str:
        """Absolute path of a relative one; "" is the root itself."""
        return self._start + name if name else self.path

    def shown(self, id: str) -> str:
        """Absolute path of a document, for messages."""
        return shown(self._start) + id

    def check(self) -> None:
        """
        Raises:
            UsageError: the root is not there, is not a folder, or may not be read.
        """
        root = shown(self.path)
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
            raise UsageError(f"{root}: {user()} may not read this folder. Allow it: chmod a+rx.") from None
        except OSError:
            pass  # a fault of the moment: the listing meets it again, and is incomplete

    def way_to(self, real_path: str) -> str | None:
        """The way from the root to a path without links ("" for the root itself); None if it is not in the root."""
        return relative(real_path, os.path.realpath(self.path))

    def read(self, id: str, limit_bytes: int) -> tuple[bytes, float]:
        """The bytes of a file as they are now, in one go, and when it was modified (seconds since 1970).

        Raises:
            BadDocument: this user may not read it; it is no longer a file, larger than the limit, or out of the root.
            TransientError: it was deleted, or the disk failed.
        """
        try:
            opened, about = self._open(id)
            try:
                return self._bytes(id, opened, about.st_size, limit_bytes), about.st_mtime
            finally:
                os.close(opened)
        except OSError as e:
            raise self._why(id, e) from e  # whether it was the device is asked of the cause

    def open(self, id: str) -> Stream:
        """A file's bytes to be read piece by piece; the caller closes it.

        Raises:
            FileNotFoundError: it was deleted.
            BadDocument, TransientError: as ``read`` says; the stream too.
        """
        try:
            opened, about = self._open(id)
        except FileNotFoundError:
            raise
        except OSError as e:
            raise self._why(id, e) from e
        return Stream(opened, about.st_size, self.shown(id))

    def _open(self, id: str) -> tuple[int, os.stat_result]:
        """An open file that is really in the root, and what the system says of it."""
        try:
            path = self._start + name_of(id)
            opened = os.open(path, _OPEN)
        except ValueError:
            raise BadDocument(f"{id!r} is not the id of a file: no file name can be made of it.") from None
        try:
            about = os.fstat(opened)
            if stat.S_ISDIR(about.st_mode):
                raise TransientError(
                    f"{self.shown(id)}: became a folder after it was listed. The next scan looks inside."
                )
            if not stat.S_ISREG(about.st_mode):
                raise BadDocument(special(self.shown(id), about.st_mode))
            self._stay_inside(id, path, opened)
        except BaseException:
            os.close(opened)
            raise
        return opened, about

    def _bytes(self, id: str, opened: int, size: int, limit: int) -> bytes:
        if size > limit:
            raise BadDocument(too_large(self.shown(id), size, limit))
        data = os.read(opened, size + 1)
        if len(data) == size:
            return data  # it ends where it should: one byte more was asked for
        # It grows or shrinks under our hands, or is larger than one call reads.
        parts, total = [], 0
        while data:
            parts.append(data)
            total += len(data)
            if total > limit:
                raise BadDocument(too_large(self.shown(id), max(total, os.fstat(opened).st_size), limit))
            data = os.read(opened, max(size - total, limits.MIB))
        return b"".join(parts)

    def _stay_inside(self, id: str, path: str, opened: int) -> None:
        """Refuse a file outside of the root, wherever a link on its way may lead by now. The open file itself is asked:
        between a look at its path and its opening the path may change."""
        if self._real_start is None:
            self._real_start = _real_start(self.path)
        where = _real_path(opened)
        if where is not None and self._real_start and where.startswith(self._real_start):
            return
        # This system does not tell, or the root is a link that was turned meanwhile: ask once more, by path.
        self._real_start = None
        real = os.path.realpath(path)
        if self.way_to(real) is None:
            raise BadDocument(
                f"{self.shown(id)}: leads out of the root {shown(self.path)} to {shown(real)}; it was not read. "
                f"Put the file inside, start the source further up, {LEAVE_OUT}."
            )
        if not os.path.samestat(os.stat(real), os.fstat(opened)):
            raise TransientError(f"{self.shown(id)}: was replaced while it was opened.")

    def _why(self, id: str, error: OSError) -> BadDocument | TransientError:
        """What an error of the system means for the document."""
        path = self.shown(id)
        match error.errno:
            case errno.ENOENT | errno.ENOTDIR:
                return TransientError(f"{path}: deleted after it was listed. The next scan handles it.")
            case errno.EACCES | errno.EPERM:
                return BadDocument(f"{path}: {user()} may not read this file. Allow it (chmod a+r), {LEAVE_OUT}.")
            case errno.ELOOP:
                return BadDocument(f"{path}: a link that leads in a circle. Fix or remove it, {LEAVE_OUT}.")
            case errno.ENXIO:
                return BadDocument(special(path, stat.S_IFSOCK))
            case _:
                return TransientError(f"{path}: cannot be read now: {error.strerror}.")


class Stream(io.FileIO):
    """An open file. One that becomes shorter meanwhile is being rewritten: its end is not taken for an end."""

    def __init__(self, opened: int, size: int, path: str) -> None:
        super().__init__(opened)
        self._size = size
        self._path = path

    def readinto(self, buffer: Any) -> int:
        """
        Raises:
            TransientError: the disk failed, or the file became shorter.
        """
        try:
            got = super().readinto(buffer) or 0
            if not got and len(buffer) and os.fstat(self.fileno()).st_size < self._size:
                raise TransientError(f"{self._path}: became shorter while it was read")
        except OSError as e:
            raise TransientError(f"{self._path}: cannot be read now: {e.strerror}") from e
        return got


def too_large(path: str, size: int, limit: int) -> str:
    """Why a file over the limit is refused. Sizes in bytes."""
    return f"{path}: {size} bytes, more than the limit of {limit}. Allow it with max_bytes={size}, {LEAVE_OUT}."


def special(path: str, mode: int) -> str:
    """Why something that is neither file nor folder is refused."""
    kind = "a named pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
    return f"{path}: {kind}, not a file; it is not read. Take it out of the folder, {LEAVE_OUT}."


def relative(path: str, folder: str) -> str | None:
    """The way from a folder down to a path, "" for itself; None if it is not in it. Both absolute and without links."""
    if path == folder:
        return ""
    start = folder.rstrip(os.sep) + os.sep
    return path[len(start) :] if path.startswith(start) else None


def user() -> str:
    """Who we are, for messages about rights: names of users differ between machines."""
    return f"this user (uid {os.geteuid()})" if hasattr(os, "geteuid") else "this user"


def _real_path(opened: int) -> str | None:
    """Where an open file is, links resolved; None where the system does not tell."""
    try:
        return os.readlink(f"/proc/self/fd/{opened}")
    except OSError:
        return None


def _real_start(folder: str) -> str:
    """The real path of a folder, with a slash at its end; "" where the system does not tell."""
    opened = os.open(folder, _OPEN)
    try:
        real = _real_path(opened)
        return "" if real is None else real.rstrip(os.sep) + os.sep
    finally:
        os.close(opened)
