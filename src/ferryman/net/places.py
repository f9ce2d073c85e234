"""Relative paths in a plan are meant from the folder of the plan file that is being loaded, else from the current one.

So ``ferryman run`` reads and writes the same places wherever it is started: by hand, by cron. A plan that a program
builds itself means the program's current folder, like any path in it. Paths are made absolute when a source or a
destination is made, and so mean the same in workers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Final
from urllib.parse import unquote

_BASE: Final[ContextVar[str | None]] = ContextVar("ferryman_places_base", default=None)


def absolute(path: str | os.PathLike[str]) -> str:
    """The path from the root on, ``~`` spelled out."""
    return os.path.abspath(os.path.join(_BASE.get() or os.getcwd(), os.path.expanduser(os.fspath(path))))


def resolved(uri: str | None) -> str | None:
    """Return one name for a place that is read or written: a folder may have several, by symbolic links."""
    if uri is None or not uri.startswith("file:///"):
        return uri
    return Path(os.path.realpath(unquote(uri.removeprefix("file://")))).as_uri()


@contextlib.contextmanager
def relative_to(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Meanwhile, relative paths are meant from this folder."""
    before = _BASE.set(os.path.abspath(folder))
    try:
        yield
    finally:
        _BASE.reset(before)
