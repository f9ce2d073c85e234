"""Any plan, any documents, any faults: in the end what lies outside is what an oracle says, and nothing else."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, note
from hypothesis import settings as examples

from ferryman import account
from tests.support.invariants import rows
from tests.support.oracle import Arrival, Oracle, Outside, Shape, Spot, content
from tests.support.plan_world import MEMORY
from tests.support.recorder import Recorder
from tests.support.stories import IDS, Content, Fault, Story, Turn, origin, stories
from tests.support.world import World


def lines(out: Recorder) -> list[dict[str, Any]]:
    """What took effect, in the order of its arrival."""
    return [line for line in out.lines() if line["said"] == "ok"]


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


def check_doubt(world: World) -> None:
    """Only what was in a chunk that broke the connection of an at-most-once destination is in doubt."""
    for each in account.deliveries(world.root, plan=world.plan, status="in_doubt"):
        name = each["destination"]
        assert world.shape.spot(name).does == "at most", each
        assert each["delivery_hash"] in world.broken(name), each


def check_outside(world: World) -> bool:
    """All is outside as the oracle says; is something refused for ever?"""
    oracle, refused = Oracle(world.shape), False
    for source, held in world.contents.items():
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
        world.play(turn)
        check_effects(world)
    world.heal()
    if not (world.root / "state.json").exists():
        world.run()
    world.run(wait=0)
    check_doubt(world)
    world.say("resolve")
    world.say("retry")
    summary = world.run(wait=0)
    check_effects(world)
    refused = check_outside(world)
    check_choices(world)
    assert summary.exit == (3 if refused else 0), summary
    assert world.run(wait=0).waves == 0
    world.change({(number, id): None for number in range(len(world.contents)) for id in IDS})
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


ONE = Content("x", 0, "p", "one")
BREAKS = Story(
    Shape(
        [
            Spot("s0", "source", ""),
            Spot("s1", "step", "split", ("s0",), flag=True),
            Spot("r2", "router", "duplicate", ("s1",)),
            Spot("e3", "end", "at least", ("r2",)),
            Spot("e4", "end", "at most", ("r2",)),
        ]
    ),
    [
        Turn({(0, "a"): ONE, (0, "b"): ONE}, [Fault("e3", "a", "", 9, "breaks")], set(), None, None),
        Turn({(0, "a"): ONE._replace(text="two")}, [Fault("e4", "a", "p", 1, "breaks")], set(), None, ("deliver", 0)),
        Turn({(0, "b"): ONE._replace(parts="")}, [Fault("e4", "b", "p", 1, "breaks")], set(), "resolve", None),
    ],
)
"""Chunks break connections under two guarantees, in each turn."""


HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large]


@examples(max_examples=4, deadline=None, suppress_health_check=HEALTH, print_blob=True, database=None)
@given(story=stories())
@example(story=BREAKS)
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
