"""Every crash point × plans that branch, join, tee, make children, retry and change version; compared with the oracle.

With each destination under another guarantee in one plan. Every point with every shape, also with all destinations
under one guarantee, is the long proof.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ferryman.crash import DRIVER, EXECUTOR, POINTS
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.first_batches import FirstBatches
from tests.crash import scenario
from tests.crash import test_matrix as matrix
from tests.crash.shapes import SHAPES, applies
from tests.crash.shapes.families import IN_STREAM
from tests.crash.shapes.shape import MIXED
from tests.crash.shapes.together import IN_CALLS
from tests.crash.test_matrix import BEFORE, EVERYWHERE
from tests.support.plan_world import place, run_plan
from tests.support.tiers import sampled
from tests.support.zygote import Zygote

__all__ = ["place"]

CASES = [(p, g, s) for s in SHAPES for g in (MIXED, *scenario.GUARANTEES) for p in POINTS if applies(p, g, s)]

MATRIX = {point: [c for c in matrix.CASES if c[0] == point] for point in POINTS}
"""The cases of test_matrix, by point."""

SECOND_PASSES = [
    ("plan.kept:2", MIXED, "version"),
    ("epoch.table:4", MIXED, "version"),
    ("epoch.table:7", MIXED, "version"),
]
"""Points that one start passes for the older state, for the new one while it is built, and when that is taken."""

SIZE_NOTED = [(f"epoch.{step}:4", MIXED, "doubted") for step in ("logged", "synced")]
"""Points of the commit that records the largest chunk which a destination takes; each of three tables has an epoch of
this start before. (Before ``logged`` there is a file under a temporary name, which is removed when it is old.)"""


WHERE = {
    "deadly": EVERYWHERE,
    "streamed": ("transform.outbox", "transform.staged"),
    "hung": ("deliver.", "settle.closed", "wave.logged"),
    "doubted": ("deliver.", "settle.", "outbox."),
    **dict.fromkeys(("blocks", "bought", "columns", "flights"), ()),
}
"""Shapes whose cases take longer, or differ from others in what a task does only: the points of their turns, in CI."""

ALWAYS = {
    "bought": "wave.synced",
    "doubted": "deliver.noted",
    "flights": "transform.staged",
    "held": "deliver.done",
    "released": "settle.closed",
}
"""Shapes that are tried at one point each time, whose turn it is or not."""


def is_short(point: str, guarantee: str, shape: str) -> bool:
    """Is the case run each time? There, the points that test_matrix leaves out are tried with one shape, those of
    ``EVERYWHERE`` with every fortieth. `make prove` runs all cases."""
    if ALWAYS.get(shape) == point and guarantee == MIXED:
        return True
    possible = [s for s in SHAPES if applies(point, MIXED, s) and point.startswith(WHERE.get(s, ""))]
    turn = list(POINTS).index(point)
    elsewhere = point not in EVERYWHERE and any(matrix.is_short(*c) for c in MATRIX[point])
    if guarantee != MIXED or shape not in possible or elsewhere:
        return False
    at = possible.index(shape)
    return (at + turn) % 40 == 0 or len(possible) <= 2 if point in EVERYWHERE else at == turn % len(possible)


@pytest.fixture(scope="module")
def prepared(folder: Path, zygote: Zygote) -> dict[tuple[str, str], Path]:
    """(shape, guarantee) -> a folder in which all stages but the last have run; made when it is first asked for."""
    return {}


def prepare(zygote: Zygote, folder: Path, shape: str, guarantee: str) -> Path:
    """A folder in which all stages but the last have run, with what ``status`` says if nobody is killed in the last."""
    stages, prepare = SHAPES[shape].stages, SHAPES[shape].prepare
    place = folder / f"{shape}-{guarantee}"
    place.mkdir()
    job = {"root": str(place), "guarantee": guarantee, "shape": shape}
    for stage in range(stages - 1):
        for verb, _, point in (v.partition("@") for v in (prepare[stage] if prepare else ()) or ("run",)):
            arm = [(point, str(place / "prepared"))] if point else []
            code, said = zygote.run(verb=verb, stage=stage, arm=arm, **job)
            assert code == (-9 if point else 0), said
            (place / "prepared").unlink(missing_ok=True)
    quiet = folder / f"{shape}-{guarantee}-quiet"
    shutil.copytree(place, quiet)
    for verb in (*SHAPES[shape].verbs, "reference", "check"):
        code, said = zygote.run(verb=verb, **{**job, "root": str(quiet)})
        assert code == 0, said
    shutil.copy(quiet / "reference.json", place)
    return place


def test_every_point_is_tried_each_time() -> None:
    """Here or in test_matrix."""
    tried = {p for p, g, s in CASES if is_short(p, g, s)} | {p for p, g, s in matrix.CASES if matrix.is_short(p, g, s)}
    assert tried == set(POINTS)


@pytest.mark.parametrize(
    ("point", "guarantee", "shape"),
    [
        *(
            pytest.param(*case, marks=[] if is_short(*case) else [pytest.mark.slow], id="-".join(case))
            for case in CASES
        ),
        *(pytest.param(*case, id="-".join(case)) for case in (*SECOND_PASSES, *SIZE_NOTED)),
    ],
)
def test_killed_there_and_started_again(
    zygote: Zygote, folder: Path, prepared: dict[tuple[str, str], Path], point: str, guarantee: str, shape: str
) -> None:
    """A kill -9 at this point loses nothing, doubles only what the guarantee allows, and moves no copy elsewhere."""
    if (shape, guarantee) not in prepared:
        prepared[shape, guarantee] = prepare(zygote, folder, shape, guarantee)
    root = folder / f"{point}-{guarantee}-{shape}"
    shutil.copytree(prepared[shape, guarantee], root)
    job = {"root": str(root), "guarantee": guarantee, "shape": shape}
    seen = root / "killed"
    arm = [(point, str(seen))]
    if point in BEFORE:
        arm.append((BEFORE[point], str(root / "killed-before")))
    who = POINTS[point.partition(":")[0]]
    for verb in SHAPES[shape].verbs:
        was_seen = seen.exists()
        code, said = zygote.run(verb=verb, arm=[] if was_seen else arm, **job)
        assert code in (0, -9), said
        if code == -9:
            assert seen.exists(), said
            assert who != EXECUTOR, "the driver was killed at a point of the executors"
    assert seen.exists(), f"{point} was never reached"
    job["killed"] = EXECUTOR if point in BEFORE else who
    code, said = zygote.run(verb="check" if code == 0 else "run and check", **job)
    assert code == 0, said
    shutil.rmtree(root)


@pytest.mark.parametrize("killed", [DRIVER, EXECUTOR])
def test_killed_while_a_large_family_is_made(
    zygote: Zygote, folder: Path, prepared: dict[tuple[str, str], Path], killed: str
) -> None:
    """Some of its children are staged, others not made yet: none is lost, none comes twice."""
    killed_in_a_step(zygote, folder, prepared, "streamed", killed, IN_STREAM)


@pytest.mark.parametrize(
    ("step", "killed"), sampled([("call", EXECUTOR), ("ask", DRIVER), ("call", DRIVER), ("ask", EXECUTOR)], 4)
)
def test_killed_while_calls_are_under_way(
    zygote: Zygote, folder: Path, prepared: dict[tuple[str, str], Path], step: str, killed: str
) -> None:
    """In threads or in the event loop: each document arrives as if nobody was killed."""
    killed_in_a_step(zygote, folder, prepared, "flights", killed, IN_CALLS, step)


def killed_in_a_step(
    zygote: Zygote,
    folder: Path,
    prepared: dict[tuple[str, str], Path],
    shape: str,
    killed: str,
    asked: str,
    text: str = "",
) -> None:
    """One run in which a step kills its process, for a file of this name and text is there; and one to the end."""
    if (shape, MIXED) not in prepared:
        prepared[shape, MIXED] = prepare(zygote, folder, shape, MIXED)
    root = folder / f"killed-{killed}-{shape}-{text}"
    shutil.copytree(prepared[shape, MIXED], root)
    (root / asked).write_text(text)
    job = {"root": str(root), "guarantee": MIXED, "shape": shape, "killed": DRIVER}
    code, said = zygote.run(verb="run", fork=killed == EXECUTOR, **job)
    assert code == (0 if killed == EXECUTOR else -9), said
    assert not (root / asked).exists()
    code, said = zygote.run(verb="check" if code == 0 else "run and check", **job)
    assert code == 0, said


@pytest.mark.parametrize("shape", sampled(["blocks", "columns"], 2))
def test_the_shape_has_blocks_of_both_kinds(place: Path, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    """Those that go through as one, and those in which a batch fails."""
    found = []
    process_block = FirstBatches.process_block

    def seen(self: FirstBatches, block: Block, contents: Any) -> bool:
        found.append(process_block(self, block, contents))
        return found[-1]

    monkeypatch.setattr(FirstBatches, "process_block", seen)
    plan = SHAPES[shape].plan(place, 1, MIXED)
    run_plan(plan, place / "state", wave_bytes=SHAPES[shape].wave_bytes)
    assert set(found) == {True, False}
