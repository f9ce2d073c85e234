"""Circuit breakers: whether something that failed is called again, as one state machine.

The same machine serves a step in a task (``engine.transform.health``), nodes and destinations in the driver
(``engine.breakers``), and hosts (``steps.fetch``, ``intake.service.fetch``). They differ in what counts as an event,
and in how long a wait is.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from ferryman import limits


class BreakerState(enum.Enum):
    """States of a breaker, by the calls that it allows."""

    CLOSED = "every call"
    HALF_OPEN = "single calls, which decide"
    OPEN = "no call until a wait has ended; the next one decides"
    STOPPED = "no call until an operator has fixed it"


class BreakerEvent(enum.Enum):
    """Events of a breaker."""

    SUCCEEDED = "a call succeeded"
    SUSPECTED = "many calls failed, or one whose error the evidence contradicts"
    UNAVAILABLE = "it failed as a whole, for now"
    MISCONFIGURED = "it failed as a whole, until an operator fixes it"


_S, _E = BreakerState, BreakerEvent

NEXT_STATE: Final[Mapping[BreakerState, Mapping[BreakerEvent, BreakerState]]] = MappingProxyType(
    {
        _S.CLOSED: {
            _E.SUCCEEDED: _S.CLOSED,
            _E.SUSPECTED: _S.HALF_OPEN,
            _E.UNAVAILABLE: _S.OPEN,
            _E.MISCONFIGURED: _S.STOPPED,
        },
        _S.HALF_OPEN: {
            _E.SUCCEEDED: _S.CLOSED,
            _E.SUSPECTED: _S.HALF_OPEN,
            _E.UNAVAILABLE: _S.OPEN,
            _E.MISCONFIGURED: _S.STOPPED,
        },
        _S.OPEN: {
            _E.SUCCEEDED: _S.CLOSED,
            _E.SUSPECTED: _S.OPEN,
            _E.UNAVAILABLE: _S.OPEN,
            _E.MISCONFIGURED: _S.STOPPED,
        },
        _S.STOPPED: {
            _E.SUCCEEDED: _S.CLOSED,
            _E.SUSPECTED: _S.STOPPED,
            _E.UNAVAILABLE: _S.OPEN,
            _E.MISCONFIGURED: _S.STOPPED,
        },
    }
)
"""State -> event -> next state. There is no final state: every breaker may close again."""


class Breaker:
    """Circuit breaker of one node, destination or host.

    Attributes:
        why: the last failure.
        since: time of the first failure since it was closed.
        until: time at which the wait ends.
        failures: number of failures since it was closed; a mere suspicion is none.
    """

    __slots__ = ("failures", "since", "state", "until", "why")

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.why = ""
        self.since = self.until = 0.0
        self.failures = 0

    @property
    def permanent(self) -> bool:
        """Return whether an operator has to fix it."""
        return self.state is BreakerState.STOPPED

    def note(self, event: BreakerEvent) -> None:
        """Change the state."""
        self.state = NEXT_STATE[self.state][event]

    def fail(self, event: BreakerEvent, why: str, now: float, wait_s: float) -> None:
        """Note a failure, after which nothing is called for ``wait_s`` seconds."""
        if self.state is BreakerState.CLOSED:
            self.since = now
        self.note(event)
        self.why, self.until = why.removesuffix("."), now + wait_s  # what quotes it ends the sentence itself
        self.failures += event is not BreakerEvent.SUSPECTED


class Breakers:
    """Breakers that are not closed, by name, in the order in which they left that state.

    Pickled, it is empty: a failure that one process has met says little about another one's calls.

    Attributes:
        endless: nothing is stopped for good, since nobody starts this process again; what is stopped is called again
            after a wait.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.endless = True
        self._clock = clock
        self._breakers: dict[str, Breaker] = {}

    def __reduce__(self) -> tuple[type[Breakers], tuple[()]]:
        return Breakers, ()

    def fail(self, name: str, event: BreakerEvent, why: str, wait_s: float) -> None:
        """Record a failure; if a wait is under way, it is replaced."""
        breaker = self._breakers.get(name)
        if breaker is None:
            breaker = self._breakers[name] = Breaker()
        breaker.fail(event, why, self._clock(), wait_s)

    def succeed(self, name: str) -> Breaker | None:
        """Close a breaker; return it as it was, or None if it was closed."""
        return self._breakers.pop(name, None)

    def blocking(self, name: str) -> Breaker | None:
        """Return the breaker of something that must not be called now; None: it may be called."""
        return self._breakers[name] if self.wait_s(name) != 0 else None

    def get(self, name: str) -> Breaker:
        """Return the breaker of this name."""
        return self._breakers.get(name) or Breaker()

    def wait_s(self, name: str) -> float | None:
        """Return the seconds until a call is allowed, 0: now; None: none is while this process runs."""
        breaker = self._breakers.get(name)
        if breaker is None or breaker.state is BreakerState.HALF_OPEN:
            return 0.0
        if breaker.permanent and not self.endless:
            return None
        return max(0.0, breaker.until - self._clock())

    def items(self) -> Iterator[tuple[str, Breaker]]:
        """Return the names and breakers."""
        return iter(self._breakers.items())


def backoff_s(failures: int) -> float:
    """Return the seconds for which nothing is called after so many failures in a row: 1, 4, 16 … up to an hour."""
    # 2 ** 6 failures are far beyond the cap already, and a power of a large number overflows.
    return min(limits.BACKOFF_MAX_S, limits.BACKOFF_FIRST_S * limits.BACKOFF_FACTOR ** (min(failures, 64) - 1))
