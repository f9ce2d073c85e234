"""Few documents are processed by helper processes: these are killed at the points of executors, and their driver; what
failed is done again on what stands for Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ferryman.crash import EXECUTOR, POINTS
from tests.crash import scenario
from tests.crash.test_matrix import BEFORE, CASES
from tests.support.zygote import Zygote

SHORT = (("transform.staged", "exactly-once", "second"), ("deliver.claimed", "at-most-once", "first"))
DRIVERS = ("transform.done", "wave.logged", "deliver.done", "settle.closed")
"""Points of the driver while helper processes are there; of all others they know nothing."""
TRIED = [c for c in CASES if (POINTS[c[0]] == EXECUTOR or c[0] in DRIVERS) and c[0] not in BEFORE]


@pytest.fixture(scope="module")
def after_first_run(folder: Path, zygote: Zygote) -> dict[str, Path]:
    """Guarantee -> a folder in which the first run went well."""
    places = {}
    for guarantee in scenario.GUARANTEES:
        places[guarantee] = place = folder / guarantee
        place.mkdir()
        scenario.write_corpus(place, scenario.first_corpus())
        code, said = zygote.run(verb="run", root=str(place), guarantee=guarantee)
        assert code == 0, said
    return places


@pytest.mark.rule("wave.small")
@pytest.mark.parametrize(
    ("point", "guarantee", "shape"),
    [pytest.param(*c, marks=[] if c in SHORT else [pytest.mark.slow], id="-".join(c)) for c in TRIED],
)
def test_a_helper_process_is_killed(
    zygote: Zygote, folder: Path, after_first_run: dict[str, Path], point: str, guarantee: str, shape: str
) -> None:
    """As in test_matrix: nothing is lost, and doubled only what the guarantee allows."""
    root = folder / f"{point}-{guarantee}-{shape}"
    job = {"root": str(root), "guarantee": guarantee, "shape": shape, "beside": True}
    if shape == "second":
        shutil.copytree(after_first_run[guarantee], root)
        scenario.write_corpus(root, scenario.second_corpus())
        code, said = zygote.run(verb="retry", **job)
        assert code == 0, said
    else:
        root.mkdir()
        scenario.write_corpus(root, scenario.first_corpus())
    seen = root / "killed"
    code, said = zygote.run(verb="run", arm=[(point, str(seen))], **job)
    assert seen.exists(), f"{point} was never reached: {said}"
    assert code == (0 if POINTS[point] == EXECUTOR else -9), said
    code, said = zygote.run(verb="run and check" if code == -9 else "check", again=True, **job)
    assert code == 0, said
