"""The process that is killed in the tests of flows: three plans, two queues between them, and one at the end."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ferryman import Document, Flow, account, crash
from ferryman.queues import Queue
from ferryman.state.state import state_root
from tests.support.joined import Into, Messages, pipe, run_flow

DOCUMENTS = [{"id": f"d{n}", "n": n} for n in range(5)]


class Job(msgspec.Struct):
    """A run of the flow, killed at ``arm``; without it all is checked afterwards."""

    root: str
    arm: str = ""


def work(job: Job) -> None:
    """Do it; a failed check raises."""
    place = Path(job.root)
    if job.arm:
        crash.arm(job.arm)
    summary = run_flow(flow_in(place), place / "state")
    assert summary.exit == 0, summary.messages
    for number, name in enumerate("abc", start=1):
        arrived = [message.body["n"] for message in Queue(name, place).read(start=1, limit=100)]
        assert arrived == [n + number for n in range(len(DOCUMENTS))], f"queue {name}: {arrived}"
    for plan in flow_in(place).plans:
        assert account.status(state_root(plan, place / "state"), plan)["balanced"]


def plus(doc: Document) -> Document:
    doc["n"] += 1
    return doc


def flow_in(place: Path) -> Flow:
    """``first`` → ``a`` → ``second`` → ``b`` → ``third`` → ``c``."""
    plans = [
        pipe("third", Messages("b", place), Into("c", place), plus),
        pipe("second", Messages("a", place), Into("b", place), plus),
        pipe("first", DOCUMENTS, Into("a", place), plus),
    ]
    return Flow("chain", plans)
