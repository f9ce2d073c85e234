"""What must be true in every state of a plan between a log and two queues. Each yields what is wrong, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from ferryman.records.rows import Status
from tests.model.queues.driver import STALE
from tests.model.queues.settling import effective_waits
from tests.model.queues.world import ERRORS, NAMES, OUT, REFUSAL, SKIP, QueueConfig, State
from tests.model.state import OUTBOX

Wrong = Iterator[str]


def nothing_leaves_before_the_commit(config: QueueConfig, state: State) -> Wrong:
    """Nothing is appended before the commit. What a power cut would undo is not committed."""
    committed = len(state.rows) if state.unsynced is None else state.unsynced.rows
    for name, queue in zip(NAMES, state.queues, strict=True):
        for message in queue.messages:
            if not 0 <= message.sequence < committed:
                yield f"{name} has a message of entry {message.entry}, which no durable commit has"


def a_wave_commits_once(config: QueueConfig, state: State) -> Wrong:
    """Only the driver with the highest epoch can commit."""
    if STALE in state.remembered:
        yield STALE


def the_position_covers_what_was_committed(config: QueueConfig, state: State) -> Wrong:
    """What lies before the position was committed with it, or before; the log is told of no other position."""
    known = state.position if state.unsynced is None else state.unsynced.position
    if state.noted > known:
        yield f"the log may remove entry {state.noted - 1}, which no durable commit has"


def everything_is_accounted_for(config: QueueConfig, state: State) -> Wrong:
    """Each entry below the position has a row for each message that it becomes, or waits; none has a row twice, and
    none above it has one. A row that has left the outbox is where the ledger says."""
    counts = Counter((row.entry, row.into, row.cause) for row in state.rows)
    for (entry, into, _), times in counts.items():
        if times > 1:
            yield f"a message of entry {entry} for {NAMES[into]} was committed {times} times"
    found = {row.entry for row in state.rows} | {entry for entry, _ in effective_waits(state)} | {*state.failed}
    for entry in range(config.entries):
        if entry < state.position and entry not in found:
            yield f"entry {entry} lies before the position, and nothing came of it"
        if entry >= state.position and entry in found:
            yield f"entry {entry} was processed, and lies behind the position"
    yield from _rows_are_accounted_for(state)


def _rows_are_accounted_for(state: State) -> Wrong:
    settled = state.settled[OUTBOX] == state.wave
    told = {row.entry for row in state.rows if row.cause == REFUSAL}
    for sequence, row in enumerate(state.rows):
        status = state.ledger[sequence]
        if sequence in state.outbox:
            if settled and status:
                yield f"row {sequence} waits, and the ledger says {status} of it"
        elif status == Status.DEAD:
            if row.entry not in told:
                yield f"row {sequence} was refused, and the error queue will never say so"
        elif status != Status.INDEXED:
            yield f"row {sequence} has left the outbox, and the ledger says {status or 'nothing'} of it"


def an_append_takes_effect_once(config: QueueConfig, state: State) -> Wrong:
    """A queue has each row once, and each that counts as delivered."""
    there = [{m.sequence for m in queue.messages} for queue in state.queues]
    for name, queue in zip(NAMES, state.queues, strict=True):
        for message, times in Counter(queue.messages).items():
            if times > 1:
                yield f"{name} has the message of entry {message.entry} {times} times"
    for sequence, status in enumerate(state.ledger):
        if status == Status.INDEXED and sequence not in there[state.rows[sequence].into]:
            yield f"row {sequence} is INDEXED, and its queue does not have it"


def output_or_error(config: QueueConfig, state: State) -> Wrong:
    """An entry gives an output or an error message, never both."""
    out, errors = ({m.entry for m in queue.messages} for queue in state.queues)
    for entry in out & errors:
        yield f"entry {entry} is in the output queue and in the error queue"
    waiting = {entry for entry, _ in effective_waits(state)}
    for row in state.rows:
        if row.into == ERRORS and row.entry in waiting:
            yield f"entry {row.entry} has an error message, and is tried again"


def outputs_have_the_order_of_inputs(config: QueueConfig, state: State) -> Wrong:
    """The messages of a queue have the order of the commits; outputs of a log that is read in order have the order of
    its entries."""
    for name, queue in zip(NAMES, state.queues, strict=True):
        sequences = [m.sequence for m in queue.messages]
        if sequences != sorted(sequences):
            yield f"{name} has the rows {sequences}"
    entries = [m.entry for m in state.queues[OUT].messages]
    if config.ordered and entries != sorted(entries):
        yield f"the output queue has the entries {entries}"


def attempts_are_counted(config: QueueConfig, state: State) -> Wrong:
    """No entry waits for more attempts than it has, however often the run is started again; a command gives it as many
    once more."""
    for entry, failures in enumerate(state.failures):
        given = 1 + sum(command.entry == entry for command in state.asked)
        if failures > (config.attempts - 1) * given:
            yield f"entry {entry} was put off {failures} times, and has {config.attempts} attempts {given} times"


def a_stop_is_known(config: QueueConfig, state: State) -> Wrong:
    """Where a plan stops before an entry, the commit of the entries before it says so; nothing behind it is processed
    until a commit gets past it."""
    if state.stop.entry != state.stopped:
        yield f"the plan stops before entry {state.stopped}, and the state says {state.stop.entry}"
    if state.stop.entry not in (-1, state.position):
        yield f"the plan stops before entry {state.stop.entry}, and its position is {state.position}"


def a_skip_passes_one_entry(config: QueueConfig, state: State) -> Wrong:
    """An entry that failed is passed only if an operator has named it, once, and has no message."""
    named = {command.entry for command in state.asked if command.verb == SKIP}
    for entry in state.failed:
        if entry not in named:
            yield f"entry {entry} was passed, and nobody has asked for it"
    if len({*state.failed}) < len(state.failed) or {*state.failed} & {row.entry for row in state.rows}:
        yield f"the entries {state.failed} have failed, and one of them has ended twice"


def at_rest(config: QueueConfig, state: State) -> Wrong:
    """When nothing can be done any more, each entry has ended."""
    if min(state.settled) < state.wave:
        yield f"wave {state.wave} is not settled"
    if state.position != state.arrived and state.stop.entry != state.position:
        yield f"the position is {state.position}, and there are {state.arrived} entries"
    for sequence in state.outbox:
        yield f"row {sequence} is pending, and nobody appends it"
    for command in state.commands:
        if command.entry >= 0:
            yield f"a {command.verb} of entry {command.entry} is queued, and nobody applies it"
    ended = {m.entry for queue in state.queues for m in queue.messages} | {*state.failed}
    for entry in set(range(state.position)) - ended:
        yield f"entry {entry} is in no queue"


INVARIANTS: Final[dict[str, Callable[[QueueConfig, State], Wrong]]] = {
    "I1": nothing_leaves_before_the_commit,
    "I2": a_wave_commits_once,
    "I7": an_append_takes_effect_once,
    "position": the_position_covers_what_was_committed,
    "I4": everything_is_accounted_for,
    "one end": output_or_error,
    "order": outputs_have_the_order_of_inputs,
    "attempts": attempts_are_counted,
    "stop": a_stop_is_known,
    "skip": a_skip_passes_one_entry,
}
"""I1 to I7 are those of ``docs/architecture.md``, as they hold for queues; I9 is tried by the explorer."""
