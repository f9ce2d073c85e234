"""Comparison of rounds with a run without faults, on rounds that are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, Plan
from ferryman.destinations import Null
from ferryman.proof.child import Observation
from ferryman.proof.comparison import RoundComparison
from ferryman.proof.faults import PlannedFault
from ferryman.proof.rounds import Played
from ferryman.proof.twins import ARRIVALS, Arrival, append_lines
from ferryman.sources import Memory

IDS = ("a", "b", "c")


def plan_of(guarantee: str) -> Plan:
    plan = Plan("p")
    plan.source("docs", Memory([Document("a")])).destination("out", Null(), guarantee=guarantee)
    return plan


def arrival(id: str, sequence: int, digest: str = "same", hash: str = "") -> Arrival:
    return Arrival("out", hash or f"hash of {id}", digest, "upsert", id, "v", "", "docs", sequence, False)


def round_of(folder: Path, arrivals: list[Arrival], held: list[str], **counts: int) -> Played:
    """Return a round whose twin was given and holds these."""
    folder.mkdir()
    append_lines(folder / ARRIVALS, arrivals)
    status = dict.fromkeys(("delivered", "deleted", "dropped", "failed", "rejected", "pending", "in_doubt"), 0)
    status |= {"delivered": len(IDS), **counts}
    doubtful = [("out", f"hash of {id}") for id in IDS[: counts.get("in_doubt", 0)]]
    seen = Observation(
        {"out": status}, True, {"out": [(id, f"hash of {id}", True) for id in held]}, doubtful, [], [], {}
    )
    return Played(folder, PlannedFault("driver", "wave.logged"), effect=True, seen=seen)


ALL = [arrival(id, n) for n, id in enumerate(IDS)]


@pytest.mark.parametrize(
    ("guarantee", "arrivals", "held", "counts", "broken"),
    [
        ("exactly-once", ALL, "abc", {}, ""),
        ("exactly-once", [*ALL, *ALL], "abc", {}, ""),
        ("exactly-once", [*ALL, arrival("a", 9, hash="newer"), ALL[0]], "abc", {}, "an older version"),
        ("exactly-once", ALL, "ab", {}, "1 lost"),
        ("exactly-once", ALL, "abcc", {}, "1 doubled"),
        ("exactly-once", ALL, "abc", {"pending": 1}, "still pending"),
        ("exactly-once", ALL, "abc", {"delivered": 2}, "the ledger counts"),
        ("exactly-once", [*ALL, arrival("d", 9)], "abcd", {}, "1 too many"),
        ("exactly-once", [*ALL, arrival("c", 2, "other")], "abc", {}, "other bytes"),
        ("exactly-once", [*ALL[:2], arrival("c", 2, "other")], "abc", {}, "other contents"),
        ("at-least-once", [*ALL, ALL[2]], "abcc", {}, ""),
        ("at-least-once", ALL[:2], "ab", {}, "1 lost"),
        ("at-most-once", ALL, "bc", {"delivered": 2, "in_doubt": 1}, ""),
        ("at-most-once", ALL, "ac", {"delivered": 2, "in_doubt": 1}, ""),
        ("at-most-once", ALL, "bc", {}, "1 lost"),
        ("at-most-once", [*ALL, ALL[2]], "abcc", {}, "1 doubled"),
    ],
)
def test_what_a_round_has_broken_is_named(
    tmp_path: Path, guarantee: str, arrivals: list[Arrival], held: str, counts: dict[str, int], broken: str
) -> None:
    reference = round_of(tmp_path / "reference", ALL, ["a", "b", "c"])
    comparison = RoundComparison(plan_of(guarantee), reference)

    found = comparison.compare(round_of(tmp_path / "round", arrivals, [*held], **counts))

    assert bool(found.broken) is bool(broken), found.broken
    assert any(broken in each for each in found.broken) or not broken


def test_what_holds_nothing_in_the_end_is_compared_by_what_it_holds(tmp_path: Path) -> None:
    """Everything was deleted there: a delete that is sent again has no effect, so nothing is doubled."""
    deletes = [each._replace(operation="delete") for each in ALL]
    comparison = RoundComparison(plan_of("exactly-once"), round_of(tmp_path / "reference", deletes, []))

    assert comparison.compare(round_of(tmp_path / "round", [*deletes, deletes[0]], [])).broken == []
    assert comparison.compare(round_of(tmp_path / "worse", deletes, ["a"])).broken != []


@pytest.mark.parametrize("change", [{"balanced": False}, {"damage": ["ledger: torn"]}])
def test_a_state_that_is_damaged_or_not_balanced_is_a_violation(tmp_path: Path, change: dict[str, Any]) -> None:
    reference = round_of(tmp_path / "reference", ALL, [*IDS])
    played = round_of(tmp_path / "round", ALL, [*IDS])
    for name, value in change.items():
        setattr(played.seen, name, value)

    assert RoundComparison(plan_of("exactly-once"), reference).compare(played).broken
