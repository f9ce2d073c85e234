"""What must be true in every state, whatever has happened; one function an invariant of ``docs/architecture.md``.

Each yields what is wrong, in words; nothing if all is well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from ferryman.records.rows import Status
from tests.model.driver import STALE
from tests.model.executor import HOLE, OVERWRITTEN
from tests.model.settling import ILLEGAL, guarantee
from tests.model.state import EXACT, GONE, LEAST, ONCE, Config, Delivery, State, Told

Wrong = Iterator[str]


def nothing_leaves_before_the_commit(config: Config, state: State) -> Wrong:
    """Nothing is sent before the commit: no destination sees a row that is not in a committed wave.

    What a power cut would undo is not committed.
    """
    for sequence, told in enumerate(state.told):
        if told.seen:
            if sequence >= len(state.rows):
                yield f"row {sequence} was sent, and its commit never took effect"
            elif state.unsynced and state.rows[sequence].wave == state.wave:
                yield f"row {sequence} was sent before its commit was synced"


def a_wave_commits_once(config: Config, state: State) -> Wrong:
    """A wave commits at most once, and only the driver with the highest epoch can commit."""
    if STALE in state.remembered:
        yield STALE


def the_same_bytes_and_hash(config: Config, state: State) -> Wrong:
    """The same delivery has the same bytes and the same hash on every attempt."""
    for delivery, told in _by_delivery(state).items():
        if len(frozenset().union(*(t.names for t in told))) > 1:
            yield f"{delivery} was sent with other bytes, or under another hash, than before"


def everything_is_accounted_for(config: Config, state: State) -> Wrong:
    """Every delivery ends in a terminal status or is visibly pending.

    None is committed twice, and the ledger makes only the moves of its table. Whatever was committed is in the outbox,
    or the ledger says that it was delivered.
    """
    if ILLEGAL in state.remembered:
        yield ILLEGAL
    if len({row.delivery for row in state.rows}) < len(state.rows):
        yield "a delivery was committed twice"
    waiting = {w.sequence: w for w in state.outbox}
    settled = min(state.settled) == state.wave
    for sequence, status in enumerate(state.ledger):
        row = waiting.get(sequence)
        if row is None:
            if status != Status.INDEXED:
                yield f"row {sequence} has left the outbox, and the ledger says {status or 'nothing'} of it"
        elif settled:
            allowed = (Status.DEAD, Status.INDEXING) if row.parked else ("", Status.ERROR)
            if status not in allowed:
                yield f"row {sequence} waits, and the ledger says {status or 'nothing'} of it"


def at_most_once(config: Config, state: State) -> Wrong:
    """A claim without a result is never sent again: it is *in doubt*. Only an explicit transient outcome allows
    another send.

    The chunk was claimed "once for all": in all its passes together it is sent once, but for the sends of which the
    destination has said that nothing took effect.
    """
    for delivery, told in _by_delivery(state).items():
        if config.destinations[delivery.destination].guarantee == ONCE:
            sends = sum(t.sends for t in told)
            if sends > 1:
                yield f"{delivery} was sent {sends} times without a word that nothing took effect"
    yield from _delivered_is_delivered(config, state, ONCE)


def at_least_once(config: Config, state: State) -> Wrong:
    """At-least-once: a chunk without a durable result is sent again, with the same hashes. Each result is recorded
    before the next chunk is sent, so a kill repeats at most one chunk per lane.

    So nothing counts as delivered that has not arrived. (Of a task that runs twice at a time, both may send all. The
    kill of everything that the explorer tries is one more.)
    """
    if state.budget.doubles == config.budget.doubles:
        disturbed = 1 + sum(config.budget) - sum(state.budget)
        rows: dict[int, list[int]] = defaultdict(list)
        for sequence, row in enumerate(state.rows):
            if guarantee(config, state, sequence) == LEAST:
                rows[row.delivery.destination].append(sequence)
        for destination, sequences in rows.items():
            again = sum(state.told[sequence].sends > 1 for sequence in sequences)
            lanes = len({state.rows[sequence].wave for sequence in sequences})
            if again > disturbed * lanes * config.batch:
                yield f"{again} rows were sent again to destination {destination}, more than were in flight"
    yield from _delivered_is_delivered(config, state, LEAST)


def exactly_once(config: Config, state: State) -> Wrong:
    """Exactly-once: the destination stores the hash in the same transaction as the effect; if the hash is already
    there, the row is a no-op.

    One effect a delivery, and none that counts as delivered without.
    """
    for delivery, told in _by_delivery(state).items():
        if config.destinations[delivery.destination].guarantee == EXACT:
            effects = sum(t.effects for t in told)
            if effects > 1:
                yield f"{delivery} took effect {effects} times"
    yield from _delivered_is_delivered(config, state, EXACT)


def one_bad_document_harms_only_itself(config: Config, state: State) -> Wrong:
    """One bad document harms only itself; one bad or slow destination delays only itself.

    A row spends an attempt only if the destination has answered for this very row. (No destination stays down for ever
    here; that the others do not wait for it is for other tests.)
    """
    for row in state.outbox:
        bad = state.told[row.sequence].bad
        if row.attempt > bad and state.ledger[row.sequence] in (Status.ERROR, Status.DEAD):
            yield f"row {row.sequence} has spent {row.attempt} attempts, and was answered badly {bad} times"


def a_newer_row_stays(config: Config, state: State) -> Wrong:
    """A destination that compares sequences never lets an older row overwrite a newer one; one that does not
    compare gets them in their order as long as nothing is killed or left behind."""
    if OVERWRITTEN in state.remembered:
        yield OVERWRITTEN


def a_new_version_leaves_no_hole(config: Config, state: State) -> Wrong:
    """What a new version no longer makes is deleted at a destination once all that it makes was delivered there."""
    if HOLE in state.remembered:
        yield HOLE


def at_rest(config: Config, state: State) -> Wrong:
    """When nothing can be done any more, nothing is owed; the last version of each document is where it belongs,
    or in a status that says why not."""
    if min(state.settled) < state.wave:
        yield f"wave {state.wave} is not settled"
    for row in state.outbox:
        if not row.parked:
            yield f"row {row.sequence} is owed, and nobody sends it"
    last = {config.place(r.delivery): n for n, r in enumerate(state.rows)}
    for document, history in enumerate(config.histories):
        version = history[state.source[document]]
        known = state.known[document]
        if (GONE if known is None else known.version) != version:
            yield f"document {document} has version {version or 'none'}, and nobody looks"
        if known is not None and known.owed:
            yield f"document {document} is owed, and nobody tries it again"
        family = known.given if known is not None else ()
        for destination in range(len(config.destinations)):
            for member in config.members:
                place = config.place(Delivery(document, destination, version, 0, member))
                sequence = last.get(place)
                found = GONE if sequence is None else state.rows[sequence].delivery.version
                name = f"document {document}" if not member else f"member {member} of document {document}"
                if found != (version if member in family or not member else GONE):
                    yield f"{name} in version {version or 'none'} was not committed for {destination}"
                elif sequence is not None:
                    yield from _ended(config, state, sequence)
                    yield from _is_there(config, state, destination, place, sequence, name)


def _ended(config: Config, state: State, sequence: int) -> Wrong:
    status = state.ledger[sequence]
    ends = (Status.INDEXED, Status.DEAD, Status.INDEXING)
    if status not in (ends if guarantee(config, state, sequence) == ONCE else ends[:2]):
        yield f"row {sequence} ended as {status or 'nothing'}"


def _is_there(config: Config, state: State, destination: int, place: int, sequence: int, name: str) -> Wrong:
    """What was sent last is what is there, at a destination that older rows cannot overwrite."""
    to = config.destinations[destination]
    safe = to.compares or to.guarantee == EXACT
    if safe and state.ledger[sequence] == Status.INDEXED and state.there[place] != sequence:
        yield f"{name} is another one at {destination} than was delivered last"


def _by_delivery(state: State) -> dict[Delivery, list[Told]]:
    found: dict[Delivery, list[Told]] = defaultdict(list)
    for row, told in zip(state.rows, state.told, strict=False):
        if told.seen:
            found[row.delivery].append(told)
    return found


def _delivered_is_delivered(config: Config, state: State, promise: str) -> Wrong:
    for sequence, status in enumerate(state.ledger):
        if status == Status.INDEXED and not state.told[sequence].done and guarantee(config, state, sequence) == promise:
            yield f"row {sequence} is INDEXED, and the destination does not have it"


INVARIANTS: Final[dict[str, Callable[[Config, State], Wrong]]] = {
    "I1": nothing_leaves_before_the_commit,
    "I2": a_wave_commits_once,
    "I5": at_most_once,
    "I6": at_least_once,
    "I4": everything_is_accounted_for,
    "I3": the_same_bytes_and_hash,
    "I7": exactly_once,
    "I8": one_bad_document_harms_only_itself,
    "order": a_newer_row_stays,
    "families": a_new_version_leaves_no_hole,
}
"""Looked at in every state; first those that say most about a cause. I9 is about runs: ``explore.Explorer`` tries it
from every state."""
