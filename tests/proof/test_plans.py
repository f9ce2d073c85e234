"""Proofs of the built-in plan, and of plans of the how-to guides."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferryman.plan.load import load_plan
from ferryman.proof.faults import KINDS
from ferryman.proof.proof import prove
from tests.support.page import HOW_TO, QuickShell

pytestmark = pytest.mark.slow


def test_two_hundred_rounds_of_the_built_in_plan() -> None:
    """Every kind of fault took effect at every durable write, and nothing was lost or doubled."""
    result = prove(documents=24, rounds=200, spark=False)

    assert result.violations == []
    assert result.inconclusive == []
    assert result.short == []
    assert {kind for kind, _ in result.tallies} == {kind for kind, what in KINDS.items() if not what.spark}
    assert set(result.guarantees.values()) == {"exactly-once", "at-least-once", "at-most-once"}


@pytest.mark.spark
def test_spark_is_killed_and_runs_tasks_again() -> None:
    result = prove(documents=12, kinds=["jvm", "spark"])

    assert result.violations == []
    assert result.exit == 0


@pytest.mark.parametrize(
    ("page", "file"),
    [
        ("index-lines-and-csv", "shop.py"),
        ("route-and-duplicate", "plays.py"),
        ("make-children", "book.py"),
        ("count-by-key", "words.py"),
        ("verify-an-index", "notes.py"),
    ],
)
def test_a_plan_of_a_how_to_is_proved(place: Path, page: str, file: str) -> None:
    with QuickShell(place) as shell:
        shell.follow(HOW_TO / f"{page}.md")

    result = prove(load_plan(str(place / file)), kinds=["machine", "worker", "half", "drops"], spark=False)

    assert result.violations == []
    assert result.exit == 0
