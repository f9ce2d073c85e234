"""The process that is killed in the tests of replicas: a plan that reads the changes of a state.

The plan that keeps the state runs before it, and is not killed there. Each stage changes keys, removes some, and brings
some back. Or both run at the same time, in two processes, and both are killed.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import msgspec

from ferryman import Document, account, crash, limits, operations
from ferryman.engine import driver
from ferryman.engine.run import Run, Summary
from ferryman.engine.settings import RunSettings
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Changes, Queue
from ferryman.state.state import State, state_root
from ferryman.testing.inprocess import InProcess
from tests.crash.shapes.shape import Shelf
from tests.support import invariants
from tests.support.invariants import states
from tests.support.plan_world import Watch

STAGES = (
    (["a", "b", "c", "d", "e", "f"], []),
    (["a", "g", "h", "a"], ["b", "c"]),
    (["b", "i", "d", "j"], ["a", "e", "g"]),
)
"""Of each stage: keys that are counted, then keys that are removed."""


class Job(msgspec.Struct):
    """A run of a stage: killed at ``arm``; ``check`` compares everything."""

    root: str
    stage: int
    arm: str = ""
    check: bool = False
    fork: bool = False
    alone: str = ""
    """Only this plan runs, keeper or copy, whatever the other one does; the keeper's keys are random."""


def work(job: Job) -> None:
    """Do it; a failed check raises."""
    limits.COMPACT_FILES = 2  # type: ignore[misc]
    limits.OUTDATED_SHARE = 0.2  # type: ignore[misc]
    limits.CHECKPOINT_COMMITS = 4  # type: ignore[misc]
    root = Path(job.root)
    keeper, copy = plans(root)
    if job.alone:
        beside(job, root, keeper if job.alone == "keeper" else copy)
        return
    for part, keys in enumerate(STAGES[job.stage]):
        messages = [{"key": key, "out": bool(part)} for key in keys]
        if messages:
            DurableQueue("in", root).append(messages, key=f"stage {job.stage}/{part}")
        run(root, keeper)
    if job.arm:
        crash.arm(job.arm, str(root / "killed"))
    summary = run(root, copy, fork=job.fork)
    if job.check:
        check(root, keeper, copy, summary)


def beside(job: Job, root: Path, plan: Plan) -> None:
    """One of the two, while the other one runs."""
    if job.alone == "keeper":
        chance = random.Random(job.stage)
        messages = [{"key": f"k{chance.randrange(12)}", "out": chance.random() < 0.4} for _ in range(20)]
        DurableQueue("in", root).append(messages, key=f"at once {job.stage}")
    if job.arm:
        crash.arm(job.arm, str(root / f"killed {job.alone}"))
    summary = run(root, plan, fork=job.fork)
    if job.check:
        check(root, plans(root)[0], plan, summary)


def plans(root: Path) -> tuple[Plan, Plan]:
    keeper = Plan("keeper", version=1)
    keeper.source("in", Queue("in", root)).keyed("keys", turn, key="key")
    copy = Plan("copy", version=1)
    changes = copy.source("changes", Changes(keeper, "keys", root / "state")).step("noted", noted)
    changes.destination("shelf", Shelf(root, "shelf", {"a": "first", "d": "first"}), batch=3, backoff=0)
    return keeper, copy


def turn(key: str, state: int | None, documents: list[Document]) -> tuple[int | None, None]:
    for doc in documents:
        state = None if doc["out"] else (state or 0) + 1
    return state, None


def noted(doc: Document) -> Document:
    doc.raw = json.dumps(doc["value"]).encode()
    return doc


def run(root: Path, plan: Plan, *, fork: bool = False) -> Summary:
    plan.freeze()
    with State.take(state_root(plan, root / "state"), plan) as state, driver.explain_errors(state):
        return Run(state, InProcess(fork=fork), Watch(), RunSettings(wait=30, wave_bytes=4 * limits.KIB)).run()


def check(root: Path, keeper: Plan, copy: Plan, summary: Summary) -> None:
    """The copy against the state; the account against all."""
    where = state_root(copy, root / "state")
    assert (summary.exit, summary.pending) == (0, 0), summary
    invariants.check(where, copy, summary)
    assert operations.check(where) == []
    lines = [json.loads(line) for line in (root / "shelf.jsonl").read_text().splitlines()]
    assert max(Counter(line["hash"] for line in lines).values()) == 1, "doubled"
    held: dict[str, dict[str, object]] = {}
    for line in lines:
        assert line["seq"] > held.get(line["id"], {"seq": 0})["seq"], "an older change came after a newer one"
        held[line["id"]] = line
    there = {id: json.loads(str(line["text"])) for id, line in held.items() if line["op"] == "upsert"}
    assert there == states(state_root(keeper, root / "state"), "keys")
    assert account.status(where, copy)["sources"]["changes"]["lag"] == 0
    assert run(root, copy).waves == 0, "there was nothing to do, and it did something"
