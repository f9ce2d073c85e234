"""Tree of the files in a file system of fsspec: an object store, an archive, another machine."""

from __future__ import annotations

import io
import os
import posixpath
import re
import socket
import time
import zipfile
from collections.abc import Iterable, Iterator
from datetime import datetime
from importlib.util import find_spec
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NoReturn
from urllib.parse import quote

from ferryman import limits
from ferryman.errors import BadDocument, TransientError, UsageError, plain_text
from ferryman.sources.base import EMPTY, MISSING, PRESENT, Doubt, Listed, id_of_key, key_of, printable_key
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

_SECRET: Final = re.compile(r"secret|token|pass|key|cred|sas|sign|auth|conn", re.IGNORECASE)
_USER: Final = re.compile(r"(?<=://)[^/@]*@")
_QUERY: Final = re.compile(r"\?[^:]*")  # a signed URL's signature
_SHORTEST_SECRET: Final = 4  # characters; removing shorter values would garble the text

_ETAGS: Final = ("ETag", "etag", "md5Hash", "content_md5", "content_hash", "checksum", "CRC")
_TIMES: Final = ("LastModified", "last_modified", "mtime", "modified", "updated")
"""Keys under which fsspec's file systems give the time of modification; above, an etag or checksum."""

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
        self._file_system: tuple[int, Any, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file_system": None}  # connections cannot be pickled

    @property
    def where(self) -> str:
        return _QUERY.sub("?…", _USER.sub("…@", self._url))

    def display_path(self, id: str) -> str:
        outer, chained, inner = self.where.partition("::")
        whole = f"{outer.rstrip('/')}/{id}" if not outer.endswith("://") else outer + id
        return printable_key(whole) + chained + inner

    def check(self) -> None:
        fs, root = self._fs()
        try:
            is_folder = fs.info(root)["type"] == "directory"
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
            raise UsageError(f"{self.where}: is not a folder. Start at the one it is in, {folder}, include={name!r}.")

    def is_file(self) -> bool:
        fs, root = self._fs()
        try:
            return bool(fs.info(root)["type"] == "file")
        except Exception:
            return False  # check or the listing reports the error

    def single_file(self) -> Bucket:
        return Bucket(self._split()[0], self._globs, None, self._options, self._split()[1])

    def listed(self) -> Listed:
        """List the file, see ``SingleFile``."""
        try:
            fs, path = self._fs_path(id_of_key(self._only))
            info = fs.info(path)
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

    def listing(self, piece: Piece | NamedFiles) -> Iterator[Listed | Doubt]:
        assert not isinstance(piece, NamedFiles)  # nothing is watched
        return walk_piece(piece, key_of, self._list_folder, id_of_key, f"Fix that, {LEAVE_OUT}.")

    def still_there(self, ids: Iterable[str]) -> str:
        for id in islice(ids, limits.DELETION_CHECKS_IN_STORE):
            if not self._globs.selects(key_of(id)):
                continue
            try:
                fs, path = self._fs_path(id)
                if fs.isfile(path):
                    return f"{self.display_path(id)} is there for {socket.gethostname()}"
            except Exception as e:
                return f"{self.display_path(id)} cannot be looked at again: {self._error_text(e)}"
        return ""

    def contradiction(self, doubt: Doubt) -> str:
        place = self.display_path(doubt.place)
        try:
            fs, path = self._fs_path(doubt.place)
            there = bool(fs.exists(path))
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
        trusted = time.time() - limits.FINGERPRINT_TRUST_S
        for name, info in self._entries(folder, findings):
            if info["type"] == "directory":
                if name.endswith("/"):
                    findings.problems.append(
                        f"{self.display_path(id_of_key(name))}: names without a first part cannot be listed"
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
        fs, root = self._fs()
        path = f"{root}/{folder}" if root and folder else root + folder
        start = f"{root}/" if root else ""
        entries = []
        for info in fs.ls(path, detail=True, refresh=True):
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
        fingerprint = _fingerprint(info, size, trusted)
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

    def read(self, listed: Listed, limit_bytes: int) -> FileContent:
        try:
            fs, path = self._fs_path(listed.id)
            if listed.size:
                data: bytes = fs.cat_file(path, start=0, end=limit_bytes + 1)  # one request
            else:  # an empty range is an error in some stores, and others do not tell sizes
                with fs.open(path, "rb") as file:
                    data = file.read(limit_bytes + 1)
        except Exception as e:
            self._refuse(listed.id, e)
        if len(data) > limit_bytes:
            raise BadDocument(size_refusal(self.display_path(listed.id), max(listed.size, len(data)), limit_bytes))
        return FileContent(data, float(listed.location) if listed.location else None)

    def open(self, listed: Listed) -> io.RawIOBase:
        try:
            fs, path = self._fs_path(listed.id)
            return _Stream(fs.open(path, "rb", block_size=_STREAM_BYTES), self, listed.id)
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
        """Return an error's text on one line, without secrets."""
        text = " ".join(plain_text(error).split()) or type(error).__name__
        for secret in [*_secrets(self._options), *_USER.findall(self._url)]:
            text = text.replace(secret, "…")
        return _QUERY.sub("?…", text) if "://" in text else text

    # --- fsspec -------------------------------------------------------------------------------------------------------

    def _fs_path(self, id: str) -> tuple[Any, str]:
        fs, root = self._fs()
        return fs, f"{root}/{key_of(id)}" if root else key_of(id)

    def not_installed(self) -> str:
        if find_spec("fsspec") is None:
            return f"{self.where} needs fsspec, not installed here: pip install 'ferryman[fsspec]'"
        from fsspec.registry import known_implementations

        for part in self._url.split("::"):
            scheme = part.partition("://")[0]
            name = known_implementations.get(scheme.lower(), {}).get("class", "fsspec").partition(".")[0]
            if find_spec(name) is None:
                what = "'ferryman[s3]'" if name == "s3fs" else name
                return f"{self.where} needs {name}, not installed here: pip install {what}"
        return ""

    def _fs(self) -> tuple[Any, str]:
        """Return the file system, opened once in each process, and the root's path in it, without a slash at its end.

        Raises:
            UsageError: fsspec, or a package it needs for this URL, is not installed; the URL or an option is unknown.
        """
        if self._file_system is None or self._file_system[0] != os.getpid():
            try:
                import fsspec
            except ImportError:
                raise UsageError(f"{self.where}: URLs need fsspec: pip install 'ferryman[fsspec]'.") from None
            try:
                # Connections are shared in a process, because they take long to open; but listings must not be cached,
                # nor an archive, which may have been replaced since it was opened.
                cache_options = {"use_listings_cache": False, "skip_instance_cache": "::" in self._url}
                fs, root = fsspec.url_to_fs(self._url, **cache_options, **self._options)
            except ImportError as e:
                how = ": pip install 'ferryman[s3]'" if "s3fs" in str(e) else ""
                raise UsageError(f"{self.where}: {self._error_text(e)}{how}.") from None
            except (ValueError, TypeError, FileNotFoundError, zipfile.BadZipFile) as e:
                raise UsageError(f"{self.where}: cannot be opened: {self._error_text(e)}.") from None
            self._file_system = os.getpid(), fs, root.rstrip("/")
        return self._file_system[1:]


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

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _fingerprint(info: dict[str, Any], size: int, trusted: float) -> str:
    """Return a file's fingerprint: an etag or checksum, else size and time; "" if the store gives nothing reliable."""
    for name in _ETAGS:
        if info.get(name):
            etag = str(info[name]).strip('"')
            return f"{size}-{etag}"
    seconds = _modified_s(info)
    return f"{size}-{seconds!r}" if seconds is not None and seconds < trusted else ""


def _modified_s(info: dict[str, Any]) -> float | None:
    """Return when a file was modified (seconds since 1970); None if the store does not tell."""
    for name in _TIMES:
        changed = info.get(name)
        seconds = changed.timestamp() if isinstance(changed, datetime) else changed
        if isinstance(seconds, int | float):
            return seconds
    return None


def _secrets(options: dict[str, Any]) -> Iterator[str]:
    """Yield the values, at any depth, of options whose names suggest secrets."""
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _secrets(value)
        elif isinstance(value, str) and len(value) >= _SHORTEST_SECRET and _SECRET.search(str(name)):
            yield value
