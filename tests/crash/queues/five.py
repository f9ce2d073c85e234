"""A flow of five plans over queues: a fork, a second plan, a join of both, alts, and one that reads the errors, each
at most once.

    in → split → left, right        left + mid → join → sums        errors → triage → triaged
    in2 → other → mid               right, extra → alts → any

What each queue must have follows from the messages alone.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ferryman import Flow, account
from ferryman.destinations import Delivery, Outcome
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.errors import PermanentError, TransientError
from ferryman.plan import Handle, Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import Duplicate
from ferryman.sources import Queue
from ferryman.state.state import state_root

EACH = 8
"""Messages that are appended to each input at a time."""

INPUTS = ("in", "in2", "extra")


def fails(plan: str, n: int) -> bool:
    """Does the step of this plan fail for good?"""
    return (n % 11 == 5 and plan == "split") or (n % 7 == 3 and plan == "other") or (n % 13 == 6 and plan == "join")


def waits(plan: str, n: int) -> bool:
    """Does it fail at its first call?"""
    return n % 9 == {"split": 2, "other": 5, "join": 7, "alts": 4}.get(plan, -1)


def refused(queue: str, n: int) -> bool:
    return n % 10 == 8 and queue in ("sums", "right")


class Refuser(ToQueue):
    """A queue that refuses some messages; see ``refused``."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        said = [self._answer(d) for d in chunk]
        good = iter(super().write([d for d, no in zip(chunk, said, strict=True) if no is None]))
        return [next(good) if no is None else no for no in said]

    def _answer(self, d: Delivery) -> Outcome | None:
        n = d.fields["n"]
        return Outcome.permanent("refused on principle") if refused(self.name, n) else None


def step(root: Path, plan: str) -> Callable[[Document], Document]:
    def work(doc: Document) -> Document:
        meet(root, plan, doc["n"])
        return doc

    return work


def meet(root: Path, plan: str, n: int) -> None:
    if fails(plan, n):
        raise PermanentError(f"{n} is broken")
    if waits(plan, n):
        calls = root / "calls" / f"{plan}-{n}"
        if not calls.exists():
            calls.touch()
            raise TransientError("not the first time")


def make_flow(root: Path) -> Flow:
    def ends(plan: Plan, node: Handle, *names: str) -> Plan:
        for name in names:
            node.destination(f"to_{name}", Refuser(name, root), batch=3, backoff=0)
        plan.errors(ToQueue("errors", root), backoff=0)
        return plan

    def added(docs: dict[str, Document]) -> dict[str, Any]:
        n = docs["left"]["n"]
        meet(root, "join", n)
        return {"n": n, "with": docs["mid"]["n"]}

    def told(doc: Document) -> Document:
        [message] = doc["messages"]
        return Document(doc.id, plan=doc["config"]["plan"], where=doc["where"], of=message["id"])

    split, other, join, alts = (Plan(name) for name in ("split", "other", "join", "alts"))
    triage = Plan("triage", strategy="at-most-once")
    fork = split.source("from_in", Queue("in", root)).step("work", step(root, "split")).route("both", Duplicate())
    worked = other.source("from_in2", Queue("in2", root)).step("work", step(root, "other"))
    pair = {name: join.source(f"from_{name}", Queue(name, root)) for name in ("left", "mid")}
    either = alts.alts("either", [alts.source(f"from_{name}", Queue(name, root)) for name in ("right", "extra")])
    triaged = triage.source("from_errors", Queue("errors", root)).step("told", told)
    triaged.destination("to_triaged", ToQueue("triaged", root), backoff=0)
    return Flow(
        "five",
        [
            ends(split, fork, "left", "right"),
            ends(other, worked, "mid"),
            ends(join, join.join("work", added, pair), "sums"),
            ends(alts, either.step("work", step(root, "alts")), "any"),
            triage,
        ],
    )


def fill(root: Path, turn: int, each: int = EACH) -> None:
    """More messages for each input; doing it again changes nothing."""
    (root / "calls").mkdir(exist_ok=True)
    for queue in INPUTS:
        numbers = range(turn * each, (turn + 1) * each)
        DurableQueue(queue, root).append([{"n": n, "of": queue} for n in numbers], key=f"turn {turn}")


def bodies(root: Path, queue: str) -> list[dict[str, Any]]:
    return [m.body for m in DurableQueue(queue, root).read(limit=1 << 20)]


def check(root: Path, turns: int, each: int = EACH) -> None:
    """Every queue against what follows from the inputs."""
    numbers = list(range(turns * each))
    left = [n for n in numbers if not fails("split", n)]
    right = [n for n in left if not refused("right", n)]
    mid = [n for n in numbers if not fails("other", n)]
    pairs = list(zip(left, mid, strict=False))
    sums = [(a, b) for a, b in pairs if not fails("join", a) and not refused("sums", a)]
    assert [body["n"] for body in bodies(root, "left")] == left
    assert [body["n"] for body in bodies(root, "right")] == right
    assert [body["n"] for body in bodies(root, "mid")] == mid
    assert [(body["n"], body["with"]) for body in bodies(root, "sums")] == sums
    mixed: dict[str, list[int]] = defaultdict(list)
    for body in bodies(root, "any"):
        mixed[body["of"]].append(body["n"])
    assert mixed == {"in": right, "extra": numbers}
    _check_errors(root, numbers, left, pairs)


def _check_errors(root: Path, numbers: list[int], left: list[int], pairs: list[tuple[int, int]]) -> None:
    """Of each node, in the order of its inputs; and as they were read from the error queue."""
    wanted = {
        "split/work": [f"in/{n + 1}" for n in numbers if fails("split", n)],
        "split/to_right": [f"in/{n + 1}" for n in left if refused("right", n)],
        "other/work": [f"in2/{n + 1}" for n in numbers if fails("other", n)],
        "join/work": [f"left/{k}&mid/{k}" for k, (a, _) in enumerate(pairs, 1) if fails("join", a)],
        "join/to_sums": [
            f"left/{k}&mid/{k}" for k, (a, _) in enumerate(pairs, 1) if refused("sums", a) and not fails("join", a)
        ],
    }
    found: dict[str, list[str]] = defaultdict(list)
    for body in bodies(root, "errors"):
        found[f"{body['config']['plan']}/{body['where']}"] += [message["id"] for message in body["messages"]]
    assert found == {name: ids for name, ids in wanted.items() if ids}, json.dumps(found)
    errors = [(body["config"]["plan"], body["where"], body["messages"][0]["id"]) for body in bodies(root, "errors")]
    doubtful = in_doubt(root)
    told = [error for index, error in enumerate(errors, 1) if index not in doubtful]
    assert Counter((body["plan"], body["where"], body["of"]) for body in bodies(root, "triaged")) == Counter(told)


def in_doubt(root: Path) -> set[int]:
    """Messages of the error queue that the at-most-once plan may have lost, and names."""
    [triage] = (plan for plan in make_flow(root).plans if plan.name == "triage")
    found: set[int] = set()
    for each in account.deliveries(state_root(triage, root / "state"), plan=triage, status="in_doubt"):
        first, _, last = each["document"].removeprefix("errors/").partition("..")
        found |= set(range(int(first), int(last) + 1))
    return found
