"""Runs in forked children of the zygote: one run of a plan over queues, with crash points armed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import msgspec

from ferryman import crash, limits
from ferryman.engine import driver, logs
from ferryman.engine.run import Run
from ferryman.engine.settings import RunSettings
from ferryman.errors import StateLost
from ferryman.operations import retry
from ferryman.state.state import State, state_root
from ferryman.testing.inprocess import InProcess
from tests.crash import child
from tests.crash.queues import lines
from tests.support import invariants, no_lock


class LineJob(msgspec.Struct):
    """What a child does.

    ``verb``: fill | retry | run | run and check | check.
    """

    verb: str
    root: str
    line: str
    stage: int = 1
    arm: list[tuple[str, str | None]] = []
    stop: bool = False
    """It stops at the point that is armed, in place of dying there: SIGSTOP. Tasks are run in its own process."""
    unlocked: bool = False
    """Locks do not work; a driver that finds that it was overtaken ends well."""
    again: bool = False
    """After the check one more run, in the same process, which must find nothing to recover, and a check of that."""


Job = LineJob


def work(job: LineJob) -> None:
    """Do it; a failed check raises."""
    if not job.unlocked:
        _do(job)
        return
    no_lock.remove_locks()
    limits.QUEUE_TURN_S = 0.0  # type: ignore[misc]  # whoever has it sleeps until we have ended
    try:
        _do(job)
    except StateLost as e:
        print(f"{child.OVERTAKEN}: {e}")


def _do(job: LineJob) -> None:
    limits.COMPACT_FILES = 2  # type: ignore[misc]  # so that few waves meet every kind of maintenance
    limits.OUTDATED_SHARE = 0.01  # type: ignore[misc]
    limits.COUNTED_EVENTS = 0  # type: ignore[misc]
    limits.CHECKPOINT_COMMITS = 4  # type: ignore[misc]
    logs._MIN_TASK_ENTRIES = 3  # type: ignore[misc]  # several tasks and waves for a few messages
    root = Path(job.root)
    if job.verb == "fill":
        lines.fill(job.line, root, job.stage)
        return
    plan = lines.LINES[job.line].plan(root)
    for spec, seen in job.arm:
        crash.arm(spec, seen, signal.SIGSTOP if job.stop else signal.SIGKILL)
    if job.verb == "retry":
        retry(plan, state=root / "state", why="a test says so")
        return
    summary = None
    if job.verb != "check":
        summary = _run(job, plan, root)
    if job.verb != "run":
        _check(job, plan, root, summary)
    if job.again:
        summary = _run(job, plan, root)
        assert not [message for message in summary.messages if "recovered" in message], summary
        _check(job, plan, root, summary)


def _check(job: LineJob, plan: Any, root: Path, summary: Any) -> None:
    plan.freeze()
    invariants.check(state_root(plan, root / "state"), plan, summary)
    lines.check(job.line, root, job.stage, plan)


def _run(job: LineJob, plan: Any, root: Path) -> Any:
    plan.freeze()
    with State.take(state_root(plan, root / "state"), plan) as state, driver.explain_errors(state):
        summary = Run(
            state, InProcess(fork=bool(job.arm) and not job.stop), child.Spoken(), RunSettings(wait=5, wave_bytes=30)
        ).run()
    assert summary.exit == 0, summary  # what failed is in the error queue
    return summary
