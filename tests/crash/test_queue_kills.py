"""A flow of five plans, killed with SIGKILL at random: every queue is as if nobody had killed it."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.queues import five
from tests.crash.test_queue_matrix import ELSEWHERE, LATER, WHO, said_well
from tests.support.tiers import sampled
from tests.support.zygote import Zygote

HISTORIES = 20
KILLS = 10

AT = [point for point in WHO if ":" not in point and not point.startswith((*ELSEWHERE, *LATER, "notify."))]


@pytest.fixture(scope="module")
def zygote(folder: Path) -> Iterator[Zygote]:
    with Zygote(folder, "tests.crash.queues.five_child") as made:
        yield made


@pytest.mark.rule("queue.exactly-once")
@pytest.mark.parametrize("number", sampled(range(HISTORIES), HISTORIES))
def test_a_flow_is_killed_again_and_again(zygote: Zygote, folder: Path, number: int) -> None:
    """At a random time, or at the n-th pass of a crash point, while more comes in; then it is left alone."""
    chance = random.Random(number)
    root = folder / f"flow-{number}"
    root.mkdir()
    turns = killed = 0
    took = 1.0
    while killed < KILLS:
        if chance.random() < 0.5 or turns == 0:
            five.fill(root, turns)
            turns += 1
        job: dict[str, object] = {"root": str(root), "turns": turns}
        seen = root / f"killed-{killed}"
        if by_time := chance.random() < 0.5:
            job["kill_s"] = chance.uniform(0, took)
        else:
            job["arm"] = (f"{chance.choice(AT)}:{chance.choice((1, 1, 2, 3, 5, 8))}", str(seen))
        began = time.monotonic()
        code, said = zygote.run(**job)
        assert code in (0, -9), (job, said)
        killed += code == -9 or seen.exists()
        if code == 0 and by_time:
            took = time.monotonic() - began
            five.fill(root, turns)  # it was too quick: there has to be something to do
            turns += 1
    said_well(zygote.run(root=str(root), turns=turns))
    assert "recovered" not in said_well(zygote.run(root=str(root), turns=turns))
    shutil.rmtree(root)
