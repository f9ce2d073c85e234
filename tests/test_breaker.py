"""Circuit breakers: the table, waits, and what a process keeps to itself."""

from __future__ import annotations

import pickle
from itertools import product

import pytest

from ferryman.breaker import NEXT_STATE, Breaker, BreakerEvent, Breakers, BreakerState


@pytest.mark.parametrize(("state", "event"), [*product(BreakerState, BreakerEvent)])
def test_every_event_has_a_meaning_in_every_state(state: BreakerState, event: BreakerEvent) -> None:
    """Success closes, a failure of the whole opens or stops; a suspicion changes only what works."""
    breaker = Breaker()
    breaker.state = state
    breaker.note(event)
    works = state in (BreakerState.CLOSED, BreakerState.HALF_OPEN)
    expected = {
        BreakerEvent.SUCCEEDED: BreakerState.CLOSED,
        BreakerEvent.SUSPECTED: BreakerState.HALF_OPEN if works else state,
        BreakerEvent.UNAVAILABLE: BreakerState.OPEN,
        BreakerEvent.MISCONFIGURED: BreakerState.STOPPED,
    }
    assert breaker.state is NEXT_STATE[state][event] is expected[event]


def test_a_reason_is_quoted_without_its_full_stop() -> None:
    """Messages quote it, and go on."""
    found = Breakers(lambda: 10.0)
    found.fail("a", BreakerEvent.UNAVAILABLE, "the server is away.", 5)
    assert found.get("a").why == "the server is away"


def test_a_wait_ends_and_a_suspicion_has_none() -> None:
    now = [10.0]
    found = Breakers(lambda: now[0])
    assert (found.wait_s("a"), found.blocking("a")) == (0, None)
    found.fail("a", BreakerEvent.SUSPECTED, "odd", 5)
    assert (found.wait_s("a"), found.get("a").failures) == (0, 0)
    found.fail("a", BreakerEvent.UNAVAILABLE, "away", 5)
    assert (found.wait_s("a"), found.get("a").failures) == (5, 1)
    now[0] += 5
    assert (found.wait_s("a"), found.blocking("a")) == (0, None)
    closed = found.succeed("a")
    assert closed is not None
    assert (closed.why, closed.since, found.succeed("a")) == ("away", 10, None)


@pytest.mark.parametrize("endless", [True, False])
def test_what_is_stopped_is_called_again_only_by_a_process_that_nobody_starts_again(endless: bool) -> None:
    found = Breakers(lambda: 1.0)
    found.endless = endless
    found.fail("a", BreakerEvent.MISCONFIGURED, "403", 5)
    assert found.wait_s("a") == (5 if endless else None)
    assert found.blocking("a") is found.get("a")


def test_a_failure_stays_in_its_process() -> None:
    found = Breakers()
    found.fail("a", BreakerEvent.UNAVAILABLE, "away", 3600)
    assert found.blocking("a") is not None
    assert pickle.loads(pickle.dumps(found)).blocking("a") is None
