"""Ranges of logs as rows of the ledger: entries that an at-most-once plan has taken together.

What has become of each entry of a range is known once its wave is committed; then the range needs no row. It has one at
each destination that its source reaches where that is not so: in doubt, if its steps had begun when they were killed;
pending, if they had not, or if an operator wants it run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from ferryman.plan import Plan, logs_read
from ferryman.plan.paths import destinations_of_sources
from ferryman.records.delivery_hash import hasher
from ferryman.records.events import ORDINAL_STEPS, events
from ferryman.records.schemas import RANGE
from ferryman.records.statuses import PENDING, Status
from ferryman.sources.log import Log, Piece
from ferryman.state.log_positions import RANGES
from ferryman.state.state import State
from ferryman.storage.query import connect, quoted_list

KILLED: Final = "its steps had begun when they were killed: what they did is not known"
AGAIN: Final = "run again, entry by entry"


class EntryRange(NamedTuple):
    """Entries of a piece.

    Attributes:
        id: what the ledger calls them.
        rows: (destination, delivery hash) of each of its rows.
        told: the ledger has these rows.
    """

    source: str
    piece: Piece
    revision: int
    id: str
    rows: tuple[tuple[str, str], ...]
    told: bool = False

    @property
    def version(self) -> str:
        return _version(self.piece)


class Fact(NamedTuple):
    """What is to be said of a range."""

    range: EntryRange
    status: Status
    message: str


def range_of(plan: Plan, source: str, log: Log, piece: Piece, revision: int) -> EntryRange:
    """Of which the ledger knows nothing yet."""
    id, version = log.range_id(piece), _version(piece)
    names = destinations_of_sources(plan.nodes)[source]
    hashers = {name: hasher(plan.name, plan.version, source, name, "", "upsert") for name in names}
    return EntryRange(
        source, piece, revision, id, tuple((n, make(id, version, revision)) for n, make in hashers.items())
    )


def pending_ranges(state: State) -> list[EntryRange]:
    """Those that are to be run, in the order of their places."""
    if not state.outbox.number(RANGES) or not (paths := state.ledger.paths()):
        return []
    sources = [n.name for n in logs_read(state.plan.nodes)]
    query = f"""
        SELECT source, version, revision, document, list((destination, delivery_hash) ORDER BY destination)
        FROM (
            SELECT source, version, revision, document, destination, delivery_hash,
                arg_max(status, wave * 4 + ordinal) AS status
            FROM read_parquet({quoted_list(map(str, paths))})
            WHERE starts_with(version, '{RANGE}') AND source IN {quoted_list(sources)}
            GROUP BY ALL
        )
        WHERE status IN {quoted_list([*PENDING, Status.INDEXING])}
        GROUP BY ALL HAVING bool_or(status <> '{Status.INDEXING}')
    """
    with connect(state.spill) as db:
        rows = db.execute(query).fetchall()
    found = [
        EntryRange(source, _piece(version), revision, id, tuple(deliveries), told=True)
        for source, version, revision, id, deliveries in rows
    ]
    return sorted(found, key=lambda each: (each.source, each.piece.partition, each.piece.start))


def range_events(facts: Sequence[Fact], wave: int) -> pa.Table:
    """A row of the ledger for each destination."""
    rows = []
    for found, status, message in facts:
        about: dict[str, Any] = {"source": found.source, "document": found.id, "origin": found.id, "parent": None}
        about |= {"version": found.version, "revision": found.revision, "operation": "upsert"}
        about |= {"status": status.value, "message": message, "attempt": 0}
        rows += [{**about, "destination": name, "delivery_hash": digest} for name, digest in found.rows]
    return events(rows, wave=wave, ordinal=ORDINAL_STEPS)


def _version(piece: Piece) -> str:
    return RANGE + msgspec.json.encode(piece).decode()


def _piece(version: str) -> Piece:
    return msgspec.json.decode(version.removeprefix(RANGE), type=Piece)
