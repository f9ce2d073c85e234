"""What a new version leaves of what the old one gave: what stays given, what is to be taken out, what is replaced."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple, Protocol

from ferryman.records.family import FailedMember, Owed, Published, PublishedLines, ancestry


class WalkOutcome(Protocol):
    """What a walk leaves, beside what it said; see ``Walk``. ``failures`` are all of the family's by now."""

    @property
    def failures(self) -> list[FailedMember]: ...
    @property
    def reached(self) -> list[FailedMember]: ...
    @property
    def kept(self) -> list[str]: ...


class Reconciliation(NamedTuple):
    """The old version's deliveries by what becomes of them."""

    stays: PublishedLines
    """It stays given, for now."""
    gone: PublishedLines
    """The new version does not make them, nor may it still."""
    replaced: list[tuple[Published, str]]
    """Another way leads, or may still lead, to the same place: no delete, and why."""


def reconcile(
    old: Iterable[Published],
    made: Collection[Published],
    walk: WalkOutcome,
    target: Callable[[str], str],
    *,
    retry: bool,
) -> Reconciliation:
    """Compare what was given with what a walk has made.

    A whole walk speaks of all the family; a retry only of what lies below the failures that it reached, but for members
    that it dropped. Where the walk failed, the old version stays: the new one may still come.

    Args:
        made: what the walk gave.
        target: destination -> the place that it writes to.
    """
    places, kept = {_mark(g.place) for g in made}, set(walk.kept)
    reached, failed = _Below(walk.reached), _Below(walk.failures)
    found = Reconciliation(PublishedLines(), PublishedLines(), [])
    stale = PublishedLines()
    for each in old:
        if (place := _mark(each.place)) in places:
            continue
        spoken_of = not retry or (reached.has(each) and kept.isdisjoint(ancestry(each.member)))
        if spoken_of and not failed.has(each):
            stale.append(each)
        else:
            found.stays.append(each)
            places.add(place)
    targets = {_mark((g.member, target(g.destination))) for g in stale}
    if targets:
        ways = (_mark((g.member, target(g.destination))) for g in itertools.chain(made, found.stays))
        targets.intersection_update([way for way in ways if way in targets])
    for each in stale:
        if _mark((each.member, target(each.destination))) in targets:
            found.replaced.append((each, "replaced: the new version reaches the same destination by another path"))
        elif (heir := failed.heir(each, target)) is not None:
            found.replaced.append((each, "kept: the new version may still reach the same destination by another path"))
            if (place := _mark(heir.place)) not in places:  # if it never comes, deleting is its business
                places.add(place)
                found.stays.append(heir)
        else:
            found.gone.append(each)
    return found


_mark = hash
"""64 bits that stand for a place: of a million members, names would take ten times the memory, and that two of them
have the same is as likely as 1 in 10⁷."""


class _Below:
    """What lies below failures, by the member that failed: a family may be large."""

    def __init__(self, failures: Iterable[FailedMember]) -> None:
        self._owed: dict[str, list[Owed]] = defaultdict(list)
        for failure in failures:
            self._owed[failure.member] += failure.owed
        self._ends = {member: {o.end for o in owed} for member, owed in self._owed.items()}

    def has(self, given: Published) -> bool:
        """Would one of the failures have given that, had it not failed?"""
        end = (given.destination, given.route)
        return any(end in self._ends.get(member, ()) for member in ancestry(given.member))

    def heir(self, given: Published, target: Callable[[str], str]) -> Published | None:
        """A missing delivery that would overwrite that one."""
        for member in ancestry(given.member):
            for owed in self._owed.get(member, ()):
                if target(owed.destination) == target(given.destination):
                    return Published(given.member, owed.route, owed.destination)
        return None
