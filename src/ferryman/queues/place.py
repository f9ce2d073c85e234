"""Location and identity of a queue: its folder, or its objects in a store, created and deleted atomically."""

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
from ferryman.net import relative_paths
from ferryman.queues.table import first_queue_entry
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
"""Format of the folder. A newer one is refused."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_NAME_MAX: Final = 128
_NEW, _DELETED = ".new-", ".deleted-"


class Identity(NamedTuple):
    """Identity of a queue, from ``queue.json``."""

    id: str
    created: str
    stamp: tuple[int | str, ...]
    """Stamp by which the file is recognized without being read."""


def check_name(name: object, what: str = "a queue") -> str:
    """Return the name if it is valid.

    Raises:
        UsageError: it is not; says which names are.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _NAME_MAX:
        raise UsageError(
            f"{name!r} cannot be the name of {what}: give a letter or digit, then letters, digits, -, _ or . "
            f"(at most {_NAME_MAX})."
        )
    return name


def root_of(root: str | os.PathLike[str] | ObjectPath) -> StatePath:
    """Parse a folder of queues, or its URL.

    Raises:
        UsageError: the URL is not one of an object store.
    """
    if isinstance(root, ObjectPath) or is_url(root):
        return path_of(root if isinstance(root, ObjectPath) else str(root))
    return Path(relative_paths.absolute(root))


def uri_of(folder: StatePath) -> str:
    """Return a URI that identifies a queue."""
    return folder.as_uri() if isinstance(folder, Path) else str(folder)


def home_of(folder: StatePath, identity: str) -> StatePath:
    """Return the folder of a queue's files; in an object store it is named by the queue's id."""
    return folder if isinstance(folder, Path) else folder / identity


def identity_of(folder: StatePath) -> Identity | None:
    """Return the identity of the queue in a folder; None if there is none.

    Raises:
        UsageError: the folder holds something else.
        StateDamaged: the identity cannot be read.
        StateForeign: it is of a newer Ferryman.
    """
    path = folder / IDENTITY
    try:
        found = stamp(path)
        if found is None:
            if isinstance(folder, ObjectPath) or not os.path.lexists(folder):
                return None
            found = stamp(path)  # it may have been created in the meantime
    except NotADirectoryError:
        if not os.path.lexists(str(folder)):
            return None
        found = None
    if found is None:
        raise UsageError(f"{folder} is not a queue: it has no {IDENTITY}. Give another name or another folder.")
    record: Any = unseal(path)
    if record["format"] > FORMAT:
        raise StateForeign(
            f"{path}: format {record['format']}, this Ferryman knows up to {FORMAT}. Nothing was touched."
        )
    return None if is_deleted(record) else Identity(record["id"], record["created"], found)


def stamp_of(folder: StatePath) -> tuple[int | str, ...]:
    """Return the stamp of a queue's identity file.

    Raises:
        FileNotFoundError: there is none.
    """
    if (found := stamp(folder / IDENTITY)) is None:
        raise FileNotFoundError(str(folder / IDENTITY))
    return found


def make(folder: StatePath) -> None:
    """Create a queue if there is none, atomically and durably: first a folder under another name, which is then
    renamed."""
    if isinstance(folder, ObjectPath):
        _make_object(folder / IDENTITY, str(uuid.uuid4()))
        return
    root = folder.parent
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root} is not a folder: queues cannot be in it.")
    make_folder(root)
    remove_leftovers(root)
    new = root / f"{_NEW}{uuid.uuid4().hex}"
    identity = str(uuid.uuid4())
    try:
        for below in ("messages/_delta_log", "keys", "tailers"):
            (new / below).mkdir(parents=True)
        probe(new)
        write_synced(new / "messages" / "_delta_log" / f"{0:020d}.json", first_queue_entry(identity))
        for lock in ("appending", "merging"):
            (new / lock).touch()
        write_synced(new / IDENTITY, seal(_identity_record(identity)))
        for created in (new / "messages" / "_delta_log", new / "messages", new):
            fsync_folder(created)
        crash.point("queue.built")
        try:
            new.rename(folder)
        except OSError:
            if not os.path.lexists(folder):
                raise
            # another process was faster, or something else has the name: identity_of finds out
        crash.point("queue.named")
        fsync_folder(root)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    crash.point("queue.made")


def _identity_record(identity: str) -> dict[str, Any]:
    return {"format": FORMAT, "id": identity, "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds")}


def remove(folder: StatePath, identity: str) -> None:
    """Delete the queue with this id, atomically and durably."""
    if isinstance(folder, ObjectPath):
        _remove_object(folder / IDENTITY, identity)
        return
    deleted = folder.with_name(f"{_DELETED}{uuid.uuid4().hex}")
    folder.rename(deleted)
    crash.point("queue.renamed")
    fsync_folder(folder.parent)
    shutil.rmtree(deleted, ignore_errors=True)
    crash.point("queue.removed")


def list_queues(root: StatePath) -> list[str]:
    """Return the names of all queues in a folder, sorted."""
    if isinstance(root, ObjectPath):
        return sorted(n for n in files.list_names(root) if _NAME.fullmatch(n) and identity_of(root / n) is not None)
    if not root.is_dir():
        return []
    return sorted(p.parent.name for p in root.glob(f"*/{IDENTITY}") if _NAME.fullmatch(p.parent.name))


def remove_leftovers(root: StatePath) -> None:
    """Remove what a crash left of queues being created or deleted. In an object store, ``make`` does it."""
    if isinstance(root, ObjectPath):
        return
    for path in root.iterdir() if root.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):
            old = time.time() - path.stat().st_mtime > limits.TEMPORARY_S
            if path.name.startswith(_DELETED) or (path.name.startswith(_NEW) and old):
                shutil.rmtree(path, ignore_errors=True)


# --- queues in an object store: ``queue.json`` names the id under which the queue's objects lie ---
#
# A store has no folder that could be renamed. So writing ``queue.json`` creates a queue, and also deletes it: the
# version that was read is replaced, which only one of several processes can do. A queue that was created again has
# another id, and shares no object with the one before.

_DELETED_ID = ""
"""Id in the ``queue.json`` of a deleted queue."""


def _make_object(pointer: ObjectPath, identity: str) -> None:
    """Create a queue if there is none: the first entry of its log, then ``queue.json``.

    Objects that a crash left of others are removed when ours is created: whoever was suspended while creating one of
    them has read an older ``queue.json``, and can no longer replace it.
    """
    folder = pointer.parent
    files.probe(folder)
    found = files.read_version(pointer)
    if found is not None and _read_id(pointer, found[0]) != _DELETED_ID:
        return
    # listed before ours is created: after it, another id may be a newer queue's
    left_over, _ = folder.store.list_folder(folder.key)
    home = folder / identity
    files.replace(home / "messages" / "_delta_log" / f"{0:020d}.json", first_queue_entry(identity))
    crash.point("queue.built")
    created = files.replace_version(pointer, seal(_identity_record(identity)), None if found is None else found[1])
    crash.point("queue.named")
    for name in left_over if created else [identity]:  # another process was faster: nobody can use ours
        files.remove_folder(folder / name)
    crash.point("queue.made")


def _remove_object(pointer: ObjectPath, identity: str) -> None:
    """Delete the queue with this id, unless it was deleted already."""
    found = files.read_version(pointer)
    if found is not None and _read_id(pointer, found[0]) == identity:
        files.replace_version(pointer, seal({**_identity_record(_DELETED_ID), "was": identity}), found[1])
    crash.point("queue.renamed")
    files.remove_folder(pointer.parent / identity)
    crash.point("queue.removed")


def is_deleted(record: dict[str, Any]) -> bool:
    """Return whether ``queue.json`` says that the queue was deleted."""
    return bool(record["id"] == _DELETED_ID)


def _read_id(pointer: ObjectPath, data: bytes) -> str:
    record: Any = unseal_bytes(pointer, data)
    return str(record["id"])
