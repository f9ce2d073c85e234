"""Every crash point that an at-most-once plan passes, in both stages: killed there and started again, nothing is
repeated, and what is not known is named."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.crash import DRIVER, ONCE, POINTS
from tests.crash import child
from tests.crash.queues import once
from tests.crash.test_queue_matrix import ELSEWHERE, LATER, said_well
from tests.support.zygote import Zygote

UNMET = ("notify.", "outdated.", "settle.rewrite")
"""Nobody is told; of no entry more than one row is kept; and no destination asks for a retry."""

FIRST = ("create.", "plan.", "once.stopped", "once.rebuilt")
"""In the first stage: a state is made once, and message DEADLY kills its task until it is mended."""

WHO = {**ONCE, "intake.synced:2": DRIVER, **POINTS}


def applies(point: str, stage: int) -> bool:
    if point.startswith((*ELSEWHERE, *UNMET)):
        return False
    return stage == 1 if point.startswith(FIRST) else stage == 2 or not point.startswith(LATER)


CASES = [(point, stage) for point in WHO for stage in once.STAGES if applies(point, stage)]

SHORT = ("once.", "transform.staged", "wave.logged")
"""Points that are tried each time, beside those of the intake; `make prove` runs all."""


def is_short(point: str, stage: int) -> bool:
    if point.startswith("intake.") or point in FIRST:
        return stage == 1 and ":" not in point
    return stage == 2 and point.startswith(SHORT)


@pytest.fixture(scope="module")
def zygote(folder: Path) -> Iterator[Zygote]:
    with Zygote(folder, "tests.crash.queues.once_child") as made:
        yield made


@pytest.fixture(scope="module")
def after_first(zygote: Zygote, folder: Path) -> Path:
    """A folder in which the first stage went as it should: one message has killed its task."""
    root = folder / "after-first"
    root.mkdir()
    for verb in ("fill", "run"):
        said_well(zygote.run(verb=verb, root=str(root)))
    once.check(root, 1, doubtful := once.in_doubt(root), set())
    assert doubtful == {8}
    return root


@pytest.mark.rule("once.killed")
@pytest.mark.parametrize(
    ("point", "stage"),
    [pytest.param(*case, marks=[] if is_short(*case) else [pytest.mark.slow]) for case in CASES],
)
def test_nothing_is_repeated_and_what_is_not_known_is_named(
    zygote: Zygote, folder: Path, after_first: Path, point: str, stage: int
) -> None:
    """In the second stage the range that was in doubt after the first is run again."""
    root = folder / f"{point}-{stage}"
    if stage == 2:
        shutil.copytree(after_first, root)
    else:
        root.mkdir()
    job = {"root": str(root)}
    again = once.in_doubt(root) if stage == 2 else set()
    said_well(zygote.run(verb="fill", stage=stage, **job))
    seen = root / "killed"
    for verb in ["run"] if stage == 1 else ["resolve", "run"]:
        code, said = zygote.run(verb=verb, arm=(point, str(seen)), **job)
        assert code in (0, -9), said
        if code == -9:
            assert WHO[point] == DRIVER, "the driver was killed in place of a task"
            if verb == "resolve":
                said_well(zygote.run(verb="resolve", **job))  # once more does no harm
            break
    assert seen.exists(), f"{point} was never reached"
    said_well(zygote.run(verb="run", **job))
    assert "recovered" not in said_well(zygote.run(verb="run", **job)), "a clean end leaves nothing to recover"
    doubtful = once.in_doubt(root)
    once.check(root, stage, doubtful, again)
    expected = {8} if stage == 1 else set()
    if point == "once.noted":
        assert len(doubtful - expected) == 1, "a step might see the message"
    else:
        assert doubtful == expected
    shutil.rmtree(root)


ALONE = ("once.begun", *(f"once.noted:{n}" for n in range(1, 13)), "once.walked", "transform.staged", "once.kept")
SOME = ("once.noted:2", "once.walked")


@pytest.mark.rule("once.doubt")
@pytest.mark.parametrize(
    ("point", "again"),
    [
        pytest.param(point, again, marks=[] if again in ("", "once.rebuilt") and point in SOME else [pytest.mark.slow])
        for point in ALONE
        for again in ("", "once.stopped", "once.rebuilt", "intake.synced", "wave.logged")
    ],
)
def test_a_run_that_is_killed_at_any_message_goes_on_there(
    zygote: Zygote, folder: Path, point: str, again: str
) -> None:
    """Its tasks are killed with it. The next one is killed while it recovers, too."""
    root = folder / f"alone-{point}-{again}"
    root.mkdir()
    (root / once.MENDED).touch()
    job = {"root": str(root), "alone": True}
    said_well(zygote.run(verb="fill", **job))
    code, said = zygote.run(verb="run", arm=(point, str(root / "killed")), **job)
    assert code == -signal.SIGKILL, f"{point} was never reached: {said}"
    if again:
        code, said = zygote.run(verb="run", arm=(again, str(root / "killed-again")), **job)
        assert code in (0, -signal.SIGKILL), said
        if code == 0:
            assert not again.startswith("once.") or point == "once.kept", f"{again} was not reached"
    said_well(zygote.run(verb="run", **job))
    said_well(zygote.run(verb="run", **job))
    doubtful = once.in_doubt(root)
    once.check(root, 1, doubtful, set())
    assert doubtful == ({int(point.partition(":")[2])} if point.startswith("once.noted") else set())
    shutil.rmtree(root)


SLEEPS_AT = (
    *(point for point in ONCE if point not in FIRST),
    "transform.staged",
    "transform.done",
    "commit.ready",
    "wave.logged",
)


@pytest.mark.rule("once.killed")
@pytest.mark.parametrize(
    "point", [p if p in ("intake.synced", "once.noted") else pytest.param(p, marks=pytest.mark.slow) for p in SLEEPS_AT]
)
def test_a_driver_that_was_overtaken_repeats_nothing(zygote: Zygote, folder: Path, point: str) -> None:
    """It stops there, where locks do not hold; another run comes and goes; then it wakes up."""
    root = folder / f"asleep-{point}"
    root.mkdir()
    (root / once.MENDED).touch()
    job = {"root": str(root)}
    said_well(zygote.run(verb="fill", **job))
    code, said = zygote.run(verb="run", arm=(point, str(root / "sleeps")), stop=True, **job)
    assert code == -signal.SIGSTOP, f"{point} was never reached: {said}"
    said_well(zygote.run(verb="run", **job))
    doubtful = once.in_doubt(root)
    once.check(root, 1, doubtful, set())
    assert child.OVERTAKEN in said_well(zygote.wake()), "it did not notice"
    said_well(zygote.run(verb="run", **job))
    once.check(root, 1, doubtful, set())
    assert len(doubtful) == (1 if point == "once.noted" else 0)
    shutil.rmtree(root)
