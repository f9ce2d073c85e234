"""A plan that stops before a message, killed at each durable step of it: what is recorded, and how it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.queues import stopped_child as plan
from tests.support.zygote import Zygote

COMMIT = ("commit.ready", "wave.written", "wave.logged", "wave.synced")
SETTLE = ("settle.closed", "ledger.logged", "outbox.logged", "outbox.synced")
CASES = [
    *(("run", point) for point in ("stop.staged", *COMMIT, *SETTLE)),
    *((verb, point) for verb in ("retry", "skip") for point in ("command.queued", "command.staged", "command.done")),
    *((verb, point) for verb in ("retry", "skip") for point in (*COMMIT, *SETTLE)),
    *(("run after skip", point) for point in ("transform.done", "stop.staged", *COMMIT, *SETTLE)),
]
SHORT = {("run", "stop.staged"), ("skip", "command.staged")}


@pytest.fixture(scope="module")
def zygote(folder: Path) -> Iterator[Zygote]:
    with Zygote(folder, "tests.crash.queues.stopped_child") as made:
        yield made


@pytest.mark.rule("log.stop-shown", "log.stop-skip")
@pytest.mark.parametrize(
    ("verb", "point"),
    [pytest.param(*case, marks=[] if case in SHORT else [pytest.mark.slow], id="-".join(case)) for case in CASES],
)
def test_a_plan_that_stops_is_killed_and_started_again(zygote: Zygote, folder: Path, verb: str, point: str) -> None:
    """Each stop is recorded with its reason, a command takes effect once, nothing is lost and nothing comes twice."""
    root = folder / f"{verb}-{point}".replace(" ", "-")
    root.mkdir()

    def done(verb: str, arm: str = "") -> str:
        code, printed = zygote.run(verb=verb, root=str(root), arm=(arm, str(root / "killed")) if arm else None)
        assert code == (-9 if arm else 0), printed
        return printed

    done("fill")
    if verb == "run":
        done("run", point)
    assert "exit 4" in done("run")
    assert (plan.arrived(root), plan.stopped(root)) == ([1, 2], ["in/3"])
    if verb == "retry":
        done("retry", point)
        assert "exit 4" in done("run")
        assert (plan.arrived(root), plan.stopped(root)) == ([1, 2], ["in/3"])
    skipped = verb in ("skip", "run after skip")
    if skipped:
        done("skip", point if verb == "skip" else "")
        if verb == "skip" and point == "command.queued":
            assert plan.stopped(root) == ["in/3"], "the next run applies it"
        if verb != "skip":
            done("run", point)
        assert "exit 4" in done("run")
        assert (plan.arrived(root), plan.stopped(root)) == ([1, 2, 4], ["in/5"])
    (root / plan.MENDED).touch()
    assert f"exit {3 if skipped else 0}" in done("run")
    assert plan.arrived(root) == [n for n in range(1, 8) if n != 3 or not skipped]
    assert plan.stopped(root) == []
