"""Tables of keyed nodes: their columns, the distribution of keys, and look-ups of states."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ferryman import limits
from ferryman.errors import StateDamaged, UsageError
from ferryman.storage import files
from ferryman.storage.delta import DataFile, read_log
from ferryman.storage.files import StatePath, explain_errors_of_class, local_path, path_of
from ferryman.storage.locks import Readers
from ferryman.storage.parquet import Part, check_footer, damage_error, data_files
from ferryman.storage.query import connect, quote_list, verify

KEY_STATE: Final = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("value", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("wave", pa.int64()),
        pa.field("bucket", pa.int64()),
    ]
)
"""Columns of a key's state; of several rows of a key, the one with the highest ``wave`` counts. ``value``: JSON; null:
the key has no state any more. ``sequence``: that of the last document that changed the state; it grows with each
change. ``bucket``: see ``bucket_of``. Files are sorted by bucket and key."""

CONTRIBUTIONS: Final = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("source", pa.string()),
        pa.field("document", pa.string()),
        pa.field("route", pa.string()),
        pa.field("revision", pa.int64()),
        pa.field("fields", pa.binary()),
        pa.field("wave", pa.int64()),
        pa.field("bucket", pa.int64()),
    ]
)
"""Columns of a changeable document's contribution to a key; of several rows with the same (``key``, ``source``,
``document``), the one with the highest ``wave`` counts, whatever its ``route``. ``fields``: JSON; null: the document no
longer contributes to the key."""

EXPORTS: Final = pa.schema(
    [
        pa.field("lane", pa.string()),
        pa.field("first_place", pa.int64()),
        pa.field("key", pa.string()),
        pa.field("document", pa.string()),
        pa.field("operation", pa.string()),
        pa.field("fields", pa.binary()),
        pa.field("raw", pa.binary()),
        pa.field("version", pa.string()),
    ]
)
"""Columns of an export that the plan has not processed yet. Its place is ``first_place`` + its row in the file."""

EXPORTS_PARTITION: Final = ["lane", "first_place"]

EXPORTS_FILE: Final = pa.schema([f for f in EXPORTS if f.name not in EXPORTS_PARTITION])
"""Columns inside a file of exports."""

BUCKETS: Final = 1 << 16
"""Number of hash values. A node's buckets are ranges of these, so the number of buckets may change at any time."""


def bucket_of(key: str) -> int:
    """Return the hash of a key, below ``BUCKETS``. The function never changes."""
    return zlib.crc32(key.encode()) >> 16


def key_hash(key: str) -> int:
    """Return a hash by which keys are only compared: the bucket, then 40 bits of another hash. The function never
    changes."""
    return bucket_of(key) << _HASH_BITS | int.from_bytes(blake2b(key.encode(), digest_size=_HASH_BITS // 8).digest())


def lane_number(hashed: int) -> int:
    """Return the lane number of a ``key_hash``, see ``lane_of``."""
    return (hashed >> _HASH_BITS) * limits.KEY_LANES // BUCKETS


def export_revision(lane: int, place: Any) -> Any:
    """Return the revision of one or several exports, by their places. Keys of several lanes may export the same id, so
    revisions of different lanes are distinct."""
    return place * limits.KEY_LANES + 1 + lane


def place_of(revision: int) -> tuple[str, int]:
    """Return lane and place of an export for its revision."""
    place, lane = divmod(revision - 1, limits.KEY_LANES)
    return f"lane{lane}", place


def export_name(revision: int) -> str:
    """Return the name of an export in ``documents``, since the same id may be exported many times."""
    lane, place = place_of(revision)
    return f"{lane}/{place}"


_HASH_BITS: Final = 40


PUBLISHED: Final = "ferryman.published"
"""Application id in the tables: the number of the last wave whose results a table contains."""


def file_stats(buckets: tuple[int, int], waves: tuple[int, int]) -> dict[str, Any]:
    """Return Delta statistics of a file of states or contributions: the ranges of its buckets and waves."""
    (first, last), (least, greatest) = buckets, waves
    return {"minValues": {"bucket": first, "wave": least}, "maxValues": {"bucket": last, "wave": greatest}}


def lane_of(bucket: int) -> str:
    """Return the lane of the exports of the keys in a bucket."""
    return f"lane{bucket * limits.KEY_LANES // BUCKETS}"


def lanes() -> list[str]:
    """Return the names of all lanes."""
    return [f"lane{n}" for n in range(limits.KEY_LANES)]


def place_id(lane: str) -> str:
    """Return the application id of a lane's next place."""
    return f"ferryman.place.{lane}"


# Readers of the changes of a state, and their positions: one sealed file per reader, in ``changes/<node>/``.
#
# When the state's files are merged, deletions are kept that a reader has not read yet. Readers are other plans with
# other drivers; their files are not protected by the fence, and only say what has to be kept.

FOLDER: Final = "changes"
FORGOTTEN: Final = "ferryman.forgotten"
"""Application id: the last wave whose deletions have been dropped from the state's files."""


def feed_id(root: StatePath, node: str) -> str:
    """Return the identity of the changes of a node's state, which no other state has except that of a newer version of
    the plan that continues this one.

    Args:
        root: folder of the state, which must exist.

    Raises:
        StateDamaged: the identity cannot be read.
    """
    identity: Any = files.unseal(root / "state.json")
    carried: dict[str, str] = identity.get("feeds", {})
    return carried.get(node, f"{identity.get('id', identity['first_sequence'])}/{node}")


def note(root: StatePath, node: str, reader: str, positions: Mapping[str, int], dropped: int | None = None) -> None:
    """Record that a reader has read everything before these places.

    Args:
        root: folder of the state.
        dropped: for a new reader, the last wave whose deletions were dropped before it began; None: recorded already.
    """
    path = _path(root, node, reader)
    files.make_folder(path.parent)
    before = dropped_before(root, node, reader) if dropped is None else dropped
    files.replace(path, files.seal({"reader": reader, "positions": dict(positions), "dropped": before}))


def dropped_before(root: StatePath, node: str, reader: str) -> int:
    """Return the last wave whose deletions had been dropped when this reader began; 0: none, or unknown."""
    try:
        recorded: Any = files.unseal(_path(root, node, reader))
    except (StateDamaged, OSError):
        return 0
    return int(recorded.get("dropped", 0))


def is_known(root: StatePath, node: str, reader: str) -> bool:
    """Return whether positions of this reader are recorded."""
    return files.exists(_path(root, node, reader))


def forget(root: StatePath, node: str, reader: str) -> None:
    """Remove a reader, for which nothing has to be kept any more."""
    files.remove(_path(root, node, reader))


def first_needed_wave(root: StatePath, node: str) -> int | None:
    """Return the first wave whose deletions a reader may still need; None if no reader needs any.

    If a reader's file cannot be read, all deletions are needed.
    """
    folder = root / FOLDER / node
    paths = [folder / name for name in files.list_names(folder) if name.endswith(".json")]
    places = [place for path in paths for place in _places(path)]
    return min(places, default=None)


def _places(path: StatePath) -> list[int]:
    try:
        recorded: Any = files.unseal(path)
        return [max(1, place) for place in recorded["positions"].values()]
    except (StateDamaged, OSError):
        return [1] if files.exists(path) else []


def _path(root: StatePath, node: str, reader: str) -> StatePath:
    return root / FOLDER / node / f"{quote(reader, safe='')}.json"


# Contributions of changeable documents to keys, looked up by document.


class Contribution(NamedTuple):
    """Contribution of a document to a key.

    Attributes:
        fields: JSON.
    """

    key: str
    revision: int
    fields: bytes


SourceDocument = tuple[str, str]
"""(source, document). A changeable document reaches a node by only one route, which another version of the plan may
change."""


def contributions_of(
    files: Sequence[str], documents: pa.Table, folder: Path
) -> dict[SourceDocument, list[Contribution]]:
    """Return the contributions of these documents to keys, by ``source`` and ``document``.

    Args:
        files: files of the table: paths, or URLs of objects.
        folder: scratch folder for data that does not fit into memory.

    Raises:
        StateDamaged: a file is missing, or not what was written.
    """
    contributions: dict[SourceDocument, list[Contribution]] = defaultdict(list)
    if not files or not documents.num_rows:
        return contributions
    paths = data_files(map(path_of, files))
    verify(paths)
    with connect(folder) as db:
        db.register("wanted", documents)
        rows = db.execute(f"""
            SELECT source, document, key, revision, fields FROM (
                SELECT * FROM read_parquet({quote_list(map(str, paths))}) SEMI JOIN wanted USING (source, document)
                QUALIFY row_number() OVER (PARTITION BY source, document, key ORDER BY wave DESC) = 1
            ) WHERE fields IS NOT NULL ORDER BY key
        """)
        for source, document, *contribution in rows.fetchall():
            contributions[source, document].append(Contribution(*contribution))
    return contributions


# Results that workers record for the keys that they updated; the journal keeps them until the wave is settled.


class UpdateResult(msgspec.Struct, frozen=True):
    """Result of an update for the due documents of a range of keys.

    Attributes:
        node: the keyed node.
        range: number of the range of keys in the pass.
        lane: lane of its exports.
        ledger, state, exports, contributions: data files with the results; None: there are none.
        leaving: first sequence of an outbox file -> number of its rows that are finished.
        sent: number of rows that were processed.
        failed: number of these that failed permanently.
        withdrawn: number of rows withdrawn from a former key, which still have to be counted at their new key.
        dropped: number of the finished rows that ``update`` dropped.
    """

    node: str
    range: int
    lane: str
    ledger: Part | None
    state: Part | None
    exports: Part | None
    contributions: Part | None
    leaving: dict[int, int]
    sent: int
    deleted: int
    failed: int
    withdrawn: int
    dropped: int = 0


# Committed states of a keyed node, for look-ups of single keys.


class KeyState(NamedTuple):
    """The state of a key.

    Attributes:
        sequence: of the last document that changed it.
        wave: the wave that committed it.
    """

    key: str
    value: Any
    sequence: int
    wave: int


@explain_errors_of_class(lambda states: states._folder)
class KeyStates:
    """The states of one keyed node, as of the last settled wave. A run may go on beside whoever asks.

    Args:
        root: of the state.
        node: its name.
    """

    def __init__(self, root: StatePath, node: str) -> None:
        self._folder = root / "state" / node
        self._readers = Readers(root / "readers")

    def get(self, key: str) -> Any:
        """The state of a key, a JSON value; None: it has none.

        Raises:
            UsageError: the key is not text.
            StateDamaged: a file is missing, or not what was written.
        """
        state = self.entry(key)
        return None if state is None else state.value

    def entry(self, key: str) -> KeyState | None:
        """Return the key's state with its sequence and wave; None: it has none."""
        if not isinstance(key, str):
            raise UsageError(f"{key!r}: a key is text.")
        with self._readers.reading():
            try:
                row = self._row(key)
            except StateDamaged:  # a driver may have replaced files since they were listed
                row = self._row(key)
        if row is None or row.value is None:
            return None
        return KeyState(key, msgspec.json.decode(row.value), row.sequence, row.wave)

    def _row(self, key: str) -> KeyRow | None:
        bucket = bucket_of(key)
        if (log := read_log(self._folder)) is None:
            return None  # the plan has not run yet
        values = KeyValues(key_file(self._folder, file) for file in log.live_files())
        try:
            return values.of(pa.array([key]), bucket, bucket).get(key)
        finally:
            values.close()


# States of several keys, read from the files of a keyed node's table; the row of a key's latest wave counts.

_BUCKET: Final = KEY_STATE.get_field_index("bucket")


class KeyFile(NamedTuple):
    """File of a keyed node's state, and the range of its buckets."""

    path: str
    first: int
    last: int


def key_file(folder: StatePath, file: DataFile) -> KeyFile:
    """Return a live file of a node's state."""
    return KeyFile(str(folder / file.path), *(int(file.stats[kind]["bucket"]) for kind in ("minValues", "maxValues")))


class KeyRow(NamedTuple):
    """Stored state of a key.

    Attributes:
        value: JSON; None: it has no state.
    """

    value: str | None
    sequence: int
    wave: int


class KeyValues:
    """States of a node, for look-ups of many keys in the order of their buckets."""

    def __init__(self, files: Iterable[KeyFile]) -> None:
        self._files = list(files)
        self._open: dict[str, pq.ParquetFile] = {}

    def of(self, keys: pa.Array, first: int, last: int) -> dict[str, KeyRow]:
        """Return the stored states of these keys.

        Args:
            first, last: their least and greatest bucket.

        Raises:
            StateDamaged: a file is missing, or not what was written.
        """
        states: dict[str, KeyRow] = {}
        for rows in self._rows(first, last):
            rows = rows.filter(pc.is_in(rows["key"], value_set=keys))
            columns = (rows[name].to_pylist() for name in ("key", "value", "sequence", "wave"))
            for key, value, sequence, wave in zip(*columns, strict=True):
                if key not in states or states[key].wave < wave:
                    states[key] = KeyRow(value, sequence, wave)
        return states

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            file.close()
        self._open = {}

    def _rows(self, first: int, last: int) -> Iterator[pa.Table]:
        """Yield the row groups that may have rows of these buckets."""
        for each in self._files:
            if each.first <= last and first <= each.last:
                try:
                    yield from self._groups(each.path, first, last)
                except (OSError, pa.ArrowException) as e:
                    raise damage_error(each.path, e) from e

    def _groups(self, path: str, first: int, last: int) -> Iterator[pa.Table]:
        if path not in self._open:
            check_footer(Path(local_path(path)))
            self._open[path] = pq.ParquetFile(local_path(path), page_checksum_verification=True, memory_map=False)
        file = self._open[path]
        for number in range(file.metadata.num_row_groups):
            statistics = file.metadata.row_group(number).column(_BUCKET).statistics
            if statistics.min <= last and first <= statistics.max:
                yield file.read_row_group(number, columns=["key", "value", "sequence", "wave"], use_threads=False)
