"""Crash points × turns of an endless run while documents change, vanish and fail, and others are away."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ferryman.crash import EXECUTOR, POINTS
from tests.crash import scenario
from tests.crash.endless import SHAPE, TURNS
from tests.crash.test_matrix import BEFORE
from tests.support.zygote import Zygote

STARTS = ("create.", "plan.", "epoch.", "recover.", "version.", "deliver.hung")
"""Points of a driver's start, and one that only a destination passes that hangs: elsewhere."""

ARMED_AT = (0, 2, 4)
"""Turns from which on the next pass of the point kills."""


def applies(point: str, guarantee: str) -> bool:
    if point.startswith(STARTS):
        return False
    if point == "deliver.claimed":
        return guarantee == "at-most-once"
    return guarantee != "exactly-once" or point not in ("deliver.noted", "settle.repair")


CASES = [(p, g, t) for p in POINTS for g in scenario.GUARANTEES for t in ARMED_AT if applies(p, g)]


IN_CI = {
    ("deliver.sent", "at-most-once", 2),
}


@pytest.mark.rule("guarantee.kill")
@pytest.mark.parametrize(
    ("point", "guarantee", "turn"),
    [pytest.param(*c, marks=[] if c in IN_CI else [pytest.mark.slow], id=f"{c[0]}-{c[1]}-{c[2]}") for c in CASES],
)
def test_an_endless_run_is_killed_and_started_again(
    zygote: Zygote, folder: Path, point: str, guarantee: str, turn: int
) -> None:
    """In the end all is where the last corpus says; nothing has gone back in time on the way."""
    assert turn < len(TURNS)
    root = folder / f"{point}-{guarantee}-{turn}"
    root.mkdir()
    job = {"root": str(root), "guarantee": guarantee, "shape": SHAPE}
    seen = root / "killed"
    arm = [(point, str(seen))]
    if point in BEFORE:
        arm.append((BEFORE[point], str(root / "killed-before")))
    code, said = zygote.run(verb="run", arm=arm, turn=turn, **job)
    assert code in (0, -9), said
    assert seen.exists(), f"{point} was never reached"
    assert (code == 0) == (POINTS[point] == EXECUTOR), said
    if code:
        code, said = zygote.run(verb="run", **job)
        assert code == 0, said
    job["killed"] = EXECUTOR if point in BEFORE else POINTS[point]
    for _ in range(2):
        code, said = zygote.run(verb="run and check", **job)
        assert code == 0, said
    assert "recovered" not in said, "a clean end leaves nothing to recover"
    shutil.rmtree(root)
