"""Sets of fixed-length bytes in a few sorted files, to which sets are added: what was used, and by which document."""

from __future__ import annotations

import contextlib
import uuid
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from ferryman.storage import files
from ferryman.storage.files import StatePath

_SUFFIX: Final = ".sorted"
_HEAD: Final = 16
"""Bytes before the elements: the CRC-32 of what follows, and the time of the file in seconds since 1970."""
_MERGE_FACTOR: Final = 8
"""Number of files of one size class that are merged into one."""

Elements = np.ndarray[Any, Any]


class SortedFiles:
    """Sets of elements of ``size`` bytes, each set with a time. A file that is damaged counts as missing."""

    def __init__(self, folder: StatePath, size: int) -> None:
        self._folder = folder
        self._size = size

    def add(self, elements: Elements, when: float) -> None:
        """Add a set of elements, durably."""
        if not len(elements):
            return
        files.make_folder(self._folder)
        body = np.unique(elements).tobytes()
        head = b"%08x%08x" % (zlib.crc32(body), int(when))
        files.replace(self._folder / f"{uuid.uuid4().hex}{_SUFFIX}", head + body)
        self._merge()

    def sets(self) -> list[tuple[float, Elements]]:
        """Return the time and the sorted elements of each file."""
        return [each for name in self._names() if (each := self._read(name)) is not None]

    def with_prefix(self, prefix: bytes) -> list[bytes]:
        """Return all elements that begin with these bytes."""
        found: set[bytes] = set()
        low, high = (np.frombuffer(prefix.ljust(self._size, end), f"S{self._size}") for end in (b"\0", b"\xff"))
        for _, elements in self.sets():
            begin, end = np.searchsorted(elements, low)[0], np.searchsorted(elements, high, "right")[0]
            data = elements[begin:end].tobytes()
            found |= {data[at : at + self._size] for at in range(0, len(data), self._size)}
        return sorted(found)

    def _names(self) -> list[str]:
        return sorted(name for name in files.list_names(self._folder) if name.endswith(_SUFFIX))

    def _read(self, name: str) -> tuple[float, Elements] | None:
        with contextlib.suppress(FileNotFoundError):
            path: Path = files.local_copy(self._folder / name)
            data = path.read_bytes()
            if len(data) > _HEAD and data[:8] == b"%08x" % zlib.crc32(memoryview(data)[_HEAD:]):
                return int(data[8:_HEAD], 16), np.frombuffer(data, f"S{self._size}", offset=_HEAD)
        return None

    def _merge(self) -> None:
        classes: dict[int, list[str]] = {}
        for name, size in files.file_sizes(self._folder).items():
            if name.endswith(_SUFFIX):
                classes.setdefault((size // self._size).bit_length() // 3, []).append(name)
        for names in classes.values():
            found = [each for name in names if (each := self._read(name)) is not None]
            if len(names) >= _MERGE_FACTOR and found:
                body = np.unique(np.concatenate([elements for _, elements in found])).tobytes()
                head = b"%08x%08x" % (zlib.crc32(body), int(max(when for when, _ in found)))
                files.replace(self._folder / f"{uuid.uuid4().hex}{_SUFFIX}", head + body)
                files.remove_all(self._folder / name for name in names)
