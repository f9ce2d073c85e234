"""``plan check`` finds all that is wrong with a plan in one go, and names the node and the remedy."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ferryman import Effect, Plan
from ferryman.destinations import Destination
from ferryman.errors import PlanError
from ferryman.plan import DestinationNode, Node, RouterNode, SourceNode, StepNode, graph
from ferryman.plan.cycles import cycles
from ferryman.routers import ByField, Duplicate, RoundRobin
from ferryman.sources import Memory
from tests.plan.plans import Index, good_plans, same, without


def source(prefix: str = "") -> Memory:
    return Memory([], prefix=prefix)


def findings(plan: Plan) -> list[str]:
    """Why it is refused; [] if it is not."""
    try:
        plan.check()
    except PlanError as e:
        return e.findings
    return []


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.rule("check.cycle")
def test_a_cycle() -> None:
    """The ring is told from its first node on, on the way that documents take."""
    plan = Plan("p")
    a = plan.source("a", source())
    fork = plan.step("b", same, after=[a, "c"]).route("fork", ByField("x"))
    fork.step("c", same)
    fork.destination("d", Index())

    assert findings(plan) == [
        "b → fork → c → b: a cycle: these nodes follow each other, take one of the edges (after=) away."
    ]


@pytest.mark.rule("check.cycle")
def test_a_node_that_follows_itself() -> None:
    """The shortest ring."""
    plan = Plan("p")
    plan.step("b", same, after=[plan.source("a", source()), "b"]).destination("c", Index())

    assert "b → b: a cycle" in "\n".join(findings(plan))


def test_rings_that_share_a_node_are_all_told() -> None:
    """Who opens one does not find the next in the next check."""
    plan = Plan("p")
    fork = plan.step("a", same, after=[plan.source("s", source()), "b", "c"]).route("fork", ByField("x"))
    fork.step("b", same)
    fork.step("c", same)
    fork.destination("d", Index())

    assert cycles(plan.nodes) == [["a", "fork", "b"], ["a", "fork", "c"]]


@pytest.mark.rule("plan.unique")
def test_two_nodes_of_one_name() -> None:
    """One mistake is one finding: that edges of twins look like forks and rings is not told."""
    plan = Plan("p")
    plan.source("a", source()).step("b", same).step("b", same).step("c", same).destination("b", Index())

    assert findings(plan) == ["b: 3 nodes have this name: names are unique in a plan, rename all but one."]


@pytest.mark.rule("plan.names")
@pytest.mark.parametrize("name", ["", "1st", "two words", "-x", "é", "a\n", "a/b", 7, None, ["a"]], ids=repr)
def test_bad_names(name: Any) -> None:
    """Of nodes and plans; also what is no text at all."""
    plan = Plan("p")
    plan.source(name, source()).destination("b", Index())
    [found] = findings(plan)

    assert "bad name: use letters, digits" in found
    assert repr(name) in found or str(name) in found
    of_a_plan = Plan(name)
    of_a_plan.source("a", source()).destination("b", Index())
    assert findings(of_a_plan) == [
        f"plan {name!r}: bad name: use letters, digits, '_', '.', '-', beginning with a letter."
    ]


@pytest.mark.parametrize("version", [-1, 1.5, "1", None, True])
def test_bad_versions(version: Any) -> None:
    """A whole number from 0."""
    plan = Plan("p", version=version)
    plan.source("a", source()).destination("b", Index())

    assert findings(plan) == [f"plan p: version {version!r}: give a whole number from 0."]


@pytest.mark.rule("check.orphan")
def test_a_node_that_follows_nothing() -> None:
    """Only sources may."""
    plan = Plan("p")
    plan.source("a", source()).destination("b", Index())
    plan.step("c", same).destination("d", Index())

    assert findings(plan) == ["c: follows no node and is no source: give it after=[…], or make it from another node."]


@pytest.mark.rule("check.source")
def test_a_source_that_follows_something() -> None:
    """Nothing that builds plans makes one; a plan is data and may come from elsewhere."""
    nodes = [
        SourceNode("a", ("b",), source=source()),
        SourceNode("b", source=source()),
        Plan("q").destination("c", Index(), after="a").plan.nodes[0],
    ]

    assert graph.check("p", 0, nodes)[0] == ["a: a source follows nothing: take its after= away."]


@pytest.mark.rule("check.end")
@pytest.mark.parametrize("kind", ["source", "step", "router"])
def test_a_path_that_ends_in_no_destination(kind: str) -> None:
    """Whatever stands at its end, but for a tee, which is a destination too."""
    plan = Plan("p")
    last = plan.source("a", source())
    if kind != "source":
        last = last.step("b", same) if kind == "step" else last.route("b", Duplicate())

    assert findings(plan) == [
        (
            f"{last.name}: the path ends here in no destination, nothing would happen to these documents: "
            "add .destination(name, …) after it."
        )
    ]
    last.tee("end", Index())
    assert findings(plan) == []


@pytest.mark.rule("check.potent")
@pytest.mark.parametrize("mutates", [True, False])
def test_a_potent_step(mutates: bool) -> None:
    """Steps run before the commit; where it changes the document too, the two are to be taken apart."""
    plan = Plan("p")
    plan.source("a", source()).step("mail", same, effect=Effect.POTENT, mutates=mutates).destination("c", Index())
    [found] = findings(plan)

    assert found.startswith("mail: a step runs before the commit")
    assert "make it a tee or a destination" in found
    assert ("take the two apart" in found) == mutates


@pytest.mark.rule("check.fork")
@pytest.mark.parametrize("kind", ["source", "step", "tee"])
def test_several_successors_without_a_router(kind: str) -> None:
    """Who is there twice must be told how."""
    plan = Plan("p")
    at = plan.source("a", source())
    if kind != "source":
        at = at.step("b", same) if kind == "step" else at.tee("b", Index())
    at.destination("c", Index())
    at.destination("d", Index())

    assert findings(plan) == [
        (
            f"{at.name}: has 2 successors (c, d) without a router between: put one there, .route(name, Duplicate()) "
            "for a copy to each."
        )
    ]


def test_what_follows_a_destination() -> None:
    """A path ends there; a tee is meant."""
    plan = Plan("p")
    plan.source("a", source()).destination("b", Index()).destination("c", Index())

    assert findings(plan) == [
        (
            "c: follows b, but a destination is the end of a path: follow the node before it, or make b a tee: "
            ".tee(name, …)."
        )
    ]


def test_a_name_that_is_not_there() -> None:
    """Each of them."""
    plan = Plan("p")
    plan.destination("b", Index(), after=[plan.source("a", source()), "x", 3])

    assert findings(plan) == [
        "b: follows 'x', which is not in the plan: declare it or correct after=.",
        "b: follows '<3>', which is not in the plan: declare it or correct after=.",
    ]


@pytest.mark.rule("check.branch")
def test_a_branch_that_does_not_exist() -> None:
    """Each branch that the router can name."""
    plan = Plan("p")
    kind = plan.source("a", source()).route("kind", ByField("k", {"1": "one", "2": "two"}, default="rest"))
    kind.destination("one", Index())

    assert [text.partition(":")[0] for text in findings(plan)] == ["kind", "kind"]
    assert findings(plan)[0] == (
        "kind: routes to 'two', which is no branch of it: branches are called by their first node, here one. "
        "Add the branch, or correct the router."
    )


def unequal(on_unequal: Any) -> Plan:
    plan = Plan("p")
    fork = plan.source("a", source()).route("fork", RoundRobin(on_unequal=on_unequal))
    fork.step("left", same).destination("b", Index())
    fork.tee("right", Index()).destination("c", Index())
    return plan


@pytest.mark.rule("check.unequal")
def test_unequal_branches_of_a_router_that_is_not_deterministic() -> None:
    """A warning, or a refusal where the router says so."""
    told = "fork: is not deterministic, and its branches lead to different destinations (left → b; right → c, right). "

    assert findings(unequal("error")) == [
        told + "on_unequal='error' refuses this: lead each branch to all of them, or allow it with 'warn'."
    ]
    assert unequal("warn").check() == [
        told + "The commit of a wave fixes what was chosen; if they shall all get it, lead each branch to all of them."
    ]


@pytest.mark.rule("check.unequal")
def test_equal_branches_of_a_router_that_is_not_deterministic() -> None:
    """They meet again: nothing to say."""
    plan = Plan("p")
    fork = plan.source("a", source()).route("fork", RoundRobin(on_unequal="error"))
    plan.destination("b", Index(), after=[fork.step("left", same), fork.step("right", same)])

    assert plan.check() == []


@pytest.mark.rule("check.exactly-once")
def test_an_unknown_effect_or_guarantee() -> None:
    """What a destination must declare, and what it cannot keep."""

    class Silent(Destination):
        pass

    plan = Plan("p")
    fork = plan.source("a", source()).route("fork", Duplicate())
    fork.destination("b", Silent())
    fork.destination("c", Index(), guarantee="exactly-once")

    assert findings(plan) == [
        "b: Silent does not say its effect: set effect = Effect.IDEMPOTENT or Effect.POTENT.",
        (
            "c: Index cannot keep exactly-once, for it does not store the delivery hash with the effect "
            "(transactional = True): ask for at-least-once or at-most-once."
        ),
    ]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("attempts", 0),
        ("attempts", "3"),
        ("batch", 0),
        ("batch_bytes", -1),
        ("batch", 1.5),
        ("backoff", []),
        ("backoff", -1),
        ("backoff", "10"),
        ("backoff", [float("nan")]),
    ],
)
def test_numbers_of_a_policy(option: str, value: Any) -> None:
    """Out of range, or no numbers."""
    plan = Plan("p")
    plan.source("a", source()).destination("b", Index(), **{option: value})
    [found] = findings(plan)

    assert found.startswith(f"b: {option}=")


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "2"])
def test_timeouts(timeout: Any) -> None:
    """Seconds above 0."""
    plan = Plan("p")
    plan.source("a", source()).step("b", same, timeout=timeout).destination("c", Index())

    assert findings(plan) == [f"b: timeout={timeout!r}: give seconds above 0, or leave it out."]


@pytest.mark.rule("destination.send-timeout")
@pytest.mark.parametrize("send_timeout", [0, -1, 601, float("inf"), "60", None])
def test_a_send_timeout_that_is_none(send_timeout: Any) -> None:
    """Nor may it hold up the waves of all others for hours."""
    plan = Plan("p")
    plan.source("a", source()).destination("b", Index(), send_timeout=send_timeout)

    assert findings(plan) == [f"b: send_timeout={send_timeout!r}: give seconds above 0, 600 at most."]


def test_what_is_not_what_it_should_be() -> None:
    """A folder is no source, a URL is no destination, a field is no router, a name is no function."""
    wrong: Any = "x"
    plan = Plan("p")
    plan.source("a", wrong).step("b", wrong).route("c", wrong).destination("d", wrong)

    assert [text.partition(":")[0] for text in findings(plan)] == ["a", "b", "c", "d"]


@pytest.mark.rule("check.all")
def test_all_mistakes_are_found_in_one_go() -> None:
    """Nobody has to mend a plan a mistake at a time."""
    wrong: Any = "x"
    plan = Plan("bad plan", version=-1)
    a = plan.source("a", source())
    plan.step("ring-1", same, after=[a, "ring-2"])
    plan.step("ring-2", same, after="ring-1")
    plan.step("twin", same, after=a)
    plan.step("twin", same, after="nowhere")
    plan.step("lonely", same)
    plan.step("1st", same, after="lonely")
    plan.step("mail", same, effect=Effect.POTENT, timeout=-1, after="1st")
    fork = plan.route("fork", RoundRobin(on_unequal="error"), after="mail")
    fork.destination("left", Index(), guarantee="exactly-once", attempts=0)
    fork.destination("right", wrong, backoff=-1)
    kind = plan.route("kind", ByField("k", default="rest"), after="right")
    kind.step("stop", wrong)
    told = "\n".join(findings(plan))

    for words in [
        "plan 'bad plan': bad name",
        "version -1",
        "ring-1 → ring-2 → ring-1: a cycle",
        "twin: 2 nodes have this name",
        "twin: follows 'nowhere'",
        "twin: the path ends here",
        "a: has 2 successors",
        "lonely: follows no node",
        "'1st': bad name",
        "mail: a step runs before",
        "mail: timeout=-1",
        "fork: is not deterministic",
        "left: Index cannot keep exactly-once",
        "left: attempts=0",
        "right: 'x' is no Destination",
        "kind: follows right, but a destination",
        "kind: routes to 'rest'",
        "stop: 'x' is not a function",
        "stop: the path ends here",
    ]:
        assert words in told, words


# --- what is warned of --------------------------------------------------------------------------------------------


@pytest.mark.rule("check.routes")
def test_two_routes_into_one_target_keyed_by_id() -> None:
    """All that meet there are named, in the plan's order; what is not keyed by id may be met."""
    plan = Plan("p")
    fork = plan.source("a", source()).route("fork", Duplicate())
    fork.tee("one", Index("index://x")).destination("two", Index("index://x"))
    fork.destination("three", Index("index://x"))
    fork.destination("four", Index("index://y"))

    assert plan.check() == [
        (
            "index://x: one document comes here by several routes (one and two and three) under one id, the last "
            "stays: give each route a target of its own, or give the copies children's ids."
        )
    ]


@pytest.mark.rule("check.routes")
def test_copies_that_meet_at_one_destination() -> None:
    """It has the name of its own target."""
    plan = Plan("p")
    fork = plan.source("a", source()).route("fork", Duplicate())
    plan.destination("index", Index(), after=[fork.step("b", same), fork.step("c", same)])

    [warning] = plan.check()
    assert warning.startswith("index: one document comes here by several routes (index)")


def test_one_of_several_ways_into_one_target() -> None:
    """A document takes one of them: nothing to say."""
    plan = Plan("p")
    fork = plan.source("a", source()).route("fork", ByField("k"))
    fork.destination("one", Index("index://x"))
    fork.destination("two", Index("index://x"))

    assert plan.check() == []


@pytest.mark.rule("check.prefixes")
def test_sources_without_distinct_prefixes() -> None:
    """Warned of where they come to one target keyed by id; not where each has its own, nor with distinct prefixes."""

    def plan(one: str, two: str, *, apart: bool = False) -> Plan:
        made = Plan("p")
        a, b = made.source("a", source(one)), made.source("b", source(two))
        if apart:
            a.destination("c", Index())
            b.destination("d", Index())
        else:
            made.destination("c", Index("index://x"), after=[a, b])
        return made

    assert plan("", "").check() == [
        "index://x: the sources a, b reach it without distinct prefixes, their ids may clash: give each a prefix=."
    ]
    assert plan("a/", "b/").check() == []
    assert plan("", "", apart=True).check() == []


def test_a_destination_that_does_not_compare_sequences() -> None:
    """Unless it is transactional, which comes to the same."""

    class Notes(Destination):
        effect: ClassVar[Effect] = Effect.IDEMPOTENT

    class Table(Notes):
        transactional: ClassVar[bool] = True

    plan = Plan("p")
    fork = plan.source("a", source()).route("fork", Duplicate())
    fork.destination("notes", Notes())
    fork.destination("table", Table())

    [warning] = plan.check()
    assert warning.startswith("notes: Notes does not compare sequences")
    assert "compares_sequences = True" in warning


PROGRAM = """
from tests.plan.test_check import Duplicate, Index, Plan, source
plan = Plan("p")
fork = plan.source("a", source()).route("fork", Duplicate())
for n in range(4):
    for at in "xyz":
        fork.destination(f"{at}{n}", Index(f"index://{at}"))
print(plan.check())
"""


def test_warnings_are_the_same_in_every_process() -> None:
    """No order of sets comes through."""
    told = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(told) == 1
    assert told.pop().count("several routes") == 3


# --- by chance ----------------------------------------------------------------------------------------------------


@given(good_plans())
def test_a_plan_in_order_passes(plan: Plan) -> None:
    """Sources, steps, tees, forks, joins and ends in any shape that is allowed."""
    plan.check()


Mutation = Callable[[st.DataObject, list[Node]], tuple[list[Node], set[str]]]
"""(draw, nodes of a good plan) -> (nodes of a bad one, names of which one must be told)."""


def drop_an_edge(data: st.DataObject, nodes: list[Node]) -> tuple[list[Node], set[str]]:
    tees = {n.name for n in nodes if isinstance(n, DestinationNode)}
    edges = [(a, n) for n in nodes for a in n.after if len(n.after) == 1 or a not in tees]
    before, node = data.draw(st.sampled_from(edges))
    return [without(node, before) if n is node else n for n in nodes], {before, node.name}


def add_a_back_edge(data: st.DataObject, nodes: list[Node]) -> tuple[list[Node], set[str]]:
    late = data.draw(st.sampled_from(nodes))
    early = data.draw(st.sampled_from([n for n in nodes if n.name in above(late, nodes)]))
    return [replace(n, after=(*n.after, late.name)) if n is early else n for n in nodes], {early.name}


def above(node: Node, nodes: list[Node]) -> set[str]:
    by_name = {n.name: n for n in nodes}
    found, waiting = set(), [node.name]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += by_name[name].after
    return found


def double_a_name(data: st.DataObject, nodes: list[Node]) -> tuple[list[Node], set[str]]:
    one, other = data.draw(st.permutations(nodes))[:2]
    return [replace(n, name=other.name) if n is one else n for n in nodes], {other.name}


def remove_a_node(data: st.DataObject, nodes: list[Node]) -> tuple[list[Node], set[str]]:
    gone = data.draw(st.sampled_from(nodes))
    branching = {n.name for n in nodes if isinstance(n, (RouterNode, DestinationNode))}
    if isinstance(gone, DestinationNode) and not gone.tee:
        assume(not branching & set(gone.after))
    return [n for n in nodes if n is not gone], {
        gone.name,
        *gone.after,
        *(n.name for n in nodes if gone.name in n.after),
    }


def fork_without_a_router(data: st.DataObject, nodes: list[Node]) -> tuple[list[Node], set[str]]:
    at = data.draw(st.sampled_from([n for n in nodes if isinstance(n, (SourceNode, StepNode))]))
    more = Plan("q").destination("more", Index(), after=at.name).plan.nodes
    return [*nodes, *more], {at.name}


def follow_what_is_not_there(data: st.DataObject, nodes: list[Node]) -> tuple[list[Node], set[str]]:
    node = data.draw(st.sampled_from(nodes))
    return [replace(n, after=(*n.after, "nowhere")) if n is node else n for n in nodes], {node.name}


def break_a_name(data: st.DataObject, nodes: list[Node]) -> tuple[list[Node], set[str]]:
    node = data.draw(st.sampled_from(nodes))
    return [replace(n, name=f"{n.name} !") if n is node else n for n in nodes], {f"{node.name} !"}


def make_it_potent(data: st.DataObject, nodes: list[Node]) -> tuple[list[Node], set[str]]:
    steps = [n for n in nodes if isinstance(n, StepNode)]
    assume(steps)
    node = data.draw(st.sampled_from(steps))
    return [replace(n, effect=Effect.POTENT) if n is node else n for n in nodes], {node.name}  # type: ignore[call-arg]


MUTATIONS: list[Mutation] = [
    drop_an_edge, add_a_back_edge, double_a_name, remove_a_node, fork_without_a_router, follow_what_is_not_there,
    break_a_name, make_it_potent,
]  # fmt: skip


@pytest.mark.rule("check.all")
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda m: m.__name__)
@given(plan=good_plans(), data=st.data())
def test_one_mistake_is_found_and_its_node_is_named(mutate: Mutation, plan: Plan, data: st.DataObject) -> None:
    """Whatever the plan, and wherever the mistake."""
    nodes, concerned = mutate(data, list(plan.nodes))
    found, warnings = graph.check("random", 0, nodes)

    assert warnings == []
    named = "|".join(map(re.escape, concerned))
    assert any(re.search(rf"(?<![\w-])({named})(?![\w-])", text) for text in found), (found, concerned)
