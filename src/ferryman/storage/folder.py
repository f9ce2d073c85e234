"""Errors of a folder that files are written to."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ferryman.errors import Misconfigured, Unavailable
from ferryman.storage.files import disk_full
from ferryman.storage.objects import ObjectPath

_PASSING: Final = (
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ESTALE,
    errno.ENOENT,
)
"""A disk in trouble, too many open files; or the folder was removed, which ``check`` makes again."""


@contextmanager
def explained(folder: Path | ObjectPath) -> Iterator[None]:
    """Errors of the file system inside come out as ``TransientError`` or ``PermanentError``, about the whole folder."""
    try:
        yield
    except OSError as e:
        why = f"{folder}: {e.strerror or e}"
        if disk_full(e) or e.errno in _PASSING:
            raise Unavailable(f"{why}. It is tried again.") from e
        raise Misconfigured(f"{why}. Make it a folder that can be written, then run again.") from e
