"""Power cuts: whatever was not synced is gone, and the next start goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.plan_world import place

__all__ = ["place"]

ROOT = Path(__file__).parents[2]
KINDS = ["keyed", "once", "remembered"]


def cut(place: Path, *how: object) -> list[str]:
    """Cut the power of plans; the lines that ``power_cuts`` prints."""
    command = [sys.executable, "-m", "tests.crash.power_cuts", str(place), *map(str, how)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.rule("state.power-cut")
@pytest.mark.parametrize(
    ("kind", "point"), [("keyed", "update.result"), ("once", "once.kept"), ("remembered", "remembered.answered")]
)
def test_a_power_cut_at_a_point(place: Path, kind: str, point: str) -> None:
    """Of what was not synced nothing is left; the next start goes on, and everything arrives as it must."""
    assert point in cut(place, "points", kind, 3, 41)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_power_cut_at_every_point(place: Path, kind: str) -> None:
    assert len(cut(place, "points", kind, 0, 1)) > 20


@pytest.mark.parametrize("kind", KINDS)
def test_power_cuts_by_chance(place: Path, kind: str) -> None:
    """At any sync; some of what was not synced is there, torn perhaps."""
    assert int(cut(place, "chance", kind, 0, 1)[-1]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", range(0, 200, 25))
def test_many_power_cuts_by_chance(place: Path, kind: str, first: int) -> None:
    assert int(cut(place, "chance", kind, *range(1000 + first, 1025 + first))[-1]) > 0
