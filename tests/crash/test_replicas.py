"""Every crash point × the second and third run of a plan that reads the changes of a state."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ferryman.crash import EXECUTOR, KEYED, POINTS
from tests.crash.replica import STAGES
from tests.crash.test_keyed import before_each_stage, kill_and_check, passes
from tests.support.tiers import sampled
from tests.support.zygote import Zygote

COMMITS = ("commit.ready", "wave.logged", "wave.synced", "settle.closed", "ledger.synced", "outbox.synced")
"""Where what was read, and what is known to have been delivered, may part."""
CASES = [(p, s) for p in COMMITS for s in (2,)]
CASES += [(p, s) for p in POINTS for s in (1, 2) if passes(p, s) and (p, s) not in CASES]


@pytest.fixture(scope="module")
def zygote(folder: Path) -> Iterator[Zygote]:
    made = Zygote(folder, "tests.crash.replica")
    yield made
    made.close()


@pytest.fixture(scope="module")
def prepared(zygote: Zygote, folder: Path) -> list[Path]:
    """Of each stage a folder in which those before it have run."""
    return before_each_stage(zygote, folder, len(STAGES))


@pytest.mark.rule("changes.kill")
@pytest.mark.parametrize(("point", "stage"), sampled(CASES, 14))
def test_killed_there_and_started_again(
    zygote: Zygote, folder: Path, prepared: list[Path], point: str, stage: int
) -> None:
    """The copy has the state's keys as they are, and nothing came twice."""
    kill_and_check(zygote, prepared[stage], folder / f"{point}-{stage}", point, stage=stage)


@pytest.fixture(scope="module")
def beside(folder: Path) -> Iterator[Zygote]:
    """For the plan that keeps the state, while the other one runs."""
    (folder / "beside").mkdir()
    made = Zygote(folder / "beside", "tests.crash.replica")
    yield made
    made.close()


@pytest.mark.rule("changes.kill")
@pytest.mark.parametrize("seed", sampled(range(16), 16))
def test_both_run_at_once_and_both_are_killed(zygote: Zygote, beside: Zygote, folder: Path, seed: int) -> None:
    """The state changes, is merged and loses deletions while it is read; in the end the copy is what the state is."""
    chance = random.Random(seed)
    root = folder / f"at-once-{seed}"
    root.mkdir()
    points = [p for p in POINTS if passes(p, 2)]
    kept = [*points, *(p for p in KEYED if not p.startswith("create."))]
    points = [p for p in points if POINTS[p] != EXECUTOR]  # a forked task cannot open a table that was made since

    def go(process: Zygote, alone: str, stage: int, among: list[str]) -> None:
        point = chance.choice(among)
        arm = f"{point}:{chance.choice([1, 2, 3])}"
        fork = {**POINTS, **KEYED}[point] == EXECUTOR
        code, said = process.run(root=str(root), stage=stage, alone=alone, arm=arm, fork=fork)
        assert code in (0, -signal.SIGKILL), said
        (root / f"killed {alone}").unlink(missing_ok=True)

    for stage in range(4):
        with ThreadPoolExecutor(2) as both:
            runs = [both.submit(go, beside, "keeper", stage, kept), both.submit(go, zygote, "copy", stage, points)]
            for each in runs:
                each.result()
    code, said = beside.run(root=str(root), stage=4, alone="keeper")
    assert code == 0, said
    code, said = zygote.run(root=str(root), stage=4, alone="copy", check=True)
    assert code == 0, said
    shutil.rmtree(root)
