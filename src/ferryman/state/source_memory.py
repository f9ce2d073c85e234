"""Memory of sources: bookmarks for their next scan, and the content of documents that they cannot list again.

A source's memory is a sealed file, ``sources/<source>/<number>.json``, and at most one data file beside it, which it
names. The commit of the wave that ends a scan records the number as an application transaction of the outbox, so the
memory changes together with what was listed before it. Files that the last commit does not name are removed later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ferryman import crash
from ferryman.errors import StateDamaged
from ferryman.plan import Plan
from ferryman.state.state import SOURCES, State
from ferryman.storage import files
from ferryman.storage.files import StatePath
from ferryman.storage.parquet import epoch_of

MEMORY: Final = "ferryman.source."
"""Application id, before the source's name: number of the source's memory."""

_EPOCH_BITS: Final = 32
"""A number is the epoch that wrote it, shifted by this, plus the wave: no two drivers write the same file."""


class SourceMemory(msgspec.Struct, omit_defaults=True, frozen=True):
    """Memory of one source.

    Attributes:
        bookmarks: partition -> JSON value, see ``sources.base.Bookmark``.
        kept: name of the data file with the content of documents that wait for a retry or have failed; "": none do.
        unseen_deletes: which documents the source does not see being deleted; "": it sees all deletes.
    """

    bookmarks: dict[str, Any] = {}
    kept: str = ""
    unseen_deletes: str = ""


NOTHING_REMEMBERED: Final = SourceMemory()


def load_memory(state: State, source: str) -> SourceMemory:
    """Return a source's memory as of the last commit that was loaded.

    Raises:
        StateDamaged: its file is missing or damaged.
    """
    path = memory_path(state, source)
    if path is None:
        return NOTHING_REMEMBERED
    try:
        return msgspec.convert(files.unseal(path), SourceMemory)
    except msgspec.ValidationError as e:
        raise StateDamaged(str(path), f"it is not what was written ({e})") from e


def load_memories(root: StatePath, plan: Plan, sources: Sequence[str]) -> dict[str, SourceMemory]:
    """Return the memories of these sources as of the last commit, beside a driver that may be at work."""
    if not sources:
        return {}
    state = State(root, plan)
    with state.readers.reading():
        state.open_for_reading()
        return {name: load_memory(state, name) for name in sources}


def memory_path(state: State, source: str) -> StatePath | None:
    """Return the path of a source's memory; None: it has none."""
    number = state.outbox.transaction(f"{MEMORY}{source}")
    return state.root / SOURCES / source / f"{number}.json" if number else None


def write_memory(state: State, source: str, wave: int, memory: SourceMemory) -> dict[str, int]:
    """Write a source's memory durably; return the transaction by which the commit of the wave makes it the current
    one."""
    number = (state.epoch << _EPOCH_BITS) + wave
    folder = memory_folder(state, source)
    files.replace(folder / f"{number}.json", files.seal(msgspec.to_builtins(memory)))
    crash.point("memory.written")
    return {f"{MEMORY}{source}": number}


def memory_folder(state: State, source: str) -> StatePath:
    """Return the folder of a source's memory, which exists."""
    folder = state.root / SOURCES / source
    files.make_folder(state.root / SOURCES)
    files.make_folder(folder)
    return folder


def copy_memories(old: State, new: State, sources: Iterable[str]) -> dict[str, int]:
    """Copy the memories of these sources to the state of a newer version of the plan; return the transactions that
    name them there."""
    transactions = {}
    for source in sources:
        if (path := memory_path(old, source)) is None:
            continue
        memory = load_memory(old, source)
        folder = memory_folder(new, source)
        for name in filter(None, (memory.kept, path.name)):
            files.publish(folder / name, files.read(path.parent / name))
        transactions[f"{MEMORY}{source}"] = int(path.name.removesuffix(".json"))
    return transactions


def remove_old_memories(state: State, memories: Mapping[str, SourceMemory]) -> None:
    """Remove the files of memories that no commit names any more, or never did.

    Args:
        memories: source -> its current memory.
    """
    for source, memory in memories.items():
        path = memory_path(state, source)
        current = {memory.kept, path.name if path is not None else ""}
        folder = state.root / SOURCES / source
        old = [name for name in files.list_names(folder) if name not in current and _epoch(name) <= state.epoch]
        if old:
            with state.removal_cutoff() as before:
                files.remove_all(
                    folder / name for name in old if before is None or files.changed_before(folder / name, before)
                )


def _epoch(name: str) -> int:
    number, _, kind = name.partition(".")
    return int(number) >> _EPOCH_BITS if kind == "json" and number.isdigit() else epoch_of(name)
