"""Any plan, any documents, any faults: in the end what lies outside is what an oracle says, and nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, given, note
from hypothesis import settings as examples
from hypothesis import strategies as st

from ferryman.destinations.base import Delivery, Effect, Outcome
from ferryman.document import Document
from ferryman.engine.wave import Summary
from ferryman.errors import PermanentError, TransientError, Unavailable
from ferryman.operations.retry import retry
from ferryman.plan import Plan
from ferryman.routers import ByField, Duplicate, RoundRobin, Router
from ferryman.sources import Memory
from ferryman.state.state import state_root
from tests.support import NOT_SOON_S
from tests.support.invariants import rows
from tests.support.oracle import KINDS, Arrival, Oracle, Outside, Paper, Shape, Spot, act, by_field, content, some
from tests.support.places import MEMORY
from tests.support.recorder import Recorder
from tests.support.trial import Interrupted, Until, run_plan

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
    """transient, permanent, strange, away, or connection; of a destination: permanent, or transient."""

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


# -- plans and histories by chance -----------------------------------------------------------------


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
                error=st.sampled_from(["transient", "permanent", "strange", "away", "connection"]),
            ),
            min_size=1,
            max_size=4,
        ),
        down=st.sets(st.sampled_from(working), max_size=1),
        word=st.sampled_from([None, None, None, "retry", "force", "force one", "retry one"]),
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


# -- the real plan ---------------------------------------------------------------------------------


class Faults:
    """What fails in this turn. Picklable; what was called how often lies in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.turn = 0
        self.faults: list[Fault] = []
        self.down: set[str] = set()

    def met(self, node: str, id: str) -> str | None:
        """The error of this call, if it is one that fails."""
        for number, fault in enumerate(self.faults):
            if fault.meets(node, id):
                with open(self.folder / f"{self.turn}-{number}-{node}-{id}.calls", "ab") as file:
                    if file.seek(0, os.SEEK_END) < fault.times:
                        file.write(b".")
                        return fault.error
        return None

    def fail(self, node: str, id: str) -> None:
        """Raise what this call raises."""
        if node in self.down:
            raise Unavailable("down")
        match self.met(node, id):
            case "away":
                raise Unavailable("for a moment")
            case "connection":
                raise ConnectionRefusedError("nobody there")
            case "transient":
                raise TransientError("not yet")
            case "permanent":
                raise PermanentError("never")
            case "strange":
                raise KeyError("strange")


class Step:
    """A step of the plan."""

    def __init__(self, spot: Spot, faults: Faults) -> None:
        self._spot = spot
        self._faults = faults

    def __call__(self, doc: Document) -> Any:
        self._faults.fail(self._spot.name, doc.id)
        made = act(self._spot, Paper(doc.id, dict(doc), doc.text()))
        if made is None:
            return None
        found = []
        for paper in made:
            if paper.id == doc.id:
                doc.fields.clear()
                doc.fields.update(paper.fields)
                found.append(doc)
            else:
                found.append(doc.child(paper.id.rpartition("#")[2], raw=paper.text.encode(), **paper.fields))
        return found if self._spot.does == "split" else found[0]


class Some(Router):
    """Copies to some of its branches."""

    copies: ClassVar[bool] = True

    def __init__(self, spot: Spot, faults: Faults) -> None:
        self._spot = spot
        self._faults = faults
        self._branches: list[str] = []

    def open(self, branches: Sequence[str], task: int) -> None:
        self._branches = list(branches)

    def choose(self, document: Document) -> Sequence[str]:
        self._faults.fail(self._spot.name, document.id)
        return some(self._spot, self._branches, document.get("n", 0))


class World:
    """The plan of a shape in a folder, with its documents and destinations."""

    def __init__(self, shape: Shape, folder: Path) -> None:
        self.shape = shape
        self.faults = Faults(folder)
        self.state = folder / "state"
        self.documents: dict[str, dict[str, Content]] = {s.name: {} for s in shape.of("source")}
        self.outs = {s.name: self._out(s, folder) for s in shape.of("tee", "end")}
        self.renewed: Counter[tuple[str, str]] = Counter()
        """(source, id) -> how often there was a reason to send it."""

    def _out(self, spot: Spot, folder: Path) -> Recorder:
        effect = Effect.POTENT if spot.does == "at most" else Effect.IDEMPOTENT
        out = Recorder(folder / f"{spot.name}.jsonl", effect=effect, transactional=spot.does == "exactly")
        if spot.does == "shared":
            out.place = "shared"
        faults, name = self.faults, spot.name

        def answer(delivery: Delivery) -> Outcome:
            if name in faults.down:
                return Outcome.unavailable("down")
            match faults.met(name, delivery.id):
                case None:
                    return Outcome.ok()
                case "permanent":
                    return Outcome.permanent("never")
                case _:
                    return Outcome.transient("not yet")

        out.answer = answer
        return out

    def plan(self) -> Plan:
        """As it is now; made anew for each run, with the faults of its turn."""
        plan = Plan("random", version=1)
        for spot in self.shape:
            match spot.kind:
                case "source":
                    held = self.documents[spot.name]
                    listed = [(id, c.paper(id)) for id, c in held.items()]
                    plan.source(
                        spot.name,
                        Memory([{"id": id, "raw": p.text.encode(), **p.fields} for id, p in listed], max_deleted=1.0),
                    )
                case "step":
                    plan.step(spot.name, Step(spot, self.faults), after=spot.after)
                case "router":
                    plan.route(spot.name, self._router(spot), after=spot.after)
                case _:
                    plan.destination(
                        spot.name,
                        self.outs[spot.name],
                        after=spot.after,
                        tee=spot.kind == "tee",
                        attempts=spot.n % 3 + 1,
                        backoff=NOT_SOON_S if spot.flag else 0,
                    )
        return plan

    def _router(self, spot: Spot) -> Router:
        branches = self.shape.following(spot.name)
        match spot.does:
            case "by field":
                mapping, default = by_field(spot, branches)
                return ByField("kind", mapping, default)
            case "duplicate":
                return Duplicate()
            case "round robin":
                return RoundRobin()
            case _:
                return Some(spot, self.faults)

    @property
    def root(self) -> Path:
        return state_root(self.plan(), self.state)

    def run(self, **options: Any) -> Summary:
        return run_plan(self.plan(), self.state, **{"wait": 0, "sleep": lambda _: None, **options})

    def say(self, word: str | None) -> None:
        if word is None or not (self.root / "state.json").exists():
            return
        one = "a" if word.endswith("one") else None
        force = word.startswith("force")
        retry(self.plan(), state=self.state, force=force, document=one, why="a test says so")
        if force:
            for source, held in self.documents.items():
                self.renewed.update((source, id) for id in held if one in (None, id))

    def change(self, changes: dict[tuple[int, str], Content | None]) -> None:
        names = list(self.documents)
        for (number, id), new in changes.items():
            held = self.documents[names[number]]
            if new is None:
                held.pop(id, None)
            elif held.get(id) != new:
                held[id] = new
                self.renewed[names[number], id] += 1

    def take(self, turn: Turn) -> None:
        self.change(turn.changes)
        self.say(turn.word)
        self.faults.turn += 1
        self.faults.faults, self.faults.down = turn.faults, turn.down
        if turn.kill is None:
            self.run()
            return
        phase, more = turn.kill
        state = self.root / "state.json"
        wave = 1 + more
        if state.exists():
            wave += max((row["wave"] for row in rows(self.root, "ledger")), default=0)
        with contextlib.suppress(Interrupted):
            self.run(observer=Until(wave, phase))

    def heal(self) -> None:
        self.faults.faults, self.faults.down = [], set()


# -- what must hold --------------------------------------------------------------------------------


def lines(out: Recorder) -> list[dict[str, Any]]:
    """What took effect, in the order of its arrival."""
    return [line for line in out.lines() if line["said"] == "ok"]


def origin(line: dict[str, Any]) -> tuple[str, str]:
    return line["source"], line["origin"]


def check_effects(world: World) -> None:
    """Nothing took effect twice, or more often than there was a reason for; newer after older."""
    for name, out in world.outs.items():
        hashes = Counter(line["hash"] for line in lines(out))
        assert all(n == 1 for n in hashes.values()), f"{name}: delivered twice"
        upserts = Counter((*origin(line), line["id"], line["route"]) for line in lines(out) if line["op"] == "upsert")
        for (source, doc, id, route), n in upserts.items():
            assert n <= world.renewed[source, doc], f"{name}: {id} by {route!r} came {n} times"


def check_choices(world: World) -> None:
    """A router chose once for each revision of a document."""
    chosen: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    for event in rows(world.root, "ledger"):
        for choice in filter(None, (event["branches"] or "").split("/")):
            router, _, branch = choice.partition("=")
            if event["operation"] == "upsert" and world.shape.spot(router).does == "round robin":
                above = (event["source"], event["document"], event["revision"], event["route"], router)
                chosen[above].add(branch)
    assert all(len(branches) == 1 for branches in chosen.values()), chosen


def targets(world: World) -> dict[str, list[str]]:
    """Place -> destinations."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, out in world.outs.items():
        found[out.place or name].append(name)
    return found


def stored(world: World, names: list[str]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """(source, origin, id) -> what a place has of it, that keeps one of each id: the line with the highest sequence."""
    there: dict[tuple[str, str, str], dict[str, Any]] = {}
    found = [line for name in names for line in lines(world.outs[name])]
    for line in sorted(found, key=lambda each: int(each["seq"])):
        there[*origin(line), line["id"]] = line
    return {key: line for key, line in there.items() if line["op"] == "upsert"}


def arrivals(world: World, source: str, id: str) -> frozenset[Arrival]:
    """The last of each delivery of a family."""
    last: dict[tuple[str, str, str], Arrival | None] = {}
    for name, out in world.outs.items():
        for line in lines(out):
            if origin(line) == (source, id):
                key = (name, line["id"], line["route"])
                upsert = line["op"] == "upsert"
                last[key] = Arrival(*key, content(line["fields"], line["text"])) if upsert else None
    return frozenset(filter(None, last.values()))


def strays(world: World, source: str, id: str, outside: Outside) -> list[str]:
    """What differs from this way of how it may lie outside."""
    found = []
    for place, names in targets(world).items():
        expected = defaultdict(set)
        for arrival in outside.there:
            if arrival.destination in names:
                expected[arrival.id].add(arrival.content)
        there = {k[2]: line for k, line in stored(world, names).items() if k[:2] == (source, id)}
        found += [f"{place} has no {member}" for member in expected.keys() - there.keys()]
        for member, line in there.items():
            refused = any(
                name in names and (member == by or member.startswith(f"{by}#")) for by, name in outside.refused
            )
            if not refused and content(line["fields"], line["text"]) not in expected[member]:
                found.append(f"{place} has {member}: {line}, and should have {expected[member]}")
    return found


def check_outside(world: World) -> bool:
    """All is outside as the oracle says; is something refused for ever?"""
    oracle, refused = Oracle(world.shape), False
    for source, held in world.documents.items():
        known = {key[1] for names in targets(world).values() for key in stored(world, names) if key[0] == source}
        for id in sorted({*held, *known}):
            seen = arrivals(world, source, id)
            none = [Outside(frozenset(), frozenset())]
            ways = oracle.outsides(source, held[id].paper(id), seen) if id in held else none
            if not ways:
                all_ways = oracle.outsides(source, held[id].paper(id))
                nearest = min((way.there - seen for way in all_ways), key=len)
                raise AssertionError(f"{source} {id}: missing {sorted(nearest)}; there is {sorted(seen)}")
            worst = [strays(world, source, id, way) for way in ways]
            assert [] in worst, f"{source} {id}: {min(worst, key=len)}"
            refused |= any(way.refused for way in ways)
    return refused


def carry(story: Story, folder: Path) -> None:
    world = World(story.shape, folder)
    for turn in story.turns:
        world.take(turn)
        check_effects(world)
    world.heal()
    if not (world.root / "state.json").exists():
        world.run()
    world.run(wait=0)
    world.say("retry")
    summary = world.run(wait=0)
    check_effects(world)
    refused = check_outside(world)
    check_choices(world)
    assert summary.exit == (3 if refused else 0), summary
    assert world.run(wait=0).waves == 0
    world.change({(number, id): None for number in range(len(world.documents)) for id in IDS})
    assert world.run(wait=0).exit == 0
    check_outside(world)
    check_effects(world)


def told(story: Story) -> str:
    """The example, to read."""
    return "\n".join(["", *map(str, story.shape), *map(str, story.turns)])


@contextlib.contextmanager
def somewhere() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ferryman-test-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def tried(story: Story) -> None:
    note(told(story))
    with somewhere() as folder:
        carry(story, folder)


HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large]


@examples(max_examples=15, deadline=None, suppress_health_check=HEALTH, print_blob=True, database=None)
@given(story=stories())
def test_a_random_plan_comes_to_what_the_oracle_says(story: Story) -> None:
    """Some stories, others each time."""
    tried(story)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@examples(max_examples=300, deadline=None, suppress_health_check=HEALTH, print_blob=True)
@given(story=stories())
def test_whatever_the_plan_it_comes_to_what_the_oracle_says(story: Story) -> None:
    """Hundreds of them."""
    tried(story)
