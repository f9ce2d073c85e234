"""Which tree a source's ``root`` is: a folder of this machine, or what a URL leads to."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ferryman import places
from ferryman.errors import UsageError
from ferryman.sources.folder import Folder
from ferryman.sources.globs import Globs
from ferryman.sources.tree import FileTree

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:://|::.*://)")  # fsspec chains them: zip::s3://bucket/a.zip


def tree_of(
    source: str,
    root: str | os.PathLike[str],
    include: str | Sequence[str],
    exclude: str | Sequence[str] | None,
    max_bytes: int | None,
    storage_options: Mapping[str, Any] | None,
) -> FileTree:
    """The tree of a source's arguments.

    Raises:
        UsageError: they cannot be meant.
    """
    path = os.fspath(root)
    if not isinstance(path, str) or not path:
        raise UsageError(f"{source}({root!r}): give the folder as text; '.' is the current one.")
    globs = Globs(include, exclude)
    if path.startswith("file://"):
        path = path.removeprefix("file://")
    if _URL.match(path):
        from ferryman.sources.bucket import Bucket  # fsspec takes its time

        return Bucket(path, globs, max_bytes, dict(storage_options or {}))
    if storage_options:
        raise UsageError(f"{source}(storage_options=…): they are for URLs; {path!r} is a folder of this machine.")
    return Folder(places.absolute(path), globs, max_bytes)
