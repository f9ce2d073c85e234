"""Relative paths in a plan: relative to the folder of the plan file that is being loaded, else to the current folder.

So ``ferryman run`` reads and writes the same places wherever it is started, by hand or by cron. In a plan that a
program builds, paths are relative to the current folder, like any path in that program. Paths are made absolute when a
source or a destination is created, so they mean the same in workers.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Final
from urllib.parse import unquote

_BASE: Final[ContextVar[str | None]] = ContextVar("ferryman_places_base", default=None)

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(?=/)")
"""Scheme of a URL, which has two letters or more, unlike a drive of Windows."""


def absolute(path: str | os.PathLike[str]) -> str:
    """Return an absolute path, with ``~`` expanded."""
    return os.path.abspath(os.path.join(_BASE.get() or os.getcwd(), os.path.expanduser(os.fspath(path))))


def absolute_folder(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a folder of this machine; ``file://`` before it is removed.

    Raises:
        ValueError: it is a URL of another kind, also one that became a ``Path``; it would be taken for a relative path.
    """
    text = os.fspath(path).removeprefix("file://")
    if url := _URL.match(text):
        raise ValueError(
            f"{url[0]} is of a URL, which this is not. Give a folder of this machine, or a URL as text: {url[0]}//…"
        )
    return absolute(text)


def resolve(uri: str | None) -> str | None:
    """Return the canonical name of a place that is read or written: symbolic links give a folder several names."""
    if uri is None or not uri.startswith("file:///"):
        return uri
    return Path(os.path.realpath(unquote(uri.removeprefix("file://")))).as_uri()


@contextlib.contextmanager
def relative_to(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Make ``absolute`` interpret relative paths from this folder meanwhile."""
    before = _BASE.set(os.path.abspath(folder))
    try:
        yield
    finally:
        _BASE.reset(before)
