"""Local copies of objects that never change: data files, fetched once to a machine and read there as files.

A copy has the path of its object below the cache's folder, so also its name, which holds the checksum of a data file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ferryman.errors import UsageError
from ferryman.storage.objects import ObjectPath

CACHE: Final = "FERRYMAN_CACHE"
"""Names the cache's folder, in the environment of driver and executors; without it, one in the system's temporary
folder."""
_KEPT_S: Final = 7 * 86_400
"""A copy that nobody has opened for so long is removed when a process first looks into the cache."""
_TOUCHED_S: Final = 3600
_AT_ONCE: Final = 8
"""Objects that are fetched at a time."""
_looked: set[Path] = set()


def folder() -> Path:
    """Of this machine's copies: only its user can read it."""
    given = os.environ.get(CACHE)
    found = Path(given) if given else Path(tempfile.gettempdir(), f"ferryman-cache-{os.geteuid()}")
    if found not in _looked:
        found.mkdir(mode=0o700, parents=True, exist_ok=True)
        if found.stat().st_uid != os.geteuid():
            raise UsageError(f"{found}: this cache belongs to another user. Give a folder of your own: --cache DIR.")
        _looked.add(found)
        _clear(found)
    return found


def copy_of(path: ObjectPath) -> Path:
    """Where the copy of an object is, there or not."""
    return folder() / path.bucket.replace("://", "-") / path.key


def fetch(path: ObjectPath) -> Path:
    """A copy of an object that never changes.

    Raises:
        FileNotFoundError: there is no such object.
        EngineError: the store is away.
    """
    copy = copy_of(path)
    try:
        if time.time() - copy.stat().st_mtime > _TOUCHED_S:
            os.utime(copy)
    except FileNotFoundError:
        data = path.store.get(path.key)
        if data is None:
            raise FileNotFoundError(2, "no such object", str(path)) from None
        with new_copy(copy) as made:
            made.write_bytes(data)
    return copy


def fetch_all(paths: Iterable[ObjectPath]) -> list[Path]:
    """Copies of many, several at a time."""
    wanted = list(paths)
    if sum(not copy_of(path).exists() for path in wanted) < 2:
        return [fetch(path) for path in wanted]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(fetch, wanted))


@contextlib.contextmanager
def new_copy(copy: Path) -> Iterator[Path]:
    """A file to write, which becomes this copy at the end: others see it whole or not at all."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    made = copy.with_name(f".new-{uuid.uuid4().hex}")
    try:
        yield made
        made.replace(copy)
    finally:
        made.unlink(missing_ok=True)


def drop(path: ObjectPath) -> None:
    """Its object is removed."""
    copy_of(path).unlink(missing_ok=True)


def drop_folder(path: ObjectPath) -> None:
    """All objects below are removed."""
    shutil.rmtree(copy_of(path), ignore_errors=True)


def _clear(place: Path) -> None:
    before = time.time() - _KEPT_S
    for folder_, _, names in os.walk(place):
        for name in names:
            with contextlib.suppress(OSError):
                path = os.path.join(folder_, name)
                if os.stat(path).st_mtime < before:
                    os.unlink(path)
