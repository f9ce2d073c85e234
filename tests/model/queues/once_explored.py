"""What is explored of an at-most-once plan, what must always hold, and the faults that are put into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tests.model.explore import Rules
from tests.model.queues.mutations import QueueMutation
from tests.model.queues.once import (
    ENDED,
    IN_DOUBT,
    ONCE_ACTIONS,
    PENDING,
    STALE,
    OnceConfig,
    OnceState,
    OnceStep,
    once_moves,
)
from tests.model.state import Budget

Wrong = Iterator[str]


def steps_see_an_entry_once(config: OnceConfig, state: OnceState) -> Wrong:
    """No step sees an entry in two waves, or in two attempts of a task."""
    for entry, calls in enumerate(state.calls):
        if calls > 1:
            yield f"entry {entry} was seen {calls} times"


def everything_is_accounted_for(config: OnceConfig, state: OnceState) -> Wrong:
    """An entry below the position has ended, waits or is in doubt, or the open intake has it; what has ended was seen,
    and what waits was not."""
    tables = state.tables
    open_ = tables.taken.entries if tables.taken.wave > tables.wave else ()
    for entry, fate in enumerate(tables.fates):
        if entry < tables.position and not fate and entry not in open_:
            yield f"entry {entry} lies before the position, and nobody knows of it"
        if (fate == ENDED) and not state.calls[entry]:
            yield f"entry {entry} has ended, and no step has seen it"
        if fate == PENDING and state.calls[entry] and entry not in open_:
            yield f"entry {entry} is to be run, and was seen before"


def only_the_last_driver_commits(config: OnceConfig, state: OnceState) -> Wrong:
    """Only the driver with the highest epoch can commit."""
    if STALE in state.remembered:
        yield STALE


def doubt_has_a_reason(config: OnceConfig, state: OnceState) -> Wrong:
    """Nothing is in doubt where nothing was killed, doubled or overtaken."""
    undisturbed = state.budget._replace(faults=0) == config.budget._replace(faults=0)
    if undisturbed and state.epoch <= 1 and IN_DOUBT in state.tables.fates:
        yield "an entry is in doubt, though nothing was killed"
    spent = config.budget.crashes - state.budget.crashes + config.budget.doubles - state.budget.doubles
    takeovers = 1 + spent + config.budget.rivals - state.budget.rivals  # 1: everything is killed once more at the end
    if (doubtful := state.tables.fates.count(IN_DOUBT)) > takeovers:
        yield f"{doubtful} entries are in doubt after {takeovers} kills at most"


ONCE_INVARIANTS: Final[dict[str, Callable[[OnceConfig, OnceState], Wrong]]] = {
    "I2": only_the_last_driver_commits,
    "I5": steps_see_an_entry_once,
    "I4": everything_is_accounted_for,
    "doubt": doubt_has_a_reason,
}


def at_rest(config: OnceConfig, state: OnceState) -> Wrong:
    """When nothing can be done any more, each entry has ended or is in doubt."""
    for entry, fate in enumerate(state.tables.fates):
        if fate not in (ENDED, IN_DOUBT):
            yield f"entry {entry} is {fate or 'unknown'}"


def _killed(config: OnceConfig, state: OnceState) -> OnceState:
    return state._replace(drivers=(), tasks=())


def _durable(state: OnceState) -> OnceState:
    return state._replace(drivers=(), epoch=0, unsynced=None)


ONCE_RULES: Final = Rules(ONCE_ACTIONS, OnceStep, once_moves, _killed, ONCE_INVARIANTS, at_rest, _durable)

ONCE_CONFIGURATIONS: Final = (
    OnceConfig("kills", 2, Budget(crashes=2)),
    OnceConfig("kills, a wave an entry", 2, Budget(crashes=1, doubles=1), slice=1),
    OnceConfig("outages", 3, Budget(crashes=1, faults=2)),
    OnceConfig("two drivers", 2, Budget(rivals=1, doubles=1), lock=False),
)


def _once(name: str, breaks: str, budget: Budget, *, lock: bool = True) -> QueueMutation:
    return QueueMutation(name, breaks, OnceConfig("", 2, budget, lock=lock))


ONCE_MUTATIONS: Final = (
    _once("a commit does not look at the epoch", "I2", Budget(rivals=1), lock=False),
    _once("the steps begin before the intake is synced", "I5", Budget(crashes=1)),
    _once("a task does not look whether it has begun", "I5", Budget(doubles=1)),
    _once("what has not begun may still begin", "I4", Budget(crashes=1)),
    _once("a step is called before that is noted", "I5", Budget(crashes=1)),
    _once("a task does not look whether it was stopped", "I5", Budget(doubles=1)),
    _once("the notes are read before the task is stopped", "I5", Budget(doubles=1)),
    _once("what had begun is run again", "I5", Budget(crashes=1)),
    _once("what had begun counts as ended", "I4", Budget(crashes=1)),
    _once("an intake without its wave is forgotten", "I9", Budget(crashes=1)),
    _once("an outage leaves the rest in doubt", "doubt", Budget(faults=1)),
    _once("a task that came to an outage counts as a whole", "I4", Budget(faults=1)),
)
