"""Where a queue lives: its folder, made and deleted in one step each, and whose it is."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import shutil
import time
import uuid
from pathlib import Path
from typing import Any, Final, NamedTuple

from ferryman import crash, limits
from ferryman.errors import StateForeign, UsageError
from ferryman.queues.entries import first_entry
from ferryman.storage.disk import write_synced
from ferryman.storage.files import fsync_folder, make_folder, probe, sealed, unseal

IDENTITY: Final = "queue.json"
FORMAT: Final = 1
"""Of the folder. A newer one is refused."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_NAME_MAX: Final = 128
_NEW, _DELETED = ".new-", ".deleted-"


class Identity(NamedTuple):
    """What a queue says of itself."""

    id: str
    created: str
    stamp: tuple[int, int]
    """By which the file is known again without being read."""


def check_name(name: object, what: str = "a queue") -> str:
    """The name, if it can be one.

    Raises:
        UsageError: it cannot; says what can.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _NAME_MAX:
        raise UsageError(
            f"{name!r} cannot be the name of {what}: give a letter or digit, then letters, digits, -, _ or . "
            f"(at most {_NAME_MAX})."
        )
    return name


def identity_of(folder: Path) -> Identity | None:
    """Whose folder it is; None: there is none.

    Raises:
        UsageError: there is something else.
        StateDamaged: it cannot be read.
        StateForeign: it is of a newer Ferryman.
    """
    path = folder / IDENTITY
    try:
        found = stamp_of(folder)
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.lexists(folder):
            return None
        raise UsageError(
            f"{folder} is not a queue: it has no {IDENTITY}. Give another name or another folder."
        ) from None
    said: Any = unseal(path)
    if said["format"] > FORMAT:
        raise StateForeign(f"{path}: format {said['format']}, this Ferryman knows up to {FORMAT}. Nothing was touched.")
    return Identity(said["id"], said["created"], found)


def stamp_of(folder: Path) -> tuple[int, int]:
    """What tells this identity from another one.

    Raises:
        FileNotFoundError: it has none.
    """
    found = (folder / IDENTITY).stat()
    return found.st_ino, found.st_mtime_ns


def make(folder: Path) -> None:
    """Make a queue if there is none, durably and whole: under another name first, which is then changed."""
    root = folder.parent
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root} is not a folder: queues cannot be in it.")
    make_folder(root)
    remove_left_over(root)
    new = root / f"{_NEW}{uuid.uuid4().hex}"
    identity = str(uuid.uuid4())
    try:
        for below in ("messages/_delta_log", "messages/_marks", "keys", "tailers"):
            (new / below).mkdir(parents=True)
        probe(new)
        write_synced(new / "messages" / "_delta_log" / f"{0:020d}.json", first_entry(identity))
        for lock in ("appending", "merging"):
            (new / lock).touch()
        created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        write_synced(new / IDENTITY, sealed({"format": FORMAT, "id": identity, "created": created}))
        for made in (new / "messages" / "_delta_log", new / "messages", new):
            fsync_folder(made)
        crash.point("queue.built")
        try:
            new.rename(folder)
        except OSError:
            if not os.path.lexists(folder):
                raise
            # somebody else made it first, or something else is there: identity_of tells
        crash.point("queue.named")
        fsync_folder(root)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    crash.point("queue.made")


def remove(folder: Path) -> None:
    """Delete a queue, all or nothing, durably."""
    gone = folder.with_name(f"{_DELETED}{uuid.uuid4().hex}")
    folder.rename(gone)
    crash.point("queue.renamed")
    fsync_folder(folder.parent)
    shutil.rmtree(gone, ignore_errors=True)
    crash.point("queue.removed")


def names(root: Path) -> list[str]:
    """Names of all queues in a folder, sorted."""
    if not root.is_dir():
        return []
    return sorted(p.parent.name for p in root.glob(f"*/{IDENTITY}") if _NAME.fullmatch(p.parent.name))


def remove_left_over(root: Path) -> None:
    """What a kill has left of a queue in the making, or one that is deleted."""
    for path in root.iterdir() if root.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):
            old = time.time() - path.stat().st_mtime > limits.TEMPORARY_S
            if path.name.startswith(_DELETED) or (path.name.startswith(_NEW) and old):
                shutil.rmtree(path, ignore_errors=True)
