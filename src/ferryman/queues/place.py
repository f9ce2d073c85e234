"""Where a queue lives: its folder, made and deleted in one step each, and whose it is."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from ferryman import crash, limits
from ferryman.errors import StateForeign, UsageError
from ferryman.net import places
from ferryman.queues.entries import first_queue_entry
from ferryman.storage import files
from ferryman.storage.disk import write_synced
from ferryman.storage.files import (
    StatePath,
    fsync_folder,
    make_folder,
    path_of,
    probe,
    seal,
    stamp,
    unseal,
    unseal_bytes,
)
from ferryman.storage.objects import ObjectPath, is_url

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
    stamp: tuple[int | str, ...]
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


def root_of(root: str | os.PathLike[str] | ObjectPath) -> StatePath:
    """A folder of queues, or its URL, as somebody has named it.

    Raises:
        UsageError: a URL of something else than an object store.
    """
    if isinstance(root, ObjectPath) or is_url(root):
        return path_of(root if isinstance(root, ObjectPath) else str(root))
    return Path(places.absolute(root))


def uri_of(folder: StatePath) -> str:
    """Names a queue for everybody."""
    return folder.as_uri() if isinstance(folder, Path) else str(folder)


def home_of(folder: StatePath, identity: str) -> StatePath:
    """Where the files of a queue are: in an object store below its id."""
    return folder if isinstance(folder, Path) else folder / identity


def identity_of(folder: StatePath) -> Identity | None:
    """Whose folder it is; None: there is none.

    Raises:
        UsageError: there is something else.
        StateDamaged: it cannot be read.
        StateForeign: it is of a newer Ferryman.
    """
    path = folder / IDENTITY
    try:
        found = stamp(path)
        if found is None:
            if isinstance(folder, ObjectPath) or not os.path.lexists(folder):
                return None
            found = stamp(path)  # it may have been made while we looked
    except NotADirectoryError:
        if not os.path.lexists(str(folder)):
            return None
        found = None
    if found is None:
        raise UsageError(f"{folder} is not a queue: it has no {IDENTITY}. Give another name or another folder.")
    said: Any = unseal(path)
    if said["format"] > FORMAT:
        raise StateForeign(f"{path}: format {said['format']}, this Ferryman knows up to {FORMAT}. Nothing was touched.")
    return None if is_deleted(said) else Identity(said["id"], said["created"], found)


def stamp_of(folder: StatePath) -> tuple[int | str, ...]:
    """What tells this identity from another one.

    Raises:
        FileNotFoundError: it has none.
    """
    if (found := stamp(folder / IDENTITY)) is None:
        raise FileNotFoundError(str(folder / IDENTITY))
    return found


def make(folder: StatePath) -> None:
    """Make a queue if there is none, durably and whole: a folder under another name first, which is then changed."""
    if isinstance(folder, ObjectPath):
        make_object(folder / IDENTITY, _identity_record, str(uuid.uuid4()))
        return
    root = folder.parent
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root} is not a folder: queues cannot be in it.")
    make_folder(root)
    remove_leftovers(root)
    new = root / f"{_NEW}{uuid.uuid4().hex}"
    identity = str(uuid.uuid4())
    try:
        for below in ("messages/_delta_log", "messages/_marks", "keys", "tailers"):
            (new / below).mkdir(parents=True)
        probe(new)
        write_synced(new / "messages" / "_delta_log" / f"{0:020d}.json", first_queue_entry(identity))
        for lock in ("appending", "merging"):
            (new / lock).touch()
        write_synced(new / IDENTITY, seal(_identity_record(identity)))
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


def _identity_record(identity: str) -> dict[str, Any]:
    return {"format": FORMAT, "id": identity, "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds")}


def remove(folder: StatePath, identity: str) -> None:
    """Delete the queue of this id, all or nothing, durably."""
    if isinstance(folder, ObjectPath):
        remove_object(folder / IDENTITY, identity, _identity_record)
        return
    gone = folder.with_name(f"{_DELETED}{uuid.uuid4().hex}")
    folder.rename(gone)
    crash.point("queue.renamed")
    fsync_folder(folder.parent)
    shutil.rmtree(gone, ignore_errors=True)
    crash.point("queue.removed")


def list_queues(root: StatePath) -> list[str]:
    """Names of all queues in a folder, sorted."""
    if isinstance(root, ObjectPath):
        return sorted(n for n in files.list_names(root) if _NAME.fullmatch(n) and identity_of(root / n) is not None)
    if not root.is_dir():
        return []
    return sorted(p.parent.name for p in root.glob(f"*/{IDENTITY}") if _NAME.fullmatch(p.parent.name))


def remove_leftovers(root: StatePath) -> None:
    """What a kill has left of a queue in the making, or one that is deleted. In an object store, ``make`` does it."""
    if isinstance(root, ObjectPath):
        return
    for path in root.iterdir() if root.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):
            old = time.time() - path.stat().st_mtime > limits.TEMPORARY_S
            if path.name.startswith(_DELETED) or (path.name.startswith(_NEW) and old):
                shutil.rmtree(path, ignore_errors=True)


# Where a queue lives in an object store: ``queue.json`` names it, and what it consists of lies below its id.
#
# A store has no folder that could be renamed. So ``queue.json`` is what makes a queue, and what deletes it: it is
# replaced as the version that was seen, which of several processes one can. A queue that was made again has another
# id, and shares no object with the one before.

_DELETED_ID = ""
"""The id in ``queue.json`` of a queue that was deleted."""


def make_object(pointer: ObjectPath, new: Callable[[str], dict[str, Any]], identity: str) -> None:
    """Make a queue if there is none: the beginning of its log, then ``queue.json``.

    What a kill has left of others goes when ours is made. Whoever slept while he made one of them has seen an older
    ``queue.json``, and cannot replace it any more.

    Args:
        new: id -> what ``queue.json`` says.
    """
    folder = pointer.parent
    files.probe(folder)
    found = files.read_version(pointer)
    if found is not None and _read_id(pointer, found[0]) != _DELETED_ID:
        return
    left_over, _ = folder.store.list_folder(folder.key)  # before ours is made: after it, one of another id may be newer
    home = folder / identity
    files.replace(home / "messages" / "_delta_log" / f"{0:020d}.json", first_queue_entry(identity))
    crash.point("queue.built")
    made = files.replace_version(pointer, seal(new(identity)), None if found is None else found[1])
    crash.point("queue.named")
    for name in left_over if made else [identity]:  # somebody else was faster: nobody can use ours
        files.remove_folder(folder / name)
    crash.point("queue.made")


def remove_object(pointer: ObjectPath, identity: str, new: Callable[[str], dict[str, Any]]) -> None:
    """Delete the queue of this id, unless somebody else has."""
    found = files.read_version(pointer)
    if found is not None and _read_id(pointer, found[0]) == identity:
        files.replace_version(pointer, seal({**new(_DELETED_ID), "was": identity}), found[1])
    crash.point("queue.renamed")
    files.remove_folder(pointer.parent / identity)
    crash.point("queue.removed")


def is_deleted(said: dict[str, Any]) -> bool:
    """Does ``queue.json`` say that there is no queue any more?"""
    return bool(said["id"] == _DELETED_ID)


def _read_id(pointer: ObjectPath, data: bytes) -> str:
    said: Any = unseal_bytes(pointer, data)
    return str(said["id"])
