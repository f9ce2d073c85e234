"""The same for documents that change, move to another key, and vanish: their key has each of them once, as it is."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from ferryman import Document, crash, limits
from ferryman.engine.wave import Summary
from ferryman.plan import Plan
from ferryman.sources import Memory
from ferryman.state.state import state_root
from tests.crash.keyed import run
from tests.crash.shapes.shape import Shelf
from tests.support import invariants
from tests.support.keyed import states

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


def work(job: Job) -> None:
    """Do it; a failed check raises."""
    limits.COMPACT_FILES = 2  # type: ignore[misc]
    limits.OUTDATED_SHARE = 0.2  # type: ignore[misc]
    root = Path(job.root)
    if job.arm:
        crash.arm(job.arm, str(root / "killed"))
    plan = make_plan(root, job.stage)
    summary = run(root, plan, fork=job.fork)
    if job.check:
        check(root, plan, job.stage, summary)


def make_plan(root: Path, stage: int) -> Plan:
    plan = Plan("keyed", version=1)
    documents: list[Any] = [{"id": id, "key": key, "n": n} for id, (key, n) in CORPORA[stage].items()]
    sums = plan.source("docs", Memory(documents, max_deleted=1.0)).keyed("sums", balance, key="key")
    sums.destination("sums_out", Shelf(root, "sums"), batch=3)
    return plan


def balance(key: str, state: int | None, documents: list[Document]) -> tuple[int | None, Document]:
    """The sum of ``n``: what a document was is taken back."""
    old = state or 0
    new = old - sum(doc.previous["n"] for doc in documents if doc.previous)
    new += sum(doc["n"] for doc in documents if doc.operation == "upsert")
    return new or None, Document(key, raw=json.dumps([key, old, new]).encode())


def check(root: Path, plan: Plan, stage: int, summary: Summary) -> None:
    """State and exports against a recount."""
    sums: Counter[str] = Counter()
    for key, n in CORPORA[stage].values():
        sums[key] += n
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
