"""The changes of a state by key, as a log: what another plan reads that replicates the state.

A place is a wave of the plan that keeps the state, and all keys that it changed share it. Partitions are the ranges of
keys by which the state's exports go on. Nothing is written for a feed: it is read from the files of the state.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from ferryman.document import Document, content_version, decode_fields, excess
from ferryman.errors import BadDocument, FerrymanError, Misconfigured, StateDamaged, Unavailable, UsageError
from ferryman.net import places
from ferryman.records.keys import BUCKETS, FORGOTTEN, KEY_STATE, PUBLISHED, lane_of, lanes
from ferryman.records.rows import table_of
from ferryman.sources.base import Listed
from ferryman.sources.log import Entry, Log, OnError, Piece, Positions, feed_name
from ferryman.sources.log_rows import ROWS
from ferryman.storage.delta import DataFile, open_log
from ferryman.storage.files import StatePath, local_path
from ferryman.storage.query import connect, quote_list, stream, verify


class Changes(Log):
    """The changes of a state by key (docs/how-to/replicate-a-state.md): a document for each key that has changed.

    The id is the key, and the fields are ``key``, ``value`` (the state, a JSON value) and ``sequence`` (of the last
    document that changed it). A key that has no state any more is deleted wherever it may have come to. The first run
    reads all keys that have a state; each run after it what has changed since. A key that has changed several times
    since the last look comes once, as it is now: to have each change, read what the keyed node exports.

    What the plan makes of a key is not remembered: with a key that is deleted its children stay, and a keyed node below
    counts each change by itself.

    Args:
        plan: the plan that keeps the state.
        node: its keyed node.
        state: the folder of states of that plan. Relative to the plan file; in a program, to the current folder.
            Default: ``.ferryman``.
        ordered, on_error: see ``Log``.
        prefix: put before every id.

    Raises:
        UsageError: it is not a plan, or has no keyed node of this name.
    """

    shares_places = True
    repeats_ids = True

    def __init__(
        self,
        plan: Any,
        node: str,
        state: str | os.PathLike[str] | None = None,
        *,
        ordered: bool = True,
        on_error: OnError = "stop",
        prefix: str = "",
    ) -> None:
        super().__init__(prefix=prefix, ordered=ordered, on_error=on_error)
        known = [each.name for each in getattr(plan, "nodes", ()) if each.kind == "keyed"]
        if not hasattr(plan, "key"):
            raise UsageError(f"{plan!r} is not a Plan: give the plan that keeps the state, then the keyed node's name.")
        if node not in known:
            raise UsageError(f"{node!r} is not a keyed node of plan {plan.name}. It has: {', '.join(known) or 'none'}.")
        self.node = node
        self.plan_key = str(plan.key)
        self._reader = ""
        self.root = _states(".ferryman" if state is None else state) / self.plan_key

    def place(self) -> str | None:
        return str(self._folder)

    def local_paths(self) -> tuple[str, ...]:
        return (str(self._folder),) if isinstance(self._folder, Path) and self._is_there() else ()

    def reads(self) -> str | None:
        return feed_name(self.plan_key, self.node)

    def check(self) -> None:
        """Raises:
        Misconfigured: the state cannot be read, or another version of Ferryman wrote it.
        """
        with self._explained():
            if self._is_there():
                self._files()

    def identity(self) -> str:
        with self._explained():
            return self._identity()

    def nothing(self) -> str:
        if self._is_there():
            return ""
        return f"plan {self.plan_key} has no state of {self.node} in {self.root.parent} yet"

    def begin(self) -> Positions:
        return dict.fromkeys(self.end(), 0)

    def end(self) -> Positions:
        """Return for each range of keys the wave after the last one that changed any."""
        with self._explained():
            return self._files().end() if self._is_there() else {}

    def lag(self, positions: Positions, end: Positions) -> int:
        """Keys to be read, about."""
        if not super().lag(positions, end):
            return 0
        with self._explained(), self._readers():
            return max(1, sum(count for *_, count in self._files().counts(positions, end)))

    def pieces(self, start: Positions, end: Positions, limit: int) -> Iterator[Piece]:
        """Whole waves of a range of keys, so many that they have no more keys than ``limit``; one at least.

        Raises:
            Misconfigured: deletions that were not read are not kept any more.
        """
        if not super().lag(start, end):
            return
        with self._explained(), self._readers():
            found = self._files()
            self._check_kept(found.forgotten, start, end)
            counts = found.counts(start, end)
        for partition, last in end.items():
            mine = [(wave, count) for name, wave, count in counts if name == partition]
            for first, upto, count in _cut(mine, start.get(partition, last), last, limit):
                yield Piece(partition, first, upto, count * found.row_bytes, str(last))

    def pinned(self, piece: Piece, identities: Mapping[str, str]) -> Piece:
        return piece._replace(identity=f"{piece.identity}:{identities.get('', '')}")

    def read_piece(self, piece: Piece) -> Iterator[Entry]:
        for table in self._rows(piece):
            for row in table.to_pylist():
                id = self.own_id(row["id"])
                doc = (
                    Document.deletion(id) if row["deletes"] else Document.of(id, decode_fields(row["fields"] or b"{}"))
                )
                yield Entry(row["place"], doc, row["dropped"] or "", refused=row["refused"] or "")

    def rows(self, piece: Piece) -> Iterator[pa.Table]:
        return self._rows(piece)

    def read(self, listed: Listed) -> Document:
        """The key's state as it is now: what it was then is not kept."""
        from ferryman.records.keys import KeyStates

        with self._explained():
            found = KeyStates(self.root, self.node).entry(listed.id)
        if found is None:
            raise BadDocument(f"{listed.id}: the key has no state in {self.node} any more")
        return Document(listed.id, key=found.key, value=found.value, sequence=found.sequence)

    def announce(self, reader: str) -> None:
        """Whoever begins needs the deletions from its first look on, also if it is killed before it can say where it
        stands: until then all are kept. Those that were dropped before, it does not need."""
        from ferryman.records import keys

        with self._explained():
            if self._is_there() and not keys.is_known(self.root, self.node, reader):
                keys.note(self.root, self.node, reader, {"": 1})
                keys.note(self.root, self.node, reader, {"": 1}, self._files().forgotten)
        self._reader = reader

    def note(self, reader: str, positions: Positions, moved: str = "") -> None:
        from ferryman.records import keys

        if self._is_there():
            keys.note(self.root, self.node, reader, {p: max(1, at) for p, at in positions.items()})

    def forget(self, reader: str) -> None:
        from ferryman.records import keys

        keys.forget(self.root, self.node, reader)

    # -- inside ------------------------------------------------------------------------------------

    @property
    def _folder(self) -> StatePath:
        return self.root / "state" / self.node

    def _is_there(self) -> bool:
        from ferryman.storage import files

        return files.exists(self.root / "state.json") and files.is_folder(self._folder / "_delta_log")

    def _identity(self) -> str:
        from ferryman.records.keys import feed_of

        return feed_of(self.root, self.node) if self._is_there() else ""

    def _files(self) -> ChangedFiles:

        return ChangedFiles(self._folder)

    @contextmanager
    def _readers(self) -> Iterator[None]:
        """Files that a driver replaces meanwhile stay."""
        from ferryman.storage.locks import Readers

        with Readers(self.root / "readers").reading():
            yield

    def _check_kept(self, forgotten: int, start: Positions, end: Positions) -> None:
        from ferryman.records import keys

        lost = [p for p, last in end.items() if 0 < start.get(p, last) <= min(forgotten, last - 1)]
        if lost and forgotten > keys.dropped_before(self.root, self.node, self._reader):
            raise Misconfigured(
                f"{self._folder}: deletions up to wave {forgotten} are not kept any more, and this plan has read up to "
                f"wave {min(start[p] for p in lost) - 1}: what was deleted between would stay at its destinations. "
                "Empty them, and give the plan another version, which reads the state from its beginning"
            )

    def _rows(self, piece: Piece) -> Iterator[pa.Table]:
        upto, _, identity = piece.identity.partition(":")
        with self._explained(), self._readers():
            if identity and identity != self._identity():
                raise Unavailable(f"{self._folder} is another one on {socket.gethostname()}")
            yield from self._files().rows(piece, int(upto or piece.end), self.full_id)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of a state as those of a source, about all of it."""
        try:
            yield
        except StateDamaged as e:
            raise Misconfigured(f"{e}. Repair or restore the state of plan {self.plan_key} first") from e
        except FerrymanError:
            raise
        except OSError as e:
            raise Unavailable(f"{self._folder}: {e}") from e


def _states(state: str | os.PathLike[str]) -> StatePath:
    """The folder of states that was named, or its URL."""
    from ferryman.storage.files import path_of

    where = os.fspath(state)
    return path_of(where if "://" in where else places.absolute(where))


def _cut(counts: list[tuple[int, int]], start: int, end: int, limit: int) -> Iterator[tuple[int, int, int]]:
    """(first place, end, entries) of the pieces between: of so many entries, or of one place that has any.

    Args:
        counts: (place, entries), by place.
    """
    first, size = start, 0
    for place, count in counts:
        if first < place and size + count > limit:
            yield first, place, size
            first, size = place, 0
        size += count
        if size > limit:  # more than fit: the place is a piece of its own
            yield place, place + 1, size
            first, size = place + 1, 0
    if first < end:
        yield first, end, size


# Changes of a state as Arrow, read from its files. Apart from the log: DuckDB takes longer to load than a command
# line may.

_UNPACKED: Final = 4
"""Approximate size of states in memory, as a multiple of their size in files."""
_CHANGED: Final = pa.schema([KEY_STATE.field(name) for name in ("key", "value", "sequence", "wave")])
_NOTHING: Final = content_version(b"", None)
"""Version of a deletion."""


class ChangedFiles:
    """The files of a node's state, as of now.

    Attributes:
        forgotten: the last wave of which deletions may have been dropped; 0: none were.

    Raises:
        StateDamaged: the table cannot be read.
    """

    def __init__(self, folder: StatePath) -> None:
        self._folder = folder
        log = open_log(folder)
        with log.lock:
            log.refresh()
            self._files = list(log.files.values())
            self._published = log.transactions.get(PUBLISHED, 0)
            self.forgotten = log.transactions.get(FORGOTTEN, 0)

    @property
    def row_bytes(self) -> int:
        """Return the approximate size of a key and its state, in bytes."""
        rows = sum(file.rows for file in self._files)
        return _UNPACKED * sum(file.size for file in self._files) // max(1, rows)

    def end(self) -> dict[str, int]:
        """Return for each range of keys the wave after the last one that changed any: a reader that has them all
        needs no earlier deletion."""
        last = max(map(self._last_wave, self._files), default=-1)
        return dict.fromkeys(lanes(), 1 + max(last, self.forgotten or -1))

    def counts(self, start: Positions, end: Positions) -> list[tuple[str, int, int]]:
        """(range of keys, wave, keys that it has changed) between these places, by wave.

        Raises:
            StateDamaged: a file is missing, or not what was written.
        """
        first = min((start.get(lane, last) for lane, last in end.items()), default=0)
        paths = self._paths(first)
        if not paths:
            return []
        query = f"""
            SELECT bucket * {len(lanes())} // {BUCKETS} AS lane, wave, count(*)
            FROM read_parquet({quote_list(map(local_path, paths))}) GROUP BY ALL ORDER BY wave
        """
        with tempfile.TemporaryDirectory() as scratch, connect(Path(scratch)) as db:
            found = [(lanes()[lane], wave, count) for lane, wave, count in db.execute(query).fetchall()]
        return [each for each in found if start.get(each[0], end[each[0]]) <= each[1] < end[each[0]]]

    def rows(self, piece: Piece, upto: int, full_id: Callable[[str], str]) -> Iterator[pa.Table]:
        """The keys of a piece in the columns of ``ROWS``, with ``revision`` and ``deletes``; by wave and key. One that
        another wave before ``upto`` has changed again is left out: it comes with that one.

        Raises:
            StateDamaged: a file is missing, or not what was written.
        """
        lane = lanes().index(piece.partition)
        paths = self._paths(piece.start, piece.partition)
        if not paths:
            return
        verify(Path(local_path(path)) for path in paths)
        query = f"""
            SELECT {", ".join(_CHANGED.names)} FROM (
                SELECT * FROM read_parquet({quote_list(map(local_path, paths))})
                WHERE bucket * {len(lanes())} // {BUCKETS} = {lane} AND wave >= {piece.start} AND wave < {upto}
                QUALIFY row_number() OVER (PARTITION BY key ORDER BY wave DESC) = 1
            ) WHERE wave < {piece.end} ORDER BY wave, key
        """
        with tempfile.TemporaryDirectory() as scratch, connect(Path(scratch)) as db:
            for batch in stream(db, query, _CHANGED):
                yield _told(batch, full_id)

    def _paths(self, first: int, lane: str | None = None) -> list[str]:
        """Files that may have changes of this wave or later ones."""
        files = [f for f in self._files if self._last_wave(f) >= first and (lane is None or _reaches(f, lane))]
        return [str(self._folder / file.path) for file in files]

    def _last_wave(self, file: DataFile) -> int:
        """The last wave of which a file has rows; an older Ferryman has not written down which."""
        return int(file.stats.get("maxValues", {}).get("wave", self._published))


def _reaches(file: DataFile, lane: str) -> bool:
    first, last = (lanes().index(lane_of(int(file.stats[kind]["bucket"]))) for kind in ("minValues", "maxValues"))
    return first <= lanes().index(lane) <= last


def _told(batch: pa.RecordBatch, full_id: Callable[[str], str]) -> pa.Table:
    changed = zip(*(column.to_pylist() for column in batch.columns[:3]), strict=True)
    rows = [_row(key, value, sequence, full_id) for key, value, sequence in changed]
    ids, fields, versions, refused, dropped, deletes = map(list, zip(*rows, strict=True))
    table = table_of(
        ROWS, len(ids), place=batch["wave"], id=ids, fields=fields, version=versions, refused=refused, dropped=dropped
    )
    # A wave changes a key once, and a later one has a higher number.
    return table.append_column("revision", batch["wave"]).append_column("deletes", pa.array(deletes, pa.bool_()))


def _row(key: str, value: str | None, sequence: int, full_id: Callable[[str], str]) -> tuple[Any, ...]:
    """Id, fields, version, why it is refused, why it is dropped, and whether it is a deletion."""
    if not key:
        return full_id("(empty)"), b"{}", _NOTHING, None, "an empty key cannot be the id of a document", False
    if value is None:
        return full_id(key), None, _NOTHING, None, None, True
    fields = b'{"key":%s,"sequence":%d,"value":%s}' % (msgspec.json.encode(key), sequence, value.encode())
    if why := excess(fields, None):
        return full_id(key), None, content_version(why.encode(), None), why, None, False
    return full_id(key), fields, content_version(fields, None), None, None, False
