"""The changes of a state by key, as a log: what another plan reads that replicates the state.

A place is a wave of the plan that keeps the state, and all keys that it changed share it. Partitions are the ranges of
keys by which the state's exports go on. Nothing is written for a feed: it is read from the files of the state.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferryman import places
from ferryman.document import Document, decode_fields
from ferryman.errors import BadDocument, FerrymanError, Misconfigured, StateDamaged, Unavailable, UsageError
from ferryman.sources.base import Listed
from ferryman.sources.log import Entry, Log, OnError, Piece, Positions, feed_name

if TYPE_CHECKING:
    import pyarrow as pa

    from ferryman.sources.change_rows import ChangedFiles
    from ferryman.storage.files import StatePath


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
        """Of each range of keys the wave after the last one that has changed any."""
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
        from ferryman.records.key_states import KeyStates

        with self._explained():
            found = KeyStates(self.root, self.node).entry(listed.id)
        if found is None:
            raise BadDocument(f"{listed.id}: the key has no state in {self.node} any more")
        return Document(listed.id, key=found.key, value=found.value, sequence=found.sequence)

    def announce(self, reader: str) -> None:
        """Whoever begins needs the deletions from its first look on, also if it is killed before it can say where it
        stands: until then all are kept. Those that were dropped before, it does not need."""
        from ferryman.records import change_readers

        with self._explained():
            if self._is_there() and not change_readers.is_known(self.root, self.node, reader):
                change_readers.note(self.root, self.node, reader, {"": 1})
                change_readers.note(self.root, self.node, reader, {"": 1}, self._files().forgotten)
        self._reader = reader

    def note(self, reader: str, positions: Positions, moved: str = "") -> None:
        from ferryman.records import change_readers

        if self._is_there():
            change_readers.note(self.root, self.node, reader, {p: max(1, at) for p, at in positions.items()})

    def forget(self, reader: str) -> None:
        from ferryman.records import change_readers

        change_readers.forget(self.root, self.node, reader)

    # -- inside ------------------------------------------------------------------------------------

    @property
    def _folder(self) -> StatePath:
        return self.root / "state" / self.node

    def _is_there(self) -> bool:
        from ferryman.storage import files

        return files.exists(self.root / "state.json") and files.is_folder(self._folder / "_delta_log")

    def _identity(self) -> str:
        from ferryman.records.change_readers import feed_of

        return feed_of(self.root, self.node) if self._is_there() else ""

    def _files(self) -> ChangedFiles:
        from ferryman.sources.change_rows import ChangedFiles

        return ChangedFiles(self._folder)

    @contextmanager
    def _readers(self) -> Iterator[None]:
        """Files that a driver replaces meanwhile stay."""
        from ferryman.storage.lock import Readers

        with Readers(self.root / "readers").reading():
            yield

    def _check_kept(self, forgotten: int, start: Positions, end: Positions) -> None:
        from ferryman.records import change_readers

        lost = [p for p, last in end.items() if 0 < start.get(p, last) <= min(forgotten, last - 1)]
        if lost and forgotten > change_readers.dropped_before(self.root, self.node, self._reader):
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
