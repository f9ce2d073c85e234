"""Every crash point × the first, second and third run of a plan that keeps state by key; compared with a recount."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman import crash
from ferryman.crash import EXECUTOR, KEYED
from tests.crash.keyed import STAGES
from tests.support.tiers import sampled
from tests.support.zygote import Zygote

POINTS = {**crash.POINTS, **KEYED}
ELSEWHERE = (
    *("version.", "command.", "notify.", "counted.", "outdated."),
    *("deliver.claimed", "deliver.noted", "deliver.hung", "settle.repair", "transform.documents"),
    *("scan.", "transform.ledger"),
)
"""Points of other plans: with versions, commands, other guarantees, sources that are listed."""
CHANGES = ("contributions.logged", "contributions.synced")
"""Passed where documents come that may change."""
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


COMMITS = ("commit.ready", "wave.synced", "settle.closed", "ledger.synced", "documents.synced", "outbox.synced")
"""Of the points that other plans pass too, those that documents are tried at which change."""

WORDS = [("words", p, s) for p in POINTS for s in range(len(STAGES)) if passes(p, s) and p not in CHANGES]
DOCUMENTS = [("documents", p, s) for p in (*KEYED, *COMMITS) for s in (1, 2) if not p.startswith(FIRST)]
OVER = [p for p in POINTS if p.startswith(("version.", "plan.", "create.", "epoch.", "recover."))]
"""Passed on the way to a new version, once or more."""
VERSIONS = [("versions", p, 2) for p in (*OVER, *KEYED, *COMMITS)]
CASES = [*WORDS, *DOCUMENTS, *dict.fromkeys(VERSIONS)]


def is_short(plan: str, point: str, stage: int) -> bool:
    """Is the case run each time? The node's own points are, with one of the plans, and one in twelve of the others."""
    turn = list(POINTS).index(point)
    possible = [(each, s) for each, p, s in CASES if p == point]
    if plan == "versions":
        return turn % 9 == 0
    if point in KEYED:
        mine = ("words", "documents")[turn % 2]
        return (plan, stage) == next((case for case in possible if case[0] == mine), possible[0])
    return turn % 12 == 0 and (plan, stage) == possible[-1]


CHILDREN = {
    "words": "tests.crash.keyed",
    "documents": "tests.crash.keyed_documents",
    "versions": "tests.crash.keyed_documents",
}


def job(plan: str, stage: int) -> dict[str, int]:
    """Of a run of a stage: the last one of ``versions`` is a new version's."""
    return {"stage": stage, "version": 2} if (plan, stage) == ("versions", 2) else {"stage": stage}


@pytest.fixture(scope="module")
def keyed(folder: Path) -> Iterator[dict[str, Zygote]]:
    """By plan."""
    made = {}
    for plan, child in CHILDREN.items():
        (folder / plan).mkdir()
        made[plan] = Zygote(folder / plan, child)
    yield made
    for each in made.values():
        each.close()


@pytest.fixture(scope="module")
def prepared(keyed: dict[str, Zygote], folder: Path) -> dict[tuple[str, int], Path]:
    """Of each plan and stage a folder in which those before it have run."""
    return {
        (plan, stage): place
        for plan, zygote in keyed.items()
        for stage, place in enumerate(before_each_stage(zygote, folder / plan, len(STAGES)))
    }


def before_each_stage(zygote: Zygote, folder: Path, stages: int) -> list[Path]:
    """Make a folder for each stage, in which those before it have run."""
    places = [folder / f"before-{stage}" for stage in range(stages)]
    places[0].mkdir()
    for stage, following in enumerate(places[1:]):
        shutil.copytree(places[stage], following)
        code, said = zygote.run(root=str(following), stage=stage)
        assert code == 0, said
    return places


@pytest.mark.rule("keyed.kill")
@pytest.mark.parametrize(
    ("plan", "point", "stage"),
    [pytest.param(*c, marks=[] if is_short(*c) else [pytest.mark.slow], id=f"{c[0]}-{c[1]}-{c[2]}") for c in CASES],
)
def test_killed_there_and_started_again(
    keyed: dict[str, Zygote], folder: Path, prepared: dict[tuple[str, int], Path], plan: str, point: str, stage: int
) -> None:
    """State and exports equal a recount: neither is ahead of the other, and nothing comes twice."""
    kill_and_check(keyed[plan], prepared[plan, stage], folder / f"{plan}-{point}-{stage}", point, **job(plan, stage))


def kill_and_check(zygote: Zygote, before: Path, root: Path, point: str, **job: int) -> None:
    """Kill the run of a stage at this point, in a copy of what was before it; start it again, and compare all."""
    shutil.copytree(before, root)
    executor = POINTS[point] == EXECUTOR
    code, said = zygote.run(root=str(root), arm=point, fork=executor, **job)
    assert code == (0 if executor else -signal.SIGKILL), said
    assert (root / "killed").exists(), f"{point} was never reached"
    code, said = zygote.run(root=str(root), check=True, **job)
    assert code == 0, said
    shutil.rmtree(root)


@pytest.mark.rule("keyed.kill")
@pytest.mark.parametrize("seed", sampled(range(24), 12))
def test_killed_again_and_again(
    keyed: dict[str, Zygote], folder: Path, prepared: dict[tuple[str, int], Path], seed: int
) -> None:
    """At random points, at their first or a later pass, also while it recovers from another kill."""
    chance = random.Random(seed)
    plan, stage = chance.choice(sorted(CHILDREN)), chance.choice([1, 2])
    root = folder / f"random-{seed}"
    shutil.copytree(prepared[plan, stage], root)
    points = [point for point in POINTS if not point.startswith((*ELSEWHERE, *FIRST))]
    points += OVER if job(plan, stage).get("version") else []
    for _ in range(chance.randint(2, 5)):
        point = chance.choice(points)
        arm = f"{point}:{chance.choice([1, 1, 2, 3])}"
        code, said = keyed[plan].run(root=str(root), arm=arm, fork=POINTS[point] == EXECUTOR, **job(plan, stage))
        assert code in (0, -signal.SIGKILL), said
        (root / "killed").unlink(missing_ok=True)
    code, said = keyed[plan].run(root=str(root), check=True, **job(plan, stage))
    assert code == 0, said
    shutil.rmtree(root)
