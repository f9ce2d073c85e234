"""Plans as plain data, and what must lie outside when all is well again, told without the engine.

A ``Shape`` is a plan that both sides read: ``tests/support/world.py`` builds the real plan from it, and
``Oracle`` walks its documents here: a plain recursion over dicts that knows no waves, retries, outboxes or versions.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

KINDS = "xyz"
"""Values of the field that routers look at."""


@dataclass(frozen=True)
class Spot:
    """A node. What ``n`` and ``flag`` mean depends on its kind; see ``act`` and ``Oracle``."""

    name: str
    kind: str
    """source, step, router, tee, or end."""
    does: str
    after: tuple[str, ...] = ()
    n: int = 0
    flag: bool = False


class Shape(tuple[Spot, ...]):
    """A plan: each spot follows spots that come before it."""

    def following(self, name: str) -> list[str]:
        return [spot.name for spot in self if name in spot.after]

    def of(self, *kinds: str) -> list[Spot]:
        return [spot for spot in self if spot.kind in kinds]

    def spot(self, name: str) -> Spot:
        return next(spot for spot in self if spot.name == name)


class Paper(NamedTuple):
    """A document."""

    id: str
    fields: dict[str, Any]
    text: str

    @property
    def child_of_child(self) -> bool:
        return self.id.count("#") > 1


def act(spot: Spot, paper: Paper) -> list[Paper] | None:
    """What a step makes of a document; None: it lets it go. Children are papers of other ids."""
    match spot.does:
        case "same":
            return [paper]
        case "set":
            return [paper._replace(fields={**paper.fields, spot.name: paper.fields.get("n", 0) + spot.n})]
        case "drop":
            return None if paper.fields.get("n", 0) % 3 == spot.n % 3 else [paper]
        case "turn":  # to another branch
            at = KINDS.find(paper.fields.get("kind") or "x")
            return [paper._replace(fields={**paper.fields, "kind": KINDS[(at + spot.n) % 3]})]
        case "split":
            if paper.child_of_child:
                return [paper]
            made = [_child(spot, paper, letter) for letter in paper.fields.get("parts", "")]
            return [paper, *made] if spot.flag else made
    raise ValueError(spot.does)


def _child(spot: Spot, paper: Paper, letter: str) -> Paper:
    n = (paper.fields.get("n", 0) + ord(letter)) % 4
    fields = {"kind": KINDS[(ord(letter) + spot.n) % 3], "n": n, "parts": paper.fields["parts"][: n % 3]}
    return Paper(f"{paper.id}#{spot.name}.{letter}", fields, letter)


def by_field(spot: Spot, branches: list[str]) -> tuple[dict[str, str], str | None]:
    """(mapping, default) of a router by field: the last kind is not mapped, so that it needs the default."""
    mapping = {kind: branches[(i + spot.n) % len(branches)] for i, kind in enumerate(KINDS[:2])}
    return mapping, branches[0] if spot.flag else None


def some(spot: Spot, branches: list[str], n: int) -> list[str]:
    """The branches that the copying router of our own takes, last one first."""
    taken = [branch for i, branch in enumerate(branches) if (n + spot.n) >> i & 1]
    return taken[::-1] or branches[:1]


class Arrival(NamedTuple):
    """A document at a destination, by a route."""

    destination: str
    id: str
    route: str
    content: str


class Outside(NamedTuple):
    """A way in which things may lie outside."""

    there: frozenset[Arrival]
    refused: frozenset[tuple[str, str]]
    """(id, destination): it is an error for ever, and what an older version has put there may stay, as may what was
    made of it."""


NOTHING = Outside(frozenset(), frozenset())


class Oracle:
    """What a document comes to, where nothing fails."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def outsides(self, source: str, paper: Paper, seen: frozenset[Arrival] | None = None) -> list[Outside]:
        """Every way in which this document may lie outside: several, where a router may choose as it likes.

        Args:
            seen: what is there; ways in which more is there are left out.
        """
        [first] = self._shape.following(source)
        return list(self._from(self._shape.spot(first), paper, "", seen))

    def _from(self, spot: Spot, paper: Paper, route: str, seen: frozenset[Arrival] | None) -> set[Outside]:
        following = self._shape.following(spot.name)
        match spot.kind:
            case "end" | "tee":
                arrival = Arrival(spot.name, paper.id, route, content(paper.fields, paper.text))
                if seen is not None and arrival not in seen:
                    return set()
                here = {Outside(frozenset({arrival}), frozenset())}
                return _all([here, *(self._next(spot, paper, route, seen) for _ in following)])
            case "step":
                made = act(spot, paper)
                return _all(self._next(spot, each, route, seen) for each in made or [])
        match spot.does:
            case "by field":
                mapping, default = by_field(spot, following)
                branch = mapping.get(paper.fields.get("kind"), default)
                if branch is None:
                    return {Outside(frozenset(), frozenset((paper.id, name) for name in self._below(spot.name)))}
                return self._from(self._shape.spot(branch), paper, route, seen)
            case "round robin":
                return set().union(*(self._from(self._shape.spot(b), paper, route, seen) for b in following))
            case "duplicate":
                return self._copies(following, paper, route, seen)
            case "some":
                return self._copies(some(spot, following, paper.fields.get("n", 0)), paper, route, seen)
        raise ValueError(spot.does)

    def _next(self, spot: Spot, paper: Paper, route: str, seen: frozenset[Arrival] | None) -> set[Outside]:
        [name] = self._shape.following(spot.name)
        return self._from(self._shape.spot(name), paper, route, seen)

    def _copies(self, branches: list[str], paper: Paper, route: str, seen: frozenset[Arrival] | None) -> set[Outside]:
        ways = (self._from(self._shape.spot(b), paper, f"{route}/{b}".strip("/"), seen) for b in branches)
        return _all(ways)

    def _below(self, name: str) -> Iterator[str]:
        """Destinations that can be reached from here."""
        if self._shape.spot(name).kind in ("end", "tee"):
            yield name
        for each in self._shape.following(name):
            yield from self._below(each)


def content(fields: dict[str, Any], text: str) -> str:
    """Fields and text, to compare."""
    return json.dumps([fields, text], sort_keys=True)


def _all(parts: Iterable[set[Outside]]) -> set[Outside]:
    """Each with each."""
    whole = {NOTHING}
    for part in parts:
        whole = {Outside(a.there | b.there, a.refused | b.refused) for a, b in itertools.product(whole, part)}
    return whole
