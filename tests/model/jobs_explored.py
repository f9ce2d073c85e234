"""Every world of a job that can be reached, and what is wrong in it."""

from __future__ import annotations

import functools
import time
from collections import deque
from typing import Final, NamedTuple

from tests.model.jobs import DONE, Config, Step, World, steps

PROMISES: Final = {
    "J1": "Only the object that holds the lock changes the job: not one that gave it back or lost it, and no other.",
    "J2": "A job leaves each state once, by an object that has done the work of that very state.",
    "J3": "An object unlocks nothing but the lock that it took.",
    "J4": "Whatever was killed or lost, the job is completed in the end, and nothing is locked.",
}


class Found(NamedTuple):
    """A broken promise, and the shortest way to it."""

    promise: str
    trace: tuple[Step, ...]

    def __str__(self) -> str:
        lines = (f"{n:3}. {step.who} {step.what}" for n, step in enumerate(self.trace, 1))
        return "\n".join([f"{self.promise}: {PROMISES[self.promise]}", *lines])


class Explored(NamedTuple):
    """What an exploration came to."""

    worlds: int
    transitions: int
    ends: int
    """Worlds in which nothing can be done any more."""
    steps: frozenset[str]
    seconds: float
    found: Found | None


@functools.cache
def explored(config: Config) -> Explored:
    """All of it, breadth first, or up to the first broken promise."""
    began = time.perf_counter()
    before: dict[World, tuple[World, Step] | None] = {config.first(): None}
    waiting = deque(before)
    transitions = ends = 0
    taken: set[str] = set()
    wrong: tuple[str, World] | None = None
    while waiting and wrong is None:
        world = waiting.popleft()
        following = list(steps(config, world))
        at_rest = all(step.fault for step, _ in following)
        ends += at_rest
        if world.broken:
            wrong = world.broken, world
        elif at_rest and (world.state != DONE or world.lock is not None):
            wrong = "J4", world
        transitions += len(following)
        for step, after in following:
            taken.add(step.what)
            if after not in before:
                before[after] = (world, step)
                waiting.append(after)
    found = None if wrong is None else Found(wrong[0], _trace(before, wrong[1]))
    return Explored(len(before), transitions, ends, frozenset(taken), time.perf_counter() - began, found)


def _trace(before: dict[World, tuple[World, Step] | None], world: World) -> tuple[Step, ...]:
    found: list[Step] = []
    link = before[world]
    while link is not None:
        found.append(link[1])
        link = before[link[0]]
    return tuple(reversed(found))
