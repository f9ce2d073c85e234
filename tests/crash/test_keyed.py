"""Every crash point × the first, second and third run of a plan that keeps state by key; compared with a recount."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from ferryman import crash
from ferryman.crash import EXECUTOR, KEYED
from tests.crash.keyed import STAGES
from tests.support.zygote import Zygote

POINTS = {**crash.POINTS, **KEYED}
ELSEWHERE = (
    *("version.", "command.", "notify.", "counted.", "outdated."),
    *("deliver.claimed", "deliver.noted", "deliver.hung", "settle.repair", "transform.documents"),
    *("scan.", "transform.ledger"),
)
"""Points of other plans: with versions, commands, other guarantees, sources that are listed."""
FIRST = ("create.", "plan.")
"""Passed once in the life of a state."""
LATER = ("compact.", "checkpoint.")
"""Passed once there is something to merge."""


def passes(point: str, stage: int) -> bool:
    if point.startswith(ELSEWHERE) and point != "settle.repaired":
        return False
    if point.startswith(FIRST):
        return stage == 0
    return not point.startswith(LATER) or stage == 2


CASES = [(point, stage) for point in POINTS for stage in range(len(STAGES)) if passes(point, stage)]


def is_short(point: str, stage: int) -> bool:
    """Is the case run each time? The node's own points are, in the second run, and a third of the others."""
    turn = list(POINTS).index(point)
    if point in KEYED:
        return stage == (0 if point.startswith(FIRST) else 1)
    return turn % 3 == 0 and stage == max(s for p, s in CASES if p == point)


@pytest.fixture(scope="module")
def keyed(folder: Path) -> Iterator[Zygote]:
    made = Zygote(folder, "tests.crash.keyed")
    yield made
    made.close()


@pytest.fixture(scope="module")
def prepared(keyed: Zygote, folder: Path) -> list[Path]:
    """Of each stage a folder in which those before it have run."""
    places = [folder / f"before-{stage}" for stage in range(len(STAGES))]
    places[0].mkdir()
    for stage, (place, following) in enumerate(pairwise(places)):
        shutil.copytree(place, following)
        code, said = keyed.run(root=str(following), stage=stage)
        assert code == 0, said
    return places


@pytest.mark.rule("keyed.kill")
@pytest.mark.parametrize(
    ("point", "stage"),
    [pytest.param(*c, marks=[] if is_short(*c) else [pytest.mark.slow], id=f"{c[0]}-{c[1]}") for c in CASES],
)
def test_killed_there_and_started_again(
    keyed: Zygote, folder: Path, prepared: list[Path], point: str, stage: int
) -> None:
    """State and exports equal a recount: neither is ahead of the other, and nothing comes twice."""
    root = folder / f"{point}-{stage}"
    shutil.copytree(prepared[stage], root)
    executor = POINTS[point] == EXECUTOR
    code, said = keyed.run(root=str(root), stage=stage, arm=point, fork=executor)
    assert code == (0 if executor else -signal.SIGKILL), said
    assert (root / "killed").exists(), f"{point} was never reached"
    code, said = keyed.run(root=str(root), stage=stage, check=True)
    assert code == 0, said
    shutil.rmtree(root)
