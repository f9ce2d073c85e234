"""An export that does not arrive, or that a step cannot take, holds the later exports of its key, and no others."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.destinations.base import Delivery, Outcome
from ferryman.operations.retry import retry
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Queue
from tests.support.keyed import Counted
from tests.support.recorder import Recorder
from tests.support.trial import run_plan


class Gate(Recorder):
    """Refuses what a file names, by key and new count; takes all else."""

    def __init__(self, folder: Path, name: str = "gate", kind: str = "permanent") -> None:
        super().__init__(folder / f"{name}.jsonl")
        self.refused, self.kind = str(folder / f"{name}.refused"), kind
        self.answer = self.judge

    def judge(self, delivery: Delivery) -> Outcome:
        refused = json.loads(Path(self.refused).read_text())
        told = [delivery.fields["key"], delivery.fields["new"]]
        return Outcome(self.kind, "refused") if told in refused else Outcome.ok()

    def refuse_only(self, *what: tuple[str, int]) -> None:
        Path(self.refused).write_text(json.dumps([list(each) for each in what]))

    def arrived(self) -> dict[str, list[tuple[int, int]]]:
        """Key -> (old, new) of each export that it took, in its order."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for line in self.lines():
            if line["said"] == "ok":
                found[line["fields"]["key"]].append((line["fields"]["old"], line["fields"]["new"]))
        return found


class Held:
    """Queue ``in`` → counts by word → gate."""

    def __init__(self, folder: Path, gate: Gate, *, hurdle: Any = None, **policy: Any) -> None:
        self.state, self.gate = folder / "state", gate
        self.into = DurableQueue("in", folder)
        self.plan = Plan("held", version=1)
        update = Counted(folder / "calls")
        node = self.plan.source("from_in", Queue("in", folder)).keyed("counts", update, key="word", buffer_bytes=1)
        if hurdle is not None:
            node = node.step("hurdle", hurdle)
        node.destination("gate", gate, backoff=0, **policy)
        self.root = self.state / "held-v1"

    def put(self, *words: str) -> None:
        self.into.append([{"word": word} for word in words])

    def run(self, **options: Any) -> Any:
        return run_plan(self.plan, self.state, **options)


def chain(length: int) -> list[tuple[int, int]]:
    return [(n, n + 1) for n in range(length)]


@pytest.mark.rule("keyed.holds")
@pytest.mark.parametrize("kind", ["permanent", "unforeseen"])
def test_a_refused_export_holds_its_key_alone(place: Path, kind: str) -> None:
    """Those behind it are pending, and named with the reason; a retry releases them in their order."""
    gate = Gate(place, kind=kind)
    gate.refuse_only(("a", 2))
    held = Held(place, gate, attempts=1)
    held.put("a", "b", "a", "b", "a")
    held.run()
    held.put("a", "c", "b")
    summary = held.run()
    assert (summary.exit, summary.failed, summary.pending) == (4, 1, 2)
    assert gate.arrived() == {"a": chain(1), "b": chain(3), "c": chain(1)}
    rows = account.deliveries(held.root, status="pending", plan=held.plan)
    assert [row["document"] for row in rows] == ["a", "a"]
    assert all("waits for an earlier export of its key, a, which" in row["message"] for row in rows)
    assert any("2 exports wait for earlier ones of their keys" in message for message in summary.messages)
    before = held.run()
    assert before.waves == 0
    gate.refuse_only()
    retry(held.plan, state=held.state, status="failed")
    assert held.run().exit == 0
    assert gate.arrived() == {"a": chain(4), "b": chain(3), "c": chain(1)}
