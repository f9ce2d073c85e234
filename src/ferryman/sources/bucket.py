"""Tree of the files in a file system of fsspec: an object store, an archive, another machine."""

from __future__ import annotations

import io
import posixpath
import socket
import time
import zipfile
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NoReturn
from urllib.parse import quote

from ferryman import limits
from ferryman.errors import BadDocument, TransientError, UsageError
from ferryman.net.drives import Drive, changes_of, protocol_of, without_login
from ferryman.sources.base import EMPTY, MISSING, PRESENT, Doubt, Listed, Note, id_of_key, key_of, printable_key
from ferryman.sources.folder import (
    LEAVE_OUT,
    FileContent,
    FolderFindings,
    NamedFiles,
    Piece,
    size_refusal,
    split_tree,
    walk_piece,
)
from ferryman.sources.globs import Globs

_ETAGS: Final = ("ETag", "etag", "md5Hash", "content_md5", "content_hash", "checksum", "CRC")
_TIMES: Final = ("LastModified", "last_modified", "mtime", "modified", "updated")
"""Keys under which fsspec's file systems give the time of modification; above, an etag or checksum."""

_WEB_URLS: Final = {
    "webdav": "http://{}/{}",
    "webdavs": "https://{}/{}",
    "webhdfs": "http://{}/webhdfs/v1/{}?op=OPEN",
}
"""Scheme -> URL by which a browser opens a file of this host and path; of the others it is the file's own."""

_PERMANENT_ERRORS: Final = (PermissionError, zipfile.BadZipFile, NotImplementedError)
_STREAM_BYTES: Final = 4 * limits.MIB
"""Bytes requested at once when a file is read in chunks: large compared to a round trip."""


class Bucket:
    """Tree of the files in a file system of fsspec, see ``FileTree``.

    Folders are listed one by one, because fsspec's own walk skips those that it cannot list.

    Args:
        url: as fsspec takes it.
        options: for fsspec; never shown.
        max_bytes: larger files are listed as refused; None: no limit.
        only: name of a file, for ``SingleFile``.
    """

    def __init__(self, url: str, globs: Globs, max_bytes: int | None, options: dict[str, Any], only: str = "") -> None:
        self._url = url
        self._globs = globs
        self._max_bytes = max_bytes
        self._options = options
        self._only = only
        self._drive = Drive(url, options)
        self._changes = changes_of(url)
        self._distrusts_etags: bool | None = None
        """Whether the server's etags mean nothing; None: it was not found out yet."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_distrusts_etags": None}

    @property
    def where(self) -> str:
        return self._drive.where

    def display_path(self, id: str) -> str:
        outer, chained, inner = self.where.partition("::")
        whole = f"{outer.rstrip('/')}/{id}" if not outer.endswith("://") else outer + id
        return printable_key(whole) + chained + inner

    def check(self) -> None:
        try:
            is_folder = self._info("")["type"] == "directory"
        except UsageError:
            raise
        except FileNotFoundError:
            raise UsageError(f"{self.where}: there is nothing of this name. Correct the URL.") from None
        except PermissionError as e:
            raise UsageError(
                f"{self.where}: may not be read: {self._error_text(e)}. Correct the credentials."
            ) from None
        except Exception as e:
            if "Credentials" in type(e).__name__:
                raise UsageError(f"{self.where}: {self._error_text(e)}. Give credentials in the environment.") from None
            return  # perhaps transient: the listing meets it again, and is incomplete
        if not is_folder:
            folder, name = self._split()
            raise UsageError(
                f"{self.where}: is not a folder. Start at the folder it is in: {folder}, with include={name!r}."
            )

    def is_file(self) -> bool:
        try:
            return bool(self._info("")["type"] == "file")
        except UsageError:
            raise
        except Exception:
            return False  # check or the listing reports the error

    def single_file(self) -> Bucket:
        return Bucket(self._split()[0], self._globs, None, self._options, self._split()[1])

    def listed(self) -> Listed:
        """List the file, see ``SingleFile``."""
        try:
            info = self._info(id_of_key(self._only))
        except Exception as e:
            raise TransientError(f"{self.display_path(id_of_key(self._only))}: {self._error_text(e)}") from e
        return self._listed_file(self._only, info, 0.0)

    def _split(self) -> tuple[str, str]:
        outer, chained, inner = self._url.partition("::")
        folder, name = posixpath.split(outer)
        return (f"{folder}/" if folder.endswith(":/") else folder) + chained + inner, name

    # --- listing ------------------------------------------------------------------------------------------------------

    def pieces(self) -> list[Piece]:
        return split_tree(self._subfolders, id_of_key)

    def watch(self) -> None:
        return None  # a store reports no changes

    def end_watch(self) -> None:
        return

    def listing(self, piece: Piece | NamedFiles) -> Iterator[Listed | Doubt | Note]:
        assert not isinstance(piece, NamedFiles)  # nothing is watched
        return walk_piece(piece, key_of, self._list_folder, id_of_key, f"Fix that, {LEAVE_OUT}.")

    def still_there(self, ids: Iterable[str]) -> str:
        for id in islice(ids, limits.DELETION_CHECKS_IN_STORE):
            if not self._globs.selects(key_of(id)):
                continue
            try:
                if self._kind(id) == "file":
                    return f"{self.display_path(id)} is there for {socket.gethostname()}"
            except Exception as e:
                return f"{self.display_path(id)} cannot be looked at again: {self._error_text(e)}"
        return ""

    def contradiction(self, doubt: Doubt) -> str:
        place = self.display_path(doubt.place)
        try:
            there = bool(self._kind(doubt.place))
            if doubt.seen == PRESENT:
                return "" if there else f"{place} is not there for {socket.gethostname()}"
            if doubt.seen == MISSING:
                return f"{place} is there for {socket.gethostname()}" if there else ""
            full = there and bool(self._folder_entries(key_of(doubt.place)))
            return f"{place} is not empty for {socket.gethostname()}" if full else ""
        except Exception as e:
            return f"{place} cannot be looked at again: {self._error_text(e)}"

    def _subfolders(self, folder: str) -> list[str]:
        findings = FolderFindings([])
        for _ in self._list_folder(folder, findings):
            pass
        return findings.below

    def _list_folder(self, folder: str, findings: FolderFindings) -> Iterator[Listed]:
        """Yield the files right in a folder, sorted."""
        trusted = time.time() - self._changes.age_s
        entries = self._entries(folder, findings)
        self._judge_etags([info for _, info in entries], findings)
        for name, info in entries:
            if info["type"] == "directory":
                if name.endswith("/"):
                    findings.problems.append(
                        f"{self.display_path(id_of_key(name))}: a folder with an empty name cannot be listed"
                    )
                elif self._globs.may_contain(name):
                    findings.below.append(name)
            elif self._globs.selects(name):
                yield self._listed_file(name, info, trusted)

    def _entries(self, folder: str, findings: FolderFindings) -> list[tuple[str, dict[str, Any]]]:
        """Return the entries of a folder with their names relative to the root."""
        try:
            entries = self._folder_entries(folder)
            findings.seen = "" if entries else EMPTY
            return entries
        except FileNotFoundError:
            if not folder:
                findings.problems.append(f"{self.where}: there is nothing of this name")
            else:
                findings.seen = MISSING
            return []
        except Exception as e:
            findings.add_problem(f"{self.display_path(id_of_key(folder))}: {self._error_text(e)}", e)
            return []

    def _folder_entries(self, folder: str) -> list[tuple[str, dict[str, Any]]]:
        root = self._drive.path("")
        path = self._drive.path(folder)
        start = f"{root.rstrip('/')}/" if root else ""
        entries = []
        for info in self._drive.call(lambda fs: fs.ls(path, detail=True, refresh=True)):
            whole = str(info["name"])
            name = whole.removeprefix(start)
            if info["type"] == "directory":
                name = name.rstrip("/")
                if name in (folder, root):
                    if not whole.endswith("/"):
                        continue  # some file systems list a folder in itself
                    name = f"{folder}/"  # S3 does so for keys with an empty name in them, a//b
            elif name.endswith("/") and not info.get("size"):
                continue  # a placeholder that consoles create for an empty folder
            entries.append((name, info))
        return sorted(entries, key=itemgetter(0))

    def _listed_file(self, name: str, info: dict[str, Any], trusted: float) -> Listed:
        id, path, size = id_of_key(name), self.display_path(id_of_key(name)), int(info.get("size") or 0)
        if info["type"] != "file":
            return Listed(id, 0, refused=f"{path}: a {info['type']}, not a file; not read. Remove it, {LEAVE_OUT}.")
        if {"", ".", ".."}.intersection(name.split("/")):
            return Listed(
                id, 0, refused=f"{path}: a file below a folder cannot have such a name. Rename it, {LEAVE_OUT}."
            )
        fingerprint = self._fingerprint(info, size, trusted)
        modified_s = _modified_s(info)
        location = "" if modified_s is None else repr(modified_s)
        if self._max_bytes is not None and size > self._max_bytes:
            return Listed(id, size, fingerprint, refused=size_refusal(path, size, self._max_bytes))
        return Listed(id, size, fingerprint, location)

    # --- reading ------------------------------------------------------------------------------------------------------

    def uri(self, id: str) -> str:
        outer, chained, inner = self.where.partition("::")
        key = quote(key_of(id), errors="surrogateescape") if outer.startswith(("http://", "https://")) else key_of(id)
        return f"{outer}{'' if outer.endswith('/') else '/'}{printable_key(key)}{chained}{inner}"

    def url(self, id: str) -> str | None:
        if protocol_of(self._url) is None:
            return None
        scheme, _, rest = without_login(self._url).partition("://")
        host, _, folder = rest.partition("/")
        path = "/".join(filter(None, (folder.rstrip("/"), quote(key_of(id), errors="surrogateescape"))))
        return _WEB_URLS.get(scheme, scheme + "://{}/{}").format(host, path)

    def read(self, listed: Listed, limit_bytes: int) -> FileContent:
        try:
            path = self._path(listed.id)
            if listed.size:  # one request
                data: bytes = self._drive.call(lambda fs: fs.cat_file(path, start=0, end=limit_bytes + 1))
            else:  # an empty range is an error in some stores, and others do not tell sizes
                with self._drive.call(lambda fs: fs.open(path, "rb")) as file:
                    data = file.read(limit_bytes + 1)
        except Exception as e:
            self._refuse(listed.id, e)
        if len(data) > limit_bytes:
            raise BadDocument(size_refusal(self.display_path(listed.id), max(listed.size, len(data)), limit_bytes))
        return FileContent(data, float(listed.location) if listed.location else None)

    def open(self, listed: Listed) -> io.RawIOBase:
        try:
            path = self._path(listed.id)
            return _Stream(self._drive.call(lambda fs: fs.open(path, "rb", block_size=_STREAM_BYTES)), self, listed.id)
        except FileNotFoundError:
            raise
        except Exception as e:
            self._refuse(listed.id, e)

    def _refuse(self, id: str, error: Exception) -> NoReturn:
        """Raise the document's error for an error of fsspec; the cause tells whether the connection failed.

        Raises:
            BadDocument, TransientError, UsageError
        """
        path = self.display_path(id)
        if isinstance(error, BadDocument | TransientError | UsageError):
            raise error
        if isinstance(error, FileNotFoundError | KeyError):
            raise TransientError(f"{path}: deleted after it was listed. The next scan handles it.") from error
        if isinstance(error, _PERMANENT_ERRORS) or "encrypted" in str(error):
            raise BadDocument(
                f"{path}: may not or cannot be read: {self._error_text(error)}. Fix it, {LEAVE_OUT}."
            ) from error
        raise TransientError(f"{path}: cannot be read now: {self._error_text(error)}") from error

    def _error_text(self, error: Exception) -> str:
        return self._drive.error_text(error)

    # --- fsspec -------------------------------------------------------------------------------------------------------

    def not_installed(self) -> str:
        return self._drive.not_installed()

    def _path(self, id: str) -> str:
        return self._drive.path(key_of(id))

    def _info(self, id: str) -> dict[str, Any]:
        path = self._path(id)
        info: dict[str, Any] = self._drive.call(lambda fs: fs.info(path))
        return info

    def _kind(self, id: str) -> str:
        """Return the type of what is there, "" if nothing is.

        Raises:
            Exception: of fsspec: it cannot be said.
        """
        try:
            return str(self._info(id)["type"])
        except (FileNotFoundError, NotADirectoryError):
            return ""

    # --- changes ------------------------------------------------------------------------------------------------------

    def _fingerprint(self, info: dict[str, Any], size: int, trusted: float) -> str:
        """Return a file's fingerprint: an etag or checksum, else size and time; "" if the store gives nothing
        reliable."""
        if self._distrusts_etags:
            return ""
        seconds = _modified_s(info)
        is_old = seconds is not None and seconds < trusted
        for name in _ETAGS:
            if info.get(name):
                etag = str(info[name]).strip('"')
                return f"{size}-{etag}" if is_old or self._changes.etags else ""
        return f"{size}-{seconds!r}" if is_old else ""

    def _judge_etags(self, entries: list[dict[str, Any]], findings: FolderFindings) -> None:
        """Find out whether the server's etags say whether a file has changed. A weak one does not, nor does one that is
        another one in each answer: then nothing that this server says of changes is believed."""
        tagged = [info for info in entries if info.get("ETag")]
        if self._changes.etags or not tagged or self._distrusts_etags:
            return
        why = "weak" if any(str(info["ETag"]).startswith("W/") for info in tagged) else ""
        if not why and self._distrusts_etags is None:
            one = tagged[0]
            again = self._drive.call(lambda fs: fs.info(one["name"]))
            same_file = (again["size"], again.get("mtime")) == (one["size"], one.get("mtime"))
            if same_file and again["ETag"] != one["ETag"]:
                why = "different in each answer"
        self._distrusts_etags = bool(why)
        if why:
            findings.notes.append(
                f"{self.where}: the etags of this server are {why}, and do not say whether a file has changed: every "
                "scan reads every file"
            )


class _Stream(io.RawIOBase):
    """An open file of fsspec whose errors are converted to Ferryman's."""

    def __init__(self, file: Any, bucket: Bucket, id: str) -> None:
        self._file = file
        self._bucket = bucket
        self._id = id

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._file.read(len(buffer))
        except Exception as e:
            self._bucket._refuse(self._id, e)
        buffer[: len(data)] = data
        return len(data)

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _modified_s(info: dict[str, Any]) -> float | None:
    """Return when a file was modified (seconds since 1970); None if the store does not tell."""
    for name in _TIMES:
        changed = info.get(name)
        seconds = changed.timestamp() if isinstance(changed, datetime) else changed
        if isinstance(seconds, int | float):
            return seconds
    return None
