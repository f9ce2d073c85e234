"""What a new version leaves of the old one's deliveries: the rules alone, without an engine."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import pytest

from ferryman.engine.transform.reconcile import reconcile
from ferryman.records.families import FailedMember, MissingDelivery, Published


@dataclasses.dataclass
class Walked:
    failures: list[FailedMember] = dataclasses.field(default_factory=list)
    reached: list[FailedMember] = dataclasses.field(default_factory=list)
    unneeded: list[str] = dataclasses.field(default_factory=list)


A, X, Y, XZ = (Published(member, "", "out") for member in ("", "#x", "#y", "#x#z"))


def failure(member: str, *destinations: str, route: str = "") -> FailedMember:
    return FailedMember(member, "step", "", "", [MissingDelivery(name, route, 1) for name in destinations])


class Compared(NamedTuple):
    """What is given from now on, and what becomes of the rest."""

    given: list[Published]
    gone: list[Published]
    replaced: list[tuple[Published, str]]


def compared(
    old: list[Published], made: list[Published], walk: Walked | None = None, *, retry: bool = False
) -> Compared:
    places = {"left": "one place", "right": "one place"}
    found = reconcile(old, made, walk or Walked(), lambda name: places.get(name, name), retry=retry)
    return Compared([*made, *found.kept], list(found.deleted), found.replaced)


def test_what_is_not_made_again_goes() -> None:
    assert compared([A, X, Y], [A, Y]) == Compared([A, Y], [X], [])


def test_what_lies_below_a_failure_stays() -> None:
    """Its descendants too; its siblings do not."""
    assert compared([X, Y, XZ], [], Walked([failure("#x", "out")])) == Compared([X, XZ], [Y], [])
    assert compared([X], [], Walked([failure("#x", "elsewhere")])) == Compared([], [X], [])


def test_a_member_is_no_descendant_of_one_whose_name_it_begins_with() -> None:
    longer = Published("#xy", "", "out")
    assert compared([X, longer], [], Walked([failure("#x", "out")])) == Compared([X], [longer], [])


def test_a_retry_speaks_only_of_what_it_reached() -> None:
    """And not of members that it let go when they were made."""
    walk = Walked(reached=[failure("", "out")], unneeded=["#x"])
    assert compared([A, X, Y, XZ], [A], walk, retry=True) == Compared([A, X, XZ], [Y], [])
    assert compared([X, Y], [], Walked(reached=[failure("#x", "out")]), retry=True) == Compared([Y], [X], [])


@pytest.mark.parametrize("now", [Published("", "other", "left"), Published("", "", "right")])
def test_the_same_place_by_another_way_replaces(now: Published) -> None:
    """Another route, or another node of the same target."""
    before = Published("", "", "left")
    given, gone, [(replaced, why)] = compared([before], [now])
    assert (given, gone, replaced) == ([now], [], before)
    assert why.startswith("replaced: ")


def test_what_may_still_come_inherits() -> None:
    """The old one stays until the retry has come by the other way, or is clear not to come."""
    before = Published("#x", "", "left")
    given, gone, [(replaced, why)] = compared([before], [], Walked([failure("#x", "right", route="r")]))
    assert (given, gone, replaced) == ([Published("#x", "r", "right")], [], before)
    assert why.startswith("kept: ")


def test_a_large_family_takes_no_square_of_its_size() -> None:
    """Twenty thousand members, half of which failed: comparing each with each would take minutes."""
    members = [Published(f"#{n}", "", "out") for n in range(20_000)]
    walk = Walked([failure(g.member, "out") for g in members[::2]], reached=[failure("", "out")])
    given, gone, _ = compared(members, [], walk, retry=True)
    assert (len(given), len(gone)) == (10_000, 10_000)
