"""Folders that destinations write files to: of this machine, in an object store, on a drive (ftp, sftp, smb, …).

A file appears whole, under its name, or not at all. On a disk and on a drive it is written under another name first, in
the folder ``new`` of Ferryman's own folder, and renamed; in an object store a single request does that. What a killed
writer has left there is removed by ``make`` or ``sweep``.

Where a drive cannot rename over a file (some FTP servers, SFTP servers without ``posix-rename@openssh.com``, HDFS), the
older file is removed before: its name is missing for a moment, and after a kill just then until the file is sent again.
``remark`` says it.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Protocol, cast

from ferryman import crash
from ferryman.errors import EngineError, FerrymanError, Misconfigured, TransientError, Unavailable, UsageError
from ferryman.net import drives, relative_paths, urls
from ferryman.net.drives import Drive
from ferryman.net.faults import causes, is_connection_error
from ferryman.storage import disk, files, objects
from ferryman.storage.objects import ObjectPath

OWN: Final = ".ferryman"
"""Ferryman's own folder in the folder."""

_NEW: Final = f"{OWN}/new"
"""Files that are being written to a disk or a drive."""

STALE_S: Final = 3600.0
"""Age from which a temporary file is left by a killed writer: no ``write`` takes nearly as long."""

_STORE_RETRY_S: Final = 15.0
"""Seconds for which a request to an object store is repeated: less than a call of ``write`` may take, which is repeated
by the engine."""

_PARALLEL: Final = 8
"""Requests to an object store at a time."""

Kind = Literal["", "file", "folder", "other"]
"""Kind of what has a name: "" if nothing has."""


class TargetFolder(Protocol):
    """Port for a folder to write to. Names are relative to it, with ``/`` between folders. It is pickled to workers.

    Attributes:
        where: the path or URL, without secrets.
        target: the same for ``Destination.target``.
        local: the path, if it is of this machine.
        nests: whether a name cannot be both a file and a folder.
    """

    where: str
    target: str
    local: str
    nests: bool

    def not_installed(self) -> str:
        """Return which package is missing, see ``Destination``."""

    def translated(self) -> AbstractContextManager[None]:
        """Raise errors inside as ``Unavailable`` or ``Misconfigured``, about the whole folder, or else as
        ``TransientError``."""

    def make(self, sweep: bool) -> None:
        """Make the folder, and its own folder in it. Remove temporary files: all, if ``sweep``, since no writer is at
        work; else those of killed writers, by their age."""

    def read(self, name: str) -> bytes | None:
        """Return a file's content; None if there is none."""

    def open(self, name: str) -> BinaryIO:
        """Open a file to read it in parts.

        Raises:
            FileNotFoundError, IsADirectoryError, NotADirectoryError: there is no such file.
        """

    def kinds(self, names: Iterable[str]) -> dict[str, Kind]:
        """Return what is under each of these names."""

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the files right in a folder, sorted; empty if there is none."""

    def put(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write files under their names, whole and durably, in place of what has the name."""

    def confirm(self, names: Iterable[str]) -> None:
        """Make files durable that a killed writer may have written."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove files durably, and the folders that are empty then, where the protocol can; missing ones are
        skipped."""

    def remark(self) -> str:
        """Return what readers of the folder have to know, as far as ``make`` has found it out; "" for nothing."""

    def close(self) -> None:
        """End connections."""


class LocalFolder:
    """Folder of this machine, see ``TargetFolder``."""

    nests = True

    def __init__(self, path: str, own: bool) -> None:
        self.where = self.local = path
        self.target = Path(path).as_uri()
        self._path = Path(path)
        self._new = self._path / _NEW if own else None

    def not_installed(self) -> str:
        return ""

    def translated(self) -> AbstractContextManager[None]:
        return files.classified_errors(self._path)

    def make(self, sweep: bool) -> None:
        files.make_folder(self._new or self._path)
        if self._new is None:
            files.fsync_folder(self._path)
        before = float("inf") if sweep else time.time() - STALE_S
        for left in self._path.glob(f"{disk.TEMPORARY}*") if self._new is None else self._new.iterdir():
            with suppress(FileNotFoundError):
                if left.stat().st_mtime < before:
                    left.unlink()

    def read(self, name: str) -> bytes | None:
        try:
            return self._at(name).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def open(self, name: str) -> BinaryIO:
        return open(self._at(name), "rb")

    def kinds(self, names: Iterable[str]) -> dict[str, Kind]:
        return {name: self._kind(self._at(name)) for name in names}

    def _kind(self, path: Path) -> Kind:
        if path.is_dir():
            return "folder"
        return "file" if path.is_file() else "other" if os.path.lexists(path) else ""

    def names(self, folder: str = "") -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._at(folder)) as entries:
            return sorted(entry.name for entry in entries if entry.is_file())
        return []

    def put(self, files_: Sequence[tuple[str, bytes]]) -> None:
        if self._new is None:
            for name, data in files_:
                files.replace(self._at(name), data)
            return
        placed = []
        for name, data in files_:
            temporary = self._new / uuid.uuid4().hex
            disk.write_synced(temporary, data)
            placed.append((temporary, self._at(name)))
        crash.point("files.uploaded")
        for temporary, path in placed:
            files.make_folder(path.parent)
            os.replace(temporary, path)
        self._sync(path.parent for _, path in placed)

    def confirm(self, names: Iterable[str]) -> None:
        self._sync(self._at(name).parent for name in names)

    def remove(self, names: Iterable[str]) -> None:
        touched = []
        for name in names:
            path = self._at(name)
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
            folder = path.parent
            with suppress(OSError):  # it is not empty
                while folder != self._path:
                    with suppress(FileNotFoundError):  # removed before, by a writer that was killed
                        folder.rmdir()
                    folder = folder.parent
            touched.append(folder)
        self._sync(touched)

    def remark(self) -> str:
        return ""

    def close(self) -> None:
        return

    def _at(self, name: str) -> Path:
        return Path(os.path.join(self.where, *name.split("/"))) if name else self._path

    def _sync(self, folders: Iterable[Path]) -> None:
        for folder in set(folders):
            with suppress(FileNotFoundError):  # the folder was removed with its last file
                files.fsync_folder(folder)


class ObjectFolder:
    """Prefix in a bucket of an object store, see ``TargetFolder``. It has no folders: a name may be below
    another one."""

    nests = False
    local = ""

    def __init__(self, url: str) -> None:
        self._path = ObjectPath.parse(url)
        self.where = self.target = str(self._path).rstrip("/")
        self._store: tuple[int, objects.ObjectStore] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None}

    def not_installed(self) -> str:
        return objects.not_installed(self.where)

    @contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except EngineError as e:
            denied = {"PermissionDeniedError", "UnauthenticatedError"} & {type(each).__name__ for each in causes(e)}
            if "404 Not Found" in str(e):  # a missing object is no error
                raise Misconfigured(f"{self._path.bucket}: there is no such bucket. Make it, then run again.") from e
            raise (Misconfigured if denied else Unavailable)(str(e)) from e
        except UsageError as e:
            raise Misconfigured(str(e)) from e

    def make(self, sweep: bool) -> None:
        """Look whether the bucket is there; a prefix needs not be made, and no temporary file is ever written."""
        self._open().list_folder(self._key(_NEW))

    def read(self, name: str) -> bytes | None:
        return self._open().get(self._key(name))

    def open(self, name: str) -> BinaryIO:
        if (data := self.read(name)) is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", name)
        return io.BytesIO(data)

    def kinds(self, names: Iterable[str]) -> dict[str, Kind]:
        wanted = list(names)
        heads = self._map(lambda name: self._open().head(self._key(name)), wanted)
        return {name: "file" if head else "" for name, head in zip(wanted, heads, strict=True)}

    def names(self, folder: str = "") -> list[str]:
        found = self._open().list_folder(self._key(folder))[1]
        return sorted(each.key.rpartition("/")[2] for each in found)

    def put(self, files_: Sequence[tuple[str, bytes]]) -> None:
        self._map(lambda file: self._open().put(self._key(file[0]), file[1]), files_)

    def confirm(self, names: Iterable[str]) -> None:
        return

    def remove(self, names: Iterable[str]) -> None:
        self._open().delete([self._key(name) for name in names])

    def remark(self) -> str:
        return ""

    def close(self) -> None:
        return

    def _key(self, name: str) -> str:
        return f"{self._path.key}/{name}".strip("/")

    def _open(self) -> objects.ObjectStore:
        if self._store is None or self._store[0] != os.getpid():
            self._store = os.getpid(), objects.RemoteStore(self._path.bucket, _STORE_RETRY_S)
        return self._store[1]

    def _map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        if len(items) < 2:
            return [work(item) for item in items]
        self._open()
        with ThreadPoolExecutor(min(_PARALLEL, len(items))) as pool:
            return list(pool.map(work, items))


class DriveFolder:
    """Folder on a drive, see ``TargetFolder``."""

    nests = True
    local = ""

    def __init__(self, url: str, options: Mapping[str, Any] | None) -> None:
        self._drive = Drive(url.rstrip("/"), options)
        self.where = self._drive.where
        self.target = drives.without_login(url.rstrip("/"))
        self._made: set[str] = set()
        self._listed: dict[str, dict[str, Kind]] = {}
        self._replaces: bool | None = None
        """Whether a rename over a file leaves its name in place; None: it was not found out yet."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": set(), "_listed": {}, "_replaces": None}

    def not_installed(self) -> str:
        return self._drive.not_installed()

    @contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except FerrymanError as e:
            if isinstance(e, UsageError):
                raise Misconfigured(str(e)) from e
            raise
        except Exception as e:
            self._forget()
            raise self._explain(e) from e

    def _explain(self, error: Exception) -> FerrymanError:
        why = f"{self.where}: {self._drive.error_text(error)}"
        if isinstance(error, PermissionError):
            return Misconfigured(f"{why}. Correct login and rights there, then run again.")
        code = error.errno if isinstance(error, OSError) else None
        if is_connection_error(error, reading=True) or code in (errno.ENOSPC, errno.EDQUOT, errno.ENOENT):
            return Unavailable(f"{why}. It is tried again.")
        return TransientError(f"{why}. It is tried again.")

    def make(self, sweep: bool) -> None:
        root = self._drive.path("")
        names = root.split("/")
        for end in range(2, len(names) + 1):
            self._make_one("/".join(names[:end]), known_parent=end > 2)
        for own in (OWN, _NEW):
            self._make_one(self._drive.path(own), known_parent=True)
        left = self._entries(_NEW)
        if left and not sweep:
            left = self._stale(left)
        for entry in left:
            with suppress(FileNotFoundError):
                self._call("remove", entry["name"])
        self._find_out()

    def _make_one(self, path: str, known_parent: bool) -> None:
        """Make a folder. One near the root may exist and be beyond our rights."""
        try:
            if self._drive.call(lambda fs: fs.info(path))["type"] == "directory":
                return
        except FileNotFoundError:
            pass
        except PermissionError:
            if known_parent:
                raise
            return
        self._call("make_folder", path)

    def _stale(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the files that are old by the server's clock, which a new file tells."""
        name = f"{_NEW}/{uuid.uuid4().hex}"
        path = self._drive.path(name)
        self._call("upload", path, b"")
        now = next((_time_of(entry) for entry in self._entries(_NEW) if entry["name"] == path), None)
        self._call("remove", path)
        if now is None:
            return []
        return [entry for entry in entries if (then := _time_of(entry)) is not None and then < now - STALE_S]

    def _find_out(self) -> None:
        """Find out whether a file can be replaced in one step, unless it is known."""
        if self._replaces is not None:
            return
        one, two = (self._drive.path(f"{_NEW}/{uuid.uuid4().hex}") for _ in range(2))
        for path in (one, two):
            self._call("upload", path, b"")
        self._replaces = bool(self._drive.call(lambda fs: fs.replaces_at_once(one, two)))
        for path in (one, two):
            with suppress(FileNotFoundError):
                self._call("remove", path)

    def remark(self) -> str:
        if self._replaces is not False:
            return ""
        return (
            f"{self.where}: this server cannot rename over a file: while a file is replaced, its name is missing for a "
            "moment"
        )

    def read(self, name: str) -> bytes | None:
        path = self._drive.path(name)
        try:
            return cast(bytes, self._drive.call(lambda fs: fs.cat_file(path)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self, name: str) -> BinaryIO:
        path = self._drive.path(name)
        if self._drive.call(lambda fs: fs.info(path))["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, "a folder", path)
        return io.BufferedReader(self._drive.call(lambda fs: fs.open(path, "rb")))

    def kinds(self, names: Iterable[str]) -> dict[str, Kind]:
        """Folders are listed, each once until ``close``: a request for each name takes longer, and FTP has none."""
        return {name: self._kinds_in(posixpath.dirname(name)).get(posixpath.basename(name), "") for name in names}

    def _kinds_in(self, folder: str) -> dict[str, Kind]:
        if folder not in self._listed:
            found = {entry["name"].rpartition("/")[2]: entry["type"] for entry in self._entries(folder)}
            self._listed[folder] = {name: _KINDS.get(kind, "other") for name, kind in found.items()}
        return self._listed[folder]

    def _note(self, name: str, kind: Kind) -> None:
        folder, _, last = name.rpartition("/")
        if folder in self._listed:
            self._listed[folder][last] = kind

    def _forget(self) -> None:
        """Forget what is known of folders, which somebody may have removed."""
        self._made.clear()
        self._listed.clear()

    def names(self, folder: str = "") -> list[str]:
        return sorted(entry["name"].rpartition("/")[2] for entry in self._entries(folder) if entry["type"] == "file")

    def put(self, files_: Sequence[tuple[str, bytes]]) -> None:
        for folder in sorted({posixpath.dirname(name) for name, _ in files_}):
            self._make_parents(folder)

        def put_one(file: tuple[str, bytes]) -> None:
            path, temporary = self._drive.path(file[0]), self._drive.path(f"{_NEW}/{uuid.uuid4().hex}")
            self._call("upload", temporary, file[1])
            crash.point("files.uploaded")
            self._call("replace", temporary, path)
            self._note(file[0], "file")

        parallel = min(self._drive.open()[0].parallel, len(files_))
        if parallel < 2:
            for file in files_:
                put_one(file)
            return
        with ThreadPoolExecutor(parallel) as pool:
            list(pool.map(put_one, files_))

    def _make_parents(self, folder: str) -> None:
        if folder and folder not in self._made:
            self._make_parents(posixpath.dirname(folder))
            self._call("make_folder", self._drive.path(folder))
            self._made.add(folder)
            self._note(folder, "folder")

    def confirm(self, names: Iterable[str]) -> None:
        return

    def remove(self, names: Iterable[str]) -> None:
        emptied = set()
        for name in names:
            path = self._drive.path(name)
            with suppress(FileNotFoundError, NotADirectoryError):
                self._call("remove", path)
            self._note(name, "")
            emptied.add(posixpath.dirname(name))
        for folder in sorted(emptied, reverse=True):
            with suppress(OSError):  # it is not empty
                while folder:
                    with suppress(FileNotFoundError):
                        self._call("remove_folder", self._drive.path(folder))
                    self._made.discard(folder)
                    self._note(folder, "")
                    folder = posixpath.dirname(folder)

    def close(self) -> None:
        self._forget()
        self._drive.close()

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._drive.call(lambda fs: getattr(fs, method)(*arguments))

    def _entries(self, folder: str) -> list[dict[str, Any]]:
        path = self._drive.path(folder)
        try:
            return list(self._drive.call(lambda fs: fs.ls(path, detail=True)))
        except (FileNotFoundError, NotADirectoryError):
            return []


_KINDS: Final[dict[str, Kind]] = {"file": "file", "directory": "folder"}


def _time_of(entry: dict[str, Any]) -> float | None:
    changed: Any = entry.get("mtime")
    return changed.timestamp() if isinstance(changed, datetime) else changed


def open_folder(
    where: str | os.PathLike[str], options: Mapping[str, Any] | None = None, *, own: bool = True
) -> TargetFolder:
    """Return the folder at a path, relative to the plan file's folder, or at a URL. Opens nothing.

    Args:
        options: for fsspec beside the URL of a drive; never shown.
        own: whether temporary files are in Ferryman's own folder on a disk too; False: beside the files.

    Raises:
        ValueError: the URL is of a kind that cannot be written to, or says no host; options are for another kind.
    """
    text = os.fspath(where)
    if not isinstance(text, str) or not text:
        raise ValueError("give the folder as text")
    if objects.is_url(text) and not text.startswith("file://"):
        urls.check_login(text)
        if (protocol := drives.protocol_of(text)) and protocol.writes:
            drives.check_url(text)
            return DriveFolder(text, options)
        if options and not protocol:
            raise ValueError("storage_options are for drives; set those of an object store in the environment (AWS_…)")
        try:
            return ObjectFolder(text)
        except UsageError:
            writable = [scheme for scheme, protocol in drives.PROTOCOLS.items() if protocol.writes]
            known = ", ".join(f"{scheme}://" for scheme in ("s3", "gs", "az", "abfss", *writable))
            raise ValueError(
                f"{text.partition('://')[0]}:// cannot be written to. Give a folder of this machine, or one of {known}"
            ) from None
    if options:
        raise ValueError("storage_options are for URLs, and it is a folder of this machine")
    return LocalFolder(relative_paths.absolute_folder(text), own)
