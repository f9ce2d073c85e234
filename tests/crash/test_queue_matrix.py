"""Every crash point that plans over queues pass × {pipe, join, alts} × {first stage, second stage}: killed there,
started again, and every queue compared with the oracle."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.crash import EXECUTOR, POINTS
from tests.crash.queues.lines import LINES, STAGES
from tests.support.zygote import Zygote

ELSEWHERE = ("version.", "deliver.claimed", "deliver.noted", "deliver.hung", "settle.repair")
"""A new version of a plan; what only guarantees do that a queue does not need; a destination that hangs."""

ONCE = ("create.", "plan.", "queue.")
"""In the first stage: states and queues are made once, and so long the plan does not change."""

LATER = ("command.", "outdated.")
"""In the second stage: a person speaks, and a failed entry has two rows."""

OF_QUEUES = {
    **dict.fromkeys(("queue.built", "queue.named", "queue.made"), EXECUTOR),
    **dict.fromkeys(("append.staged", "append.written", "append.logged", "append.synced"), EXECUTOR),
}
"""Points of ``crash.QUEUES`` that a plan passes."""

MORE = {
    **dict.fromkeys(("settle.rewrite:2", "append.staged:2", "append.logged:2"), EXECUTOR),
    **dict.fromkeys(("wave.logged:2", "wave.synced:3", "deliver.done:2", "outbox.logged:2", "tailer.noted:2"), ""),
}
"""Later passes: the file of error messages, a lane's second chunk, the next waves."""

WHO = {**POINTS, **OF_QUEUES, **MORE}


def applies(point: str, stage: int) -> bool:
    if point.startswith(ELSEWHERE):
        return False
    return stage == 1 if point.startswith(ONCE) else stage == 2 or not point.startswith(LATER)


CASES = [(p, line, stage) for p in WHO for line in LINES for stage in STAGES if applies(p, stage)]

SHORT = ("transform.staged", "wave.logged", "settle.closed", "outbox.logged", "append.", "tailer.", "command.staged")
"""Points tried each time, each in one case; `make prove` runs all."""

SAME = ("wave.synced", "outbox.synced", "settle.trimmed")
"""And of these only `make prove`: what they leave does not depend on the source. test_matrix or test_branching has
them."""


def is_short(point: str, line: str, stage: int) -> bool:
    possible = [(li, st) for p, li, st in CASES if p == point]
    return (
        point.startswith(SHORT)
        and point not in SAME
        and (line, stage) == possible[list(WHO).index(point) % len(possible)]
    )


@pytest.fixture(scope="module")
def zygote(folder: Path) -> Iterator[Zygote]:
    with Zygote(folder, "tests.crash.queues.child") as made:
        yield made


@pytest.fixture(scope="module")
def after_first(folder: Path) -> dict[str, Path]:
    """Line -> a folder in which the first stage went well; made when it is first asked for."""
    return {}


def prepare(zygote: Zygote, made: dict[str, Path], folder: Path, root: Path, line: str, stage: int) -> None:
    """Whatever comes before the run that is killed."""
    if stage == 1:
        root.mkdir()
    else:
        if line not in made:
            place = folder / f"after-{line}"
            place.mkdir()
            for verb in ("fill", "run and check"):
                said_well(zygote.run(verb=verb, root=str(place), line=line))
            made[line] = place
        shutil.copytree(made[line], root)
    said_well(zygote.run(verb="fill", root=str(root), line=line, stage=stage))


def said_well(answer: tuple[int, str]) -> str:
    """What a child said that was not killed and found nothing wrong."""
    code, said = answer
    assert code == 0, said
    return said


@pytest.mark.rule("queue.exactly-once")
@pytest.mark.parametrize(
    ("point", "line", "stage"),
    [pytest.param(*c, marks=[] if is_short(*c) else [pytest.mark.slow], id=f"{c[0]}-{c[1]}-{c[2]}") for c in CASES],
)
def test_a_plan_over_queues_is_killed_and_started_again(
    zygote: Zygote, folder: Path, after_first: dict[str, Path], point: str, line: str, stage: int
) -> None:
    """Outputs and errors are those of a run that nobody killed, in their order; nothing is doubled."""
    root = folder / f"{point}-{line}-{stage}"
    prepare(zygote, after_first, folder, root, line, stage)
    job = {"root": str(root), "line": line, "stage": stage}
    seen = root / "killed"
    for verb in ["run"] if stage == 1 else ["retry", "run"]:
        code, said = zygote.run(verb=verb, arm=[(point, str(seen))], **job)
        assert code in (0, -9), said
        if code == -9:
            assert seen.exists(), said
            assert WHO[point] != EXECUTOR or point.startswith("queue."), "the driver was killed in place of a task"
            break
    assert seen.exists(), f"{point} was never reached"
    said_well(zygote.run(verb="run and check", again=True, **job))
    shutil.rmtree(root)
