"""A new version of a plan that keeps state by key goes on with the states of the older one."""

from __future__ import annotations

import operator
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from ferryman import Document, crash, limits
from ferryman.errors import Dropped
from ferryman.plan import Plan
from ferryman.routers import Duplicate
from ferryman.sources import Memory
from ferryman.state.state import state_root
from tests.engine.keyed.test_changes import balance, total
from tests.support.keyed import Sums
from tests.support.plan_world import Interrupted, PlanWorld, Until
from tests.support.tiers import sampled

Step = Callable[[Document], Document]


def same(doc: Document) -> Document:
    return doc


def by_number(doc: Document) -> Document:
    """Other keys."""
    doc["key"] = f"n{doc['n'] % 3}"
    return doc


def tripled(doc: Document) -> Document:
    """Other values."""
    doc["n"] *= 3
    return doc


def without_small_ones(doc: Document) -> Document:
    """Fewer documents."""
    if doc["n"] < 5:
        raise Dropped("too small")
    return doc


STEPS: tuple[Step, ...] = (same, by_number, tripled, without_small_ones)
COMBINED = {"key": "key", "value": "n", "inverse": operator.neg}


def build_versions(
    world: PlanWorld, version: int, step: Step = same, *, routed: bool = False, nodes: str = "sums totals"
) -> Plan:
    """Build a version: documents → a step → a sum by key, kept twice: by ``previous``, and by an inverse.

    Args:
        routed: a router that copies stands before the keyed nodes.
        nodes: the keyed nodes that it has; the third is ``others``.
    """
    plan = Plan("versions", version=version)
    node = plan.source("docs", Memory(world.documents, max_deleted=1.0)).step("step", step)
    fork = node.route("fork", Duplicate())
    for name in nodes.split():
        above = fork.step(f"to_{name}", same).route(f"{name}_apart", Duplicate()) if routed else fork
        if name == "totals":
            below = above.combine(name, total, **COMBINED)
        else:
            below = above.keyed(name, balance, key="key")
        below.destination(f"{name}_out", world.out(name), backoff=0)
    return plan


class Versions(Sums):
    """Versions of a plan whose documents change at random; what its destinations were told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, build_versions)

    def told(self, name: str) -> dict[str, int]:
        """What its destination was told last of each key; each time ``old`` is what was told before."""
        last: dict[str, int] = defaultdict(int)
        highest = 0
        for line in self.out(name).lines():
            fields = line["fields"]
            assert line["seq"] > highest, "a sequence went back"
            highest = line["seq"]
            assert (fields["old"] or 0) == last[fields["key"]], line
            last[fields["key"]] = fields["new"] or 0
        return {key: n for key, n in last.items() if n}

    def check_sums(self, plan: Plan, step: Step, nodes: str = "sums totals") -> None:
        for name in nodes.split():
            assert self.states(plan, name) == self.recount(step), name
            assert self.told(name) == self.recount(step), name

    def change(self, chance: random.Random, many: int = 25) -> None:
        """Some come, some change, some have another key, some go."""
        for _ in range(many):
            id = f"d{chance.randrange(30)}"
            if chance.random() < 0.2:
                self.contents.pop(id, None)
            else:
                self.contents[id] = {"key": f"k{chance.randrange(6)}", "n": chance.randrange(1, 9)}


@pytest.fixture
def versions(place: Path) -> Versions:
    found = Versions(place)
    found.contents = {id: {"key": key, "n": n} for id, key, n in (("a", "x", 3), ("b", "x", 7), ("c", "y", 8))}
    return found


@pytest.mark.rule("keyed.version")
def test_nothing_is_counted_twice_or_left_out(versions: Versions) -> None:
    """The way has not changed: what changed at the source is counted, and nothing else comes to a node."""
    versions.run(versions.make_plan(1))
    versions.contents["a"]["n"] = 4
    new = versions.make_plan(2)
    assert versions.run(new, 1).exit == 0
    versions.check_sums(new, same)
    assert len(versions.outs["sums"].lines()) == 3
    assert versions.run(new, 1).waves == 0


@pytest.mark.rule("keyed.version")
@pytest.mark.parametrize("step", STEPS[1:])
def test_a_changed_step_replaces_what_was_counted(versions: Versions, step: Step) -> None:
    """With the documents changing, moving and going at the same time."""
    versions.run(versions.make_plan(1))
    versions.contents = {"a": {"key": "y", "n": 6}, "c": {"key": "y", "n": 8}, "d": {"key": "z", "n": 1}}
    new = versions.make_plan(2, step)
    assert versions.run(new, 1).exit == 0
    versions.check_sums(new, step)


@pytest.mark.rule("keyed.version")
def test_another_route_to_a_node_is_no_second_document(versions: Versions) -> None:
    """A router that copies is put before it, and taken out again."""
    versions.run(versions.make_plan(1))
    for version, routed in ((2, True), (3, False), (4, True)):
        new = versions.make_plan(version, routed=routed)
        assert versions.run(new, version - 1).exit == 0
        versions.check_sums(new, same)
    versions.contents = {"c": {"key": "x", "n": 1}}
    versions.run(new)
    versions.check_sums(new, same)


@pytest.mark.rule("keyed.version")
def test_a_node_that_is_new_counts_all_documents(versions: Versions) -> None:
    """And one that is gone is left in the older version; if it comes back, it counts anew."""
    versions.run(versions.make_plan(1, nodes="sums"))
    new = versions.make_plan(2, nodes="sums others")
    assert versions.run(new, 1).exit == 0
    versions.check_sums(new, same, "sums others")
    versions.run(versions.make_plan(3, nodes="others"), 2)
    assert not (state_root(versions.make_plan(3), versions.state) / "state" / "sums").exists()
    versions.contents["a"] = {"key": "z", "n": 9}
    newest = versions.make_plan(4, nodes="sums others")
    assert versions.run(newest, 3).exit == 0
    versions.check_sums(newest, same, "others")
    assert versions.states(newest, "sums") == versions.recount(same)


class Killed(BaseException):
    pass


POINTS = [name for name in crash.POINTS if name.startswith(("version.", "plan.", "create."))]


@pytest.mark.rule("keyed.version")
@pytest.mark.parametrize(("point", "pass_"), sampled([(p, n) for n in (1, 4) for p in POINTS], 12))
def test_a_kill_on_the_way_over_changes_nothing(
    versions: Versions, point: str, pass_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command again finishes it."""
    versions.run(versions.make_plan(1))
    versions.contents["a"] = {"key": "z", "n": 4}
    left = [pass_]

    def kill(name: str) -> None:
        if name == point:
            left[0] -= 1
            if left[0] == 0:
                raise Killed

    new = versions.make_plan(2, by_number, routed=True)
    with monkeypatch.context() as patched:
        patched.setattr(crash, "point", kill)
        try:
            versions.run(new, 1)
        except Killed:
            assert left == [0]
    assert versions.run(new, 1).exit == 0
    versions.check_sums(new, by_number)


@pytest.mark.rule("keyed.version")
@pytest.mark.parametrize("seed", sampled(range(40), 40))
def test_random_versions_equal_a_recount(place: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps change, routers come and go; documents change at any time; a run is interrupted anywhere, and every version
    but the first continues from the one before."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 3)
    chance = random.Random(seed)
    versions = Versions(place)
    for version in range(1, 5):
        step, routed = chance.choice(STEPS), chance.random() < 0.5
        plan = versions.make_plan(version, step, routed=routed)
        older = version - 1 or None
        for _ in range(chance.randrange(3)):
            versions.change(chance)
            end = Until(chance.randrange(1, 12), chance.choice(["scan", "transform", "commit", "deliver", "settle"]))
            try:
                versions.run(plan, older, observer=end, checked=False)
            except Interrupted:
                continue
        versions.change(chance)
        assert versions.run(plan, older).exit == 0
        versions.check_sums(plan, step)
