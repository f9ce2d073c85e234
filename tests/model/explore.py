"""Every state that can be reached, breadth first: the shortest way to a broken promise is the one that is told."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from tests.model.actions import ACTIONS, Action, Step
from tests.model.invariants import INVARIANTS, at_rest
from tests.model.protocol import killed, moves
from tests.model.state import Budget, State

LONGEST_RECOVERY: Final = 200
"""Steps after which a run without faults must have come to rest. Those seen here need less than a hundred."""

AFTER: Final = "after a kill of everything and a run without faults,"

Broken = tuple[str, str]
"""An invariant, and what is wrong."""


class Violation(NamedTuple):
    """A promise that was broken, and the shortest way there."""

    invariant: str
    why: str
    trace: tuple[Step, ...]

    def __str__(self) -> str:
        lines = [f"{self.invariant}: {self.why}", *(f"{n:3}. {step}" for n, step in enumerate(self.trace, 1))]
        return "\n".join(lines)


class Report(NamedTuple):
    """What an exploration came to."""

    states: int
    transitions: int
    rests: int
    """States in which nothing can be done any more."""
    recoveries: int
    """Different things that a kill of everything may leave behind; from each of them a run comes to rest."""
    actions: frozenset[str]
    """Those that were taken."""
    seconds: float
    violation: Violation | None


class Rules(NamedTuple):
    """What is explored: functions of a configuration and a state. A state has a ``budget``."""

    actions: Mapping[str, Action]
    step: type[Step]
    moves: Callable[..., Iterator[tuple[Step, Any]]]
    killed: Callable[[Any, Any], Any]
    invariants: Mapping[str, Callable[[Any, Any], Iterator[str]]]
    """Name -> what is wrong; of several that do not hold the first is reported."""
    at_rest: Callable[[Any, Any], Iterator[str]]
    durable: Callable[[Any], Any]
    """What outlives a driver, but for its epoch."""

    def violation(self, config: Any, state: Any) -> Broken | None:
        """The first invariant that does not hold, and why."""
        for name, wrongs in self.invariants.items():
            for wrong in wrongs(config, state):
                return name, wrong
        return None


def _durable(state: State) -> State:
    return state._replace(drivers=(), epochs=(0, 0, 0), unsynced=False)


DOCUMENTS: Final = Rules(ACTIONS, Step, moves, killed, INVARIANTS, at_rest, _durable)


class Explorer:
    """Explores one configuration."""

    def __init__(self, config: Any, rules: Rules = DOCUMENTS) -> None:
        self.config = config
        self.rules = rules
        self._before: dict[Any, tuple[Any, Step] | None] = {}
        self._sound: set[Any] = set()
        """States without faults to come from which a run is known to come to rest."""
        self._recoveries: set[Any] = set()
        self._looked_at: set[Any] = set()
        """What kills left, where nothing was broken: many states differ only in what drivers and workers remember."""

    def explore(self) -> Report:
        """All of it, or up to the first violation."""
        began = time.perf_counter()
        gc.disable()  # a million tuples without a cycle among them: looking for one takes a third of the time
        try:
            transitions, rests, taken, found = self._walk()
        finally:
            gc.enable()
        seconds = time.perf_counter() - began
        return Report(len(self._before), transitions, rests, len(self._recoveries), taken, seconds, found)

    def _walk(self) -> tuple[int, int, frozenset[str], Violation | None]:
        config, before = self.config, self._before
        before[config.first()] = None
        waiting = deque(before)
        transitions = rests = 0
        taken: set[str] = set()
        found: Violation | None = None
        while waiting and found is None:
            state = waiting.popleft()
            found = self._violation(state)
            resting = True
            for step, after in self.rules.moves(config, state):
                transitions += 1
                taken.add(step.action)
                resting = resting and self.rules.actions[step.action].fault
                known = len(before)
                before.setdefault(after, (state, step))  # hashes it once, which takes a tenth of the time
                if len(before) > known:
                    waiting.append(after)
            if resting and found is None:
                rests += 1
                if (wrong := next(self.rules.at_rest(config, state), None)) is not None:
                    found = Violation("I4", wrong, self.trace(state))
        return transitions, rests, frozenset(taken), found

    def _violation(self, state: Any) -> Violation | None:
        """Look at what a kill of everything leaves: no invariant is about what is lost then."""
        dead = self.rules.killed(self.config, state)
        known = len(self._looked_at)
        self._looked_at.add(dead)
        if len(self._looked_at) == known:
            return None
        if (broken := self.rules.violation(self.config, dead)) is not None:
            return Violation(*broken, self.trace(state))
        if (broken := self.unrecoverable(dead)) is not None:
            return Violation(*broken, (*self.trace(state), self.rules.step("crash.all"), *self._way_to_rest(dead)))
        return None

    def explored(self) -> Iterator[tuple[Any, Any]]:
        """Each state that was reached, after the one that it was reached from first."""
        for state, link in self._before.items():
            yield None if link is None else link[0], state

    def trace(self, state: Any) -> tuple[Step, ...]:
        """The steps from the beginning to this state."""
        steps: list[Step] = []
        link = self._before[state]
        while link is not None:
            steps.append(link[1])
            link = self._before[link[0]]
        return tuple(reversed(steps))

    # -- I9 ----------------------------------------------------------------------------------------

    def unrecoverable(self, dead: Any) -> Broken | None:
        """Every state change can be recovered by repeating it, even if the recovery itself is killed.

        Everything was killed here. One run without faults must then come to rest with all accounted for and nothing
        broken, and another start after it must change nothing.
        """
        left = dead._replace(budget=Budget())  # nothing goes wrong after it
        self._recoveries.add(left)
        return self._comes_to_rest(left)

    def _comes_to_rest(self, state: Any) -> Broken | None:
        path: list[Any] = []
        while state not in self._sound:
            path.append(state)
            well = self._well(state)
            if well is None:
                if (wrong := self._wrong_at_rest(state)) is not None:
                    return wrong
                break
            if len(path) > LONGEST_RECOVERY:
                return "I9", f"{AFTER} it never comes to rest"
            state = well[1]
        self._sound.update(path)
        return None

    def _well(self, state: Any) -> tuple[Step, Any] | None:
        """The next step if nothing goes wrong."""
        found = self.rules.moves(self.config, state, outside=False)
        return next(((s, after) for s, after in found if not self.rules.actions[s.action].fault), None)

    def _way_to_rest(self, dead: Any) -> tuple[Step, ...]:
        """The steps of a run without faults, up to the first thing that is wrong."""
        steps: list[Step] = []
        state = dead._replace(budget=Budget())
        while len(steps) < LONGEST_RECOVERY and (well := self._well(state)) is not None:
            step, state = well
            steps.append(step)
            if self.rules.violation(self.config, state) is not None:
                break
        return tuple(steps)

    def _wrong_at_rest(self, state: Any) -> Broken | None:
        if (broken := self.rules.violation(self.config, state)) is not None:
            return broken[0], f"{AFTER} {broken[1]}"
        if (wrong := next(self.rules.at_rest(self.config, state), None)) is not None:
            return "I9", f"{AFTER} {wrong}"
        return self._starts_idle(state)

    def _starts_idle(self, state: Any) -> Broken | None:
        """Started again after it has come to rest, it finds nothing to recover."""
        again = self.rules.killed(self.config, state)
        while (well := self._well(again)) is not None:
            again = well[1]
        if self.rules.durable(again) != self.rules.durable(state):
            return "I9", "a start that has nothing to recover changes something"
        return None
