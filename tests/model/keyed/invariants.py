"""What must be true in every state of a plan that keeps state by key. Each yields what is wrong, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from ferryman.records.rows import Status
from tests.model.keyed.driver import OUTBOX, STALE
from tests.model.keyed.settling import as_named
from tests.model.keyed.tasks import EARLY, UNCOMMITTED
from tests.model.keyed.world import KeyedConfig, State

Wrong = Iterator[str]


def nothing_happens_before_its_commit(config: KeyedConfig, state: State) -> Wrong:
    """``update`` sees committed documents only, and nothing is sent but committed exports."""
    for wrong in (UNCOMMITTED, EARLY):
        if wrong in state.remembered:
            yield wrong


def a_wave_commits_once(config: KeyedConfig, state: State) -> Wrong:
    """Only the driver with the highest epoch can commit."""
    if STALE in state.remembered:
        yield STALE


def each_document_is_counted_once(config: KeyedConfig, state: State) -> Wrong:
    """A state has each document once that the ledger says was counted, and no other."""
    tables = as_named(state.tables)
    counts = Counter(count.entry for value in tables.states for count in value)
    for entry, ended in enumerate(tables.ended):
        if counts[entry] != (ended == Status.INDEXED):
            yield f"entry {entry} was counted {counts[entry]} times, and the ledger says {ended or 'nothing'} of it"


def state_and_exports_agree(config: KeyedConfig, state: State) -> Wrong:
    """Each export tells as ``old`` what was told as ``new`` before, and the last one tells the state. At every moment,
    also between the commits of the tables."""
    tables = as_named(state.tables)
    for key, exports in enumerate(tables.exports):
        told: tuple[object, ...] = ()
        for place, export in enumerate(exports):
            if export.old != told:
                yield f"export {place} of key {key} has another old than what was told before"
            told = export.new
        if told != tables.states[key]:
            yield f"the state of key {key} has {_entries(tables.states[key])}, and {_entries(told)} was told"


def _entries(value: object) -> list[int]:
    return [count[0] for count in value]  # type: ignore[attr-defined]


def documents_of_a_key_keep_their_order(config: KeyedConfig, state: State) -> Wrong:
    """The documents of a key are counted in the order of the log."""
    for key, value in enumerate(as_named(state.tables).states):
        if _entries(value) != sorted(_entries(value)):
            yield f"key {key} has counted {_entries(value)}"


def everything_is_accounted_for(config: KeyedConfig, state: State) -> Wrong:
    """What lies before a position has ended, or is in the outbox, once; what has left the outbox has ended."""
    tables = state.tables
    for entry in range(tables.position):
        if bool(tables.ended[entry]) == (entry in tables.due) and tables.settled[OUTBOX] == tables.wave:
            yield f"entry {entry} lies before the position, and is {'owed' if tables.ended[entry] else 'unknown'}"
    rows = Counter((*tables.due, *tables.pending))
    for row, times in rows.items():
        if times > 1:
            yield f"row {row} is in the outbox {times} times"
    for key, reached in enumerate(tables.reached):
        for place in range(reached):
            if (key, place) not in tables.delivered and (key, place) not in tables.pending:
                yield f"export {place} of key {key} was taken up, and is neither pending nor delivered"
            elif (key, place) in tables.delivered and state.received[key] < place:
                yield f"export {place} of key {key} is INDEXED, and the destination does not have it"
    for key, place in tables.pending:
        if (key, place) in tables.delivered and tables.settled[OUTBOX] == tables.wave:
            yield f"export {place} of key {key} is INDEXED, and is to be sent again"


def nothing_comes_back(config: KeyedConfig, state: State) -> Wrong:
    """A destination that compares sequences has the newest export that it was sent, whatever comes late."""
    for key, place in enumerate(state.received):
        exports = state.tables.exports[key]
        if 0 <= place < len(exports) and state.values[key] != exports[place].new:
            yield f"the destination has {_entries(state.values[key])} of key {key}, after export {place}"
        newest = max((n for mine, n in state.tables.delivered if mine == key), default=-1)
        if newest >= 0 and len(state.values[key]) < len(exports[newest].new):
            yield f"an older export of key {key} has overwritten a newer one"


def at_rest(config: KeyedConfig, state: State) -> Wrong:
    """When nothing can be done any more, each document has ended, and the destination has what the state has."""
    tables = state.tables
    if min(tables.settled) < tables.wave:
        yield f"wave {tables.wave} is not settled"
    if tables.position != state.arrived or tables.due:
        yield f"the position is {tables.position} of {state.arrived}, and {list(tables.due)} are due"
    for key, exports in enumerate(tables.exports):
        if tables.reached[key] < len(exports):
            yield f"nobody takes up export {tables.reached[key]} of key {key}"
        if state.values[key] != tables.states[key]:
            yield f"key {key} has {_entries(tables.states[key])}, the destination {_entries(state.values[key])}"
    if tables.pending:
        yield f"the exports {list(tables.pending)} are pending, and nobody sends them"


KEYED_INVARIANTS: Final[dict[str, Callable[[KeyedConfig, State], Wrong]]] = {
    "I1": nothing_happens_before_its_commit,
    "I2": a_wave_commits_once,
    "agree": state_and_exports_agree,
    "once": each_document_is_counted_once,
    "order": documents_of_a_key_keep_their_order,
    "newest": nothing_comes_back,
    "I4": everything_is_accounted_for,
}
"""I1 to I4 are those of ``docs/architecture.md``, as they hold for state by key; I9 is tried by the explorer."""
