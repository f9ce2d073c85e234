"""Columns of the tables of a keyed node, and how its keys are spread."""

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
from ferryman.storage import files as seals
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
"""The row of a key with the highest ``wave`` counts. ``value``: JSON; null: the key has no state any more.
``sequence``: of the last document that changed it, it grows with each change. ``bucket``: see ``bucket_of``; files are
sorted by bucket and key."""

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
"""Contributions of changeable documents to keys: of (``key``, ``source``, ``document``) the row with the highest
``wave`` counts, whatever its ``route``. ``fields``: JSON; null: the document no longer contributes to the key."""

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
"""Exports of a keyed node that the plan has not processed yet. Place = ``first_place`` + row of the file."""

EXPORTS_PARTITION: Final = ["lane", "first_place"]

EXPORTS_FILE: Final = pa.schema([f for f in EXPORTS if f.name not in EXPORTS_PARTITION])
"""Columns inside a file of exports."""

BUCKETS: Final = 1 << 16
"""Hash values. A node's buckets are ranges of them, so their number may change at any time."""


def bucket_of(key: str) -> int:
    """The hash of a key, below ``BUCKETS``. It never changes."""
    return zlib.crc32(key.encode()) >> 16


def key_hash(key: str) -> int:
    """Tells a key from others where they are only compared: its bucket, then 40 bits of another hash. It never
    changes."""
    return bucket_of(key) << _REST | int.from_bytes(blake2b(key.encode(), digest_size=_REST // 8).digest())


def lane_number(hashed: int) -> int:
    """Return the lane number of a ``key_hash``, see ``lane_of``."""
    return (hashed >> _REST) * limits.KEY_LANES // BUCKETS


def export_revision(lane: int, place: Any) -> Any:
    """Return the revision of one or several exports by place: keys of several lanes may export one id, and no two
    lanes share a revision."""
    return place * limits.KEY_LANES + 1 + lane


def place_of(revision: int) -> tuple[str, int]:
    """Lane and place of an export, by its revision."""
    place, lane = divmod(revision - 1, limits.KEY_LANES)
    return f"lane{lane}", place


def export_name(revision: int) -> str:
    """Return the name of an export in ``documents``: one id may be exported again and again."""
    lane, place = place_of(revision)
    return f"{lane}/{place}"


_REST: Final = 40


PUBLISHED: Final = "ferryman.published"
"""Application id of the tables: number of the last wave whose results one has."""


def file_stats(buckets: tuple[int, int], waves: tuple[int, int]) -> dict[str, Any]:
    """Delta statistics of a file of states, or of contributions: which buckets and waves it may have."""
    (first, last), (least, greatest) = buckets, waves
    return {"minValues": {"bucket": first, "wave": least}, "maxValues": {"bucket": last, "wave": greatest}}


def lane_of(bucket: int) -> str:
    """The lane in which the exports of these keys go on."""
    return f"lane{bucket * limits.KEY_LANES // BUCKETS}"


def lanes() -> list[str]:
    """All of them."""
    return [f"lane{n}" for n in range(limits.KEY_LANES)]


def place_id(lane: str) -> str:
    """Application id of a lane's next place."""
    return f"ferryman.place.{lane}"


# Who reads the changes of a state, and how far: one sealed file for each reader, in ``changes/<node>/`` of the state.
#
# Deletions that a reader has not had are kept when the state's files are merged. Readers are other plans with other
# drivers: their files are outside the fence, and only say what has to be kept.

FOLDER: Final = "changes"
FORGOTTEN: Final = "ferryman.forgotten"
"""Application id: the last wave of which deletions have been dropped from the state's files."""


def feed_of(root: StatePath, node: str) -> str:
    """By which name a reader knows the changes of a node's state: no other state's has it, but that of a newer version
    which goes on with it.

    Args:
        root: of the state, which is there.

    Raises:
        StateDamaged: its name cannot be read.
    """
    found: Any = seals.unseal(root / "state.json")
    carried: dict[str, str] = found.get("feeds", {})
    return carried.get(node, f"{found.get('id', found['first_sequence'])}/{node}")


def note(root: StatePath, node: str, reader: str, positions: Mapping[str, int], dropped: int | None = None) -> None:
    """This reader has had what lies before these places.

    Args:
        root: of the state.
        dropped: it begins, and this is the last wave of which deletions were dropped before; None: it has said so.
    """
    path = _path(root, node, reader)
    files.make_folder(path.parent)
    before = dropped_before(root, node, reader) if dropped is None else dropped
    files.replace(path, seals.seal({"reader": reader, "positions": dict(positions), "dropped": before}))


def dropped_before(root: StatePath, node: str, reader: str) -> int:
    """The last wave of which deletions had been dropped when this reader began; 0: none, or nothing is known of it."""
    try:
        found: Any = seals.unseal(_path(root, node, reader))
    except (StateDamaged, OSError):
        return 0
    return int(found.get("dropped", 0))


def is_known(root: StatePath, node: str, reader: str) -> bool:
    """Has this reader said where it stands?"""
    return files.exists(_path(root, node, reader))


def forget(root: StatePath, node: str, reader: str) -> None:
    """Keep nothing for this reader any more."""
    files.remove(_path(root, node, reader))


def needed_from(root: StatePath, node: str) -> int | None:
    """The first wave whose deletions a reader may still need; None: nobody needs any.

    A file that cannot be read keeps all.
    """
    folder = root / FOLDER / node
    paths = [folder / name for name in files.list_names(folder) if name.endswith(".json")]
    places = [place for path in paths for place in _places(path)]
    return min(places, default=None)


def _places(path: StatePath) -> list[int]:
    try:
        found: Any = seals.unseal(path)
        return [max(1, place) for place in found["positions"].values()]
    except (StateDamaged, OSError):
        return [1] if files.exists(path) else []


def _path(root: StatePath, node: str, reader: str) -> StatePath:
    return root / FOLDER / node / f"{quote(reader, safe='')}.json"


# What keys were given of documents that may change, looked up by document.


class Contribution(NamedTuple):
    """A document's contribution to a key.

    Attributes:
        fields: JSON.
    """

    key: str
    revision: int
    fields: bytes


Whose = tuple[str, str]
"""(source, document): a document that may change comes to a node by one way only, another one in another version of the
plan."""


def contributions_of(files: Sequence[str], documents: pa.Table, folder: Path) -> dict[Whose, list[Contribution]]:
    """Return the contributions of these documents to keys, by ``source`` and ``document``.

    Args:
        files: of the table: paths, or URLs of objects.
        folder: for what does not fit into memory.

    Raises:
        StateDamaged: a file is missing, or not what was written.
    """
    found: dict[Whose, list[Contribution]] = defaultdict(list)
    if not files or not documents.num_rows:
        return found
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
            found[source, document].append(Contribution(*contribution))
    return found


# What workers note of the keys that they updated; the journal keeps it until the wave is settled.


class UpdateResult(msgspec.Struct, frozen=True):
    """Result of an update for the due documents of a range of keys.

    Attributes:
        node: the keyed node.
        range: its number in the pass.
        lane: of its exports.
        ledger, state, exports, contributions: the files that say it; None: there is nothing to say.
        leaving: first sequence of an outbox file -> how many of its rows are done.
        sent: rows that something became of.
        failed: of these, that failed for good.
        withdrawn: rows of which a former key was told that they are gone; they are still to come to their new one.
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


# The committed states of a keyed node, for who looks up single keys.


class KeyState(NamedTuple):
    """The state of a key.

    Attributes:
        sequence: of the last document that changed it.
        wave: that committed it.
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
        found = self.entry(key)
        return None if found is None else found.value

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
        found = KeyValues(key_file(self._folder, file) for file in log.live_files())
        try:
            return found.of(pa.array([key]), bucket, bucket).get(key)
        finally:
            found.close()


# The state of some keys, read from the files of a keyed node's table: of a key's rows the one of the latest wave.

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
    """Stored state of a key.

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
        """Return the stored states of these keys.

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
                    raise damage_error(each.path, e) from e

    def _groups(self, path: str, first: int, last: int) -> Iterator[pa.Table]:
        if path not in self._open:
            check_footer(Path(local_path(path)))
            self._open[path] = pq.ParquetFile(local_path(path), page_checksum_verification=True, memory_map=False)
        file = self._open[path]
        for number in range(file.metadata.num_row_groups):
            told = file.metadata.row_group(number).column(_BUCKET).statistics
            if told.min <= last and first <= told.max:
                yield file.read_row_group(number, columns=["key", "value", "sequence", "wave"], use_threads=False)
