"""Runs in forked children of the zygote: one run of Ferryman in this process, with a crash point armed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ferryman import settings
from ferryman.engine.wave import Run
from ferryman.ledger import account, commands
from ferryman.ledger.fsck import fsck
from ferryman.ledger.state import State, state_root
from ferryman.observe.progress import Silent
from ferryman.testing import crash
from ferryman.testing.inprocess import InProcess
from tests.crash import scenario


class Job(msgspec.Struct):
    """What a child does. ``verb``: run | retry | check | run and check | late."""

    verb: str
    root: str
    guarantee: str
    shape: str = "first"
    arm: list[tuple[str, str | None]] = []


class Spoken(Silent):
    def message(self, text: str) -> None:
        print(text)


def work(job: Job) -> None:
    """Do it; a failed check raises."""
    settings.COMPACT_FILES = 2  # type: ignore[misc]  # so that three waves meet every kind of maintenance
    settings.CHECKPOINT_COMMITS = 4  # type: ignore[misc]
    root = Path(job.root)
    plan = scenario.make_plan(root, job.guarantee)
    for spec, seen in job.arm:
        crash.arm(spec, seen)
    if job.verb == "run":
        # Only a task that is to be killed needs a process of its own.
        run(plan, root, fork=any(crash.POINTS[spec] == crash.EXECUTOR for spec, _ in job.arm))
    elif job.verb == "run and check":
        run(plan, root)
        check(plan, root, job)
    elif job.verb == "retry":
        commands.retry(plan, state=root / "state", status="dead", why="a test says so")
    elif job.verb == "late":
        check_late(plan, root, job)
    else:
        check(plan, root, job)


def run(plan: Any, root: Path, *, fork: bool = False) -> None:
    plan.freeze()
    with State.take(state_root(plan, root / "state"), plan) as state:
        summary = Run(state, InProcess(fork=fork), Spoken(), wait=5, wave_bytes=30).go()
    assert summary.exit == 3, summary  # one document is bad, one refused


def check_late(plan: Any, root: Path, job: Job) -> None:
    from tests.crash.test_late_workers import check

    where = state_root(plan, root / "state")
    check(root, job.guarantee, account.status(where, plan), account.docs(where, status="indexing"))
    assert fsck(where) == []


def check(plan: Any, root: Path, job: Job) -> None:
    where = state_root(plan, root / "state")
    status = account.status(where, plan)
    scenario.check(root, job.shape, job.guarantee, status, account.docs(where, status="indexing"))
    left = account.left_over(where, plan)
    for name in ("dead", "error_doc", "owed", "unknown"):
        assert left[name] == status["destinations"]["log"][name], (left, status)
    assert fsck(where) == []
    stray = [p for p in where.rglob("*") if ".tmp-" in p.name]
    assert not stray, stray
