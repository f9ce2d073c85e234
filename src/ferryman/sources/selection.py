"""Which files a source takes; and what the sources of files have in common."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ferryman import places
from ferryman.errors import UsageError
from ferryman.sources.base import Detect, Doubt, Source
from ferryman.sources.folder import Folder
from ferryman.sources.globs import Globs
from ferryman.sources.tree import FileTree

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:://|::.*://)")  # fsspec chains them: zip::s3://bucket/a.zip


@dataclass(frozen=True, slots=True, repr=False)  # its URL and its options may have secrets in them
class FileSelection:
    """Which files a source takes: its arguments of these names."""

    root: str | os.PathLike[str]
    include: str | Sequence[str]
    exclude: str | Sequence[str] | None
    storage_options: Mapping[str, Any] | None

    def tree(self, source: str, max_bytes: int | None) -> FileTree:
        """The files: in a folder of this machine, or in what a URL leads to.

        Args:
            source: its name, for messages.
            max_bytes: files of more are listed as refused; None: no limit.

        Raises:
            UsageError: the arguments cannot be meant.
        """
        path = os.fspath(self.root)
        if not isinstance(path, str) or not path:
            raise UsageError(f"{source}({self.root!r}): give the folder as text; '.' is the current one.")
        globs = Globs(self.include, self.exclude)
        if path.startswith("file://"):
            path = path.removeprefix("file://")
        if _URL.match(path):
            from ferryman.sources.bucket import Bucket  # fsspec takes its time

            return Bucket(path, globs, max_bytes, dict(self.storage_options or {}))
        if self.storage_options:
            raise UsageError(f"{source}(storage_options=…): they are for URLs; {path!r} is a folder of this machine.")
        return Folder(places.absolute(path), globs, max_bytes)


class FileSource(Source):
    """Base of the sources whose documents are files, or are in files.

    Args:
        max_bytes: largest document.
        max_file_bytes: largest file that is not refused; None: no limit.
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
        max_deleted: float,
    ) -> None:
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

    def __repr__(self) -> str:
        left_out = "" if self.exclude is None else f", exclude={self.exclude!r}"
        return f"{type(self).__name__}({self.root!r}, include={self.include!r}{left_out})"

    def contradiction(self, doubt: Doubt) -> str:
        """Does this machine see a file or folder that a worker did not find, or found empty?"""
        return self._tree.contradiction(doubt)
