"""Every crash point, at a state whose lock does not hold: the driver that is thought to be dead only sleeps there.

It is stopped at the point, a second driver takes the state over, and the first one wakes up: when the second has done
all there was to do, or while that is at a point of its own.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.crash import POINTS
from tests.crash import child, scenario
from tests.crash.scenario import IN_WRITE
from tests.crash.test_matrix import BEFORE, SHAPES, applies
from tests.support.zygote import Zygote

STOPPED = -signal.SIGSTOP

SLEEPS_AT = (*(p for p in POINTS if p not in BEFORE), IN_WRITE)
"""Crash points that are passed without a crash before, and the middle of a call of the destination."""

END = "end"
WAKES_AT = (END, "epoch.table", "sweep.table", "transform.staged", "deliver.sent", "settle.closed")
"""Where the second driver is when the first one wakes up."""

UNBORN = ("create.", "plan.", "command.queued")
"""A driver that sleeps there has no epoch yet: when it wakes up, it is the one that takes over."""

FREE = (*UNBORN, "command.done", "counted.", "notify.")
"""Nor has one anything more to commit that sleeps there."""

IN_CI = (
    ("epoch.logged", END),
    *(("transform.staged", END), ("transform.done", "deliver.sent"), ("commit.ready", END)),
    *(("wave.logged", "sweep.table"), ("deliver.sent", "settle.closed"), (IN_WRITE, END)),
    *(("deliver.claimed", "deliver.sent"), ("settle.closed", END), ("settle.trimmed", "epoch.table")),
)
"""(where the first sleeps, where the second is when it wakes)."""


def cases() -> Iterator[tuple[str, str, str, str]]:
    """Every point, guarantee and shape, where the second driver comes to its end first; every other place where that
    may be, with guarantees and shapes in turns."""
    for turn, point in enumerate(SLEEPS_AT):
        possible = [(g, s) for g in scenario.GUARANTEES for s in SHAPES if applies(point, g, s)]
        yield from ((point, END, *each) for each in possible)
        for more, wakes in enumerate(WAKES_AT[1:] if possible else ()):
            yield point, wakes, *possible[(turn + more) % len(possible)]


CASES = list(cases())


def is_short(point: str, wakes: str, guarantee: str, shape: str) -> bool:
    """Is the case a part of each CI run?"""
    if (point, wakes) not in IN_CI:
        return False
    possible = [(g, s) for p, w, g, s in CASES if (p, w) == (point, wakes)]
    return (guarantee, shape) == possible[IN_CI.index((point, wakes)) % len(possible)]


@pytest.fixture(autouse=True)
def _nobody_sleeps(zygote: Zygote) -> Iterator[None]:
    """After a case that failed, either."""
    yield
    zygote.kill_stopped()


@pytest.fixture(scope="module")
def after_first_run(folder: Path, zygote: Zygote) -> dict[str, Path]:
    """Guarantee -> a folder in which the first run went well; made when it is first asked for."""
    return {}


def prepare(zygote: Zygote, made: dict[str, Path], folder: Path, root: Path, guarantee: str, shape: str) -> None:
    if shape == "first":
        root.mkdir()
        scenario.write_corpus(root, scenario.first_corpus())
        return
    if guarantee not in made:
        place = folder / guarantee
        place.mkdir()
        scenario.write_corpus(place, scenario.first_corpus())
        code, said = zygote.run(verb="run", root=str(place), guarantee=guarantee)
        assert code == 0, said
        made[guarantee] = place
    shutil.copytree(made[guarantee], root)
    scenario.write_corpus(root, scenario.second_corpus())


@pytest.mark.rule("state.overtaken")
@pytest.mark.parametrize(
    ("point", "wakes", "guarantee", "shape"),
    [pytest.param(*c, marks=[] if is_short(*c) else [pytest.mark.slow], id="-".join(c)) for c in CASES],
)
def test_a_driver_that_was_overtaken_in_its_sleep(
    zygote: Zygote,
    folder: Path,
    after_first_run: dict[str, Path],
    point: str,
    wakes: str,
    guarantee: str,
    shape: str,
) -> None:
    """It stops by itself; nothing is lost, and nothing is doubled but what it had in flight, where that may be."""
    root = folder / f"{point}-{wakes}-{guarantee}-{shape}"
    prepare(zygote, after_first_run, folder, root, guarantee, shape)
    job = {"root": str(root), "guarantee": guarantee, "shape": shape, "unlocked": True}
    for verb in ["retry", "run"] if shape == "second" else ["run"]:
        code, said = zygote.run(verb=verb, arm=[(point, str(root / "sleeps"))], stop=True, **job)
        if code == STOPPED:
            break
        assert code == 0, said
    assert code == STOPPED, f"{point} was never reached"

    arm = [] if wakes == END else [(wakes, str(root / "second"))]
    code, said = zygote.run(verb="run", arm=arm, stop=True, **job)
    second_sleeps = code == STOPPED
    assert code == 0 or second_sleeps, said
    code, said = zygote.wake()
    assert code == 0, said
    assert child.OVERTAKEN in said or point.startswith(FREE), f"it did not notice: {said}"
    if second_sleeps:
        code, said = zygote.wake()
        assert code == 0, said
        assert child.OVERTAKEN not in said or wakes == "epoch.table" or point.startswith(UNBORN), said

    code, said = zygote.run(verb="run and check", again=True, **job)
    assert code == 0, said
    shutil.rmtree(root)
