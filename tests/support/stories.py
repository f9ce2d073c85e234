"""Plans by chance, and histories for them: what changes, fails and is killed in each turn."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.support.oracle import KINDS, Paper, Shape, Spot

IDS = "ab"
PARTS = "pq"
PHASES = ["scan", "transform", "commit", "deliver", "settle"]


class Content(NamedTuple):
    """Of a source's document."""

    kind: str | None
    n: int
    parts: str
    text: str

    def paper(self, id: str) -> Paper:
        kind = {} if self.kind is None else {"kind": self.kind}
        return Paper(id, {**kind, "n": self.n, "parts": self.parts}, self.text)


class Fault(NamedTuple):
    """The first ``times`` calls of a node in a turn fail, for each member of a family whose id ends so."""

    node: str
    origin: str
    tail: str
    """"": the origin itself."""
    times: int
    error: str
    """transient, permanent, strange, away, connection, or breaks; of a destination: permanent, breaks (the connection,
    of each chunk that has this id, before anything of it takes effect), or transient."""

    def meets(self, node: str, id: str) -> bool:
        origin, _, key = id.partition("#")
        return (node, origin, key[-1:]) == (self.node, self.origin, self.tail)


class Turn(NamedTuple):
    """What happens before a run, and in it."""

    changes: dict[tuple[int, str], Content | None]
    """(number of the source, id) -> new content; None: it goes away."""
    faults: list[Fault]
    down: set[str]
    """Destinations, steps and routers that are down."""
    word: str | None
    """What a person says before."""
    kill: tuple[str, int] | None
    """Phase at which it is killed, and after how many waves more."""


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Sources, then in any order nodes that follow one or more of what has no successor yet."""
    spots: list[Spot] = []
    free: list[str] = []
    """Spots that something must follow; a router as often as it has branches."""

    def add(kind: str, does: str, after: tuple[str, ...] = (), branches: int = 1) -> None:
        name = f"{kind[0]}{len(spots)}"
        numbers = draw(st.integers(0, 3)), draw(st.booleans())
        spots.append(Spot(name, kind, does, after, *numbers))
        free.extend([name] * branches)

    def take(most: int = 3) -> tuple[str, ...]:
        found = []
        for name in draw(st.lists(st.sampled_from(sorted(set(free))), min_size=1, max_size=most, unique=True)):
            found.append(name)
            free.remove(name)
        return tuple(found)

    for _ in range(draw(st.integers(1, 2))):
        add("source", "")
    steps = ["same", "set", "drop", "turn", "split", "split"]
    routers = ["by field", "duplicate", "round robin", "some", "duplicate"]
    for move in draw(st.lists(st.sampled_from(["step", "step", "router", "router", "tee", "end"]), max_size=7)):
        if not free:
            break
        match move:
            case "step":
                add("step", draw(st.sampled_from(steps)), take())
            case "router":
                add("router", draw(st.sampled_from(routers)), take(), draw(st.integers(2, 3)))
            case "tee":
                add("tee", draw(st.sampled_from(ENDS)), take())
            case "end":
                add("end", draw(st.sampled_from(ENDS)), take(), 0)
    while free:
        add("end", draw(st.sampled_from(ENDS)), take(), 0)
    return Shape(spots)


ENDS = ["at least", "at most", "exactly", "shared", "at least"]
"""Guarantees of destinations; those that share a place are at-least-once."""
CONTENTS = st.builds(
    Content,
    kind=st.sampled_from([*KINDS, None]),
    n=st.integers(0, 3),
    parts=st.sampled_from(["", "p", "q", "pq"]),
    text=st.sampled_from(["one", "two"]),
)


def turns(shape: Shape) -> st.SearchStrategy[Turn]:
    sources = st.integers(0, len(shape.of("source")) - 1)
    working = [s.name for s in shape if s.kind in ("step", "tee", "end") or s.does == "some"]
    return st.builds(
        Turn,
        changes=st.dictionaries(st.tuples(sources, st.sampled_from(IDS)), st.none() | CONTENTS, min_size=1, max_size=3),
        faults=st.lists(
            st.builds(
                Fault,
                node=st.sampled_from(working),
                origin=st.sampled_from(IDS),
                tail=st.sampled_from(["", *PARTS]),
                times=st.integers(1, 4),
                error=st.sampled_from(["transient", "permanent", "strange", "away", "connection", "breaks", "breaks"]),
            ),
            min_size=1,
            max_size=4,
        ),
        down=st.sets(st.sampled_from(working), max_size=1),
        word=st.sampled_from([None, None, None, "retry", "force", "force one", "retry one", "resolve"]),
        kill=st.none() | st.none() | st.tuples(st.sampled_from(PHASES), st.integers(0, 1)),
    )


class Story(NamedTuple):
    """An example."""

    shape: Shape
    turns: list[Turn]


@st.composite
def stories(draw: st.DrawFn) -> Story:
    shape = draw(shapes())
    return Story(shape, draw(st.lists(turns(shape), min_size=2, max_size=5)))


def origin(line: dict[str, Any]) -> tuple[str, str]:
    return line["source"], line["origin"]
