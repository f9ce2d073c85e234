"""Where a queue lives in an object store: ``queue.json`` names it, and what it consists of lies below its id.

A store has no folder that could be renamed. So ``queue.json`` is what makes a queue, and what deletes it: it is
replaced as the version that was seen, which of several processes one can. A queue that was made again has another id,
and shares no object with the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ferryman import crash
from ferryman.queues.entries import first_entry
from ferryman.storage import files
from ferryman.storage.objects import ObjectPath
from ferryman.storage.seals import sealed, unsealed

_NOBODY = ""
"""The id in ``queue.json`` of a queue that was deleted."""


def make(pointer: ObjectPath, new: Callable[[str], dict[str, Any]], identity: str) -> None:
    """Make a queue if there is none: the beginning of its log, then ``queue.json``.

    What a kill has left of others goes when ours is made. Whoever slept while he made one of them has seen an older
    ``queue.json``, and cannot replace it any more.

    Args:
        new: id -> what ``queue.json`` says.
    """
    folder = pointer.parent
    files.probe(folder)
    found = files.read_version(pointer)
    if found is not None and _id(pointer, found[0]) != _NOBODY:
        return
    left_over, _ = folder.store.children(folder.key)  # before ours is made: after it, one of another id may be newer
    home = folder / identity
    files.replace(home / "messages" / "_delta_log" / f"{0:020d}.json", first_entry(identity))
    crash.point("queue.built")
    made = files.replace_version(pointer, sealed(new(identity)), None if found is None else found[1])
    crash.point("queue.named")
    for name in left_over if made else [identity]:  # somebody else was faster: nobody can use ours
        files.remove_folder(folder / name)
    crash.point("queue.made")


def remove(pointer: ObjectPath, identity: str, new: Callable[[str], dict[str, Any]]) -> None:
    """Delete the queue of this id, unless somebody else has."""
    found = files.read_version(pointer)
    if found is not None and _id(pointer, found[0]) == identity:
        files.replace_version(pointer, sealed({**new(_NOBODY), "was": identity}), found[1])
    crash.point("queue.renamed")
    files.remove_folder(pointer.parent / identity)
    crash.point("queue.removed")


def is_deleted(said: dict[str, Any]) -> bool:
    """Does ``queue.json`` say that there is no queue any more?"""
    return bool(said["id"] == _NOBODY)


def _id(pointer: ObjectPath, data: bytes) -> str:
    said: Any = unsealed(pointer, data)
    return str(said["id"])
