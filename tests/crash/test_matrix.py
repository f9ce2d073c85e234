"""Every crash point × guarantee × {first run, second run}: killed there, started again, compared with the oracle."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ferryman.crash import EXECUTOR, POINTS
from tests.crash import scenario
from tests.support.zygote import Zygote

SHAPES = ("first", "second")

ONLY = {
    "create.": ("first", None, "a state is made once"),
    "plan.": ("first", None, "and so long the plan does not change"),
    "command.": ("second", None, "a person speaks before the second run"),
    "outdated.": ("second", None, "in the first run no document has two versions"),
    "deliver.claimed": (None, "at-most-once", "only it claims"),
    "deliver.noted": (None, "at-most-once at-least-once", "exactly-once may repeat a chunk"),
    "settle.repair": (None, "at-most-once at-least-once", "only noted chunks are repaired"),
}
"""Points that not every case passes: prefix -> (shape, guarantees, why)."""

BEFORE = {"settle.repair": "deliver.noted"}
"""Points that are passed only after another crash."""


ELSEWHERE = ("version.", "deliver.hung")
"""Points that only a new version of a plan passes, and what only a destination that hangs does: in test_branching."""


def applies(point: str, guarantee: str, shape: str) -> bool:
    if point.startswith(ELSEWHERE):
        return False
    for prefix, (only_shape, guarantees, _) in ONLY.items():
        if point == prefix or (prefix.endswith(".") and point.startswith(prefix)):
            return only_shape in (None, shape) and guarantee in (guarantees or guarantee)
    return True


CASES = [(p, g, s) for p in POINTS for g in scenario.GUARANTEES for s in SHAPES if applies(p, g, s)]


EVERYWHERE = (
    *(p for p, who in POINTS.items() if who == EXECUTOR),
    *("transform.done", "wave.logged", "deliver.done", "settle.repaired", "ledger.synced", "documents.synced"),
    *("settle.rewritten", "settle.trimmed", "outbox.synced"),
)
"""Points at which what a kill leaves depends most on the guarantee, and on the plan's shape."""


def is_short(point: str, guarantee: str, shape: str) -> bool:
    """Is the case run each time? There, every second point is tried, and those of ``EVERYWHERE``, under one guarantee;
    test_branching has the others. `make prove` runs all cases."""
    turn = list(POINTS).index(point)
    possible = [(g, s) for p, g, s in CASES if p == point]
    here = turn % 2 == 0 or point in EVERYWHERE or point.startswith("notify.")  # the shapes have nobody to notify
    return here and (guarantee, shape) == possible[turn % len(possible)]


@pytest.fixture(scope="module")
def after_first_run(folder: Path, zygote: Zygote) -> dict[str, Path]:
    """Guarantee -> a folder in which the first run went well; each second run starts from a copy."""
    places = {}
    for guarantee in scenario.GUARANTEES:
        place = folder / guarantee
        place.mkdir()
        scenario.write_corpus(place, scenario.first_corpus())
        code, said = zygote.run(verb="run", root=str(place), guarantee=guarantee)
        assert code == 0, said
        places[guarantee] = place
    return places


@pytest.mark.rule("guarantee.kill")
@pytest.mark.parametrize(
    ("point", "guarantee", "shape"),
    [pytest.param(*c, marks=[] if is_short(*c) else [pytest.mark.slow], id="-".join(c)) for c in CASES],
)
def test_killed_there_and_started_again(
    zygote: Zygote, folder: Path, after_first_run: dict[str, Path], point: str, guarantee: str, shape: str
) -> None:
    """A kill -9 at this point loses nothing and doubles only what the guarantee allows."""
    root = folder / f"{point}-{guarantee}-{shape}"
    job = {"root": str(root), "guarantee": guarantee, "shape": shape}
    if shape == "second":
        shutil.copytree(after_first_run[guarantee], root)
        scenario.write_corpus(root, scenario.second_corpus())
    else:
        root.mkdir()
        scenario.write_corpus(root, scenario.first_corpus())
    kill_and_check(zygote, job, point)


def kill_and_check(zygote: Zygote, job: dict[str, str], point: str) -> None:
    """Kill a run at this point; start it again, and compare all with the oracle; once more, and nothing is done."""
    root, shape = Path(job["root"]), job["shape"]
    seen = root / "killed"
    arm = [(point, str(seen))]
    if point in BEFORE:
        arm.append((BEFORE[point], str(root / "killed-before")))
    verbs = ["retry", "run"] if shape == "second" else ["run"]
    for verb in verbs:
        code, said = zygote.run(verb=verb, arm=arm, **job)
        assert code in (0, -9), said
        if code == -9:
            assert seen.exists(), said
            assert POINTS[point] != EXECUTOR, "the driver was killed at a point of the executors"
            break
    assert seen.exists(), f"{point} was never reached"
    code, said = zygote.run(verb="run and check" if code == -9 else "check", again=True, **job)
    assert code == 0, said
