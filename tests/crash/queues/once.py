"""A plan that takes each message once at most, in two stages; what must be there follows from the messages alone.

The field ``n`` says what happens to a message: its step fails for good (BROKEN) or would be well the next time (FLAKY,
which nobody waits for); it kills its process, until somebody mends it (DEADLY).
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from ferryman import account
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.errors import PermanentError, TransientError
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import Duplicate
from ferryman.sources import Queue
from ferryman.state.state import state_root

STAGES = (1, 2)
FLAKY, BROKEN, DEADLY = (4, 14), (10, 16), (8,)
NUMBERS = {1: range(1, 13), 2: range(13, 21)}
MENDED = "mended"
"""A file: message DEADLY does no harm any more."""


CHECKPOINT = "checkpoint"
"""A file: how many messages a task notes at once; 1 without it."""
DIES = "dies"
"""While this file is there, the process is killed in which the step comes to the call whose number is in it."""


def working(root: Path) -> Callable[[Document], Document]:
    def work(doc: Document) -> Document:
        n = doc["n"]
        with (root / "calls").open("a") as file:
            file.write(f"{n}\n")
        dies = root / DIES
        if dies.exists() and len(calls(root)) >= int(dies.read_text()):
            dies.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if n in FLAKY:
            raise TransientError("not the first time")
        if n in BROKEN:
            raise PermanentError(f"{n} is broken")
        if n in DEADLY and not (root / MENDED).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return doc

    return work


def calls(root: Path) -> list[int]:
    """Messages that the step has seen, in this order."""
    seen = root / "calls"
    return list(map(int, seen.read_text().split())) if seen.exists() else []


def make_plan(root: Path) -> Plan:
    noted = root / CHECKPOINT
    checkpoint = int(noted.read_text()) if noted.exists() else 1
    plan = Plan("once", version=1, strategy="at-most-once", checkpoint=checkpoint)
    fork = plan.source("from_in", Queue("in", root)).step("work", working(root)).route("both", Duplicate())
    for name in ("one", "two"):
        fork.destination(name, ToQueue(name, root), batch=2, backoff=0)
    plan.errors(ToQueue("errors", root), batch=2, backoff=0)
    return plan


def fill(root: Path, stage: int) -> None:
    """What comes before a stage."""
    DurableQueue("in", root).append([{"n": n} for n in NUMBERS[stage]], key=f"stage {stage}")
    if stage == 2:
        (root / MENDED).touch()


def in_doubt(root: Path) -> set[int]:
    """Messages of ranges in doubt, the same at both destinations."""
    plan = make_plan(root)
    state = state_root(plan, root / "state")
    by_destination: dict[str, list[int]] = {"one": [], "two": []}
    for each in account.deliveries(state, plan=plan, status="in_doubt"):
        first, _, last = each["document"].removeprefix("in/").partition("..")
        by_destination[each["destination"]] += range(int(first), int(last) + 1)
    one, two = (sorted(found) for found in by_destination.values())
    assert one == two
    assert len(set(one)) == len(one)
    return set(one)


def check(root: Path, stage: int, doubtful: set[int], again: Iterable[int]) -> None:
    """Each message went through, failed, or is in doubt; no step saw one twice that nobody has asked for.

    Args:
        doubtful: messages that are in doubt.
        again: messages of ranges that somebody wanted run again, each as often.
    """
    seen, asked = calls(root), Counter(again)
    turn = {n: at for at, n in enumerate(seen)}  # what was seen twice counts when it was seen last
    wanted = [n for each in range(1, stage + 1) for n in NUMBERS[each] if n not in doubtful]
    failing = {n for n in wanted if n in BROKEN + FLAKY}
    for queue in ("one", "two"):
        found = [m.body["n"] for m in DurableQueue(queue, root).read(limit=10_000)]
        assert sorted(found) == [n for n in wanted if n not in failing], f"{queue}: {found}"
        assert found == sorted(found, key=turn.__getitem__), f"{queue}: {found}"
    errors = [m.body for m in DurableQueue("errors", root).read(limit=10_000)]
    failed = Counter(int(message["id"].removeprefix("in/")) for body in errors for message in body["messages"])
    assert failed.keys() == failing, failed
    assert all(times <= 1 + asked[n] for n, times in failed.items()), failed
    assert all(times <= 1 + asked[n] for n, times in Counter(seen).items()), seen
    assert set(seen) >= set(wanted)
