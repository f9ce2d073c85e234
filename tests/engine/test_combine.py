"""Combining nodes: one value for each key, and trees of them."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, account
from ferryman.destinations import Queue as IntoQueue
from ferryman.destinations.base import Delivery, Destination, Effect, Outcome
from ferryman.errors import PlanError
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import Duplicate
from ferryman.sources import Queue
from tests.support.keyed import states
from tests.support.trial import run_plan


def total(key: str, values: list[int]) -> int | None:
    """The sum; a key of which nothing is left has no state."""
    return sum(values) or None


def largest(key: str, values: list[int]) -> int:
    return max(values)


def combined(place: Path, combiner: Any, **options: Any) -> tuple[Plan, DurableQueue, DurableQueue]:
    plan = Plan("combined", version=1)
    node = plan.source("in", Queue("in", place)).combine("best", combiner, **{"key": "key", **options})
    node.destination("out", IntoQueue("out", place))
    return plan, DurableQueue("in", place), DurableQueue("out", place)


@pytest.mark.rule("keyed.combine")
def test_only_what_has_changed_is_exported(place: Path) -> None:
    plan, into, out = combined(place, largest, value="n")
    for numbers in ([3, 5, 4], [5, 1], [9]):
        into.append([{"key": "a", "n": n} for n in numbers])
        assert run_plan(plan, place / "state").exit == 0
    assert [m.body for m in out.read()] == [
        {"key": "a", "old": None, "new": 5},
        {"key": "a", "old": 5, "new": 9},
    ]
    assert plan.state("best", place / "state").get("a") == 9


def test_without_value_each_document_counts_one(place: Path) -> None:
    plan, into, _ = combined(place, total)
    into.append([{"key": "a"}, {"key": "a"}, {"key": "b"}])
    run_plan(plan, place / "state")
    assert states(place / "state" / "combined-v1", "best") == {"a": 2, "b": 1}


def test_a_document_without_the_value_is_rejected(place: Path) -> None:
    plan, into, _ = combined(place, total, value="n")
    into.append([{"key": "b", "n": 2}, {"key": "a"}])
    assert run_plan(plan, place / "state").exit == 3
    [row] = account.deliveries(place / "state" / "combined-v1", status="rejected")
    assert "no field 'n', which is to be its value" in row["message"]


@pytest.mark.parametrize(("combiner", "value"), [("sum", "n"), (total, 7)])
def test_what_cannot_combine_is_refused(place: Path, combiner: Any, value: Any) -> None:
    plan, _, _ = combined(place, combiner, value=value)
    with pytest.raises(PlanError, match="best:"):
        plan.check()


class ByCount(Destination):
    """An index by count, as lines of a file a key: what an entry was is removed, what it is added."""

    effect = Effect.IDEMPOTENT
    transactional = True
    single_writer = True

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        path = Path(self.path)
        rows = set(path.read_text().splitlines()) if path.exists() else set()
        for delivery in chunk:
            fields = delivery.fields
            rows.discard(f"{fields['old']} {fields['key']}")
            if fields["new"] is not None:
                rows.add(f"{fields['new']} {fields['key']}")
        path.write_text("\n".join(sorted(rows)))
        return [Outcome.ok()] * len(chunk)


PAIRS, SINGLES = ("xy", "xt", "yt"), ("x", "y", "t")


def narrowed(letters: str, places: tuple[int, ...]) -> Any:
    """A step: the change of a key's count as that of a part of the key."""

    def narrow(doc: Document) -> Document:
        parts = doc["key"].split("/")
        by = (doc["new"] or 0) - (doc["old"] or 0)
        doc.fields.clear()
        doc.fields.update({"key": "/".join(parts[at] for at in places), "by": by})
        return doc

    return narrow


def tree(place: Path) -> Plan:
    """(x, y, t) counts feed three pairs; (x, y) feeds x, (y, t) feeds y, (x, t) feeds t; each has an index by count."""
    plan = Plan("tree", version=1)

    def index(node: Any, name: str) -> None:
        node.destination(f"index_{name}", ByCount(place / f"{name}.txt"))

    source = plan.source("in", Queue("in", place))
    triples = source.combine("xyt", total, key=lambda doc: f"{doc['x']}/{doc['y']}/{doc['t']}", value="by")
    fork = triples.route("fork", Duplicate())
    index(fork, "xyt")
    for pair, single in zip(PAIRS, ("x", "t", "y"), strict=True):
        places = tuple("xyt".index(letter) for letter in pair)
        below = fork.step(f"narrow_{pair}", narrowed(pair, places)).combine(pair, total, key="key", value="by")
        split = below.route(f"split_{pair}", Duplicate())
        index(split, pair)
        step = split.step(f"narrow_{single}", narrowed(single, (pair.index(single),)))
        index(step.combine(single, total, key="key", value="by"), single)
    return plan


@pytest.mark.rule("keyed.chain")
def test_a_tree_of_counts_equals_a_recount(place: Path) -> None:
    """After each round, with counts that come back to nothing: each key is in its index exactly once."""
    chance = random.Random(14)
    plan, into = tree(place), DurableQueue("in", place)
    counts: dict[str, Counter[str]] = {name: Counter() for name in ("xyt", *PAIRS, *SINGLES)}
    for _ in range(4):
        entries = []
        for _ in range(60):
            entry = {letter: chance.randrange(4) for letter in "xyt"}
            key = "/".join(str(entry[letter]) for letter in "xyt")
            gone = counts["xyt"][key] > 0 and chance.random() < 0.4
            entries.append({**entry, "by": -counts["xyt"][key] if gone else 1})
            for name, counter in counts.items():
                counter["/".join(str(entry[letter]) for letter in name)] += entries[-1]["by"]
        into.append(entries)
        assert run_plan(plan, place / "state").exit == 0
        root = place / "state" / "tree-v1"
        for name, counter in counts.items():
            expected = {key: number for key, number in counter.items() if number}
            assert states(root, name) == expected
            lines = (place / f"{name}.txt").read_text().splitlines()
            assert lines == sorted(f"{number} {key}" for key, number in expected.items())
