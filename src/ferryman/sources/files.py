"""Files in a folder, and in the folders below it."""

from __future__ import annotations

import datetime as dt
import mimetypes
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote, unquote_to_bytes

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import UsageError
from ferryman.net import relative_paths, urls
from ferryman.net.drives import protocol_of
from ferryman.sources.base import Detect, Doubt, Listed, Note, Source, TouchedFiles
from ferryman.sources.folder import FileTree, Folder, NamedFiles, Piece, pieces_of, read_unpacked
from ferryman.sources.globs import Globs

if TYPE_CHECKING:
    from ferryman.sources.inotify import FolderEvents

# Selection of files, and the base class of sources of files.

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:://|::.*://)")  # fsspec chains them: zip::s3://bucket/a.zip


@dataclass(frozen=True, slots=True, repr=False)  # its URL and its options may have secrets in them
class FileSelection:
    """Selection of a source's files: its arguments of these names."""

    root: str | os.PathLike[str]
    include: str | Sequence[str]
    exclude: str | Sequence[str] | None
    storage_options: Mapping[str, Any] | None

    def tree(self, source: str, max_bytes: int | None) -> FileTree:
        """Return the tree of files: in a folder of this machine, or at a URL.

        Args:
            source: name of the source's class, for messages.
            max_bytes: larger files are listed as refused; None: no limit.

        Raises:
            UsageError: an argument is invalid.
        """
        path = os.fspath(self.root)
        if not isinstance(path, str) or not path:
            raise UsageError(f"{source}({self.root!r}): give the folder as text; '.' is the current one.")
        globs = Globs(self.include, self.exclude)
        if path.startswith("file://"):
            path = path.removeprefix("file://")
        if _URL.match(path):
            try:
                for url in path.split("::"):
                    urls.check_login(url)
            except ValueError as e:
                raise UsageError(f"{source}: {e}.") from None
            from ferryman.sources.bucket import Bucket  # only for URLs: fsspec takes long to load

            return Bucket(path, globs, max_bytes, dict(self.storage_options or {}))
        if self.storage_options:
            raise UsageError(f"{source}(storage_options=…): they are for URLs; {path!r} is a folder of this machine.")
        return Folder(relative_paths.absolute(path), globs, max_bytes)


class FileSource(Source):
    """Base of the sources whose documents are files, or are in files.

    Args:
        max_bytes: largest document.
        max_file_bytes: largest file that is not refused; None: no limit.
        max_deleted: see ``Source``; None: 0.1 for a drive (SFTP, SMB, FTP, WebDAV), where a login may show less from
            one day to the next, else 0.5.
    """

    encodes_ids = True

    def __init__(
        self,
        files: FileSelection,
        max_bytes: int,
        max_file_bytes: int | None,
        *,
        prefix: str,
        detect: Detect,
        max_deleted: float | None,
    ) -> None:
        if max_deleted is None:
            max_deleted = limits.MAX_DELETED_BEHIND_LOGIN if protocol_of(str(files.root)) else limits.MAX_DELETED
        super().__init__(prefix=prefix, detect=detect, max_deleted=max_deleted)
        name = type(self).__name__
        if not isinstance(max_bytes, int) or max_bytes < 1:
            raise UsageError(f"{name}(max_bytes={max_bytes!r}): give a whole number of bytes, at least 1.")
        self.include = files.include
        self.exclude = files.exclude
        self.max_bytes = max_bytes
        self._tree = files.tree(name, max_file_bytes)
        self.root = self._tree.where

    def place(self) -> str | None:
        return self.root

    def local_paths(self) -> tuple[str, ...]:
        return () if _URL.match(self.root) else (self.root,)

    def not_installed(self) -> str:
        return self._tree.not_installed()

    def watch(self) -> FolderEvents | None:
        return self._tree.watch()

    def end_watch(self) -> None:
        self._tree.end_watch()

    def __repr__(self) -> str:
        exclude = "" if self.exclude is None else f", exclude={self.exclude!r}"
        return f"{type(self).__name__}({self.root!r}, include={self.include!r}{exclude})"

    def contradiction(self, doubt: Doubt) -> str:
        """Return how this machine sees a file or folder that a worker did not find, or found empty; "" if alike."""
        return self._tree.contradiction(doubt)


class Files(FileSource):
    """Every file below ``root`` that the globs take, as a document: its bytes are ``raw``.

    ``Files("corpus")``, ``Files("src", include="**/*.py", exclude=["**/.*", "build"])``, ``Files("s3://bucket/corpus")``.

    **Ids** are paths relative to the root with ``/`` between names: ``histories/henryv.txt``, ``a b/ça.txt``. So that
    every name has its own id, four things are percent-encoded: ``%`` (``%25``) and ``#`` (``%23``: it parts a child's
    key from its parent), control characters, and bytes of a name that are not UTF-8 (``%FF``).

    **Fields** say where a document comes from: ``uri`` (``file:///…``, or the URL in a store; with ``base_url=`` its
    web address), ``name`` (without folders), ``size`` (bytes of the file), ``modified`` (ISO 8601, UTC; null if a store
    does not say) and ``mime`` (by the end of the name). A document has not changed where only these have, so they are
    those of the time when its content changed last; ``counted=`` names fields in which a change counts.

    **Globs** are matched against the path relative to the root and are case-sensitive: ``*`` stays within a name,
    ``**`` is any number of folders, also none (``**/*.py`` takes ``setup.py`` too), and ``{py,md}`` is either. Files
    and folders whose names begin with a dot are taken like all others; ``exclude="**/.*"`` leaves them out. An exclude
    wins over every include, and one that matches a folder leaves out all that is in it, unvisited.

    **Folders** are never documents, whatever their name. One that cannot be read makes the listing incomplete (nothing
    is deleted in this scan), after everything else was listed. One that is deleted meanwhile counts as such.

    **Links** to files inside the root are read, under their own id. Links to folders inside the root are not followed:
    their files are documents already, under their real path; where the globs leave that out, the link is refused.
    Refused, by name, are links that lead nowhere, in a circle, back to a folder that holds them, or out of the root.

    Also refused: files of more than ``max_bytes``, and what is not a file (pipes, sockets, devices), which are never
    opened. An empty file is a document like any other, with ``raw=b""``. A refused name is a document that ends as
    ERROR_DOC; to have no such document, exclude it.

    **Compressed files**: one that is gzip, bzip2, xz or zstd by its first bytes, whatever its name, is unpacked; its id
    stays its path. One that is damaged or breaks off, or is larger than ``max_bytes`` when unpacked, ends as ERROR_DOC.
    With ``decompress=False`` they are documents as they are.

    **Elsewhere.** A root may be any URL that fsspec reads: ``s3://bucket/folder``, ``gs://…``, ``ftp://…``,
    ``sftp://…``, ``smb://…``, ``webdav://…``, ``webhdfs://…``, ``zip://::/data/corpus.zip`` (the members of an
    archive); ``pip install 'ferryman[s3]'`` (``[sftp]``, ``[smb]``, ``[webdav]``, ``[hdfs]``) or fsspec and what it
    asks for. Ids and globs are the same; folders are what lies between slashes. A name with an empty part, ``.`` or
    ``..`` is refused. On a store that keeps such names apart (S3's ``a//b``) the folder is reported, the listing
    incomplete.

    **Changes** are seen by size and time of modification (``detect="fingerprint"``); where that time is less than 2 s
    ago, or yet to come, the file is read. A store that has an etag or a checksum of each file is asked for that. Of a
    drive (``ftp://``, ``sftp://``, ``smb://``, ``webdav://``, ``webhdfs://``) times and etags count when they are a
    minute old; weak etags, and those that are others in each answer, end the trust in that server.

    Args:
        root: a folder, or a URL. A relative path is relative to the plan file's folder; in a program, to the current
            folder. On a cluster every worker must see the same folder at the same path.
        include: one glob or several.
        exclude: one glob or several.
        max_bytes: largest file that is read (bytes). A document lives whole in a worker's memory.
        base_url: address of the root on the web, for ``uri``.
        fields: whether to give fields, or which.
        counted: fields that make a document changed, as its bytes do: ``counted="uri"`` sends all again under a new
            ``base_url``.
        decompress: unpack compressed files.
        unsupported: what becomes of a file that a step does not read, a picture where text is wanted: "reject" (the
            run ends with 3), or "skip": it is dropped, with the reason, and counted as such.
        storage_options: options for fsspec beside the URL: ``{"endpoint_url": …}``. They travel to the workers, and
            are never shown. Credentials are better left where the client library finds them: environment, role, file.
        prefix, detect: see ``Source``.
        max_deleted: see ``Source``; None: 0.1 for a drive (SFTP, SMB, FTP, WebDAV), where a login may show less from
            one day to the next, else 0.5.

    Raises:
        UsageError: a glob or a limit is invalid. Whether the root exists is checked later, by ``check``.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        include: str | Sequence[str] = "**/*",
        exclude: str | Sequence[str] | None = None,
        max_bytes: int = limits.MAX_FILE_BYTES,
        *,
        base_url: str | None = None,
        fields: bool | Sequence[str] = True,
        counted: str | Sequence[str] = (),
        decompress: bool = True,
        unsupported: Literal["reject", "skip"] = "reject",
        storage_options: Mapping[str, Any] | None = None,
        prefix: str = "",
        detect: Detect = "content",
        max_deleted: float | None = None,
    ) -> None:
        files = FileSelection(root, include, exclude, storage_options)
        super().__init__(files, max_bytes, max_bytes, prefix=prefix, detect=detect, max_deleted=max_deleted)
        self.base_url = validate_base_url(base_url)
        self.fields = validate_field_names("fields", fields)
        if fields is True and protocol_of(self._tree.where):
            self.fields += (URL_FIELD,)
        self.uncounted = frozenset(self.fields) - frozenset(validate_field_names("counted", counted))
        if unsupported not in ("reject", "skip"):
            raise UsageError(f"Files(unsupported={unsupported!r}): give 'reject' or 'skip'.")
        self.decompress = decompress
        self.unsupported = unsupported

    def check(self) -> None:
        """
        Raises:
            UsageError: the root is not there, is not a folder, or may not be read.
        """
        self._tree.check()

    def changed_partitions(self, changes: TouchedFiles) -> list[Any]:
        """These files, and all in and below these folders."""
        return pieces_of(changes)

    def partitions(self) -> list[Piece]:
        """Up to ``limits.SMALL_LISTING_PARTS`` pieces: folders are opened from the top until there are enough."""
        return self._tree.pieces()

    def listing(self, partition: Piece | NamedFiles) -> Iterator[Listed | Doubt | Note]:
        """Every file of these folders, sorted by name within each folder.

        Raises:
            TransientError: some folders could not be read; raised after all the others were listed.
        """
        return self._tree.listing(partition)

    def still_there(self, ids: Iterable[str]) -> str:
        """The first of these files that is there, by its path."""
        return self._tree.still_there(ids)

    def read(self, listed: Listed) -> Document:
        """The file's bytes as they are now, read once.

        Raises:
            BadDocument: this user may not read it; it is no longer a file, grew over the limit, or leads out of the
                root by now; it cannot be unpacked.
            TransientError: it was deleted since the listing (the next scan sees that), or the disk failed.
        """
        data, modified_s = self._tree.read(listed, self.max_bytes)
        fields = self._fields(listed.id, len(data), modified_s)
        if self.decompress:
            data = read_unpacked(data, self._tree.display_path(listed.id), self.max_bytes)
        return Document.of(listed.id, fields, data)

    def _fields(self, id: str, size: int, modified_s: float | None) -> dict[str, Any]:
        name = name_of_file(id)
        compute: dict[str, Callable[[], Any]] = {
            "uri": lambda: web_address(self.base_url, id) if self.base_url else self._tree.uri(id),
            "name": lambda: name,
            "size": lambda: size,
            "modified": lambda: iso_time(modified_s),
            "mime": lambda: mime_of(name),
            URL_FIELD: lambda: web_address(self.base_url, id) if self.base_url else self._tree.url(id),
        }
        return {field: compute[field]() for field in self.fields}


# Fields of the documents of ``Files``.

FIELDS: Final = ("uri", "name", "size", "modified", "mime")

URL_FIELD: Final = "url"
"""Field that only documents from a drive have unless it is asked for."""

_UNKNOWN: Final = "application/octet-stream"
_WEB: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^?#]+")
_PACKED: Final = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}
_OFFICE: Final = "application/vnd.openxmlformats-officedocument"
_OPEN_DOCUMENT: Final = "application/vnd.oasis.opendocument"
_TYPES: Final = {
    "7z": "application/x-7z-compressed",
    "doc": "application/msword",
    "docx": f"{_OFFICE}.wordprocessingml.document",
    "epub": "application/epub+zip",
    "jsonl": "application/jsonl",
    "md": "text/markdown",
    "msg": "application/vnd.ms-outlook",
    "ndjson": "application/x-ndjson",
    "odp": f"{_OPEN_DOCUMENT}.presentation",
    "ods": f"{_OPEN_DOCUMENT}.spreadsheet",
    "odt": f"{_OPEN_DOCUMENT}.text",
    "parquet": "application/vnd.apache.parquet",
    "pptx": f"{_OFFICE}.presentationml.presentation",
    "rst": "text/x-rst",
    "rtf": "application/rtf",
    "toml": "application/toml",
    "webp": "image/webp",
    "xlsx": f"{_OFFICE}.spreadsheetml.sheet",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "zst": "application/zstd",
}
"""Types that Python's own table lacks. The system's table is not used, because it differs between machines."""

_python = mimetypes.MimeTypes()
_python.types_map = ({}, {})
for _each in (mimetypes._types_map_default, {f".{end}": kind for end, kind in _TYPES.items()}):  # type: ignore[attr-defined]
    for _end, _kind in _each.items():
        _python.add_type(_kind, _end)


def name_of_file(id: str) -> str:
    """Return the file name without folders; a name that is not UTF-8 stays percent-encoded, as in the id."""
    last = id.rpartition("/")[2]
    try:
        return unquote_to_bytes(last).decode()
    except UnicodeDecodeError:
        return last


def mime_of(name: str) -> str:
    """Return the media type for the ending of a file's name."""
    stem, dot, ends = name.partition(".")
    return _mime_of_ends(ends) if stem and dot else _mime_of(name)


@lru_cache(maxsize=1024)
def _mime_of_ends(ends: str) -> str:
    return _mime_of(f"x.{ends}")


def _mime_of(name: str) -> str:
    kind, packed = _python.guess_type(f"file:///{quote(name)}", strict=True)
    if packed is not None:
        return _PACKED.get(packed, _UNKNOWN)
    return kind or _UNKNOWN


def iso_time(seconds: float | None) -> str | None:
    """Format a time (seconds since 1970) as ISO 8601 in UTC; None for None and for times out of range."""
    try:
        return None if seconds is None else _iso_second(int(seconds))
    except (OverflowError, OSError, ValueError):
        return None


@lru_cache(maxsize=1024)
def _iso_second(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def web_address(base_url: str, id: str) -> str:
    """Return a file's web address below the address of the root."""
    return f"{base_url.rstrip('/')}/{quote(unquote_to_bytes(id))}"


def validate_base_url(url: Any) -> str | None:
    """
    Raises:
        UsageError: it is not an absolute URL.
    """
    if url is not None and (not isinstance(url, str) or not _WEB.fullmatch(url)):
        raise UsageError(f"Files(base_url={url!r}): give the root's address, as in 'https://example.org/corpus'.")
    return url


def validate_field_names(option: str, names: Any) -> tuple[str, ...]:
    """
    Raises:
        UsageError: there is no such field.
    """
    chosen = FIELDS if names is True else () if names is False else (names,) if isinstance(names, str) else tuple(names)
    unknown = [name for name in chosen if name not in (*FIELDS, URL_FIELD)]
    if unknown:
        raise UsageError(f"Files({option}={names!r}): {unknown[0]!r} is not one of {', '.join(FIELDS)}.")
    return chosen
