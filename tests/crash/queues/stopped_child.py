"""Runs in forked children of the zygote: a plan that stops before a message, an operator's command, the next run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ferryman import Plan, account, crash
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.engine import driver
from ferryman.engine.run import Run
from ferryman.engine.settings import RunSettings
from ferryman.errors import PermanentError
from ferryman.operations import retry, skip
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Queue
from ferryman.state.state import State, state_root
from ferryman.testing.inprocess import InProcess
from tests.crash import child
from tests.support import invariants

BROKEN = (3, 5)
"""Numbers for which the step fails."""
MENDED = "mended"
"""A file: the step fails for none."""


class StoppedJob(msgspec.Struct):
    """What a child does.

    ``verb``: fill | run | retry | skip.
    """

    verb: str
    root: str
    arm: tuple[str, str] | None = None


Job = StoppedJob


def work(job: StoppedJob) -> None:
    """Do it; a failed check raises."""
    root = Path(job.root)
    if job.verb == "fill":
        DurableQueue("in", root).append([{"n": n} for n in range(1, 8)])
        return
    plan = make_plan(root)
    if job.arm is not None:
        crash.arm(*job.arm)
    if job.verb != "run":
        (skip if job.verb == "skip" else retry)(plan, state=root / "state", why="a test says so")
        return
    plan.freeze()
    with State.take(state_root(plan, root / "state"), plan) as state, driver.explain_errors(state):
        summary = Run(state, InProcess(), child.Spoken(), RunSettings(wait=5, wave_bytes=30)).run()
    invariants.check(state_root(plan, root / "state"), plan, summary)
    print(f"exit {summary.exit}", flush=True)


def make_plan(root: Path) -> Plan:
    def choose(doc: Document) -> Document:
        if doc["n"] in BROKEN and not (root / MENDED).exists():
            raise PermanentError(f"{doc['n']} is broken")
        return doc

    plan = Plan("stops")
    plan.source("from_in", Queue("in", root)).step("choose", choose).destination("out", ToQueue("out", root), backoff=0)
    return plan


def arrived(root: Path) -> list[int]:
    return [message.body["n"] for message in DurableQueue("out", root).read()]


def stopped(root: Path) -> list[str]:
    """Messages that the plan stops before."""
    plan = make_plan(root)
    return [stop["document"] for stop in account.stopped(state_root(plan, root / "state"), plan)]
