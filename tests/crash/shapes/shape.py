"""What a shape is, and what several are made of: documents, destinations, steps."""

from __future__ import annotations

import collections
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ferryman.destinations.base import Delivery, Destination, DestinationContext, Effect, Guarantee, Outcome
from ferryman.document import Document
from ferryman.plan import Handle, Plan
from ferryman.sources import Memory

BATCH = 3
MIXED = "mixed"
"""Each destination of the plan under another guarantee."""
Arrived = collections.Counter[tuple[str, str, str, str]]
"""(operation, id, route, text) -> how often."""
Corpus = Mapping[str, str]
"""Id -> text."""


class Shelf(Destination):
    """Appends a line a delivery to ``<root>/<name>.jsonl``, visible to all processes; transactional if it is asked to.

    Args:
        answers: id -> what it answers to an upsert of it: ``refuse`` (for good), ``first`` (not at the first attempt),
            ``break`` (raises: under at-most-once nobody knows what became of the chunk).
        down: it takes nothing at all.
    """

    effect = Effect.IDEMPOTENT
    transactional = True

    def __init__(self, root: Path, name: str, answers: Mapping[str, str] | None = None, *, down: bool = False) -> None:
        self.path = str(root / f"{name}.jsonl")
        self.answers = dict(answers or {})
        self.down = down

    def open(self, context: DestinationContext) -> None:
        self._exactly_once = context.guarantee is Guarantee.EXACTLY_ONCE

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        if self.down:
            return [Outcome.unavailable("down")] * len(chunk)
        with open(self.path, "a+") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            log.seek(0)
            there = {json.loads(line)["hash"] for line in log} if self._exactly_once else set()
            outcomes, lines = [], []
            for d in chunk:
                outcome = self._answer(d)
                outcomes.append(outcome)
                if outcome.kind == "ok" and d.hash not in there:
                    lines.append(json.dumps(told_of(d)))
            os.write(log.fileno(), "".join(line + "\n" for line in lines).encode())
        return outcomes

    def _answer(self, d: Delivery) -> Outcome:
        match self.answers.get(d.id) if d.operation == "upsert" else None:
            case "refuse":
                return Outcome.permanent("refused on principle")
            case "first" if d.attempt < 2:
                return Outcome.transient("not the first time")
            case "break":
                raise RuntimeError("the line broke")
        return Outcome.ok()


def told_of(d: Delivery) -> dict[str, Any]:
    return {
        "op": d.operation,
        "id": d.id,
        "route": "/".join(d.route),
        "text": d.text(),
        "hash": d.hash,
        "seq": d.sequence,
        "family": (d.origin_id, d.version),
        "attempt": d.attempt,
    }


@dataclass(frozen=True)
class Shape:
    """A plan and what is done with it.

    Attributes:
        build: (root, stage from 0, guarantee of the n-th destination) -> the plan as it runs in that stage.
        expected: what must have arrived at each destination at the end. Destinations joined by ``|`` are the branches
            of a router that takes turns: each copy comes to one of them.
        expected_by: the same, where it depends on what was committed, which the ledger tells.
        verbs: what is done in the last stage.
        left: what the last stage leaves: the exit code of its run.
        passes: points that only some shapes pass; see ``applies``.
        failures: how often a worker may die before its task is run apart.
        wait: seconds for which a run waits for what comes due.
        waits: the same for each stage, where they differ.
        hangs: each destination hangs once a stage, in a worker that outlives its tasks.
        holds: deletes are held for upserts; so is one whose upsert is in doubt after a kill.
        breaks: each destination breaks the connection of some chunks, although it is well.
    """

    stages: int
    build: Callable[[Path, int, Callable[[int], str]], Plan]
    expected: Callable[[], dict[str, Arrived]]
    left: int = 0
    verbs: tuple[str, ...] = ("run",)
    passes: tuple[str, ...] = ()
    wave_bytes: int = 30
    failures: int = 4
    wait: float = 5
    waits: tuple[float, ...] = ()
    hangs: bool = False
    breaks: bool = False
    holds: bool = False
    from_version: int | None = None
    expected_by: Callable[[list[dict[str, Any]]], dict[str, Arrived]] | None = None
    prepare: tuple[tuple[str, ...], ...] = field(default=())
    """Stages but the last: verbs, each with the point at which it is killed (``run@deliver.done``); () is ("run",)."""

    def plan(self, root: Path, stage: int, guarantee: str) -> Plan:
        guarantees = [g.value for g in Guarantee]
        return self.build(root, stage, lambda n: guarantees[n % 3] if guarantee == MIXED else guarantee)

    def guarantees(self, guarantee: str) -> dict[str, str]:
        """Destination -> its guarantee, in the last stage."""
        from ferryman.plan.nodes import DestinationNode

        plan = self.plan(Path("nowhere"), self.stages - 1, guarantee)
        return {n.name: n.policy.guarantee.value for n in plan.nodes if isinstance(n, DestinationNode)}


def source(plan: Plan, name: str, corpus: Corpus) -> Handle:
    return plan.source(name, Memory([{"id": i, "raw": t.encode()} for i, t in corpus.items()], max_deleted=1.0))


def failing(root: Path, name: str, times: Mapping[str, int]) -> Callable[[Document], Document]:
    """A step that fails so many calls for these documents, counted over all processes: a kill may use one up."""

    def step(doc: Document) -> Document:
        if doc.id in times:
            calls = root / f"{name}.{doc.id}.{doc.get('by', '')}.calls".replace("/", "_")
            with calls.open("ab") as file:
                file.write(b".")
            if calls.stat().st_size <= times[doc.id]:
                raise RuntimeError("not yet")
        return doc

    return step


def upserts(*corpora: Corpus, route: str = "") -> Arrived:
    return collections.Counter(("upsert", i, route, t) for corpus in corpora for i, t in corpus.items())


def deletes(ids: Iterable[str], route: str = "") -> Arrived:
    return collections.Counter(("delete", i, route, "") for i in ids)


def chapters(doc: Document) -> Iterator[Document]:
    """The document, and a child for each word."""
    yield doc
    for word in doc.text().split():
        yield doc.child(word.lower(), raw=word.encode())


def quiet(doc: Document) -> Document:
    return doc


def words_of(corpus: Corpus) -> dict[str, str]:
    return {**corpus, **{f"{i}#{word}": word for i, t in corpus.items() for word in t.split()}}
