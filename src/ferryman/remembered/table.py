"""Table of answers: Delta and Parquet, open to other programs, and sorted so that a task reads only what it needs.

::

    answers/                       the table; each file is sorted by ``key``
    index/<file>.keys              the keys of a data file, in its order: found without reading the file
    documents/<id>.sorted          pairs of a document's hash and a key that was used for it
    used/<id>.sorted               keys that were used when the file was written, for ``max_bytes``

Files of partition ``new`` have keys of the whole range; when they are many they are merged with the others, each of
which has a range of its own. Row groups are small: to read an answer takes one of them.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ferryman import crash, limits
from ferryman.errors import StateDamaged
from ferryman.remembered.answers import KEY_BYTES, RememberedAnswer
from ferryman.storage import files
from ferryman.storage.delta import OWN_CHECKPOINTS, DataFile, DeltaLog, LogEntry, delta_schema, first_entry
from ferryman.storage.files import StatePath
from ferryman.storage.parquet import PartWriter, check_footer

ANSWERS: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("version", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("created", pa.timestamp("us", tz="UTC")),
        pa.field("fields", pa.string()),
        pa.field("removed", pa.string()),
        pa.field("vectors", pa.string()),
        pa.field("numbers", pa.list_(pa.float32())),
        pa.field("reason", pa.string()),
        pa.field("error", pa.string()),
        pa.field("bucket", pa.string()),
    ]
)
"""Columns of the table. ``key`` is in hex digits, as a step sees its idempotency key. ``vectors`` says where
 in ``fields`` the numbers belong: a JSON list of places with lengths."""

BUCKET: Final = "bucket"
NEW: Final = "new"
FOLDED: Final = "folded"
"""Field of a commit: the logs whose records it has."""

_FILE_COLUMNS: Final = pa.schema([field for field in ANSWERS if field.name != BUCKET])
_GROUP_BYTES: Final = 128 * limits.KIB
"""Bytes of a row group, about: what is read for one answer."""
_GROUP_ROWS: Final = 1024
_CACHED_GROUPS: Final = 16
_OPEN_FILES: Final = 256

Keys = np.ndarray[Any, Any]
"""Sorted keys, as fixed-length bytes."""


class Row(NamedTuple):
    """An answer with its key and version."""

    key: bytes
    version: str
    answer: RememberedAnswer


def keys_array(keys: Iterable[bytes], size: int = KEY_BYTES) -> Keys:
    """Return keys as an array, in their order."""
    return np.frombuffer(b"".join(keys), f"S{size}")


def contains(sorted_keys: Keys, wanted: Keys) -> np.ndarray[Any, Any]:
    """Return for each wanted key whether it is among sorted ones."""
    if not len(sorted_keys):
        return np.zeros(len(wanted), bool)
    at = np.searchsorted(sorted_keys, wanted)
    at[at == len(sorted_keys)] = 0
    found: np.ndarray[Any, Any] = sorted_keys[at] == wanted
    return found


class AnswerTable:
    """Table of answers in a folder, as of one version."""

    def __init__(self, folder: StatePath) -> None:
        self.folder = folder / "answers"
        self._index = folder / "index"
        self.log: DeltaLog[DataFile] = DeltaLog(self.folder, DataFile)
        self._by_range: list[tuple[bytes, bytes, DataFile]] = []
        self._keys: dict[str, Keys] = {}
        self._open: OrderedDict[str, pq.ParquetFile | None] = OrderedDict()
        self._starts: dict[str, np.ndarray[Any, Any]] = {}
        """Data file -> first row of each of its row groups."""
        self._groups: OrderedDict[tuple[str, int], pa.Table | None] = OrderedDict()
        self.damaged = 0
        """Row groups, or files, that were not what was written."""

    @property
    def files(self) -> list[DataFile]:
        return self.log.live_files()

    @property
    def rows(self) -> int:
        """Number of answers, of which some may be there twice."""
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        """Bytes of the data files."""
        return sum(file.size for file in self.files)

    def refresh(self, *, durable: bool = True) -> None:
        """Read the newest version; do nothing if there is no table yet.

        Args:
            durable: make it durable, as something will rely on it.
        """
        if self.log.version < 0 and not self.log.exists:
            return
        if self.log.refresh(durable=durable) or not self._by_range:
            self._sort()

    def _sort(self) -> None:
        ranges = [(*_range_of(file), file) for file in self.files]
        self._by_range = sorted(ranges, key=lambda each: each[:2])
        live = self.log.files
        self._keys = {name: keys for name, keys in self._keys.items() if name in live}
        for name in [name for name in self._open if name not in live]:
            self._close(name)
        self._groups = OrderedDict((place, rows) for place, rows in self._groups.items() if place[0] in live)

    def folded(self) -> set[str]:
        """Return the logs whose records the last ``fold`` has taken into the table."""
        try:
            return {*self.log.last_info.get(FOLDED, ())}
        except KeyError:  # there is no table, or nothing but a checkpoint
            return set()

    def find(self, key: bytes) -> RememberedAnswer | None:
        """Return the newest answer to an input; None: there is none that is whole."""
        found: RememberedAnswer | None = None
        wanted = keys_array([key])
        for first, last, file in self._by_range:
            if first > key or last < key:
                continue
            keys = self.keys(file)
            at = int(np.searchsorted(keys, wanted)[0])
            if at == len(keys) or keys[at] != wanted[0]:
                continue
            answer = self._read(file, at, key)
            if answer is not None and (found is None or answer.created > found.created):
                found = answer
        return found

    def keys(self, file: DataFile) -> Keys:
        """Return the keys of a data file, from its index, or from the file itself if that is damaged."""
        if file.path not in self._keys:
            path = self._index / f"{file.path}.keys"
            with contextlib.suppress(OSError, ValueError):
                keys = np.memmap(files.local_copy(path), f"S{KEY_BYTES}", "r")
                if len(keys) == file.rows:
                    self._keys[file.path] = keys
                    return keys
            self._keys[file.path] = self._keys_of_file(file)
        return self._keys[file.path]

    def _keys_of_file(self, file: DataFile) -> Keys:
        keys = [keys_array(map(bytes.fromhex, rows["key"].to_pylist())) for rows in self.groups(file, ["key"])]
        found = np.concatenate(keys) if keys else keys_array([])
        return found if len(found) == file.rows else keys_array([])  # places would be wrong

    def _read(self, file: DataFile, row: int, key: bytes) -> RememberedAnswer | None:
        parquet = self._file(file)
        if parquet is None:
            return None
        starts = self._starts[file.path]
        group = int(np.searchsorted(starts, row, "right")) - 1
        row -= int(starts[group])
        place = file.path, group
        if place not in self._groups:
            self._groups[place] = self._read_group(parquet, group, None)
            if len(self._groups) > _CACHED_GROUPS:
                self._groups.popitem(last=False)
        table = self._groups[place]
        if table is None or table["key"][row].as_py() != key.hex():
            return None
        return next(rows_of(table.slice(row, 1))).answer

    def _read_group(self, parquet: pq.ParquetFile, group: int, columns: list[str] | None) -> pa.Table | None:
        try:
            return parquet.read_row_group(group, columns=columns, use_threads=False)
        except (OSError, pa.ArrowException):
            self.damaged += 1
            return None

    def _file(self, file: DataFile) -> pq.ParquetFile | None:
        if file.path not in self._open:
            try:
                path = files.local_copy(self.folder / file.path)
                check_footer(path)
                opened = pq.ParquetFile(path, page_checksum_verification=True, memory_map=False)
                sizes = [opened.metadata.row_group(n).num_rows for n in range(opened.num_row_groups)]
                self._open[file.path], self._starts[file.path] = opened, np.cumsum([0, *sizes])
            except (OSError, StateDamaged, pa.ArrowException):
                self.damaged += 1
                self._open[file.path] = None
            if len(self._open) > _OPEN_FILES:
                self._close(next(iter(self._open)))
        return self._open[file.path]

    def _close(self, name: str) -> None:
        if (parquet := self._open.pop(name)) is not None:
            parquet.close()

    def groups(
        self, file: DataFile, columns: list[str] | None = None, between: tuple[bytes, bytes] | None = None
    ) -> Iterator[pa.Table]:
        """Yield the row groups of a data file that are whole.

        Args:
            between: only those that may have keys from the first to the second, both included.
        """
        parquet = self._file(file)
        if parquet is None:
            return
        first, last = 0, file.rows
        if between is not None:
            keys = self.keys(file)
            first = int(np.searchsorted(keys, keys_array([between[0]]))[0])
            last = int(np.searchsorted(keys, keys_array([between[1]]), "right")[0])
        starts = self._starts[file.path]
        for group in range(parquet.num_row_groups):
            wanted = starts[group] < last and starts[group + 1] > first
            if wanted and (table := self._read_group(parquet, group, columns)) is not None:
                yield table

    # -- writing -----------------------------------------------------------------------------------

    def create(self) -> None:
        """Create the table if there is none."""
        if self.log.version < 0 and not self.log.exists:
            self.log.create(first_entry(delta_schema(ANSWERS), [BUCKET], OWN_CHECKPOINTS))
        self.refresh()

    def write(self, table: pa.Table, bucket: str) -> DataFile | None:
        """Write a data file with its index, which no version names yet; None: there are no rows.

        Args:
            table: rows in any order; of those with one key the newest counts.
        """
        table = _newest(table)
        if not table.num_rows:
            return None
        files.make_folder(self._index)
        writer = PartWriter(self.folder, _FILE_COLUMNS, epoch=1)
        rows = max(1, min(_GROUP_ROWS, _GROUP_BYTES * table.num_rows // max(1, table.nbytes)))
        try:
            for at in range(0, table.num_rows, rows):
                writer.write(table.slice(at, rows))
            part = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        keys = table["key"].to_pylist()
        files.replace(self._index / f"{part.path}.keys", b"".join(map(bytes.fromhex, keys)))
        files.fsync_folder(self.folder)
        crash.point("remembered.staged")
        bounds = {"minValues": {"key": keys[0]}, "maxValues": {"key": keys[-1]}}
        return DataFile(part.path, part.size, part.rows, {BUCKET: bucket}, bounds)

    def commit(
        self, adds: Sequence[DataFile], removes: Sequence[DataFile], totals: dict[str, int], info: dict[str, Any]
    ) -> bool:
        """Commit a change of the table; return False if another process was faster. A change that folds no logs keeps
        the names of those that were folded last, by which a reader knows that the table has them."""
        info = {FOLDED: sorted(self.folded()), **info}
        entry = LogEntry("remembered", tuple(adds), tuple(file.path for file in removes), totals, info)
        if not self.log.commit(entry):
            return False
        self._sort()
        return True

    def remove_unnamed(self) -> None:
        """Remove data files and indexes that no version names: replaced ones, and what a kill has left."""
        live = self.log.files
        for name in files.list_names(self.folder):
            if name != "_delta_log" and name not in live:
                files.remove(self.folder / name)
        for name in files.list_names(self._index):
            if name.removesuffix(".keys") not in live:
                files.remove(self._index / name)


def _range_of(file: DataFile) -> tuple[bytes, bytes]:
    first, last = (bytes.fromhex(file.stats[bound]["key"]) for bound in ("minValues", "maxValues"))
    return first, last


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Return answers in the columns of a data file."""
    columns: dict[str, list[Any]] = {name: [] for name in _FILE_COLUMNS.names}
    offsets, numbers = [0], []
    for key, version, answer in rows:
        vector = np.frombuffer(answer.numbers, "<f4")
        numbers.append(vector)
        offsets.append(offsets[-1] + len(vector))
        removed = msgspec.json.encode(answer.removed).decode() if answer.removed else None
        vectors = msgspec.json.encode(answer.vectors).decode() if answer.vectors else None
        values = (key.hex(), version, answer.kind, answer.created, answer.fields.decode(), removed, vectors, None)
        for name, value in zip(columns, (*values, answer.reason, answer.error), strict=True):
            columns[name].append(value)
    floats = pa.array(np.concatenate(numbers) if numbers else [], pa.float32())
    arrays = [pa.array(columns[field.name], field.type) for field in _FILE_COLUMNS]
    arrays[_FILE_COLUMNS.get_field_index("numbers")] = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), floats)
    return pa.Table.from_arrays(arrays, schema=_FILE_COLUMNS)


def rows_of(table: pa.Table) -> Iterator[Row]:
    """Yield the answers in rows of a data file."""
    names = [name for name in table.column_names if name != "numbers"]
    for n in range(table.num_rows):
        row = {name: table[name][n].as_py() for name in names}
        numbers = table["numbers"][n].values
        answer = RememberedAnswer(
            row["kind"],
            _micros(row["created"]),
            row["fields"].encode(),
            msgspec.json.decode(row["removed"]) if row["removed"] else [],
            _decode_vectors(row["vectors"]) if row["vectors"] else [],
            b"" if numbers is None else numbers.to_numpy(zero_copy_only=False).astype("<f4").tobytes(),
            row["reason"],
            row["error"],
        )
        yield Row(bytes.fromhex(row["key"]), row["version"], answer)


_decode_vectors = msgspec.json.Decoder(list[tuple[list[str | int], int]]).decode


def _micros(when: dt.datetime) -> int:
    return (when - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def _newest(table: pa.Table) -> pa.Table:
    """Return the rows in the order of their keys, of each key only the newest."""
    order = pc.sort_indices(table, [("key", "ascending"), ("created", "descending")])
    table = table.take(order).combine_chunks()
    keys = table["key"]
    if table.num_rows > 1:
        new = pa.concat_arrays([pa.array([True]), pc.not_equal(keys[1:], keys[:-1]).combine_chunks()])
        table = table.filter(new)
    return table
