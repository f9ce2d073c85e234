"""Reconciliation of an old version with a new one: which deliveries are kept, deleted or replaced."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from ferryman.records.families import STALE, FailedMember, MissingDelivery, Published, PublishedLines, ancestry


class FamilyOutcome(NamedTuple):
    """Outcome of a family's walk, once it is known which of its failures are retried.

    Attributes:
        failures: all failures of the family, from this walk and earlier ones.
        reached: earlier failures at whose nodes the retry arrived and continued.
        unneeded: members that a retry dropped as soon as they were made, since no failure is below them.
    """

    failures: list[FailedMember]
    reached: list[FailedMember]
    unneeded: list[str]


class Reconciliation(NamedTuple):
    """Deliveries of a document's old version, grouped by what happens to them."""

    kept: PublishedLines
    """Kept for now; they still count as published."""
    held: PublishedLines
    """To be deleted once what has failed of the new version has been made; they count as published until then."""
    deleted: PublishedLines
    """To be deleted, since the new version does not make them and never will."""
    replaced: list[tuple[Published, str]]
    """(delivery, reason). Not deleted, since the new version writes to the same place by another path, or may still do
    so."""


def reconcile(
    old: Iterable[Published],
    made: Collection[Published],
    outcome: FamilyOutcome,
    target: Callable[[str], str],
    *,
    retry: bool,
    holds: Collection[str] = (),
) -> Reconciliation:
    """Compare the deliveries published for the old version of a family with those of the current walk.

    A first walk covers the whole family. A retry covers only deliveries below the failures that it reached, without
    members that it dropped as unneeded; all others are kept. Deliveries below a node that failed are kept too, since a
    later retry may replace them.

    Args:
        made: what the walk published.
        target: destination -> the place that it writes to.
        holds: destinations at which deletes wait for all that the new version makes.
    """
    places, unneeded = {_place_hash(g.place) for g in made}, set(outcome.unneeded)
    reached, failed = _FailedSubtrees(outcome.reached), _FailedSubtrees(outcome.failures)
    incomplete = {target(owed.destination) for failure in outcome.failures for owed in failure.owed}
    result = Reconciliation(PublishedLines(), PublishedLines(), PublishedLines(), [])
    stale = PublishedLines()
    for each in old:
        if (place := _place_hash(each.place)) in places:
            continue
        was_held = each.content == STALE
        spoken_of = not retry or was_held or (reached.covers(each) and unneeded.isdisjoint(ancestry(each.member)))
        if spoken_of and not failed.covers(each):
            stale.append(each)
        else:
            result.kept.append(each)
            places.add(place)
    targets = {_place_hash((g.member, target(g.destination))) for g in stale}
    if targets:
        paths = (_place_hash((g.member, target(g.destination))) for g in itertools.chain(made, result.kept))
        targets.intersection_update([place for place in paths if place in targets])
    for each in stale:
        if _place_hash((each.member, target(each.destination))) in targets:
            result.replaced.append((each, "replaced: the new version reaches the same destination by another path"))
        elif (replacement := failed.replacement(each, target)) is not None:
            result.replaced.append((each, "kept: the new version may still reach the same destination by another path"))
            if (place := _place_hash(replacement.place)) not in places:  # if never made, a later retry deletes it
                places.add(place)
                result.kept.append(replacement)
        elif each.destination in holds and target(each.destination) in incomplete:
            result.held.append(each)
        else:
            result.deleted.append(each)
    return result


_place_hash = hash
"""64-bit hash of a place. Storing names would take ten times the memory for a million members, among which two hashes
collide with a probability of 1 in 10⁷."""


class _FailedSubtrees:
    """Deliveries missing below failed nodes, indexed by the member that failed, since a family may be large."""

    def __init__(self, failures: Iterable[FailedMember]) -> None:
        self._owed: dict[str, list[MissingDelivery]] = defaultdict(list)
        for failure in failures:
            self._owed[failure.member] += failure.owed
        self._ends = {member: {o.end for o in owed} for member, owed in self._owed.items()}

    def covers(self, published: Published) -> bool:
        """Return whether this delivery is missing because of one of the failures."""
        end = (published.destination, published.route)
        return any(end in self._ends.get(member, ()) for member in ancestry(published.member))

    def replacement(self, published: Published, target: Callable[[str], str]) -> Published | None:
        """Return a missing delivery that would overwrite this one once it is made; None: there is none."""
        for member in ancestry(published.member):
            for owed in self._owed.get(member, ()):
                if target(owed.destination) == target(published.destination):
                    return Published(published.member, owed.route, owed.destination)
        return None
