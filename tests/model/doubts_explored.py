"""What is explored of a destination that breaks connections, what must hold there, and faults put into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tests.model.doubts import (
    DELIVERED,
    DOUBT_ACTIONS,
    FAILED,
    IN_DOUBT,
    PENDING,
    DoubtConfig,
    DoubtState,
    DoubtStep,
    doubt_moves,
)
from tests.model.explore import Rules
from tests.model.queues.mutations import QueueMutation
from tests.model.state import LEAST, ONCE, Budget

Wrong = Iterator[str]


def sent_once(config: DoubtConfig, state: DoubtState) -> Wrong:
    """At most once: no row is sent twice."""
    for row, times in enumerate(state.sends):
        if config.guarantee == ONCE and times > 1:
            yield f"row {row} was sent {times} times"


def a_bad_row_harms_itself(config: DoubtConfig, state: DoubtState) -> Wrong:
    """Only the row that breaks connections fails; at most once, it is in doubt, and those that were sent with it before
    the destination was doubted."""
    for row, fate in enumerate(state.fates):
        if row in config.poison:
            continue
        if fate == FAILED:
            yield f"row {row} has failed, and breaks no connection"
        if fate == IN_DOUBT and row not in state.together:
            yield f"row {row} is in doubt, and was sent with no row that breaks a connection"


DOUBT_INVARIANTS: Final[dict[str, Callable[[DoubtConfig, DoubtState], Wrong]]] = {
    "I5": sent_once,
    "I8": a_bad_row_harms_itself,
}


def at_rest(config: DoubtConfig, state: DoubtState) -> Wrong:
    """When nothing can be done any more, all others are delivered. The row that breaks connections has ended; it is
    pending only if no others were left that show that it is to blame."""
    for row, fate in enumerate(state.fates):
        if row not in config.poison and fate not in (DELIVERED, IN_DOUBT):
            yield f"row {row} is {fate}, and breaks no connection"
    pending = {row for row, fate in enumerate(state.fates) if fate == PENDING}
    if pending and not state.killed and not state.was_away:
        yield f"the rows {sorted(pending)} are pending, and others have shown that they are to blame"


def _killed(config: DoubtConfig, state: DoubtState) -> DoubtState:
    return state._replace(driver=None, ended=False, killed=True)


def _durable(state: DoubtState) -> DoubtState:
    return DoubtState(state.fates, state.attempts, ())


DOUBT_RULES: Final = Rules(DOUBT_ACTIONS, DoubtStep, doubt_moves, _killed, DOUBT_INVARIANTS, at_rest, _durable)

_ONE = frozenset({1})

DOUBT_CONFIGURATIONS: Final = (
    DoubtConfig("one bad row", 3, _ONE),
    DoubtConfig("one bad row, kills", 4, _ONE, budget=Budget(crashes=3)),
    DoubtConfig("two bad rows, a kill", 5, frozenset({1, 3}), budget=Budget(crashes=1)),
    DoubtConfig("one bad row, and away", 4, _ONE, budget=Budget(crashes=1, faults=2)),
    DoubtConfig("at most once", 5, frozenset({1, 3}), ONCE, Budget(crashes=2), batch=2),
    DoubtConfig("at most once, and away", 5, _ONE, ONCE, Budget(crashes=1, faults=1), batch=2),
)


def _doubt(name: str, breaks: str, guarantee: str = LEAST, faults: int = 0) -> QueueMutation:
    return QueueMutation(name, breaks, DoubtConfig("", 3, _ONE, guarantee, Budget(faults=faults)))


DOUBT_MUTATIONS: Final = (
    _doubt("a broken connection is believed", "I9"),
    _doubt("a chunk that breaks is not sent in halves", "I9"),
    _doubt("each row of a chunk that breaks has failed", "I8"),
    _doubt("halves are sent at most once, too", "I5", ONCE),
    _doubt("a row is to blame although nothing was accepted", "I8", faults=2),
)
