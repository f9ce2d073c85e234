"""Log of a keyed node's exports: only the engine writes it, and reads it for the nodes after the keyed one.

It lies in a table of the state. Keys are hashed to lanes, which are the log's partitions: the exports of a key are in
one of them, in their order. A place counts the exports of its lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ferryman.document import Document
from ferryman.errors import BadDocument
from ferryman.sources.base import Listed
from ferryman.sources.log import Log, Piece, Positions

if TYPE_CHECKING:
    import pyarrow as pa

    from ferryman.storage.delta import DataFile, DeltaLog
    from ferryman.storage.files import StatePath


class Exports(Log):
    """The exports of one keyed node.

    Attributes:
        folder: folder of the table; None: there is no state yet.
    """

    repeats_ids = True

    def __init__(self) -> None:
        super().__init__()
        self.folder: StatePath | None = None

    def begin(self) -> Positions:
        """Return the first place of each lane."""
        return dict.fromkeys(self.end(), 0)

    def end(self) -> Positions:
        """Return for each lane the place of its next export."""
        if (table := self._table()) is None:
            return {}
        from ferryman.records.keys import lanes, place_id

        return {lane: table.transactions.get(place_id(lane), 0) for lane in lanes()}

    def pieces(self, start: Positions, end: Positions, limit: int) -> Iterator[Piece]:
        """Yield pieces, each inside one file: the exports of a wave and a lane are in one or several files."""
        if (table := self._table()) is None:
            return
        assert self.folder is not None
        files = sorted(table.live_files(), key=_first_place)
        for lane, last in end.items():
            for file in files:
                if file.partition["lane"] == lane:
                    yield from _pieces_of(file, self.folder, start.get(lane, last), last, limit)

    def pinned(self, piece: Piece, identities: Mapping[str, str]) -> Piece:
        """Return the piece as it is: it names its file, which never changes."""
        return piece

    def rows(self, piece: Piece) -> Iterator[pa.Table]:
        """Yield the exports of a piece, with revisions made of their places: several may have one id."""
        from ferryman.sources.log_rows import rows_of

        return rows_of(piece)

    def read(self, listed: Listed) -> Document:
        """Raise ``BadDocument``: an export is read by its place, never by its id."""
        raise BadDocument("it is not kept any more: an export is carried on once")

    def _table(self) -> DeltaLog[DataFile] | None:
        if self.folder is None:
            return None
        from ferryman.storage.delta import read_log

        return read_log(self.folder)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "folder": None}  # workers get the path of the file in their piece


def _first_place(file: DataFile) -> int:
    return int(file.partition["first_place"])


def _pieces_of(file: DataFile, folder: StatePath, start: int, last: int, limit: int) -> Iterator[Piece]:
    """Yield the pieces of one file between two places. The first place is part of the name of the piece's log."""
    first = _first_place(file)
    upto = min(first + file.rows, last)
    for at in range(max(start, first), upto, limit):
        end = min(at + limit, upto)
        size = file.size * (end - at) // file.rows
        yield Piece(file.partition["lane"], at, end, size, f"{first}:{folder / file.path}")
