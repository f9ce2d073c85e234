"""Everything that can be told of a folder: to prove that nobody touched it."""

from __future__ import annotations

import os
from pathlib import Path


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Name -> what it is: mode, owner, links, times of change, and content. The folder's own under "."."""
    return {
        os.path.relpath(path, folder): _told(path)
        for path in ([folder, *sorted(folder.rglob("*"))] if folder.exists() else [])
    }


def _told(path: Path) -> tuple[object, ...]:
    found = path.lstat()
    content = path.read_bytes() if path.is_file() else sorted(os.listdir(path)) if path.is_dir() else None
    return found.st_ino, found.st_mode, found.st_uid, found.st_nlink, found.st_mtime_ns, found.st_ctime_ns, content
