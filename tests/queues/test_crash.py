"""A kill at every crash point of a queue, and the same work again: every message once, every key known."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferryman.crash import QUEUES
from tests.support.zygote import Zygote

KILLED = -9
ONCE = {"queue.built": 3, "queue.named": 3, "queue.made": 3, "queue.renamed": 1, "queue.removed": 1, "trim.staged": 1}
"""Points that are passed only so often: the queues are made, one is deleted, one is trimmed."""
ONCE |= dict.fromkeys(("trim.written", "trim.logged", "trim.synced"), 1)


def passes(point: str) -> list[int]:
    """At which passes the process is killed."""
    return [n for n in (1, 2, 3) if n <= ONCE.get(point, 3)]


CASES = [(point, n) for point in QUEUES for n in passes(point)]


@pytest.mark.rule("queue.kill")
@pytest.mark.parametrize(
    ("point", "nth"), [pytest.param(*c, marks=[] if c[1] == 1 else [pytest.mark.slow]) for c in CASES]
)
def test_killed(place: Path, zygote: Zygote, point: str, nth: int) -> None:
    """Killed there, done again: as if nothing had been."""
    code, said = zygote.run(verb="work", root=str(place), arm=f"{point}:{nth}")
    assert code == KILLED, f"{point} was not reached: {said}"

    code, said = zygote.run(verb="check", root=str(place))

    assert code == 0, said


@pytest.mark.parametrize(
    "point", [pytest.param(p, marks=[] if p == "append.logged" else pytest.mark.slow) for p in QUEUES]
)
def test_killed_again_and_again(place: Path, zygote: Zygote, point: str) -> None:
    """Killed at the second pass of each start, until the work is done without coming there."""
    kills = 0
    while (done := zygote.run(verb="work", root=str(place), arm=f"{point}:2"))[0] == KILLED:
        kills += 1
        assert kills < 200, f"it does not get beyond {point}"
    assert done[0] == 0, done[1]

    code, said = zygote.run(verb="check", root=str(place), kills=kills)

    assert code == 0, said
