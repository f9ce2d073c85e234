"""Runs in forked children of the zygote: one run of the plan of ``once``, with a crash point armed."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec

from ferryman import crash, limits
from ferryman.engine import driver, logs
from ferryman.engine.run import Run
from ferryman.engine.settings import RunSettings
from ferryman.errors import StateLost
from ferryman.operations import resolve, retry
from ferryman.state.state import State, state_root
from ferryman.testing.inprocess import InProcess
from tests.crash import child
from tests.crash.queues import once
from tests.support import invariants, no_lock


class OnceJob(msgspec.Struct):
    """What a child does.

    ``verb``: fill | resolve | retry | run.
    """

    verb: str
    root: str
    stage: int = 1
    arm: tuple[str, str] | None = None
    stop: bool = False
    """Locks do not work; the point that is armed stops it, in place of killing it. Tasks are run in its own process."""
    alone: bool = False
    """Tasks are run in its own process, so that a kill ends both."""
    dies_in: float = 0.0
    """It is killed after so many seconds, wherever it is; 0: it is not. Its tasks go on."""


Job = OnceJob


def work(job: OnceJob) -> None:
    """Do it; a failed check raises."""
    if job.stop:
        no_lock.remove_locks()
    try:
        _do(job)
    except StateLost as e:
        assert job.stop
        print(f"{child.OVERTAKEN}: {e}")


def _do(job: OnceJob) -> None:
    limits.COMPACT_FILES = 2  # type: ignore[misc]
    limits.OUTDATED_SHARE = 0.01  # type: ignore[misc]
    limits.COUNTED_EVENTS = 0  # type: ignore[misc]
    limits.CHECKPOINT_COMMITS = 4  # type: ignore[misc]
    logs._MIN_TASK_ENTRIES = 3  # type: ignore[misc]
    root = Path(job.root)
    if job.verb == "fill":
        once.fill(root, job.stage)
        return
    if job.arm is not None:
        crash.arm(*job.arm, signal.SIGSTOP if job.stop else signal.SIGKILL)
    if job.dies_in:
        signal.setitimer(signal.ITIMER_REAL, job.dies_in)  # nobody handles it: it ends the process at once
    plan = once.make_plan(root)
    if job.verb == "retry":
        retry(plan, state=root / "state", why="a test says so")
        return
    if job.verb == "resolve":
        resolve(plan, "pending", state=root / "state", why="a test says so")
        return
    plan.freeze()
    with State.take(state_root(plan, root / "state"), plan) as state, driver.explain_errors(state):
        summary = Run(
            state, InProcess(fork=not (job.stop or job.alone)), child.Spoken(), RunSettings(wait=5, wave_bytes=30)
        ).run()
    if job.stop:
        return
    invariants.check(state_root(plan, root / "state"), plan, summary)
