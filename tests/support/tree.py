"""A tree of combining nodes, each with an index by count, and its recount."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from ferryman import Document
from ferryman.destinations.base import Delivery, Destination, Effect, Outcome
from ferryman.plan import Plan
from ferryman.routers import Duplicate
from ferryman.sources import Queue
from tests.support.invariants import states


def total(key: str, values: list[int]) -> int | None:
    """The sum; a key of which nothing is left has no state."""
    return sum(values) or None


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


class Recount:
    """Counts the entries that it makes; some take a count back to nothing."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in ("xyt", *PAIRS, *SINGLES)}

    def entries(self, number: int) -> list[dict[str, int]]:
        """So many messages for the queue."""
        return [self._entry() for _ in range(number)]

    def _entry(self) -> dict[str, int]:
        entry = {letter: self._chance.randrange(4) for letter in "xyt"}
        there = self.counts["xyt"]["/".join(str(entry[letter]) for letter in "xyt")]
        by = -there if there > 0 and self._chance.random() < 0.4 else 1
        for name, counter in self.counts.items():
            counter["/".join(str(entry[letter]) for letter in name)] += by
        return {**entry, "by": by}

    def check(self, place: Path) -> None:
        """States and indexes against it: each key has exactly one row in its index."""
        for name, counter in self.counts.items():
            expected = {key: number for key, number in counter.items() if number}
            assert states(place / "state" / "tree-v1", name) == expected
            lines = (place / f"{name}.txt").read_text().splitlines()
            assert lines == sorted(f"{number} {key}" for key, number in expected.items())
