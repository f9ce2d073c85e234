"""Log of the changes of a state by key, for another plan that replicates the state.

A place is a wave of the plan that keeps the state, and all keys that it changed share it. Partitions are the ranges of
keys that the state's exports are partitioned by. Nothing is written for this log: it is read from the state's files.
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

from ferryman.document import Document, content_version, decode_fields, size_problem
from ferryman.errors import BadDocument, FerrymanError, Misconfigured, StateDamaged, Unavailable, UsageError
from ferryman.net import relative_paths
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

    What the plan made of a key before, and does not make any more, is deleted: children, and copies at other
    destinations. A keyed node below counts each change by itself.

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
        self.root = _states_folder(".ferryman" if state is None else state) / self.plan_key

    def place(self) -> str | None:
        return str(self._folder)

    def local_paths(self) -> tuple[str, ...]:
        return (str(self._folder),) if isinstance(self._folder, Path) and self._exists() else ()

    def reads(self) -> str | None:
        return feed_name(self.plan_key, self.node)

    def check(self) -> None:
        """Raises:
        Misconfigured: the state cannot be read, or another version of Ferryman wrote it.
        """
        with self._translated_errors():
            if self._exists():
                self._files()

    def identity(self) -> str:
        with self._translated_errors():
            return self._identity()

    def nothing(self) -> str:
        if self._exists():
            return ""
        return f"plan {self.plan_key} has no state of {self.node} in {self.root.parent} yet"

    def begin(self) -> Positions:
        return dict.fromkeys(self.end(), 0)

    def end(self) -> Positions:
        """Return for each range of keys the wave after the last one that changed any."""
        with self._translated_errors():
            return self._files().end() if self._exists() else {}

    def lag(self, positions: Positions, end: Positions) -> int:
        """Return the approximate number of keys to be read."""
        if not super().lag(positions, end):
            return 0
        with self._translated_errors(), self._files_kept():
            return max(1, sum(count for *_, count in self._files().counts(positions, end)))

    def pieces(self, start: Positions, end: Positions, limit: int) -> Iterator[Piece]:
        """Yield pieces of whole waves of a range of keys, each with at most ``limit`` keys, or of one wave.

        Raises:
            Misconfigured: deletions that this plan has not read are not kept any more.
        """
        if not super().lag(start, end):
            return
        with self._translated_errors(), self._files_kept():
            changed_files = self._files()
            self._check_kept(changed_files.forgotten, start, end)
            counts = changed_files.counts(start, end)
        for partition, last in end.items():
            own_counts = [(wave, count) for name, wave, count in counts if name == partition]
            for first, upto, count in _cut_pieces(own_counts, start.get(partition, last), last, limit):
                yield Piece(partition, first, upto, count * changed_files.row_bytes, str(last))

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
        """Return the key's current state: earlier ones are not kept."""
        from ferryman.records.keys import KeyStates

        with self._translated_errors():
            entry = KeyStates(self.root, self.node).entry(listed.id)
        if entry is None:
            raise BadDocument(f"{listed.id}: the key has no state in {self.node} any more")
        return Document(listed.id, key=entry.key, value=entry.value, sequence=entry.sequence)

    def announce(self, reader: str) -> None:
        """Register a new reader, so that all deletions from now on are kept for it, even if it is killed before it can
        note its positions. It does not need deletions that were dropped before."""
        from ferryman.records import keys

        with self._translated_errors():
            if self._exists() and not keys.is_known(self.root, self.node, reader):
                keys.note(self.root, self.node, reader, {"": 1})
                keys.note(self.root, self.node, reader, {"": 1}, self._files().forgotten)
        self._reader = reader

    def note(self, reader: str, positions: Positions, moved: str = "") -> None:
        from ferryman.records import keys

        if self._exists():
            keys.note(self.root, self.node, reader, {p: max(1, at) for p, at in positions.items()})

    def forget(self, reader: str) -> None:
        from ferryman.records import keys

        keys.forget(self.root, self.node, reader)

    # -- inside ------------------------------------------------------------------------------------

    @property
    def _folder(self) -> StatePath:
        return self.root / "state" / self.node

    def _exists(self) -> bool:
        from ferryman.storage import files

        return files.exists(self.root / "state.json") and files.is_folder(self._folder / "_delta_log")

    def _identity(self) -> str:
        from ferryman.records.keys import feed_id

        return feed_id(self.root, self.node) if self._exists() else ""

    def _files(self) -> ChangedFiles:

        return ChangedFiles(self._folder)

    @contextmanager
    def _files_kept(self) -> Iterator[None]:
        """Keep the files that a driver replaces meanwhile."""
        from ferryman.storage.locks import Readers

        with Readers(self.root / "readers").reading():
            yield

    def _check_kept(self, forgotten: int, start: Positions, end: Positions) -> None:
        from ferryman.records import keys

        behind = [p for p, last in end.items() if 0 < start.get(p, last) <= min(forgotten, last - 1)]
        if behind and forgotten > keys.dropped_before(self.root, self.node, self._reader):
            raise Misconfigured(
                f"{self._folder}: deletions up to wave {forgotten} are not kept any more, and this plan has read up to "
                f"wave {min(start[p] for p in behind) - 1}: what was deleted between would stay at its destinations. "
                "Empty them, and give the plan another version, which reads the state from its beginning"
            )

    def _rows(self, piece: Piece) -> Iterator[pa.Table]:
        upto, _, identity = piece.identity.partition(":")
        with self._translated_errors(), self._files_kept():
            if identity and identity != self._identity():
                raise Unavailable(f"{self._folder} is another one on {socket.gethostname()}")
            yield from self._files().rows(piece, int(upto or piece.end), self.full_id)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Convert errors of the state to ``Unavailable`` or ``Misconfigured``."""
        try:
            yield
        except StateDamaged as e:
            raise Misconfigured(f"{e}. Repair or restore the state of plan {self.plan_key} first") from e
        except FerrymanError:
            raise
        except OSError as e:
            raise Unavailable(f"{self._folder}: {e}") from e


def _states_folder(state: str | os.PathLike[str]) -> StatePath:
    """Return the folder of states: an absolute path or a URL."""
    from ferryman.storage.files import path_of

    where = os.fspath(state)
    return path_of(where if "://" in where else relative_paths.absolute(where))


def _cut_pieces(counts: list[tuple[int, int]], start: int, end: int, limit: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first place, end, entries) of the pieces in between, each of at most ``limit`` entries or of one place.

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


# Changes of a state as Arrow tables, read from its files.

_UNPACKED_RATIO: Final = 4
"""Approximate size of states in memory, as a multiple of their size in files."""
_CHANGED: Final = pa.schema([KEY_STATE.field(name) for name in ("key", "value", "sequence", "wave")])
_NOTHING: Final = content_version(b"", None)
"""Version of a deletion."""


class ChangedFiles:
    """Current files of a keyed node's state.

    Attributes:
        forgotten: the last wave whose deletions may have been dropped; 0: none were.

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
        return _UNPACKED_RATIO * sum(file.size for file in self._files) // max(1, rows)

    def end(self) -> dict[str, int]:
        """Return for each range of keys the wave after the last one that changed any: a reader that has them all
        needs no earlier deletion."""
        last = max(map(self._last_wave, self._files), default=-1)
        return dict.fromkeys(lanes(), 1 + max(last, self.forgotten or -1))

    def counts(self, start: Positions, end: Positions) -> list[tuple[str, int, int]]:
        """Return (range of keys, wave, number of keys that it has changed) between these places, sorted by wave.

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
            counted = [(lanes()[lane], wave, count) for lane, wave, count in db.execute(query).fetchall()]
        return [each for each in counted if start.get(each[0], end[each[0]]) <= each[1] < end[each[0]]]

    def rows(self, piece: Piece, upto: int, full_id: Callable[[str], str]) -> Iterator[pa.Table]:
        """Yield the keys of a piece in the columns of ``ROWS``, with ``revision`` and ``deletes``, sorted by wave and
        key. A key that a later wave before ``upto`` has changed again is left out: it comes with that wave.

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
                yield _as_rows(batch, full_id)

    def _paths(self, first: int, lane: str | None = None) -> list[str]:
        """Return the files that may have changes of this wave or later ones."""
        files = [f for f in self._files if self._last_wave(f) >= first and (lane is None or _overlaps(f, lane))]
        return [str(self._folder / file.path) for file in files]

    def _last_wave(self, file: DataFile) -> int:
        """Return the last wave of a file's rows; files of older versions of Ferryman do not state it."""
        return int(file.stats.get("maxValues", {}).get("wave", self._published))


def _overlaps(file: DataFile, lane: str) -> bool:
    first, last = (lanes().index(lane_of(int(file.stats[kind]["bucket"]))) for kind in ("minValues", "maxValues"))
    return first <= lanes().index(lane) <= last


def _as_rows(batch: pa.RecordBatch, full_id: Callable[[str], str]) -> pa.Table:
    changed = zip(*(column.to_pylist() for column in batch.columns[:3]), strict=True)
    rows = [_row(key, value, sequence, full_id) for key, value, sequence in changed]
    ids, fields, versions, refused, dropped, deletes = map(list, zip(*rows, strict=True))
    table = table_of(
        ROWS, len(ids), place=batch["wave"], id=ids, fields=fields, version=versions, refused=refused, dropped=dropped
    )
    # A wave changes a key once, and a later one has a higher number.
    return table.append_column("revision", batch["wave"]).append_column("deletes", pa.array(deletes, pa.bool_()))


def _row(key: str, value: str | None, sequence: int, full_id: Callable[[str], str]) -> tuple[Any, ...]:
    """Return id, fields, version, refusal, reason for dropping, and whether it is a deletion, of one key."""
    if not key:
        return full_id("(empty)"), b"{}", _NOTHING, None, "an empty key cannot be the id of a document", False
    if value is None:
        return full_id(key), None, _NOTHING, None, None, True
    fields = b'{"key":%s,"sequence":%d,"value":%s}' % (msgspec.json.encode(key), sequence, value.encode())
    if why := size_problem(fields, None):
        return full_id(key), None, content_version(why.encode(), None), why, None, False
    return full_id(key), fields, content_version(fields, None), None, None, False
