"""One list of a folder in an object store, by which many questions about it are answered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ferryman.storage.objects import ObjectPath, ObjectStore, StoredObject, stand_ins, store_at

_YOUNG: Final = float("inf")
"""When what was written since the list was changed: nobody may take it for old."""


class ListedStore:
    """A store, of which everything below a folder was listed. What the thread changes by it meanwhile is known too."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._folder = f"{folder}/"
        self._found = {each.key: each for each in store.below(self._folder)}

    def covers(self, folder: str) -> bool:
        return f"{folder}/".startswith(self._folder)

    def create(self, key: str, data: bytes) -> str | None:
        tag = self._store.create(key, data)
        self._note(key, len(data), tag)
        return tag

    def put(self, key: str, data: bytes | Path, if_match: str | None = None) -> str | None:
        tag = self._store.put(key, data, if_match)
        self._note(key, len(data) if isinstance(data, bytes) else data.stat().st_size, tag)
        return tag

    def get(self, key: str) -> bytes | None:
        return None if self._is_missing(key) else self._store.get(key)

    def get_tagged(self, key: str) -> tuple[bytes, str] | None:
        return None if self._is_missing(key) else self._store.get_tagged(key)

    def head(self, key: str) -> StoredObject | None:
        return self._found.get(key) if key.startswith(self._folder) else self._store.head(key)

    def below(self, prefix: str) -> list[StoredObject]:
        if not prefix.startswith(self._folder):
            return self._store.below(prefix)
        return sorted(each for each in self._found.values() if each.key.startswith(prefix))

    def children(self, folder: str) -> tuple[list[str], list[StoredObject]]:
        if not self.covers(folder):
            return self._store.children(folder)
        start = len(folder) + 1
        inside = [(each.key[start:].partition("/"), each) for each in self.below(f"{folder}/")]
        return sorted({name for (name, slash, _), _ in inside if slash}), [
            e for (_, slash, _), e in inside if not slash
        ]

    def copy(self, key: str, to: str) -> None:
        self._store.copy(key, to)
        if found := self._found.get(key):
            self._note(to, found.size, found.tag)

    def delete(self, keys: Sequence[str]) -> None:
        self._store.delete(keys)
        for key in keys:
            self._found.pop(key, None)

    def _is_missing(self, key: str) -> bool:
        return key.startswith(self._folder) and key not in self._found

    def _note(self, key: str, size: int, tag: str | None) -> None:
        if tag is not None and key.startswith(self._folder):
            self._found[key] = StoredObject(key, size, _YOUNG, tag)


@contextlib.contextmanager
def listed(folder: ObjectPath) -> Iterator[None]:
    """In this block this thread sees the folder as it is now, but for its own changes: for places where nobody else
    changes what is looked at, or where the moment does not matter."""
    known = stand_ins.get()
    last = known.get(folder.bucket)
    if isinstance(last, ListedStore) and last.covers(folder.key):
        yield
        return
    before = stand_ins.set(MappingProxyType({**known, folder.bucket: ListedStore(store_at(folder.bucket), folder.key)}))
    try:
        yield
    finally:
        stand_ins.reset(before)
