"""Runs in forked children of the zygote: a plan over versions of documents in a log, to be killed at a crash point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ferryman import crash, limits
from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document
from ferryman.engine.run import Run
from ferryman.engine.settings import RunSettings
from ferryman.plan import Plan
from ferryman.routers import ByField
from ferryman.state.state import State, state_root
from ferryman.testing.inprocess import InProcess
from tests.support import invariants
from tests.support.keyed_topic import KeyedTopic
from tests.support.plan_world import Watch
from tests.support.recorder import Recorder, Store

GUARANTEES = ("exactly-once", "at-least-once", "at-most-once")

FIRST = [("a", "left", 3), ("b", "right", 2), ("c", "left", 300), ("d", "left", 0), ("e" * 60, "right", 1)]
"""Key, side, children."""
SECOND: list[tuple[str, str, int | None]] = [
    ("a", "right", 1), ("b", "right", 0), ("c", "left", 2), ("d", "", 0), ("a", "left", 2), ("e" * 60, "", None),
    ("f", "left", 2), ("a", "left", 1), ("c", "", None), ("f", "right", 1), ("b", "left", 3), ("c", "right", 2),
]  # fmt: skip
"""The same; no side: it is dropped; no children: a tombstone."""


class Job(msgspec.Struct):
    """A run, and how it ends before its end.

    Attributes:
        arm: crash point, and the file that is created at the kill.
    """

    root: str
    stage: int = 1
    guarantee: str = "exactly-once"
    arm: tuple[str, str] | None = None
    check: bool = False


def messages(stage: int) -> list[tuple[str, Any]]:
    said = FIRST if stage == 1 else SECOND
    return [
        (key, None if parts is None else {"n": f"{stage}.{n}", "side": side, "parts": parts})
        for n, (key, side, parts) in enumerate(said)
    ]


def expected() -> dict[str, dict[str, str]]:
    """Return what each destination has in the end: id -> ``n``."""
    found: dict[str, dict[str, str]] = {"left": {}, "right": {}}
    for key, value in {**dict(messages(1)), **dict(messages(2))}.items():
        if value is not None and value["side"]:
            family = [key, *(f"{key}#{n}" for n in range(value["parts"]))]
            found[value["side"]] |= dict.fromkeys(family, value["n"])
    return found


def split(doc: Document) -> list[Document] | None:
    if not doc["side"]:
        return None
    return [doc, *(doc.child(str(n), n=doc["n"], side=doc["side"]) for n in range(doc["parts"]))]


class FailsOnce(Recorder):
    """Refuses the second version of document "a" at its first attempt."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, _refuse_once, **options)


def _refuse_once(delivery: Delivery) -> Outcome:
    again = delivery.id != "a" or delivery.fields.get("n") != "2.4" or delivery.attempt > 1
    return Outcome.ok() if again else Outcome.transient("not now")


def build(job: Job) -> Plan:
    root = Path(job.root)
    plan = Plan("versions", version=1)
    source = plan.source("log", KeyedTopic(root / "topic"))
    sides = source.step("split", split).route("sides", ByField("side", {"left": "left", "right": "right"}))
    for name in ("left", "right"):
        path = root / f"{name}.jsonl"
        into = Store(path) if job.guarantee == "exactly-once" else FailsOnce(path)
        sides.destination(name, into, guarantee=job.guarantee, batch=3, backoff=0)
    return plan


def there(root: Path, name: str) -> dict[str, str]:
    """Return what a destination has that does what it is told, in the order in which it is told."""
    found: dict[str, str] = {}
    for line in Recorder(root / f"{name}.jsonl").lines():
        if line["said"] == "ok":
            found.pop(line["id"], None)
            if line["op"] == "upsert":
                found[line["id"]] = line["fields"]["n"]
    return found


def work(job: Job) -> None:
    """Do it; a failed check raises."""
    limits.TASK_DOCUMENTS = 4  # type: ignore[misc]
    plan = build(job)
    plan.freeze()
    root = state_root(plan, Path(job.root) / "state")
    if job.arm is not None:
        crash.arm(*job.arm)
    with State.take(root, plan) as state:
        summary = Run(state, InProcess(fork=job.arm is not None), Watch(10**6), RunSettings(wait=5)).run()
    invariants.check(root, plan, summary)
    if not job.check:
        return
    folder = Path(job.root)
    if job.guarantee == "at-most-once" and summary.in_doubt:
        return
    assert summary.exit == 0, summary
    assert {name: there(folder, name) for name in ("left", "right")} == expected()
    if job.guarantee != "at-least-once":
        for name in ("left", "right"):
            said = [line["hash"] for line in Recorder(folder / f"{name}.jsonl").lines() if line["said"] == "ok"]
            assert len(said) == len(set(said)), name
