"""The state of some keys, read from the files of a keyed node's table: of a key's rows the one of the latest wave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ferryman.records.keyed import KEY_STATE
from ferryman.storage.files import StatePath, here
from ferryman.storage.handles import DataFile
from ferryman.storage.parquet import check_footer, damaged

_BUCKET: Final = KEY_STATE.get_field_index("bucket")


class KeyFile(NamedTuple):
    """A file of the state, and which buckets it may have."""

    path: str
    first: int
    last: int


def key_file(folder: StatePath, file: DataFile) -> KeyFile:
    """A live file of a node's state."""
    return KeyFile(str(folder / file.path), *(int(file.stats[kind]["bucket"]) for kind in ("minValues", "maxValues")))


class KeyRow(NamedTuple):
    """What is known of a key.

    Attributes:
        value: JSON; None: it has no state.
    """

    value: str | None
    sequence: int
    wave: int


class KeyValues:
    """The state of a node, for who looks up many keys in the order of their buckets."""

    def __init__(self, files: Iterable[KeyFile]) -> None:
        self._files = list(files)
        self._open: dict[str, pq.ParquetFile] = {}

    def of(self, keys: pa.Array, first: int, last: int) -> dict[str, KeyRow]:
        """Those of these keys of which something is known.

        Args:
            first, last: their least and greatest bucket.

        Raises:
            StateDamaged: a file is missing, or not what was written.
        """
        found: dict[str, KeyRow] = {}
        for rows in self._rows(first, last):
            rows = rows.filter(pc.is_in(rows["key"], value_set=keys))
            columns = (rows[name].to_pylist() for name in ("key", "value", "sequence", "wave"))
            for key, value, sequence, wave in zip(*columns, strict=True):
                if key not in found or found[key].wave < wave:
                    found[key] = KeyRow(value, sequence, wave)
        return found

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            file.close()
        self._open = {}

    def _rows(self, first: int, last: int) -> Iterator[pa.Table]:
        """The row groups that may have rows of these buckets."""
        for each in self._files:
            if each.first <= last and first <= each.last:
                try:
                    yield from self._groups(each.path, first, last)
                except (OSError, pa.ArrowException) as e:
                    raise damaged(each.path, e) from e

    def _groups(self, path: str, first: int, last: int) -> Iterator[pa.Table]:
        if path not in self._open:
            check_footer(Path(here(path)))
            self._open[path] = pq.ParquetFile(here(path), page_checksum_verification=True, memory_map=False)
        file = self._open[path]
        for number in range(file.metadata.num_row_groups):
            told = file.metadata.row_group(number).column(_BUCKET).statistics
            if told.min <= last and first <= told.max:
                yield file.read_row_group(number, columns=["key", "value", "sequence", "wave"], use_threads=False)
