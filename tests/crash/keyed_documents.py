"""The same for documents that change, move to another key, and vanish: their key has each of them once, as it is. Also
while a new version of the plan, with another step, continues from the older one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from ferryman import Document, crash, limits
from ferryman.engine.migration import migrate
from ferryman.engine.run import Summary
from ferryman.plan import Plan
from ferryman.sources import Memory
from ferryman.state.state import state_root
from tests.crash.keyed import run
from tests.crash.shapes.shape import Shelf
from tests.support import invariants
from tests.support.invariants import states

CORPORA: tuple[dict[str, tuple[str, int]], ...] = (
    {"a": ("x", 1), "b": ("x", 2), "c": ("y", 3), "d": ("z", 4), "e": ("z", 5)},
    {"a": ("x", 7), "b": ("y", 2), "c": ("y", 3), "d": ("w", 1), "f": ("x", 6)},
    {"a": ("y", 7), "b": ("x", 1), "d": ("w", 2), "f": ("x", 6), "g": ("z", 9)},
)
"""Id -> key and number: between two, some change, some move, some do both, one goes and one comes."""


class Job(msgspec.Struct):
    """See ``tests.crash.keyed``."""

    root: str
    stage: int
    arm: str = ""
    check: bool = False
    fork: bool = False
    version: int = 1
    """Of the plan; 2 continues from 1."""


def work(job: Job) -> None:
    """Do it; a failed check raises."""
    limits.COMPACT_FILES = 2  # type: ignore[misc]
    limits.OUTDATED_SHARE = 0.2  # type: ignore[misc]
    root = Path(job.root)
    if job.arm:
        crash.arm(job.arm, str(root / "killed"))
    plan = make_plan(root, job.stage, job.version)
    if job.version > 1:
        plan.freeze()
        migrate(state_root(plan, root / "state"), plan, job.version - 1)
    summary = run(root, plan, fork=job.fork)
    if job.check:
        check(root, plan, job, summary)


def make_plan(root: Path, stage: int, version: int) -> Plan:
    plan = Plan("keyed", version=version)
    documents: list[Any] = [{"id": id, "key": key, "n": n} for id, (key, n) in CORPORA[stage].items()]
    step = plan.source("docs", Memory(documents, max_deleted=1.0)).step("step", (as_it_is, moved)[version - 1])
    sums = step.keyed("sums", balance, key="key")
    sums.destination("sums_out", Shelf(root, "sums"), batch=3)
    return plan


def as_it_is(doc: Document) -> Document:
    return doc


def moved(doc: Document) -> Document | None:
    """Some have another key, some another number, and one is left out."""
    doc["key"] = "even" if doc["n"] % 2 == 0 else doc["key"]
    doc["n"] += 1
    return None if doc.id == "b" else doc


def balance(key: str, state: int | None, documents: list[Document]) -> tuple[int | None, Document]:
    """The sum of ``n``: what a document was is taken back."""
    old = state or 0
    new = old - sum(doc.previous["n"] for doc in documents if doc.previous)
    new += sum(doc["n"] for doc in documents if doc.operation == "upsert")
    return new or None, Document(key, raw=json.dumps([key, old, new]).encode())


def check(root: Path, plan: Plan, job: Job, summary: Summary) -> None:
    """State and exports against a recount."""
    sums: Counter[str] = Counter()
    for id, (key, n) in CORPORA[job.stage].items():
        doc = (as_it_is, moved)[job.version - 1](Document.of(id, {"key": key, "n": n}))
        if doc is not None:
            sums[doc["key"]] += doc["n"]
    assert (summary.exit, summary.pending) == (0, 0), summary
    where = state_root(plan, root / "state")
    invariants.check(where, plan, summary)
    assert states(where, "sums") == dict(sums)
    lines = [json.loads(line) for line in (root / "sums.jsonl").read_text().splitlines()]
    assert max(Counter(line["hash"] for line in lines).values()) == 1, "doubled"
    told: Counter[str] = Counter()
    for line in sorted(lines, key=lambda line: line["seq"]):
        key, old, new = json.loads(line["text"])
        assert old == told[key], line
        told[key] = new
    assert +told == sums
