"""Scan, second half: the driver compares a finished listing once, then cuts it into waves.

What is new, changed, pending (a failed step is due) or gone is decided by a join of the listing with the ``documents``
table, a part of the ids at a time: whatever there is of them, no more is in memory than a few parts. Contents are not
touched; documents whose content was not read while listing are marked ``look``: the worker that reads them decides.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from ferryman import limits
from ferryman.engine.scan.batches import Splitter, WaveBatch
from ferryman.engine.scan.changes import SourceComparison, due_now
from ferryman.engine.scan.guard import Allowed, hold_back
from ferryman.engine.scan.known import kept
from ferryman.engine.scan.listing import Listing
from ferryman.plan import conflicting_sources
from ferryman.records.schemas import DOCUMENTS
from ferryman.state.state import State
from ferryman.storage.files import StatePath, local_all, path_of, workplace
from ferryman.storage.query import connect, register


class ChangeSet(NamedTuple):
    """What has changed by a listing, cut into waves."""

    slices: list[WaveBatch]
    notes: list[str]
    """What you should know: duplicates, incomplete listings."""
    complete: bool
    too_many: list[str]
    """Why deletes wait for an operator: messages that name ``--allow-deletes``."""


def detect_changes(
    listings: list[Listing],
    state: State,
    folder: StatePath,
    *,
    now_us: int,
    only_owed: bool = False,
    waiting: Collection[str] = (),
    allow_deletes: Allowed = False,
    slots: int = 2,
    wave_bytes: int = limits.WAVE_BYTES,
) -> ChangeSet:
    """Detect the changes of all sources by their listings, then cut. The same for a run and for a preview.

    Args:
        state: what is known; it is only read.
        only_owed: process only what a failed step or an operator is waiting for; nothing counts as deleted.
        waiting: what documents are ``held`` by that are not due now, whatever their time says.
        allow_deletes: see ``guard.Allowed``.
        slots: tasks that run at once; a small scan is cut so that all have work.
    """
    notes = [_incomplete(x, why) for x in listings for why in x.failures]
    desk = workplace(folder)
    files = kept(state.documents, desk / "known")
    conflicts = conflicting_sources(state.plan.nodes)
    due = due_now(now_us, state.plan.longest_backoff_s, waiting)
    with connect(desk) as db:
        register(db, "documents", local_all(map(path_of, files)), DOCUMENTS)
        comparisons: dict[str, SourceComparison] = {}
        for listing in listings:
            name = listing.source.name
            others = {other: comparisons.get(other) for other in conflicts.get(name, ())}
            place = Path(tempfile.mkdtemp(dir=desk))
            comparisons[name] = SourceComparison(
                db, place, listing, state.documents, files, state.outbox, due, now_us, only_owed, others
            )
        for c in comparisons.values():
            if c.duplicates:
                notes.append(
                    f"source {c.name}: {c.duplicates} duplicate ids, the last of each is kept: {', '.join(c.examples)}"
                )
        cutter = Splitter(folder, slots, sum(x.rows for x in listings), sum(x.bytes for x in listings), wave_bytes)
        for comparison in comparisons.values():
            comparison.cut_taken_up(cutter)
        held = [hold_back(comparisons[x.source.name], x, allow_deletes) for x in listings]
        notes += [_incomplete(x, h.contradicted) for x, h in zip(listings, held, strict=True) if h.contradicted]
        for comparison, h in zip(comparisons.values(), held, strict=True):
            comparison.cut_gone(cutter, h.released)  # last: what replaces them elsewhere is delivered first
        complete = not any(x.failures for x in listings) and not any(h.contradicted for h in held)
        return ChangeSet(cutter.finish(), notes, complete, [why for h in held for why in h.too_many])


def _incomplete(listing: Listing, why: str) -> str:
    return f"source {listing.source.name}: incomplete listing, nothing of it is deleted: {why}"
