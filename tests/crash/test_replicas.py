"""Every crash point × the second and third run of a plan that reads the changes of a state."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.crash import EXECUTOR, POINTS
from tests.crash.replica import STAGES
from tests.crash.test_keyed import passes
from tests.support.tiers import sampled
from tests.support.zygote import Zygote

COMMITS = ("commit.ready", "wave.logged", "wave.marked", "settle.closed", "ledger.marked", "outbox.marked")
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
    places = [folder / f"before-{stage}" for stage in range(len(STAGES))]
    places[0].mkdir()
    for stage, following in enumerate(places[1:]):
        shutil.copytree(places[stage], following)
        code, said = zygote.run(root=str(following), stage=stage)
        assert code == 0, said
    return places


@pytest.mark.rule("changes.kill")
@pytest.mark.parametrize(("point", "stage"), sampled(CASES, 14))
def test_killed_there_and_started_again(
    zygote: Zygote, folder: Path, prepared: list[Path], point: str, stage: int
) -> None:
    """The copy has the state's keys as they are, and nothing came twice."""
    root = folder / f"{point}-{stage}"
    shutil.copytree(prepared[stage], root)
    executor = POINTS[point] == EXECUTOR
    code, said = zygote.run(root=str(root), stage=stage, arm=point, fork=executor)
    assert code == (0 if executor else -signal.SIGKILL), said
    assert (root / "killed").exists(), f"{point} was never reached"
    code, said = zygote.run(root=str(root), stage=stage, check=True)
    assert code == 0, said
    shutil.rmtree(root)
