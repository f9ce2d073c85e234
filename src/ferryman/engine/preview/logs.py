"""Logs in a preview: what the next run would read of them. No position moves, and no log learns of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from ferryman.engine.preview.pick import Picked
from ferryman.engine.scan.listing import Only
from ferryman.engine.scan.log_batches import LogSplit
from ferryman.engine.scan.log_looks import look_at, pieces_of
from ferryman.errors import BadDocument, UsageError, message_of
from ferryman.plan import Plan, logs_read
from ferryman.records.schemas import LEDGER
from ferryman.sources.base import Listed
from ferryman.sources.log import Log
from ferryman.state.log_positions import LogPositions, reader_of
from ferryman.state.state import State
from ferryman.storage.query import connect, quoted_list, register

_WHOLE: Final = 1 << 40
"""Entries of a piece: as few pieces as there can be, for only their first entries are read."""


class LogsAhead(NamedTuple):
    """What the next run would read of logs."""

    splits: list[LogSplit]
    notes: list[str]
    complete: bool
    """Could each of them be asked?"""

    def but(self, picked: Picked) -> Counter[str]:
        """How many would be read beside the one that was picked, by reason."""
        logs = {split.source for split in self.splits}
        mine = sum((cut.reasons() for cut in picked.cuts if cut.source in logs), Counter[str]())
        return sum((split.reasons() for split in self.splits), Counter[str]()) - mine


def logs_of(plan: Plan) -> dict[str, Log]:
    """By the names of their sources."""
    return {n.name: n.source for n in logs_read(plan.nodes) if isinstance(n.source, Log)}


def logs_ahead(plan: Plan, state: State) -> LogsAhead:
    """The entries from where the plan stands.

    Args:
        state: as a reader finds it; it need not exist.
    """
    splits: list[LogSplit] = []
    notes: list[str] = []
    complete = True
    for name, log in logs_of(plan).items():
        kept = LogPositions(state, name) if state.exists else None
        try:
            reader = reader_of(state, name) if state.exists else ""
            seen = look_at(name, log, kept, notes.append, reader)
            start = seen.positions if seen.lag(log) else {}
            pieces = list(pieces_of(name, log, seen, start, _WHOLE, notes.append)) if start else []
        except UsageError:
            raise
        except Exception as e:
            notes.append(f"source {name}: {message_of(e)}")
            complete = False
            continue
        complete &= not seen.missing
        splits += [LogSplit(name, piece, 1 + seen.replay) for piece in pieces]
    return LogsAhead([split._replace(number=number) for number, split in enumerate(splits)], notes, complete)


def asked_for(plan: Plan, document: str) -> tuple[Only, list[str]]:
    """Source -> the entry of this id, of each log that has it; and what else they say of it."""
    found: dict[str, frozenset[str]] = {}
    notes: list[str] = []
    for name, log in logs_of(plan).items():
        if not document.startswith(log.prefix):
            continue
        own = log.own_id(document)
        try:
            if log.entry(Listed(own, 0)).document.id == own:
                found[name] = frozenset({document})
        except BadDocument as e:
            notes.append(f"source {name}: {message_of(e)}")
        except Exception:  # what its ids look like, only a log knows: this is of another source
            continue
    return found, notes


def gone_through(state: State, document: str, sources: Iterable[str], folder: Path) -> dict[str, int]:
    """Of these logs, those whose entry of this id was processed, and of which nothing is remembered but that; with its
    last revision."""
    sources = list(sources)
    if not sources or not state.exists:
        return {}
    paths = [*state.ledger.paths(), *state.ledger.paths(file.path for file in state.staged(state.ledger))]
    unsent = state.outbox.paths()
    found: dict[str, int] = {}
    mine = f"source IN {quoted_list(sources)} AND origin = $id"
    with connect(folder) as db:
        for table, files in (("ledger", paths), ("outbox", unsent)):
            register(db, table, files, pa.schema([LEDGER.field(name) for name in ("source", "origin", "revision")]))
            query = f"SELECT source, max(revision) FROM {table} WHERE {mine} GROUP BY source"
            for source, revision in db.execute(query, {"id": document}).fetchall():
                found[source] = max(revision, found.get(source, 0))
    return found


def merged(*wanted: Only) -> Only:
    """All that is wanted."""
    sources = {source for each in wanted for source in each}
    return {source: frozenset().union(*(each.get(source, ()) for each in wanted)) for source in sources}
