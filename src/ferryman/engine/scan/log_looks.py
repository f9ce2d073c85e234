"""A look at a log: where it ends now, where the plan stands in it, and which entries wait. Nothing is noted there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ferryman import limits
from ferryman.engine.scan.listing import NONE, Only
from ferryman.sources.log import Log, Piece, Positions
from ferryman.state.log_positions import LogPositions, stands_at
from ferryman.storage.query import connect, quoted_list

Tell = Callable[[str], None]

_ENTRY_BYTES: Final = limits.KIB
"""Of an entry, where its log does not say how large its pieces are."""


_ANOTHER: Final = (
    "is not what was read before: it was deleted and made again, or the plan names another one now; it is read from "
    "its beginning"
)
_ANOTHER_AGAIN: Final = "is not what was read last, but what was read before that; it is read on from there"


class LogLook(NamedTuple):
    """A log as it was when it was looked at."""

    identities: Mapping[str, str]
    positions: dict[str, int]
    end: Positions
    replay: int
    read: int
    moved: str = ""
    """The last move of the reader, which the next commit follows; see ``Log.moved``."""
    missing: str = ""
    """Logs that the plan has read and that are not there now, for people; "": all are."""

    def lag(self, log: Log) -> int:
        """Entries that the plan has not come to."""
        return log.lag(self.positions, self.end)

    def partitions(self, log: Log) -> dict[str, list[str]]:
        """See ``LogPositions.transactions``."""
        return {name: log.partitions_of(name, self.positions) for name in self.identities}


def entries_that_wait(logs: Collection[str], documents: Sequence[Path], folder: Path, now_us: int) -> Only:
    """Source -> entries of these logs that are to be read again, by their ids: a retry is due, an operator or a step
    wants it.

    Args:
        documents: files of the table.
        folder: for scratch files.
    """
    if not logs or not documents:
        return NONE
    query = f"""
        SELECT source, document FROM (
            SELECT * FROM read_parquet({quoted_list(map(str, documents))}) WHERE source IN {quoted_list(logs)}
            QUALIFY row_number() OVER (PARTITION BY source, document ORDER BY wave DESC) = 1
        ) WHERE forced OR due <= {int(now_us)} OR again <= {int(now_us)}
    """
    found: dict[str, set[str]] = defaultdict(set)
    with connect(folder) as db:
        for source, document in db.execute(query).fetchall():
            found[source].add(document)
    return {source: frozenset(ids) for source, ids in found.items()}


def look_at(
    name: str,
    log: Log,
    kept: LogPositions | None,
    tell: Tell,
    reader: str = "",
    before: LogLook | None = None,
    refuse: Callable[[Sequence[str]], None] | None = None,
) -> LogLook:
    """What a source's log has, and how far its plan is.

    Args:
        kept: None: the plan has no state yet.
        reader: by which name the log knows the plan; "": whoever looks has none.
        before: the last look, if this is another one; what that has said is not said again.
        refuse: raises for those of its logs that are others now; None: they are read from their beginning.

    Raises:
        UsageError, Unavailable, Misconfigured: of the log.
    """
    log.check()
    identities, end = log.identities(), dict(log.end())
    missing = _tell_of_absence(name, log, [] if kept is None else kept.missing(identities), before, tell)
    begin, moved = log.begin(), log.moved(reader) if reader else None
    replay, read = (0, 0) if kept is None else (kept.replay, kept.read)
    positions = stands_at(kept, log, identities, begin, end)
    if kept is not None and (replaced := kept.replaced(identities)):
        if refuse is not None:
            refuse(replaced)
        for each in replaced:
            known = kept.of(identities, {each: log.partitions_of(each, end)})
            tell(f"source {name}: {log.place_of(each)} {_ANOTHER_AGAIN if known else _ANOTHER}")
        replay = kept.next_replay()
    if moved is not None and not (kept is not None and kept.has_followed(moved.token)):
        positions |= moved.positions
        replay = 1 if kept is None else kept.next_replay()
        if before is None or before.moved != moved.token:
            places = ", ".join(f"{partition} {at}" for partition, at in moved.positions.items())
            tell(f"source {name}: was moved, and goes on at {places}")
    return LogLook(identities, positions, end, replay, read, moved.token if moved else "", missing)


def _tell_of_absence(name: str, log: Log, gone: Sequence[str], before: LogLook | None, tell: Tell) -> str:
    """``LogLook.missing``; says it, or that there is nothing to read yet, unless it was said before.

    Args:
        gone: logs that were known and do not say now which they are.
    """
    nothing = log.nothing()
    missing = ", ".join(str(log.place_of(each)) for each in gone) if nothing else ""
    if missing and (before is None or before.missing != missing):
        tell(f"source {name}: {missing} is not there any more: it was deleted, or its folder is away")
    elif before is None and nothing and not missing:
        tell(f"source {name}: {nothing}")
    return missing


def pieces_of(name: str, log: Log, seen: LogLook, start: Positions, most: int, tell: Tell) -> Iterator[Piece]:
    """What lies between, see ``Log.pieces``; says what is not kept any more."""
    begun: set[str] = set()
    for piece in log.pieces(start, seen.end, most):
        for partition, first in ((piece.partition, piece.start), *((each, at) for each, at, _ in piece.inputs)):
            if partition not in begun and first > (missed := start[partition]):
                gone = f"{partition} {missed} to {first - 1}"
                tell(f"source {name}: {gone} are not kept any more: they were removed before they were read")
            begun.add(partition)
        size = piece.bytes or _ENTRY_BYTES * (piece.end - piece.start)
        yield log.pinned(piece._replace(bytes=size), seen.identities)
