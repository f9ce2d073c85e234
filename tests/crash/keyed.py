"""The process that is killed in the tests of state by key: a queue of words, counted; by count, an inverted index.

The oracle counts the words itself. One word is rejected, one fails at its first attempt, and one goes on to a
destination that takes its first export only at the second attempt.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from ferryman import Document, account, crash, limits, operations
from ferryman.engine import driver
from ferryman.engine.run import Run, Summary
from ferryman.engine.settings import RunSettings
from ferryman.errors import PermanentError
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Queue
from ferryman.state.state import State, state_root
from ferryman.testing.inprocess import InProcess
from tests.crash.shapes.shape import Shelf
from tests.support import invariants
from tests.support.invariants import states
from tests.support.plan_world import Watch

STAGES = (
    ["a", "b", "a", "bad", "late", "c", "a", "b"],
    ["a", "d", "late", "c", "d", "e", "a", "f", "g", "h"],
    ["a", "b", "c", "d", "e", "f", "g", "h", "i", "a"],
)
BUCKETS = (4, 12, 8, 20)
"""Of the runs of each stage; a run that goes on after a kill has those of the next."""
BAD, LATE = "bad", "late"
SLOW = dict.fromkeys(["0001/c", "0001/e", "0001/i"], "first")
"""Exports that the destination takes at their second attempt, one in each run."""


class Job(msgspec.Struct):
    """A run of a stage: killed at ``arm``; once all have run, ``check`` compares everything."""

    root: str
    stage: int
    arm: str = ""
    check: bool = False
    fork: bool = False


def work(job: Job) -> None:
    """Do it; a failed check raises."""
    limits.COMPACT_FILES = 2  # type: ignore[misc]
    limits.OUTDATED_SHARE = 0.2  # type: ignore[misc]
    limits.CHECKPOINT_COMMITS = 4  # type: ignore[misc]
    limits.KEY_MERGE_INPUT_ROWS, limits.KEY_TASK_BYTES = 2, 1  # type: ignore[misc]  # as many tasks as there are buckets
    root = Path(job.root)
    DurableQueue("words", root).append([{"word": word} for word in STAGES[job.stage]], key=f"stage {job.stage}")
    if job.arm:
        crash.arm(job.arm, str(root / "killed"))
    summary = run(root, make_plan(root, BUCKETS[job.stage + job.check]), fork=job.fork)
    if job.check:
        check(root, job.stage, summary)


def run(root: Path, plan: Plan, *, fork: bool = False) -> Summary:
    plan.freeze()
    where = state_root(plan, root / "state")
    with State.take(where, plan) as state, driver.explain_errors(state):
        return Run(state, InProcess(fork=fork), Watch(), RunSettings(wait=30, wave_bytes=4 * limits.KIB)).run()


def make_plan(root: Path, buckets: int = 32) -> Plan:
    plan = Plan("keyed", version=1)
    words = plan.source("words", Queue("words", root))
    counts = words.keyed("counts", Count(str(root / "failed once")), key="word", buffer_bytes=30, buckets=buckets)
    counts.destination("index", Shelf(root, "index", SLOW), batch=3, backoff=0)
    return plan


class Count:
    """Counts the documents of a key; exports the entry that an index by count has of it, and removes the one before."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __call__(self, key: str, state: int | None, documents: list[Document]) -> tuple[int, list[Document]]:
        if key == BAD:
            raise PermanentError("bad on principle")
        if key == LATE and not Path(self.marker).exists():
            Path(self.marker).touch()
            raise RuntimeError("not the first time")
        old, new = state or 0, (state or 0) + len(documents)
        gone = [Document.deletion(entry(key, old))] if old else []
        return new, [*gone, Document(entry(key, new), raw=json.dumps([key, old, new]).encode())]


def entry(key: str, count: int) -> str:
    return f"{count:04}/{key}"


def check(root: Path, stage: int, summary: Summary) -> None:
    """State, index and exports against a recount; the account against all."""
    words = Counter(word for batch in STAGES[: stage + 1] for word in batch)
    del words[BAD]
    assert (summary.exit, summary.rejected, summary.pending) == (3, 1, 0), summary
    plan = make_plan(root)
    where = state_root(plan, root / "state")
    invariants.check(where, plan, summary)
    assert operations.check(where) == []
    assert states(where, "counts") == dict(words)
    lines = [json.loads(line) for line in (root / "index.jsonl").read_text().splitlines()]
    assert max(Counter(line["hash"] for line in lines).values()) == 1, "doubled"
    assert _index(lines) == {entry(word, count) for word, count in words.items()}
    _check_chains(lines, words)
    reached = account.status(where, plan)
    assert reached["sources"]["counts"]["lag"] == 0
    assert run(root, plan).waves == 0, "there was nothing to do, and it did something"


def _index(lines: list[dict[str, Any]]) -> set[str]:
    """What a destination holds that refuses older sequences."""
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        assert line["seq"] > found.get(line["id"], {"seq": 0})["seq"], "an older export came after a newer one"
        found[line["id"]] = line
    return {id for id, line in found.items() if line["op"] == "upsert"}


def _check_chains(lines: list[dict[str, Any]], words: Counter[str]) -> None:
    """Each ``old`` is the ``new`` that was told before."""
    told: Counter[str] = Counter()
    for line in sorted((line for line in lines if line["op"] == "upsert"), key=lambda line: line["seq"]):
        key, old, new = json.loads(line["text"])
        assert old == told[key], line
        told[key] = new
    assert told == words
