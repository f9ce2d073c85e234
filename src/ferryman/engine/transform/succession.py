"""What a new version leaves of what the old one gave: what stays given, what is to be taken out, what is replaced."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from ferryman.ledger.family import Failure, Given, Owed, ancestry


class Outcome(Protocol):
    """What a walk leaves, beside what it said; see ``Walk``. ``failures`` are all of the family's by now."""

    @property
    def failures(self) -> list[Failure]: ...
    @property
    def reached(self) -> list[Failure]: ...
    @property
    def kept(self) -> list[str]: ...


class Succession(NamedTuple):
    """The old version's deliveries by what becomes of them."""

    given: list[Given]
    """The new version's, and those of the old one that stay for now."""
    gone: list[Given]
    """The new version does not make them, nor may it still."""
    replaced: list[tuple[Given, str]]
    """Another way leads, or may still lead, to the same place: no delete, and why."""


def succession(
    old: Sequence[Given], made: Sequence[Given], walk: Outcome, target: Callable[[str], str], *, retry: bool
) -> Succession:
    """Compare what was given with what a walk has made.

    A whole walk speaks of all the family; a retry only of what lies below the failures that it reached, but for members
    that it let go. Where the walk failed, the old version stays: the new one may still come.

    Args:
        made: what the walk gave.
        target: destination -> the place that it writes to.
    """
    new, kept = {g.place for g in made}, set(walk.kept)
    reached, failed = _Below(walk.reached), _Below(walk.failures)
    given, stale = list(made), []
    for each in old:
        if each.place in new:
            continue
        spoken_of = not retry or (reached.has(each) and kept.isdisjoint(ancestry(each.member)))
        if spoken_of and not failed.has(each):
            stale.append(each)
        else:
            given.append(each)
    found = Succession(given, [], [])
    there = {(g.member, target(g.destination)) for g in given}
    all_given = {g.place for g in given}
    for each in stale:
        if (each.member, target(each.destination)) in there:
            found.replaced.append((each, "replaced: the new version comes to the same place by another way"))
        elif (heir := failed.heir(each, target)) is not None:
            found.replaced.append((each, "kept: the new version may still come to the same place by another way"))
            if heir.place not in all_given:  # if it never comes, deleting is its business
                all_given.add(heir.place)
                found.given.append(heir)
        else:
            found.gone.append(each)
    return found


class _Below:
    """What lies below failures, by the member that failed: a family may be large."""

    def __init__(self, failures: Iterable[Failure]) -> None:
        self._owed: dict[str, list[Owed]] = defaultdict(list)
        for failure in failures:
            self._owed[failure.member] += failure.owed
        self._ends = {member: {o.end for o in owed} for member, owed in self._owed.items()}

    def has(self, given: Given) -> bool:
        """Would one of the failures have given that, had it not failed?"""
        end = (given.destination, given.route)
        return any(end in self._ends.get(member, ()) for member in ancestry(given.member))

    def heir(self, given: Given, target: Callable[[str], str]) -> Given | None:
        """A missing delivery that would overwrite that one."""
        for member in ancestry(given.member):
            for owed in self._owed.get(member, ()):
                if target(owed.destination) == target(given.destination):
                    return Given(given.member, owed.route, owed.destination)
        return None
