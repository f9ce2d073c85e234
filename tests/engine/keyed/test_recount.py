"""Exports that are refused, wait, and are interrupted at random: each key is told its changes in their order."""

from __future__ import annotations

import contextlib
import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from ferryman import Document
from ferryman.destinations.base import Delivery, Outcome
from ferryman.errors import PermanentError, TransientError
from ferryman.operations import retry
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import Duplicate
from ferryman.sources import Queue
from tests.support.invariants import states
from tests.support.keyed import Counted
from tests.support.plan_world import Interrupted, Until, run_plan
from tests.support.recorder import Recorder
from tests.support.tiers import sampled


class Fickle(Recorder):
    """Takes the rows of a chunk in any order, and refuses some of them, for now or for good, until it is mended."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder / f"{name}.jsonl", self.judge)
        self.mended = str(folder / "mended")

    def judge(self, delivery: Delivery) -> Outcome:
        kind = random.choice(["ok"] * 6 + ["transient", "permanent", "unforeseen"])
        return Outcome.ok() if Path(self.mended).exists() else Outcome(kind, "not now")

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        order = random.sample(range(len(chunk)), len(chunk))
        said = dict(zip(order, super().write([chunk[at] for at in order]), strict=True))
        return [said[at] for at in range(len(chunk))]

    def told(self) -> dict[str, int]:
        """Key -> what it was told last. Each change comes once more at most, and none before the one before."""
        last: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for line in self.lines():
            if line["said"] == "ok":
                key, old, new = (line["fields"][name] for name in ("key", "old", "new"))
                assert old == last[key][1] or (old, new) == last[key], (line, last[key])
                last[key] = (old, new)
        return {key: new for key, (_, new) in last.items()}


class Moody:
    """A step that fails for some, for now or for good, until it is mended."""

    def __init__(self, folder: Path) -> None:
        self.mended = str(folder / "mended")

    def __call__(self, doc: Document) -> Document:
        if not Path(self.mended).exists() and random.random() < 0.2:
            raise random.choice([TransientError, PermanentError, ValueError])("not now")
        return doc


@pytest.mark.rule("keyed.holds")
@pytest.mark.parametrize("seed", sampled(range(60), 60))
def test_whatever_fails_each_key_is_told_its_changes_in_order(place: Path, seed: int) -> None:
    """Two destinations below a fork, a step above it; runs that end anywhere, retries at any time."""
    random.seed(seed)
    gates = [Fickle(place, name) for name in ("one", "two")]
    plan = Plan("fickle", version=1)
    node = plan.source("from_in", Queue("in", place))
    node = node.keyed("counts", Counted(place / "calls"), key="word", buffer_bytes=1).step("moody", Moody(place))
    fork = node.route("fork", Duplicate())
    for name, gate in zip(("one", "two"), gates, strict=True):
        guarantee = random.choice(["at-least-once", "at-most-once"])
        fork.destination(name, gate, guarantee=guarantee, batch=random.choice([1, 3, 500]), backoff=0, attempts=2)
    put: Counter[str] = Counter()
    for _ in range(4):
        words = [random.choice("aaabbcdefgh") for _ in range(random.randint(0, 40))]
        DurableQueue("in", place).append([{"word": word} for word in words])
        put.update(words)
        end = Until(random.randint(1, 30), random.choice(["transform", "commit", "deliver", "settle"]))
        with contextlib.suppress(Interrupted):
            run_plan(plan, place / "state", wait=0, observer=end, checked=False)
        if random.random() < 0.5:
            retry(plan, state=place / "state", destination=random.choice([None, "one"]))
    (place / "mended").touch()
    for _ in range(2):
        run_plan(plan, place / "state", wait=0, observer=Until(0, ""))
        retry(plan, state=place / "state")
    summary = run_plan(plan, place / "state")
    assert (summary.exit, summary.pending) == (0, 0), summary
    assert states(place / "state" / "fickle-v1", "counts") == put
    assert [gate.told() for gate in gates] == [put, put]
    assert Counter((place / "calls").read_text().split()) >= put
