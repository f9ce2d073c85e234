"""Features together: every kind of node with every other, wherever state and queues are; each case runs twice, with a
change in between, and is killed once."""

from __future__ import annotations

import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ferryman.crash import EXECUTOR, KEYED, ONCE, POINTS, REMEMBERED, RESET, WRITTEN
from ferryman.errors import PlanError
from tests.matrix import cases
from tests.matrix.cases import Case
from tests.matrix.child import POINTS as PASSED
from tests.matrix.world import World
from tests.servers.faulty_s3 import FaultyS3
from tests.support.zygote import Zygote

ALL = cases.accepted("process")
FEW = cases.pairs(ALL)
CHOSEN = frozenset(FEW)
OF_PLANS = {**POINTS, **KEYED, **RESET, **ONCE, **REMEMBERED, **WRITTEN}
EXECUTORS = {point for point, who in OF_PLANS.items() if who == EXECUTOR}
FIRST = ("create.state", "epoch.synced", "scan.listed", "transform.done", "commit.ready", "wave.logged", "wave.synced")
"""Points that the first run of every plan passes."""

MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as made:
        yield Path(made)


@pytest.fixture(scope="module")
def zygote(folder: Path) -> Iterator[Zygote]:
    with Zygote(folder, "tests.matrix.child") as made:
        yield made


@pytest.fixture(scope="module")
def store() -> Iterator[FaultyS3]:
    with FaultyS3() as server:
        yield server


@pytest.mark.rule("plan.features-together")
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.id) for case in FEW]
    + [pytest.param(case, id=case.id, marks=pytest.mark.slow) for case in ALL if case not in CHOSEN],
)
def test_together(zygote: Zygote, folder: Path, store: FaultyS3, case: Case) -> None:
    """Nothing is lost and nothing comes twice, whatever a plan is made of and wherever it is killed."""
    turn = zlib.crc32(case.id.encode())
    root = folder / f"{turn:08x}"
    root.mkdir()
    job = {"case": msgspec.structs.asdict(case), "root": str(root), "store": store.url}
    kills = 0

    def go(stage: int, arm: str = "", **more: object) -> None:
        nonlocal kills
        code, said = zygote.run(stage=stage, arm=arm, kills=kills, **more, **job)
        assert code in ((0, -9) if arm else (0,)), f"stage {stage}, armed {arm!r}: {said}"
        kills += (root / "killed").exists()

    if turn % 4 == 0:
        go(0, FIRST[turn // 4 % len(FIRST)])
    go(0, note=True)
    if not kills:
        passed = (root / PASSED).read_text().splitlines()
        points = [point for point in passed if not point.startswith(("create.", "plan.kept"))]
        arm = points[turn // 4 % len(points)]
        go(1, arm, fork=arm in EXECUTORS and turn % 2 == 0)
    go(1, check=True)
    shutil.rmtree(root)  # thousands of cases share the memory of this machine
    store.remove(f"{root.name}/")


@pytest.mark.rule("plan.features-together")
def test_what_is_refused(tmp_path: Path) -> None:
    """Every plan of the product is accepted or refused by ``plan check``, and a refusal says why, each reason once."""
    refused: Counter[str] = Counter()
    for case in (case for case in cases.product() if (case.state, case.queues) == ("disk", "disk")):
        plan = World(case, tmp_path, str(tmp_path), str(tmp_path)).plan(0)
        wanted = cases.refusals(case)
        try:
            plan.check()
            found: list[str] = []
        except PlanError as e:
            found = e.findings
        assert len(found) == len(wanted), (case, found, wanted)
        for words in wanted:
            assert any(words in text for text in found), (case, found, words)
            refused[words] += 1
    assert len(refused) == 6, refused
