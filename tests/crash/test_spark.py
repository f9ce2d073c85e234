"""The crash points on real Spark: driver and JVM killed, or the Python worker, and started again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.crash import DRIVER, EXECUTOR, POINTS
from tests.crash import scenario, spark
from tests.crash.shapes import SHAPES
from tests.crash.shapes.shape import MIXED
from tests.crash.shapes.together import IN_CALLS
from tests.crash.test_branching import CASES as BRANCHING
from tests.crash.test_branching import prepare
from tests.crash.test_matrix import BEFORE, CASES
from tests.support.zygote import Zygote

pytestmark = pytest.mark.spark

SHORT = ("transform.staged",)
"""Points tried on Spark each time, each under one guarantee; all × all is `make prove`."""


def _cases() -> Iterator[object]:
    turn = 0
    for point in POINTS:
        if point in BEFORE:
            continue  # two deaths in one run: on the in-process runner
        shapes = {g: [s for p, g2, s in CASES if p == point and g2 == g] for g in scenario.GUARANTEES}
        possible = [g for g in scenario.GUARANTEES if shapes[g]]
        turn += 1
        for i, guarantee in enumerate(possible):
            shape = shapes[guarantee][turn % len(shapes[guarantee])]
            short = point in SHORT and i == turn % len(possible)
            yield pytest.param(
                point, guarantee, shape, marks=[] if short else [pytest.mark.slow], id=f"{point}-{guarantee}-{shape}"
            )


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    made = Zygote(tmp_path_factory.mktemp("zygote"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def after_first_run(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> dict[str, Path]:
    """Guarantee -> a folder in which the first run went well."""
    places = {}
    for guarantee in scenario.GUARANTEES:
        place = tmp_path_factory.mktemp(guarantee)
        scenario.write_corpus(place, scenario.first_corpus())
        code, said = zygote.run(verb="run", root=str(place), guarantee=guarantee)
        assert code == 0, said
        places[guarantee] = place
    return places


@pytest.mark.parametrize(("point", "guarantee", "shape"), list(_cases()))
def test_killed_there_on_spark(
    zygote: Zygote, after_first_run: dict[str, Path], tmp_path: Path, point: str, guarantee: str, shape: str
) -> None:
    """A kill -9 of the driver, or of a Python worker, loses nothing and doubles only what the guarantee allows."""
    root = tmp_path / "place"
    if shape == "second":
        shutil.copytree(after_first_run[guarantee], root)
        scenario.write_corpus(root, scenario.second_corpus())
    else:
        root.mkdir()
        scenario.write_corpus(root, scenario.first_corpus())
    seen = root / "killed"
    if point.startswith("command."):
        code, said = zygote.run(verb="retry", root=str(root), guarantee=guarantee, arm=[(point, str(seen))])
        assert code == -9, said
    else:
        code, said = spark.run(root, guarantee, shape=shape, arm=((point, str(seen)),))
        assert code == (0 if POINTS[point] == EXECUTOR else -9), said
    assert seen.exists(), f"{point} was never reached: {said}"
    if code == -9:
        code, said = spark.run(root, guarantee, shape=shape)
        assert code == 0, said
    code, said = zygote.run(verb="check", root=str(root), guarantee=guarantee, shape=shape)
    assert code == 0, said


SHORT_SHAPES = {
    "join": "",
    "rejoin": "",
    "family": "",
    "retries": "",
    "version": "",
    "deadly": "",
    "outage": "",
    "blocks": "",
    "columns": "",
    "flights": "",
}
"""Shapes that can be tried on Spark -> the point that is tried there each time."""


def _shapes() -> Iterator[object]:
    for point, guarantee, shape in BRANCHING:
        if guarantee != MIXED or point in BEFORE or point.startswith("command."):
            continue  # a person's word needs no Spark
        if shape not in SHORT_SHAPES:
            continue  # its runner, or what it sets in the worker, is only there in process
        short = SHORT_SHAPES[shape] == point
        yield pytest.param(point, shape, marks=[] if short else [pytest.mark.slow], id=f"{point}-{shape}")


@pytest.mark.parametrize(("point", "shape"), list(_shapes()))
def test_killed_there_with_a_plan_that_branches(zygote: Zygote, tmp_path: Path, point: str, shape: str) -> None:
    """As in test_branching, where each destination is under another guarantee."""
    root = prepare(zygote, tmp_path, shape, MIXED)
    job = {"root": str(root), "guarantee": MIXED, "shape": shape}
    for verb in SHAPES[shape].verbs[:-1]:
        code, said = zygote.run(verb=verb, **job)
        assert code == 0, said
    seen = root / "killed"
    code, said = spark.run(root, MIXED, shape=shape, arm=((point, str(seen)),))
    assert code == (0 if POINTS[point] == EXECUTOR else -9), said
    assert seen.exists(), f"{point} was never reached: {said}"
    if code == -9:
        code, said = spark.run(root, MIXED, shape=shape)
        assert code == 0, said
    code, said = zygote.run(verb="check", killed=POINTS[point], **job)
    assert code == 0, said


@pytest.mark.slow
@pytest.mark.parametrize("killed", [DRIVER, EXECUTOR])
@pytest.mark.parametrize("step", ["ask", "call"])
def test_killed_while_calls_are_under_way(zygote: Zygote, tmp_path: Path, step: str, killed: str) -> None:
    """Calls of one task wait for each other; then the driver is killed, or the worker. As in test_branching."""
    root = prepare(zygote, tmp_path, "flights", MIXED)
    (root / IN_CALLS).write_text(step if killed == EXECUTOR else f"{step} {DRIVER}")
    code, said = spark.run(root, MIXED, shape="flights")
    assert code == (0 if killed == EXECUTOR else -9), said
    assert not (root / IN_CALLS).exists()
    if code == -9:
        code, said = spark.run(root, MIXED, shape="flights")
        assert code == 0, said
    code, said = zygote.run(verb="check", root=str(root), guarantee=MIXED, shape="flights", killed=DRIVER)
    assert code == 0, said
